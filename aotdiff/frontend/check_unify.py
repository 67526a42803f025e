"""Fitting types together: unification of literal types, broadcasting, joins, and what to say where it fails."""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.frontend.sizes import ONE, UNKNOWN, Size, compare, join
from aotdiff.frontend.types import (
    BOOL,
    ERROR,
    FLOATS,
    I64,
    NEVER,
    Array,
    Function,
    Tuple,
    Type,
    Variable,
    element_of,
    is_bool,
    is_float,
    is_integer,
    is_numeric_shape,
    resolve,
    shaped,
    sizes_of,
)


@dataclass(slots=True)
class Mismatch:
    """Why a type does not fit another. `dimension` is set where only a size differs."""

    found: Type
    wanted: Type
    dimension: int | None = None


def unify_scalars(left: Type, right: Type) -> bool:
    """Make two scalar types one, deciding literals; False where they cannot be."""
    left, right = resolve(left), resolve(right)
    if left is right:
        return True
    if isinstance(left, Variable):
        return _bind(left, right)
    return _bind(right, left) if isinstance(right, Variable) else False


def _bind(variable: Variable, type_: Type) -> bool:
    if isinstance(type_, Variable):
        if type_.floating or not variable.floating:
            type_.generic = type_.generic or variable.generic
            variable.link = type_
        else:
            type_.link = variable
        return True
    if type_ in FLOATS or (type_ is I64 and not variable.floating):
        variable.link = type_
        return True
    return False


def fit(found: Type, wanted: Type) -> Mismatch | None:
    """Make a value of type `found` a `wanted`; the innermost reason where it cannot be. Not for functions."""
    found, wanted = resolve(found), resolve(wanted)
    if found is ERROR or wanted is ERROR or found is NEVER:
        return None
    if isinstance(wanted, Tuple):
        if not isinstance(found, Tuple) or len(found.elements) != len(wanted.elements):
            return Mismatch(found, wanted)
        for a, b in zip(found.elements, wanted.elements):
            if (problem := fit(a, b)) is not None:
                return problem
        return None
    if not is_numeric_shape(found) or not is_numeric_shape(wanted):
        return Mismatch(found, wanted)
    left, right = sizes_of(found), sizes_of(wanted)
    if len(left) != len(right) or not unify_scalars(element_of(found), element_of(wanted)):
        return Mismatch(found, wanted)
    for dimension, (a, b) in enumerate(zip(left, right)):
        if compare(a, b) is False:
            return Mismatch(found, wanted, dimension)
    return None


def join_types(left: Type, right: Type) -> Type | None:
    """The type of a value that is one or the other (two branches, a variable over time); None where there is none.

    Sizes that are not provably equal become unknown.
    """
    left, right = resolve(left), resolve(right)
    if left is ERROR or right is ERROR:
        return ERROR
    if left is NEVER:
        return right
    if right is NEVER:
        return left
    if isinstance(left, Tuple) and isinstance(right, Tuple) and len(left.elements) == len(right.elements):
        parts: list[Type] = []
        for a, b in zip(left.elements, right.elements):
            part = join_types(a, b)
            if part is None:
                return None
            parts.append(part)
        return Tuple(tuple(parts))
    if not is_numeric_shape(left) or not is_numeric_shape(right):
        return None
    a, b = sizes_of(left), sizes_of(right)
    if len(a) != len(b) or not unify_scalars(element_of(left), element_of(right)):
        return None
    return shaped(element_of(left), tuple(map(join, a, b)))


def join_elements(left: Type, right: Type) -> Type | None:
    """The scalar type of `left + right`: i64 with a float gives the float; None where they do not mix."""
    left, right = resolve(left), resolve(right)
    if left is ERROR or right is ERROR:
        return ERROR
    if is_bool(left) or is_bool(right):
        return BOOL if left is right else None
    if is_integer(left) and is_float(right):
        return right
    if is_float(left) and is_integer(right):
        return left
    return resolve(left) if unify_scalars(left, right) else None


@dataclass(slots=True)
class BroadcastProblem:
    """Dimension `left` of one operand and `right` of the other do not fit."""

    left: int
    right: int


def broadcast(left: tuple[Size, ...], right: tuple[Size, ...]) -> tuple[Size, ...] | BroadcastProblem:
    """The sizes of an element-by-element operation, by NumPy's rule."""
    if not left or not right:
        return left or right
    out: list[Size] = []
    rank = max(len(left), len(right))
    for back in range(1, rank + 1):
        a = left[-back] if back <= len(left) else ONE
        b = right[-back] if back <= len(right) else ONE
        size = _broadcast_size(a, b)
        if size is None:
            return BroadcastProblem(len(left) - back, len(right) - back)
        out.append(size)
    return tuple(reversed(out))


def _broadcast_size(a: Size, b: Size) -> Size | None:
    if a.constant == 1:
        return b
    if b.constant == 1:
        return a
    equal = compare(a, b)
    if equal:
        return a
    if equal is False and _above_one(a) and _above_one(b):
        return None
    if _above_one(a):
        return a
    return b if _above_one(b) else UNKNOWN


def _above_one(size: Size) -> bool:
    least = size.lower_bound()
    return least is not None and least > 1


def finished(type_: Type, undecided: Type, generic: Type) -> Type:
    """The type without variables: literals that nothing decided take their default.

    `undecided` is the float type of literals, `generic` that of mentions of `real` functions.
    """
    type_ = resolve(type_)
    if isinstance(type_, Variable):
        if not type_.floating:
            return I64
        return generic if type_.generic else undecided
    if isinstance(type_, Array):
        return Array(finished(type_.element, undecided, generic), type_.sizes)
    if isinstance(type_, Tuple):
        return Tuple(tuple(finished(element, undecided, generic) for element in type_.elements))
    if isinstance(type_, Function):
        parameters = tuple(finished(parameter, undecided, generic) for parameter in type_.parameters)
        result = finished(type_.result, undecided, generic)
        return Function(parameters, result, type_.names, type_.binders, type_.values)
    return type_


# Words ----------------------------------------------------------------------------------------------------


def conversion_hint(found: Type, wanted: Type, text: str) -> str | None:
    """What to write to turn one scalar type into the other."""
    a, b = element_of(found), element_of(wanted)
    if len(sizes_of(found)) != len(sizes_of(wanted)) or not is_numeric_shape(a) or not is_numeric_shape(b):
        return None
    if is_bool(b):
        return f"write `{text} != 0`" if is_integer(a) else f"write a comparison, such as `{text} > 0.0`"
    if is_integer(b) and is_float(a):
        return f"write `i64({text})` to cut off the fraction"
    if is_bool(a) or is_float(b):
        return f"write `{b!r}({text})`"
    return None


def describe(type_: Type) -> str:
    """A type for a message, with its article where it is a scalar or an array."""
    type_ = resolve(type_)
    if isinstance(type_, Tuple):
        return f"the tuple {type_!r}"
    return repr(type_)


def shape_notes(found: Type, wanted: Type, dimension: int, names: tuple[str, str] = ("found", "wanted")) -> list[str]:
    """Two shapes one above the other, and the dimension in which they differ."""
    width = max(map(len, names))
    a, b = sizes_of(found)[dimension], sizes_of(wanted)[dimension]
    return [
        f"{names[0]:{width}} {resolve(found)!r}",
        f"{names[1]:{width}} {resolve(wanted)!r}",
        f"dimension {dimension} differs: {a!r} and {b!r}",
    ]
