"""Derivatives of the reverse functions of recursive functions.

Such a function runs a recursive function forward once and then backwards, over a chain of records. Its own code is
never differentiated: that would keep, or run again, the whole chain at each depth. It is the transpose of a tangent
function instead. With T(a, d) = (f(a), J(a) d) the reverse function is V(a, s) = s J(a), so that

- the tangent of V along (da, ds) is the adjoint of `a` in T(a, da), given ds for f(a) and s for the tangent;
- the adjoints of V, given w for its result, are J(a) w for `s`, and for `a` its adjoint in T(a, w), given s for the
  tangent.

T is an ordinary recursive function, so any order is one reverse function of a function in forward mode: linear in the
depth, in time and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aotdiff.ad.requests import Request
from aotdiff.ir.graph import Func, Op, Value
from aotdiff.ir.types import Acc

if TYPE_CHECKING:
    from aotdiff.ad.forward import Forward
    from aotdiff.ad.forward_sweep import Sweep as ForwardSweep
    from aotdiff.ad.reverse import Pullbacks
    from aotdiff.ad.reverse_sweep import Sweep
    from aotdiff.ir.builder import Builder


@dataclass(slots=True)
class _Call:
    """The operands of a call of the reverse function of `source`: seeds by result, handles by parameter."""

    source: Func
    params: list[Value]
    seeds: dict[int, Value]
    handles: dict[int, Value]

    @classmethod
    def of(cls, request: Request, source: Func, operands: list[Value]) -> _Call:
        rest = iter(operands[len(source.params) :])
        seeds = {r: next(rest) for r, on in enumerate(request.seeded) if on}
        handles = {k: next(rest) for k in request.accumulated()}
        return cls(source, operands[: len(source.params)], seeds, handles)


def _ask(pullbacks: Pullbacks, target: Func, wrt: list[int], seeded: list[bool], by_handle: list[bool],
         value: bool) -> Func:
    """The reverse function of `target`, whose first parameters are those of the flags in `by_handle`."""
    count = len(target.params)
    flags = (*by_handle, *(False for _ in range(count - len(by_handle))))
    live = (False,) * count
    return pullbacks.function(Request(target.name, tuple(wrt), tuple(seeded), live, flags, value))


# Forward mode ----------------------------------------------------------------------------------------------


def push_reverse(sweep: ForwardSweep, b: Builder, op: Op, request: Request) -> None:
    """A call of a reverse function and its tangents."""
    forward = sweep.forward
    new = sweep.copy(b, op)
    for old, copied in zip(op.results, new.results, strict=True):
        sweep.set(old, None)
        copied.name = old.name
    source = forward.module.funcs[request.func]
    old, call = _Call.of(request, source, op.operands), _Call.of(request, source, new.operands)
    given = [sweep.known(b, v) for v in old.params]
    tangent_seeds = {r: sweep.tangent(b, v) for r, v in old.seeds.items() if v in sweep.tan}
    handles = {k: sweep.tan[v] for k, v in old.handles.items() if v in sweep.tan}
    first = len(op.results) - len(request.returned())
    wanted = [k for k, r in zip(request.returned(), op.results[first:], strict=True) if r in sweep.active]
    wrt = [k for k in request.wrt if k in wanted or k in handles]
    target, active = _tangent_function(forward, source, given)
    seeds = [tangent_seeds.get(r) for r in range(len(source.result_types))] + [call.seeds.get(r) for r in active]
    by_handle = [k in handles for k in range(len(source.params))]
    pullback = _ask(forward.pullbacks, target, wrt, [s is not None for s in seeds], by_handle, request.value)
    args = [*call.params, *_present(given), *_present(seeds), *handles.values()]
    results = b.call(pullback, args)
    if request.value:
        tangents = dict(zip(active, results[len(source.result_types) :], strict=False))
        for r in range(len(source.result_types)):
            sweep.set(op.results[r], tangents.get(r))
        results = results[len(source.result_types) + len(active) :]
    results_by_param = dict(zip([k for k in wrt if k not in handles], results, strict=True))
    for k, r in zip(request.returned(), op.results[first:], strict=True):
        sweep.set(r, results_by_param.get(k))


def _tangent_function(forward: Forward, source: Func, given: list[Value | None]) -> tuple[Func, list[int]]:
    """The function of `source`'s parameters and the tangents given, and of which results it gives tangents.

    Without tangents it is `source` itself: a reverse function is linear in its seeds.
    """
    mask = tuple(t is not None for t in given)
    if not any(mask):
        return source, []
    target, summary = forward.version(source.name, mask)
    return target, [r for r, on in enumerate(summary.results) if on]


def _present(values: list[Value | None]) -> list[Value]:
    return [v for v in values if v is not None]


# Reverse mode ----------------------------------------------------------------------------------------------


def sweep_reverse(sw: Sweep, op: Op, request: Request, adjoints: list[Value | None], live: list[Value | None]) -> None:
    """Reverse a call of a reverse function, given the adjoints of its results and of what it accumulates."""
    pullbacks = sw.pullbacks
    source = pullbacks.module.funcs[request.func]
    call = _Call.of(request, source, op.operands)
    count = len(source.params)
    first = len(adjoints) - len(request.returned())
    weights = dict(zip(request.returned(), adjoints[first:], strict=True))
    weights |= dict(zip(request.accumulated(), live[len(op.operands) - len(call.handles) :], strict=True))
    given = [weights.get(k) for k in range(count)]
    useful = _useful(sw, op, adjoints, live)
    wrt = [k for k in range(count) if useful[k]]
    seeds_wanted = [r for n, r in enumerate(call.seeds) if useful[count + n]]
    if not wrt and not seeds_wanted:
        return
    target, active = _tangent_function(pullbacks.forward, source, given)
    args = [*call.params, *_present(given)]
    if not wrt:
        results = sw.b.call(target, args)
    else:
        results = _pull(sw, op, call, target, args, wrt, adjoints[:first], active, bool(seeds_wanted))
    if seeds_wanted:
        tangents = dict(zip(active, results[len(source.result_types) :], strict=False))
        for r in seeds_wanted:
            if r in tangents:
                sw.add(call.seeds[r], tangents[r])


def _useful(sw: Sweep, op: Op, adjoints: list[Value | None], live: list[Value | None]) -> list[bool]:
    """Which operands get adjoints."""
    func = sw.pullbacks.module.funcs[op.attrs["callee"]]
    varied = [sw.active(v) for v in op.operands]
    handles = [c is not None for c, p in zip(live, func.params, strict=True) if isinstance(p.type, Acc)]
    useful = sw.pullbacks.flow.useful_params(func, varied, [c is not None for c in adjoints] + handles)
    return [u and v for u, v in zip(useful, varied, strict=True)]


def _pull(sw: Sweep, op: Op, call: _Call, target: Func, args: list[Value], wrt: list[int],
          adjoints: list[Value | None], active: list[int], value: bool) -> list[Value]:
    """Add the adjoints of the parameters `wrt`; what the target function gives, if `value`, is returned."""
    pullbacks, source = sw.pullbacks, call.source
    seeds = [adjoints[r] if adjoints else None for r in range(len(source.result_types))]
    seeds += [call.seeds.get(r) for r in active]
    by_handle = [k in wrt and pullbacks.read_only.param(target, k) for k in range(len(source.params))]
    pullback = _ask(pullbacks, target, wrt, [s is not None for s in seeds], by_handle, value)
    args = [*args, *_present(seeds)]

    def again(b: Builder) -> list[Value]:
        called = sw.again[op] = b.emit("call", args, pullback.result_types, {"callee": pullback.name})
        return called.results

    saved = sw.open("loop")
    args += _present([sw.handle(call.params[k]) for k in wrt if by_handle[k]])
    results = sw.finish_loop(saved, again)
    own = len(target.result_types) if value else 0
    for k, c in zip([k for k in wrt if not by_handle[k]], results[own:], strict=True):
        sw.add(call.params[k], c)
    return results[:own]
