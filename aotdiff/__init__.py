"""aotdiff: mathematics in a `.grad` file, native code for it and its derivatives of any order.

    import aotdiff as ad
    m = ad.compile("model.grad")
    value, gradient = m.loss.value_and_grad()(x)

Names are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aotdiff import interop
    from aotdiff.frontend.diagnostics import CompileError
    from aotdiff.runtime.engine import backward_all as backward
    from aotdiff.runtime.engine import grad
    from aotdiff.runtime.errors import AssertionFailed, DeviceError
    from aotdiff.runtime.function import Function
    from aotdiff.runtime.gpu.streams import stream
    from aotdiff.runtime.gradcheck import GradcheckError, gradcheck
    from aotdiff.runtime.gradmode import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
    from aotdiff.runtime.module import Module, compile, compile_source, load
    from aotdiff.runtime.native import set_num_threads
    from aotdiff.runtime.tensor import Tensor, from_numpy, tensor

_PLACES = {
    "CompileError": "aotdiff.frontend.diagnostics",
    "AssertionFailed": "aotdiff.runtime.errors",
    "DeviceError": "aotdiff.runtime.errors",
    "Function": "aotdiff.runtime.function",
    "GradcheckError": "aotdiff.runtime.gradcheck",
    "gradcheck": "aotdiff.runtime.gradcheck",
    "Module": "aotdiff.runtime.module",
    "compile": "aotdiff.runtime.module",
    "compile_source": "aotdiff.runtime.module",
    "load": "aotdiff.runtime.module",
    "set_num_threads": "aotdiff.runtime.native",
    "Tensor": "aotdiff.runtime.tensors",
    "from_numpy": "aotdiff.runtime.tensors",
    "stream": "aotdiff.runtime.gpu.streams",
    "tensor": "aotdiff.runtime.tensors",
    "grad": "aotdiff.runtime.tensors",
    "backward": "aotdiff.runtime.tensors",
    "enable_grad": "aotdiff.runtime.gradmode",
    "is_grad_enabled": "aotdiff.runtime.gradmode",
    "no_grad": "aotdiff.runtime.gradmode",
    "set_grad_enabled": "aotdiff.runtime.gradmode",
}

__all__ = [
    "AssertionFailed",
    "CompileError",
    "DeviceError",
    "Function",
    "GradcheckError",
    "Module",
    "Tensor",
    "backward",
    "compile",
    "compile_source",
    "enable_grad",
    "from_numpy",
    "grad",
    "gradcheck",
    "interop",
    "is_grad_enabled",
    "load",
    "no_grad",
    "set_grad_enabled",
    "set_num_threads",
    "stream",
    "tensor",
]


def __getattr__(name: str) -> Any:
    if name == "interop":
        return import_module("aotdiff.interop")
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'aotdiff' has no attribute {name!r}")
    value = getattr(import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
