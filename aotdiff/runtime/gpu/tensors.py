"""Tensors on a device: where operands are, numbers and results put where they belong, layouts by compiled kernels.

Operators, recorded calls and walks are the same as on the host (`tensor_ops`, `recorded`, `walk`); what they ask of
data that is not numpy's is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from aotdiff.runtime import tensor_kernels as kernels
from aotdiff.runtime.convert import DTYPES
from aotdiff.runtime.function import Function
from aotdiff.runtime.gpu import streams
from aotdiff.runtime.gpu.array import DeviceArray, here, put
from aotdiff.runtime.gradmode import mode
from aotdiff.runtime.tensor import Tensor, cell_of

Shape = tuple[int, ...]


def common(operands: Sequence[Any]) -> Any:
    """The device that operands are on; None for the host. Numbers, also tensors of no dimensions, are everywhere."""
    device: Any = None
    host = False
    for v in operands:
        data = v._data if type(v) is Tensor else v
        if type(data) is DeviceArray:
            if device is not None and data.device is not device:
                raise TypeError(f"operands on {device.kind} and on {data.device.kind}: move one with to()")
            device = data.device
        elif type(data) is np.ndarray and data.ndim:
            host = True
    if device is not None and host:
        raise TypeError(f"operands on {device.kind} and in host memory: move one with to() or cpu()")
    return device


def placed(device: Any, value: Any, dtype: np.dtype, shape: Shape) -> Any:
    """A result of a kernel on a device in its final shape: an array stays there, a number becomes one if it has to."""
    if type(value) is DeviceArray:
        return value.reshape(shape)
    if not shape:
        return value
    return put(device, np.full(shape, value, dtype))


def beside(args: Sequence[Any], ct: Any, dtype: Any = None) -> Any:
    """The cotangent of one number, which may be in host memory, where the arrays of its call are.

    A Python float (of this dtype) comes back as data, a tensor as a tensor.
    """
    for arg in args:
        data = arg._data if type(arg) is Tensor else arg
        if type(data) is DeviceArray:
            return to_device(ct, data.device.kind) if type(ct) is Tensor else put(data.device, np.asarray(ct, dtype))
    return ct


def returned(device: Any, g: Tensor, shape: Shape | None) -> Tensor:
    """The gradient of an argument seen as one number, where that is an array on the device outside."""
    return to_device(g, device.kind) if shape and g.ndim == 0 else g


def on_stream(stream: Any, call: Any, *args: Any) -> Any:
    """A call that puts its work on another stream than the present one."""
    with streams.stream(stream):
        return call(*args)


def zeros(device: Any, shape: Shape, dtype: np.dtype) -> Any:
    return put(device, np.zeros(shape, dtype)) if shape else 0.0


def stack(rows: Sequence[DeviceArray]) -> DeviceArray:
    """Arrays of one shape along a new first axis."""
    from aotdiff.runtime.gpu.array import empty

    first = rows[0]
    stream = here(first.device)
    made = empty(first.device, (len(rows), *first.shape), first.dtype, stream)
    for k, row in enumerate(rows):
        row.storage.read_on(stream)
        if row.nbytes:
            made.device.copy(made.storage.buffer, k * row.nbytes, row.storage.buffer, 0, row.nbytes, stream)
    return made


# Results into arrays of the caller's ----------------------------------------------------------------------------


def into(f: Function, raw: Sequence[Any], out: Any, needs: bool) -> Any:
    """`f(*raw, out=out)` where tensors are among the arguments or in `out`; nothing is recorded.

    `raw` has data for tensors, `needs` says whether one of them requires grad.
    """
    given: dict[int, Any] = {}
    taken = _taken(out, given)
    if mode.enabled and (needs or any(type(t) is Tensor and t._needs for t in given.values())):
        raise RuntimeError(f"{f.name}: out= records nothing, and a tensor here requires grad: do it under no_grad()")
    made = f(*raw, out=taken)
    for each in given.values():
        if type(each) is Tensor:
            cell_of(each).version += 1
    return _as_given(made, given)


def _taken(out: Any, given: dict[int, Any]) -> Any:
    """`out` with data for tensors; `given` gets what was there for what is now."""
    if isinstance(out, (tuple, list)):
        return tuple([_taken(part, given) for part in out])
    data = out._data if type(out) is Tensor else out
    if out is not None:
        given[id(data)] = out
    return data


def _as_given(made: Any, given: dict[int, Any]) -> Any:
    if isinstance(made, tuple):
        return tuple([_as_given(part, given) for part in made])
    found = given.get(id(made))
    return found if found is not None else made if type(made) is Tensor else Tensor(made)


# Moving ------------------------------------------------------------------------------------------------------


def moved(data: Any, kind: str) -> Any:
    """The data of a tensor on another device, or on the "cpu"; the same object if it is there."""
    if kind == "cpu":
        return data.numpy() if type(data) is DeviceArray else data
    from aotdiff.runtime.gpu.devices import device

    target = device(kind)
    if type(data) is DeviceArray:
        return data if data.device is target else put(target, data.numpy())
    return put(target, np.asarray(data))


class _Move:
    """Going backward through `Tensor.to(device)`: the gradient moves back."""

    name = "to"
    fresh = True
    outputs = 1
    saves = False

    def raw(self, node: Any, ct: Any) -> Sequence[Any]:
        return (moved(np.asarray(ct, node.likes) if type(ct) is float else ct, node.shapes),)

    def recorded(self, node: Any, ct: Tensor) -> Sequence[Tensor]:
        return (to_device(ct, node.shapes),)


_MOVE = _Move()


def to_device(t: Tensor, kind: str) -> Tensor:
    """`Tensor.to("cuda")` and so on: recorded like any other call."""
    from aotdiff.runtime.graph_nodes import Node
    from aotdiff.runtime.tensor import wrap

    if t.device == kind:
        return t
    data = moved(t._data, kind)
    made = wrap(data) if kind == "cpu" else Tensor(data)
    if t._needs and mode.enabled:
        node = Node(_MOVE, (), None, (t if t._node is None else t._node,))
        node.shapes, node.likes = t.device, t.dtype
        made._node, made._needs = node, True
    return made


# Layouts -----------------------------------------------------------------------------------------------------


@cache
def _permuted(axes: tuple[int, ...], element: str, target: str) -> Function:
    sizes = [f"n{k}" for k in range(len(axes))]
    indices = [f"i{k}" for k in range(len(axes))]
    loops = ", ".join(f"{indices[a]} in 0..{sizes[a]}" for a in axes)
    result = ", ".join(sizes[a] for a in axes)
    text = f"fn tensor_permute(x: {element}[{', '.join(sizes)}]) -> {element}[{result}] = "
    text += f"[x[{', '.join(indices)}] for {loops}]"
    return kernels.compiled(text, "tensor_permute", "permute", target)


@cache
def _expanded(ones: tuple[bool, ...], extra: int, element: str, target: str) -> Function:
    """From sizes with 1 where `ones` says so, and `extra` axes more in front, to sizes given as numbers."""
    rank = len(ones)
    given = ["1" if one else f"n{k}" for k, one in enumerate(ones)]
    wanted = [f"k{k}" for k in range(extra)] + [f"m{k}" if one else f"n{k}" for k, one in enumerate(ones)]
    numbers = [f"k{k}: i64" for k in range(extra)] + [f"m{k}: i64" for k in range(rank) if ones[k]]
    index = ", ".join("0" if one else f"i{k + extra}" for k, one in enumerate(ones))
    loops = ", ".join(f"i{k} in 0..{size}" for k, size in enumerate(wanted))
    parameters = ", ".join([f"x: {element}[{', '.join(given)}]", *numbers])
    text = f"fn tensor_expand({parameters}) -> {element}[{', '.join(wanted)}] = [x[{index}] for {loops}]"
    return kernels.compiled(text, "tensor_expand", "expand", target)


def permute(t: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A row-major copy with the axes in another order."""
    if axes == tuple(range(t.ndim)):
        return t
    return _permuted(axes, element(t), t.device)(t)


def expand(t: Tensor, shape: Shape) -> Tensor:
    """A copy broadcast to a larger shape."""
    extra = len(shape) - t.ndim
    ones = tuple([t.shape[k] == 1 and shape[k + extra] != 1 for k in range(t.ndim)])
    if extra < 0 or any(not one and n != m for one, n, m in zip(ones, t.shape, shape[extra:])):
        raise RuntimeError(f"a tensor of shape {t.shape} does not expand to shape {shape}")
    numbers = [*shape[:extra], *(n for one, n in zip(ones, shape[extra:]) if one)]
    return _expanded(ones, extra, element(t), t.device)(t, *numbers)


def index(t: Tensor, sizes: list[int], blocks: list[tuple[int, int, int]], out: Shape) -> Tensor:
    """`t[...]` of integers and slices: a copy; start, step and count along each joined axis are in `blocks`."""
    from aotdiff.runtime.tensor_ops import _run

    if not sizes:
        return t.reshape(out)
    f = kernels.strided(len(sizes), element(t), t.device)
    numbers = [number for block in blocks for number in block]
    return _run(f, [t, *numbers], [tuple(sizes), *[None] * len(numbers)], out, element(t))


def element(t: Tensor) -> str:
    for name, dtype in DTYPES.items():
        if dtype == t.dtype:
            return name
    raise TypeError(f"tensors of {t.dtype} do not compute on {t.device}")
