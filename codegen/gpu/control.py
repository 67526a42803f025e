"""Loops, branches and accumulators that the host runs: their kernels are inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen.gpu import plan as p
from aotdiff.codegen.gpu.launches import element_of, join
from aotdiff.codegen.gpu.places import Cell, Flat, Host, Target, Where, mentioned, share
from aotdiff.codegen.gpu.steps import uses_of

from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import Array, Record, Scalar, dims_of
from aotdiff.ir.types import element_of as element_type_of

if TYPE_CHECKING:
    from aotdiff.codegen.gpu.build import Finish, Planner


class Merged:
    """A value that is assigned in several places: an `if`'s result, a loop's carry. Its variables, and how to set them.

    Sizes that are always the same (`fixed`) need no variable.
    """

    def __init__(self, planner: Planner, value: Value, device: bool, fixed: Sequence[p.Operand | None]):
        self.planner, self.value, self.device = planner, value, device
        self.var = planner.name(value.name)
        self.dims = tuple(d if d is not None else planner.name() for d in fixed)
        self.own = tuple(d is None for d in fixed)
        planner.nonneg.update(self.dims)
        if isinstance(value.type, Record):
            planner.refuse_records()
        if isinstance(value.type, Scalar):
            self.where: Where = Cell(self.var) if device else Host(self.var)
        else:
            self.where = Flat(self.var, self.dims)

    def set(self, value: Value) -> None:
        """Assign; what was there before is dropped."""
        planner = self.planner
        if isinstance(self.value.type, Scalar):
            if self.device:
                var = planner.cell(value)
                planner.emit(p.Let(self.var, var))
                planner.emit(p.Drop(var))
            else:
                planner.emit(p.Let(self.var, planner.host(value)))
            return
        found = planner.flat(value)
        planner.emit(p.Let(self.var, found.var))
        for name, own, d in zip(self.dims, self.own, found.dims, strict=True):
            if own:
                assert isinstance(name, str)
                planner.emit(p.Let(name, d))


def _fixed(planner: Planner, value: Value) -> list[p.Operand | None]:
    """Sizes of a result that are known before the operation runs."""
    found: list[p.Operand | None] = []
    for axis in range(len(dims_of(value.type))):
        size = planner.residence.size(value, axis)
        if isinstance(size, int):
            found.append(size)
        elif isinstance(size, Value):
            found.append(planner.size(planner.host(size)) if size in planner.env else None)
        else:
            root = planner.env.get(size[0])
            found.append(root.dims[size[1]] if isinstance(root, (Flat, Target)) else None)
    return found


# Branches -------------------------------------------------------------------------------------------------


def _if(planner: Planner, op: Op) -> None:
    cond = planner.host(op.operands[0])
    device = planner.residence.device
    merged = [Merged(planner, r, r in device, _fixed(planner, r)) for r in op.results]

    def finish(yielded: Sequence[Value]) -> None:
        for each, value in zip(merged, yielded, strict=True):
            each.set(value)

    sides = [planner.nested(region, finish) for region in op.regions]
    planner.emit(p.If(cond, *sides))
    for each, result in zip(merged, op.results, strict=True):
        planner.bind(result, each.where)


# Accumulators ---------------------------------------------------------------------------------------------


def _withacc(planner: Planner, op: Op) -> None:
    region = op.regions[0]
    targets: list[Target] = []
    for init, arg in zip(op.operands, region.args, strict=True):
        where = planner.env[init]
        if isinstance(where, Host):
            target = Target(planner.cell(init), ())
        else:
            assert isinstance(where, (Cell, Flat))
            dims = where.dims if isinstance(where, Flat) else ()
            alone = op.operands.count(init) == 1 and init not in uses_of_regions(op)
            target = Target(planner.take(init, element_of(init.type), planner.count(dims), alone), dims)
        planner.env[arg] = target
        targets.append(target)
    extra: list[Where] = []

    def finish(yielded: Sequence[Value]) -> None:
        extra.extend(share(planner, planner.env[v]) for v in yielded)

    planner.out += _without_args(planner, region, finish)
    for target, result in zip(targets, op.results, strict=False):
        where = Flat(target.var, target.dims) if isinstance(result.type, Array) else Cell(target.var)
        planner.bind(result, where)
    for result, where in zip(op.results[len(targets) :], extra, strict=True):
        planner.bind(result, where)


def _without_args(planner: Planner, region: Region, finish: Finish) -> list[p.Statement]:
    """The statements of a region whose arguments belong to the region around."""
    out, planner.out = planner.out, []
    args, region.args = region.args, []
    planner.region(region, finish)
    region.args = args
    made, planner.out = planner.out, out
    return made


def uses_of_regions(op: Op) -> set[Value]:
    shell = Op(op.name, [], [])
    shell.regions = op.regions
    return set(uses_of(shell))


# Loops ----------------------------------------------------------------------------------------------------


class _Map:
    """A map result of a loop: one slot per iteration, or appended to."""

    def __init__(self, planner: Planner, kind: str, result: Value, offsets: Value | None, inner: tuple, count):
        self.planner, self.kind, self.inner, self.count = planner, kind, inner, count
        self.result, self.offsets = result, offsets
        assert isinstance(result.type, Array)
        if isinstance(result.type.element, Record):
            planner.refuse_records()
        self.element = result.type.element.kind
        self.grows = kind == "cat" or count is None
        self.used: p.Operand = 0
        room = 16 if self.grows or count is None else planner.times(count, planner.count(inner))
        self.var = planner.alloc(self.element, room, result.name)
        if self.grows:
            self.used = planner.name()
            planner.emit(p.Let(self.used, 0))
        if offsets is not None:
            self.starts = planner.alloc("i64", 16 if count is None else planner.plus(count, 1))
            planner.emit(p.Fill(self.starts, "i64", 0, 1))

    def store(self, value: Value, k: str) -> None:
        planner = self.planner
        where = planner.env[value]
        dims = getattr(where, "dims", ())
        if self.kind != "cat" and dims:
            self._check(where, dims)
        count = planner.count(dims if self.kind == "cat" else self.inner)
        if self.grows:
            assert isinstance(self.used, str)
            need = planner.plus(self.used, count)
            planner.emit(p.Grow(self.var, self.element, self.used, need))
            self._put(value, self.used, count, dims)
            planner.emit(p.Let(self.used, need))
        else:
            self._put(value, planner.times(k, count), count, dims)
        if self.offsets is not None:
            at = planner.plus(k, 1)
            if self.count is None:
                planner.emit(p.Grow(self.starts, "i64", at, planner.plus(at, 1)))
            planner.emit(p.Fill(self.starts, "i64", self.used, 1, at))

    def _check(self, where, dims: tuple[p.Operand, ...]) -> None:
        """Sizes agree; an array that does not exist (a side not taken) has none and is left out."""
        planner = self.planner
        if dims == self.inner:
            return
        out, planner.out = planner.out, []
        planner.same_sizes(dims, self.inner)
        checks, planner.out = planner.out, out
        real = planner.compute("ne", (planner.count(dims), 0), "i64", "bool")
        planner.emit(p.If(real, tuple(checks), ()))

    def _put(self, value: Value, start: p.Operand, count: p.Operand, dims: tuple[p.Operand, ...]) -> None:
        planner = self.planner
        where = planner.env[value]
        if isinstance(where, Host):
            planner.emit(p.Fill(self.var, self.element, where.operand, 1, start))
        elif isinstance(where, Cell):
            planner.emit(p.Copy(self.var, where.var, self.element, 1, start))
        else:
            assert isinstance(where, Flat)
            copied = planner.count(dims)
            planner.emit(p.Copy(self.var, where.var, self.element, copied, start))

    def finish(self, count: p.Operand) -> None:
        planner = self.planner
        dims = (self.used,) if self.kind == "cat" else (count, *self.inner)
        planner.nonneg.update(d for d in dims if isinstance(d, str))
        planner.bind(self.result, Flat(self.var, dims))
        if self.offsets is not None:
            planner.bind(self.offsets, Flat(self.starts, (planner.plus(count, 1),)))


def _maps(planner: Planner, op: Op, sizes: Sequence[Value], count) -> list[_Map]:
    carries, body = op.attrs["carries"], op.regions[-1]
    results = iter(op.results[carries + (op.name == "while") :])
    rest = [planner.size(planner.host(v)) for v in sizes]
    made = []
    for kind, value in zip(op.attrs["kinds"], body.yielded[carries:], strict=True):
        if kind == "cat":
            made.append(_Map(planner, kind, next(results), next(results), (), count))
            continue
        rank = len(dims_of(value.type))
        inner, rest = tuple(rest[:rank]), rest[rank:]
        made.append(_Map(planner, kind, next(results), None, inner, count))
    return made


class _Loop:
    """A loop being planned: its carries and maps."""

    def __init__(self, planner: Planner, op: Op, count, k: str):
        self.planner, self.op, self.k = planner, op, k
        first, carries = (1 if op.name == "for" else 0), op.attrs["carries"]
        inits = op.operands[first : first + carries]
        self.maps = _maps(planner, op, op.operands[first + carries :], count)
        body, device = op.regions[-1], planner.residence.device
        invariant = planner.residence.sizes.invariant(op)
        self.carries = []
        for c, (init, arg) in enumerate(zip(inits, body.args[1:], strict=True)):
            fixed: list[p.Operand | None] = []
            if isinstance(arg.type, Array):
                known = zip(dims_of(arg.type), planner.flat(init).dims, strict=True)
                fixed = [k if k is not None else d if c in invariant else None for k, d in known]
            carry = Merged(planner, arg, arg in device, fixed)
            carry.set(init)
            self.carries.append(carry)
        self._hand_over(inits)

    def _hand_over(self, inits: list[Value]) -> None:
        """Inits that nobody needs afterwards belong to the loop now, so that it can write to them."""
        planner, captured = self.planner, uses_of_regions(self.op)
        owned = planner.frames[-1].owned
        for init in dict.fromkeys(inits):
            if planner.dies(init) and init not in captured and isinstance(init.type, Array):
                del owned[init]
                planner.drop(planner.env[init])

    def enter(self, region: Region) -> None:
        planner = self.planner
        planner.nonneg.add(self.k)
        planner.env[region.args[0]] = Host(self.k)
        for carry, arg in zip(self.carries, region.args[1:], strict=True):
            planner.env[arg] = carry.where

    def body(self, region: Region) -> p.Block:
        self.enter(region)
        return self.planner.nested(region, self._next)

    def _next(self, yielded: Sequence[Value]) -> None:
        """The end of an iteration. The carries are assigned all at once."""
        planner, carries = self.planner, len(self.carries)
        for each, value in zip(self.maps, yielded[carries:], strict=True):
            each.store(value, self.k)
        names = {name for c in self.carries for name in mentioned(c.where) if isinstance(name, str)}
        changing = [(c, v) for c, v in zip(self.carries, yielded, strict=False) if planner.env[v] != c.where]
        crossing = {id(c): _Held(planner, v) for c, v in changing if mentioned(planner.env[v]) & names}
        for carry, value in changing:
            if id(carry) not in crossing:
                carry.set(value)
        for carry, _ in changing:
            if id(carry) in crossing:
                crossing[id(carry)].give(carry)
        for arg in self.op.regions[-1].args:  # the variables of the carries live on
            planner.frames[-1].owned.pop(arg, None)

    def finish(self, count: p.Operand) -> None:
        planner, op, carries = self.planner, self.op, len(self.carries)
        for carry, result in zip(self.carries, op.results, strict=False):
            planner.bind(result, carry.where)
        if op.name == "while":
            planner.env[op.results[carries]] = Host(count)
        for each in self.maps:
            each.finish(count)


class _Held:
    """A carry's value kept under another name while the carries change places."""

    def __init__(self, planner: Planner, value: Value):
        self.planner, self.value = planner, value
        where = planner.env[value]
        self.where = share(planner, where)
        self.numbers: dict[str, str] = {}
        for d in [getattr(where, "operand", None), *getattr(where, "dims", ())]:
            if isinstance(d, str):
                self.numbers[d] = planner.name()
                planner.emit(p.Let(self.numbers[d], d))

    def give(self, carry: Merged) -> None:
        planner, where = self.planner, self.where
        if isinstance(where, Host):
            where = Host(self.numbers.get(where.operand, where.operand))  # type: ignore[arg-type]
        elif isinstance(where, Flat):
            where = Flat(where.var, tuple(self.numbers.get(d, d) for d in where.dims))  # type: ignore[arg-type]
        stand_in = Value(self.value.type, self.value.name)
        planner.env[stand_in] = where
        carry.set(stand_in)
        planner.drop(where)


def _for(planner: Planner, op: Op) -> None:
    limit = planner.host(op.operands[0])
    count = planner.size(limit)
    k = planner.name("k")
    loop = _Loop(planner, op, count, k)
    planner.emit(p.For(k, count, loop.body(op.regions[0])))
    loop.finish(count)


def _while(planner: Planner, op: Op) -> None:
    k = planner.name("k")
    planner.emit(p.Let(k, 0))
    loop = _Loop(planner, op, None, k)
    cond, body = op.regions
    found: list[p.Operand] = []
    loop.enter(cond)
    args, cond.args = cond.args, []
    before = planner.nested(cond, lambda yielded: found.append(planner.host(yielded[0])))
    cond.args = args
    inside = [*loop.body(body)]
    out, planner.out = planner.out, []
    planner.emit(p.Let(k, planner.plus(k, 1)))
    inside += planner.out
    planner.out = out
    planner.emit(p.While(before, found[0], tuple(inside)))
    loop.finish(k)


# A `par` one by one ---------------------------------------------------------------------------------------


def _par(planner: Planner, op: Op) -> None:
    """Very few iterations with kernels inside. Maps are stored as in a loop; so is what is reduced, then joined."""
    rank, kinds, region = op.attrs["rank"], op.attrs["kinds"], op.regions[0]
    lead = [planner.size(planner.host(v)) for v in op.operands[:rank]]
    total, rest = planner.count(lead), [planner.size(planner.host(v)) for v in op.operands[rank:]]
    stores: list[_Map] = []
    for kind, value, result in zip(kinds, region.yielded, op.results, strict=True):
        inner = tuple(rest[: len(dims_of(value.type))]) if kind == "map" else ()
        rest = rest[len(inner) :]
        room = Value(Array(element_type_of(value.type), (None,)), result.name)
        stores.append(_Map(planner, "map", result if kind == "map" else room, None, inner, total))
    k = planner.name("k")
    planner.nonneg.add(k)

    def finish(yielded: Sequence[Value]) -> None:
        for each, value in zip(stores, yielded, strict=True):
            each.store(value, k)

    out, planner.out = planner.out, []
    _indices(planner, region, k, lead)
    before, planner.out = planner.out, out
    planner.emit(p.For(k, total, (*before, *planner.nested(region, finish))))
    for kind, each, result in zip(kinds, stores, op.results, strict=True):
        if kind == "map":
            planner.bind(result, Flat(each.var, (*lead, *each.inner)))
        else:
            planner.bind(result, Cell(_joined(planner, kind, each, total)))


def _indices(planner: Planner, region: Region, k: str, lead: Sequence[p.Operand]) -> None:
    """The indices of iteration k, row-major."""
    rest: p.Operand = k
    for arg, size in reversed(list(zip(region.args[1:], lead[1:], strict=True))):
        planner.env[arg] = Host(planner.compute("mod", (rest, size), "i64"))
        rest = planner.compute("floordiv", (rest, size), "i64")
    if region.args:
        planner.env[region.args[0]] = Host(rest)


def _joined(planner: Planner, kind: str, each: _Map, total: p.Operand) -> str:
    """The variable of a reduction of the values stored."""
    buffers = [each.var]
    if kind.startswith("arg"):
        numbers, k = planner.alloc("i64", total), planner.name("k")
        planner.emit(p.For(k, total, (p.Fill(numbers, "i64", k, 1, k),)))
        buffers.append(numbers)
    *others, found = join(planner, [(kind, each.element)], total, buffers)
    for var in (*buffers, *others):
        planner.emit(p.Drop(var))
    return found


CONTROL = {"if": _if, "withacc": _withacc, "for": _for, "while": _while, "par": _par}
