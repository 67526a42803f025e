"""How long a `par` takes: an estimate in nanoseconds, made of numbers known now and of extents known when it runs."""

from __future__ import annotations

from collections.abc import Iterable

from aotdiff.codegen.lanes import MATHS, is_contraction

from aotdiff.ir.graph import Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS

Term = tuple[Value, ...]  # extents that multiply
Work = dict[Term, float]

_UNKNOWN = 16.0  # extents that only iterations know
_DEEPEST = 4  # extents of one term
_FREE = ("const", "dim", "shaped", "reshape", "stop_gradient", "undef", "yield", "record_make", "record_unpack")
# Of vector code on data in caches: rather too little than too much, since splitting what is small costs more than not
# splitting what is not quite large.
_SCALAR, _MATHS = 0.06, 1.0
_TILED = 0.25  # of contractions, which keep what they read
_TIMES = {
    "div": 0.3, "sqrt": 0.3, "ratio": 0.4, "floordiv": 1.0, "mod": 1.0, "ipow": 0.3, "lgamma": 20.0, "digamma": 20.0,
    "polygamma": 40.0, "read": 0.03, "update": 0.3, "accum": 0.2, "check": 0.1, "insert": 10.0, "argsort": 400.0,
    "call": 3.0,
}  # fmt: skip


class Estimate:
    """Of one `par`: extents that are known outside stay symbols."""

    def __init__(self, graph: Module, op: Op):
        self.graph = graph
        self.inside: dict[Value, Value | None] = {}  # with the extent, for an index
        self.order: dict[Value, int] = {}
        self.callees: dict[str, float] = {}
        region = op.regions[0]
        self._note(region)
        self._indices(op)
        self.work = self._par(op)

    def constant(self) -> float | None:
        """The time, where it does not depend on anything."""
        return self.work.get((), 0.0) if all(not term for term in self.work) else None

    def _note(self, region: Region) -> None:
        self.inside.update(dict.fromkeys(region.args))
        for op in region.ops:
            self.inside.update(dict.fromkeys(op.results))
            for inner in op.regions:
                self._note(inner)
            self._indices(op)

    def _indices(self, op: Op) -> None:
        if op.name == "par":
            self.inside.update(zip(op.regions[0].args, op.operands, strict=False))
        elif op.name == "for":
            self.inside[op.regions[0].args[0]] = op.operands[0]

    def _region(self, region: Region) -> Work:
        total: Work = {}
        for op in region.ops:
            for term, time in self._op(op).items():
                total[term] = total.get(term, 0.0) + time
        return total

    def _op(self, op: Op) -> Work:
        name = op.name
        if name in _FREE:
            return {}
        if name == "par":
            return self._par(op)
        if name == "for":
            return self._times(self._region(op.regions[0]), op.operands[:1])
        if name == "while":
            return {term: _UNKNOWN * time for region in op.regions for term, time in self._region(region).items()}
        if name == "if":
            sides = [self._region(region) for region in op.regions]
            return {term: max(side.get(term, 0.0) for side in sides) for term in {**sides[0], **sides[1]}}
        if name == "withacc":
            return self._region(op.regions[0])
        if name == "call":
            return {(): self._callee(op.attrs["callee"])}
        usual = _MATHS if name in MATHS else _SCALAR
        return {(): _TIMES.get(name, usual if name in SCALAR_OPS else 1.0)}

    def _par(self, op: Op) -> Work:
        work = self._times(self._region(op.regions[0]), op.operands[: op.attrs["rank"]])
        tiled = _TILED if is_contraction(op) else 1.0
        return {term: tiled * time for term, time in work.items()}

    def _times(self, work: Work, extents: Iterable[Value]) -> Work:
        factor, symbols = 1.0, ()
        for extent in extents:
            number, symbol = self._extent(extent)
            factor *= number
            symbols += symbol
        found: Work = {}
        for term, time in work.items():
            longer = tuple(sorted(term + symbols, key=self.order.__getitem__))
            more = _UNKNOWN ** max(0, len(longer) - _DEEPEST)
            longer = longer[:_DEEPEST]
            found[longer] = found.get(longer, 0.0) + time * factor * more
        return found

    def _extent(self, value: Value) -> tuple[float, Term]:
        """An extent as a number and symbols that multiply; an index is half of its own extent."""
        op = value.op
        if op is not None and op.name == "const":
            return max(float(op.attrs["value"]), 0.0), ()
        if value not in self.inside:
            self.order.setdefault(value, len(self.order))
            return 1.0, (value,)
        over = self.inside[value]
        if over is not None:
            number, symbols = self._extent(over)
            return number / 2, symbols
        if op is not None and op.name in ("add", "sub"):
            for a, b in (op.operands, op.operands[::-1]):
                if b.op is not None and b.op.name == "const":
                    return self._extent(a)
            if op.name == "sub" and self.inside.get(op.operands[1]) is not None:
                number, symbols = self._extent(op.operands[0])
                return number / 2, symbols
        return _UNKNOWN, ()

    def _callee(self, name: str) -> float:
        """A function's time with usual sizes; recursion counts once."""
        if name not in self.callees:
            self.callees[name] = _TIMES["call"]
            body = self.graph.funcs[name].body
            self._note(body)
            time = sum(t * _UNKNOWN ** len(term) for term, t in self._region(body).items())
            self.callees[name] = _TIMES["call"] + time
        return self.callees[name]
