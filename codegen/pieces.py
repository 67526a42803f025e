"""Into how many pieces a loop is cut (see `split`): the limits, and the LLVM IR that decides when it runs."""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.codegen.text import float_literal


@dataclass(slots=True)
class Limits:
    """When a `par` is split: nanoseconds of work that are worth it, and of one piece; pieces per thread at most.

    grain: iterations of which pieces are multiples (0: what the loops are made for). Tests make all of it small.
    """

    least: float = 60e3
    piece: float = 12e3
    per_thread: int = 4
    grain: int = 0


limits = Limits()

# What pieces are given: iterations, those of a piece, pieces, memory for what they give; then bytes of accumulators of
# their own, then what the body captures.
N, SIZE, PIECES, SCRATCH, HEAD = 0, 8, 16, 24, 32

# A call in pieces: -1 if it is but one. `own` is what the pieces' own accumulators cost, each time.
_SPLIT = f"""
define internal i32 @aot.split(ptr %ctx, ptr %table, ptr %piece, ptr %env, i64 %n, i64 %grain, i64 %compiled,
    i64 %stride, i64 %bytes, double %work, double %own) #1 {{{{
entry:
  %mostof = load ptr, ptr %table
  %most = call i64 %mostof(ptr %ctx, i64 %compiled)
  %size = call i64 @aot.piece(i64 %n, i64 %grain, i64 %most, double %work, double %own)
  %s1 = sub i64 %size, 1
  %up = add i64 %n, %s1
  %pieces = sdiv i64 %up, %size
  %few = icmp slt i64 %pieces, 2
  br i1 %few, label %whole, label %memory
memory:
  %results = mul i64 %pieces, %stride
  %others = sub i64 %pieces, 1
  %owns = mul i64 %others, %bytes
  %all = add i64 %results, %owns
  %nothing = icmp eq i64 %all, 0
  br i1 %nothing, label %ready, label %make
make:
  %made = call ptr @aot.alloc(ptr %ctx, i64 %all)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %whole, label %ready
ready:
  %scratch = phi ptr [ null, %memory ], [ %made, %make ]
  store i64 %n, ptr %env
  %sizeat = getelementptr i8, ptr %env, i64 {SIZE}
  store i64 %size, ptr %sizeat
  %piecesat = getelementptr i8, ptr %env, i64 {PIECES}
  store i64 %pieces, ptr %piecesat
  %scratchat = getelementptr i8, ptr %env, i64 {SCRATCH}
  store ptr %scratch, ptr %scratchat
  %runat = getelementptr i8, ptr %table, i64 8
  %run = load ptr, ptr %runat
  %code = call i32 %run(ptr %ctx, ptr %piece, ptr %env, i64 %pieces, i64 %most)
  ret i32 %code
whole:
  ret i32 -1
}}}}
"""

# How many iterations a piece has, in whole grains: pieces are worth their while, a few for each thread, and where they
# have accumulators of their own (`own`: what one costs) not so many that those cost more than an eighth.
_PIECE = """
define internal i64 @aot.piece(i64 %n, i64 %grain, i64 %threads, double %work, double %own) #1 {{
entry:
  %single = icmp slt i64 %threads, 2
  br i1 %single, label %all, label %many
many:
  %per = mul i64 %threads, {per}
  %worth = fdiv double %work, {piece}
  %eight = fmul double %own, {eight}
  %least = fadd double %eight, {one}
  %bearable = fdiv double %work, %least
  %x = call i64 @llvm.fptosi.sat.i64.f64(double %worth)
  %y = call i64 @llvm.fptosi.sat.i64.f64(double %bearable)
  %z = call i64 @llvm.smin.i64(i64 %x, i64 %y)
  %pieces = call i64 @llvm.smin.i64(i64 %per, i64 %z)
  %few = icmp slt i64 %pieces, 2
  br i1 %few, label %all, label %cut
cut:
  %up = add i64 %pieces, -1
  %more = add i64 %n, %up
  %even = sdiv i64 %more, %pieces
  %g1 = sub i64 %grain, 1
  %h = add i64 %even, %g1
  %grains = sdiv i64 %h, %grain
  %size = mul i64 %grains, %grain
  ret i64 %size
all:
  %whole = call i64 @llvm.smax.i64(i64 %n, i64 1)
  ret i64 %whole
}}
"""


def support() -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """LLVM text of `aot.split`; what it calls; declarations."""
    least, eight, one = map(float_literal, (limits.piece, 8.0, 1.0))
    text = (_SPLIT + _PIECE).format(per=limits.per_thread, piece=least, eight=eight, one=one)
    declared = ("i64 @llvm.fptosi.sat.i64.f64(double)", "i64 @llvm.smin.i64(i64, i64)", "i64 @llvm.smax.i64(i64, i64)")
    return text, ("aot.alloc",), tuple(f"declare {d}" for d in declared)
