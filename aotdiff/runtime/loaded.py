"""Built libraries: their functions, and the derivatives that what was built allows.

A library has, for each export, the function, its vjp and jvp with respect to all float parameters, and with
`--order 2` its hvp and the vjp of its vjp. Every other first derivative is put together from these (a jacobian row by
row, a hessian column by column), so nothing needs a compiler. Derivatives of higher order than was built are refused
with the option to build them with. The library describes itself (`aotdiff_metadata`, JSON).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aotdiff.runtime import interrupt
from aotdiff.runtime.binding import Binder
from aotdiff.runtime.collection import Collection
from aotdiff.runtime.function import Chain
from aotdiff.runtime.interface import Interface, Leaf, derive, float_part, float_results, from_json, leaves, wrt_leaves
from aotdiff.runtime.native import Native, threads
from aotdiff.runtime.opening import open_library
from aotdiff.runtime.prototype import CEntry

Values = Sequence[Any]
Call = Callable[..., list[Any]]


class NotBuilt(TypeError):
    """A derivative that the library does not have; the text names the option to rebuild with."""


def all_floats(f: Interface) -> tuple[str, ...]:
    """The parameters that the built vjp and jvp are about."""
    return tuple(p.name for p in f.parameters if float_part(p.kind) is not None)


def built_chains(f: Interface, order: int) -> dict[str, Chain]:
    """The derivatives of one function that are built, by the end of their C names."""
    names = all_floats(f)
    chains: dict[str, Chain] = {"": ()}
    if not names or not float_results(f.result) or order < 1:
        return chains
    chains["_vjp"] = (("vjp", names, True),)
    chains["_jvp"] = (("jvp", names, True),)
    if order > 1:
        if isinstance(f.result, Leaf) and not f.result.sizes:
            chains["_hvp"] = (("hvp", names, True),)
        vjp = derive(f, "vjp", names, True)
        chains["_vjp_vjp"] = (*chains["_vjp"], ("vjp", all_floats(vjp), True))
    return chains


class Library(Collection):
    """The functions of a built library.

    `restore(root, chain)` gives a function, `restore()` the library, in another process (a Python module that was
    built has its own).
    """

    def __init__(self, path: str, restore: Callable[..., Any] | None = None) -> None:
        self._restore = restore
        self._file = os.path.abspath(path)
        self._code, self._data = open_library(path)
        interrupt.provide(lambda: self._address)
        if self._data["threads"]:
            threads.provide(lambda: (self._address(self._data["threads"]), self._code))
        super().__init__(path, [from_json(item["interface"]) for item in self._data["functions"]])
        self._entries = {item["interface"]["name"]: item["entries"] for item in self._data["functions"]}
        self._gradients = {item["interface"]["name"]: item["gradients"] for item in self._data["functions"]}

    def __reduce__(self) -> tuple[Any, ...]:
        return (self._restore, ()) if self._restore is not None else (Library, (self._file,))

    def _pickled(self, root: str, chain: Chain) -> tuple[Any, ...]:
        return (self._restore, (root, chain)) if self._restore is not None else super()._pickled(root, chain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Library) and self._state() == other._state()

    def __hash__(self) -> int:
        return hash(self._file)

    def _state(self) -> tuple[str, str]:
        return self._file, self._data["build"]

    @property
    def _default_real(self) -> str:
        return self._data["reals"][0]

    def _address(self, symbol: str) -> int:
        return ctypes.cast(getattr(self._code, symbol), ctypes.c_void_p).value or 0

    def _native(self, root: str, chain: Chain, interface: Interface, real: str) -> tuple[Binder, Any]:
        f = self._exports[root].interface
        if f.is_generic and real not in self._data["reals"]:
            raise NotBuilt(f"{self._path} was not built for {real}: rebuild with --real f64,f32")
        instance = interface.instance(real)
        for end, known in built_chains(f, 2).items():
            if known == chain and end in self._entries[root][real]:
                return self._binder(instance), self._built(root, end, instance, real)
        if len(chain) == 1:
            ((form, names, tupled),) = chain
            if form == "jacobian" and isinstance(f.result, Leaf) and not f.result.sizes:
                form = "grad"  # of a number
            built = self._gradients[root].get(real, {}).get(form if tupled else f"{form}.{names[0]}")
            if built is not None and (not tupled or names == all_floats(f)):
                return self._binder(instance), self._at(built, instance)
        made = self._root(root, f.instance(real), real)
        current = f.instance(real)
        for form, names, tupled in chain:
            made = _derived(made, current, form, names)
            current = derive(current, form, names, tupled)
        if made.value is None:
            forms = " of ".join(form for form, _, _ in reversed(chain))
            raise NotBuilt(f"{self._path} has no {forms} of {root}: {self._remedy(root, chain)}")
        return self._binder(instance), Composed(made.value)

    def _binder(self, interface: Interface) -> Binder:
        return Binder(interface)

    def _c_entry(self, root: str, chain: Chain, interface: Interface, real: str) -> CEntry:
        """The function as C calls it, where the library exports it to C."""
        f = self._exports[root].interface
        entries = self._entries[root].get(real, {})
        for end, known in built_chains(f, 2).items():
            if known == chain and end in entries:
                return CEntry(self._address(entries[end]["c"]), interface, len(f.parameters), self._code)
        names = ", ".join(entry["c"] for entry in entries.values())
        raise NotBuilt(f"{self._path} has no C function for {' of '.join(c[0] for c in reversed(chain))} of {root}: "
                       f"it has {names}; {self._remedy(root, chain)}")  # fmt: skip

    def _remedy(self, root: str, chain: Chain) -> str:
        order = self._data["order"]
        second = len(chain) > 1 or any(form in ("hessian", "hvp") for form, _, _ in chain)
        wanted = 2 if second else 1
        if order < wanted:
            return f"rebuild with --order {wanted}"
        return f"export it in {self._exports[root].interface.path} and rebuild"

    def _built(self, root: str, end: str, interface: Interface, real: str) -> Any:
        return self._at(self._entries[root][real][end], interface)

    def _at(self, entry: dict[str, Any], interface: Interface) -> Any:
        fast = self._address(entry["fast"]) if entry["fast"] else 0
        return Native(self._address(entry["entry"]), fast, interface, self._code)

    def _root(self, root: str, f: Interface, real: str) -> Pieces:
        """The built entries of one function, on leaves."""
        calls: dict[str, Call] = {}
        for end, chain in built_chains(f, 2).items():
            if end in self._entries[root][real]:
                derived = f
                for form, names, tupled in chain:
                    derived = derive(derived, form, names, tupled)
                calls[end] = _Direct(self._binder(derived), self._built(root, end, derived, real))
        return Pieces(f, calls.get(""), calls.get("_vjp"), calls.get("_jvp"), calls.get("_hvp"), calls.get("_vjp_vjp"))


class _Direct:
    """A native entry called with leaves."""

    def __init__(self, binder: Binder, native: Any) -> None:
        self.binder = binder
        self.native = native

    def __call__(self, values: Values) -> list[Any]:
        return self.native(values, self.binder.buffers(list(values)))


class Composed:
    """Looks like native code: results of a composition, copied where buffers are given."""

    fast = 0
    address = 0
    reads = None

    def __init__(self, call: Call) -> None:
        self.call = call

    def __call__(self, values: Values, buffers: Sequence[np.ndarray | None]) -> list[Any]:
        results = self.call(values)
        for k, buffer in enumerate(buffers):
            if isinstance(buffer, np.ndarray) and buffer.ndim:
                buffer[...] = results[k]
                results[k] = buffer
            elif (receive := getattr(buffer, "receive", None)) is not None:  # an array on a device
                results[k] = receive(results[k])
        return results


# Compositions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pieces:
    """A function on leaves and what is known of its derivatives, each None where it was not built.

    value(values); vjp(values + cotangents): one per float parameter leaf; jvp(values + tangents of all float
    leaves): one per float result leaf; hvp(values + directions); second(values + cotangents + cotangents of those): the
    vjp of the vjp.
    """

    f: Interface
    value: Call | None = None
    vjp: Call | None = None
    jvp: Call | None = None
    hvp: Call | None = None
    second: Call | None = None
    inputs: list[Leaf] = field(init=False)
    outputs: list[Leaf] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", [leaf for p in self.f.parameters for leaf in leaves(p.kind)])
        object.__setattr__(self, "outputs", list(leaves(self.f.result)))

    @property
    def floats(self) -> list[int]:
        return [k for k, leaf in enumerate(self.inputs) if leaf.is_float]

    def chosen(self, names: tuple[str, ...]) -> list[int]:
        """Where the leaves of these parameters are among the float leaves."""
        floats = self.floats
        return [floats.index(place) for place in wrt_leaves(self.f, names)]

    def spread(self, values: Values, chosen: list[int], given: Values) -> list[Any]:
        """Tangents for every float leaf: those given, zero for the rest."""
        tangents = [_zero(values[k]) for k in self.floats]
        for place, tangent in zip(chosen, given, strict=True):
            tangents[place] = tangent
        return tangents


def _zero(value: Any) -> Any:
    if getattr(value, "on_device", False):
        return value.zeros()
    return np.zeros_like(value) if isinstance(value, np.ndarray) else 0.0


def _derived(p: Pieces, f: Interface, form: str, names: tuple[str, ...]) -> Pieces:
    """The pieces of a derivative form: its value where possible, and its own derivatives where the order allows."""
    base = form.removeprefix("value_and_")
    result = derive(f, form, names, True)
    make = {"grad": _grad, "vjp": _vjp, "jvp": _jvp, "jacobian": _jacobian, "hessian": _hessian, "hvp": _hvp}[base]
    made = make(p, result, names)
    if base == form or made.value is None:
        return made
    count = len(p.inputs)
    value, derivative = p.value, made.value
    if value is None:
        return Pieces(result)
    return Pieces(result, lambda values: [*value(values[:count]), *derivative(values)])


def _grad(p: Pieces, result: Interface, names: tuple[str, ...]) -> Pieces:
    vjp, hvp, second, chosen = p.vjp, p.hvp, p.second, p.chosen(names)
    if vjp is None:
        return Pieces(result)

    def value(values: Values) -> list[Any]:
        found = vjp([*values, 1.0])
        return [found[k] for k in chosen]

    def again(values: Values) -> list[Any]:
        own, cotangents = values[: len(p.inputs)], values[len(p.inputs) :]
        assert second is not None
        return second([*own, 1.0, *p.spread(own, chosen, cotangents)])[: len(p.floats)]

    def forward(values: Values) -> list[Any]:
        assert hvp is not None
        found = hvp(values)
        return [found[k] for k in chosen]

    return Pieces(result, value, again if second else None, forward if hvp else None)


def _vjp(p: Pieces, result: Interface, names: tuple[str, ...]) -> Pieces:
    vjp, second, chosen = p.vjp, p.second, p.chosen(names)
    if vjp is None:
        return Pieces(result)
    count = len(p.inputs)
    extra = sum(leaf.is_float for leaf in p.outputs)

    def value(values: Values) -> list[Any]:
        found = vjp(values)
        return [found[k] for k in chosen]

    def again(values: Values) -> list[Any]:
        assert second is not None
        own, given = values[: count + extra], values[count + extra :]
        return second([*own, *p.spread(values[:count], chosen, given)])

    return Pieces(result, value, again if second else None)


def _jvp(p: Pieces, result: Interface, names: tuple[str, ...]) -> Pieces:
    jvp, chosen = p.jvp, p.chosen(names)
    if jvp is None:
        return Pieces(result)
    count = len(p.inputs)
    return Pieces(result, lambda v: jvp([*v[:count], *p.spread(v[:count], chosen, v[count:])]))


def _hvp(p: Pieces, result: Interface, names: tuple[str, ...]) -> Pieces:
    hvp, chosen = p.hvp, p.chosen(names)
    if hvp is None:
        return Pieces(result)
    count = len(p.inputs)

    def value(values: Values) -> list[Any]:
        found = hvp([*values[:count], *p.spread(values[:count], chosen, values[count:])])
        return [found[k] for k in chosen]

    return Pieces(result, value)


def _hessian(p: Pieces, result: Interface, names: tuple[str, ...]) -> Pieces:
    hvp, chosen = p.hvp, p.chosen(names)
    if hvp is None:
        return Pieces(result)

    def value(values: Values) -> list[Any]:
        wrt = [values[p.floats[k]] for k in chosen]
        columns = _columns(wrt, lambda unit: [hvp([*values, *p.spread(values, chosen, unit)])[k] for k in chosen])
        return [_joined(columns[b], a, wrt[b], wrt[a]) for a in range(len(wrt)) for b in range(len(wrt))]

    return Pieces(result, value)


def _jacobian(p: Pieces, result: Interface, names: tuple[str, ...]) -> Pieces:
    vjp, jvp, function, chosen = p.vjp, p.jvp, p.value, p.chosen(names)
    if vjp is None or jvp is None or function is None:
        return Pieces(result)

    def value(values: Values) -> list[Any]:
        wrt = [values[p.floats[k]] for k in chosen]
        found = function(values)
        results = [r for r, leaf in zip(found, p.outputs, strict=True) if leaf.is_float]
        if sum(map(np.size, wrt)) <= sum(map(np.size, results)):
            columns = _columns(wrt, lambda unit: jvp([*values, *p.spread(values, chosen, unit)]))
            return [_joined(columns[b], r, wrt[b], results[r]) for r in range(len(results)) for b in range(len(wrt))]
        rows = _columns(results, lambda unit: [vjp([*values, *unit])[k] for k in chosen])
        pairs = [(r, b) for r in range(len(results)) for b in range(len(wrt))]
        return [_turned(_joined(rows[r], b, results[r], wrt[b]), np.ndim(results[r])) for r, b in pairs]

    return Pieces(result, value)


def _columns(inputs: list[Any], call: Callable[[list[Any]], list[Any]]) -> list[list[list[Any]]]:
    """What `call` gives for a one at each element of each input: by input, by element."""
    found = []
    for k, value in enumerate(inputs):
        unit = [_zero(v) for v in inputs]
        column = []
        for index in np.ndindex(np.shape(value)):
            if isinstance(value, np.ndarray):
                unit[k][index] = 1
                column.append(call(unit))
                unit[k][index] = 0
            else:
                column.append(call([1.0 if j == k else u for j, u in enumerate(unit)]))
        found.append(column)
    return found


def _joined(columns: list[list[Any]], part: int, of: Any, like: Any) -> Any:
    """One part of all columns as one array: the shape of the part, then the shape of what was varied."""
    if not np.ndim(of) and not np.ndim(like):
        return columns[0][part]
    dtype = like.dtype if isinstance(like, np.ndarray) else of.dtype
    shape = np.shape(like) + np.shape(of)
    if not columns:
        return np.zeros(shape, dtype)
    stacked = np.stack([np.asarray(column[part], dtype) for column in columns], axis=-1)
    return stacked.reshape(shape)


def _turned(array: Any, count: int) -> Any:
    """The last `count` axes moved to the front."""
    return np.moveaxis(array, list(range(-count, 0)), list(range(count))) if count else array
