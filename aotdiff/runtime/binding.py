"""The arguments of a call, arranged and converted, and the results put together.

`Binder` holds what can be prepared once for a function: a converter per parameter, the formula for the result
sizes, how results are nested. It knows nothing of native code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotdiff.runtime.convert import DTYPES, Place, describe, flatten, float_kind, leaf_converter
from aotdiff.runtime.interface import Group, Interface, Kind, Leaf, leaves
from aotdiff.runtime.sizes import extra_sizes, result_shapes

Values = list[Any]


class Binder:
    """Turns arguments into leaves in the order of the native entry, and native results into what a call returns.

    The interface must not say `real` any more.
    """

    __slots__ = ("_convert", "_wrong", "interface", "result_leaves", "shapes")

    def __init__(self, interface: Interface) -> None:
        self.interface = interface
        self.shapes = result_shapes(interface)
        self._wrong = extra_sizes(interface)
        self.result_leaves = list(leaves(interface.result))
        self._convert = [_parameter_converter(interface, p.name, p.kind) for p in interface.parameters]

    def values(self, args: Sequence[Any]) -> Values:
        """Converted leaves of positional arguments (as many as there are parameters)."""
        out: Values = []
        for (convert, place, kind), arg in zip(self._convert, args, strict=True):
            if convert is not None:
                out.append(convert(arg))
            else:
                flatten(place, kind, arg, out)
        return self.checked(out)

    def checked(self, values: Values) -> Values:
        """The values; ValueError where a cotangent or tangent has other sizes than what it belongs to."""
        wrong = self._wrong(values) if self._wrong is not None else None
        if wrong is not None:
            name, leaf, axis, size, wanted = wrong
            text = f"`{name}` has size {size} where its type {leaf} wants {wanted} (axis {axis})"
            raise ValueError(f"{self.interface.place}: {text}")
        return values

    def buffers(self, values: Values) -> list[np.ndarray | None]:
        """A new array for each array result, None for scalars."""
        try:
            shapes = self.shapes(values)
            pairs = zip(self.result_leaves, shapes, strict=True)
            return [np.empty(shape, DTYPES[leaf.element]) if leaf.sizes else None for leaf, shape in pairs]
        except (MemoryError, ValueError):
            f = self.interface
            raise MemoryError(f"{f.place}: no memory for the results, {f.result}") from None

    def outputs(self, values: Values, out: Any) -> list[np.ndarray | None]:
        """The arrays given as `out`, checked; a new array where None was given for an array."""
        made = self.buffers(values)
        given: Values = []
        flatten_out(self._place(), self.interface.result, out, given)
        for k, (array, fresh, leaf) in enumerate(zip(given, made, self.result_leaves, strict=True)):
            if array is not None:
                shape = () if fresh is None else fresh.shape
                check_out(self._place(), leaf, array, shape)
                others = [v for v in [*values, *given[:k]] if isinstance(v, np.ndarray)]
                check_overlap(self._place(), any(np.may_share_memory(array, other) for other in others))
                made[k] = array
        return made

    def assemble(self, results: Sequence[Any]) -> Any:
        """Result leaves nested as the interface says."""
        kind = self.interface.result
        return results[0] if isinstance(kind, Leaf) else _nest(kind, iter(results))

    def _place(self) -> Place:
        return Place(self.interface, "out", self.interface.result)


def _parameter_converter(f: Interface, name: str, kind: Kind) -> tuple[Any, Place, Kind]:
    place = Place(f, name, kind)
    return leaf_converter(place, kind) if isinstance(kind, Leaf) else None, place, kind


def _nest(kind: Kind, results: Any) -> Any:
    if isinstance(kind, Leaf):
        return next(results)
    return tuple([_nest(item, results) for item in kind.items])


def flatten_out(place: Place, kind: Kind, out: Any, found: Values) -> None:
    """Leaves of what was given as `out`, None where a leaf was not."""
    if isinstance(kind, Leaf):
        found.append(out)
    elif out is None:
        found += [None] * len(list(leaves(kind)))
    elif not isinstance(out, (tuple, list)) or len(out) != len(kind.items):
        raise place.refuse(TypeError, describe(out), f"give a tuple of {len(kind.items)}, None for what is not wanted")
    else:
        for position, (item, part) in enumerate(zip(kind.items, out, strict=True)):
            flatten_out(place.within(position, item), item, part, found)


def check_out(place: Place, leaf: Leaf, array: Any, shape: tuple[int, ...]) -> None:
    """Refuse what cannot hold a result of this shape."""
    dtype = DTYPES[leaf.element]
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise place.refuse(TypeError, describe(array), f"outputs are numpy arrays of {dtype}")
    if array.shape != shape:
        raise place.refuse(ValueError, describe(array), f"the result has shape {shape}")
    if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
        raise place.refuse(ValueError, f"{describe(array)} that is not a writable C-contiguous array")


def check_overlap(place: Place, overlaps: bool) -> None:
    if overlaps:
        raise place.refuse(ValueError, "an array that overlaps an argument or another output")


def arrange(f: Interface, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """Positional arguments from positional and keyword ones; errors name what is missing or too much."""
    names = f.names
    if not kwargs:
        if len(args) == len(names):
            return args
        raise TypeError(_count_message(f, args, ()))
    if len(args) > len(names):
        raise TypeError(_count_message(f, args, kwargs))
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise TypeError(f"{f.place} got {name!r} twice")
        if name not in names:
            raise TypeError(f"{f.place} has no parameter {name!r}; its parameters are {', '.join(names) or 'none'}")
        given[name] = value
    if len(given) < len(names):
        raise TypeError(_count_message(f, args, kwargs))
    return [given[name] for name in names]


def _count_message(f: Interface, args: tuple[Any, ...], kwargs: Any) -> str:
    takes = f"{f.place} takes {len(f.names)} argument{'' if len(f.names) == 1 else 's'}"
    if len(args) > len(f.names):
        return f"{takes} ({', '.join(f.names)}), got {len(args)}"
    missing = [name for name in f.names[len(args) :] if name not in kwargs]
    wanted = ", ".join(str(p) for p in f.parameters if p.name in missing)
    return f"{takes}, {wanted} missing"


def choose_real(f: Interface, args: Sequence[Any], default: str) -> str:
    """What `real` is in this call: the float type of the arguments given for it; `default` where nothing decides."""
    decided: tuple[str, str] | None = None
    for parameter, arg in zip(f.parameters, args, strict=True):
        for kind in _real_kinds(parameter.kind, arg):
            if decided is None:
                decided = kind, parameter.name
            elif decided[0] != kind:
                both = f"parameter {decided[1]} is {decided[0]} and parameter {parameter.name} is {kind}"
                raise TypeError(f"{f.place}: {both}; real is one type for all: convert one of them")
    return decided[0] if decided else default


def _real_kinds(kind: Kind, value: Any) -> list[str]:
    if isinstance(kind, Group):
        if not isinstance(value, (tuple, list)):
            return []
        return [k for item, part in zip(kind.items, value, strict=False) for k in _real_kinds(item, part)]
    found = float_kind(value) if kind.element == "real" else None
    return [found] if found else []
