"""Accumulators: `withacc` takes its initial arrays over and hands them to the body; `accum` is load, add, store."""

from __future__ import annotations

from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.handing import hand_out
from aotdiff.codegen.values import Buffer, Handle, Ref, memory_type

from aotdiff.ir.graph import Op
from aotdiff.ir.types import Acc, Scalar


def emit_withacc(fe: FunctionEmitter, op: Op) -> None:
    region, outer = op.regions[0], fe.scope
    stores: list[Ref | Handle] = []
    for init, arg in zip(op.operands, region.args, strict=True):
        assert isinstance(arg.type, Acc)
        lanes = fe.lanes_of(arg)
        if isinstance(init.type, Scalar):
            handle = Handle(fe.alloca(memory_type(init.type, lanes), 8 if lanes == 1 else 64), (), init.type, lanes)
            fe.store_element(init.type, fe.like(init, arg), handle.ptr, lanes)
            stores.append(handle)
        else:
            ref = fe.consume(fe.ref(init), lanes)
            assert isinstance(ref.element, Scalar)
            handle = Handle(ref.ptr, ref.dims, ref.element, lanes)
            stores.append(ref)
        fe.bind(arg, handle)
    moved = fe.dying_captures(op)
    for buffer in moved:
        del outer.owned[buffer]
    outs = _body(fe, op, moved)
    for result, store in zip(op.results, stores, strict=False):
        fe.bind(result, store if isinstance(store, Ref) else fe.load_element(store.element, store.ptr, store.lanes))
    for result, out in zip(op.results[len(stores) :], outs, strict=True):
        fe.bind(result, out)


def _body(fe: FunctionEmitter, op: Op, moved: list[Buffer]) -> list[str | Ref]:
    """The body, which runs once; what it yields then belongs to the scope around."""
    region = op.regions[0]
    scope = fe.enter(region, moved)
    fe.run(scope)
    taken: dict[Buffer, None] = {}
    found = [fe.env[v] for v in region.yielded]
    outs = [hand_out(fe, scope, f, taken, stays=True) if isinstance(f, Ref) else f for f in found]
    for line in fe.free_rest(scope):
        fe.do(line)
    fe.leave()
    results: list[str | Ref] = []
    for out in outs:
        if isinstance(out, str):
            results.append(out)
            continue
        assert not isinstance(out, Handle)
        if out.owner is not None:
            fe.own(out.owner).members = []
        results.append(out.ref)
    return results


def emit_accum(fe: FunctionEmitter, op: Op) -> None:
    handle = fe.handle(op.operands[0])
    if fe.strip is not None:
        fe.strip.accumulate(fe, op, handle)
        return
    ptr = fe.element_at(handle, [fe.val(v) for v in op.operands[2:]])
    fe.module.target.accumulate(fe, handle, ptr, fe.val(op.operands[1]))
