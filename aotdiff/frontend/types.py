"""Types of expressions, and the variables that stand for a literal's type until its context decides.

Printing a type gives its `.grad` spelling. `REAL` is the opaque float type inside a function that says `real`.
Where the checker has finished, the types on the tree hold no `Variable`, and function values that are passed
around have a `Function` type.
"""

from __future__ import annotations

from aotdiff.frontend.sizes import Size, Symbol


class Type:
    __slots__ = ()


class Scalar(Type):
    """`kind` is "f64", "f32", "i64", "bool" or "real"; use the constants below, which compare by identity."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return self.kind


F64 = Scalar("f64")
F32 = Scalar("f32")
I64 = Scalar("i64")
BOOL = Scalar("bool")
REAL = Scalar("real")
SCALARS: dict[str, Scalar] = {scalar.kind: scalar for scalar in (F64, F32, I64, BOOL, REAL)}
FLOATS = (F64, F32, REAL)


class Variable(Type):
    """A scalar type not decided yet: any float type, or (an integer literal) i64 or any float type.

    `generic` marks the float type of one mention of a function that says `real`.
    """

    __slots__ = ("floating", "generic", "link")

    def __init__(self, floating: bool, generic: bool = False) -> None:
        self.floating = floating
        self.generic = generic
        self.link: Type | None = None

    def __repr__(self) -> str:
        end = resolve(self)
        if not isinstance(end, Variable):
            return repr(end)
        return "f64" if end.floating else "i64"


class Array(Type):
    """`element` is a Scalar (or a Variable); one symbolic size per dimension."""

    __slots__ = ("element", "sizes")

    def __init__(self, element: Type, sizes: tuple[Size, ...]) -> None:
        self.element = element
        self.sizes = sizes

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        return f"{self.element!r}[{', '.join(map(repr, self.sizes))}]"


class Tuple(Type):
    __slots__ = ("elements",)

    def __init__(self, elements: tuple[Type, ...]) -> None:
        self.elements = elements

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.elements))
        return f"({inside},)" if len(self.elements) == 1 else f"({inside})"


class Function(Type):
    """A function: parameter types, result type, and what its calls may choose.

    `names` are the parameters' names (None for a function type as written: it has none). `binders` are the size
    symbols each call binds anew; `values` gives the symbol of an i64 parameter by its position, for sizes that
    use it.
    """

    __slots__ = ("binders", "names", "parameters", "result", "values")

    def __init__(
        self,
        parameters: tuple[Type, ...],
        result: Type,
        names: tuple[str, ...] | None = None,
        binders: frozenset[Symbol] = frozenset(),
        values: dict[int, Symbol] | None = None,
    ) -> None:
        self.parameters = parameters
        self.result = result
        self.names = names
        self.binders = binders
        self.values = values or {}

    def __repr__(self) -> str:
        return f"fn({', '.join(map(repr, self.parameters))}) -> {self.result!r}"


class ErrorType(Type):
    """The type of what is already reported: fits everywhere, causes no more errors."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "?"


class NeverType(Type):
    """The type of a block that always leaves before its end."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "no value"


ERROR = ErrorType()
NEVER = NeverType()


def resolve(type_: Type) -> Type:
    """The type a variable stands for by now (itself, where nothing decided yet)."""
    while isinstance(type_, Variable) and type_.link is not None:
        type_ = type_.link
    return type_


def element_of(type_: Type) -> Type:
    """The scalar type of a scalar or array."""
    type_ = resolve(type_)
    return resolve(type_.element) if isinstance(type_, Array) else type_


def sizes_of(type_: Type) -> tuple[Size, ...]:
    """The sizes of an array; none of a scalar."""
    type_ = resolve(type_)
    return type_.sizes if isinstance(type_, Array) else ()


def shaped(element: Type, sizes: tuple[Size, ...]) -> Type:
    """A scalar where there are no sizes, else an array."""
    return Array(element, sizes) if sizes else element


def is_numeric_shape(type_: Type) -> bool:
    """Whether it is a scalar or an array (not a tuple, a function, or an error)."""
    return isinstance(resolve(type_), (Scalar, Variable, Array))


def is_float(type_: Type) -> bool:
    """Whether it is a float scalar type."""
    type_ = resolve(type_)
    return type_.floating if isinstance(type_, Variable) else type_ in FLOATS


def is_integer(type_: Type) -> bool:
    """Whether it is i64, or a literal that may still become one."""
    type_ = resolve(type_)
    return not type_.floating if isinstance(type_, Variable) else type_ is I64


def is_bool(type_: Type) -> bool:
    return resolve(type_) is BOOL


def has_float(type_: Type) -> bool:
    """Whether it can carry a derivative: a float scalar or array, or a tuple with one inside."""
    type_ = resolve(type_)
    if isinstance(type_, Tuple):
        return any(has_float(element) for element in type_.elements)
    return is_float(element_of(type_))


def float_part(type_: Type) -> Type | None:
    """The type with its i64 and bool parts dropped: the type of its cotangents and tangents.

    A tuple of which one float part is left is that part; None where nothing is left.
    """
    type_ = resolve(type_)
    if isinstance(type_, Tuple):
        parts = [part for part in map(float_part, type_.elements) if part is not None]
        if len(parts) == len(type_.elements) or len(parts) > 1:
            return Tuple(tuple(parts))
        return parts[0] if parts else None
    return type_ if has_float(type_) else None


def float_results(type_: Type) -> list[Type]:
    """The float results of a function with this result type, in order: one for each cotangent."""
    type_ = resolve(type_)
    if isinstance(type_, Tuple):
        return [part for part in map(float_part, type_.elements) if part is not None]
    return [type_] if has_float(type_) else []


def mentions(type_: Type, scalar: Scalar) -> bool:
    """Whether a scalar type occurs anywhere in it."""
    type_ = resolve(type_)
    if isinstance(type_, Array):
        return resolve(type_.element) is scalar
    if isinstance(type_, Tuple):
        return any(mentions(element, scalar) for element in type_.elements)
    if isinstance(type_, Function):
        return any(mentions(p, scalar) for p in type_.parameters) or mentions(type_.result, scalar)
    return type_ is scalar


def replace_scalar(type_: Type, old: Type, new: Type) -> Type:
    """The type with one scalar type replaced everywhere."""
    type_ = resolve(type_)
    if isinstance(type_, Array):
        return Array(replace_scalar(type_.element, old, new), type_.sizes)
    if isinstance(type_, Tuple):
        return Tuple(tuple(replace_scalar(element, old, new) for element in type_.elements))
    if isinstance(type_, Function):
        parameters = tuple(replace_scalar(parameter, old, new) for parameter in type_.parameters)
        result = replace_scalar(type_.result, old, new)
        return Function(parameters, result, type_.names, type_.binders, type_.values)
    return new if type_ is old else type_


def substitute_sizes(type_: Type, values: dict[Symbol, Size]) -> Type:
    """The type with size symbols replaced everywhere."""
    type_ = resolve(type_)
    if not values:
        return type_
    if isinstance(type_, Array):
        return Array(type_.element, tuple(size.substitute(values) for size in type_.sizes))
    if isinstance(type_, Tuple):
        return Tuple(tuple(substitute_sizes(element, values) for element in type_.elements))
    if isinstance(type_, Function):
        parameters = tuple(substitute_sizes(parameter, values) for parameter in type_.parameters)
        result = substitute_sizes(type_.result, values)
        return Function(parameters, result, type_.names, type_.binders, type_.values)
    return type_


def all_sizes(type_: Type) -> list[Size]:
    """Every size in it, left to right, tuples included (function types are not looked into)."""
    type_ = resolve(type_)
    if isinstance(type_, Array):
        return list(type_.sizes)
    if isinstance(type_, Tuple):
        return [size for element in type_.elements for size in all_sizes(element)]
    return []
