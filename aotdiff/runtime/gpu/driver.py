"""Whether there is a GPU: asked of the driver itself, before anything that assumes one is touched.

Without a driver, objects of `cuda.core` fail in ways that no caller can handle; the three questions here take 0.1 ms.
This module needs the standard library alone: written-out modules carry a copy.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_found = 0


def count(error: type[Exception]) -> int:
    """How many GPUs there are, at least one; else `error`, which says which of the three questions failed."""
    global _found
    if not _found:
        _found = _ask(error)
    return _found


def _ask(error: type[Exception]) -> int:
    hint = 'compiling and --emit ptx work without one, calls do not; target="cpu" runs here'
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as reason:
        raise error(f"no NVIDIA driver: {_LIBRARY} cannot be loaded ({reason}); {hint}") from None
    code = library.cuInit(0)
    if code:
        raise error(f"the NVIDIA driver does not start: cuInit(0) gave {code}{_text(library, code)}; {hint}")
    number = ctypes.c_int(0)
    code = library.cuDeviceGetCount(ctypes.byref(number))
    if code:
        raise error(f"the NVIDIA driver does not count its GPUs: cuDeviceGetCount gave {code}{_text(library, code)}")
    if number.value < 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
        raise error(f"no NVIDIA GPU: cuDeviceGetCount gave 0{shown}; {hint}")
    return number.value


def version() -> str:
    """The newest CUDA version that the driver knows, such as 12.4; empty if it does not say."""
    number = ctypes.c_int(0)
    try:
        ctypes.CDLL(_LIBRARY).cuDriverGetVersion(ctypes.byref(number))
    except OSError:
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}" if number.value else ""


def _text(library: Any, code: int) -> str:
    """The driver's own words for an error."""
    text = ctypes.c_char_p()
    try:
        library.cuGetErrorString(code, ctypes.byref(text))
    except AttributeError:
        return ""
    return f" ({text.value.decode()})" if text.value else ""
