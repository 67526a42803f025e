"""Adding a gradient to a tensor's `.grad`.

A new `.grad` of a leaf has the leaf's strides where its memory is dense, else it is row-major. An existing one is
added to in place; with `create_graph` it is replaced by a recorded sum. No two tensors share a `.grad` buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotdiff.runtime.gradmode import switch
from aotdiff.runtime.tensor import Tensor, cell_of, wrap
from aotdiff.runtime.tensor_methods import Later

device_tensors: Any = Later("gpu.tensors")


def add(t: Tensor, g: Any, own: bool, create: bool) -> None:
    """Add `g` (a number, an array, a tensor with `create`) to `t.grad`; `own` says that the array is nobody else's."""
    data = t._data
    if type(data) is not float and type(data) is not np.ndarray and t.on_device:
        _on_device(t, g, own, create)
    elif create:
        _recorded(t, g, own)
    elif t._grad is None:
        t._grad = wrap(_fitting(t, g, own))
    else:
        into(t._grad, g)


def _on_device(t: Tensor, g: Any, own: bool, create: bool) -> None:
    """The same on the present stream, which afterwards has waited for the streams that the contributions are from."""
    kind = t.device
    if create:
        _recorded(t, device_tensors.to_device(g, kind), own)
        assert t._grad is not None
        t._grad = device_tensors.to_device(t._grad, kind)  # a sum of numbers is on the host
    elif t._grad is None:
        there = getattr(g, "on_device", False)  # a number comes from the host
        t._grad = wrap((g if own else g.copy()) if there else device_tensors.moved(np.asarray(g, t.dtype), kind))
    else:
        into(t._grad, g)
    assert t._grad is not None
    t._grad._data.settle()


def into(old: Tensor, g: Any) -> None:
    """In place, as a constant: history of the old gradient stays."""
    if type(old._data) is float:
        old._data += float(g)
    else:
        old._data += g
    cell_of(old).version += 1


def _fitting(t: Tensor, g: Any, own: bool) -> Any:
    """The gradient in the layout that a new `.grad` has."""
    data = t._data
    if type(data) is float:
        return float(g)
    if t._node is not None:
        return np.array(g, data.dtype, order="C")
    like = layout(data)
    if own and type(g) is np.ndarray and g.dtype == data.dtype and g.shape == data.shape and _same(g, like):
        return g
    made = empty(data.shape, like, data.dtype)
    made[...] = g
    return made


def _recorded(t: Tensor, g: Tensor, own: bool) -> None:
    before = switch(True)
    try:
        old = t._grad
        if old is None:
            made = g if own else g.clone()
            like = () if t._node is not None else layout(t._data)
        else:
            made = old + g
            like = layout(old._data)
        if made is old or made.dtype != t.dtype:
            made = made.to(t.dtype)
    finally:
        switch(before)
    if like and not _same(made._data, like):
        laid = empty(made.shape, like, made.dtype)
        laid[...] = made._data
        made._data = laid
    t._grad = made


# Layout ----------------------------------------------------------------------------------------------------------


def layout(data: Any) -> tuple[int, ...]:
    """The axes in the order of their strides, outermost first, if the memory is dense; else the row-major order."""
    if type(data) is float or data.flags.c_contiguous:
        return tuple(range(np.ndim(data)))
    axes = tuple(sorted(range(data.ndim), key=lambda k: (data.shape[k] != 1, -data.strides[k])))
    expected = data.itemsize
    for axis in reversed(axes):
        if data.shape[axis] != 1:
            if data.strides[axis] != expected:
                return tuple(range(data.ndim))
            expected *= data.shape[axis]
    return axes


def _same(array: Any, axes: tuple[int, ...]) -> bool:
    return type(array) is float or array.transpose(axes).flags.c_contiguous


def empty(shape: tuple[int, ...], axes: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new array whose memory has the axes in this order."""
    made = np.empty([shape[axis] for axis in axes], dtype)
    return made.transpose(np.argsort(axes)) if axes else made
