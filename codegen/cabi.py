"""C entries: `int NAME(parameters..., sizes..., cotangents..., results...)` around native entries, as LLVM IR.

Each size name comes once, after the parameters. The wrapper keeps one context per thread (thread-local storage, given
back at thread exit), computes the sizes of arrays, and passes scratch memory where a result pointer is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aotdiff.codegen import context
from aotdiff.codegen.text import Text, c_string, symbol
from aotdiff.codegen.values import MEMORY_TYPES, SIZES

Size = int | str | tuple


@dataclass(frozen=True, slots=True)
class CArgument:
    """A parameter or result: element "f64", "f32", "i64" or "bool"; an array has symbolic sizes.

    A size is a number, a name, or `(op, left, right)` with op one of `+ - * // %`.
    """

    name: str
    element: str
    sizes: tuple[Size, ...] = ()


@dataclass(frozen=True, slots=True)
class CFunction:
    """One C entry. native: the name of the exported graph function. `doc` goes into the header.

    extra: how many of the parameters (the last ones: cotangents, tangents, a direction) come after the sizes.
    """

    name: str
    native: str
    parameters: tuple[CArgument, ...]
    results: tuple[CArgument, ...]
    doc: str = ""
    sizes: tuple[str, ...] = field(default=())
    extra: int = 0

    def size_names(self) -> tuple[str, ...]:
        """Size names that are not parameters, in order of first appearance."""
        taken = {p.name for p in self.parameters if not p.sizes}
        found: dict[str, None] = dict.fromkeys(self.sizes)
        for argument in (*self.parameters, *self.results):
            for size in argument.sizes:
                found.update(dict.fromkeys(_names(size)))
        return tuple(n for n in found if n not in taken)


def _names(size: Size) -> list[str]:
    if isinstance(size, str):
        return [size]
    return [n for part in size[1:] for n in _names(part)] if isinstance(size, tuple) else []


def size_text(size: Size, outer: int = 0) -> str:
    """A size as written in the language."""
    if not isinstance(size, tuple):
        return str(size)
    op, left, right = size
    level = 1 if op in "+-" else 2
    text = f"{size_text(left, level)} {op} {size_text(right, level + 1)}"
    return f"({text})" if level < outer else text


# State of a library: thread-local storage.
SHARED = f"""
@aotdiff.context = internal thread_local global [{context.SIZE} x i8] zeroinitializer, align 16
@aotdiff.known = internal thread_local global i8 0
@aotdiff_error_text = weak thread_local global ptr null
@aotdiff.none = private unnamed_addr constant [1 x i8] zeroinitializer
@__dso_handle = external hidden global i8
declare i32 @__cxa_thread_atexit_impl(ptr, ptr, ptr)
declare ptr @llvm.threadlocal.address.p0(ptr)

define weak ptr @aotdiff_last_error() {{
  %slot = call ptr @llvm.threadlocal.address.p0(ptr @aotdiff_error_text)
  %text = load ptr, ptr %slot
  %null = icmp eq ptr %text, null
  %found = select i1 %null, ptr @aotdiff.none, ptr %text
  ret ptr %found
}}

define internal ptr @aotdiff.thread() noinline nounwind {{
entry:
  %ctx = call ptr @llvm.threadlocal.address.p0(ptr @aotdiff.context)
  %knownat = call ptr @llvm.threadlocal.address.p0(ptr @aotdiff.known)
  %known = load i8, ptr %knownat
  %new = icmp eq i8 %known, 0
  br i1 %new, label %first, label %out
first:
  store i8 1, ptr %knownat
  %rc = call i32 @__cxa_thread_atexit_impl(ptr @aotdiff.release, ptr %ctx, ptr @__dso_handle)
  br label %out
out:
  ret ptr %ctx
}}

define internal i32 @aotdiff.failed(ptr %ctx, i32 %code) noinline nounwind {{
  %slot = call ptr @llvm.threadlocal.address.p0(ptr @aotdiff_error_text)
  %text = getelementptr i8, ptr %ctx, i64 {context.MESSAGE}
  store ptr %text, ptr %slot
  ret i32 %code
}}
"""

# State of code in memory, which has no thread-local storage of its own: a POSIX key that `set_key` gives.
IN_MEMORY = f"""
@aotdiff.key = internal global i32 0
@aotdiff.spare = internal global [{context.SIZE} x i8] zeroinitializer, align 16
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare ptr @calloc(i64, i64)

define void @aotdiff.set_key(i32 %key) {{
  store i32 %key, ptr @aotdiff.key
  ret void
}}

define void @aotdiff.close(ptr %ctx) {{
  call void @aotdiff.release(ptr %ctx)
  call void @free(ptr %ctx)
  ret void
}}

define internal ptr @aotdiff.thread() noinline nounwind {{
entry:
  %key = load i32, ptr @aotdiff.key
  %found = call ptr @pthread_getspecific(i32 %key)
  %new = icmp eq ptr %found, null
  br i1 %new, label %first, label %out
first:
  %made = call ptr @calloc(i64 1, i64 {context.SIZE})
  %full = icmp eq ptr %made, null
  br i1 %full, label %spare, label %keep
keep:
  %rc = call i32 @pthread_setspecific(i32 %key, ptr %made)
  br label %out
spare:
  br label %out
out:
  %ctx = phi ptr [ %found, %entry ], [ %made, %keep ], [ @aotdiff.spare, %spare ]
  ret ptr %ctx
}}

define internal i32 @aotdiff.failed(ptr %ctx, i32 %code) noinline nounwind {{
  ret i32 %code
}}
"""

_REFUSED = f"""
define internal i32 @aotdiff.refused(ptr %ctx, i32 %code, ptr %text) noinline nounwind {{
  store i32 %code, ptr %ctx
  %line = getelementptr i8, ptr %ctx, i64 {context.LINE}
  store i32 0, ptr %line
  %to = getelementptr i8, ptr %ctx, i64 {context.MESSAGE}
  call ptr @strncpy(ptr %to, ptr %text, i64 {context.MESSAGE_SIZE - 1})
  %rc = call i32 @aotdiff.failed(ptr %ctx, i32 %code)
  ret i32 %rc
}}
declare ptr @strncpy(ptr, ptr, i64)
"""


class _Wrapper(Text):
    """Writes one C entry."""

    def __init__(self, function: CFunction, texts: dict[str, str]):
        super().__init__()
        self.function = function
        self.texts = texts
        self.values: dict[str, str] = {}
        self.nonnegative: dict[str, str] = {}

    def write(self) -> str:
        f = self.function
        params = [self._parameter(f"%p{i}", p) for i, p in enumerate(f.parameters)]
        for i, p in enumerate(f.parameters):
            if not p.sizes and p.element == "i64":
                self.values[p.name] = f"%p{i}"
        sizes = [f"i64 %n{n}" for n in range(len(f.size_names()))]
        self.values.update({name: f"%n{n}" for n, name in enumerate(f.size_names())})
        own = len(params) - f.extra
        params[own:own] = sizes
        params += [f"ptr %r{j}" for j in range(len(f.results))]
        context_ = self.op("call ptr @aotdiff.thread()")
        self.ctx = context_
        args = [a for i, p in enumerate(f.parameters) for a in self._argument(f"%p{i}", p)]
        args += [a for j, r in enumerate(f.results) for a in self._result(f"%r{j}", r)]
        code = self.op(f"call i32 {symbol(f'aotdiff.{f.native}')}({', '.join([*args, f'ptr {context_}'])})")
        self._fail_if(self.op(f"icmp ne i32 {code}, 0"), f"call i32 @aotdiff.failed(ptr {context_}, i32 {code})")
        self.do("ret i32 0")
        return f"define i32 @{f.name}({', '.join(params)}) nounwind {{\n{self.body()}\n}}"

    def _parameter(self, name: str, p: CArgument) -> str:
        return f"ptr {name}" if p.sizes else f"{MEMORY_TYPES[p.element]} {name}"

    def _argument(self, name: str, p: CArgument) -> list[str]:
        if p.sizes:
            return [f"ptr {name}", *(f"i64 {self._checked(s)}" for s in p.sizes)]
        if p.element == "bool":
            name = self.op(f"zext i1 {self.op(f'icmp ne i8 {name}, 0')} to i8")
        return [f"{MEMORY_TYPES[p.element]} {name}"]

    def _result(self, name: str, r: CArgument) -> list[str]:
        dims = [self._checked(s) for s in r.sizes]
        return [f"ptr {self._wanted(name, r, dims)}", *(f"i64 {d}" for d in dims)]

    def _wanted(self, name: str, r: CArgument, dims: list[str]) -> str:
        """The caller's storage, or scratch where the pointer is null."""
        null = self.op(f"icmp eq ptr {name}, null")
        if not dims:
            return self.op(f"select i1 {null}, ptr {self.alloca(MEMORY_TYPES[r.element])}, ptr {name}")
        scratch, go = self.label("scratch"), self.label("given")
        before = self.block_name
        self.branch(null, scratch, go)
        self.start(scratch)
        size = str(SIZES[r.element])
        for d in dims:
            size = self.op(f"mul i64 {size}, {d}")
        memory = self.op(f"call ptr @aot.alloc(ptr {self.ctx}, i64 {size})")
        self._refuse_if(self.op(f"icmp eq ptr {memory}, null"), "MemoryError", "out of memory")
        after = self.block_name
        self.jump(go)
        self.start(go)
        return self.phi("ptr", (name, before), (memory, after))

    def _checked(self, size: Size) -> str:
        """The value of a size, which must not be negative."""
        text = size_text(size)
        if text not in self.nonnegative:
            value = self._value(size)
            if isinstance(size, int):
                return value
            message = f"{self.function.name}: size {text} is negative"
            self._refuse_if(self.op(f"icmp slt i64 {value}, 0"), "ValueError", message)
            self.nonnegative[text] = value
        return self.nonnegative[text]

    def _value(self, size: Size) -> str:
        if isinstance(size, int):
            return str(size)
        if isinstance(size, str):
            return self.values[size]
        op, left, right = size[0], self._value(size[1]), self._value(size[2])
        if op in ("+", "-", "*"):
            name = {"+": "add", "-": "sub", "*": "mul"}[op]
            return self.op(f"{name} i64 {left}, {right}")
        self._refuse_if(
            self.op(f"icmp eq i64 {right}, 0"),
            "ZeroDivisionError",
            f"{self.function.name}: size {size_text(size)} divides by 0",
        )
        rest = self.op(f"srem i64 {left}, {right}")
        signs = self.op(f"icmp slt i64 {self.op(f'xor i64 {rest}, {right}')}, 0")
        crosses = self.op(f"and i1 {signs}, {self.op(f'icmp ne i64 {rest}, 0')}")
        if op == "%":
            return self.op(f"select i1 {crosses}, i64 {self.op(f'add i64 {rest}, {right}')}, i64 {rest}")
        return self.op(f"add i64 {self.op(f'sdiv i64 {left}, {right}')}, {self.op(f'sext i1 {crosses} to i64')}")

    def _refuse_if(self, bad: str, kind: str, message: str) -> None:
        text = self.texts.setdefault(message, f"@aotdiff.says{len(self.texts)}")
        number = context.KIND_NUMBERS[kind]
        self._fail_if(bad, f"call i32 @aotdiff.refused(ptr {self.ctx}, i32 {number}, ptr {text})")

    def _fail_if(self, bad: str, call: str) -> None:
        label, code = self.label("bad"), self.name()
        self.cold += [f"{label}:", f"  {code} = {call}", f"  ret i32 {code}"]
        self.unless(bad, label)


def wrappers(functions: Sequence[CFunction], state: str = SHARED) -> str:
    """LLVM IR of the entries, to be added to the text of the module that has their native entries."""
    texts: dict[str, str] = {}
    written = [_Wrapper(f, texts).write() for f in functions]
    strings = []
    for text, name in texts.items():
        literal, size = c_string(text)
        strings.append(f"{name} = private unnamed_addr constant [{size} x i8] {literal}")
    return "\n".join([state, _REFUSED, *strings, *written]) + "\n"
