"""Which values take part in a derivative.

*Varied* values depend on what is differentiated; *active* ones are varied and also reach a seeded result. Only active
values get adjoints: a zero adjoint is the absence of one, so a path that does not matter never meets an infinite
partial. Loop carries are a fixpoint; an accumulator makes what is added to it varied and useful.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from aotdiff.ad.rules import NON_DIFFERENTIABLE
from aotdiff.ad.structure import loop_body, loop_inits, map_slots
from aotdiff.ir.graph import Func, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import Acc, is_differentiable


class Calls(Protocol):
    """What is known of calls. Flags are per operand, or per result and then per operand that is a handle."""

    def varied(self, op: Op, flags: list[bool]) -> list[bool]: ...

    def useful(self, op: Op, varied: list[bool], flags: list[bool]) -> list[bool]: ...


_FIRST_ONLY = frozenset(["read", "reshape", "shaped"])
_FIRST_TWO = frozenset(["update", "insert"])
_CUT = frozenset(["argsort", "stop_gradient", "dim", "undef", "check"])


def differentiable(value: Value) -> bool:
    return is_differentiable(value.type)


class Activity:
    """Active values of a function, for the parameters `wrt` and the results with `seeded` true.

    Handles that are parameters count as seeded when `seeded_handles` has them.
    """

    __slots__ = ("varied", "active", "_calls")

    def __init__(
        self,
        func: Func,
        wrt: Iterable[Value],
        seeded: Iterable[bool],
        seeded_handles: Iterable[Value] = (),
        calls: Calls | None = None,
    ):
        self._calls: Calls = calls or _Unknown()
        self.varied: set[Value] = {v for v in wrt if differentiable(v)} | set(seeded_handles)
        self._forward(func.body)
        self.active: set[Value] = set(seeded_handles)
        for value, wanted in zip(func.body.yielded, seeded, strict=True):
            if wanted:
                self._use(value)
        self._backward(func.body)

    # Varied ----------------------------------------------------------------------------------------------

    def _vary(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        """Make each target varied whose source is."""
        varied = self.varied
        for target, source in pairs:
            if source in varied and differentiable(target):
                varied.add(target)

    def _forward(self, region: Region) -> None:
        for op in region.ops:
            self._forward_op(op)

    def _forward_op(self, op: Op) -> None:
        name = op.name
        if name in SCALAR_OPS:
            if name not in NON_DIFFERENTIABLE:
                self._vary((op.results[0], v) for v in op.operands)
        elif name in _FIRST_ONLY:
            self._vary([(op.results[0], op.operands[0])])
        elif name in _FIRST_TWO:
            self._vary((op.results[0], v) for v in op.operands[:2])
        elif name in _FORWARD:
            _FORWARD[name](self, op)
        elif name not in _CUT and name != "yield":
            raise NotImplementedError(f"activity of `{name}`")

    def _forward_par(self, op: Op) -> None:
        self._forward(op.regions[0])
        self._vary(zip(op.results, op.regions[0].yielded, strict=True))

    def _forward_loop(self, op: Op) -> None:
        body, inits = loop_body(op), loop_inits(op)
        self._vary(zip(body.args[1:], inits, strict=True))
        before = -1
        while before != len(self.varied):
            before = len(self.varied)
            self._forward(body)
            self._vary(zip(body.args[1:], body.yielded, strict=False))
        self._vary(zip(op.results, inits, strict=False))
        self._vary(zip(op.results[: len(inits)], body.yielded, strict=False))
        self._vary((op.results[result], body.yielded[k]) for _, k, result, _ in map_slots(op))

    def _forward_if(self, op: Op) -> None:
        for region in op.regions:
            self._forward(region)
            self._vary(zip(op.results, region.yielded, strict=True))

    def _forward_withacc(self, op: Op) -> None:
        body = op.regions[0]
        self._vary_handles(zip(body.args, op.operands, strict=True))
        self._forward(body)
        for result, handle in zip(op.results, body.args, strict=False):
            if handle in self.varied:
                self.varied.add(result)
        self._vary(zip(op.results[len(body.args) :], body.yielded, strict=True))

    def _vary_handles(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        for handle, source in pairs:
            if source in self.varied:
                self.varied.add(handle)

    def _forward_accum(self, op: Op) -> None:
        self._vary_handles([(op.operands[0], op.operands[1])])

    def _forward_call(self, op: Op) -> None:
        flags = self._calls.varied(op, [v in self.varied for v in op.operands])
        handles = [v for v in op.operands if isinstance(v.type, Acc)]
        for target, flag in zip([*op.results, *handles], flags, strict=True):
            if flag and (differentiable(target) or isinstance(target.type, Acc)):
                self.varied.add(target)

    def _forward_record(self, op: Op) -> None:
        self._vary((r, v) for r in op.results for v in op.operands)

    # Useful ----------------------------------------------------------------------------------------------

    def _use(self, value: Value) -> None:
        if value in self.varied:
            self.active.add(value)

    def _use_where(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        """Make each source useful whose target is."""
        for target, source in pairs:
            if target in self.active:
                self._use(source)

    def _backward(self, region: Region) -> None:
        for op in reversed(region.ops):
            self._backward_op(op)

    def _backward_op(self, op: Op) -> None:
        name = op.name
        if name in SCALAR_OPS:
            if name not in NON_DIFFERENTIABLE and op.results[0] in self.active:
                for v in op.operands:
                    self._use(v)
        elif name in _FIRST_ONLY:
            self._use_where([(op.results[0], op.operands[0])])
        elif name in _FIRST_TWO:
            self._use_where((op.results[0], v) for v in op.operands[:2])
        elif name in _BACKWARD:
            _BACKWARD[name](self, op)

    def _backward_par(self, op: Op) -> None:
        self._use_where(zip(op.results, op.regions[0].yielded, strict=True))
        self._backward(op.regions[0])

    def _backward_loop(self, op: Op) -> None:
        body, inits = loop_body(op), loop_inits(op)
        carries = len(inits)
        self._use_where(zip(op.results[:carries], body.yielded, strict=False))
        self._use_where((op.results[result], body.yielded[k]) for _, k, result, _ in map_slots(op))
        before = -1
        while before != len(self.active):
            before = len(self.active)
            self._backward(body)
            self._use_where(zip(body.args[1:], body.yielded, strict=False))
        self._use_where(zip(body.args[1:], inits, strict=True))
        self._use_where(zip(op.results, inits, strict=False))

    def _backward_if(self, op: Op) -> None:
        for region in op.regions:
            self._use_where(zip(op.results, region.yielded, strict=True))
            self._backward(region)

    def _backward_withacc(self, op: Op) -> None:
        body = op.regions[0]
        for result, handle in zip(op.results, body.args, strict=False):
            if result in self.active:
                self._use(handle)
        self._use_where(zip(op.results[len(body.args) :], body.yielded, strict=True))
        self._backward(body)
        self._use_where(zip(op.results, op.operands, strict=False))

    def _backward_accum(self, op: Op) -> None:
        self._use_where([(op.operands[0], op.operands[1])])

    def _backward_call(self, op: Op) -> None:
        handles = [v for v in op.operands if isinstance(v.type, Acc)]
        varied = [v in self.varied for v in op.operands]
        flags = self._calls.useful(op, varied, [v in self.active for v in [*op.results, *handles]])
        for value, flag in zip(op.operands, flags, strict=True):
            if flag and not isinstance(value.type, Acc):
                self._use(value)

    def _backward_record(self, op: Op) -> None:
        self._use_where((r, v) for r in op.results for v in op.operands)


class _Unknown:
    """Everything may depend on everything."""

    def varied(self, op: Op, flags: list[bool]) -> list[bool]:
        handles = [isinstance(v.type, Acc) for v in op.operands]
        found = any(f and not h for f, h in zip(flags, handles, strict=True))
        return [found] * (len(op.results) + sum(handles))

    def useful(self, op: Op, varied: list[bool], flags: list[bool]) -> list[bool]:
        return [any(flags)] * len(op.operands)


_FORWARD: dict[str, Callable[[Activity, Op], None]] = {
    "par": Activity._forward_par,
    "for": Activity._forward_loop,
    "while": Activity._forward_loop,
    "if": Activity._forward_if,
    "withacc": Activity._forward_withacc,
    "accum": Activity._forward_accum,
    "call": Activity._forward_call,
    "record_make": Activity._forward_record,
    "record_unpack": Activity._forward_record,
}
_BACKWARD: dict[str, Callable[[Activity, Op], None]] = {
    "par": Activity._backward_par,
    "for": Activity._backward_loop,
    "while": Activity._backward_loop,
    "if": Activity._backward_if,
    "withacc": Activity._backward_withacc,
    "accum": Activity._backward_accum,
    "call": Activity._backward_call,
    "record_make": Activity._backward_record,
    "record_unpack": Activity._backward_record,
}
