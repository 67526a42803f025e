"""Operators and reductions of tensors: compiled kernels, recorded like any other compiled call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from aotdiff.runtime import tensor_kernels as kernels
from aotdiff.runtime.convert import DTYPES
from aotdiff.runtime.function import Function
from aotdiff.runtime.gradmode import mode
from aotdiff.runtime.recorded import calls_of, record, reshaped
from aotdiff.runtime.tensor import Tensor, wrap

Shape = tuple[int, ...]
_F64, _F32, _I64, _BOOL = DTYPES["f64"], DTYPES["f32"], DTYPES["i64"], DTYPES["bool"]
_ELEMENTS = {_F64: "f64", _F32: "f32", _I64: "i64", _BOOL: "bool"}
_COMPARISONS = frozenset(["lt", "le", "gt", "ge", "eq", "ne"])
_NAMES = {"maximum": "larger", "minimum": "smaller"}  # in tensor.grad
_FLOATS_ONLY = frozenset(["div"])
_OWN = {"neg": "negative"}  # unary ones in tensor.grad; the others are built-ins
_TESTS = frozenset(["isnan", "isinf", "isfinite"])


# Operands --------------------------------------------------------------------------------------------------------


def _device(operands: Sequence[Any]) -> Any:
    """The device that the operands are on, None for the host."""
    for v in operands:
        data = v._data if type(v) is Tensor else v
        if type(data) is not float and type(data) is not np.ndarray and getattr(data, "on_device", False):
            from aotdiff.runtime.gpu.tensors import common

            return common(operands)
    return None


def _operand(value: Any) -> Any:
    """A tensor, or a Python number; None for what is neither."""
    if type(value) is Tensor or type(value) in (float, int, bool):
        return value
    if isinstance(value, np.generic):
        return Tensor(np.asarray(value))
    if isinstance(value, (np.ndarray, list, tuple)):
        array = np.array(value)
        return Tensor(array) if array.dtype.kind in "fiub" else None
    return None


def _common(operands: Sequence[Any]) -> np.dtype:
    """The dtype of an operation: Python numbers adapt to tensors."""
    kinds = [t.dtype for t in operands if type(t) is Tensor]
    for dtype in kinds:
        if dtype.kind not in "fiub" or dtype == np.float16:
            raise TypeError(f"tensors of {dtype} have no arithmetic: float64, float32, int64 and bool have")
    floats = [dtype for dtype in kinds if dtype.kind == "f"]
    if floats:
        return _F32 if all(dtype == _F32 for dtype in floats) else _F64
    if any(type(v) is float for v in operands):
        return _F64
    return _BOOL if all(d == _BOOL for d in kinds) and all(type(v) in (bool, Tensor) for v in operands) else _I64


def _cast(value: Any, dtype: np.dtype) -> Any:
    """An operand in the dtype of the operation."""
    if type(value) is not Tensor:
        return float(value) if dtype.kind == "f" else int(value)
    return value if value.dtype == dtype else convert(value, dtype)


def convert(t: Tensor, dtype: np.dtype) -> Tensor:
    """`Tensor.to`: recorded between float types."""
    if t.dtype == dtype:
        return t
    if t.dtype.kind == "f" and dtype in (_F64, _F32) and t.dtype in (_F64, _F32):
        name = "to_f64" if dtype == _F64 else "to_f32"
        return _elementwise(name, [t], (_ELEMENTS[t.dtype],), _ELEMENTS[dtype])
    if t.on_device:
        return Tensor(t._data.astype(dtype))
    return wrap(np.asarray(t._data).astype(dtype))


# Element by element ----------------------------------------------------------------------------------------------


_numbers: dict[str, Function] = {}  # kernels for float64 numbers, by operator


def _number(value: Any) -> bool:
    """Whether it is a float64 number of no dimensions, or a Python float."""
    return type(value) is float or (type(value) is Tensor and type(value._data) is float)


def binary(name: str, left: Any, right: Any, otherwise: Any = None) -> Any:
    """An operator of two operands with broadcasting; `otherwise` is given back for what is no operand."""
    if _number(left) and _number(right):
        f = _numbers.get(name)
        if f is not None:
            return f(left, right)
    a, b = _operand(left), _operand(right)
    if a is None or b is None:
        if otherwise is not None or a is None:
            return NotImplemented
        raise TypeError(f"{name} of a tensor and a {type(right).__name__} is not defined")
    dtype = _common((a, b))
    if dtype == _BOOL:
        dtype = _I64
    if dtype == _I64 and name in _FLOATS_ONLY:
        dtype = _F64
    a, b = _cast(a, dtype), _cast(b, dtype)
    element = _ELEMENTS[dtype]
    function = _NAMES.get(name, name)
    if dtype == _I64:
        function += "_i64"
    elif dtype == _F64 and _number(a) and _number(b) and name not in _COMPARISONS:
        _numbers[name] = kernels.elementwise(function, (), (element, element), element)
    return _elementwise(function, [a, b], (element, element), "bool" if name in _COMPARISONS else element)


def unary(name: str, t: Tensor) -> Tensor:
    """A function of each element."""
    f = _numbers.get(name) if type(t._data) is float else None
    if f is not None:
        return f(t)
    if t.dtype == _BOOL and name == "invert":
        return (t == False) if t.on_device else wrap(np.logical_not(t._data))  # noqa: E712
    dtype = _common((t,))
    if dtype.kind != "f":
        if name not in ("neg", "abs", "clone", "sign"):
            dtype = _F64
        elif dtype == _BOOL and name == "clone":
            return wrap(np.array(t._data))
    t = _cast(t, dtype)
    element = _ELEMENTS[dtype]
    function = _OWN.get(name, name)
    if dtype == _I64 and function in ("negative", "clone"):
        function += "_i64"
    elif _number(t) and name not in _TESTS:
        _numbers[name] = kernels.elementwise(function, (), (element,), element)
    return _elementwise(function, [t], (element,), "bool" if name in _TESTS else element)


def power(base: Any, exponent: Any) -> Any:
    """`**`; small whole exponents and 0.5 have kernels of their own."""
    a, b = _operand(base), _operand(exponent)
    if a is None or b is None:
        return NotImplemented
    if type(b) is Tensor or type(a) is not Tensor or a.dtype.kind != "f":
        return binary("power", a, b)
    element = _ELEMENTS[_common((a,))]
    if b in (2, 3, 4):
        return _elementwise(f"power_{int(b)}", [a], (element,), element)
    if b == 0.5:
        return _elementwise("power_half", [a], (element,), element)
    if b == int(b) if abs(b) < 1e9 else False:
        return _elementwise("power_integer", [a, int(b)], (element, "i64"), element)
    return binary("power", a, b)


def _elementwise(name: str, operands: list[Any], elements: tuple[str, ...], result: str) -> Tensor:
    shapes = tuple([v.shape if type(v) is Tensor else () for v in operands])
    out, roles, views = kernels.joined(shapes)
    device = _device(operands)
    f = kernels.elementwise(name, roles, elements, result, *(() if device is None else (device.kind,)))
    if views == shapes and out == tuple([n for n in out if n != 1]) and len(out) == len(roles):
        return f(*operands)  # nothing to reshape: a call like any other
    return _run(f, operands, views, out, result)


def _run(f: Function, operands: Sequence[Any], views: Any, out: Shape | None, result: str) -> Tensor:
    """Run a kernel on operands shown in the shapes `views`; the result has the shape `out`."""
    raw = []
    mask, bit = 0, 1
    for k, v in enumerate(operands):
        if type(v) is Tensor:
            if v._needs:
                mask |= bit
            v = v._data if views is None else reshaped(v._data, views[k])
        raw.append(v)
        bit <<= 1
    made = f(*raw)
    node = None
    if mask and mode.enabled and result[0] == "f":
        node = record(calls_of(f), mask, "f64", operands, views)
        if views is not None:
            node.shapes = _shapes(operands, views, mask, made)
    device = f.module.device
    if device is not None:
        from aotdiff.runtime.gpu.tensors import placed

        made = placed(device, made, DTYPES[result], np.shape(made) if out is None else out)
        return wrap(np.asarray(made, DTYPES[result]) if type(made) is float else made, node)
    if out is not None or result != "f64":
        made = np.asarray(made, DTYPES[result]).reshape(out or ())
    return wrap(made, node)


def _shapes(operands: Sequence[Any], views: Sequence[Shape], mask: int, made: Any) -> Any:
    """For going backward: shapes inside the kernel, of the tracked operands outside, of the result inside."""
    origins = [v.shape for k, v in enumerate(operands) if mask >> k & 1]
    return views, origins, np.shape(made)


# Reductions ------------------------------------------------------------------------------------------------------


def reduction(name: str, t: Tensor, axis: Any, keepdims: bool) -> Tensor:
    """`sum`, `mean` and so on, over all axes or some."""
    axes = _axes(axis, t.shape)
    dtype, result = _reduced_dtype(name, _common((t,)))
    t = _cast(t, dtype)
    shape = t.shape
    out = tuple([1 if k in axes else n for k, n in enumerate(shape) if keepdims or k not in axes])
    sizes, letters = kernels.grouped(shape, axes)
    if name in ("argmax", "argmin") and letters.count("r") != 1:
        if letters.count("r") > 1:
            raise ValueError(f"{name} takes one axis or none")
        return wrap(np.zeros(out, np.int64))
    if "r" not in letters:  # each element alone
        if result == "bool":
            return convert(t, _BOOL).reshape(out)
        return (t if dtype != _BOOL else convert(t, _I64)).clone().reshape(out)
    f = kernels.reduction(name, letters, _ELEMENTS[dtype], result, *((t.device,) if t.on_device else ()))
    return _run(f, [t], [sizes], out, result)


def _reduced_dtype(name: str, dtype: np.dtype) -> tuple[np.dtype, str]:
    """The dtype that a reduction works in, and the element type of its result."""
    if name in ("any", "all"):
        return _BOOL, "bool"
    if dtype == _BOOL:
        dtype = _I64
    if name == "mean" and dtype == _I64:
        dtype = _F64
    return dtype, "i64" if name in ("argmax", "argmin") else _ELEMENTS[dtype]


def _axes(axis: Any, shape: Shape) -> set[int]:
    if axis is None:
        return set(range(len(shape)))
    given = list(axis) if isinstance(axis, Iterable) else [axis]
    axes = set()
    for k in given:
        if not -len(shape) <= k < len(shape):
            raise IndexError(f"axis {k} of a tensor of shape {shape}")
        axes.add(k % len(shape))
    if len(axes) < len(given):
        raise ValueError(f"axis {axis} names an axis twice")
    return axes


# Products --------------------------------------------------------------------------------------------------------


def matmul(left: Any, right: Any) -> Any:
    """`@`: vectors, matrices, and stacks of matrices."""
    a, b = _operand(left), _operand(right)
    if type(a) is not Tensor or type(b) is not Tensor:
        return NotImplemented
    if not a.ndim or not b.ndim:
        raise ValueError(f"@ of shapes {a.shape} and {b.shape}: a number has no rows, use *")
    dtype = _common((a, b))
    if dtype.kind != "f":
        if _device((a, b)) is not None:
            raise TypeError(f"@ of tensors of {dtype} is for the host: convert them to floats")
        return wrap(np.asarray(a._data) @ np.asarray(b._data))
    a, b = _cast(a, dtype), _cast(b, dtype)
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(f"@ of shapes {a.shape} and {b.shape}: {a.shape[-1]} columns do not meet as many rows")
    element = _ELEMENTS[dtype]
    device = _device((a, b))
    place = () if device is None else (device.kind,)
    if a.ndim <= 2 and b.ndim <= 2:
        letters = {(1, 1): "vv", (2, 1): "mv", (1, 2): "vm", (2, 2): "mm"}[a.ndim, b.ndim]
        f = kernels.on_arrays(f"dot_{letters}", element, *place)
        return _run(f, [a, b], None, _product_shape(a, b), element)
    return _batched(a, b, element, place)


def _product_shape(a: Tensor, b: Tensor) -> Shape:
    return (*a.shape[:-1], *(b.shape[:-2] if b.ndim > 1 else ()), *(b.shape[-1:] if b.ndim > 1 else ()))


def _batched(a: Tensor, b: Tensor, element: str, place: tuple[str, ...]) -> Tensor:
    row, column = a.ndim == 1, b.ndim == 1
    if row:
        a = a.reshape(1, -1)
    if column:
        b = b.reshape(-1, 1)
    batch = kernels.broadcast([a.shape[:-2], b.shape[:-2]])
    inner = [a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])]
    count = int(np.prod(batch))
    flat = [t.reshape(count, *t.shape[-2:]) for t in inner]
    f = kernels.on_arrays("dot_batch", element, *place)
    made = _run(f, flat, None, (count, a.shape[-2], b.shape[-1]), element)
    tail = ([] if row else [a.shape[-2]]) + ([] if column else [b.shape[-1]])
    return made.reshape(*batch, *tail)
