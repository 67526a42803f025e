"""The methods of tensors that compute: operators, reductions, views, changes in place.

They say what there is; how it is done is in `tensor_ops`, `tensor_views` and `tensor_inplace`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from aotdiff.runtime.tensor import Tensor


class Later:
    """A module that builds on tensors: imported when something of it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(f"aotdiff.runtime.{self._name}"), attribute)
        self.__dict__[attribute] = found
        return found


_devices: Any = Later("gpu.tensors")
_inplace: Any = Later("tensor_inplace")
_ops: Any = Later("tensor_ops")
_views: Any = Later("tensor_views")


class Methods:
    """What `Tensor` inherits."""

    __slots__ = ()

    # Arithmetic ----------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Tensor:
        return _ops.binary("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _ops.binary("add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return _ops.binary("sub", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _ops.binary("sub", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _ops.binary("mul", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _ops.binary("mul", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return _ops.binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _ops.binary("div", other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return _ops.binary("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return _ops.binary("floordiv", other, self)

    def __mod__(self, other: Any) -> Tensor:
        return _ops.binary("mod", self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return _ops.binary("mod", other, self)

    def __pow__(self, other: Any) -> Tensor:
        return _ops.power(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _ops.power(other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return _ops.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _ops.matmul(other, self)

    def __neg__(self) -> Tensor:
        return _ops.unary("neg", self)

    def __pos__(self: Any) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return _ops.unary("abs", self)

    def __lt__(self, other: Any) -> Tensor:
        return _ops.binary("lt", self, other)

    def __le__(self, other: Any) -> Tensor:
        return _ops.binary("le", self, other)

    def __gt__(self, other: Any) -> Tensor:
        return _ops.binary("gt", self, other)

    def __ge__(self, other: Any) -> Tensor:
        return _ops.binary("ge", self, other)

    def __eq__(self, other: Any) -> Any:
        return _ops.binary("eq", self, other, NotImplemented)

    def __ne__(self, other: Any) -> Any:
        return _ops.binary("ne", self, other, NotImplemented)

    def __invert__(self) -> Tensor:
        return _ops.unary("invert", self)

    def pow(self, exponent: Any) -> Tensor:
        return _ops.power(self, exponent)

    def matmul(self, other: Any) -> Tensor:
        return _ops.matmul(self, other)

    dot = mm = mv = matmul

    def maximum(self, other: Any) -> Tensor:
        """The larger of each pair of elements; a tie is shared equally by the derivative."""
        return _ops.binary("maximum", self, other)

    def minimum(self, other: Any) -> Tensor:
        """The smaller of each pair of elements."""
        return _ops.binary("minimum", self, other)

    def clone(self) -> Tensor:
        """A copy with its own buffer; gradient flows through."""
        return _ops.unary("clone", self)

    def to(self, where: Any) -> Tensor:
        """The same numbers as another dtype, or on another device ("cpu", "cuda"); gradient flows through."""
        if type(where) is str and where in ("cpu", "cuda", "emulated"):
            return _devices.to_device(self, where)
        return _ops.convert(self, np.dtype(where))

    astype = to

    def cpu(self) -> Tensor:
        """In host memory, which waits for it; the tensor itself if it is there."""
        return _devices.to_device(self, "cpu")

    # Reductions ----------------------------------------------------------------------------------------------

    def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return _ops.reduction("sum", self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return _ops.reduction("mean", self, axis, keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return _ops.reduction("prod", self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """The derivative goes to the first of equal elements."""
        return _ops.reduction("max", self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return _ops.reduction("min", self, axis, keepdims)

    def any(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return _ops.reduction("any", self, axis, keepdims)

    def all(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return _ops.reduction("all", self, axis, keepdims)

    def argmax(self, axis: int | None = None) -> Tensor:
        return _ops.reduction("argmax", self, axis, False)

    def argmin(self, axis: int | None = None) -> Tensor:
        return _ops.reduction("argmin", self, axis, False)

    # Views ---------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Tensor:
        return _views.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _inplace.setitem(self, index, value)

    @property
    def T(self: Any) -> Tensor:
        return _views.permute(self, tuple(reversed(range(self.ndim))))

    def t(self: Any) -> Tensor:
        if self.ndim > 2:
            raise RuntimeError(f"t() is for at most two dimensions, this tensor has shape {self.shape}")
        return self.T

    def permute(self, *axes: Any) -> Tensor:
        return _views.permute(self, _views.sizes_of(axes))

    def transpose(self, first: int, second: int) -> Tensor:
        return _views.swap(self, first, second)

    def reshape(self, *shape: Any) -> Tensor:
        """A view where the layout allows it, else a copy."""
        return _views.reshape(self, _views.sizes_of(shape))

    view = reshape

    def flatten(self) -> Tensor:
        return _views.reshape(self, (-1,))

    def squeeze(self, axis: int | None = None) -> Tensor:
        return _views.squeeze(self, axis)

    def unsqueeze(self, axis: int) -> Tensor:
        return _views.unsqueeze(self, axis)

    def expand(self, *shape: Any) -> Tensor:
        """A view broadcast to a larger shape."""
        return _views.expand(self, _views.sizes_of(shape))

    broadcast_to = expand

    def contiguous(self: Any) -> Tensor:
        return self if self.is_contiguous() else self.clone()

    # In place ------------------------------------------------------------------------------------------------

    def add_(self, other: Any) -> Tensor:
        return _inplace.change(self, "add", other)

    def sub_(self, other: Any) -> Tensor:
        return _inplace.change(self, "sub", other)

    def mul_(self, other: Any) -> Tensor:
        return _inplace.change(self, "mul", other)

    def div_(self, other: Any) -> Tensor:
        return _inplace.change(self, "div", other)

    def copy_(self, source: Any) -> Tensor:
        return _inplace.copy(self, source)

    def fill_(self, value: Any) -> Tensor:
        return _inplace.fill(self, value)

    def zero_(self) -> Tensor:
        return _inplace.fill(self, 0)

    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_


def _unary(name: str) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor) -> Tensor:
        return _ops.unary(name, self)

    method.__name__ = name
    method.__doc__ = f"`{name}` of each element."
    return method


UNARY = (
    "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "cbrt", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "abs", "sign", "floor", "ceil", "round", "erf", "erfc",
    "lgamma", "digamma", "sigmoid", "softplus", "relu", "isnan", "isinf", "isfinite", "neg",
)  # fmt: skip
for _name in UNARY:
    setattr(Methods, _name, _unary(_name))
