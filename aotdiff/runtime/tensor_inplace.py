"""Changes of a tensor in place.

Where nothing is recorded the numbers are simply overwritten. Where the tensor or the new value has history, the result
is computed as a new tensor, its numbers are copied in, and the tensor takes over its place in the graph. Both count
a version, so that a call that still needs the old numbers finds out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotdiff.runtime import tensor_kernels as kernels
from aotdiff.runtime import tensor_ops as ops
from aotdiff.runtime.gradmode import mode
from aotdiff.runtime.tensor import Tensor, cell_of, wrap
from aotdiff.runtime.tensor_views import plain_index, positions

_UFUNCS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide}


def change(t: Tensor, name: str, other: Any) -> Tensor:
    """`t.add_(other)` and so on."""
    if _recording(t, other):
        return _take(t, ops.binary(name, _before(t), other))
    if t.on_device:
        return _write(t, ops.convert(ops.binary(name, t.detach(), _plain(other)), t.dtype)._data)
    value = _value(other)
    if type(t._data) is float and np.ndim(value) == 0:
        t._data = float(_UFUNCS[name](t._data, value))
    else:
        array = _writable(t)
        try:
            _UFUNCS[name](array, value, out=array, casting="same_kind")
        except ValueError:
            raise RuntimeError(
                f"in place the shape stays: {t.shape} cannot take in a value of shape {np.shape(value)}"
            ) from None
        except TypeError:
            raise RuntimeError(f"in place the dtype stays: {t.dtype} cannot hold the result") from None
    cell_of(t).version += 1
    return t


def fill(t: Tensor, number: Any) -> Tensor:
    """Every element becomes one number."""
    if isinstance(number, Tensor):
        return copy(t, number)
    if _recording(t, None):
        return _take(t, ops._elementwise("zeroed", [_before(t)], *_types(t)) + number)
    return _write(t, number)


def copy(t: Tensor, source: Any) -> Tensor:
    """The numbers of another tensor or array, broadcast."""
    if _recording(t, source):
        given = source if isinstance(source, Tensor) else Tensor(np.array(source))
        value = ops.convert(given, t.dtype)
        zeros = ops._elementwise("zeroed", [_before(t)], *_types(t))
        return _take(t, zeros + value)
    return _write(t, _value(source))


def setitem(t: Tensor, index: Any, value: Any) -> None:
    """`t[index] = value`."""
    if t.on_device:
        raise TypeError(f"elements of a tensor on {t.device} cannot be assigned: write it as a function, or on the cpu")
    plain = plain_index(index)
    if not _recording(t, value):
        array = _writable(t)
        array[plain] = _value(value)
        cell_of(t).version += 1
        return
    at = np.asarray(positions(t.shape, plain))
    given = value if isinstance(value, Tensor) else Tensor(np.array(value, t.dtype))
    block = ops.convert(given, t.dtype).expand(*at.shape).reshape(-1)
    f = kernels.on_arrays("scatter", ops._ELEMENTS[t.dtype])
    operands = [_before(t), Tensor(np.ascontiguousarray(at.reshape(-1))), block]
    size = t.numel()
    _take(t, ops._run(f, operands, [(size,), None, None], t.shape, ops._ELEMENTS[t.dtype]))


def _types(t: Tensor) -> tuple[tuple[str], str]:
    element = ops._ELEMENTS[t.dtype]
    return (element,), element


def _recording(t: Tensor, other: Any) -> bool:
    """Whether the change has to be recorded; raises where it must not happen."""
    if not mode.enabled or not (t._needs or (isinstance(other, Tensor) and other._needs)):
        return False
    if t._needs and t._node is None:
        raise RuntimeError("a leaf that requires grad cannot be changed in place here: do it under no_grad()")
    if t._cell is not None and t._cell.viewed:
        raise RuntimeError(
            "a recorded change in place of a tensor with views, or of a view, would be lost for the others: "
            "write it out of place, or under no_grad()"
        )
    if t.dtype.kind != "f":
        raise RuntimeError(f"a tensor of {t.dtype} cannot take over a value with history in place")
    return True


def _before(t: Tensor) -> Tensor:
    """The tensor as it was: what the recorded change refers to."""
    old = wrap(t._data.copy() if t.on_device else np.array(t._data))
    old._node, old._needs = t._node, t._needs
    return old


def _take(t: Tensor, result: Tensor) -> Tensor:
    """Numbers and history of the result become those of the tensor."""
    if result.shape != t.shape:
        raise RuntimeError(f"in place the shape stays: {t.shape} cannot become {result.shape}")
    result = ops.convert(result, t.dtype)
    retained = t.retains_grad
    _write(t, result._data)
    t._node, t._needs = result._node, result._needs
    if retained and t._node is not None:
        t.retain_grad()
    return t


def _write(t: Tensor, value: Any) -> Tensor:
    if type(t._data) is float and np.ndim(value) == 0:
        t._data = float(value)
    elif t.on_device:
        _write_on_device(t, value)
    else:
        array = _writable(t)
        try:
            array[...] = value
        except ValueError:
            raise RuntimeError(f"a value of shape {np.shape(value)} does not fit a tensor of shape {t.shape}") from None
    cell_of(t).version += 1
    return t


def _write_on_device(t: Tensor, value: Any) -> None:
    """From a tensor there, broadcast, or from a number."""
    if getattr(value, "on_device", False) and value.shape != t.shape:
        value = Tensor(value).expand(*t.shape)._data
    elif isinstance(value, np.ndarray) and value.ndim:
        raise TypeError(f"a host array cannot be written into a tensor on {t.device}: move it with to()")
    t._data.assign(value)


def _plain(other: Any) -> Any:
    return other.detach() if isinstance(other, Tensor) else other


def _value(other: Any) -> Any:
    return other._data if isinstance(other, Tensor) else other


def _writable(t: Tensor) -> np.ndarray:
    from aotdiff.runtime.tensor import buffer

    array = buffer(t)
    if not array.flags.writeable:
        raise RuntimeError("this tensor shows memory that cannot be written: clone() gives a copy")
    return array
