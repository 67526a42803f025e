"""dce: removes what nobody needs: operations, results and carries of loops, accumulators.

One marking over the whole function finds the live values: checks, returned values and additions to handles of the
caller are needed, and whatever they need in turn. A carry is live when its final value or its value inside a live
computation is; so cycles of carries that only feed themselves go. Structured operations lose the results that
are not live; an operation that loses all of them and has no live effect inside goes altogether.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.types import Acc, dims_of
from aotdiff.passes.facts import functions_that_check
from aotdiff.passes.registry import register_some


@register_some("dce", "Remove operations, results, carried values and accumulators that nobody needs.")
def dce(module: Module, funcs: list[Func]) -> None:
    checking = functions_that_check(module)
    for func in funcs:
        remove_dead(func, checking)


def remove_dead(func: Func, checking: set[str]) -> None:
    """Dead code removal in one function; `checking` names the functions whose calls must stay."""
    marker = _Marker(func, checking)
    marker.run()
    _sweep(func.body, marker)


class _Marker:
    """Finds live values and operations."""

    def __init__(self, func: Func, checking: set[str]):
        self.func = func
        self.checking = checking
        self.live: set[Value] = set()
        self.alive: set[Op] = set()
        self.summed: set[Value] = set()  # handles whose additions stay
        self.parent: dict[Region, Op] = {}
        self.home: dict[Op, Region] = {}
        self.additions: dict[Value, list[Op]] = {}  # operations that add to a handle
        self.pending: list[Value] = []

    def run(self) -> None:
        roots = self.index(self.func.body, [])
        for value in self.func.body.yielded:
            self.need(value)
        for op in roots:
            self.keep(op)
        while self.pending:
            self.trace(self.pending.pop())

    def index(self, region: Region, roots: list[Op]) -> list[Op]:
        """Note where everything is; gives the operations that must stay whatever happens."""
        for op in region.ops:
            self.home[op] = region
            for inner in op.regions:
                self.parent[inner] = op
                self.index(inner, roots)
            if op.name == "check" or op.attrs.get("callee") in self.checking:
                roots.append(op)
            for v in op.operands:
                if isinstance(v.type, Acc):
                    if v.owner is self.func.body:
                        roots.append(op)
                    self.additions.setdefault(v, []).append(op)
        return roots

    def need(self, value: Value) -> None:
        if value not in self.live:
            self.live.add(value)
            self.pending.append(value)

    def keep(self, op: Op) -> None:
        """The operation stays: all its operands are needed, and the operations around it stay."""
        if op not in self.alive:
            for v in op.operands:
                self.need(v)
        self.enclose(op)

    def enclose(self, op: Op) -> None:
        """The operation and those around it stay, with what decides how often they run."""
        while op not in self.alive:
            self.alive.add(op)
            for v in _control(op):
                self.need(v)
            owner = self.parent.get(self.home[op])
            if owner is None:
                return
            op = owner

    def trace(self, value: Value) -> None:
        """What a live value needs."""
        op = value.op
        if op is None:
            self.trace_argument(value)
            return
        if not op.regions:
            self.keep(op)
            return
        self.enclose(op)
        _RESULT[op.name](self, op, value.index)

    def trace_argument(self, value: Value) -> None:
        region = value.owner
        assert isinstance(region, Region)
        op = self.parent.get(region)
        if op is None or op.name == "par":
            return
        if op.name == "withacc":
            self.need_accumulator(op, value.index)
        elif value.index > 0:
            self.need_carry(op, value.index - 1)

    def need_carry(self, op: Op, carry: int) -> None:
        self.need(op.operands[carry + (op.name == "for")])
        self.need(op.regions[-1].yielded[carry])
        for region in op.regions:
            self.need(region.args[1 + carry])

    def need_accumulator(self, op: Op, index: int) -> None:
        self.need(op.operands[index])
        handle = op.regions[0].args[index]
        if handle in self.summed:
            return
        self.summed.add(handle)
        self.live.add(handle)
        self.live.add(op.results[index])
        for addition in self.additions.get(handle, ()):
            self.keep(addition)


def _control(op: Op) -> list[Value]:
    """Operands (and conditions) that decide whether and how often the regions of an operation run."""
    if op.name == "par":
        return op.operands[: op.attrs["rank"]]
    if op.name in ("for", "if"):
        return op.operands[:1]
    if op.name == "while":
        return op.regions[0].yielded
    return []


def _inner_span(op: Op, kinds: tuple, values: list[Value], result: int, first: int) -> tuple[int, int]:
    """Where the inner sizes of map number `result` stand among the operands, the first ones at `first`."""
    start = first + sum(len(dims_of(v.type)) for v, kind in zip(values[:result], kinds) if kind == "map")
    return start, start + (len(dims_of(values[result].type)) if kinds[result] == "map" else 0)


def _trace_par(m: _Marker, op: Op, index: int) -> None:
    yielded = op.regions[0].yielded
    m.need(yielded[index])
    start, end = _inner_span(op, op.attrs["kinds"], yielded, index, op.attrs["rank"])
    for v in op.operands[start:end]:
        m.need(v)


def _map_numbers(op: Op) -> list[int]:
    """For each result after the carries (and the trip count), the number of its map."""
    return [n for n, kind in enumerate(op.attrs["kinds"]) for _ in range(2 if kind == "cat" else 1)]


def _trace_loop(m: _Marker, op: Op, index: int) -> None:
    carries, first = op.attrs["carries"], 1 if op.name == "for" else 0
    if index < carries:
        m.need_carry(op, index)
        return
    index -= carries + (0 if first else 1)
    if index < 0:
        return
    number, mapped = _map_numbers(op)[index], op.regions[-1].yielded[carries:]
    m.need(mapped[number])
    start, end = _inner_span(op, op.attrs["kinds"], mapped, number, first + carries)
    for v in op.operands[start:end]:
        m.need(v)


def _trace_if(m: _Marker, op: Op, index: int) -> None:
    for region in op.regions:
        m.need(region.yielded[index])


def _trace_withacc(m: _Marker, op: Op, index: int) -> None:
    if index < len(op.operands):
        m.need_accumulator(op, index)
    else:
        m.need(op.regions[0].yielded[index - len(op.operands)])


_RESULT = {"par": _trace_par, "for": _trace_loop, "while": _trace_loop, "if": _trace_if, "withacc": _trace_withacc}


# Sweeping ----------------------------------------------------------------------------------------------------


def _sweep(region: Region, m: _Marker) -> None:
    kept = []
    for op in region.ops:
        if op.name == "yield":
            kept.append(op)
        elif op in m.alive:
            if op.regions:
                _TRIM[op.name](op, m.live)
                for inner in op.regions:
                    _sweep(inner, m)
            kept.append(op)
    region.ops = kept


def _keep_results(op: Op, keep: list[bool]) -> None:
    op.results = [r for r, k in zip(op.results, keep, strict=True) if k]
    for i, r in enumerate(op.results):
        r.index = i


def _keep_args(region: Region, keep: list[bool]) -> None:
    region.args = [a for a, k in zip(region.args, keep, strict=True) if k]
    for i, a in enumerate(region.args):
        a.index = i


def _keep_yields(region: Region, keep: list[bool]) -> None:
    region.terminator.operands = [v for v, k in zip(region.yielded, keep, strict=True) if k]


def _trim_par(op: Op, live: set[Value]) -> None:
    keep = [r in live for r in op.results]
    if all(keep):
        return
    rank, kinds, yielded = op.attrs["rank"], op.attrs["kinds"], op.regions[0].yielded
    operands = op.operands[:rank]
    for r, k in enumerate(keep):
        if k:
            start, end = _inner_span(op, kinds, yielded, r, rank)
            operands += op.operands[start:end]
    op.operands = operands
    op.attrs = {**op.attrs, "kinds": tuple(kind for kind, k in zip(kinds, keep) if k)}
    _keep_results(op, keep)
    _keep_yields(op.regions[0], keep)


def _trim_loop(op: Op, live: set[Value]) -> None:
    carries, kinds, first = op.attrs["carries"], op.attrs["kinds"], 1 if op.name == "for" else 0
    body = op.regions[-1]
    keep_carry = [body.args[1 + j] in live or op.results[j] in live for j in range(carries)]
    after = op.results[carries + 1 - first :]
    numbers = _map_numbers(op)
    keep_map = [any(r in live for r, number in zip(after, numbers) if number == n) for n in range(len(kinds))]
    if all(keep_carry) and all(keep_map):
        return
    mapped = body.yielded[carries:]
    operands = op.operands[:first] + [v for v, k in zip(op.operands[first:], keep_carry) if k]
    for n, k in enumerate(keep_map):
        if k:
            start, end = _inner_span(op, kinds, mapped, n, first + carries)
            operands += op.operands[start:end]
    op.operands = operands
    reverse = {"reverse": True} if "reverse" in op.attrs else {}
    kept = tuple(kind for kind, k in zip(kinds, keep_map) if k)
    op.attrs = {"carries": sum(keep_carry), "kinds": kept, **reverse}
    _keep_results(op, keep_carry + [True] * (1 - first) + [keep_map[n] for n in numbers])
    _keep_yields(body, keep_carry + keep_map)
    for region in op.regions:
        _keep_args(region, [True, *keep_carry])


def _trim_if(op: Op, live: set[Value]) -> None:
    keep = [r in live for r in op.results]
    _keep_results(op, keep)
    for region in op.regions:
        _keep_yields(region, keep)


def _trim_withacc(op: Op, live: set[Value]) -> None:
    inits = len(op.operands)
    keep = [r in live for r in op.results]
    op.operands = [v for v, k in zip(op.operands, keep) if k]
    _keep_results(op, keep)
    _keep_args(op.regions[0], keep[:inits])
    _keep_yields(op.regions[0], keep[inits:])


_TRIM = {"par": _trim_par, "for": _trim_loop, "while": _trim_loop, "if": _trim_if, "withacc": _trim_withacc}
