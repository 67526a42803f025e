"""The devices of this process by the name of their target, made when they are first needed."""

from __future__ import annotations

import threading
from typing import Any

_lock = threading.Lock()
_made: dict[str, Any] = {}


def device(kind: str) -> Any:
    """The device of the target "cuda" or "emulated"; a `DeviceError` where there is none."""
    found = _made.get(kind)
    if found is None:
        if kind not in ("cuda", "emulated"):
            raise ValueError(f'a device is "cpu", "cuda" or "emulated", not {kind!r}')
        with _lock:
            found = _made.get(kind)
            if found is None:
                found = _made[kind] = _make(kind)
    return found


def _make(kind: str) -> Any:
    if kind == "cuda":
        from aotdiff.runtime.gpu.cuda import CudaDevice

        return CudaDevice()
    from aotdiff.runtime.gpu import emulated

    return emulated.device()
