"""Optimised graph -> launch plan and kernels.

`Planner` walks the function as the host runs it. What a graph value is on the host is one of

- `Host`: a scalar the host has (an operand of statements);
- `Cell`: a scalar in a buffer of one element;
- `Flat`: an array: a buffer and its sizes, which the host has;
- `Target`: an accumulator: a buffer that kernels add to.

A variable of the plan belongs to the region that defines the value, and is dropped after the last step that uses it.
An operation that writes takes its buffer over by `own`, which copies only where another variable shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from aotdiff.codegen.gpu import launches, sort
from aotdiff.codegen.gpu import plan as p
from aotdiff.codegen.gpu.control import CONTROL
from aotdiff.codegen.gpu.insert import insert
from aotdiff.codegen.gpu.kernels import KernelModule, Known
from aotdiff.codegen.gpu.places import Cell, Fields, Flat, Host, Target, Unsupported, Where, share
from aotdiff.codegen.gpu.residence import Residence
from aotdiff.codegen.gpu.steps import Step, partition
from aotdiff.codegen.loader import Options

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import Array, Record, Scalar, dims_of

if TYPE_CHECKING:
    from aotdiff.codegen.gpu.target import GpuTarget


@dataclass(slots=True)
class Frame:
    """A region while it is planned: last step that uses each value, the present step, and the variables it owns."""

    last: dict[Value, int]
    owned: dict[Value, None]
    step: int = -1


Finish = Callable[[list[Value]], None]  # what the end of a region does with what it yields


def build(
    graph: Module,
    name: str,
    target: GpuTarget,
    options: Options | None = None,
    prefix: str = "",
    deterministic: bool = False,
    known: Known | None = None,
) -> tuple[p.Plan, KernelModule]:
    """The plan of a function of a graph without calls, and its kernels (`KernelModule.text`).

    `deterministic`: the same call gives the same bits. `known`: kernels of other plans, which are not written again.
    """
    module = KernelModule(graph, target, options or Options(), prefix, known)
    func = graph.funcs[name]
    planner = Planner(module, func, deterministic)
    return planner.plan(), module


class Planner:
    def __init__(self, module: KernelModule, func: Func, deterministic: bool):
        self.module = module
        self.deterministic = deterministic
        self.func = func
        self.residence = Residence(func)
        self.env: dict[Value, Where] = {}
        self.frames: list[Frame] = []
        self.out: list[p.Statement] = []
        self.fetched: dict[str, p.Operand] = {}
        self.memo: dict[tuple, p.Operand] = {}  # sizes computed already
        self.nonneg: set[p.Operand] = set()
        self.now: Op | None = None
        self._count = 0

    # Writing ----------------------------------------------------------------------------------------------

    def name(self, hint: str = "") -> str:
        self._count += 1
        return f"%{hint}{self._count}"

    def emit(self, statement: p.Statement) -> None:
        self.out.append(statement)

    def compute(self, op: str, args: Sequence[p.Operand], kind: str, to: str = "") -> p.Operand:
        var = self.name()
        self.emit(p.Compute(var, op, tuple(args), kind, to or kind))
        return var

    def alloc(self, element: str, count: p.Operand, hint: str = "") -> str:
        var = self.name(hint)
        self.emit(p.Alloc(var, element, count))
        return var

    def refuse_records(self) -> NoReturn:
        """Records are what calls leave for reverse sweeps; on a device they exist inside a thread only."""
        loc = (self.now.loc if self.now else None) or self.func.loc
        raise Unsupported("what a call leaves for its derivative cannot be kept here on a device", loc, records=True)

    def drop(self, where: Where) -> None:
        if isinstance(where, Fields):
            for each in where.values:
                self.drop(each)
        elif not isinstance(where, Host):
            self.emit(p.Drop(where.var))

    def nested(self, region: Region, finish: Finish) -> p.Block:
        """The statements of a region; `finish(yielded values)` adds what its end does."""
        out, self.out, known, memo = self.out, [], dict(self.fetched), dict(self.memo)
        self.region(region, finish)
        made, self.out, self.fetched, self.memo = self.out, out, known, memo
        return tuple(made)

    # Sizes ------------------------------------------------------------------------------------------------

    def size(self, operand: p.Operand) -> p.Operand:
        """max(operand, 0)."""
        if isinstance(operand, int):
            return max(operand, 0)
        if operand in self.nonneg:
            return operand
        found = self.once("maximum", (operand, 0))
        self.nonneg.add(found)
        return found

    def once(self, op: str, args: tuple[p.Operand, ...]) -> p.Operand:
        """Arithmetic of sizes, which do not change while the present block runs."""
        if (op, args) not in self.memo:
            self.memo[op, args] = self.compute(op, args, "i64")
        return self.memo[op, args]

    def times(self, a: p.Operand, b: p.Operand) -> p.Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 1 or b == 0:
            return b
        if b == 1 or a == 0:
            return a
        found = self.once("mul", (a, b))
        if a in self.nonneg or isinstance(a, int):
            self.nonneg.add(found)
        return found

    def plus(self, a: p.Operand, b: p.Operand) -> p.Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return a if b == 0 else b if a == 0 else self.compute("add", (a, b), "i64")

    def count(self, dims: Sequence[p.Operand]) -> p.Operand:
        total: p.Operand = 1
        for d in dims:
            total = self.times(total, d)
        return total

    def dims(self, value: Value) -> tuple[p.Operand, ...]:
        """Sizes of a result of an operation that is about to run."""
        found: list[p.Operand] = []
        for axis in range(len(dims_of(value.type))):
            size = self.residence.size(value, axis)
            if isinstance(size, int):
                found.append(size)
            elif isinstance(size, Value):
                found.append(self.size(self.host(size)))
            else:
                root = self.env[size[0]]
                assert isinstance(root, (Flat, Target))
                found.append(root.dims[size[1]])
        return tuple(found)

    # Values -----------------------------------------------------------------------------------------------

    def host(self, value: Value) -> p.Operand:
        """A scalar as the host has it, fetched if it is on the device."""
        where = self.env[value]
        if isinstance(where, Host):
            return where.operand
        assert isinstance(where, Cell) and isinstance(value.type, Scalar)
        if where.var not in self.fetched:
            var = self.name(value.name)
            self.emit(p.Fetch(var, where.var, value.type.kind))
            self.fetched[where.var] = var
        return self.fetched[where.var]

    def cell(self, value: Value) -> str:
        """A variable of its own that shows the scalar in device memory; the caller drops it."""
        where = self.env[value]
        assert isinstance(value.type, Scalar)
        var = self.name(value.name)
        if isinstance(where, Cell):
            self.emit(p.Let(var, where.var))
        else:
            assert isinstance(where, Host)
            self.emit(p.Alloc(var, value.type.kind, 1))
            self.emit(p.Fill(var, value.type.kind, where.operand, 1))
        return var

    def flat(self, value: Value) -> Flat:
        where = self.env[value]
        assert isinstance(where, Flat)
        return where

    def bind(self, value: Value, where: Where) -> None:
        """The present region owns it."""
        self.env[value] = where
        if not isinstance(where, Host):
            self.frames[-1].owned[value] = None

    def dies(self, value: Value) -> bool:
        """Whether nobody needs the value after the present step."""
        frame = self.frames[-1]
        return value in frame.owned and frame.last.get(value, -1) <= frame.step

    def take(self, value: Value, element: str, count: p.Operand, alone: bool = True) -> str:
        """A variable for a buffer with the value's content that may be written; `alone`: the step uses it once."""
        where = self.env[value]
        assert isinstance(where, (Flat, Cell))
        var, source = self.name(value.name), where.var
        if alone and self.dies(value):
            del self.frames[-1].owned[value]
        else:
            source = self.name()
            self.emit(p.Let(source, where.var))
        self.emit(p.Own(var, source, element, count))
        return var

    # Regions ----------------------------------------------------------------------------------------------

    def region(self, region: Region, finish: Finish) -> None:
        steps = partition(region, self.residence)
        frame = self._frame(region, steps)
        self.frames.append(frame)
        for arg in region.args:
            if arg in self.env and not isinstance(self.env[arg], Host):
                frame.owned[arg] = None
        self._release(frame)
        for k, step in enumerate(steps):
            frame.step = k
            self.now = step.ops[0]
            self._step(step)
            self._release(frame)
        frame.step = len(steps)
        finish(region.yielded)
        self._release(frame)
        self.frames.pop()

    def _frame(self, region: Region, steps: list[Step]) -> Frame:
        last: dict[Value, int] = {}
        for k, step in enumerate(steps):
            for v in step.uses:
                last[v] = k
        for v in region.yielded:
            last[v] = len(steps)
        return Frame(last, {})

    def _release(self, frame: Frame) -> None:
        for value in [v for v in frame.owned if frame.last.get(v, -1) <= frame.step]:
            del frame.owned[value]
            self.drop(self.env[value])

    def _step(self, step: Step) -> None:
        op = step.ops[0]
        if step.group:
            launches.group(self, step)
        elif op in self.residence.control:
            CONTROL[op.name](self, op)
        elif op.name == "par":
            launches.grid(self, op)
        elif op.name == "argsort":
            sort.argsort(self, op)
        elif op.name in SCALAR_OPS:
            self._scalar(op)
        else:
            _HOST[op.name](self, op)

    def _scalar(self, op: Op) -> None:
        result = op.results[0]
        assert isinstance(result.type, Scalar)
        if op.name == "const":
            self.env[result] = Host(op.attrs["value"])
            return
        args = [self.host(v) for v in op.operands]
        kind = op.operands[-1].type
        assert isinstance(kind, Scalar)
        self.env[result] = Host(self.compute(op.name, args, kind.kind, result.type.kind))

    # The function -----------------------------------------------------------------------------------------

    def plan(self) -> p.Plan:
        params = [self._param(value) for value in self.func.params]
        results: list[p.Result] = []
        self.region(self.func.body, lambda yielded: results.extend(self._result(v) for v in yielded))
        kernels, sites = tuple(self.module.kernels.values()), tuple(self.module.sites)
        serial = not any(k.block > 1 for k in kernels)
        return p.Plan(self.func.name, tuple(params), tuple(results), tuple(self.out), kernels, sites, serial)

    def _param(self, value: Value) -> p.Param:
        hint = value.name or "p"
        var = self.name(hint + ".")
        if isinstance(value.type, Scalar):
            self.env[value] = Host(var)
            return p.Param(var, value.type.kind)
        assert isinstance(value.type, Array) and isinstance(value.type.element, Scalar)
        names = tuple(f"{var}.{axis}" for axis in range(value.type.rank))
        self.nonneg.update(names)
        dims = tuple(n if k is None else k for n, k in zip(names, value.type.dims, strict=True))
        expected = [(n, k) for n, k in zip(names, value.type.dims, strict=True) if k is not None]
        if expected:
            self.same_sizes([n for n, _ in expected], [k for _, k in expected])
        self.env[value] = Flat(var, dims)
        return p.Param(var, value.type.element.kind, names)

    def same_sizes(self, found: Sequence[p.Operand], wanted: Sequence[p.Operand]) -> None:
        """ValueError where sizes differ."""
        pairs = [(f, w) for f, w in zip(found, wanted, strict=True) if f != w]
        cond: p.Operand = True
        for f, w in pairs:
            same = self.compute("eq", (f, w), "i64", "bool")
            cond = same if cond is True else self.compute("and", (cond, same), "bool")
        if cond is True:
            return
        count = len(found)
        message = "an array of sizes [" + ", ".join(f"{{{i}}}" for i in range(count)) + "] where ["
        message += ", ".join(f"{{{i + count}}}" for i in range(count)) + "] was expected"
        loc = (self.now.loc if self.now else None) or self.func.loc
        site = self.module.site("ValueError", loc, message, ("i64",) * (2 * count))
        self.emit(p.Check(cond, site, (*found, *wanted)))

    def _result(self, value: Value) -> p.Result:
        where = self.env[value]
        if isinstance(where, Host):
            assert isinstance(value.type, Scalar)
            return p.Result(where.operand, value.type.kind, (), False)
        assert isinstance(where, (Flat, Cell))
        element = value.type.element if isinstance(value.type, Array) else value.type
        assert isinstance(element, Scalar)
        var = self.name("out")
        self.emit(p.Let(var, where.var))
        return p.Result(var, element.kind, where.dims if isinstance(where, Flat) else ())


# Operations of the host -----------------------------------------------------------------------------------


def _dim(planner: Planner, op: Op) -> None:
    where = planner.env[op.operands[0]]
    assert isinstance(where, (Flat, Target))
    planner.env[op.results[0]] = Host(where.dims[op.attrs["axis"]])


def _show(planner: Planner, value: Value, source: Value, dims: tuple[p.Operand, ...] | None = None) -> None:
    """Another value in the same place, perhaps of other sizes."""
    where = planner.env[source]
    if isinstance(where, Host):
        planner.env[value] = where
        return
    planner.bind(value, share(planner, where, value.name, dims))


def _reshape(planner: Planner, op: Op) -> None:
    result = op.results[0]
    sizes = [planner.host(v) for v in op.operands[1:]]
    _show(planner, result, op.operands[0], tuple(planner.size(s) for s in sizes))


def _same(planner: Planner, op: Op) -> None:
    _show(planner, op.results[0], op.operands[0])


def _undef(planner: Planner, op: Op) -> None:
    type_ = op.results[0].type
    if isinstance(type_, Scalar):
        planner.env[op.results[0]] = Host({"f64": 0.0, "f32": 0.0, "i64": 0, "bool": False}[type_.kind])
        return
    if isinstance(type_, Record):
        planner.env[op.results[0]] = Fields([])
        return
    assert isinstance(type_, Array) and isinstance(type_.element, Scalar)
    dims = tuple(d or 0 for d in type_.dims)
    planner.bind(op.results[0], Flat(planner.alloc(type_.element.kind, planner.count(dims)), dims))


def _check(planner: Planner, op: Op) -> None:
    values, types, operands = op.operands[1:], [], []
    for v in values:
        assert isinstance(v.type, Scalar)
        types.append("i64" if v.type.kind in ("i64", "bool") else "f64")
    cond = planner.host(op.operands[0])
    if cond is True:
        return
    operands = [planner.host(v) for v in values]
    site = planner.module.site(op.attrs["kind"], op.loc or planner.func.loc, op.attrs["message"], tuple(types))
    planner.emit(p.Check(cond, site, tuple(operands)))


def _insert(planner: Planner, op: Op) -> None:
    """A block of an array of rank 1 is copied into its place; where a check has failed it may not fit."""
    if not planner.residence.is_host(op):
        insert(planner, op)
        return
    value, block = op.operands[0], planner.flat(op.operands[1])
    type_ = value.type
    assert isinstance(type_, Array) and isinstance(type_.element, Scalar)
    element, dims = type_.element.kind, planner.flat(value).dims
    start = planner.host(op.operands[2])
    count = block.dims[0]
    var = planner.take(value, element, dims[0], alone=op.operands.count(value) == 1)
    fits = planner.compute("le", (planner.plus(start, count), dims[0]), "i64", "bool")
    inside = planner.compute("ge", (start, 0), "i64", "bool")
    copy = p.Copy(var, block.var, element, count, start)
    planner.emit(p.If(planner.compute("and", (fits, inside), "bool"), (copy,), ()))
    planner.bind(op.results[0], Flat(var, dims))


def _record_make(planner: Planner, op: Op) -> None:
    fields = [share(planner, planner.env[v]) for v in op.operands]
    planner.bind(op.results[0], Fields(fields))


def _record_unpack(planner: Planner, op: Op) -> None:
    where = planner.env[op.operands[0]]
    if not isinstance(where, Fields) or len(where.values) != len(op.results):
        planner.refuse_records()
    for result, each in zip(op.results, where.values, strict=True):
        planner.bind(result, share(planner, each))


_HOST = {
    "dim": _dim,
    "shaped": _reshape,
    "reshape": _reshape,
    "stop_gradient": _same,
    "undef": _undef,
    "check": _check,
    "insert": _insert,
    "record_make": _record_make,
    "record_unpack": _record_unpack,
}
