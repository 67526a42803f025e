"""Compiled functions inside other libraries, each imported only when asked for.

    g = ad.interop.torch(f)         # a torch function with autograd, to any order
    g = ad.interop.jax(f)           # a jax function with grad, jvp, jit and vmap, to any order

SciPy takes functions as they are (`minimize(f.value_and_grad(), x0, jac=True, hessp=f.hvp())`), numba `f.cfunc`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aotdiff.runtime.function import Function

__all__ = ["jax", "torch"]


def torch(f: Function) -> Callable[..., Any]:
    """The function on torch tensors (in CPU memory, used in place), recorded by torch's autograd.

    Backward calls `f.vjp`, again as a torch function, so derivatives of any order work; forward mode and `torch.func`
    too. Numbers are taken for scalar parameters; results are tensors, integers and bools included.
    """
    from aotdiff.runtime.interop_torch import wrap

    return wrap(f)


def jax(f: Function) -> Callable[..., Any]:
    """The function on jax arrays: `grad`, `jvp`, `jit`, `vmap` and what is made of them work, to any order.

    A call goes to the host (CPU). i64 and bool scalars are static: Python values, not traced ones. Functions of f64
    need `jax.config.update("jax_enable_x64", True)`.
    """
    from aotdiff.runtime.interop_jax import wrap

    return wrap(f)
