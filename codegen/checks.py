"""Run-time checks and the interrupt flag."""

from __future__ import annotations

from collections.abc import Sequence

from aotdiff.codegen import context
from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.lanes import MATHS
from aotdiff.codegen.text import is_literal

from aotdiff.ir.graph import Loc, Op, Region
from aotdiff.ir.types import Scalar

_LONG = 1 << 16
_BLOCK = 1 << 18  # steps that take no time to speak of
_MUCH = 1 << 12  # steps after which a look costs nothing
_FEW, _LIGHT = 64, 16  # steps of an iteration that takes little time, and of one that takes less than its reads
SEVERAL = 8  # loops that each may walk through much memory, together less than half a second
_MATHS, _SPECIAL = 4, 32  # steps


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
    stop_if(fe, fe.op(f"icmp ne i32 {flag}, 0"), loc)


def stop_if(fe: FunctionEmitter, interrupted: str, loc: Loc | None = None) -> None:
    """Stop with KeyboardInterrupt; `loc` where no operation is being emitted."""
    loc = loc or fe.op_now.loc or fe.func.loc
    line = (loc.path, loc.line) if loc is not None else None
    if line not in fe.interrupts:
        label = fe.interrupts[line] = fe.label("interrupt")
        fe.cold.append(f"{label}:")
        fe.cold += ["  " + t for t in fe.report("KeyboardInterrupt", loc, "interrupted")]
    fe.unless(interrupted, fe.interrupts[line])


def flags(fe: FunctionEmitter) -> tuple[str, str]:
    """Addresses of the two flags that functions of the run-time support look at."""
    if not fe.module.target.interrupts:
        return "null", "null"
    return interrupt_flag(fe), fe.bytes_at("%ctx", context.STOP)


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


def poll_sometimes(fe: FunctionEmitter, k: str, every: int) -> None:
    """Look at the flag in one iteration of `every`, a power of two."""
    if not fe.module.target.interrupts:
        return
    look, go = fe.label("look"), fe.label("on")
    low = fe.op(f"and i64 {k}, {every - 1}")
    fe.lines.append(f"  br i1 {fe.op(f'icmp eq i64 {low}, {every - 1}')}, label %{look}, label %{go}, !prof !1")
    fe.start(look)
    poll(fe)
    fe.jump(go)
    fe.start(go)


def block(fe: FunctionEmitter, region: Region, inner: Sequence[str], long: bool) -> str:
    """How many iterations may pass without a look at the flag, each of so many inner ones; "" if nobody ever looks.

    `long`: each of them takes a while.
    """
    if not fe.module.target.interrupts:
        return ""
    if long:
        return str(_BLOCK >> 8)
    known = max(_pace(region)[1] // _FEW, 1)
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
    """Whether one run of the region may take long: it has loops of unknown length, or calls, or much to do."""
    height, steps = _pace(region)
    return height > 0 or steps > _MUCH


def between_looks(region: Region, inner: Sequence[str] = ()) -> int:
    """How many iterations of a loop may pass without a look at the flag, a power of two.

    In each are the loops `inner` of the region.

    These look for themselves where they are long, and so does what is in the region.
    """
    height, steps = _pace(region)
    for size in inner:
        if is_literal(size):
            steps *= max(int(size), 1)
        else:
            height += 1
    if height == 0:
        return _power(_BLOCK // steps)
    return SEVERAL if height == 1 else 1


def ends_soon(fe: FunctionEmitter, region: Region, maps: bool) -> bool:
    """Whether a scalar loop over the region needs no looks of its own.

    It walks through memory, which is no longer than memory is large, and does little else; or all iterations do the
    same, which LLVM finds. LLVM makes the fastest loops where nothing else is in them.
    """
    height, steps = _pace(region)
    if height > 0 or steps > _LIGHT or (fe.strip is not None and any(op.name in MATHS for op in region.walk())):
        return False
    index = region.args[-1]
    uses = [op for op in region.walk() if index in op.operands]
    return maps or not uses or any(op.name in ("read", "accum", "update") and index in op.operands[1:] for op in uses)


def _pace(region: Region) -> tuple[int, int]:
    """One run of a region: how deep loops that may be long are nested in it, and the steps it takes beside them."""
    height, steps = 0, 1
    for op in region.ops:
        deep, each = _pace_of(op)
        height, steps = max(height, deep), steps + each
    return height, steps


def _pace_of(op: Op) -> tuple[int, int]:
    if op.name == "call":
        return 2, 1
    if op.name == "argsort":
        return 1, 1
    found = [_pace(region) for region in op.regions]
    height, steps = max((h for h, _ in found), default=0), sum(s for _, s in found)
    if op.name == "while":
        return height + 1, 1
    if op.name in ("par", "for"):
        for count in op.operands[: op.attrs["rank"] if op.name == "par" else 1]:
            if count.op is not None and count.op.name == "const":
                steps *= max(count.op.attrs["value"], 1)
            else:
                height += 1
        return (height + 1, 1) if height == 0 and steps > _BLOCK else (height, steps)
    if op.name in ("lgamma", "digamma", "polygamma"):
        return height, steps + _SPECIAL
    return height, steps + (_MATHS if op.name in MATHS else 1)


def _power(number: int) -> int:
    """The power of two that is just below, at least 1."""
    return 1 << max(number, 1).bit_length() - 1


def poll_loop(fe: FunctionEmitter, region: Region, k: str, count: str) -> None:
    """The right poll for a sequential loop over k."""
    if runs_long(region):
        poll(fe)
        return
    every = min(_LONG, _power(_BLOCK // _pace(region)[1]))
    if not (is_literal(count) and int(count) <= every):
        poll_sometimes(fe, k, every)
