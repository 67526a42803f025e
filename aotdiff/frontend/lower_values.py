"""What expressions lower to: graph values, arrays not yet written, tuples of these, and functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aotdiff.frontend import ast
from aotdiff.frontend.builtins import Builtin
from aotdiff.ir.graph import Value
from aotdiff.ir.types import Scalar, dims_of


class Delayed:
    """An array as a formula: `element(indices)` writes one element where it is wanted.

    Its checks are made, and writing an element has no effects. `cheap` says that an element costs no more than a
    read, so that it may be written several times; `bases` are the arrays that a view reads (None where the
    formula is not a pure view).
    """

    __slots__ = ("kind", "shape", "element", "cheap", "bases")

    def __init__(
        self,
        kind: Scalar,
        shape: Sequence[Value],
        element: Callable[[list[Value]], Value],
        cheap: bool = False,
        bases: tuple[Value, ...] | None = None,
    ):
        self.kind = kind
        self.shape = list(shape)
        self.element = element
        self.cheap = cheap
        self.bases = bases


class Never:
    """The value of code that never gets to its end."""

    def __repr__(self) -> str:
        return "NEVER"


NEVER = Never()


# Functions ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Named:
    """A function of the program; `real` is the float type of this mention (None where it says no `real`)."""

    node: ast.Function
    real: str | None
    program: Any


@dataclass(slots=True, eq=False)
class Lambda:
    """A lambda with what it sees: bindings of its free names, as they were when it was made."""

    node: ast.Lambda
    seen: dict[Any, Any]
    real: str
    program: Any


@dataclass(slots=True, eq=False)
class BuiltIn:
    entry: Builtin


@dataclass(slots=True, eq=False)
class Form:
    """A derivative form of a function; `wrt` are positions of the function's parameters."""

    form: str
    function: Function
    wrt: tuple[int, ...]
    tupled: bool
    span: ast.Span
    cotangents: int  # how many a vjp of this function takes: one per float result


Function = Named | Lambda | BuiltIn | Form
FUNCTIONS = (Named, Lambda, BuiltIn, Form)
Item = Any  # Value | Delayed | tuple[Item, ...] | Function | Never


def key(f: Function) -> tuple:
    """Equal for functions that specialise a callee in the same way; captured values count by their types."""
    if isinstance(f, Named):
        return ("fn", id(f.node), f.real)
    if isinstance(f, BuiltIn):
        return ("builtin", f.entry.name)
    if isinstance(f, Form):
        return (f.form, key(f.function), f.wrt, f.tupled)
    return ("lambda", id(f.node), f.real, tuple(_item_key(item) for item in f.seen.values()))


def _item_key(item: Item) -> Any:
    if isinstance(item, FUNCTIONS):
        return key(item)
    if isinstance(item, tuple):
        return tuple(_item_key(part) for part in item)
    if isinstance(item, Delayed):
        return ("array", item.kind, len(item.shape))
    return item.type


def captured(f: Function) -> Iterator[Any]:
    """The values a function holds, in a fixed order."""
    if isinstance(f, Form):
        yield from captured(f.function)
    elif isinstance(f, Lambda):
        for item in f.seen.values():
            yield from _item_values(item)


def _item_values(item: Item) -> Iterator[Any]:
    if isinstance(item, FUNCTIONS):
        yield from captured(item)
    elif isinstance(item, tuple):
        for part in item:
            yield from _item_values(part)
    else:
        yield item


def rebuilt(f: Function, values: Iterator[Any]) -> Function:
    """The function with other captured values, taken in the order of `captured`."""
    if isinstance(f, Form):
        return Form(f.form, rebuilt(f.function, values), f.wrt, f.tupled, f.span, f.cotangents)
    if isinstance(f, Lambda):
        seen = {binding: _item_rebuilt(item, values) for binding, item in f.seen.items()}
        return Lambda(f.node, seen, f.real, f.program)
    return f


def _item_rebuilt(item: Item, values: Iterator[Any]) -> Item:
    if isinstance(item, FUNCTIONS):
        return rebuilt(item, values)
    if isinstance(item, tuple):
        return tuple(_item_rebuilt(part, values) for part in item)
    return next(values)


def depth(f: Function) -> int:
    """How many functions stand inside one another in it."""
    if isinstance(f, Form):
        return 1 + depth(f.function)
    if isinstance(f, Lambda):
        return 1 + max((_item_depth(item) for item in f.seen.values()), default=0)
    return 1


def _item_depth(item: Item) -> int:
    if isinstance(item, FUNCTIONS):
        return depth(item)
    return max((_item_depth(part) for part in item), default=0) if isinstance(item, tuple) else 0


def all_found(values: Iterable[Value | None]) -> list[Value] | None:
    """The values, or None if one of them is not known."""
    items = list(values)
    found = [value for value in items if value is not None]
    return found if len(found) == len(items) else None


# Tuples ---------------------------------------------------------------------------------------------------


def flatten(item: Item) -> list[Any]:
    """The values and arrays of a tuple, left to right."""
    if isinstance(item, tuple):
        return [leaf for part in item for leaf in flatten(part)]
    return [item]


def like(item: Item, leaves: Iterator[Any]) -> Item:
    """A tuple of the same structure, made of other leaves."""
    if isinstance(item, tuple):
        return tuple(like(part, leaves) for part in item)
    return next(leaves)


def rank(item: Value | Delayed) -> int:
    return len(item.shape) if isinstance(item, Delayed) else len(dims_of(item.type))
