"""Run-time checks and the interrupt flag."""

from __future__ import annotations

from collections.abc import Sequence

from aotdiff.codegen import context
from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.text import is_literal

from aotdiff.ir.graph import Loc, Op, Region
from aotdiff.ir.types import Scalar

_LONG = 1 << 16
_BLOCK = 1 << 18


def emit_check(fe: FunctionEmitter, op: Op) -> None:
    """Leave through a cold block unless the condition holds."""
    cond = fe.val(op.operands[0])
    if cond == "true":
        return
    if fe.strip is not None and (fe.strip.masks or any(fe.varies(v) for v in op.operands)):
        fe.strip.check(fe, op)
        return
    values = []
    for v in op.operands[1:]:
        assert isinstance(v.type, Scalar)
        values.append((v.type.kind, fe.val(v)))
    label = fe.label("fail")
    fe.cold.append(f"{label}:")
    converted = [printable(fe, kind, name) for kind, name in values]
    report = fe.report(op.attrs["kind"], op.loc or fe.func.loc, op.attrs["message"], converted)
    fe.cold += ["  " + line for line in report]
    go = fe.label("ok")
    fe.lines.append(f"  br i1 {cond}, label %{go}, label %{label}, !prof !0")
    fe.start(go)


def printable(fe: FunctionEmitter, kind: str, name: str) -> tuple[str, str]:
    """The value as printf takes it, converted in the cold block."""
    if kind in ("i64", "f64"):
        return ("i64" if kind == "i64" else "double"), name
    wide = fe.name()
    if kind == "f32":
        fe.cold.append(f"  {wide} = fpext float {name} to double")
        return "double", wide
    fe.cold.append(f"  {wide} = zext i1 {name} to i64")
    return "i64", wide


def poll(fe: FunctionEmitter, loc: Loc | None = None) -> None:
    """Stop with KeyboardInterrupt if the flag is set; `loc` where no operation is being emitted."""
    if not fe.module.target.interrupts:
        return
    flag = fe.op(f"load volatile i32, ptr {interrupt_flag(fe)}, align 4")
    if fe.module.threads != 1:
        stop = fe.op(f"load volatile i32, ptr {fe.bytes_at('%ctx', context.STOP)}, align 4")
        flag = fe.op(f"or i32 {flag}, {stop}")
    label = fe.label("interrupt")
    fe.cold.append(f"{label}:")
    fe.cold += ["  " + t for t in fe.report("KeyboardInterrupt", loc or fe.op_now.loc or fe.func.loc, "interrupted")]
    fe.unless(fe.op(f"icmp ne i32 {flag}, 0"), label)


def interrupt_flag(fe: FunctionEmitter) -> str:
    """Address of the flag, looked up at the start of the function."""
    if not fe.interrupt:
        where, given, null, fe.interrupt = fe.name(), fe.name(), fe.name(), fe.name()
        zero = fe.module.zero_flag()
        fe.prologue += [
            f"  {where} = getelementptr i8, ptr %ctx, i64 {context.INTERRUPT}",
            f"  {given} = load ptr, ptr {where}",
            f"  {null} = icmp eq ptr {given}, null",
            f"  {fe.interrupt} = select i1 {null}, ptr {zero}, ptr {given}",
        ]
    return fe.interrupt


def poll_sometimes(fe: FunctionEmitter, k: str) -> None:
    """Look at the flag every 65536th iteration."""
    if not fe.module.target.interrupts:
        return
    look, go = fe.label("look"), fe.label("on")
    low = fe.op(f"and i64 {k}, {_LONG - 1}")
    fe.lines.append(f"  br i1 {fe.op(f'icmp eq i64 {low}, {_LONG - 1}')}, label %{look}, label %{go}, !prof !1")
    fe.start(look)
    poll(fe)
    fe.jump(go)
    fe.start(go)


def block(fe: FunctionEmitter, inner: Sequence[str], long: bool) -> str:
    """How many iterations may pass without a look at the flag, each of so many inner ones; "" if nobody ever looks.

    `long`: each of them takes a while.
    """
    if not fe.module.target.interrupts:
        return ""
    if long:
        return str(_BLOCK >> 8)
    known = 1
    for size in inner:
        if not is_literal(size):
            break
        known *= max(int(size), 1)
    else:
        return str(max(_BLOCK // known, 1))
    # A power of two: the block shortened by as many bits as the inner iterations have.
    count = fe.count(inner)
    fe.module.declare("declare i64 @llvm.ctlz.i64(i64, i1)")
    zeros = fe.op(f"call i64 @llvm.ctlz.i64(i64 {count}, i1 false)")
    bits = fe.intrinsic("smin", "i64", [fe.op(f"sub i64 64, {zeros}"), str(_BLOCK.bit_length() - 1)])
    return fe.op(f"lshr i64 {_BLOCK}, {bits}")


def runs_long(region: Region) -> bool:
    """Whether one run of the region may take long: it has loops of unknown length, or calls."""
    for op in region.walk():
        if op.name in ("while", "call", "argsort"):
            return True
        if op.name in ("par", "for"):
            counts = op.operands[: op.attrs["rank"] if op.name == "par" else 1]
            if not all(v.op is not None and v.op.name == "const" and v.op.attrs["value"] <= 256 for v in counts):
                return True
    return False


def poll_loop(fe: FunctionEmitter, region: Region, k: str, count: str) -> None:
    """The right poll for a sequential loop over k."""
    if runs_long(region):
        poll(fe)
    elif not (is_literal(count) and int(count) <= _LONG):
        poll_sometimes(fe, k)
