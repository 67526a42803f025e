"""Legalises a reverse sweep: every forward value it uses from inside a loop or branch is kept or computed again.

A reverse region is paired with the forward region it reverses. For each pair, innermost first, the forward values that
the reverse region needs are split by a minimum cut: those on the cut are *kept* (one more map result of the loop, one
more value of the branch), those after it are *computed again* at the start of the reverse region. What is kept from an
inner loop is a value of the loop around it, which the next pair handles in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aotdiff.ad.cleanup import prune, strip_effects, without_outer_handles
from aotdiff.ad.costs import Costs, free_values_of
from aotdiff.ad.mincut import INFINITE, FlowGraph
from aotdiff.ad.sizes import Sizes
from aotdiff.ad.structure import Structure, map_slots
from aotdiff.ir.builder import Builder, static_size
from aotdiff.ir.graph import Module, Op, Region, Value
from aotdiff.ir.ops import map_result
from aotdiff.ir.rewrite import Env, copy_op
from aotdiff.ir.types import I64, Acc, Array, Type, dims_of, element_of


@dataclass(eq=False, slots=True)
class Pairing:
    """A forward region of `op` and the region that reverses it. For a whole function `op` is a stand-in, `BOUNDARY`.

    args: region arguments that the reverse region has in closed form (indices). index: where the iteration's values
    stand in kept maps. start: operations at the head of `reverse` that these come from.
    """

    op: Op
    forward: Region
    reverse: Region
    args: dict[Value, Value]
    index: list[Value]
    start: int = 0


# Stands for the call between a function that runs forward and one that reverses it.
BOUNDARY = Op("call", [], [])


def legalise(
    module: Module,
    structure: Structure,
    sizes: Sizes,
    pairs: dict[Region, Pairing],
    sweep: Region,
    travelling: Iterable[Value] = (),
    boundary: Pairing | None = None,
) -> list[Value]:
    """Make every operand in `sweep` one that is in scope; changes the forward function and the sweep.

    `travelling` are array parameters that calls pass on changed. With `boundary` the sweep is to be another function,
    with `boundary.args` in scope: returned are the forward values that it takes as the fields of the record
    `boundary.index`, which the sweep unpacks.
    """
    return _Legaliser(module, structure, sizes, pairs, travelling).run(sweep, boundary)


class _Legaliser:
    def __init__(
        self,
        module: Module,
        structure: Structure,
        sizes: Sizes,
        pairs: dict[Region, Pairing],
        travelling: Iterable[Value],
    ):
        self.module = module
        self.structure = structure
        self.sizes = sizes
        self.pairs = pairs
        self.costs = Costs(structure, sizes, travelling)
        self.templates: dict[Op, Op] = {}
        self.lifted: dict[Value, Value] = {}
        self.kept: dict[tuple[Value, Op], list[Value]] = {}
        self.fields: list[Value] = []

    def run(self, sweep: Region, boundary: Pairing | None) -> list[Value]:
        self._visit(sweep)
        if boundary is not None:
            self._resolve(boundary)
            self.sizes.flush()
            return self.fields
        top = self.structure.func.body
        env: Env = {}
        for value in self._needs(sweep, top):
            lifted = self._lift(value, top)
            if lifted is not value:
                env[value] = lifted
        _replace(sweep.ops, env)
        self.sizes.flush()
        return []

    def _visit(self, region: Region) -> None:
        for op in list(region.ops):
            for inner in op.regions:
                self._visit(inner)
        pairing = self.pairs.get(region)
        if pairing is not None:
            self._resolve(pairing)

    def _needs(self, region: Region, home: Region) -> list[Value]:
        """Forward values of `home` used in a reverse region."""
        found: dict[Value, None] = {}
        for op in region.walk():
            for v in op.operands:
                if v not in found and self.structure.home(v) is home:
                    found[v] = None
        return list(found)

    # One pair --------------------------------------------------------------------------------------------

    def _resolve(self, pairing: Pairing) -> None:
        needs = [v for v in self._needs(pairing.reverse, pairing.forward) if v not in pairing.args]
        if needs:
            keep, again = self._plan(pairing, needs)
            order = {op: k for k, op in enumerate(self._flat(pairing.forward))}
            _Rewriter(self, pairing, order).write(keep, again)
        else:
            _replace(pairing.reverse.ops, pairing.args)

    def _plan(self, pairing: Pairing, needs: list[Value]) -> tuple[list[Value], list[Op]]:
        """The values to keep and the operations to run again."""
        while True:
            kept, again = _Cut(self, pairing).solve(needs)
            more = [s for v in kept for s in self._sizes_needed(pairing, v) if s not in needs]
            if not more:
                return kept, again
            needs = needs + list(dict.fromkeys(more))

    def _sizes_needed(self, pairing: Pairing, value: Value) -> list[Value]:
        """Sizes inside the loop by which a kept array is cut out of a flat one."""
        if len(dims_of(value.type)) < 2 or pairing.op.name in ("if", "call") or self.costs.regular(value, pairing.op):
            return []
        sizes = self.sizes.of(value)
        self.sizes.flush()
        return [s for s in sizes if self.structure.home(s) is pairing.forward and s not in pairing.args]

    def _flat(self, region: Region) -> list[Op]:
        """The operations of a region, with those of `withacc` bodies in place."""
        ops: list[Op] = []
        for op in region.ops:
            if op.name == "withacc":
                ops += self._flat(op.regions[0])
            ops.append(op)
        return ops

    def template(self, op: Op) -> Op:
        """The operation without its effects on the outside, to be copied."""
        if not op.regions and (op.name != "call" or not any(isinstance(v.type, Acc) for v in op.operands)):
            return op
        template = self.templates.get(op)
        if template is None:
            template = without_outer_handles(self.module, copy_op(op, {}), set())
            inside: set[Value] = set()
            for region in template.regions:
                if op.name == "withacc":
                    inside.update(region.args)
                strip_effects(self.module, region, inside)
                prune(region)
            self.templates[op] = template
        return template

    # Keeping ---------------------------------------------------------------------------------------------

    def _lift(self, value: Value, home: Region) -> Value:
        """The value as one of `home` itself rather than of a `withacc` body in it."""
        region = self.structure.physical(value)
        while region is not home:
            assert region is not None
            outer = self.structure.owner[region]
            assert outer is not None and outer.name == "withacc"
            if value not in self.lifted:
                held = zip(outer.results[len(outer.operands) :], region.yielded, strict=True)
                known = next((r for r, v in held if v is value), None)
                if known is not None:
                    self.lifted[value] = known
            if value not in self.lifted:
                region.terminator.operands.append(value)
                self.lifted[value] = _add_result(outer, value.type, value.name)
            value = self.lifted[value]
            region = self.structure.region_of[outer]
        return value

    def keep(self, value: Value, op: Op, home: Region) -> list[Value]:
        """New results of `op` that hold the value: one, or flat values and offsets."""
        key = (value, op)
        if key not in self.kept:
            value = self._lift(value, home)
            self.templates.clear()
            if (known := _held(value, op, home)) is not None:
                self.kept[key] = [known]
            elif op.name == "if":
                self.kept[key] = [self._keep_branch(value, op, home)]
            elif isinstance(value.type, Array) and not self.costs.regular(value, op):
                self.kept[key] = self._keep_flat(value, op, home)
            else:
                self.kept[key] = [self._keep_map(value, op, home)]
            self.sizes.flush()
        return self.kept[key]

    def keep_field(self, value: Value, home: Region) -> None:
        """Make the value the next field of the function's record."""
        self.fields.append(self._lift(value, home))

    def _keep_map(self, value: Value, op: Op, home: Region) -> Value:
        home.terminator.operands.append(value)
        lead = op.operands[: op.attrs["rank"]] if op.name == "par" else op.operands[:1] if op.name == "for" else []
        static = tuple(static_size(v) for v in lead) if op.name != "while" else (None,)
        if isinstance(value.type, Array):
            op.operands.extend(self.sizes.of(value))
        op.attrs = {**op.attrs, "kinds": (*op.attrs["kinds"], "map")}
        return _add_result(op, map_result(value.type, static), _saved(value))

    def _keep_flat(self, value: Value, op: Op, home: Region) -> list[Value]:
        assert isinstance(value.type, Array)
        if value.type.rank > 1:
            value = self._flatten(value, home)
        home.terminator.operands.append(value)
        op.attrs = {**op.attrs, "kinds": (*op.attrs["kinds"], "cat")}
        flat = _add_result(op, Array(element_of(value.type), (None,)), _saved(value))
        return [flat, _add_result(op, Array(I64, (None,)), f"{value.name}_offsets" if value.name else "offsets")]

    def _flatten(self, value: Value, home: Region) -> Value:
        sizes = self.sizes.of(value)
        self.sizes.flush()
        tail = Region()
        b = Builder(tail)
        count = sizes[0]
        for s in sizes[1:]:
            count = b.scalar("mul", count, s)
        flat = b.reshape(value, [count])
        self._insert_before_yield(home, tail.ops)
        return flat

    def _keep_branch(self, value: Value, op: Op, home: Region) -> Value:
        home.terminator.operands.append(value)
        (other,) = (r for r in op.regions if r is not home)
        tail = Region()
        b = Builder(tail)
        other_value = _nothing(b, value.type)
        self._insert_before_yield(other, tail.ops)
        other.terminator.operands.append(other_value)
        type_ = value.type
        if isinstance(type_, Array):
            type_ = Array(type_.element, (None,) * type_.rank)
        return _add_result(op, type_, _saved(value))

    def _insert_before_yield(self, region: Region, ops: list[Op]) -> None:
        region.ops[-1:-1] = ops
        for op in ops:
            self.structure.add_op(op, region)


class _Cut:
    """The minimum cut for one pair."""

    def __init__(self, legaliser: _Legaliser, pairing: Pairing):
        self.legaliser = legaliser
        self.pairing = pairing
        self.graph = FlowGraph()
        self.source = self.graph.node()
        self.sink = self.graph.node()
        self.values: dict[Value, tuple[int, int]] = {}
        self.ops: dict[Op, int] = {}
        self.work: list[Op] = []

    def solve(self, needs: list[Value]) -> tuple[list[Value], list[Op]]:
        for v in needs:
            self.graph.edge(self._value(v)[1], self.sink)
        while self.work:
            self._connect(self.work.pop())
        side = self.graph.source_side(self.source, self.sink)
        return self._demanded(needs, side)

    def _value(self, value: Value) -> tuple[int, int]:
        """Nodes of a value: before and after the edge that stands for keeping it."""
        nodes = self.values.get(value)
        if nodes is None:
            graph, costs = self.graph, self.legaliser.costs
            nodes = self.values[value] = graph.node(), graph.node()
            if isinstance(value.owner, Region):
                graph.edge(self.source, nodes[0])
                graph.edge(*nodes, costs.keep(value, self.pairing.op))
                return nodes
            op = value.owner
            assert op is not None
            free = op.name in ("const", "undef")
            graph.edge(*nodes, INFINITE if free else costs.keep(value, self.pairing.op))
            if op not in self.ops:
                self.ops[op] = graph.node()
                self.work.append(op)
            graph.edge(self.ops[op], nodes[0])
        return nodes

    def _connect(self, op: Op) -> None:
        node = self.ops[op]
        cost = self.legaliser.costs.again(op, self.pairing.forward)
        if op.name == "dim" and self.pairing.op.name in ("for", "while"):
            cost = INFINITE  # a kept array is cut out of a flat one by its sizes, not the other way round
        self.graph.edge(self.source, node, cost)
        for v in self._inputs(op):
            self.graph.edge(self._value(v)[1], node)

    def _inputs(self, op: Op) -> list[Value]:
        """Values of the forward region that running `op` again takes."""
        structure, pairing = self.legaliser.structure, self.pairing
        return [
            v for v in free_values_of(self.legaliser.template(op))
            if structure.home(v) is pairing.forward and v not in pairing.args and not isinstance(v.type, Acc)
        ]

    def _demanded(self, needs: list[Value], side: list[bool]) -> tuple[list[Value], list[Op]]:
        """Kept values and operations run again, of those that are really asked for."""
        keep: dict[Value, None] = {}
        again: dict[Op, None] = {}
        work = list(needs)
        while work:
            v = work.pop()
            if v in keep:
                continue
            if side[self.values[v][0]]:
                keep[v] = None
                continue
            op = v.owner
            assert isinstance(op, Op)
            if op not in again:
                again[op] = None
                work += self._inputs(op)
        return list(keep), list(again)


class _Rewriter:
    """Writes the head of one reverse region and redirects its operands."""

    def __init__(self, legaliser: _Legaliser, pairing: Pairing, order: dict[Op, int]):
        self.legaliser = legaliser
        self.pairing = pairing
        self.order = order
        self.head = Region()
        self.b = Builder(self.head, pairing.op.loc)
        self.env: Env = dict(pairing.args)
        # Kept rows: the row, the array it is a row of, and how an index of the row becomes one of the array.
        self.rows: list[tuple[Value, Value, Value | None]] = []
        self.unpack: Op | None = None

    def write(self, keep: list[Value], again: list[Op]) -> None:
        # In forward order: an operation run again may take a kept value, and a kept array the sizes made after it.
        templates = {op: self.legaliser.template(op) for op in again}
        old = self.pairing.reverse.ops
        steps: list[tuple[tuple[int, int], Op | Value]] = [((self.order[op], 0), op) for op in again]
        steps += [((self._place(v), 1 + isinstance(v.type, Array)), v) for v in keep]
        for _, step in sorted(steps, key=lambda s: s[0]):
            if isinstance(step, Op):
                self._again(step, templates[step])
            else:
                self._kept(step)
        start = self.pairing.start
        _replace(old, self.env)
        old[start:start] = self.head.ops
        for row, array, first in self.rows:
            self._read_through(row, array, first)

    def _place(self, value: Value) -> int:
        """Position of the last of what the value takes: its definition, and its sizes if a loop keeps it flat."""
        flat = self.pairing.op.name not in ("if", "call") and len(dims_of(value.type)) > 1
        sizes = self.legaliser.sizes.of(value) if flat else []
        # What the checker does not know: an owner can be looked up.
        return max(self.order.get(v.owner, -1) for v in [value, *sizes])  # type: ignore[call-overload]

    def _again(self, op: Op, template: Op) -> None:
        copy = copy_op(template, self.env)
        self.env.update(zip(op.results, copy.results, strict=False))
        self.head.ops.append(copy)

    def _kept(self, value: Value) -> None:
        op = self.pairing.op
        if op is BOUNDARY:
            self._field(value)
            return
        results = self.legaliser.keep(value, op, self.pairing.forward)
        if op.name == "if":
            self.env[value] = results[0]
        elif not isinstance(value.type, Array):
            self.env[value] = self._named(self.b.read(results[0], *self.pairing.index), value)
        elif len(results) == 1:
            self._regular_row(value, results[0])
        else:
            self._flat_row(value, *results)

    def _field(self, value: Value) -> None:
        if self.unpack is None:
            self.unpack = self.b.emit("record_unpack", self.pairing.index, [])
        self.legaliser.keep_field(value, self.pairing.forward)
        self.env[value] = _add_result(self.unpack, value.type, value.name)

    def _regular_row(self, value: Value, array: Value) -> None:
        sizes, index = self.legaliser.sizes.of(value), self.pairing.index
        row = self.b.par(sizes, ["map"], lambda b, *i: [b.read(array, *index, *i)])[0]
        self.env[value] = self._named(row, value)
        self.rows.append((row, array, None))

    def _flat_row(self, value: Value, flat: Value, offsets: Value) -> None:
        b, (k,) = self.b, self.pairing.index
        first = b.read(offsets, k)
        count = b.sub(b.read(offsets, b.add(k, b.i64(1))), first)
        row = b.par([count], ["map"], lambda b, i: [b.read(flat, b.add(first, i))])[0]
        if len(dims_of(value.type)) > 1:
            sizes = [self.env.get(s, s) for s in self.legaliser.sizes.of(value)]
            row = b.reshape(row, sizes)
        else:
            self.rows.append((row, flat, first))
        self.env[value] = self._named(row, value)

    def _named(self, new: Value, value: Value) -> Value:
        new.name = value.name
        return new

    def _read_through(self, row: Value, array: Value, first: Value | None) -> None:
        """Where a kept row is only read at single elements, read the kept array itself."""
        region = self.pairing.reverse
        users = [op for op in region.walk() for v in op.operands if v is row]
        if any(op.name != "read" for op in users):
            return
        if first is None:
            for op in users:
                op.operands = [array, *self.pairing.index, *op.operands[1:]]
        else:
            _shift_reads(region, row, array, first)
        region.ops = [op for op in region.ops if op is not row.owner]


def _shift_reads(region: Region, row: Value, flat: Value, first: Value) -> None:
    """Turn `read row, i` into `read flat, first + i`."""
    ops: list[Op] = []
    for op in region.ops:
        for inner in op.regions:
            _shift_reads(inner, row, flat, first)
        if op.name == "read" and op.operands[0] is row:
            shifted = Op("add", [first, op.operands[1]], [I64], loc=op.loc)
            ops.append(shifted)
            op.operands = [flat, shifted.result]
        ops.append(op)
    region.ops = ops


def _held(value: Value, op: Op, home: Region) -> Value | None:
    """A result of `op` that holds the value already."""
    if op.name == "if":
        return next((r for r, v in zip(op.results, home.yielded, strict=True) if v is value), None)
    slots = map_slots(op)
    return next((op.results[r] for kind, k, r, _ in slots if kind == "map" and home.yielded[k] is value), None)


def _saved(value: Value) -> str:
    """The name of what keeps a value: `emit --stage residuals` looks for it."""
    if value.name.endswith("saved"):
        return value.name
    return f"{value.name}_saved" if value.name else "saved"


def _add_result(op: Op, type_: Type, name: str) -> Value:
    value = Value(type_, name, op, len(op.results))
    op.results.append(value)
    return value


def _nothing(b: Builder, type_: Type) -> Value:
    """What the side not taken gives for a value saved by the other: undefined, or an array without elements."""
    if not isinstance(type_, Array):
        return b.undef(type_)
    element = b.undef(type_.element)
    return b.fill(element, [b.i64(0)] * type_.rank)


def _replace(ops: list[Op], env: Env) -> None:
    """Replace operands everywhere in the operations; no chains."""
    if not env:
        return
    work = list(ops)
    while work:
        op = work.pop()
        op.operands = [env.get(v, v) for v in op.operands]
        for region in op.regions:
            work += region.ops
