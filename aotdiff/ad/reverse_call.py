"""Reverse of calls that were not inlined: a user's rule, or the reverse function of the callee."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aotdiff.ad.requests import Request, has_rule, request_of
from aotdiff.ad.transpose import sweep_reverse
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Op, Value
from aotdiff.ir.types import Acc, is_differentiable

if TYPE_CHECKING:
    from aotdiff.ad.reverse_sweep import Sweep


@dataclass(frozen=True, slots=True)
class ForwardCall:
    """A call of `func` that was made one of the forward function for `request`, and the record it gives.

    Where the call is reversed in two places, the second may ask for something else, and runs the function again.
    """

    func: Func
    request: Request
    record: Value


def sweep_call(sw: Sweep, op: Op) -> None:
    known = sw.forward_calls.get(op)
    func = sw.pullbacks.module.funcs[op.attrs["callee"]] if known is None else known.func
    adjoints = [sw.take(r) for r in op.results[: len(func.result_types)]]
    live = [sw.handle_adjoints.get(v) for v in op.operands]
    if not any(adjoints) and not any(live):
        return
    request = request_of(sw.pullbacks.module, func)
    if has_rule(func):
        _ruled(sw, op, func, adjoints)
    elif request is not None:
        sweep_reverse(sw, op, request, adjoints, live)
    else:
        _plain(sw, op, func, adjoints, live)


def _plain(sw: Sweep, op: Op, func: Func, adjoints: list[Value | None], live: list[Value | None]) -> None:
    pullbacks = sw.pullbacks
    varied = [sw.active(v) for v in op.operands]
    handles = [on is not None for on, v in zip(live, op.operands, strict=True) if isinstance(v.type, Acc)]
    useful = pullbacks.flow.useful_params(func, varied, [c is not None for c in adjoints] + handles)
    wrt = tuple(k for k, on in enumerate(useful) if on and varied[k])
    if not wrt:
        return
    by_handle = tuple(k in wrt and pullbacks.read_only.param(func, k) for k in range(len(op.operands)))
    seeded, live_flags = tuple(c is not None for c in adjoints), tuple(c is not None for c in live)
    request = Request(func.name, wrt, seeded, live_flags, by_handle, False)

    known = sw.forward_calls.get(op)
    if pullbacks.by_records(sw.source, func) and (known is None or known.request == request):
        forward, reverse = pullbacks.pair(request)
        if known is None:
            known = sw.forward_calls[op] = ForwardCall(func, request, _record(op, forward))
        args = [known.record]
        args += [v for k, v in enumerate(op.operands) if pullbacks.read_only.param(func, k)]
    else:
        reverse = pullbacks.function(request)
        args = [v for v in op.operands if not isinstance(v.type, Acc)]
    args += [c for c in [*adjoints, *live] if c is not None]

    def call_again(b: Builder) -> list[Value]:
        called = sw.again[op] = b.emit("call", args, reverse.result_types, {"callee": reverse.name})
        return called.results

    saved = sw.open("loop")
    args += [_handle(sw, op.operands[k]) for k in wrt if by_handle[k]]
    results = sw.finish_loop(saved, call_again)
    for k, c in zip([k for k in wrt if not by_handle[k]], results, strict=True):
        sw.add(op.operands[k], c)


def _record(op: Op, forward: Func) -> Value:
    """Make the call one of the forward function; the record it gives."""
    op.attrs = {**op.attrs, "callee": forward.name}
    record = Value(forward.result_types[-1], "residuals", op, len(op.results))
    op.results.append(record)
    return record


def _handle(sw: Sweep, value: Value) -> Value:
    handle = sw.handle(value)
    assert handle is not None
    return handle


def _ruled(sw: Sweep, op: Op, func: Func, adjoints: list[Value | None]) -> None:
    """The user's pullback, or the transpose of the user's pushforward, which is linear in its tangents."""
    module = sw.pullbacks.module
    floats = [k for k, v in enumerate(op.operands) if is_differentiable(v.type)]
    seeds = [
        sw.zeros(r) if c is None else c for r, c in zip(op.results, adjoints, strict=True) if is_differentiable(r.type)
    ]
    if "vjp" in func.attrs:
        results = sw.b.call(module.funcs[func.attrs["vjp"]], [*op.operands, *seeds])
    else:
        results = _transposed(sw, sw.b, module.funcs[func.attrs["jvp"]], op, floats, seeds)
    for k, c in zip(floats, results, strict=True):
        sw.add(op.operands[k], c)


def _transposed(sw: Sweep, b: Builder, rule: Func, op: Op, floats: list[int], seeds: list[Value]) -> list[Value]:
    count = len(op.operands)
    wrt = tuple(range(count, count + len(floats)))
    none = (False,) * len(rule.params)
    seeded = tuple(is_differentiable(t) for t in rule.result_types)
    reverse = sw.pullbacks.function(Request(rule.name, wrt, seeded, none, none, False))
    zeros = [sw.zeros(op.operands[k]) for k in floats]
    return b.call(reverse, [*op.operands, *zeros, *seeds])
