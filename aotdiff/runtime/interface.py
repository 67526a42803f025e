"""What a compiled function takes and gives, as plain data: the runtime's view of a signature.

An interface needs no compiler: it is written into the cache and into built libraries as JSON. Sizes are symbolic:
an int, a name, or a tuple `(op, left, right)` with op one of `+ - * // %`. Derived interfaces (`derive`) follow
the rules of the language: which cotangents and tangents a form takes, and how its results are nested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

Size = int | str | tuple


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar (no sizes) or an array; `element` is "f64", "f32", "i64", "bool" or "real"."""

    element: str
    sizes: tuple[Size, ...] = ()

    @property
    def is_float(self) -> bool:
        return self.element in ("f64", "f32", "real")

    def __str__(self) -> str:
        return f"{self.element}[{', '.join(map(size_text, self.sizes))}]" if self.sizes else self.element


@dataclass(frozen=True, slots=True)
class Group:
    """A tuple."""

    items: tuple[Kind, ...]

    def __str__(self) -> str:
        inside = ", ".join(map(str, self.items))
        return f"({inside},)" if len(self.items) == 1 else f"({inside})"


Kind = Leaf | Group


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}"


@dataclass(frozen=True, slots=True)
class Interface:
    """Parameters and result of one function; `path` and `line` are where it is defined.

    The last `extra` parameters are cotangents and tangents: native code takes it that they have the sizes of what they
    belong to, so every way in from Python checks that (`sizes.extra_sizes`, `fastcall_text`).
    """

    name: str
    parameters: tuple[Parameter, ...]
    result: Kind
    path: str = ""
    line: int = 0
    extra: int = 0

    def __str__(self) -> str:
        return f"fn({', '.join(map(str, self.parameters))}) -> {self.result}"

    @property
    def place(self) -> str:
        """How error messages begin: where the function is, and its name."""
        return f"{self.path}:{self.line}: {self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @property
    def is_generic(self) -> bool:
        """Whether it says `real`, so that its arguments choose the float type."""
        kinds = [p.kind for p in self.parameters] + [self.result]
        return any(leaf.element == "real" for kind in kinds for leaf in leaves(kind))

    def instance(self, real: str) -> Interface:
        """The interface with `real` replaced."""
        parameters = tuple(Parameter(p.name, _instance(p.kind, real)) for p in self.parameters)
        return replace(self, parameters=parameters, result=_instance(self.result, real))

    def to_json(self) -> dict[str, Any]:
        """Of a function that is no derivative made outside the language: it has no `extra` parameters."""
        parameters = [[p.name, _kind_json(p.kind)] for p in self.parameters]
        result = _kind_json(self.result)
        return {"name": self.name, "parameters": parameters, "result": result, "path": self.path, "line": self.line}


def from_json(data: dict[str, Any]) -> Interface:
    """The interface that `to_json` wrote."""
    parameters = tuple(Parameter(name, _kind_from(kind)) for name, kind in data["parameters"])
    return Interface(data["name"], parameters, _kind_from(data["result"]), data["path"], data["line"])


def leaves(kind: Kind) -> Iterator[Leaf]:
    """Scalars and arrays in it, left to right."""
    if isinstance(kind, Leaf):
        yield kind
    else:
        for item in kind.items:
            yield from leaves(item)


def float_part(kind: Kind) -> Kind | None:
    """The kind with i64 and bool parts dropped; a tuple left with one part of several is that part."""
    if isinstance(kind, Leaf):
        return kind if kind.is_float else None
    parts = [part for part in map(float_part, kind.items) if part is not None]
    if len(parts) == len(kind.items) or len(parts) > 1:
        return Group(tuple(parts))
    return parts[0] if parts else None


def float_results(kind: Kind) -> list[Kind]:
    """One entry for each result that takes a cotangent."""
    items = kind.items if isinstance(kind, Group) else (kind,)
    return [part for part in map(float_part, items) if part is not None]


# Derived interfaces ------------------------------------------------------------------------------------------


class Refused(TypeError):
    """A derivative that does not exist; the text says why and what to use instead."""


def default_wrt(f: Interface) -> tuple[str, ...]:
    """The first parameter of a float type."""
    for parameter in f.parameters:
        if float_part(parameter.kind) is not None:
            return (parameter.name,)
    raise Refused(f"{f.name} has no parameter of a float type: nothing to differentiate with respect to")


def derive(f: Interface, form: str, names: tuple[str, ...], tupled: bool) -> Interface:
    """The interface of `form(f, wrt = names)`; `tupled` asks for a tuple also for one name."""
    by_name = {p.name: p for p in f.parameters}
    parts = [_differentiable(f, by_name, name) for name in names]
    text = f"({', '.join(names)}{',' if len(names) == 1 else ''})" if tupled else names[0]
    name = f"{form}({f.name}, wrt = {text})"
    base, value = (form[10:], True) if form.startswith("value_and_") else (form, False)
    extra = _extra_parameters(f, base, names, parts)
    result = _result(f, form, base, parts, tupled)
    if value:
        result = Group((f.result, result))
    return Interface(name, f.parameters + tuple(extra), result, f.path, f.line, f.extra + len(extra))


def _differentiable(f: Interface, by_name: dict[str, Parameter], name: str) -> Kind:
    if name not in by_name:
        raise Refused(f"{f.name} has no parameter {name!r}; its parameters are {', '.join(by_name) or 'none'}")
    part = float_part(by_name[name].kind)
    if part is None:
        raise Refused(f"parameter {name!r} of {f.name} is {by_name[name].kind}: only float parameters have derivatives")
    return part


def _extra_parameters(f: Interface, base: str, names: tuple[str, ...], parts: list[Kind]) -> list[Parameter]:
    if base == "vjp":
        kinds = float_results(f.result)
        stems = ["ct"] if len(kinds) == 1 else [f"ct{i}" for i in range(len(kinds))]
    elif base == "jvp":
        kinds, stems = parts, [f"d_{name}" for name in names]
    elif base == "hvp":
        kinds, stems = parts, ["v"] if len(names) == 1 else [f"v_{name}" for name in names]
    else:
        return []
    taken = set(f.names)
    extra = []
    for stem, kind in zip(stems, kinds, strict=True):
        name = free_name(stem, taken)
        taken.add(name)
        extra.append(Parameter(name, kind))
    return extra


def free_name(stem: str, taken: set[str]) -> str:
    """`stem`, or `stem_2`, `stem_3` ... whichever no other parameter has."""
    name, k = stem, 1
    while name in taken:
        k += 1
        name = f"{stem}_{k}"
    return name


def _result(f: Interface, form: str, base: str, parts: list[Kind], tupled: bool) -> Kind:
    results = float_results(f.result)
    if not results:
        raise Refused(f"{f.name} gives {f.result}: no float result to differentiate")
    if base in ("grad", "hessian", "hvp") and not (len(results) == 1 and _is_number(results[0])):
        wanted = f"{form} needs a function with one number as its result"
        raise Refused(f"{wanted}; {f.name} gives {f.result}: use vjp, jvp or jacobian")
    if base in ("jacobian", "hessian"):
        for kind in (*parts, *results):
            if isinstance(kind, Group):
                raise Refused(f"{form} of {f.name} needs numbers and arrays, not tuples inside: {kind}")
    if base in ("grad", "vjp", "hvp"):
        return _grouped(parts, tupled)
    if base == "jvp":
        return float_part(f.result) or results[0]
    if base == "hessian":
        return _grouped([_grouped([_outer(a, b) for b in parts], tupled) for a in parts], tupled)
    rows = [_grouped([_outer(r, p) for p in parts], tupled) for r in results]
    several = isinstance(f.result, Group) and (len(rows) > 1 or len(rows) == len(f.result.items))
    return _grouped(rows, several)


def _is_number(kind: Kind) -> bool:
    return isinstance(kind, Leaf) and not kind.sizes


def _grouped(kinds: list[Kind], tupled: bool) -> Kind:
    return Group(tuple(kinds)) if tupled else kinds[0]


def _outer(a: Kind, b: Kind) -> Kind:
    """The shape of a derivative of `a` by `b`."""
    assert isinstance(a, Leaf) and isinstance(b, Leaf)
    return Leaf(b.element, a.sizes + b.sizes)


def wrt_leaves(f: Interface, names: tuple[str, ...]) -> tuple[int, ...]:
    """Positions of the float leaves of these parameters among all leaves of the parameters."""
    start, places = 0, {}
    for parameter in f.parameters:
        inside = list(leaves(parameter.kind))
        places[parameter.name] = [start + k for k, leaf in enumerate(inside) if leaf.is_float]
        start += len(inside)
    return tuple(place for name in names for place in places[name])


# Sizes ---------------------------------------------------------------------------------------------------------


def size_text(size: Size, strength: int = 0) -> str:
    """The size as the language writes it; in parentheses where an operator of this strength stands around it."""
    if not isinstance(size, tuple):
        return str(size)
    op, left, right = size
    strong = op in ("*", "//", "%")
    own = 2 if strong else 1
    text = f"{size_text(left, own)}{op if strong else f' {op} '}{size_text(right, own + 1)}"
    return f"({text})" if own < strength else text


def size_names(size: Size) -> set[str]:
    """Names it mentions."""
    if isinstance(size, str):
        return {size}
    return size_names(size[1]) | size_names(size[2]) if isinstance(size, tuple) else set()


# JSON ----------------------------------------------------------------------------------------------------------


def _instance(kind: Kind, real: str) -> Kind:
    if isinstance(kind, Group):
        return Group(tuple(_instance(item, real) for item in kind.items))
    return Leaf(real, kind.sizes) if kind.element == "real" else kind


def _kind_json(kind: Kind) -> Any:
    if isinstance(kind, Group):
        return {"tuple": [_kind_json(item) for item in kind.items]}
    return [kind.element, *map(_size_json, kind.sizes)]


def _kind_from(data: Any) -> Kind:
    if isinstance(data, dict):
        return Group(tuple(_kind_from(item) for item in data["tuple"]))
    return Leaf(data[0], tuple(_size_from(size) for size in data[1:]))


def _size_json(size: Size) -> Any:
    return [size[0], _size_json(size[1]), _size_json(size[2])] if isinstance(size, tuple) else size


def _size_from(data: Any) -> Size:
    return (data[0], _size_from(data[1]), _size_from(data[2])) if isinstance(data, list) else data
