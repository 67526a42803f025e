"""The stream that calls on a device put their work on: a setting of the thread."""

from __future__ import annotations

import threading
from typing import Any


class _Streams(threading.local):
    def __init__(self) -> None:
        self.stack: list[Any] = []


_streams = _Streams()


class stream:
    """`with ad.stream(s):` calls inside put their work on the stream `s`.

    `s` is None (the default stream), a handle, or an object with `__cuda_stream__`; streams of numba, cupy and torch
    are such objects. Nothing waits on entering or leaving: results that are used on another stream through aotdiff or
    through `__dlpack__` and `__cuda_array_interface__` are ordered by events.
    """

    def __init__(self, s: Any) -> None:
        handle_of(s)
        self.stream = s

    def __enter__(self) -> Any:
        _streams.stack.append(self.stream)
        return self.stream

    def __exit__(self, *error: Any) -> None:
        _streams.stack.pop()


def handle_of(s: Any) -> int:
    """The handle of a stream (0 for None); a `TypeError` where it is none."""
    if s is None:
        return 0
    if hasattr(s, "__cuda_stream__"):
        return s.__cuda_stream__()[1]
    if isinstance(s, int) and not isinstance(s, bool):
        if s < 0:
            raise ValueError(f"no stream has the handle {s}")
        return s
    for name in ("cuda_stream", "ptr"):
        handle = getattr(s, name, None)
        if type(handle) is int:
            return handle
    raise TypeError(f"a stream is None, a handle, or an object with __cuda_stream__, not a {type(s).__name__}")


def current() -> Any:
    """The stream of the innermost block, None where there is none."""
    return _streams.stack[-1] if _streams.stack else None
