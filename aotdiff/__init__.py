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
    from aotdiff.frontend.diagnostics import CompileError
    from aotdiff.runtime.errors import AssertionFailed, DeviceError
    from aotdiff.runtime.function import Function
    from aotdiff.runtime.gradcheck import GradcheckError, gradcheck
    from aotdiff.runtime.module import Module, compile, compile_source, load
    from aotdiff.runtime.native import set_num_threads

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
}

__all__ = [
    "AssertionFailed",
    "CompileError",
    "DeviceError",
    "Function",
    "GradcheckError",
    "Module",
    "compile",
    "compile_source",
    "gradcheck",
    "load",
    "set_num_threads",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'aotdiff' has no attribute {name!r}")
    value = getattr(import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
