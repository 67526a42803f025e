"""NVIDIA's libdevice: mathematics for GPUs as LLVM bitcode, from the wheel `nvidia-nvvm` or a CUDA toolkit."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

# Functions of the maths library that the emitter calls, by their libdevice name without `__nv_`; f32 adds an `f`
FUNCTIONS = frozenset([
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "erf", "erfc", "exp", "expm1",
    "fmod", "hypot", "lgamma", "log", "log10", "log1p", "log2", "pow", "sin", "sinh", "tan", "tanh",
])  # fmt: skip


class MissingLibdevice(Exception):
    """PTX of functions that are in libdevice was wanted, and there is none on this machine."""


def symbol(name: str, kind: str) -> str:
    """The libdevice function for a function of the maths library."""
    if name not in FUNCTIONS:
        raise KeyError(f"{name} is not in the table of GPU mathematics")
    return f"__nv_{name}" if kind == "f64" else f"__nv_{name}f"


@functools.cache
def find() -> Path | None:
    """The file, if there is one."""
    try:
        from cuda.pathfinder import find_bitcode_lib  # pyright: ignore[reportMissingImports]

        return Path(find_bitcode_lib("device"))
    except Exception:  # not installed, or it knows of none
        return _in_wheel()


def _in_wheel() -> Path | None:
    """Where the wheel puts it, for those who have it without `cuda.pathfinder`."""
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    for place in places:
        for file in sorted(Path(place).glob("*/nvvm/libdevice/libdevice.*.bc"), reverse=True):
            return file
    return None


@functools.cache
def bitcode() -> bytes:
    """Its contents."""
    file = find()
    if file is None:
        raise MissingLibdevice("no libdevice on this machine")
    return file.read_bytes()


def missing(symbols: list[str]) -> MissingLibdevice:
    """The error for code that needs these functions."""
    shown = ", ".join(s.removeprefix("__nv_") for s in sorted(symbols)[:6]) + (", ..." if len(symbols) > 6 else "")
    return MissingLibdevice(
        f"PTX of {shown} needs NVIDIA's libdevice, which is not installed: `pip install nvidia-nvvm` "
        "(or `pip install aotdiff[cuda]`); functions of arithmetic, sqrt, abs, floor, min and max alone do without it"
    )
