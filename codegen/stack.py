"""A stack of its own for functions that recurse, on Linux: 256 MiB of addresses, of which only what is used is memory.

The entry of such a function packs its arguments and runs on that stack, so that how deep a recursion may go does not
depend on the thread that calls. Elsewhere, or where there is no memory for it, the thread's stack is used.
"""

from __future__ import annotations

import llvmlite.binding as llvm
from aotdiff.codegen import context as ctx
from aotdiff.codegen.system import system_of

_MARK = 0x5AFE57AC
_SHALLOW = 4 << 20
_PROTECTION, _PRIVATE_LAZY = 3, 0x2 | 0x20 | 0x4000 | 0x20000

# The top of our stack, with `stack_limit` set for it; null where there is none, with the limit of the thread's stack.
# A mark below what usually is enough tells `aot.stack_done` whether more was used, which then goes back to the system.
_STACK = f"""
define internal ptr @aot.stack(ptr %ctx) #1 {{
entry:
  %keepat = getelementptr i8, ptr %ctx, i64 {ctx.KEEP}
  %keep = load i64, ptr %keepat
  %given = icmp eq i64 %keep, -1
  br i1 %given, label %none, label %look
look:
  %stackat = getelementptr i8, ptr %ctx, i64 {ctx.STACK}
  %known = load ptr, ptr %stackat
  %have = icmp ne ptr %known, null
  br i1 %have, label %ready, label %map
map:
  %mapped = call ptr @mmap(ptr null, i64 {ctx.STACK_SIZE}, i32 {_PROTECTION}, i32 {_PRIVATE_LAZY}, i32 -1, i64 0)
  %number = ptrtoint ptr %mapped to i64
  %failed = icmp eq i64 %number, -1
  br i1 %failed, label %none, label %store
none:
  call void @aot.stack_limit(ptr %ctx)
  ret ptr null
store:
  store ptr %mapped, ptr %stackat
  br label %ready
ready:
  %stack = phi ptr [ %known, %look ], [ %mapped, %store ]
  %base = ptrtoint ptr %stack to i64
  %limit = add i64 %base, 262144
  %limitat = getelementptr i8, ptr %ctx, i64 {ctx.STACK_LIMIT}
  store i64 %limit, ptr %limitat
  %threadat = getelementptr i8, ptr %ctx, i64 {ctx.STACK_THREAD}
  store i64 0, ptr %threadat
  %markat = getelementptr i8, ptr %stack, i64 {ctx.STACK_SIZE - _SHALLOW}
  store volatile i64 {_MARK}, ptr %markat
  %top = getelementptr i8, ptr %stack, i64 {ctx.STACK_SIZE - 64}
  ret ptr %top
}}

define internal void @aot.stack_done(ptr %ctx) #1 {{
entry:
  %stackat = getelementptr i8, ptr %ctx, i64 {ctx.STACK}
  %stack = load ptr, ptr %stackat
  %markat = getelementptr i8, ptr %stack, i64 {ctx.STACK_SIZE - _SHALLOW}
  %mark = load volatile i64, ptr %markat
  %shallow = icmp eq i64 %mark, {_MARK}
  br i1 %shallow, label %out, label %give
give:
  %rc = call i32 @madvise(ptr %stack, i64 {ctx.STACK_SIZE - _SHALLOW}, i32 4)
  br label %out
out:
  ret void
}}
"""

_UNMAP = f"""
  %stackat = getelementptr i8, ptr %ctx, i64 {ctx.STACK}
  %stack = load ptr, ptr %stackat
  %none = icmp eq ptr %stack, null
  br i1 %none, label %out, label %unmap
unmap:
  %rc = call i32 @munmap(ptr %stack, i64 {ctx.STACK_SIZE})
  store ptr null, ptr %stackat
  br label %out
out:
"""

# on_stack(function, argument, top)
_SWITCHES = {
    "x86_64": (
        "pushq %rbp", "movq %rsp, %rbp", "movq %rdx, %rsp", "movq %rdi, %rax", "movq %rsi, %rdi", "callq *%rax",
        "movq %rbp, %rsp", "popq %rbp", "retq",
    ),
    "aarch64": (
        "stp x29, x30, [sp, #-16]!", "mov x29, sp", "mov sp, x2", "mov x8, x0", "mov x0, x1", "blr x8",
        "mov sp, x29", "ldp x29, x30, [sp], #16", "ret",
    ),
}  # fmt: skip


def has_stack(triple: str) -> bool:
    """Whether recursion gets a stack of its own: the switch is assembly, which LLVM parses for this machine only."""
    architecture = triple.split("-")[0]
    here = llvm.get_process_triple().split("-")[0]
    return system_of(triple) == "linux" and architecture == here and architecture in _SWITCHES


def stack(triple: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """LLVM text of `aot.stack`, `aot.stack_done` and `aot.on_stack`; what they call; declarations."""
    switch = "\\0A".join(_SWITCHES[triple.split("-")[0]])
    text = (
        f"{_STACK}\n"
        "define internal void @aot.on_stack(ptr %function, ptr %argument, ptr %top) naked noinline nounwind {\n"
        f'  call void asm sideeffect "{switch}", ""()\n  unreachable\n}}'
    )
    declared = ("ptr @mmap(ptr, i64, i32, i32, i32, i64)", "i32 @madvise(ptr, i64, i32)")
    return text, ("aot.stack_limit",), tuple(f"declare {d}" for d in declared)


_END_TEAM = f"""
  %tableat = getelementptr i8, ptr %ctx, i64 {ctx.THREADS}
  %table = load ptr, ptr %tableat
  %alone = icmp eq ptr %table, null
  br i1 %alone, label %chunks, label %team
team:
  %endat = getelementptr i8, ptr %table, i64 16
  %end = load ptr, ptr %endat
  call void %end(ptr %ctx)
  br label %chunks
chunks:
"""


def release(triple: str, threads: bool = False) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """LLVM text of `aotdiff.release(ctx)`, which gives back the workspace, the stack and helping threads."""
    unmap = _UNMAP if has_stack(triple) else ""
    team = _END_TEAM if threads else ""
    text = f"define weak void @aotdiff.release(ptr %ctx) #1 {{{team}\n  call void @aot.release_chunks(ptr %ctx){unmap}"
    declared = ("declare i32 @munmap(ptr, i64)",) if unmap else ()
    return f"{text}\n  ret void\n}}", ("aot.release_chunks",), declared


def entry(name: str, inner: str, params: list[str]) -> str:
    """The entry `name` that runs `inner`, which has the same parameters, the context last, on our stack."""
    types = [p.split()[0] for p in params]
    values = [p.split()[-1] for p in params]
    struct = "{ " + ", ".join(["i32", *types]) + " }"
    fields, loads, stores = [], [], []
    for n, (type_, value) in enumerate(zip(types, values, strict=True)):
        at = f"getelementptr {struct}, ptr %s, i32 0, i32 {n + 1}"
        stores += [f"  %a{n} = {at}", f"  store {type_} {value}, ptr %a{n}"]
        loads += [f"  %a{n} = {at}", f"  %v{n} = load {type_}, ptr %a{n}"]
        fields.append(f"{type_} %v{n}")
    passed = ", ".join(f"{t} {v}" for t, v in zip(types, values, strict=True))
    thunk = inner.replace("aot.e.", "aot.t.", 1)
    return "\n".join(
        [
            f"define internal void {thunk}(ptr %s) #1 {{",
            *loads,
            f"  %code = call i32 {inner}({', '.join(fields)})",
            "  store i32 %code, ptr %s",
            "  ret void",
            "}",
            f"define i32 {name}({', '.join(params)}) #0 {{",
            "entry:",
            f"  %s = alloca {struct}, align 16",
            "  %top = call ptr @aot.stack(ptr %ctx)",
            "  %none = icmp eq ptr %top, null",
            "  br i1 %none, label %here, label %there",
            "here:",
            f"  %plain = call i32 {inner}({passed})",
            "  ret i32 %plain",
            "there:",
            *stores,
            f"  call void @aot.on_stack(ptr {thunk}, ptr %s, ptr %top)",
            "  call void @aot.stack_done(ptr %ctx)",
            "  %code = load i32, ptr %s",
            "  ret i32 %code",
            "}",
        ]
    )
