"""C entries: `int NAME(parameters..., sizes..., cotangents..., results...)` around native entries, as LLVM IR.

Each size name comes once, after the parameters. A function `NAME.body` computes the sizes of arrays and passes scratch
memory where a result pointer is null; around it, `NAME` keeps its workspace and its error text per thread, `NAME_into`
works in memory that the caller gives, and `NAME_workspace` says how much of it that takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aotdiff.codegen import context
from aotdiff.codegen.cstate import IN_MEMORY, REFUSED, library_state
from aotdiff.codegen.processor import WRONG_PROCESSOR, processor_check
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

    def into(self) -> str:
        """The variant that works in the caller's memory."""
        return f"{self.name}_into"

    def workspace(self) -> str:
        """The query for the size of that memory."""
        return f"{self.name}_workspace"

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


class _Wrapper(Text):
    """Writes one C entry."""

    def __init__(self, function: CFunction, texts: dict[str, str]):
        super().__init__()
        self.function = function
        self.texts = texts
        self.values: dict[str, str] = {}
        self.nonnegative: dict[str, str] = {}

    def write(self) -> str:
        """The body; `params` are then its parameters."""
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
        self.params = params
        args = [a for i, p in enumerate(f.parameters) for a in self._argument(f"%p{i}", p)]
        args += [a for j, r in enumerate(f.results) for a in self._result(f"%r{j}", r)]
        code = self.op(f"call i32 {symbol(f'aotdiff.{f.native}')}({', '.join([*args, 'ptr %ctx'])})")
        self.do(f"ret i32 {code}")
        head = f"define internal i32 @{f.name}.body({', '.join([*params, 'ptr %ctx'])}) nounwind"
        return f"{head} {{\n{self.body()}\n}}"

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
        memory = self.op(f"call ptr @aot.alloc(ptr %ctx, i64 {size})")
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
        self._fail_if(bad, f"call i32 @aotdiff.refused(ptr %ctx, i32 {number}, ptr {text})")

    def _fail_if(self, bad: str, call: str) -> None:
        label, code = self.label("bad"), self.name()
        self.cold += [f"{label}:", f"  {code} = {call}", f"  ret i32 {code}"]
        self.unless(bad, label)


class _Shells:
    """The exported functions around one body."""

    def __init__(self, function: CFunction, params: Sequence[str], checked: bool):
        self.function = function
        self.params = ", ".join(params)
        self.passed = ", ".join([*params, "ptr %ctx"])
        self.checked = checked
        self.small = f"@{function.name}.small"

    def plain(self) -> str:
        """The workspace and the error text of the thread."""
        return self._shell(
            "i32",
            self.function.name,
            self.params,
            f"""
  %ctx = call ptr @aotdiff.thread()
  %code = call i32 @{self.function.name}.body({self.passed})
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failed, label %done, !prof !1
done:
  ret i32 0
failed:
  %rc = call i32 @aotdiff.failed(ptr %ctx, i32 %code)
  ret i32 %rc""",
        )

    def into(self) -> str:
        """The caller's memory."""
        params = ", ".join(part for part in (self.params, "ptr %workspace, i64 %bytes") if part)
        return self._shell(
            "i32",
            self.function.into(),
            params,
            f"""
  %ctx = call ptr @aotdiff.placed(ptr %workspace, i64 %bytes)
  %none = icmp eq ptr %ctx, null
  br i1 %none, label %failed, label %run, !prof !1
run:
  %code = call i32 @{self.function.name}.body({self.passed})
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failed, label %done, !prof !1
done:
  ret i32 0
failed:
  %failure = phi i32 [ {context.KIND_NUMBERS["MemoryError"]}, %entry ], [ %code, %run ]
  %rc = call i32 @aotdiff.carried(ptr %ctx, i32 %failure, ptr {self.small})
  ret i32 %rc""",
        )

    def query(self) -> str:
        """The call itself, in more and more memory until it is enough."""
        return self._shell(
            "i64",
            self.function.workspace(),
            self.params,
            f"""
  br label %again
again:
  %bytes = phi i64 [ 16384, %entry ], [ %more, %larger ]
  %memory = call ptr @malloc(i64 %bytes)
  %ctx = call ptr @aotdiff.placed(ptr %memory, i64 %bytes)
  %none = icmp eq ptr %ctx, null
  br i1 %none, label %failed, label %run
run:
  %code = call i32 @{self.function.name}.body({self.passed})
  %small = icmp eq i32 %code, {context.KIND_NUMBERS["MemoryError"]}
  br i1 %small, label %larger, label %enough
larger:
  call void @free(ptr %memory)
  %more = shl i64 %bytes, 2
  br label %again
enough:
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failed, label %done
done:
  %used = call i64 @aotdiff.used(ptr %ctx)
  call void @free(ptr %memory)
  ret i64 %used
failed:
  %failure = phi i32 [ {context.KIND_NUMBERS["MemoryError"]}, %again ], [ %code, %enough ]
  %rc = call i32 @aotdiff.carried(ptr %ctx, i32 %failure, ptr @aotdiff.nomemory)
  call void @free(ptr %memory)
  %wide = sext i32 %rc to i64
  %negative = sub i64 0, %wide
  ret i64 %negative""",
        )

    def _shell(self, result: str, name: str, params: str, body: str) -> str:
        """The body behind a check of the processor."""
        if not self.checked:
            return f"define {result} @{name}({params}) nounwind {{\nentry:{body}\n}}"
        wrong = -WRONG_PROCESSOR if result == "i64" else WRONG_PROCESSOR
        check = f"""
  %fits = call i1 @aotdiff.fits()
  br i1 %fits, label %entry, label %wrong, !prof !0
wrong:
  ret {result} {wrong}
entry:"""
        return f"define {result} @{name}({params}) nounwind #1000 {{\nstart:{check}{body}\n}}"


def wrappers(
    functions: Sequence[CFunction], triple: str = "", features: Sequence[str] = (), threads: bool = False
) -> str:
    """LLVM IR of the entries of a library, to be added to the text of the module that has their native entries.

    features: what the processor must have; entries check it, and are themselves code for any processor.
    threads: calls may use several, in the thread's own workspace (not in the caller's memory).
    """
    check = processor_check(triple, features)
    return _all(functions, library_state(triple, threads) + check, True, bool(check))


def in_memory(functions: Sequence[CFunction]) -> str:
    """The same for code that `load` puts into memory: entries only, with a state that needs no thread-local storage."""
    return _all(functions, IN_MEMORY, False, False)


def _all(functions: Sequence[CFunction], state: str, variants: bool, checked: bool) -> str:
    texts: dict[str, str] = {}
    written = []
    for f in functions:
        wrapper = _Wrapper(f, texts)
        written.append(wrapper.write())
        shells = _Shells(f, wrapper.params, checked)
        written += [shells.plain(), *([shells.into(), shells.query()] if variants else [])]
        if variants:
            texts.setdefault(f"{f.into()}: the workspace is too small; {f.workspace()} says how large", shells.small)
    strings = []
    for text, name in texts.items():
        literal, size = c_string(text)
        strings.append(f"{name} = private unnamed_addr constant [{size} x i8] {literal}")
    return "\n".join([state, REFUSED, *strings, *written]) + "\n"
