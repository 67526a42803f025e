"""bounds: comparisons of integers that the loops and conditions around them decide become constants.

`canonicalize` then drops the checks and branches that hang on them. See `passes.affine` for what can be proven.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.types import BOOL, I64
from aotdiff.passes.affine import Form, Prover
from aotdiff.passes.facts import ArgOwners, constant
from aotdiff.passes.registry import register_local

_OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}


@register_local("bounds", "Decide comparisons of integers from loop extents and the conditions that hold.")
def bounds(module: Module, func: Func) -> None:
    _Bounds(func).run()


class _Bounds:
    def __init__(self, func: Func):
        self.func = func
        self.prover = Prover(ArgOwners.of(func.body))
        self.decided: dict[Value, bool] = {}
        self.count = 0

    def run(self) -> None:
        self.region(self.func.body, [])
        if not self.decided:
            return
        truths = [Op("const", [], [BOOL], {"value": value, "type": BOOL}) for value in (False, True)]
        for op in self.func.body.walk():
            if any(v in self.decided for v in op.operands):
                op.operands = [truths[self.decided[v]].result if v in self.decided else v for v in op.operands]
        self.func.body.ops[:0] = truths

    def define(self, value: Value) -> None:
        self.prover.order[value] = self.count
        self.count += 1

    def region(self, region: Region, facts: list[tuple[Value, bool]], forms: list[Form] | None = None) -> None:
        """Walk a region in which conditions (and forms >= 0) hold."""
        prover, known = self.prover, []
        for arg in region.args:
            self.define(arg)
        for form in forms or ():
            known.append(prover.know(form))
        for value, truth in facts:
            self.learn(value, truth, known)
        for op in region.ops:
            for result in op.results:
                self.define(result)
            if op.name in _OPPOSITE and op.operands[0].type == I64:
                self.decide(op)
            elif op.name == "check":
                self.learn(op.operands[0], True, known)
            elif op.name == "if":
                for inner, truth in zip(op.regions, (True, False)):
                    self.region(inner, [(op.operands[0], truth)])
            elif op.regions:
                self.loop(op)
        for atoms in reversed(known):
            prover.forget(atoms)

    def loop(self, op: Op) -> None:
        """Inside a loop its extents are at least 1."""
        extents = op.operands[: op.attrs["rank"]] if op.name == "par" else op.operands[:1] if op.name == "for" else []
        forms = [self.prover.form(n).shifted(-1) for n in extents]
        if op.name == "while":
            self.region(op.regions[0], [])
            self.region(op.regions[1], [])
            return
        self.region(op.regions[0], [], forms)

    def decide(self, op: Op) -> None:
        x, y = (self.prover.form(v) for v in op.operands)
        difference = x - y
        holds = _HOLDS[op.name](self.prover, difference)
        if holds is None and op.name in ("eq", "ne"):
            holds = self.decide_equal(op.name, difference)
        if holds is not None:
            self.decided[op.result] = holds

    def decide_equal(self, name: str, difference: Form) -> bool | None:
        prover = self.prover
        if not difference.terms:
            return (difference.const == 0) == (name == "eq")
        below = prover.nonnegative(difference.shifted(-1))
        if below or prover.nonnegative(Form().plus(difference, -1).shifted(-1)):
            return name == "ne"
        return None

    def learn(self, value: Value, truth: bool, known: list[list[Value]]) -> None:
        """What a condition that is known to hold (or not) says of integers."""
        op = value.op
        if op is None or constant(value) is not None:
            return
        if op.name == "not":
            self.learn(op.operands[0], not truth, known)
        elif op.name == ("and" if truth else "or"):
            for v in op.operands:
                self.learn(v, truth, known)
        elif op.name in _OPPOSITE and op.operands[0].type == I64:
            name = op.name if truth else _OPPOSITE[op.name]
            x, y = (self.prover.form(v) for v in op.operands)
            for form in _KNOWN[name](x - y):
                known.append(self.prover.know(form))
            if name == "ne":
                self.learn_apart(x - y, known)

    def learn_apart(self, difference: Form, known: list[list[Value]]) -> None:
        """Different and not below is above."""
        negative = Form().plus(difference, -1)
        if self.prover.nonnegative(difference):
            known.append(self.prover.know(difference.shifted(-1)))
        elif self.prover.nonnegative(negative):
            known.append(self.prover.know(negative.shifted(-1)))


def _at_least(prover: Prover, difference: Form) -> bool | None:
    """Whether difference >= 0."""
    if prover.nonnegative(difference):
        return True
    return False if prover.nonnegative(Form().plus(difference, -1).shifted(-1)) else None


def _negated(value: bool | None) -> bool | None:
    return None if value is None else not value


_HOLDS = {
    "ge": _at_least,
    "lt": lambda prover, d: _negated(_at_least(prover, d)),
    "le": lambda prover, d: _at_least(prover, Form().plus(d, -1)),
    "gt": lambda prover, d: _negated(_at_least(prover, Form().plus(d, -1))),
    "eq": lambda prover, d: None,
    "ne": lambda prover, d: None,
}

# Forms that are >= 0 when `difference` compares so with 0.
_KNOWN = {
    "ge": lambda d: [d],
    "gt": lambda d: [d.shifted(-1)],
    "le": lambda d: [Form().plus(d, -1)],
    "lt": lambda d: [Form().plus(d, -1).shifted(-1)],
    "eq": lambda d: [d, Form().plus(d, -1)],
    "ne": lambda d: [],
}
