"""What a device does for the executor of plans. `emulated` implements it on this machine's processor.

Work is ordered within a stream only; across streams, events order it. Nothing but `copy_out` and `synchronize` makes
the host wait. A stream is whatever the device takes for one; None is its default stream. This module needs the
standard library and numpy alone: written-out modules carry a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Buffer(Protocol):
    """Device memory. `pointer` is its address there, `nbytes` its size."""

    @property
    def pointer(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class Device(Protocol):
    """One device. Sizes and offsets are in bytes."""

    def load(self, code: bytes, names: Sequence[str]) -> dict[str, Any]:
        """Kernels of a module of code, by name, as `launch` takes them. `code` is what the device's target emits."""
        ...

    def alloc(self, nbytes: int, stream: Any) -> Buffer:
        """Memory for work in this stream, contents undefined, perhaps 0 bytes; `MemoryError` if there is none."""
        ...

    def free(self, buffer: Buffer, stream: Any) -> None:
        """Give memory back once what is in the stream now is done."""
        ...

    def copy_in(self, buffer: Buffer, offset: int, data: np.ndarray, stream: Any) -> None:
        """Host to device; `data` (C-contiguous) may be changed as soon as this returns."""
        ...

    def copy_out(self, data: np.ndarray, buffer: Buffer, offset: int, stream: Any) -> None:
        """Device to host, into `data` (C-contiguous); the host waits."""
        ...

    def copy(self, to: Buffer, to_offset: int, source: Buffer, offset: int, nbytes: int, stream: Any) -> None:
        """Device to device; the ranges do not overlap."""
        ...

    def fill(self, buffer: Buffer, offset: int, value: np.generic, count: int, stream: Any) -> None:
        """`count` times the bytes of a numpy scalar of 1, 4 or 8 bytes."""
        ...

    def launch(self, kernel: Any, blocks: int, threads: int, args: Sequence[Any], stream: Any) -> None:
        """Run a kernel on blocks > 0 of so many threads. Arguments are buffers, or numpy scalars of the parameter's
        type (bool as np.int8)."""
        ...

    def record(self, stream: Any) -> Any:
        """An event that happens when all that is in the stream now is done."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """Work put into the stream from now on comes after the event. The host does not wait."""
        ...

    def synchronize(self, stream: Any) -> None:
        """Wait for all work in the stream; raise what went wrong on the device, a `DeviceError`."""
        ...
