"""Types of graph values.

Array sizes are run-time values; a type only records the sizes that are known when compiling (`f64[?, 3]`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scalar:
    """`f64`, `f32`, `i64` or `bool`."""

    kind: str

    @property
    def is_float(self) -> bool:
        return self.kind in ("f64", "f32")

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class Record:
    """What a function's forward sweep leaves for its reverse sweep; the fields are in `Module.records[name]`."""

    name: str

    def __str__(self) -> str:
        return f"record<{self.name}>"


@dataclass(frozen=True, slots=True)
class Array:
    """Row-major array; `dims` has an int where the size is known, else None. Rank is at least 1."""

    element: Scalar | Record
    dims: tuple[int | None, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    def __str__(self) -> str:
        return f"{self.element}[{', '.join('?' if d is None else str(d) for d in self.dims)}]"


@dataclass(frozen=True, slots=True)
class Acc:
    """Handle of an accumulator of element type and shape; `dims` is empty for a scalar accumulator."""

    element: Scalar
    dims: tuple[int | None, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    def __str__(self) -> str:
        return f"acc<{array_type(self.element, self.dims)}>"


Type = Scalar | Array | Record | Acc

F64 = Scalar("f64")
F32 = Scalar("f32")
I64 = Scalar("i64")
BOOL = Scalar("bool")


def array_type(element: Scalar | Record, dims: tuple[int | None, ...]) -> Type:
    """The array type, or the element itself for no dimensions."""
    return Array(element, dims) if dims else element


def dims_of(type_: Type) -> tuple[int | None, ...]:
    """Sizes of an array or accumulator type; empty for scalars and records."""
    return type_.dims if isinstance(type_, (Array, Acc)) else ()


def element_of(type_: Type) -> Scalar | Record:
    return type_.element if isinstance(type_, (Array, Acc)) else type_


def is_differentiable(type_: Type) -> bool:
    """Whether values of this type can carry a derivative: float scalars and arrays, and residual records."""
    element = element_of(type_)
    return isinstance(element, Record) or element.is_float


def join_dims(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Sizes known on both sides and equal; used where control flow merges."""
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))
