"""What `aotdiff` offers of tensors; importing it also lets compiled functions take them."""

from aotdiff.runtime.tensor import Tensor, from_numpy, tensor  # first: it brings in the others in the right order

from aotdiff.runtime.engine import backward_all as backward  # isort: skip
from aotdiff.runtime.engine import grad  # isort: skip

__all__ = ["Tensor", "backward", "from_numpy", "grad", "tensor"]
