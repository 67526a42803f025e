"""Run-time support inside a thread, as LLVM IR: the error word, and memory from the thread's arena.

An arena is a piece of scratch memory that belongs to one thread of the grid while a kernel runs. It begins with

    0    ptr  errors      the error word
    8    i64  end         bytes in the arena
    16   i64  bump        next free byte
    24   ptr  free[48]    free lists by size class: powers of two
    408  i64  kernel      number of the kernel in its plan

and the kernel's first step is to write that. A thread that runs out says so in the error word, with the size it needs
at least and the kernel, and stops; the host runs the plan again with more.
"""

from __future__ import annotations

from aotdiff.codegen.gpu.plan import SCRATCH_SITE
from aotdiff.codegen.memory import CLONE, GROW

_KERNEL = 24 + 8 * 48
HEADER = _KERNEL + 8
_SMALLEST = 5  # 32 bytes, 16 of which are the block's header
_LIMIT = 1 << 46

ALLOC = f"""
define internal noalias ptr @aot.alloc(ptr noalias %ctx, i64 %bytes) #1 {{
entry:
  %big = icmp ugt i64 %bytes, {_LIMIT}
  br i1 %big, label %none, label %sized
sized:
  %padded = add i64 %bytes, 16
  %least = call i64 @llvm.umax.i64(i64 %padded, i64 {1 << _SMALLEST})
  %x = sub i64 %least, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %x, i1 true)
  %class = sub i64 64, %zeros
  %offset = shl i64 %class, 3
  %lists = getelementptr i8, ptr %ctx, i64 24
  %slot = getelementptr i8, ptr %lists, i64 %offset
  %head = load ptr, ptr %slot
  %empty = icmp eq ptr %head, null
  br i1 %empty, label %carve, label %pop
pop:
  %next = load ptr, ptr %head
  store ptr %next, ptr %slot
  ret ptr %head
carve:
  %size = shl i64 1, %class
  %endat = getelementptr i8, ptr %ctx, i64 8
  %bumpat = getelementptr i8, ptr %ctx, i64 16
  %end = load i64, ptr %endat
  %bump = load i64, ptr %bumpat
  %after = add i64 %bump, %size
  %fits = icmp ule i64 %after, %end
  br i1 %fits, label %place, label %none
place:
  store i64 %after, ptr %bumpat
  %start = getelementptr i8, ptr %ctx, i64 %bump
  store i64 %class, ptr %start
  %user = getelementptr i8, ptr %start, i64 16
  ret ptr %user
none:
  %want = phi i64 [ %bytes, %entry ], [ %after, %carve ]
  %errors = load ptr, ptr %ctx
  %kernelat = getelementptr i8, ptr %ctx, i64 {_KERNEL}
  %kernel = load i64, ptr %kernelat
  call void @aot.report2(ptr %errors, i64 {SCRATCH_SITE}, i64 %want, i64 %kernel)
  ret ptr null
}}
"""

FREE = """
define internal void @aot.free(ptr noalias %ctx, ptr %p) #1 {
entry:
  %null = icmp eq ptr %p, null
  br i1 %null, label %out, label %put
put:
  %header = getelementptr i8, ptr %p, i64 -16
  %class = load i64, ptr %header
  %offset = shl i64 %class, 3
  %lists = getelementptr i8, ptr %ctx, i64 24
  %slot = getelementptr i8, ptr %lists, i64 %offset
  %head = load ptr, ptr %slot
  store ptr %head, ptr %p
  store ptr %p, ptr %slot
  br label %out
out:
  ret void
}
"""

# The arena of a thread made ready.
OPEN = f"""
define internal void @aot.open(ptr noalias %ctx, ptr %errors, i64 %bytes, i64 %kernel) #1 {{
entry:
  store ptr %errors, ptr %ctx
  %endat = getelementptr i8, ptr %ctx, i64 8
  store i64 %bytes, ptr %endat
  %bumpat = getelementptr i8, ptr %ctx, i64 16
  store i64 {HEADER}, ptr %bumpat
  %lists = getelementptr i8, ptr %ctx, i64 24
  call void @llvm.memset.p0.i64(ptr align 8 %lists, i8 0, i64 {_KERNEL - 24}, i1 false)
  %kernelat = getelementptr i8, ptr %ctx, i64 {_KERNEL}
  store i64 %kernel, ptr %kernelat
  ret void
}}
"""


def report_text(name: str, count: int) -> str:
    """Function `name(errors, site, values...)`: the first thread of all writes them."""
    params = "".join(f", i64 %v{n}" for n in range(count))
    lines = []
    for n in range(count):
        lines.append(f"  %at{n} = getelementptr i64, ptr %errors, i64 {n + 1}")
        lines.append(f"  store i64 %v{n}, ptr %at{n}")
    return "\n".join(
        [
            f"define internal void {name}(ptr %errors, i64 %site{params}) #1 {{",
            "entry:",
            "  %pair = cmpxchg ptr %errors, i64 0, i64 %site monotonic monotonic",
            "  %won = extractvalue { i64, i1 } %pair, 1",
            "  br i1 %won, label %write, label %out",
            "write:",
            *lines,
            "  br label %out",
            "out:",
            "  ret void",
            "}",
        ]
    )


_MEMCPY = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"

# name -> (text, other runtime functions it calls, external declarations)
RUNTIME: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "aot.alloc": (
        ALLOC,
        ("aot.report2",),
        ("declare i64 @llvm.umax.i64(i64, i64)", "declare i64 @llvm.ctlz.i64(i64, i1)"),
    ),
    "aot.free": (FREE, (), ()),
    "aot.clone": (CLONE, ("aot.alloc",), (_MEMCPY,)),
    "aot.grow": (GROW, ("aot.alloc", "aot.free"), ("declare i64 @llvm.umax.i64(i64, i64)", _MEMCPY)),
    "aot.open": (OPEN, (), ("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",)),
    **{f"aot.report{n}": (report_text(f"@aot.report{n}", n), (), ()) for n in range(16)},
}
