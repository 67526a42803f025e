"""What the emulated device shows: missing barriers and waits, memory misused, threads that go different ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from aotdiff.codegen import driver
from aotdiff.codegen.bufferize import Flow
from aotdiff.codegen.gpu.emulated import EmulatedTarget
from aotdiff.codegen.gpu.kernels import Fold, KernelEmitter, KernelModule

import aotdiff as ad
from aotdiff.ir.graph import Module
from aotdiff.runtime.errors import DeviceError
from aotdiff.runtime.gpu.emulated import EmulatedDevice

Write = Callable[[KernelEmitter], None]


class Handmade(KernelEmitter):
    """A kernel of one pointer `%out`, with 256 threads, written by a function."""

    def __init__(self, module: KernelModule, write: Write):
        super().__init__(module, Fold("handmade", ()), Flow({}, set(), {}, {}))
        self.write = write

    def _fold(self, spec: Fold) -> None:
        self._pass("ptr %out", "ptr")
        self._stop_if_failed()
        self.write(self)
        self.jump("end")
        self.start("end")
        self.target.leave(self)


def launch(write: Write, device: EmulatedDevice, words: int, blocks: int = 1, start: float = 0.0) -> np.ndarray:
    """What the kernel leaves in an array of doubles."""
    module = KernelModule(Module(), EmulatedTarget(), driver.Options(opt=1))
    kernel = module._write(Handmade(module, write))
    code = driver.loadable(module.text(), driver.Options(opt=1))
    entry = device.load(code, [kernel.name])[kernel.name]
    out, errors = device.alloc(8 * words, None), device.alloc(128, None)
    device.fill(out, 0, np.float64(start), words, None)
    device.fill(errors, 0, np.int64(0), 16, None)
    device.launch(entry, blocks, kernel.block, [out, errors], None)
    found = np.empty(words)
    device.copy_out(found, out, 0, None)
    device.free(out, None)
    device.free(errors, None)
    device.synchronize(None)
    return found


def _pass_on(ke: KernelEmitter, barrier: bool) -> None:
    """Thread t writes t into shared memory and reads what thread 255 - t wrote."""
    room, thread = ke.in_block("double", 256, 8), ke.target.thread(ke)
    own = ke.op(f"getelementptr double, ptr {room}, i64 {thread}")
    ke.store("double", ke.op(f"sitofp i64 {thread} to double"), own)
    if barrier:
        ke.barrier()
    other = ke.op(f"sub i64 255, {thread}")
    value = ke.load("double", ke.op(f"getelementptr double, ptr {room}, i64 {other}"))
    ke.store("double", value, ke.op(f"getelementptr double, ptr %out, i64 {thread}"))
    if not barrier:
        ke.barrier()  # the same kind of kernel, too late


def test_a_barrier_orders() -> None:
    found = launch(lambda ke: _pass_on(ke, True), EmulatedDevice(1), 256)
    np.testing.assert_array_equal(found, np.arange(256.0)[::-1])


def test_a_missing_barrier_is_seen() -> None:
    """Shared memory starts as NaN: who reads before the other wrote gets that."""
    found = launch(lambda ke: _pass_on(ke, False), EmulatedDevice(1), 256)
    assert np.isnan(found).any()


def test_threads_that_part_at_a_barrier() -> None:
    def write(ke: KernelEmitter) -> None:
        some, on = ke.label("some"), ke.label("on")
        ke.branch(ke.op(f"icmp ult i64 {ke.target.thread(ke)}, 17"), some, on)
        ke.start(some)
        ke.barrier()
        ke.jump(on)
        ke.start(on)

    with pytest.raises(DeviceError, match="only some threads of a block reached a barrier"):
        launch(write, EmulatedDevice(2), 1)


def test_atomics_on_two_threads() -> None:
    """256 x 400 additions to one number: all there with atomics."""

    def write(ke: KernelEmitter) -> None:
        ke.target.atomic_add(ke, "double", "%out", "0x3FF0000000000000")

    found = launch(write, EmulatedDevice(3), 1, 400)
    assert found[0] == 256 * 400


def test_orders_differ() -> None:
    """The last thread to store wins: not always the same one."""

    def write(ke: KernelEmitter) -> None:
        ke.store("double", ke.op(f"sitofp i64 {ke.target.thread(ke)} to double"), "%out")

    assert len({launch(write, EmulatedDevice(seed), 1)[0] for seed in range(12)}) > 2


def test_a_store_outside() -> None:
    def write(ke: KernelEmitter) -> None:
        ke.store("double", "0x3FF0000000000000", ke.op("getelementptr double, ptr %out, i64 1"))

    with pytest.raises(DeviceError, match="outside its buffer"):
        launch(write, EmulatedDevice(4), 1)


def test_memory() -> None:
    device = EmulatedDevice(5)
    buffer = device.alloc(24, None)
    found = np.zeros(3)
    device.copy_out(found, buffer, 0, None)
    assert np.isnan(found).all()
    device.free(buffer, None)
    device.free(buffer, None)
    with pytest.raises(DeviceError, match="freed twice"):
        device.synchronize(None)
    other = device.alloc(8, None)
    device.copy_in(other, 8, np.ones(1), None)
    with pytest.raises(DeviceError, match="bytes 8 to 16"):
        device.synchronize(None)


def _streams(device: EmulatedDevice, wait: bool) -> float:
    """Stream 1 writes a number that stream 2 copies; the host reads it there."""
    a, b = device.alloc(8, 1), device.alloc(8, 2)
    device.fill(a, 0, np.float64(7.0), 1, 1)
    if wait:
        device.wait(2, device.record(1))
    device.copy(b, 0, a, 0, 8, 2)
    found = np.empty(1)
    device.copy_out(found, b, 0, 2)
    return float(found[0])


def test_a_missing_wait_gives_wrong_numbers() -> None:
    assert all(_streams(EmulatedDevice(seed), True) == 7.0 for seed in range(20))
    assert any(np.isnan(_streams(EmulatedDevice(seed), False)) for seed in range(20))


def test_work_of_other_streams_waits() -> None:
    device = EmulatedDevice(6)
    a = device.alloc(8, 1)
    device.fill(a, 0, np.float64(1.0), 1, 1)
    late: list[Any] = []
    device._put(2, lambda: late.append(1))
    assert not late
    device.synchronize(2)
    assert late == [1]


@pytest.mark.parametrize("n", [1, 255, 256, 257, 5000])
def test_reductions_repeat_bit_for_bit(n: int) -> None:
    """In whatever order threads and blocks run, the joins are in one order."""
    f = ad.compile_source("fn f(x: f64[n]) -> f64 = sum(sin(x[i]) for i in 0..n)", target="emulated").f
    x = np.random.default_rng(n).normal(size=n)
    first = f(x)
    assert all(f(x) == first for _ in range(5))
    np.testing.assert_allclose(first, np.sin(x).sum(), rtol=1e-12)
