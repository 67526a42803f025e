"""Arguments and results of functions on the command line."""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotdiff.cli.common import UsageError
from aotdiff.runtime.interface import Group, Interface, Kind, Leaf, leaves, size_names


def arguments(f: Interface, words: Sequence[str]) -> list[Any]:
    """The arguments that these words give: in order, by name (`x=1.5`), or all from one file."""
    if len(words) == 1 and words[0].startswith("@"):
        table = _table(words[0][1:])
        if table is not None and not (len(f.parameters) == 1 and f.names[0] not in table):
            return [_named(f, table, name, words[0]) for name in f.names]
    given: dict[str, Any] = {}
    positional = iter(f.names)
    for word in words:
        name, text = _split(f, word)
        if name is None:
            name = next((n for n in positional if n not in given), None)
            if name is None:
                takes = f"{len(f.names)} argument{'' if len(f.names) == 1 else 's'}"
                raise UsageError(f"{f.name} takes {takes}: {f}")
        if name in given:
            raise UsageError(f"{name} is given twice")
        given[name] = value(text)
    missing = [str(p) for p in f.parameters if p.name not in given]
    if missing:
        raise UsageError(f"{f.name}: no argument for {', '.join(missing)}")
    return [given[name] for name in f.names]


def _split(f: Interface, word: str) -> tuple[str | None, str]:
    name, sign, text = word.partition("=")
    return (name, text) if sign and name in f.names else (None, word)


def _named(f: Interface, table: dict[str, Any], name: str, where: str) -> Any:
    if name not in table:
        raise UsageError(f"{where[1:]} has no {name!r}, which {f.name} takes; it has {', '.join(table) or 'nothing'}")
    return table[name]


def _table(path: str) -> dict[str, Any] | None:
    """A file of named values, None for any other file."""
    if path.endswith(".npz"):
        return {name: _plain(array) for name, array in _read(path).items()}
    data = _read(path) if path.endswith(".json") else None
    return data if isinstance(data, dict) else None


def value(text: str) -> Any:
    """One argument: a number, `true`, JSON, `@file.npy`, `@file.npz:key`, `@file.json`, `@file.json:key`."""
    if text.startswith("@"):
        return _from_file(text[1:])
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)  # inf, nan, 1e5, .5
    except ValueError:
        raise UsageError(f"{text!r} is not a number, JSON, or @file") from None


def _from_file(text: str) -> Any:
    found = re.fullmatch(r"(.*\.(?:npz|json)):([^/]*)", text)
    path, name = found.groups() if found and not os.path.exists(text) else (text, None)
    data = _read(path)
    if name is None:
        if isinstance(data, np.lib.npyio.NpzFile):
            raise UsageError(f"{path} has {', '.join(data)}: name one with @{path}:NAME")
        return _plain(data)
    if name not in data:
        raise UsageError(f"{path} has no {name!r}; it has {', '.join(data)}")
    return _plain(data[name])


def _read(path: str) -> Any:
    try:
        if path.endswith(".json"):
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        if path.endswith((".npy", ".npz")):
            return np.load(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    raise UsageError(f"{path}: arguments come from .npy, .npz and .json files")


def _plain(data: Any) -> Any:
    """Arrays of no dimensions as Python numbers: a file does not decide `real` for a number."""
    return data.item() if isinstance(data, np.ndarray) and data.ndim == 0 else data


# Random arguments ----------------------------------------------------------------------------------------------


def random_arguments(f: Interface, sizes: dict[str, int], seed: int) -> list[Any]:
    """Arguments of these sizes; i64 parameters that are sizes take their value from `sizes` too."""
    rng = np.random.default_rng(seed)
    wanted = {name for p in f.parameters for leaf in leaves(p.kind) for s in leaf.sizes for name in size_names(s)}
    missing = sorted(wanted - sizes.keys())
    if missing:
        example = ",".join(f"{name}=4" for name in missing)
        raise UsageError(f"--random needs a value for {', '.join(missing)}: --random {example}")
    whole = {p.name for p in f.parameters if all(leaf.element == "i64" for leaf in leaves(p.kind))}
    for name in sizes.keys() - wanted - whole:
        known = ", ".join(sorted(wanted | whole)) or "none"
        raise UsageError(f"--random: {f.name} has no size and no i64 parameter {name!r}; it has {known}")
    return [_random(p.kind, p.name, sizes, rng) for p in f.parameters]


def _random(kind: Kind, name: str, sizes: dict[str, int], rng: np.random.Generator) -> Any:
    if isinstance(kind, Group):
        return tuple(_random(item, name, sizes, rng) for item in kind.items)
    shape = tuple(_number(size, sizes) for size in kind.sizes)
    if min(shape, default=0) < 0:
        raise UsageError(f"--random makes {name} an array of {min(shape)} elements")
    if kind.element == "bool":
        made: Any = rng.integers(0, 2, shape).astype(bool)
    elif kind.element == "i64":
        made = np.full(shape, sizes[name]) if name in sizes else rng.integers(0, 3, shape)
    else:
        made = rng.uniform(0.2, 1.5, shape).astype(np.float32 if kind.element == "f32" else np.float64)
    return made if shape else np.asarray(made).item()


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


def _number(size: Any, sizes: dict[str, int]) -> int:
    if isinstance(size, str):
        return sizes[size]
    if isinstance(size, int):
        return size
    a, b = _number(size[1], sizes), _number(size[2], sizes)
    try:
        return _OPERATORS[size[0]](a, b)
    except ZeroDivisionError:
        raise UsageError("a size divides by zero") from None


def sizes_from(text: str) -> dict[str, int]:
    """`n=100,k=5`"""
    sizes = {}
    for part in text.split(","):
        name, sign, number = part.partition("=")
        if not sign or not number.strip().lstrip("-").isdigit():
            raise UsageError(f"--random takes NAME=NUMBER,..., not {part!r}")
        sizes[name.strip()] = int(number)
    return sizes


# Results -------------------------------------------------------------------------------------------------------


def jsonable(result: Any) -> Any:
    """A result as JSON data: arrays and tuples as lists."""
    if isinstance(result, tuple):
        return [jsonable(item) for item in result]
    return result.tolist() if isinstance(result, np.ndarray) else result


def text_of(result: Any) -> str:
    """A result for people, every digit of it."""
    if isinstance(result, tuple):
        inside = ", ".join(text_of(item) for item in result)
        return f"({inside},)" if len(result) == 1 else f"({inside})"
    if isinstance(result, np.ndarray):
        shown = {"separator": ", ", "floatmode": "unique", "max_line_width": 110}
        return np.array2string(result, threshold=result.size + 1, **shown)
    return repr(result) if not isinstance(result, bool) else str(result).lower()


def is_scalar_float(kind: Kind) -> bool:
    return isinstance(kind, Leaf) and kind.is_float and not kind.sizes
