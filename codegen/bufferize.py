"""Which arrays can be written in place: analysis of the graph before emission.

`origin` follows an array back through the operations that hand its memory on (update, insert, withacc, carried
values, branches where both sides agree, map results in the place of what they are computed from, calls that return a
parameter changed) to where that memory came from.
A loop whose carry comes from itself keeps one home buffer; a function whose result comes from a parameter
writes into the caller's buffer. Both are a choice of storage only: where the emitter finds at some operation
that the old value is still needed, it copies, and the result is copied back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aotdiff.codegen.overwrite import Overwrites
from aotdiff.codegen.places import Place, places_of

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.types import Array, Record, Scalar, element_of
from aotdiff.passes.facts import ArgOwners, Sizes

_SAME_MEMORY = ("update", "insert", "shaped", "stop_gradient")


def has_memory(value: Value) -> bool:
    """Arrays and records; accumulator handles are not values that are owned."""
    return isinstance(value.type, (Array, Record))


@dataclass(slots=True)
class Summary:
    """How a function takes and gives arrays.

    inplace: result -> the parameter whose buffer it is in. writes: parameters the function may overwrite (the
    caller passes a buffer nobody needs afterwards); all others are only read.
    """

    inplace: dict[int, int] = field(default_factory=dict)
    writes: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Uses:
    """Arrays and records: where each region uses them last, what an operation's regions use from outside, places."""

    sizes: Sizes
    places: dict[Op, list[Place]] = field(default_factory=dict)
    last: dict[Region, dict[Value, int]] = field(default_factory=dict)
    captures: dict[Op, tuple[Value, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Flow:
    """Facts about one function.

    overwrites: map result -> the array whose memory it may take. steady: carries of a `for` that is kept as a map, too,
    and keeps its sizes. places: where maps of a `par` are inserted.
    """

    origin: dict[Value, Value | None]
    inplace: set[tuple[Op, int]]
    last_use: dict[Region, dict[Value, int]]
    captures: dict[Op, tuple[Value, ...]]
    overwrites: dict[Value, Value] = field(default_factory=dict)
    steady: set[tuple[Op, int]] = field(default_factory=set)
    places: dict[Op, list[Place]] = field(default_factory=dict)


class _Origins:
    """Origins of all arrays of a function; None is "not known yet" in the fixpoint over calls."""

    def __init__(self, func: Func, uses: Uses, summaries: dict[str, Summary], pending: dict[str, set[int]]):
        self.origin: dict[Value, Value | None] = {}
        placed = {place.result for places in uses.places.values() for place in places if not place.shared}
        self.overwrites = Overwrites(func, uses.last, uses.sizes, self.get, placed)
        self.inplace: set[tuple[Op, int]] = set()
        self._summaries = summaries
        self._pending = pending

    def get(self, value: Value) -> Value | None:
        return self.origin.get(value, value)

    def region(self, region: Region, once: bool = True) -> None:
        self.overwrites.enter(region, once)
        for k, op in enumerate(region.ops):
            self.overwrites.at(k, op)
            for inner in op.regions:
                self.region(inner, op.name in ("if", "withacc"))
            self._op(op)
        self.overwrites.leave()

    def _op(self, op: Op) -> None:
        if op.name in _SAME_MEMORY:
            if has_memory(op.results[0]):
                self.origin[op.results[0]] = self.get(op.operands[0])
        elif op.name == "withacc":
            for init, result in zip(op.operands, op.results, strict=False):
                self.origin[result] = self.get(init)
            for value, result in zip(op.regions[0].yielded, op.results[len(op.operands) :], strict=True):
                self.origin[result] = self.get(value)
        elif op.name == "if":
            self._if(op)
        elif op.name in ("for", "while"):
            self._loop(op)
        elif op.name == "par":
            self._par(op)
        elif op.name == "call":
            self._call(op)

    def _par(self, op: Op) -> None:
        self.overwrites.par(op)
        for result in op.results:
            array = self.overwrites.found.get(result)
            if array is not None:
                self.origin[result] = self.get(array)

    def _if(self, op: Op) -> None:
        for a, b, result in zip(op.regions[0].yielded, op.regions[1].yielded, op.results, strict=True):
            if not isinstance(result.type, Array):
                continue
            x, y = self.get(a), self.get(b)
            if x is None or y is None:
                self.origin[result] = y if x is None else x
            elif x is y:
                self.origin[result] = x

    def _loop(self, op: Op) -> None:
        body = op.regions[-1]
        first = 1 if op.name == "for" else 0
        for c in range(op.attrs["carries"]):
            arg = body.args[1 + c]
            if not isinstance(arg.type, Array):
                continue
            found = self.get(body.yielded[c])
            if found is None or found is arg:
                self.inplace.add((op, c))
                self.origin[op.results[c]] = self.get(op.operands[first + c])

    def _call(self, op: Op) -> None:
        callee = op.attrs["callee"]
        summary, pending = self._summaries[callee], self._pending[callee]
        for j, result in enumerate(op.results):
            if j in summary.inplace:
                self.origin[result] = self.get(op.operands[summary.inplace[j]])
            elif j in pending:
                self.origin[result] = None


def call_order(module: Module, roots: list[str]) -> list[str]:
    """Functions reachable from `roots`, callees before callers (but for recursion)."""
    order: list[str] = []
    state: dict[str, int] = {}
    stack: list[tuple[str, list[str]]] = []

    def push(name: str) -> None:
        state[name] = 1
        callees = {op.attrs["callee"]: None for op in module.funcs[name].body.walk() if op.name == "call"}
        stack.append((name, list(callees)))

    for root in roots:
        if root not in state:
            push(root)
        while stack:
            name, callees = stack[-1]
            if not callees:
                order.append(name)
                stack.pop()
                continue
            callee = callees.pop(0)
            if callee not in state:
                push(callee)
    return order


def recursive_functions(module: Module, names: list[str]) -> set[str]:
    """Functions that can call themselves, directly or not (Tarjan, without recursion in Python)."""
    edges = {
        n: list({op.attrs["callee"]: None for op in module.funcs[n].body.walk() if op.name == "call"}) for n in names
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    on_stack: dict[str, None] = {}
    found: set[str] = set()
    for root in names:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        on_stack[root] = None
        while work:
            name, callees = work[-1]
            for callee in callees:
                if callee not in index:
                    index[callee] = low[callee] = len(index)
                    on_stack[callee] = None
                    work.append((callee, iter(edges[callee])))
                    break
                if callee in on_stack:
                    low[name] = min(low[name], index[callee])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    component = []
                    while True:
                        member, _ = on_stack.popitem()
                        component.append(member)
                        if member == name:
                            break
                    if len(component) > 1 or name in edges[name]:
                        found.update(component)
    return found


def summarise(module: Module, names: list[str]) -> dict[str, Summary]:
    """Summaries of functions given callees first. Results start as "in place, if a parameter turns up at all"."""
    summaries = {n: Summary() for n in names}
    uses = {n: uses_of(module.funcs[n]) for n in names}
    pending = {n: {j for j, t in enumerate(module.funcs[n].result_types) if isinstance(t, Array)} for n in names}
    changed = True
    while changed:
        changed = False
        for name in names:
            changed |= _update_summary(module.funcs[name], uses[name], summaries, pending)
    changed = True
    while changed:
        changed = False
        for name in names:
            writes = _writes(module.funcs[name], uses[name], summaries)
            if not writes <= summaries[name].writes:
                summaries[name].writes |= writes
                changed = True
    return summaries


def _update_summary(func: Func, uses: Uses, summaries: dict[str, Summary], pending: dict[str, set[int]]) -> bool:
    """One step of the fixpoint; a result leaves `pending` once and may lose its parameter once."""
    summary, open_ = summaries[func.name], pending[func.name]
    if not open_ and not summary.inplace:
        return False
    origins = _Origins(func, uses, summaries, pending)
    origins.region(func.body)
    params = {p: i for i, p in enumerate(func.params)}
    changed = False
    for j, value in enumerate(func.body.yielded):
        if j not in open_ and j not in summary.inplace:
            continue
        found = origins.get(value)
        if found is None:
            continue
        i = params.get(found)
        taken = i in {k for r, k in summary.inplace.items() if r != j}
        if i is None or taken or (j in summary.inplace and summary.inplace[j] != i):
            changed |= summary.inplace.pop(j, None) is not None or j in open_
            open_.discard(j)
        elif j in open_:
            open_.discard(j)
            summary.inplace[j] = i
            changed = True
    return changed


def _writes(func: Func, uses: Uses, summaries: dict[str, Summary]) -> set[int]:
    """Parameters that some operation outside loops could consume."""
    origins = _Origins(func, uses, summaries, {n: set() for n in summaries})
    origins.region(func.body)
    params = {p: i for i, p in enumerate(func.params) if isinstance(p.type, Array)}
    found = set(summaries[func.name].inplace.values())
    for value in _consumed(func.body, origins, summaries):
        source = origins.get(value)
        if source in params:
            found.add(params[source])
    return {i for i in found if isinstance(func.params[i].type, Array)}


def _consumed(region: Region, origins: _Origins, summaries: dict[str, Summary]) -> list[Value]:
    found: list[Value] = []
    for op in region.ops:
        if op.name in ("update", "insert"):
            found.append(op.operands[0])
        elif op.name == "withacc":
            found += op.operands
        elif op.name in ("for", "while"):
            first = 1 if op.name == "for" else 0
            found += [op.operands[first + c] for c in range(op.attrs["carries"]) if (op, c) in origins.inplace]
        elif op.name == "call":
            found += [op.operands[i] for i in summaries[op.attrs["callee"]].writes]
        if op.name in ("if", "withacc"):
            for inner in op.regions:
                found += _consumed(inner, origins, summaries)
    return found


def analyse(func: Func, summaries: dict[str, Summary]) -> Flow:
    """Origins and uses of one function, with final summaries."""
    uses = uses_of(func)
    origins = _Origins(func, uses, summaries, {n: set() for n in summaries})
    origins.region(func.body)
    steady = {(op, c) for op in func.body.walk() if op.name == "for" for c in _steady(op, uses.sizes)}
    steady -= origins.inplace
    return Flow(
        origins.origin, origins.inplace, uses.last, uses.captures, origins.overwrites.found, steady,
        uses.places,
    )  # fmt: skip


def _steady(op: Op, sizes: Sizes) -> list[int]:
    """Carried arrays that are yielded for a map and keep their sizes."""
    body, carries = op.regions[0], op.attrs["carries"]
    kept = [v for v in body.yielded[carries:] if v.owner is body and isinstance(v.type, Array) and v.index > 0]
    return [v.index - 1 for v in kept if isinstance(element_of(v.type), Scalar) and v.index - 1 in sizes.invariant(op)]


def uses_of(func: Func) -> Uses:
    sizes = Sizes(ArgOwners.of(func.body))
    uses = Uses(sizes, places_of(func, sizes))
    _add_uses(func.body, uses)
    return uses


def _add_uses(region: Region, uses: Uses) -> dict[Value, None]:
    """Fill `uses`; gives the arrays and records used here and defined outside."""
    last: dict[Value, int] = {}
    for k, op in enumerate(region.ops):
        for value in op.operands:
            if has_memory(value):
                last[value] = k
        if op.regions:
            inner: dict[Value, None] = {}
            for r in op.regions:
                inner.update(_add_uses(r, uses))
            uses.captures[op] = tuple(inner)  # in order: the text must not depend on hashes
            for value in inner:
                last[value] = k
    uses.last[region] = last
    defined = set(region.args)
    for op in region.ops:
        defined.update(op.results)
    return {value: None for value in last if value not in defined}


def is_scalar(value: Value) -> bool:
    return isinstance(value.type, Scalar)
