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
        self.stream = s

    def __enter__(self) -> Any:
        _streams.stack.append(self.stream)
        return self.stream

    def __exit__(self, *error: Any) -> None:
        _streams.stack.pop()


def current() -> Any:
    """The stream of the innermost block, None where there is none."""
    return _streams.stack[-1] if _streams.stack else None
