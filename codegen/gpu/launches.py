"""Kernels out of host-level operations: a `par` becomes a grid, a group of operations one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aotdiff.codegen.bufferize import summarise
from aotdiff.codegen.gpu import plan as p
from aotdiff.codegen.gpu.kernels import BLOCK, Spec
from aotdiff.codegen.gpu.places import Cell, Flat, Host, Target
from aotdiff.codegen.gpu.private import Copies, private_inputs
from aotdiff.codegen.gpu.steps import Step, uses_of

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.rewrite import copy_op
from aotdiff.ir.types import Acc, Array, Record, Scalar, Type, dims_of

if TYPE_CHECKING:
    from aotdiff.codegen.gpu.build import Planner

MAP_BLOCKS = 1 << 16  # at most, in a grid of maps
SUM_BLOCKS = 1024  # where each block leaves a value
SCRATCH_BLOCKS = 32  # where each thread has an arena


@dataclass(slots=True)
class Wrapped:
    """Operations as a function of what they capture; `inputs` are the captured values, one per parameter."""

    func: Func
    inputs: list[Value]
    passing: list[str]


def wrap(planner: Planner, name: str, ops: Sequence[Op], outputs: Sequence[Value]) -> Wrapped:
    """A function with copies of `ops` that gives `outputs`; constants are copied into it."""
    region = Region()
    env: dict[Value, Value] = {}
    inputs: list[Value] = []
    passing: list[str] = []
    made = {r for op in ops for r in op.results}
    for value in dict.fromkeys(v for op in ops for v in uses_of(op)):
        if value in made:
            continue
        if value.op is not None and value.op.name == "const":
            region.ops.append(copy_op(value.op, env))
            continue
        where = planner.env[value]
        if not isinstance(where, (Host, Cell, Flat, Target)):
            planner.refuse_records()
        env[value] = region.add_arg(value.type, value.name)
        inputs.append(value)
        passing.append("value" if isinstance(where, Host) else "cell" if isinstance(where, Cell) else "array")
    region.ops += [copy_op(op, env) for op in ops]
    region.ops.append(Op("yield", [env[v] for v in outputs], []))
    func = Func(name, region, [v.type for v in outputs], {}, planner.func.loc)
    return Wrapped(func, inputs, passing)


def _stem(kind: str, op: Op) -> str:
    return f"{kind}_l{op.loc.line}" if op.loc else kind


def element_of(type_: Type) -> str:
    element = type_.element if isinstance(type_, (Array, Acc)) else type_
    assert isinstance(element, Scalar)
    return element.kind


def _no_records(planner: Planner, values: Sequence[Value]) -> None:
    if any(isinstance(v.type, Record) or isinstance(getattr(v.type, "element", None), Record) for v in values):
        planner.refuse_records()


def _unknown(type_: Type, dims: Sequence[p.Operand]) -> list[p.Operand]:
    return [d for k, d in zip(dims_of(type_), dims, strict=True) if k is None]


def arguments(planner: Planner, wrapped: Wrapped, taken: dict[int, str]) -> list[p.Operand]:
    """What a launch passes for the inputs; `taken` has the buffers that stand for inputs that are written."""
    found: list[p.Operand] = []
    for i, value in enumerate(wrapped.inputs):
        where = planner.env[value]
        if isinstance(where, Host):
            found.append(where.operand)
            continue
        assert isinstance(where, (Cell, Flat, Target))
        found.append(taken.get(i, where.var))
        if isinstance(where, (Flat, Target)):
            found += _unknown(value.type, where.dims)
    return found


# One thread -------------------------------------------------------------------------------------------------


def group(planner: Planner, step: Step) -> None:
    """Operations that one thread runs, as one kernel."""
    frame = planner.frames[-1]
    outputs = [r for op in step.ops for r in op.results if frame.last.get(r, -1) > frame.step]
    _no_records(planner, outputs)
    sizes = {v: planner.dims(v) for v in outputs if isinstance(v.type, Array)}
    wrapped = wrap(planner, "serial", step.ops, outputs)
    homes, writes = _in_place(wrapped.func)
    spec = Spec(_stem("serial", step.ops[0]), wrapped.func, tuple(wrapped.passing), False, homes, frozenset(writes))
    kernel = planner.module.add(spec)
    taken: dict[int, str] = {}
    for i in sorted(writes):
        value = wrapped.inputs[i]
        where = planner.env[value]
        assert isinstance(where, Flat)
        taken[i] = planner.take(value, element_of(value.type), planner.count(where.dims))
    args = arguments(planner, wrapped, taken)
    bound: list[tuple[Value, Cell | Flat]] = []
    for j, value in enumerate(outputs):
        if j in homes:
            bound.append((value, Flat(taken.pop(homes[j]), sizes[value])))
            continue
        dims = sizes.get(value, ())
        var = planner.alloc(element_of(value.type), planner.count(dims), value.name)
        args += [var, *_unknown(value.type, dims)]
        bound.append((value, Flat(var, dims) if isinstance(value.type, Array) else Cell(var)))
    planner.emit(p.Launch(kernel.name, 1, tuple(args)))
    for var in taken.values():
        planner.emit(p.Drop(var))
    for value, where in bound:
        planner.bind(value, where)


def _in_place(func: Func) -> tuple[dict[int, int], set[int]]:
    """Results that are in the buffer of a parameter, and parameters that are written."""
    summary = summarise(Module({func.name: func}), [func.name])[func.name]
    return dict(summary.inplace), set(summary.writes)


# A grid -----------------------------------------------------------------------------------------------------


def grid(planner: Planner, op: Op) -> None:
    """A `par` whose iterations the threads of a grid share."""
    rank, kinds = op.attrs["rank"], op.attrs["kinds"]
    lead = [planner.size(planner.host(v)) for v in op.operands[:rank]]
    for v in op.operands[rank:]:
        planner.host(v)
    if _fill(planner, op, lead):
        return
    _no_records(planner, op.results)
    wrapped = wrap(planner, "grid", [op], op.results)
    for i, value in enumerate(wrapped.inputs):
        if value in op.operands and wrapped.passing[i] == "cell":  # sizes are known to the host by now
            wrapped.passing[i] = "value"
    stem = "map" if all(k == "map" for k in kinds) else "reduce"
    name = _stem(stem if kinds else "scatter", op)
    private = private_inputs(wrapped) if planner.deterministic else frozenset[int]()
    spec = Spec(name, wrapped.func, tuple(wrapped.passing), True, private=private)
    kernel = planner.module.add(spec)
    copies = Copies(planner, wrapped, planner.count(lead)) if private else None
    args = _grid_arguments(planner, wrapped, copies.taken if copies else {})
    most = SCRATCH_BLOCKS if kernel.scratch else SUM_BLOCKS if kernel.barriers else MAP_BLOCKS
    blocks = copies.blocks if copies else planner.once("blocks", (planner.count(lead), BLOCK, most))
    partials: list[tuple[str, str, str]] = []  # kind, element, variable
    for kind, value, result in zip(kinds, op.regions[0].yielded, op.results, strict=True):
        if kind == "map":
            dims = planner.dims(result)
            var = planner.alloc(element_of(result.type), planner.count(dims), result.name)
            planner.bind(result, Flat(var, dims))
            args.append(var)
            continue
        for element in (element_of(value.type), "i64")[: 2 if kind.startswith("arg") else 1]:
            partials.append((kind, element, planner.alloc(element, blocks)))
            args.append(partials[-1][2])
    planner.emit(p.Launch(kernel.name, blocks, tuple(args)))
    if copies:
        copies.add_up()
    if partials:
        _join_blocks(planner, op, blocks, partials)
    reduced = iter(partials)
    for kind, result in zip(kinds, op.results, strict=True):
        if kind != "map":
            _, _, var = next(reduced)
            if kind.startswith("arg"):
                planner.emit(p.Drop(var))
                _, _, var = next(reduced)
            planner.bind(result, Cell(var))


def _grid_arguments(planner: Planner, wrapped: Wrapped, taken: dict[int, str]) -> list[p.Operand]:
    found: list[p.Operand] = []
    for i, (value, way) in enumerate(zip(wrapped.inputs, wrapped.passing, strict=True)):
        where = planner.env[value]
        if isinstance(where, Host) or way == "value":
            found.append(planner.host(value))
            continue
        assert isinstance(where, (Cell, Flat, Target))
        found.append(taken.get(i, where.var))
        if isinstance(where, (Flat, Target)):
            found += _unknown(value.type, where.dims)
    return found


def _fill(planner: Planner, op: Op, lead: list[p.Operand]) -> bool:
    """Arrays of one value that the host has: no kernel."""
    region = op.regions[0]
    values = [v.op.attrs["value"] if v.op is not None and v.op.name == "const" else None for v in region.yielded]
    inside = {r for inner in region.ops for r in inner.results} | set(region.args)
    for k, v in enumerate(region.yielded):
        if values[k] is None and v not in inside and isinstance(planner.env[v], Host):
            values[k] = planner.host(v)
    if any(v is None for v in values) or any(k != "map" for k in op.attrs["kinds"]):
        return False
    if any(inner.name not in ("const", "yield") for inner in region.ops):
        return False
    for value, result in zip(values, op.results, strict=True):
        assert value is not None
        dims = planner.dims(result)
        element, count = element_of(result.type), planner.count(dims)
        var = planner.alloc(element, count, result.name)
        planner.emit(p.Fill(var, element, value, count))
        planner.bind(result, Flat(var, dims))
    return True


def join(planner: Planner, reductions: Sequence[tuple[str, str]], count: p.Operand, values: Sequence[str]) -> list[str]:
    """Variables of one value per reduction (two for argmax and argmin) out of `count` in each of the buffers."""
    kernel = planner.module.fold(tuple(reductions))
    elements = [e for kind, element in reductions for e in (element, "i64")[: 2 if kind.startswith("arg") else 1]]
    joined = [planner.alloc(element, 1) for element in elements]
    planner.emit(p.Launch(kernel.name, 1, (count, *values, *joined)))
    return joined


def _join_blocks(planner: Planner, op: Op, blocks: p.Operand, partials: list[tuple[str, str, str]]) -> None:
    """One value out of those of the blocks, where there are several: the variables then show the results."""
    reductions = [
        (kind, element_of(value.type))
        for kind, value in zip(op.attrs["kinds"], op.regions[0].yielded, strict=True)
        if kind != "map"
    ]
    kernel = planner.module.fold(tuple(reductions))
    several = planner.compute("gt", (blocks, 1), "i64", "bool")
    block: list[p.Statement] = []
    joined = [planner.name() for _ in partials]
    block += [p.Alloc(var, element, 1) for var, (_, element, _) in zip(joined, partials, strict=True)]
    block.append(p.Launch(kernel.name, 1, (blocks, *(v for _, _, v in partials), *joined)))
    for var, (_, _, partial) in zip(joined, partials, strict=True):
        block += [p.Let(partial, var), p.Drop(var)]
    planner.emit(p.If(several, tuple(block), ()))
