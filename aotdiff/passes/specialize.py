"""specialize-sizes: recursive functions of arrays that get smaller are written out for small sizes.

A function that calls itself several times on smaller arrays (expansion in minors, halves of a vector) spends most of
its time in the last few levels, on calls and arrays of a handful of numbers. Here the function with the sizes 1, 2,
3, ... put in is simplified, calls of smaller sizes inlined and loops written out, as long as what comes out is short:
much of it is the same expression, found once. Each is a function of its own that does not recurse, and the function
begins with a branch to them. This comes before differentiation, so that derivatives of small sizes are straight code
as well.

Only one size may get smaller; arrays share it where the function checks that they do. Other sizes stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.rewrite import copy_func, copy_op
from aotdiff.ir.types import I64, Array, Record, Scalar, dims_of, element_of
from aotdiff.passes.facts import constant, op_count
from aotdiff.passes.registry import PASSES, register

LARGEST_SIZE = 16
MOST_OPS = 200  # operations of one size
MOST_OPS_IN_ALL = 300
MOST_OPS_BEFORE = 2000  # of one size, before what it repeats is found once

Axis = tuple[int, int]  # parameter, axis


@register("specialize-sizes", "Write recursive functions out for small sizes of their arrays.")
def specialize_sizes(module: Module) -> None:
    for func in list(module.funcs.values()):
        if _may_specialise(func):
            func.attrs["specialized"] = True
            _specialise(module, func)


def _may_specialise(func: Func) -> bool:
    if any(key in func.attrs for key in ("specialized", "derived", "vjp", "jvp")):
        return False
    if not any(isinstance(p.type, Array) and None in p.type.dims for p in func.params):
        return False
    if not all(isinstance(p.type, Scalar | Array) and not isinstance(element_of(p.type), Record) for p in func.params):
        return False
    if any(op.name in ("vjp", "jvp") for op in func.body.walk()):
        return False
    return _calls_of(func.body, func.name) > 1


def _calls_of(region: Region, name: str) -> int:
    """How often it is called, a call in a loop counted twice. One call a level makes few of small sizes."""
    calls = 0
    for op in region.ops:
        inside = sum(_calls_of(inner, name) for inner in op.regions)
        calls += 2 * inside if op.name in ("par", "for", "while") else inside
        calls += op.name == "call" and op.attrs["callee"] == name
    return calls


def _specialise(module: Module, func: Func) -> None:
    for axes in _sizes_that_shrink(func):
        writer = _Writer(module, func, axes)
        found = writer.all_sizes()
        if found:
            _branch(module, func, axes, found)
            return


# Which sizes ------------------------------------------------------------------------------------------------------


def _sizes_that_shrink(func: Func) -> list[tuple[Axis, ...]]:
    """Sizes of parameters, those that are checked to be equal together, that some call of itself may change."""
    groups: dict[Axis, list[Axis]] = {}
    for k, param in enumerate(func.params):
        for axis, known in enumerate(dims_of(param.type)):
            if known is None:
                groups[k, axis] = [(k, axis)]
    for op in func.body.ops:
        _join_checked(func, op, groups)
    changed = {
        (k, axis)
        for op in func.body.walk()
        if op.name == "call" and op.attrs["callee"] == func.name
        for k, (arg, param) in enumerate(zip(op.operands, func.params, strict=True))
        for axis in range(len(dims_of(param.type)))
        if arg is not param
    }
    distinct = {id(group): tuple(group) for group in groups.values()}
    return [group for group in distinct.values() if not changed.isdisjoint(group)]


def _join_checked(func: Func, op: Op, groups: dict[Axis, list[Axis]]) -> None:
    cond = op.operands[0].op if op.name == "check" else None
    if cond is None or cond.name != "eq":
        return
    a, b = (_axis_of(func, v) for v in cond.operands)
    if a in groups and b in groups and groups[a] is not groups[b]:
        joined = groups[a] + groups[b]
        for axis in joined:
            groups[axis] = joined


def _axis_of(func: Func, value: Value) -> Axis:
    op = value.op
    if op is None or op.name != "dim" or op.operands[0].owner is not func.body:
        return (-1, -1)
    return (op.operands[0].index, op.attrs["axis"])


# One size ---------------------------------------------------------------------------------------------------------


class _Writer:
    """Makes the function for single sizes; `made` has those that were tried, None where it cannot be done."""

    def __init__(self, module: Module, func: Func, axes: Sequence[Axis]):
        self.module, self.func, self.axes = module, func, axes
        self.made: dict[int, Func | None] = {}
        self.base: set[int] = set()  # sizes at which the function does not call itself
        self.full = False  # a size was too long; the next ones are longer

    def all_sizes(self) -> dict[int, Func]:
        found: dict[int, Func] = {}
        total = 0
        for size in range(1, LARGEST_SIZE + 1):
            made = self.size(size)
            if self.full or size > 2 * max(found, default=2):
                break
            if made is None:
                continue
            total += op_count(made.body)
            if total > MOST_OPS_IN_ALL:
                break
            if size not in self.base:
                found[size] = made
        return found

    def size(self, size: int) -> Func | None:
        if size not in self.made:
            self.made[size] = None  # a size that needs itself
            self.made[size] = self.write(size)
        return self.made[size]

    def write(self, size: int) -> Func | None:
        func = copy_func(self.func, f"{self.func.name}.{size}")
        func.attrs = {"inline": "never"}
        for k, axis in self.axes:
            type_ = func.params[k].type
            assert isinstance(type_, Array)
            dims = (*type_.dims[:axis], size, *type_.dims[axis + 1 :])
            func.params[k].type = Array(type_.element, dims)
        self.simplify(func)
        if any(op.name == "check" and constant(op.operands[0]) is False for op in func.body.walk()):
            return None
        if self.calls(func):
            if not self.inline(func):
                return None
            self.simplify(func)
        else:
            self.base.add(size)
        self.full = op_count(func.body) > MOST_OPS
        return None if self.full else func

    def simplify(self, func: Func) -> None:
        for name in ("canonicalize", "unroll", "canonicalize", "cse", "dce"):
            PASSES[name].run(self.module, [func])

    def calls(self, func: Func) -> list[Op]:
        return [op for op in func.body.walk() if op.name == "call" and op.attrs["callee"] == self.func.name]

    def inline(self, func: Func) -> bool:
        """Put the functions for smaller sizes in place of the calls."""
        bodies: dict[Op, Func] = {}
        total = op_count(func.body)
        for op in self.calls(func):
            sizes = {dims_of(op.operands[k].type)[axis] for k, axis in self.axes}
            size = next(iter(sizes))
            callee = self.size(size) if len(sizes) == 1 and size is not None else None
            if callee is None:
                return False
            bodies[op] = callee
            total += op_count(callee.body)
            if total > MOST_OPS_BEFORE:
                self.full = True
                return False
        _put_bodies(func.body, bodies, {})
        return True


def _put_bodies(region: Region, bodies: dict[Op, Func], env: dict[Value, Value]) -> None:
    ops: list[Op] = []
    for op in region.ops:
        op.operands = [env.get(v, v) for v in op.operands]
        for inner in op.regions:
            _put_bodies(inner, bodies, env)
        callee = bodies.get(op)
        if callee is None:
            ops.append(op)
            continue
        inside = dict(zip(callee.params, op.operands, strict=True))
        ops += [copy_op(each, inside) for each in callee.body.ops[:-1]]
        env.update((r, inside.get(v, v)) for r, v in zip(op.results, callee.body.yielded, strict=True))
    region.ops = ops


# The branch -------------------------------------------------------------------------------------------------------


def _branch(module: Module, func: Func, axes: Sequence[Axis], found: dict[int, Func]) -> None:
    """The function begins by asking for each size, the largest first: that is where most calls arrive."""
    otherwise = Region([], func.body.ops)
    for size, made in sorted(found.items()):
        made.name = module.fresh_name(made.name)
        module.add(made)
        body = Region()
        b = Builder(body, func.loc)
        is_size = [b.scalar("eq", b.dim(func.params[k], axis), b.i64(size)) for k, axis in axes]
        cond = is_size[0]
        for each in is_size[1:]:
            cond = b.scalar("and", cond, each)
        side = Region()
        inner = Builder(side, func.loc)
        results = inner.call(made, [_shaped(inner, v, p) for v, p in zip(func.params, made.params, strict=True)])
        inner.emit("yield", results, [])
        op = b.emit("if", [cond], list(func.result_types), {}, [side, otherwise])
        b.emit("yield", op.results, [])
        otherwise = body
    func.body.ops = otherwise.ops


def _shaped(b: Builder, value: Value, like: Value) -> Value:
    if value.type == like.type:
        return value
    assert isinstance(like.type, Array)
    sizes = [b.dim(value, k) if d is None else b.const(d, I64) for k, d in enumerate(like.type.dims)]
    return b.emit("shaped", [value, *sizes], [like.type]).result
