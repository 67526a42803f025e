"""Arguments and results of a function as flat lists of leaves, and back; which leaves derivatives are about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aotdiff.runtime.convert import Place, describe
from aotdiff.runtime.interface import Interface, Kind, Leaf, leaves, wrt_leaves


def flattened(f: Interface, args: Sequence[Any]) -> list[Any]:
    """The leaves of positional arguments, not converted."""
    out: list[Any] = []
    for parameter, arg in zip(f.parameters, args, strict=True):
        _flatten(Place(f, parameter.name, parameter.kind), parameter.kind, arg, out)
    return out


def _flatten(place: Place, kind: Kind, value: Any, out: list[Any]) -> None:
    if isinstance(kind, Leaf):
        out.append(value)
    elif not isinstance(value, (tuple, list)) or len(value) != len(kind.items):
        raise place.refuse(TypeError, describe(value))
    else:
        for position, (item, part) in enumerate(zip(value, kind.items, strict=True)):
            _flatten(place.within(position, part), part, item, out)


def nested(kinds: Sequence[Kind], values: Sequence[Any]) -> list[Any]:
    """One value per kind, from leaves."""
    source = iter(values)
    return [_nest(kind, source) for kind in kinds]


def _nest(kind: Kind, source: Iterator[Any]) -> Any:
    return next(source) if isinstance(kind, Leaf) else tuple([_nest(item, source) for item in kind.items])


def unnested(kind: Kind, value: Any) -> list[Any]:
    """The leaves of a result."""
    if isinstance(kind, Leaf):
        return [value]
    return [leaf for item, part in zip(kind.items, value, strict=True) for leaf in unnested(item, part)]


class Shape:
    """What adapters of other libraries know about a function: leaves of its parameters and results."""

    def __init__(self, f: Interface) -> None:
        self.interface = f
        self.inputs = [leaf for p in f.parameters for leaf in leaves(p.kind)]
        self.outputs = list(leaves(f.result))
        self.float_inputs = [k for k, leaf in enumerate(self.inputs) if leaf.is_float]
        self.float_outputs = [k for k, leaf in enumerate(self.outputs) if leaf.is_float]

    def names(self, wanted: Sequence[int]) -> tuple[str, ...]:
        """Parameters that have one of these leaves."""
        every = {p.name: set(wrt_leaves(self.interface, (p.name,))) for p in self.interface.parameters}
        return tuple(name for name, places in every.items() if places & set(wanted))

    def places(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """The float leaves of these parameters."""
        return wrt_leaves(self.interface, names)
