"""What `aotdiff` offers of tensors; importing it also lets compiled functions take them."""

from aotdiff.runtime.engine import backward_all as backward
from aotdiff.runtime.engine import grad
from aotdiff.runtime.tensor import Tensor, from_numpy, tensor

__all__ = ["Tensor", "backward", "from_numpy", "grad", "tensor"]
