"""Runs launch plans on a device.

    executor = Executor(plan, device, code)
    results = executor.run(values, stream)

`values` are parameter leaves in order: Python numbers, and `Array`s on the device. Results likewise, scalars perhaps
as an `Array` without sizes: `run` waits for nothing but what the plan itself needs to know. `Run.check` waits and
raises what went wrong on the device; `Run.get` brings a result to the host.

This module needs the standard library and numpy alone: written-out modules carry a copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotdiff.codegen.gpu import plan as p
from aotdiff.runtime.errors import exception_for
from aotdiff.runtime.gpu.device import Buffer, Device
from aotdiff.runtime.gpu.hostops import FIT, OPERATIONS

DTYPES = {"f64": np.float64, "f32": np.float32, "i64": np.int64, "bool": np.int8}
FIRST_ARENA = 1 << 12  # bytes of scratch per thread to begin with
FIRST_SERIAL_ARENA = 1 << 20
MOST_SCRATCH = 1 << 36  # of one thread
ALL_SCRATCH = 1 << 31  # of a kernel, where fewer blocks do as well
_NAMES = ("IndexError", "ValueError", "ZeroDivisionError", "AssertionFailed", "RecursionError", "MemoryError")
_KINDS = {name: k + 1 for k, name in enumerate(_NAMES)}
_NUMBER = re.compile(r"\{(\d+)\}")


class Storage:
    """A buffer with the number of variables that show it. `external`: it is somebody else's, only to be read."""

    __slots__ = ("buffer", "external", "refs")

    def __init__(self, buffer: Buffer, external: bool = False):
        self.buffer = buffer
        self.refs = 1
        self.external = external


@dataclass(slots=True)
class Array:
    """An array on the device (without sizes: a scalar), contiguous and row-major."""

    buffer: Buffer
    element: str
    shape: tuple[int, ...]


class _Again(Exception):
    """A thread ran out of scratch memory: run the plan again with more."""


class Executor:
    """One plan on one device. Several threads may run it at once. `place`: file, line and name, for messages."""

    def __init__(self, plan: p.Plan, device: Device, code: bytes, place: str = ""):
        self.plan = plan
        self.place = place or plan.name
        self.device = device
        self.kernels = device.load(code, [k.name for k in plan.kernels]) if plan.kernels else {}
        self.infos = {k.name: k for k in plan.kernels}
        self.arenas = {k.name: FIRST_SERIAL_ARENA if k.block == 1 else FIRST_ARENA for k in plan.kernels if k.scratch}

    def run(self, values: Sequence[Any], stream: Any = None) -> Run:
        """Run the plan. Scratch memory that was too small is found out here, by waiting, where there is any."""
        while True:
            run = Run(self, stream)
            try:
                run.start(values)
                if self.arenas:
                    run.check()
                return run
            except _Again:
                run.release()
            except BaseException:
                run.release()
                raise

    def message(self, site: int, values: Sequence[Any]) -> BaseException:
        """The exception of an error site."""
        where = self.plan.sites[site]
        shown = [f"{v}" if t == "i64" else f"{v:g}" for v, t in zip(values, where.types, strict=True)]
        text = _NUMBER.sub(lambda m: shown[int(m[1])] if int(m[1]) < len(shown) else m[0], where.message)
        prefix = f"{where.path}:{where.line}: " if where.path else ""
        return exception_for(_KINDS[where.kind], prefix + text)

    def grow(self, least: int, kernel: str) -> None:
        """More scratch memory for each thread of a kernel."""
        if least >= MOST_SCRATCH:
            raise MemoryError(f"{self.place}: a thread needs {least} bytes of memory")
        self.arenas[kernel] = max(2 * self.arenas[kernel], 1 << (least - 1).bit_length())


class Run:
    """One run of a plan, and what it gave: `results`, one per leaf, numbers or `Array`s that are the caller's."""

    def __init__(self, executor: Executor, stream: Any):
        self.executor = executor
        self.device = executor.device
        self.stream = stream
        self.env: dict[str, Any] = {}
        self.results: list[Any] = []
        self.errors: Buffer | None = None
        self.checked = False

    # Whole runs ---------------------------------------------------------------------------------------------

    def start(self, values: Sequence[Any]) -> None:
        plan, device = self.executor.plan, self.device
        if plan.kernels:
            self.errors = self._alloc(8 * p.ERROR_WORDS)
            device.fill(self.errors, 0, np.int64(0), p.ERROR_WORDS, self.stream)
        for param, value in zip(plan.params, values, strict=True):
            if not param.dims:
                self.env[param.var] = value
                continue
            self.env[param.var] = Storage(value.buffer, external=True)
            self.env.update(zip(param.dims, value.shape, strict=True))
        self.block(plan.body)
        for result in plan.results:
            self.results.append(self._result(result))
        self._drop_all()

    def _result(self, result: p.Result) -> Any:
        if not result.device:
            return self.value(result.value)
        shape = tuple(self.value(d) for d in result.dims)
        storage = self._own(result.value, result.element, _count(shape))  # type: ignore[arg-type]
        return Array(storage.buffer, result.element, shape)

    def check(self) -> None:
        """Wait, and raise what went wrong on the device."""
        if self.errors is None or self.checked:
            return
        words = np.empty(p.ERROR_WORDS, np.int64)
        self.device.copy_out(words, self.errors, 0, self.stream)
        if words[0] == p.SCRATCH_SITE:
            self.executor.grow(int(words[1]), self.executor.plan.kernels[int(words[2])].name)
            raise _Again
        if words[0]:
            site = int(words[0]) - 1
            types = self.executor.plan.sites[site].types
            values = [
                int(w) if t == "i64" else float(w.view(np.float64)) for w, t in zip(words[1:], types, strict=False)
            ]
            raise self.executor.message(site, values)

    def get(self, k: int) -> Any:
        """Result k as a number or a numpy array; the host waits. Errors are raised."""
        self.finish()
        found = self.results[k]
        if not isinstance(found, Array):
            return found
        data = np.empty(found.shape, np.bool_ if found.element == "bool" else DTYPES[found.element])
        self.device.copy_out(data, found.buffer, 0, self.stream)
        return data if found.shape else data[()].item()

    def finish(self) -> None:
        """`check`, once."""
        self.check()
        self.checked = True
        if self.errors is not None:
            self.device.free(self.errors, self.stream)
            self.errors = None

    def release(self) -> None:
        """Give all memory back, results too."""
        self._drop_all()
        for result in self.results:
            if isinstance(result, Array):
                self.device.free(result.buffer, self.stream)
        self.results.clear()
        if self.errors is not None:
            self.device.free(self.errors, self.stream)
            self.errors = None

    def _drop_all(self) -> None:
        for var in list(self.env):
            self.drop(var)

    # Values -------------------------------------------------------------------------------------------------

    def value(self, operand: p.Operand) -> Any:
        return self.env[operand] if isinstance(operand, str) else operand

    def drop(self, var: str) -> None:
        storage = self.env.pop(var, None)
        if isinstance(storage, Storage):
            self._unref(storage)

    def _unref(self, storage: Storage) -> None:
        storage.refs -= 1
        if not storage.refs and not storage.external:
            self.device.free(storage.buffer, self.stream)

    def _new(self, element: str, count: int) -> Storage:
        size = count * p.SIZES[element]
        if size > 1 << 46:
            raise MemoryError(f"{self.executor.place}: no memory for an array of {count} elements")
        return Storage(self._alloc(size))

    def _alloc(self, nbytes: int) -> Buffer:
        try:
            return self.device.alloc(nbytes, self.stream)
        except MemoryError as error:
            raise MemoryError(f"{self.executor.place}: {error}") from None

    def _own(self, var: str, element: str, count: int) -> Storage:
        """The storage of a variable, which ends; a copy where somebody else shows it too."""
        storage: Storage = self.env[var]
        if storage.refs > 1 or storage.external:
            storage = self._copied(storage, element, count)
        del self.env[var]
        return storage

    def _copied(self, storage: Storage, element: str, count: int) -> Storage:
        fresh = self._new(element, count)
        if count:
            self.device.copy(fresh.buffer, 0, storage.buffer, 0, count * p.SIZES[element], self.stream)
        self._unref(storage)
        return fresh

    # Statements -----------------------------------------------------------------------------------------------

    def block(self, statements: p.Block) -> None:
        for s in statements:
            _DO[type(s)](self, s)

    def alloc(self, s: p.Alloc) -> None:
        self.env[s.var] = self._new(s.element, self.value(s.count))

    def let(self, s: p.Let) -> None:
        found = self.value(s.source)
        if isinstance(found, Storage):
            found.refs += 1
        self.drop(s.var)
        self.env[s.var] = found

    def own(self, s: p.Own) -> None:
        self.env[s.var] = self._own(s.source, s.element, self.value(s.count))

    def compute(self, s: p.Compute) -> None:
        self.env[s.var] = FIT[s.to](OPERATIONS[s.op](*[self.value(a) for a in s.args]))

    def fetch(self, s: p.Fetch) -> None:
        self.check()
        found = np.empty(1, DTYPES[s.element])
        offset = self.value(s.index) * p.SIZES[s.element]
        self.device.copy_out(found, self.env[s.source].buffer, offset, self.stream)
        self.env[s.var] = bool(found[0]) if s.element == "bool" else found[0].item()

    def fill(self, s: p.Fill) -> None:
        count, size = self.value(s.count), p.SIZES[s.element]
        if count > 0:
            value = DTYPES[s.element](self.value(s.value))
            self.device.fill(self.env[s.to].buffer, self.value(s.start) * size, value, count, self.stream)

    def copy(self, s: p.Copy) -> None:
        count, size = self.value(s.count), p.SIZES[s.element]
        if count > 0:
            start, source_start = self.value(s.start) * size, self.value(s.source_start) * size
            to, source = self.env[s.to].buffer, self.env[s.source].buffer
            self.device.copy(to, start, source, source_start, count * size, self.stream)

    def extend(self, s: p.Grow) -> None:
        storage: Storage = self.env[s.var]
        size, need = p.SIZES[s.element], self.value(s.need)
        if need * size <= storage.buffer.nbytes and storage.refs == 1:
            return
        fresh = self._new(s.element, 2 * need)
        used = self.value(s.used) * size
        if used:
            self.device.copy(fresh.buffer, 0, storage.buffer, 0, used, self.stream)
        self._unref(storage)
        self.env[s.var] = fresh

    def launch(self, s: p.Launch) -> None:
        info, device, stream = self.executor.infos[s.kernel], self.device, self.stream
        args: list[Any] = []
        for kind, operand in zip(info.params, s.args, strict=True):
            value = self.value(operand)
            args.append(value.buffer if kind == "ptr" else DTYPES[kind](value))
        args.append(self.errors)
        blocks, scratch = self.value(s.blocks), None
        if info.scratch:
            arena = self.executor.arenas[s.kernel]
            if not info.exact:  # maps: any number of blocks does
                blocks = max(1, min(blocks, ALL_SCRATCH // (arena * info.block)))
            scratch = self._alloc(arena * blocks * info.block)
            args += [scratch, np.int64(arena)]
        try:
            device.launch(self.executor.kernels[s.kernel], blocks, info.block, args, stream)
        finally:
            if scratch is not None:
                device.free(scratch, stream)

    def branch(self, s: p.If) -> None:
        self.block(s.then if self.value(s.cond) else s.other)

    def loop(self, s: p.For) -> None:
        for k in range(self.value(s.count)):
            self.env[s.index] = k
            self.block(s.body)
        self.env.pop(s.index, None)

    def repeat(self, s: p.While) -> None:
        self.block(s.before)
        while self.value(s.cond):
            self.block(s.body)
            self.block(s.before)

    def require(self, s: p.Check) -> None:
        if not self.value(s.cond):
            self.check()
            raise self.executor.message(s.site, [self.value(v) for v in s.values])


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for d in shape:
        total *= d
    return total


_DO: dict[type[p.Statement], Callable[[Run, Any], None]] = {
    p.Alloc: Run.alloc,
    p.Drop: lambda run, s: run.drop(s.var),
    p.Let: Run.let,
    p.Own: Run.own,
    p.Compute: Run.compute,
    p.Fetch: Run.fetch,
    p.Fill: Run.fill,
    p.Copy: Run.copy,
    p.Grow: Run.extend,
    p.Launch: Run.launch,
    p.If: Run.branch,
    p.For: Run.loop,
    p.While: Run.repeat,
    p.Check: Run.require,
}
