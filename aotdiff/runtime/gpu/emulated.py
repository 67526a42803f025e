"""The emulated device: kernels run on this machine's processor, in ways that show what a GPU would only show sometimes.

- Fresh memory is NaN (all bits set), with guard zones around it that are looked at when it is freed.
- Threads of a block run forward, reversed or in random order between barriers, blocks in random order and on two
  threads of the operating system; where some threads of a block reach a barrier and others their end, that is an error.
- Work waits in its stream until somebody needs it, and then runs in as odd an order as streams and events allow.

`AOTDIFF_EMULATED_SEED` chooses the orders; without it they differ from process to process.
"""

from __future__ import annotations

import ctypes
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from aotdiff.codegen.loader import load
from aotdiff.runtime.errors import DeviceError
from aotdiff.runtime.gpu.streams import handle_of

_GUARD = 64
_WAITING = 500  # pieces of work in a stream at most
_MARK = 0xA5
_SLOTS = {np.float64: np.float64, np.float32: np.float32, np.int64: np.int64, np.int8: np.int8}
_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64
_ENTRY = ctypes.CFUNCTYPE(_LONG, _POINTER, _POINTER, _LONG, _POINTER, _LONG, _LONG)


class EmulatedBuffer:
    """Memory with guard zones."""

    __slots__ = ("_memory", "_start", "freed", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.freed = False
        try:
            self._memory = np.full(nbytes + 3 * _GUARD, 0xFF, np.uint8)
        except (MemoryError, ValueError):
            raise MemoryError(f"no memory for {nbytes} bytes on the emulated device") from None
        self._start = _GUARD + -self._memory.ctypes.data % _GUARD
        self._memory[: self._start] = _MARK
        self._memory[self._start + nbytes :] = _MARK

    @property
    def pointer(self) -> int:
        return self._memory.ctypes.data + self._start

    def bytes(self, offset: int, count: int) -> np.ndarray:
        if self.freed or offset < 0 or offset + count > self.nbytes:
            raise DeviceError(f"bytes {offset} to {offset + count} of a buffer of {self.nbytes}, freed: {self.freed}")
        return self._memory[self._start + offset : self._start + offset + count]

    def free(self) -> None:
        """Look at the guard zones; what uses the memory from now on finds NaN."""
        outside = (self._memory[: self._start], self._memory[self._start + self.nbytes :])
        if self.freed or any((zone != _MARK).any() for zone in outside):
            raise DeviceError("a buffer freed twice" if self.freed else "a kernel wrote outside its buffer")
        self.freed = True
        self._memory[:] = 0xFF


class _Foreign(EmulatedBuffer):
    """Memory of somebody else, who is kept alive."""

    __slots__ = ("_owner",)

    def __init__(self, pointer: int, nbytes: int, owner: Any) -> None:
        self.nbytes = nbytes
        self.freed = False
        self._start = 0
        self._owner = owner
        self._memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))

    @property
    def pointer(self) -> int:
        return self._memory.ctypes.data


class EmulatedStream:
    """A stream besides the default one, which is None."""

    def __init__(self, device: EmulatedDevice, handle: int) -> None:
        self.device = device
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def wait(self, other: Any) -> None:
        """What is put into this stream from now on comes after what is in the other now."""
        self.device.wait(self, self.device.record(other))

    def synchronize(self) -> None:
        self.device.synchronize(self)


class _Kernel:
    """A driver, and the code it is in."""

    __slots__ = ("call", "code", "name")

    def __init__(self, name: str, code: Any) -> None:
        self.name = name
        self.code = code
        self.call = _ENTRY(code.address(name))


class _Event:
    __slots__ = ("done", "stream")

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.done = False


Work = Callable[[], None] | _Event | tuple[_Event]  # something to do, an event that happens, one to wait for


class EmulatedDevice:
    """See the module; `lazy`: work waits until it is needed."""

    kind = "emulated"

    def __init__(self, seed: int | None = None, lazy: bool = True) -> None:
        asked = os.environ.get("AOTDIFF_EMULATED_SEED")
        self.random = random.Random(int(asked) if seed is None and asked else seed)
        self.lazy = lazy
        self._lock = threading.RLock()
        self._queues: dict[Any, deque[Work]] = {}
        self._handles: dict[int, Any] = {0: None, 1: None}
        self._pool: ThreadPoolExecutor | None = None
        self._orders: dict[int, list[np.ndarray]] = {}

    def new_stream(self) -> EmulatedStream:
        with self._lock:
            made = EmulatedStream(self, 100 + len(self._handles))
            self._handles[made.handle] = made
        return made

    def stream(self, given: Any) -> Any:
        """A stream for None or a handle (0 and 1 are the default stream), or the stream itself."""
        if given is None or isinstance(given, EmulatedStream):
            return given
        handle = handle_of(given)
        if handle not in self._handles:
            raise ValueError(f"the emulated device has no stream with the handle {handle}")
        return self._handles[handle]

    def handle(self, stream: Any) -> int:
        return 1 if stream is None else stream.handle

    def foreign(self, pointer: int, nbytes: int, owner: Any) -> EmulatedBuffer:
        """Another library's memory as a buffer."""
        return _Foreign(pointer, nbytes, owner)

    def hold(self, owner: Any, streams: Sequence[Any]) -> None:
        """Keep somebody alive until all that is in these streams now is done."""
        for stream in streams:
            self._put(stream, lambda: owner and None)

    @property
    def dlpack_device(self) -> tuple[int, int]:
        raise BufferError("memory of the emulated device is not for other libraries: cpu() copies it")

    def dlpack(self, array: Any, **options: Any) -> Any:
        return self.dlpack_device

    # Kernels ----------------------------------------------------------------------------------------------

    def load(self, code: bytes, names: Sequence[str]) -> dict[str, _Kernel]:
        loaded = load(code)
        return {name: _Kernel(name, loaded) for name in names}

    def launch(self, kernel: _Kernel, blocks: int, threads: int, args: Sequence[Any], stream: Any) -> None:
        held = list(args)
        self._put(stream, lambda: self._run(kernel, blocks, threads, held))

    def _run(self, kernel: _Kernel, blocks: int, threads: int, args: list[Any]) -> None:
        slots = np.zeros(max(len(args), 1), np.int64)
        for k, arg in enumerate(args):
            if isinstance(arg, EmulatedBuffer):
                arg.bytes(0, 0)
                slots[k] = arg.pointer
            else:
                slots[k : k + 1].view(_SLOTS[type(arg)])[0] = arg
        order = np.array(self.random.sample(range(blocks), blocks), np.int64)
        orders = self._orders_of(threads)
        call, rounds = kernel.call, len(orders) // threads

        def part(chosen: np.ndarray) -> int:
            return call(slots.ctypes.data, chosen.ctypes.data, len(chosen), orders.ctypes.data, rounds, blocks)

        if blocks == 1:
            code = part(order)
        else:
            half = self._helper().submit(part, order[: blocks // 2])
            code = part(order[blocks // 2 :]) or half.result()
            half.result()
        if code:
            raise DeviceError(f"kernel {kernel.name}: only some threads of a block reached a barrier")

    def _helper(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1)
        return self._pool

    def _orders_of(self, threads: int) -> np.ndarray:
        """Permutations of the threads, for one round each: forward, reversed and random ones, shuffled."""
        known = self._orders.get(threads)
        if known is None:
            forward = np.arange(threads, dtype=np.int64)
            known = self._orders[threads] = []
            for _ in range(6):
                rows = [forward, forward[::-1]]
                rows += [np.array(self.random.sample(range(threads), threads), np.int64) for _ in range(2)]
                self.random.shuffle(rows)
                known.append(np.concatenate(rows))
        return self.random.choice(known)

    # Memory -----------------------------------------------------------------------------------------------

    def alloc(self, nbytes: int, stream: Any) -> EmulatedBuffer:
        return EmulatedBuffer(nbytes)

    def free(self, buffer: EmulatedBuffer, stream: Any) -> None:
        self._put(stream, buffer.free)

    def copy_in(self, buffer: EmulatedBuffer, offset: int, data: np.ndarray, stream: Any) -> None:
        raw = np.frombuffer(data.tobytes(), np.uint8)

        def work() -> None:
            buffer.bytes(offset, len(raw))[:] = raw

        self._put(stream, work)

    def copy_out(self, data: np.ndarray, buffer: EmulatedBuffer, offset: int, stream: Any) -> None:
        self.synchronize(stream)
        if data.nbytes:
            data.reshape(-1).view(np.uint8)[:] = buffer.bytes(offset, data.nbytes)

    def copy(
        self, to: EmulatedBuffer, to_offset: int, source: EmulatedBuffer, offset: int, nbytes: int, stream: Any
    ) -> None:
        def work() -> None:
            to.bytes(to_offset, nbytes)[:] = source.bytes(offset, nbytes)

        self._put(stream, work)

    def fill(self, buffer: EmulatedBuffer, offset: int, value: np.generic, count: int, stream: Any) -> None:
        def work() -> None:
            buffer.bytes(offset, count * value.nbytes).view(value.dtype)[:] = value

        self._put(stream, work)

    # Streams ----------------------------------------------------------------------------------------------

    def record(self, stream: Any) -> _Event:
        event = _Event(stream)
        self._put(stream, event)
        return event

    def wait(self, stream: Any, event: _Event) -> None:
        self._put(stream, (event,))

    def synchronize(self, stream: Any) -> None:
        with self._lock:
            queue = self._queues.get(stream)
            while queue:
                others = [s for s, q in self._queues.items() if q and s != stream]
                ahead = bool(others) and self.random.random() < 0.2
                self._advance(self.random.choice(others) if ahead else stream)

    def _put(self, stream: Any, work: Work) -> None:
        with self._lock:
            queue = self._queues.setdefault(stream, deque())
            queue.append(work)
            if not self.lazy:
                self.synchronize(stream)
            while len(queue) > _WAITING:  # what waits holds memory
                self._advance(stream)

    def _advance(self, stream: Any) -> None:
        """One step of a stream, or of the one that it waits for."""
        queue = self._queues[stream]
        work = queue[0]
        if isinstance(work, tuple):
            if not work[0].done:
                self._advance(work[0].stream)
                return
        queue.popleft()
        if isinstance(work, _Event):
            work.done = True
        elif not isinstance(work, tuple):
            work()


_device: EmulatedDevice | None = None


def device() -> EmulatedDevice:
    """The emulated device of this process."""
    global _device
    if _device is None:
        _device = EmulatedDevice()
    return _device
