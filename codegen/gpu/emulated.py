"""The emulated device: kernels become functions of this machine that run one thread.

A kernel without barriers is a plain function of its parameters and the number of the thread. One with barriers is an
LLVM coroutine that suspends at each barrier. Around either, a driver

    i64 aotdiff.NAME(ptr args, ptr blocks, i64 count, ptr orders, i64 rounds, i64 grid)

runs `count` blocks of a grid of `grid`, whose numbers are in `blocks`, one after the other: thread by thread, in round
r in the order of the permutation r mod `rounds` in `orders` (i64 each). A round ends when all threads have reached a
barrier or their end; the driver gives 1 where some threads reached a barrier and others their end, else 0. Each
argument is in 8 bytes of `args`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
from aotdiff.codegen.gpu.target import GpuTarget
from aotdiff.codegen.target import CpuTarget

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.gpu.kernels import KernelEmitter
    from aotdiff.codegen.scalartext import ScalarText

_NUMBERS = ("i64 %thread", "i64 %block", "i64 %grid", "ptr %shared")


class EmulatedTarget(GpuTarget):
    """This machine's processor as a device."""

    def __init__(self) -> None:
        super().__init__(llvm.get_process_triple())

    def math(self, fe: ScalarText, name: str, kind: str, args: Sequence[str]) -> str:
        return CpuTarget.math(self, fe, name, kind, args)

    def thread(self, ke: KernelEmitter) -> str:
        return "%thread"

    def block(self, ke: KernelEmitter) -> str:
        return "%block"

    def blocks(self, ke: KernelEmitter) -> str:
        return "%grid"

    def barrier(self, ke: KernelEmitter) -> None:
        back = ke.label("barrier")
        token = ke.op("call i8 @llvm.coro.suspend(token none, i1 false)")
        ke.do(f"switch i8 {token}, label %coro.out [ i8 0, label %{back} i8 1, label %coro.cleanup ]")
        ke.start(back)

    def shared(self, ke: KernelEmitter, type_: str, count: int) -> str:
        return ke.bytes_at("%shared", ke.shared) if ke.shared else "%shared"

    def atomic_add(self, fe: FunctionEmitter, type_: str, ptr: str, value: str) -> None:
        fe.op(f"atomicrmw {'add' if type_ == 'i64' else 'fadd'} ptr {ptr}, {type_} {value} monotonic")

    def leave(self, ke: KernelEmitter) -> None:
        ke.do("br label %coro.final" if ke.barriers else "ret void")

    def kernel(self, ke: KernelEmitter, params: Sequence[str]) -> str:
        name = ke.spec.name
        listed = ", ".join([*params, *_NUMBERS])
        if ke.barriers:
            for text in _COROUTINES:
                ke.module.declare(text)
            body = ke.body().replace("entry:\n", _COROUTINE_START, 1)
            head = f"define internal ptr @kernel.{name}({listed}) presplitcoroutine #0 {{"
            function = f"{head}\n{body}\n{_COROUTINE_END}}}"
        else:
            function = f"define internal void @kernel.{name}({listed}) #0 {{\n{ke.body()}\n}}"
        return f"{function}\n{_driver(ke, params)}"


_COROUTINES = (
    "declare token @llvm.coro.id(i32, ptr, ptr, ptr)",
    "declare i64 @llvm.coro.size.i64()",
    "declare ptr @llvm.coro.begin(token, ptr)",
    "declare i8 @llvm.coro.suspend(token, i1)",
    "declare ptr @llvm.coro.free(token, ptr)",
    "declare void @llvm.coro.end(ptr, i1, token)",
    "declare i1 @llvm.coro.done(ptr)",
    "declare void @llvm.coro.resume(ptr)",
    "declare void @llvm.coro.destroy(ptr)",
    "declare ptr @malloc(i64)",
    "declare void @free(ptr)",
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
)

_COROUTINE_START = """entry:
  %coro.id = call token @llvm.coro.id(i32 0, ptr null, ptr null, ptr null)
  %coro.size = call i64 @llvm.coro.size.i64()
  %coro.memory = call ptr @malloc(i64 %coro.size)
  %coro.handle = call noalias ptr @llvm.coro.begin(token %coro.id, ptr %coro.memory)
"""

_COROUTINE_END = """coro.final:
  %coro.last = call i8 @llvm.coro.suspend(token none, i1 true)
  switch i8 %coro.last, label %coro.out [ i8 0, label %coro.never i8 1, label %coro.cleanup ]
coro.never:
  unreachable
coro.cleanup:
  %coro.frame = call ptr @llvm.coro.free(token %coro.id, ptr %coro.handle)
  call void @free(ptr %coro.frame)
  br label %coro.out
coro.out:
  call void @llvm.coro.end(ptr %coro.handle, i1 false, token none)
  ret ptr %coro.handle
"""


def _driver(ke: KernelEmitter, params: Sequence[str]) -> str:
    name, threads = ke.spec.name, ke.spec.block
    loads, passed = [], []
    for n, param in enumerate(params):
        type_ = param.split()[0]
        loads.append(f"  %at{n} = getelementptr i64, ptr %args, i64 {n}\n  %a{n} = load {type_}, ptr %at{n}")
        passed.append(f"{type_} %a{n}")
    call = f"@kernel.{name}({', '.join([*passed, 'i64 %t', 'i64 %b', 'i64 %grid', 'ptr %shared'])})"
    head = f"define i64 @aotdiff.{name}(ptr %args, ptr %blocks, i64 %count, ptr %orders, i64 %rounds, i64 %grid) #0 {{"
    body = _with_barriers(call, threads, ke.shared) if ke.barriers else _without_barriers(call, threads)
    return "\n".join([head, "entry:", *loads, body, "}"])


def _loop(name: str, count: str, body: str, before: str, after: str) -> str:
    """Text of a loop `%name.i` from 0; `body` ends with a branch to `name.next`, the loop goes on at `after`."""
    return f"""{name}.head:
  %{name}.i = phi i64 [ 0, %{before} ], [ %{name}.up, %{name}.next ]
  %{name}.more = icmp slt i64 %{name}.i, {count}
  br i1 %{name}.more, label %{name}.body, label %{after}
{name}.body:
{body}
{name}.next:
  %{name}.up = add i64 %{name}.i, 1
  br label %{name}.head"""


_BLOCK = """  %bat = getelementptr i64, ptr %blocks, i64 %each.i
  %b = load i64, ptr %bat"""


def _without_barriers(call: str, threads: int) -> str:
    first = f"""  %tat = getelementptr i64, ptr %orders, i64 %run.i
  %t = load i64, ptr %tat
  call void {call}
  br label %run.next"""
    inner = _loop("run", str(threads), first, "each.body", "each.next")
    outer = _loop("each", "%count", f"{_BLOCK}\n  br label %run.head\n{inner}", "entry", "done")
    return f"  %shared = getelementptr i8, ptr null, i64 0\n  br label %each.head\n{outer}\ndone:\n  ret i64 0"


# Bodies of the loops over the threads of a block: start each, count those that ended, go on with each, give them back.
_START = """  %tat = getelementptr i64, ptr %orders, i64 %run.i
  %t = load i64, ptr %tat
  %h = call ptr CALL
  %hat = getelementptr ptr, ptr %handles, i64 %t
  store ptr %h, ptr %hat
  br label %run.next"""
_LOOK = """  %lat = getelementptr ptr, ptr %handles, i64 %look.i
  %l = load ptr, ptr %lat
  %over = call i1 @llvm.coro.done(ptr %l)
  %one = zext i1 %over to i64
  %old = load i64, ptr %ended
  %new = add i64 %old, %one
  store i64 %new, ptr %ended
  br label %look.next"""
_AGAIN = """  %from = add i64 %base, %go.i
  %gat = getelementptr i64, ptr %orders, i64 %from
  %g = load i64, ptr %gat
  %ghat = getelementptr ptr, ptr %handles, i64 %g
  %gh = load ptr, ptr %ghat
  call void @llvm.coro.resume(ptr %gh)
  br label %go.next"""
_LAST = """  %eat = getelementptr ptr, ptr %handles, i64 %end.i
  %e = load ptr, ptr %eat
  call void @llvm.coro.destroy(ptr %e)
  br label %end.next"""


def _with_barriers(call: str, threads: int, shared: int) -> str:
    start = _START.replace("CALL", call)
    body = f"""{_BLOCK}
  call void @llvm.memset.p0.i64(ptr align 64 %shared, i8 -1, i64 {shared}, i1 false)
  br label %run.head
{_loop("run", str(threads), start, "each.body", "turn")}
turn:
  %round = phi i64 [ 1, %run.head ], [ %round2, %go.head ]
  store i64 0, ptr %ended
  br label %look.head
{_loop("look", str(threads), _LOOK, "turn", "looked")}
looked:
  %total = load i64, ptr %ended
  %all = icmp eq i64 %total, {threads}
  br i1 %all, label %finish, label %some
some:
  %none = icmp eq i64 %total, 0
  br i1 %none, label %resume, label %diverged
diverged:
  store i64 1, ptr %code
  br label %finish
resume:
  %which = urem i64 %round, %rounds
  %base = mul i64 %which, {threads}
  %round2 = add i64 %round, 1
  br label %go.head
{_loop("go", str(threads), _AGAIN, "resume", "turn")}
finish:
  br label %end.head
{_loop("end", str(threads), _LAST, "finish", "each.next")}"""
    return f"""  %shared = alloca [{max(shared, 1)} x i8], align 64
  %handles = alloca [{threads} x ptr], align 8
  %ended = alloca i64
  %code = alloca i64
  store i64 0, ptr %code
  br label %each.head
{_loop("each", "%count", body, "entry", "out")}
out:
  %result = load i64, ptr %code
  ret i64 %result"""
