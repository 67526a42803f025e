"""Derivatives checked against each other: forward mode, reverse mode, finite differences.

For each checked parameter the reverse gradient (a vjp with random cotangents) is compared entry by entry with
forward mode (a jvp for each entry) and with central differences of the function. Where the one-sided slopes differ (a
kink) any value between them is right. `order=2` does the same for the gradient itself, order 3 once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotdiff.runtime.binding import arrange, choose_real
from aotdiff.runtime.convert import Place, flatten
from aotdiff.runtime.function import Function, _names
from aotdiff.runtime.interface import Group, Kind, Leaf, default_wrt, float_part, float_results, leaves

_MODES = "reverse and forward differ"
_SHOWN = 20  # rows of the table


@dataclass(slots=True)
class Entry:
    """One compared number."""

    order: int
    parameter: str
    index: tuple[int, ...]
    reverse: float
    forward: float
    difference: float
    problem: str

    def row(self) -> list[str]:
        place = self.parameter + (f"[{', '.join(map(str, self.index))}]" if self.index else "")
        numbers = [f"{x:.10g}" for x in (self.reverse, self.forward, self.difference)]
        return [str(self.order), place, *numbers, self.problem]


class GradcheckError(AssertionError):
    """Derivatives that do not agree; the text is a table, `entries` has its rows."""

    def __init__(self, function: Function, entries: list[Entry], checked: int) -> None:
        self.entries = entries
        head = f"{function.name}: {len(entries)} of {checked} derivative entries do not agree"
        super().__init__(f"{head}\n{table(entries)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return AssertionError, (str(self),)


def table(entries: Sequence[Entry]) -> str:
    """Rows of entries under a heading, columns aligned."""
    rows = [["order", "entry", "reverse", "forward", "differences", ""], *(e.row() for e in entries[:_SHOWN])]
    widths = [max(len(row[k]) for row in rows) for k in range(6)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(entries) > _SHOWN:
        lines.append(f"... and {len(entries) - _SHOWN} more")
    return "\n".join(lines)


def gradcheck(
    f: Function,
    args: Sequence[Any],
    wrt: str | Sequence[str] | None = None,
    order: int = 2,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    eps: float | None = None,
    seed: int = 0,
) -> int:
    """Check derivatives of `f` at `args` up to `order`; gives the number of entries compared.

    `wrt` names the parameters (default: all of a float type). Raises `GradcheckError` with a table of the entries
    that do not agree.
    """
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"the arguments are a tuple: gradcheck({f.interface.name}, (x,)), not {type(args).__name__}")
    if wrt is None:
        names = tuple(p.name for p in f.parameters if float_part(p.kind) is not None) or default_wrt(f.interface)
    else:
        names = _names(f.interface, wrt)[0]
    given = arrange(f.interface, tuple(args), {})
    check = _Check(f, choose_real(f.interface, given, "f64"), rtol, atol, eps, seed)
    check.run(f, tuple(args), names, 1, order)
    if check.wrong:
        raise GradcheckError(f, check.wrong, check.count)
    return check.count


class _Check:
    """One run: tolerances, and what was found."""

    def __init__(
        self, f: Function, real: str, rtol: float | None, atol: float | None, eps: float | None, seed: int
    ) -> None:
        self.real = real  # what `real` is in this call
        parameters = f.interface.instance(real).parameters
        self.single = any(leaf.element == "f32" for p in parameters for leaf in leaves(p.kind))
        self.rtol = rtol if rtol is not None else 2e-2 if self.single else 1e-5
        self.atol = atol if atol is not None else 1e-2 if self.single else 1e-6
        self.exact = 1e-3 if self.single else 1e-9
        self.eps = eps if eps is not None else 1e-2 if self.single else 6e-6
        self.rng = np.random.default_rng(seed)
        self.wrong: list[Entry] = []
        self.count = 0

    def run(self, f: Function, args: tuple[Any, ...], names: tuple[str, ...], level: int, order: int) -> None:
        """Check first derivatives of f, then those of its vjp with the cotangents held fixed."""
        cotangents = self.random_like(f, args)
        vjp = f.vjp(wrt=names)
        gradients = vjp(*args, *cotangents)
        for name, gradient in zip(names, gradients, strict=True):
            self.parameter(f, args, name, gradient, cotangents, level)
        if level < order:
            self.run(vjp, (*args, *cotangents), names, level + 1, order)

    def kind(self, f: Function, position: int) -> Kind:
        return f.interface.instance(self.real).parameters[position].kind

    def random_like(self, f: Function, args: tuple[Any, ...]) -> list[Any]:
        value = f(*args)
        results = value if not isinstance(f.interface.result, Leaf) else (value,)
        kept = [_float_value(r, k) for r, k in zip(results, _items(f.interface.result), strict=True) if float_part(k)]
        return [_map(lambda x: self.random(x), item) for item in kept]

    def random(self, like: Any) -> Any:
        array = np.asarray(like)
        made = self.rng.uniform(0.5, 1.5, array.shape)
        return made.astype(array.dtype) if isinstance(like, np.ndarray) else float(made)

    def parameter(
        self, f: Function, args: tuple[Any, ...], name: str, gradient: Any, cotangents: list[Any], level: int
    ) -> None:
        """Compare each entry of one parameter's gradient."""
        position = f.interface.names.index(name)
        kind = self.kind(f, position)
        parts: list[Any] = []
        flatten(Place(f.interface, name, kind), kind, args[position], parts)
        jvp = f.jvp(wrt=name)
        grads = iter(_leaves(gradient))
        for k, leaf in enumerate(leaves(kind)):
            if not leaf.is_float:
                continue
            reverse = np.asarray(next(grads))
            for index in np.ndindex(reverse.shape):
                self.entry(f, args, position, parts, k, index, float(reverse[index]), jvp, cotangents, level)

    def entry(
        self, f: Function, args: tuple[Any, ...], position: int, parts: list[Any], k: int, index: tuple[int, ...],
        reverse: float, jvp: Function, cotangents: list[Any], level: int,
    ) -> None:  # fmt: skip
        kind = self.kind(f, position)

        def moved(step: float) -> float:
            changed = list(parts)
            changed[k] = _moved(parts[k], index, step)
            given = (*args[:position], _nested(kind, iter(changed)), *args[position + 1 :])
            return self.dot(_float_results(f, f(*given)), cotangents)

        tangent = [_unit(p, index if j == k else None) for j, p in enumerate(parts)]
        direction = _nested_floats(kind, iter(tangent))
        forward = self.dot(_as_results(f, jvp(*args, direction)), cotangents)
        size = abs(float(np.asarray(parts[k])[index])) if np.ndim(parts[k]) else abs(float(parts[k]))
        step = self.eps * max(1.0, size)
        here, up, down = moved(0.0), moved(step), moved(-step)
        central, right, left = (up - down) / (2 * step), (up - here) / step, (here - down) / step
        problem = self.judge(reverse, forward, central, left, right)
        if problem and problem != _MODES and self.jumps(moved, step, central):
            problem = ""
        self.count += 1
        if problem:
            name = f.parameters[position].name
            self.wrong.append(Entry(level, name, index, reverse, forward, central, problem))

    def judge(self, reverse: float, forward: float, central: float, left: float, right: float) -> str:
        """What does not agree, or nothing."""
        if not _close(reverse, forward, self.exact, self.exact):
            return _MODES
        if np.isnan(central) or not np.isfinite([left, right]).all():
            return ""  # an end of the domain: nothing to compare with
        if _close(reverse, central, self.rtol, self.atol * max(1.0, abs(central))):
            return ""
        slack = self.atol + self.rtol * max(abs(left), abs(right))
        if abs(left - right) > slack and min(left, right) - slack <= reverse <= max(left, right) + slack:
            return ""  # a kink: between the one-sided slopes
        return "differs from finite differences"

    def jumps(self, moved: Callable[[float], float], step: float, central: float) -> bool:
        """Whether differences grow as the step shrinks: a jump, or an infinite slope, which they cannot judge."""
        closer = (moved(step / 16) - moved(-step / 16)) / (step / 8)
        return not abs(closer) < 3 * abs(central)

    def dot(self, values: Sequence[Any], cotangents: Sequence[Any]) -> float:
        pairs = zip(_leaves(tuple(values)), _leaves(tuple(cotangents)), strict=True)
        return float(sum(np.sum(np.asarray(v, np.float64) * np.asarray(c, np.float64)) for v, c in pairs))


def _close(a: float, b: float, rtol: float, atol: float) -> bool:
    return bool(np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True))


def _moved(part: Any, index: tuple[int, ...], step: float) -> Any:
    if not isinstance(part, np.ndarray):
        return part + step
    changed = part.copy()
    changed[index] += step
    return changed


def _unit(part: Any, index: tuple[int, ...] | None) -> Any:
    """One at the index, zero elsewhere (everywhere for None)."""
    if not isinstance(part, np.ndarray):
        return 0.0 if index is None else 1.0
    made = np.zeros_like(part)
    if index is not None:
        made[index] = 1
    return made


# Values nested as their kinds ----------------------------------------------------------------------------------


def _items(kind: Kind) -> tuple[Kind, ...]:
    return (kind,) if isinstance(kind, Leaf) else kind.items


def _leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, tuple) else [value]


def _map(change: Any, value: Any) -> Any:
    return tuple(_map(change, item) for item in value) if isinstance(value, tuple) else change(value)


def _nested(kind: Kind, values: Any) -> Any:
    return next(values) if isinstance(kind, Leaf) else tuple([_nested(item, values) for item in kind.items])


def _nested_floats(kind: Kind, values: Any) -> Any:
    """The float part of a value of this kind, from all its leaves."""
    return _float_value(_nested(kind, values), kind)


def _float_value(value: Any, kind: Kind) -> Any:
    """The part of a value that `float_part` keeps of its kind."""
    if isinstance(kind, Leaf):
        return value
    parts = [_float_value(v, k) for v, k in zip(value, kind.items, strict=True) if float_part(k) is not None]
    return tuple(parts) if len(parts) == len(kind.items) or len(parts) > 1 else parts[0]


def _float_results(f: Function, value: Any) -> list[Any]:
    kinds = _items(f.interface.result)
    values = (value,) if isinstance(f.interface.result, Leaf) else value
    return [_float_value(v, k) for v, k in zip(values, kinds, strict=True) if float_part(k) is not None]


def _as_results(f: Function, tangent: Any) -> Sequence[Any]:
    """The tangent of the result as one item per float result."""
    result = f.interface.result
    count = len(float_results(result))
    several = isinstance(result, Group) and (count > 1 or count == len(result.items))
    return tangent if several else (tangent,)
