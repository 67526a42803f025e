"""Views and indexing of tensors.

A view shares the memory and the version of its tensor. It is recorded as a node that keeps no values: its gradient is
another view, a sum over what was broadcast, or, for slices, the compiled vjp of a strided read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotdiff.runtime import tensor_kernels as kernels
from aotdiff.runtime.gradmode import mode
from aotdiff.runtime.graph_nodes import Node
from aotdiff.runtime.recorded import calls_of, record
from aotdiff.runtime.tensor import Tensor, buffer, cell_of, wrap
from aotdiff.runtime.tensor_methods import Later
from aotdiff.runtime.tensor_ops import _ELEMENTS, _run

Shape = tuple[int, ...]
device_tensors: Any = Later("gpu.tensors")


class ViewRule:
    """Going backward through a view: `back(tensor gradient, details)`.

    The details are in `node.shapes`, the dtype is in `node.likes`.
    """

    fresh = False
    outputs = 1
    saves = False

    def __init__(self, name: str, back: Callable[[Tensor, Any], Tensor]) -> None:
        self.name = name
        self.back = back

    def raw(self, node: Node, ct: Any) -> Sequence[Any]:
        if type(ct) is float:
            ct = np.array(ct, node.likes)
        return (self.back(wrap(ct), node.shapes)._data,)

    def recorded(self, node: Node, ct: Tensor) -> Sequence[Tensor]:
        return (self.back(ct, node.shapes),)


class DeviceViewRule(ViewRule):
    """The same for a tensor on a device: a number that comes from the host goes there."""

    def __init__(self, rule: ViewRule, kind: str) -> None:
        super().__init__(rule.name, rule.back)
        self.kind = kind

    def raw(self, node: Node, ct: Any) -> Sequence[Any]:
        data = np.asarray(ct, node.likes) if type(ct) is float else ct
        return super().raw(node, device_tensors.moved(data, self.kind))

    def recorded(self, node: Node, ct: Tensor) -> Sequence[Tensor]:
        return super().recorded(node, device_tensors.to_device(ct, self.kind))


def _view(t: Tensor, array: np.ndarray, rule: ViewRule, details: Any) -> Tensor:
    """A tensor that shows `array`, part of the memory of `t`."""
    made = Tensor(array, None, cell_of(t))
    if t._needs and mode.enabled:
        _follow(t, made, _node(t, rule, details))
    return made


def _node(t: Tensor, rule: ViewRule, details: Any) -> Node:
    if t.on_device:
        rule = DeviceViewRule(rule, t.device)
    node = Node(rule, (), None, (t if t._node is None else t._node,))
    node.shapes, node.likes = details, t.dtype
    return node


def _follow(t: Tensor, made: Tensor, node: Node) -> None:
    made._node, made._needs = node, True
    cell_of(t).viewed = True


# Shapes ----------------------------------------------------------------------------------------------------------


def sizes_of(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given one by one or as one tuple."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = tuple(args[0])
    return tuple([operator.index(n) for n in args])


def _back_reshape(g: Tensor, shape: Shape) -> Tensor:
    return reshape(g, shape)


def _back_permute(g: Tensor, axes: tuple[int, ...]) -> Tensor:
    return permute(g, axes)


def _back_expand(g: Tensor, shape: Shape) -> Tensor:
    """Sum over the axes that were broadcast."""
    extra = g.ndim - len(shape)
    axes = [k for k in range(g.ndim) if k < extra or (shape[k - extra] == 1 and g.shape[k] != 1)]
    return reshape(g.sum(tuple(axes)) if axes else g, shape)


_RESHAPE = ViewRule("reshape", _back_reshape)
_PERMUTE = ViewRule("permute", _back_permute)
_EXPAND = ViewRule("expand", _back_expand)


def reshape(t: Tensor, shape: Shape) -> Tensor:
    try:
        array = buffer(t).reshape(shape)
    except ValueError:
        raise RuntimeError(f"a tensor of shape {t.shape} has no shape {shape}: the counts differ") from None
    if t.on_device or np.may_share_memory(array, t._data) or not array.size:
        return _view(t, array, _RESHAPE, t.shape)
    made = wrap(array)
    if t._needs and mode.enabled:
        made._node, made._needs = _node(t, _RESHAPE, t.shape), True
    return made


def permute(t: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A view; on a device a copy, as there all memory is row-major."""
    axes = tuple([axis % t.ndim if -t.ndim <= axis < t.ndim else axis for axis in axes])
    if sorted(axes) != list(range(t.ndim)):
        raise RuntimeError(f"permute of shape {t.shape} takes each of its axes once, got {axes}")
    if t.on_device:
        return device_tensors.permute(t, axes)
    return _view(t, buffer(t).transpose(axes), _PERMUTE, tuple(np.argsort(axes).tolist()))


def swap(t: Tensor, first: int, second: int) -> Tensor:
    axes = list(range(t.ndim))
    try:
        axes[first], axes[second] = axes[second], axes[first]
    except IndexError:
        raise IndexError(f"transpose({first}, {second}) of a tensor of shape {t.shape}") from None
    return permute(t, tuple(axes))


def expand(t: Tensor, shape: Shape) -> Tensor:
    extra = len(shape) - t.ndim
    full = tuple([t.shape[k - extra] if n == -1 and k >= extra else n for k, n in enumerate(shape)])
    if t.on_device:
        return device_tensors.expand(t, full)
    try:
        array = np.broadcast_to(buffer(t), full)
    except ValueError:
        raise RuntimeError(f"a tensor of shape {t.shape} does not expand to shape {full}") from None
    return _view(t, array, _EXPAND, t.shape)


def squeeze(t: Tensor, axis: int | None) -> Tensor:
    if axis is not None and not -t.ndim <= axis < t.ndim:
        raise IndexError(f"axis {axis} of a tensor of shape {t.shape}")
    gone = range(t.ndim) if axis is None else (axis % t.ndim,)
    return reshape(t, tuple([n for k, n in enumerate(t.shape) if n != 1 or k not in gone]))


def unsqueeze(t: Tensor, axis: int) -> Tensor:
    if not -t.ndim - 1 <= axis <= t.ndim:
        raise IndexError(f"axis {axis} of a tensor of shape {t.shape} with one more axis")
    place = axis % (t.ndim + 1)
    return reshape(t, (*t.shape[:place], 1, *t.shape[place:]))


# Indexing --------------------------------------------------------------------------------------------------------


def plain_index(index: Any) -> tuple[Any, ...]:
    """The index as a tuple that numpy takes, tensors in it replaced by their values."""
    items = index if isinstance(index, tuple) else (index,)
    return tuple([_plain(item) for item in items])


def _plain(item: Any) -> Any:
    if type(item) is Tensor:
        if item.dtype.kind not in "iub":
            raise IndexError(f"an index is of integers or bools, not of {item.dtype}")
        return np.asarray(item._data) if item.ndim or item.dtype.kind == "b" else item.item()
    if isinstance(item, (list, np.ndarray)):
        array = np.asarray(item)
        return array.astype(np.int64) if not array.size and array.dtype.kind == "f" else array
    return item


def is_basic(index: tuple[Any, ...]) -> bool:
    """Whether it makes a view: integers, slices, `...` and None."""
    return all(
        item is None or item is Ellipsis or isinstance(item, (slice, int, np.integer)) and not isinstance(item, bool)
        for item in index
    )


def getitem(t: Tensor, index: Any) -> Tensor:
    plain = plain_index(index)
    return _slice(t, plain) if is_basic(plain) else _gather(t, plain)


def _slice(t: Tensor, index: tuple[Any, ...]) -> Tensor:
    if t.on_device:
        shape = np.broadcast_to(np.empty(()), t.shape)[index if Ellipsis in index else (*index, Ellipsis)].shape
        return device_tensors.index(t, *_blocks(t.shape, index), shape)
    array = buffer(t)[index if Ellipsis in index else (*index, Ellipsis)]
    made = Tensor(array, None, cell_of(t))
    if t._needs and mode.enabled:
        _follow(t, made, _slice_node(t, index, array.shape))
    return made


def _slice_node(t: Tensor, index: tuple[Any, ...], out: Shape) -> Node:
    """The node of a slice: a call of the strided read, with axes taken whole joined to their neighbours."""
    sizes, blocks = _blocks(t.shape, index)
    if not sizes:
        return _node(t, _RESHAPE, t.shape)
    f = kernels.strided(len(sizes), _ELEMENTS[t.dtype])
    counts = [count for _, _, count in blocks]
    args = [t, *[number for block in blocks for number in block]]
    node = record(calls_of(f), 1, "f64", args, [tuple(sizes)])
    node.shapes = [tuple(sizes), *[None] * (len(args) - 1)], [t.shape], tuple(counts)
    return node


def _blocks(shape: Shape, index: tuple[Any, ...]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Sizes of the (joined) axes, and what is taken of each: start, step, count."""
    items = [item for item in index if item is not None]
    if Ellipsis in items:
        place = items.index(Ellipsis)
        items[place : place + 1] = [slice(None)] * (len(shape) - len(items) + 1)
    items += [slice(None)] * (len(shape) - len(items))
    sizes: list[int] = []
    blocks: list[tuple[int, int, int]] = []
    for size, item in zip(shape, items, strict=True):
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            block = (start, step, len(range(start, stop, step)))
        else:
            block = (int(item) % size, 1, 1)
        if block == (0, 1, size) and blocks and blocks[-1] == (0, 1, sizes[-1]):
            sizes[-1] *= size
            blocks[-1] = (0, 1, sizes[-1])
        else:
            sizes.append(size)
            blocks.append(block)
    return sizes, blocks


def positions(shape: Shape, index: tuple[Any, ...]) -> np.ndarray:
    """Where the indexed elements are in the flattened array."""
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)[index]


def _gather(t: Tensor, index: tuple[Any, ...]) -> Tensor:
    """Indexing with arrays: a copy."""
    if t.on_device:
        return _gather_on_device(t, index)
    data = np.asarray(t._data)
    if t.dtype not in _ELEMENTS or t.dtype.kind != "f":
        return wrap(np.array(data[index]))
    at = positions(t.shape, index)
    f = kernels.on_arrays("gather", _ELEMENTS[t.dtype])
    operands = [t, Tensor(np.ascontiguousarray(at.reshape(-1)))]
    return _run(f, operands, [(data.size,), None], np.shape(at), _ELEMENTS[t.dtype])


def _gather_on_device(t: Tensor, index: tuple[Any, ...]) -> Tensor:
    at = positions(t.shape, index)
    place = device_tensors.put(t._data.device, np.ascontiguousarray(at.reshape(-1)))
    element = device_tensors.element(t)
    f = kernels.on_arrays("gather", element, t.device)
    return _run(f, [t, Tensor(place)], [(t.numel(),), None], np.shape(at), element)
