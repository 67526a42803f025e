"""Calls of compiled functions with tensors: one call, one node.

The first call with a certain set of tracked arguments makes its `CallRule`: the compiled vjp by these arguments, and
which arguments it reads. Only those are kept by the node; of the others the shape is enough. Going backward with
`create_graph` calls the same vjp with tensors, so that it is recorded like any other call, to any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from aotdiff.runtime import fastcall
from aotdiff.runtime import function as functions
from aotdiff.runtime.binding import choose_real
from aotdiff.runtime.convert import DTYPES
from aotdiff.runtime.function import Function
from aotdiff.runtime.gradmode import mode
from aotdiff.runtime.graph_nodes import Node, Slot
from aotdiff.runtime.interface import Group, Kind, Leaf, leaves
from aotdiff.runtime.tensor import Tensor, wrap
from aotdiff.runtime.tensor_methods import Later
from aotdiff.runtime.tensor_native import LIMIT, Paths
from aotdiff.runtime.tensor_native import cells as native_cells

_F64 = DTYPES["f64"]
device_arrays: Any = Later("gpu.array")
device_streams: Any = Later("gpu.streams")
device_tensors: Any = Later("gpu.tensors")
paths: Paths | None = None  # native code for what is plain, if there can be


class Hole:
    """An argument whose values are not kept: only its shape is known, and the device it was on, if any."""

    __slots__ = ("device", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, device: Any = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device

    def array(self) -> Any:
        """An array of that shape; what is in it does not matter."""
        if self.device is not None:
            return device_arrays.empty(self.device, self.shape, self.dtype, device_arrays.here(self.device))
        return np.empty(self.shape, self.dtype)


class CallRule:
    """How calls of one function with one set of tracked arguments (parameter leaves) go backward."""

    __slots__ = (
        "chained", "device", "dtype", "fresh", "kept", "name", "outputs", "picks", "result", "run", "saves", "simple",
        "vjp",
    )  # fmt: skip

    def __init__(self, f: Function, mask: int, real: str) -> None:
        self.name = f.name
        self.fresh = True
        interface = f.interface
        names, picks, place, given = [], [], 0, 0
        for parameter in interface.parameters:
            inside = list(leaves(parameter.kind))
            if any(mask >> (place + k) & 1 for k in range(len(inside))):
                names.append(parameter.name)
                for k, leaf in enumerate(inside):
                    if mask >> (place + k) & 1:
                        picks.append(given)
                        self.dtype = dtype_of(leaf, real)
                    given += leaf.is_float
            place += len(inside)
        self.simple = len(names) == 1 and isinstance(interface.parameters[interface.names.index(names[0])].kind, Leaf)
        self.picks = None if picks == list(range(given)) else picks
        self.vjp = f.vjp(wrt=names[0] if self.simple else tuple(names)).prepare(real)
        self.run = runner(self.vjp, real)
        self.kept = _kept(self.vjp, real, place)
        self.saves = any(self.kept)
        self.result = next(dtype_of(leaf, real) for leaf in leaves(interface.result) if leaf.is_float)
        self.outputs = sum(leaf.is_float for leaf in leaves(interface.result))
        flat = all(isinstance(p.kind, Leaf) for p in self.vjp.interface.parameters)
        self.device = f.module.device
        self.chained = (  # see `tensor_native`
            self.device is None and self.simple and self.outputs == 1 and flat and place <= LIMIT
        )

    def raw(self, node: Node, ct: Any) -> Sequence[Any]:
        saved = node.saved
        if saved is None:
            raise freed(node)
        if node.shapes is not None:
            return self._reshaped(node, saved, ct)
        args = [s._data if type(s) is Tensor else s.array() if type(s) is Hole else s for s in saved]
        if self.outputs == 1:
            args.append(ct)
        else:
            args += _missing(node, ct)
        return self._split(self.run(*self._nested(args)))

    def _reshaped(self, node: Node, saved: tuple[Any, ...], ct: Any) -> Sequence[Any]:
        """`raw` where the arguments and the result had other shapes in the call than outside."""
        views, origins, result = node.shapes
        args = [shown(s, view) if type(s) is Tensor else s.array() if type(s) is Hole else s
                for s, view in zip(saved, views)]  # fmt: skip
        if self.device is not None and type(ct) is float and result:
            ct = device_tensors.beside(args, ct, self.result)
        made = self._split(self.run(*args, reshaped(ct, result, self.result)))
        if self.device is not None:
            return [device_tensors.placed(self.device, g, self.dtype, origin) for g, origin in zip(made, origins)]
        return [reshaped(g, origin, self.dtype) for g, origin in zip(made, origins)]

    def recorded(self, node: Node, ct: Any) -> Sequence[Any]:
        saved = node.saved
        if saved is None:
            raise freed(node)
        args = [s.array() if type(s) is Hole else s for s in saved]
        if node.shapes is None:
            cts = [ct] if self.outputs == 1 else _missing(node, ct)
            return self._split(self.vjp(*self._nested(args + cts)))
        views, origins, result = node.shapes
        args = [a if view is None or type(a) is not Tensor else _reshape(a, view) for a, view in zip(args, views)]
        if self.device is not None and result and ct.ndim == 0:
            ct = device_tensors.beside(args, ct)
        made = self._split(self.vjp(*args, _reshape(ct, result)))
        if self.device is not None:
            made = [device_tensors.returned(self.device, g, origin) for g, origin in zip(made, origins)]
        return [_reshape(g, origin) for g, origin in zip(made, origins)]

    def _nested(self, flat: list[Any]) -> list[Any]:
        """Leaves put back into the tuples that the parameters of the vjp are."""
        parameters = self.vjp.interface.parameters
        if len(flat) == len(parameters):
            return flat
        parts = iter(flat)
        return [nest(parameter.kind, parts) for parameter in parameters]

    def _split(self, made: Any) -> Sequence[Any]:
        """Gradients of the tracked leaves in what the vjp gave."""
        if self.simple:
            return (made,)
        flat = flat_leaves(made)
        return flat if self.picks is None else [flat[k] for k in self.picks]


class DeviceRule(CallRule):
    """The same on a device: calls go backward on the stream they were made on."""

    __slots__ = ()

    def raw(self, node: Node, ct: Any) -> Sequence[Any]:
        return device_tensors.on_stream(node.stream, super().raw, node, ct)

    def recorded(self, node: Node, ct: Any) -> Sequence[Any]:
        return device_tensors.on_stream(node.stream, super().recorded, node, ct)


def _kept(vjp: Function, real: str, count: int) -> list[bool]:
    """For each leaf of the function's parameters: whether the vjp needs its value."""
    reads = vjp._entries[real][1].reads
    params = [leaf for p in vjp.interface.parameters for leaf in leaves(p.kind)][:count]
    return [reads is None or k in reads or not leaf.is_float for k, leaf in enumerate(params)]


def _missing(node: Node, cts: dict[int, Any]) -> list[Any]:
    """Cotangents of several results, zeros for those that nothing flowed into."""
    device = None if node.rule.device is None else _place(node.saved)
    if device is not None:
        return [cts[k] if k in cts else device_tensors.zeros(device, *like) for k, like in enumerate(node.likes)]
    return [cts[k] if k in cts else _zeros(*like) for k, like in enumerate(node.likes)]


def _place(saved: Iterable[Any] | None) -> Any:
    """The device that the arrays of a call are on; None where they are on the host."""
    for s in saved or ():
        data = s if type(s) is Hole else s._data if type(s) is Tensor else s
        if getattr(data, "device", None) not in (None, "cpu"):
            return data.device
    return None


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    return 0.0 if not shape and dtype is _F64 else np.zeros(shape, dtype)


def freed(node: Node) -> RuntimeError:
    """The error of a second walk through a freed call."""
    return RuntimeError(
        f"going backward through this call of {node.rule.name} a second time, but what it kept was freed by the "
        "first: pass retain_graph=True to the first backward() or grad() if both are wanted"
    )


def _complain(node: Node) -> None:
    raise freed(node)


def runner(f: Function, real: str) -> Callable[..., Any]:
    """The function for raw arguments: Python floats are of the type `real`, which they would not decide."""
    if not f._generic or real == f._module._default_real == "f64":
        return f
    number = np.float32 if real == "f32" else np.float64
    return lambda *args: f(*[_typed(a, number) for a in args])


def _typed(value: Any, number: type) -> Any:
    if type(value) is tuple:
        return tuple([_typed(item, number) for item in value])
    return number(value) if type(value) is float else value


# Shapes ----------------------------------------------------------------------------------------------------------


def shown(t: Tensor, view: tuple[int, ...] | None) -> Any:
    """The data of a tensor in another shape; a number for the shape of no dimensions."""
    return t._data if view is None else reshaped(t._data, view)


def reshaped(data: Any, shape: tuple[int, ...] | None, dtype: np.dtype = _F64) -> Any:
    """The data in another shape; a number comes back for no dimensions, and becomes an array of `dtype` for others."""
    if shape is None:
        return data
    if not shape:
        return data if type(data) is float else data.item()
    return np.full(shape, data, dtype) if type(data) is float else data.reshape(shape)


def _reshape(value: Any, shape: tuple[int, ...] | None) -> Any:
    if shape is None or type(value) is not Tensor or value.shape == shape:
        return value
    return value.reshape(shape)


# Nesting ---------------------------------------------------------------------------------------------------------


def nest(kind: Kind, parts: Iterator[Any]) -> Any:
    """Leaves in the order of the kind, nested like it."""
    return next(parts) if isinstance(kind, Leaf) else tuple([nest(item, parts) for item in kind.items])


def flat_leaves(value: Any) -> list[Any]:
    """The leaves of nested tuples."""
    if type(value) is not tuple:
        return [value]
    return [leaf for item in value for leaf in flat_leaves(item)]


# Calls -----------------------------------------------------------------------------------------------------------


class Calls:
    """What calls of one function with tensors need: made once per function."""

    __slots__ = ("cells", "floats", "function", "generic", "nested", "params", "result", "rules", "single")

    def __init__(self, f: Function) -> None:
        interface = f.interface
        self.function = f
        self.nested = any(isinstance(p.kind, Group) for p in interface.parameters)
        self.params = [leaf for p in interface.parameters for leaf in leaves(p.kind)]
        self.result = interface.result
        self.floats = sum(leaf.is_float for leaf in leaves(self.result))
        self.single = isinstance(self.result, Leaf) and self.result == Leaf("f64")
        self.generic = f._generic
        self.rules: dict[Any, CallRule] = {}
        self.cells: Any = self._attach()

    def _attach(self) -> Any:
        """Hand plain calls over to native code, if there is a fast call to build on; gives the cells for rules."""
        f, result = self.function, self.result
        real = f._module._default_real
        native = f._entries.get(real)
        if (
            paths is None or native is None or not native[1].fast or self.nested or len(self.params) > LIMIT
            or not isinstance(result, Leaf) or not result.is_float or (self.generic and real != "f64")
            or (not result.sizes and result.element == "f32")
        ):  # fmt: skip
            return None
        made = native_cells(self.generic)
        f.__dict__["_cells"] = made
        paths.attach(f, native[1].fast, made)
        return made

    def rule(self, mask: int, real: str) -> CallRule:
        key = (mask, real) if self.generic else mask
        rule = self.rules.get(key)
        if rule is None:
            make = CallRule if self.function.module.device is None else DeviceRule
            rule = self.rules[key] = make(self.function, mask, real)
            if self.cells is not None and real == "f64":
                self._publish(rule, mask)
        return rule

    def _publish(self, rule: CallRule, mask: int) -> None:
        """Let native code record calls with this rule: those that keep numbers or tensors, no shapes."""
        if all(kept or not leaf.sizes for kept, leaf in zip(rule.kept, self.params, strict=True)):
            self.cells[2 * mask + 1] = sum(1 << k for k, kept in enumerate(rule.kept) if kept)
            self.cells[2 * mask] = id(rule)

    def real(self, args: Sequence[Any]) -> str:
        f = self.function
        return choose_real(f.interface, args, f._module._default_real) if self.generic else "f64"


def calls_of(f: Function, args: Sequence[Any] = ()) -> Calls:
    """Made at the first call with tensors, once the function is compiled for them."""
    calls = f.__dict__.get("_calls")
    if calls is None:
        with f._module._lock:
            calls = f.__dict__.get("_calls")
            if calls is None:
                if args or not f._generic:
                    f.prepare(choose_real(f.interface, args, f._module._default_real) if f._generic else "f64")
                calls = f.__dict__["_calls"] = Calls(f)
    return calls


def call(f: Function, args: Sequence[Any], out: Any = None) -> Any:
    """The function called with arguments of which some are tensors: tensors come back."""
    if out is not None:
        return _call_into(f, args, out)
    calls = calls_of(f, args)
    if calls.nested:
        return _call_nested(calls, args)
    mask, bit, raw = 0, 1, []
    for a in args:
        if type(a) is Tensor:
            if a._needs:
                mask |= bit
            a = a._data
        raw.append(a)
        bit <<= 1
    if not calls.generic:
        made = f(*raw)
        real = "f64"
    else:
        real = calls.real(args)
        made = runner(f, real)(*raw)
    return _recorded(calls, made, mask, real, args)


def _recorded(calls: Calls, made: Any, mask: int, real: str, args: Sequence[Any]) -> Any:
    node = record(calls, mask, real, args) if mask and calls.floats and mode.enabled else None
    if calls.single:
        return Tensor(made, node)
    return _results(calls, made, node, real)


def finish(f: Function, made: Any, *args: Any) -> Any:
    """The rest of a call that native code has begun: its raw result `made` is there."""
    calls = calls_of(f)
    mask = sum(1 << k for k, a in enumerate(args) if type(a) is Tensor and a._needs)
    return _recorded(calls, made, mask, calls.real(args), args)


def _call_into(f: Function, args: Sequence[Any], out: Any) -> Any:
    """A call that writes its results into tensors or arrays on a device."""
    if f.module.device is None:
        raise TypeError(f"{f.name}: out= takes arrays, for a call without tensors")
    from aotdiff.runtime.gpu.tensors import into

    flat: list[Any] = []
    raw = [_take(p.kind, a, flat) for p, a in zip(f.interface.parameters, args, strict=True)]
    return into(f, raw, out, any(type(a) is Tensor and a._needs for a in flat))


def _call_nested(calls: Calls, args: Sequence[Any]) -> Any:
    flat: list[Any] = []
    parameters = calls.function.interface.parameters
    raw = [_take(p.kind, a, flat) for p, a in zip(parameters, args, strict=True)]
    mask = sum(1 << k for k, a in enumerate(flat) if type(a) is Tensor and a._needs)
    real = calls.real(args)
    made = runner(calls.function, real)(*raw)
    node = record(calls, mask, real, flat) if mask and calls.floats and mode.enabled else None
    return _results(calls, made, node, real)


def _take(kind: Kind, value: Any, flat: list[Any]) -> Any:
    """The value with data for tensors; its leaves, tensors as they are, go to `flat`."""
    if isinstance(kind, Leaf):
        flat.append(value)
        return value._data if type(value) is Tensor else value
    if not isinstance(value, (tuple, list)) or len(value) != len(kind.items):
        return value  # refused with a message when it is converted
    return tuple([_take(item, part, flat) for item, part in zip(kind.items, value, strict=True)])


def record(calls: Calls, mask: int, real: str, args: Sequence[Any], views: Sequence[Any] | None = None) -> Node:
    """The node of a call with these arguments (leaves), which were shown to it in the shapes `views`."""
    rule = calls.rule(mask, real)
    saved, versions, edges = [], [], []
    changed = False
    for k, a in enumerate(args):
        version = 0
        if type(a) is Tensor:
            if mask >> k & 1:
                edges.append(a if a._node is None else a._node)
            if rule.kept[k]:
                if a._cell is not None:
                    version = a._cell.version
                    changed = changed or version != 0
            else:
                a = _hole(calls.params[k], a._data, real, None if views is None else views[k])
        elif type(a) is not float:
            a = _constant(calls.params[k], a, real, rule.kept[k])
        saved.append(a)
        versions.append(version)
    node = Node(rule, tuple(saved), tuple(versions) if changed else None, tuple(edges))
    if rule.device is not None:
        node.stream = device_streams.current()
    return node


def dtype_of(leaf: Leaf, real: str) -> np.dtype:
    """The dtype of a leaf where `real` is decided."""
    return DTYPES[real if leaf.element == "real" else leaf.element]


def _hole(leaf: Leaf, data: Any, real: str, view: tuple[int, ...] | None) -> Any:
    if not leaf.sizes:
        return 0.0
    device = data.device if type(data) is not np.ndarray and getattr(data, "on_device", False) else None
    return Hole(data.shape if view is None else view, dtype_of(leaf, real), device)


def _constant(leaf: Leaf, value: Any, real: str, kept: bool) -> Any:
    """An argument that is not a tensor: a copy, so that later changes of it do no harm."""
    if not leaf.sizes:
        return value
    dtype = dtype_of(leaf, real)
    if getattr(value, "on_device", False):
        return value.copy() if kept else Hole(value.shape, dtype, value.device)
    return np.array(value, dtype) if kept else Hole(np.shape(value), dtype)


def _results(calls: Calls, made: Any, node: Node | None, real: str) -> Any:
    """The results as tensors, float ones with their place in the graph."""
    kind = calls.result
    flat = [made] if isinstance(kind, Leaf) else flat_leaves(made)
    tensors, likes = [], []
    for value, leaf in zip(flat, leaves(kind), strict=True):
        if not leaf.sizes and leaf.element != "f64":
            value = np.array(value, dtype_of(leaf, real))
        edge = None
        if node is not None and leaf.is_float:
            edge = node if calls.floats == 1 else Slot(node, len(likes))
            likes.append((np.shape(value), dtype_of(leaf, real)))
        tensors.append(wrap(value, edge))
    if calls.floats > 1 and node is not None:
        node.likes = likes
    return nest(kind, iter(tensors))


if fastcall.supported():
    paths = Paths(CallRule, Hole, finish, _complain)
functions.tensor_type = Tensor
functions.tensor_call = call
