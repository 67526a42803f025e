"""Which values differ between the iterations of a `par`, and whether strips of iterations pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import F32, Record, Scalar, element_of

_MATHS = 20.0
_COSTS = {
    "const": 0.0, "div": 5.0, "sqrt": 5.0, "ratio": 6.0, "select": 1.0, "floordiv": 20.0, "mod": 20.0, "sign": 3.0,
    "from_sigmoid_tail": 3.0, "from_tanh_tail": 12.0,
    **dict.fromkeys(("add", "sub", "mul", "neg", "abs", "minimum", "maximum", "clamp", "relu", "floor", "ceil"), 1.0),
    **dict.fromkeys(("round", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "cast"), 1.0), "ipow": 4.0,
}  # fmt: skip
Key = tuple[Value, tuple[Value, ...]]  # an array, and the indices at which rows or matrices of it are read
# Vectors at once around short loops: enough for two operations a cycle, each of which waits for the one before it.
MANY = 8
# The most operations in a loop for which two vectors are taken at once where its iterations wait for each other.
_LONG = 160
_SLOW_IN_LANES = ("lgamma", "digamma", "polygamma", "sinc")
MATHS = set(SCALAR_OPS) - set(_COSTS)
_USUAL_COUNT = 16
_MANY_ARRAYS = 6
_SIMPLE = (*SCALAR_OPS, "read", "dim", "yield")


@dataclass(frozen=True, slots=True)
class Plan:
    """A `par` in strips.

    lanes: of one vector. several: vectors taken at once while there are iterations enough. varying: values that
    differ between lanes. local: accumulators made inside. rows: arrays of which each iteration reads its own row over
    and over; a strip first turns them so that lanes are innermost.
    """

    lanes: int
    several: int
    varying: set[Value]
    local: set[Value]
    rows: tuple[Key, ...] = ()


def plan_of(op: Op, lanes: int, registers: int = 32) -> Plan | None:
    """The plan for strips over the last index, or None where they are impossible or do not pay.

    registers: how many vectors a processor holds.
    """
    region = op.regions[0]
    extent = op.operands[op.attrs["rank"] - 1].op
    if lanes < 2 or (extent is not None and extent.name == "const" and extent.attrs["value"] < lanes):
        return None
    if not _worth_a_look(op):
        return None
    if any(isinstance(element_of(v.type), Record) for v in region.yielded):
        return None
    flow = _Varying(region)
    if not _supported(region, flow.varying):
        return None
    rows = _Rows(region, is_contraction(op)).found
    one, many = _Cost(flow, lanes, {region.args[-1]: 1}, rows).both(region)
    if many >= 0.8 * one:
        return None
    several = _several(region, flow.varying, any(k.startswith("arg") for k in op.attrs["kinds"]))
    if is_contraction(op):
        sums = next(len(inner.results) for inner in region.ops if inner.name == "par")
        several = min(several, max(registers // 8 // sums, 1))  # sums of four rows have half of the registers
        few = extent is not None and extent.name == "const" and extent.attrs["value"] <= lanes
        lanes *= 2 if _is_single(region) and not few else 1
    return Plan(lanes, several, flow.varying, flow.local, rows)


def has_none(loops: Sequence[Op], lanes: int) -> bool:
    """Whether none of these loops, each in the one before, becomes strips, although there are lanes."""
    return lanes > 1 and all(plan_of(op, lanes) is None for op in loops)


def _is_single(region: Region) -> bool:
    """Whether all floats are f32, of which a vector has twice as many."""
    types = {r.type for op in region.walk() for r in op.results if isinstance(r.type, Scalar) and r.type.is_float}
    return types == {F32}


def is_contraction(op: Op) -> bool:
    """A `par` over two or more indices around one sum, all of scalars; that has as many terms in all iterations."""
    region = op.regions[0]
    if op.attrs["rank"] < 2 or set(op.attrs["kinds"]) != {"map"}:
        return False
    if not all(isinstance(v.type, Scalar) for v in region.yielded):
        return False
    loops = [inner for inner in region.ops if inner.name not in _SIMPLE]
    if len(loops) != 1 or not _is_sum(loops[0]):
        return False
    count = loops[0].operands[0]
    return count not in region.args and (count.op not in region.ops or count.op.name in ("const", "dim"))


def put_row_first(op: Op) -> None:
    """Write the product of a contraction in one order: what is read at the column last.

    So a product of two matrices has the same text whichever of them is named first.
    """
    column = op.regions[0].args[-1]
    loop = next(inner for inner in op.regions[0].ops if inner.name == "par")
    ops = loop.regions[0].ops
    if [inner.name for inner in ops] != ["read", "read", "mul", "yield"]:
        return
    if column in ops[0].operands and column not in ops[1].operands:
        ops[:2] = ops[1], ops[0]
    if ops[2].operands == [ops[1].result, ops[0].result]:
        ops[2].operands = [ops[0].result, ops[1].result]


def _is_sum(op: Op) -> bool:
    if op.name != "par" or op.attrs["rank"] != 1 or set(op.attrs["kinds"]) != {"sum"}:
        return False
    return all(inner.name in _SIMPLE for inner in op.regions[0].ops)


def _several(region: Region, varying: set[Value], waits: bool) -> int:
    """How many vectors a strip takes: several where the next operation would otherwise wait for the one before.

    waits: there is a reduction of several steps.
    """
    total = sum(1 for op in region.walk() if op.results and op.results[0] in varying)
    if any(op.name in ("par", "for", "while") for op in region.ops):
        work = max(_work(region, varying), total // 2)  # all of it is written once for each vector, and compiled
        most = _LONG if _waits(region, varying) else 40
        return MANY if work <= 10 else 4 if work <= 24 else 2 if work <= most else 1
    return 4 if waits and total <= 10 else 2 if total <= 64 else 1


def _waits(region: Region, varying: set[Value]) -> bool:
    """Whether a loop carries numbers that differ, so that each of its iterations waits for the one before."""
    loops = (op for op in region.walk() if op.name in ("for", "while"))
    return any(v in varying and isinstance(v.type, Scalar) for op in loops for v in op.regions[-1].args[1:])


def _work(region: Region, varying: set[Value]) -> int:
    """Operations of the largest loop body; what hardly ever runs does not count."""
    own = largest = 0
    for op in region.ops:
        regions = op.regions[1:] if op.attrs.get("rare") else op.regions
        inner = [_work(r, varying) for r in regions]
        if op.name == "if":
            own += sum(inner)
        elif op.regions:
            largest = max(largest, *inner)
        elif op.results and op.results[0] in varying:
            own += 1
    return max(own, largest)


def _worth_a_look(op: Op) -> bool:
    """Loops of plain arithmetic without inner loops, branches or checks are vectorised by LLVM itself.

    Unless there are so many arrays that it cannot tell that none overlaps another.
    """
    if any(k.startswith("arg") for k in op.attrs["kinds"]):
        return True
    inside = {inner.name for inner in op.regions[0].ops}
    if inside & MATHS or any(n in inside for n in ("par", "for", "while", "if", "check", "update")):
        return True
    arrays = {inner.operands[0] for inner in op.regions[0].ops if inner.name in ("read", "accum")}
    return len(arrays) + op.attrs["kinds"].count("map") >= _MANY_ARRAYS


class _Varying:
    """`varying`: values that differ between iterations over the last index, by a fixpoint over carried values.

    Also `local`: handles of accumulators inside.
    """

    def __init__(self, region: Region):
        self.varying: set[Value] = {region.args[-1]}
        self.local: set[Value] = set()
        size = 0
        while size != len(self.varying):
            size = len(self.varying)
            self._region(region, False)

    def _mark(self, value: Value, when: bool) -> None:
        if when:
            self.varying.add(value)

    def _region(self, region: Region, masked: bool) -> None:
        for op in region.ops:
            self._op(op, masked)

    def _op(self, op: Op, masked: bool) -> None:
        varying, name = self.varying, op.name
        if name == "par":
            self._region(op.regions[0], masked)
            for value, result in zip(op.regions[0].yielded, op.results, strict=True):
                self._mark(result, value in varying)
        elif name in ("for", "while"):
            self._loop(op, masked)
        elif name == "if":
            self._if(op, masked)
        elif name == "withacc":
            self._withacc(op, masked)
        elif name == "accum":
            self._mark(op.operands[0], masked or any(v in varying for v in op.operands[1:]))
        elif name in ("shaped", "reshape", "dim"):
            if name != "dim":
                self._mark(op.results[0], op.operands[0] in varying)
        elif name not in ("yield", "check"):
            for result in op.results:
                self._mark(result, any(v in varying for v in op.operands))

    def _loop(self, op: Op, masked: bool) -> None:
        varying, carries, body = self.varying, op.attrs["carries"], op.regions[-1]
        first = 1 if op.name == "for" else 0
        for region in op.regions:
            self._region(region, masked)
            for c in range(carries):
                arg, init = region.args[1 + c], op.operands[first + c]
                self._mark(arg, init in varying or body.yielded[c] in varying)
        results = iter(op.results[carries + (op.name == "while") :])
        for c in range(carries):
            self._mark(op.results[c], body.args[1 + c] in varying)
        for kind, value in zip(op.attrs["kinds"], body.yielded[carries:], strict=True):
            self._mark(next(results), value in varying)
            if kind == "cat":
                next(results)

    def _if(self, op: Op, masked: bool) -> None:
        differs = op.operands[0] in self.varying
        for region in op.regions:
            self._region(region, masked or differs)
        for a, b, result in zip(op.regions[0].yielded, op.regions[1].yielded, op.results, strict=True):
            self._mark(result, differs or a in self.varying or b in self.varying)

    def _withacc(self, op: Op, masked: bool) -> None:
        body = op.regions[0]
        self.local.update(body.args)
        for init, arg in zip(op.operands, body.args, strict=True):
            self._mark(arg, init in self.varying)
        self._region(body, masked)
        for arg, result in zip(body.args, op.results, strict=False):
            self._mark(result, arg in self.varying)
        for value, result in zip(body.yielded, op.results[len(op.operands) :], strict=True):
            self._mark(result, value in self.varying)


def _supported(region: Region, varying: set[Value]) -> bool:
    return all(_supported_op(op, varying) for op in region.ops)


def _supported_op(op: Op, varying: set[Value]) -> bool:
    name = op.name
    if name in SCALAR_OPS:
        return True
    if any(isinstance(element_of(v.type), Record) for v in (*op.operands, *op.results)):
        return False
    if name == "par":
        fixed = op.operands
    elif name == "for":
        fixed = [op.operands[0], *op.operands[1 + op.attrs["carries"] :]]
    elif name == "while":
        fixed = [op.regions[0].yielded[0], *op.operands[op.attrs["carries"] :]]
    elif name in ("shaped", "reshape"):
        fixed = op.operands[1:]
    elif name == "insert":
        fixed = op.operands[2:]
    elif name == "argsort":
        fixed = op.operands
    elif name == "if" and op.operands[0] in varying:
        if not all(isinstance(r.type, Scalar) for r in op.results):
            return False
        fixed = []
    elif name in ("read", "update", "accum", "dim", "stop_gradient", "undef", "check", "yield", "if", "withacc"):
        fixed = []
    else:
        return False
    return not any(v in varying for v in fixed) and all(_supported(r, varying) for r in op.regions)


class _Rows:
    """Arrays from outside that are read at [the last index, inner loops...], inside further loops.

    In a contraction the rows are such a loop, and there may be other indices first that neither changes.
    """

    def __init__(self, region: Region, contraction: bool):
        self.contraction = contraction
        self.index = region.args[-1]
        self.inner: set[Value] = set()
        self.again: dict[Key, None] = {}
        self._region(region, [])
        self.inner.difference_update(region.args[:-2] if contraction else ())
        self.found = tuple(key for key in self.again if self.inner.isdisjoint((key[0], *key[1])))

    def _region(self, region: Region, loops: list[Value]) -> None:
        self.inner.update(region.args)
        for op in region.ops:
            self.inner.update(op.results)
            if op.name == "read":
                self._read(op, loops)
            for r in op.regions:
                self._region(r, [*loops, *_indices_over_sizes(op, r)])

    def _read(self, op: Op, loops: list[Value]) -> None:
        key, rest = row_of(op, self.index)
        if not rest or len(set(rest)) < len(rest) or not set(rest) <= set(loops):
            return
        if self.contraction or (not key[1] and len(rest) < len(loops)):
            self.again[key] = None


def row_of(op: Op, index: Value | None) -> tuple[Key, list[Value]]:
    """Of a read at [..., index, ...]: the array with the indices before, and those behind."""
    array, *indices = op.operands
    at = indices.index(index) if index in indices else len(indices)
    return (array, tuple(indices[:at])), indices[at + 1 :]


def _indices_over_sizes(op: Op, region: Region) -> list[Value]:
    """Indices of a loop whose extents are sizes of arrays (or numbers)."""
    if op.name not in ("par", "for"):
        return []
    extents = op.operands[: op.attrs["rank"]] if op.name == "par" else op.operands[:1]
    pairs = zip(region.args, extents, strict=False)
    return [arg for arg, extent in pairs if extent.op is not None and extent.op.name in ("dim", "const")]


# Cost -----------------------------------------------------------------------------------------------------------


def strides_in(region: Region, strides: dict[Value, int | None]) -> None:
    """How values of a region move with an index: 0, 1 or None for anything else; what is not listed does not move."""
    for op in region.ops:
        if not op.results:
            continue
        moves = [strides.get(v, 0) for v in op.operands]
        result: int | None = None
        if not any(m != 0 for m in moves):
            continue
        if op.name == "add" and set(moves) == {0, 1} or op.name == "sub" and moves == [1, 0]:
            result = 1
        for value in op.results:
            strides[value] = result


def _is_contiguous(indices: list[Value], strides: dict[Value, int | None]) -> bool:
    moves = [strides.get(v, 0) for v in indices]
    return all(m == 0 for m in moves[:-1]) and (not moves or moves[-1] in (0, 1))


def _vectorises(op: Op) -> bool:
    """Whether LLVM will vectorise the innermost loop of this `par` well."""
    region = op.regions[0]
    strides: dict[Value, int | None] = {region.args[-1]: 1} if region.args else {}
    strides_in(region, strides)
    for inner in region.ops:
        if inner.name == "read" and not _is_contiguous(inner.operands[1:], strides):
            return False
        if inner.name == "accum" and not _is_contiguous(inner.operands[2:], strides):
            return False
        if inner.regions or inner.name in ("check", "update", "call"):
            return False
    return not any(k.startswith("arg") for k in op.attrs["kinds"])


class _Cost:
    """Estimates of one iteration: alone, and its share of a strip."""

    def __init__(self, flow: _Varying, lanes: int, strides: dict[Value, int | None], rows: tuple[Key, ...]):
        self.rows = {array for array, _ in rows}
        self.varying = flow.varying
        self.local = flow.local
        self.lanes = lanes
        self.strides = strides

    def both(self, region: Region) -> tuple[float, float]:
        return self._region(region, 1.0, 1.0)

    def _region(self, region: Region, times: float, width: float) -> tuple[float, float]:
        strides_in(region, self.strides)
        for value in self.varying:
            self.strides.setdefault(value, None)
        one = many = 0.0
        for op in region.ops:
            a, b = self._op(op, times, width)
            one += a
            many += b
        return one, many

    def _op(self, op: Op, times: float, width: float) -> tuple[float, float]:
        name, lanes = op.name, self.lanes
        if name in SCALAR_OPS:
            cost = times * _COSTS.get(name, _MATHS)
            varies = op.results[0] in self.varying
            return cost / width, cost if varies and name in _SLOW_IN_LANES else cost / lanes
        if name == "read":
            return times / width, times * self._element(op.operands[0], op.operands[1:])
        if name == "update":
            return 2 * times, times * self._element(op.results[0], op.operands[2:])
        if name == "accum":
            return 2 * times / width, 2 * times * self._added(op)
        if name == "check":
            return times, 2 * times / lanes
        if not op.regions:
            return times, 2 * times / lanes
        return self._regions(op, times, width)

    def _element(self, array: Value, indices: list[Value]) -> float:
        """Cost of one element access in a strip, per iteration."""
        if not any(v in self.varying for v in indices) or array in self.rows:
            return 1.0 / self.lanes
        if array in self.varying or not _is_contiguous(indices, self.strides):
            return 2.0
        return 1.5 / self.lanes

    def _added(self, op: Op) -> float:
        handle, indices = op.operands[0], op.operands[2:]
        if any(v in self.varying for v in indices):
            return self._element(handle, indices)
        return (1.0 if handle in self.local else 5.0) / self.lanes

    def _regions(self, op: Op, times: float, width: float) -> tuple[float, float]:
        inner = times
        if op.name == "par":
            for extent in op.operands[: op.attrs["rank"]]:
                inner *= _count(extent)
            width = self.lanes if _vectorises(op) else 1.0
        elif op.name == "for":
            inner, width = inner * _count(op.operands[0]), 1.0
        elif op.name == "while":
            inner, width = inner * _USUAL_COUNT, 1.0
        one = many = 0.0
        for region in op.regions[1:] if op.attrs.get("rare") else op.regions:
            a, b = self._region(region, inner, width)
            one, many = one + a, many + b
        loop = inner if op.name in ("par", "for", "while") else times
        one += loop / width
        many += loop / self.lanes
        if op.name == "if" and op.operands[0] not in self.varying:
            return one / 2, many / 2
        return (one / 2, many) if op.name == "if" else (one, many)


def _count(value: Value) -> float:
    op = value.op
    return float(min(op.attrs["value"], 64)) if op is not None and op.name == "const" else float(_USUAL_COUNT)
