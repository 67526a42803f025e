"""Device functions: a compiled function as PTX that other people's kernels call, one thread at a time.

ABI ("c"): parameters in order, scalars by value (bool as i8), arrays as a pointer followed by one i64 per dimension;
then results, as pointers, arrays with the sizes there is room for. It returns 0, or the number of the kind of error
(`context.KINDS`). A function of which no call can fail and whose only result is a scalar returns that instead.

Nothing is allocated in a thread: arrays are the caller's, or small ones whose sizes the types know. What needs more
is `Refused`, with its place, unless there is a workspace: then `ptr, i64 bytes` come last, memory of this thread's own
that holds all other arrays, and a status of 6 (MemoryError) says that it is too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aotdiff.codegen import context, memory
from aotdiff.codegen.bufferize import call_order, recursive_functions
from aotdiff.codegen.calls import EntryEmitter, InternalEmitter, entry_name
from aotdiff.codegen.cstate import PLACED
from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.gpu.nvptx import DEFAULT_ARCH, NvptxTarget, emit_ptx
from aotdiff.codegen.gpu.order import order
from aotdiff.codegen.loader import Options
from aotdiff.codegen.module import ModuleText
from aotdiff.codegen.records import RecordFunctions
from aotdiff.codegen.target import CpuTarget
from aotdiff.codegen.values import MEMORY_TYPES, Buffer, Ref, element_size, memory_type

from aotdiff.ir.graph import Func, Loc, Module
from aotdiff.ir.types import Record, Scalar, dims_of, element_of

ELEMENTS = 4096  # of the largest array that a thread keeps for itself
BYTES = 32768  # of all of them


class Refused(Exception):
    """What a device function cannot do; `loc` is where the program asks for it."""

    def __init__(self, message: str, loc: Loc | None):
        super().__init__(f"{loc.path}:{loc.line}: {message}" if loc else message)
        self.message = message
        self.loc = loc


class _InThread(FunctionEmitter):
    """Emission for one thread: storage on its stack, errors as a status."""

    module: DeviceModule

    def is_small(self, dims: Sequence[str], element: Scalar | Record, lanes: int = 1) -> bool:
        if isinstance(element, Record) or not dims or not all(d.isdigit() for d in dims):
            return False
        total = 1
        for d in dims:
            total *= int(d)
        return total <= ELEMENTS and total * element_size(element) <= min(self.stack_room, BYTES)

    def heap(self, bytes_: str) -> str:
        if self.module.workspace:
            return super().heap(bytes_)
        raise Refused(
            "this makes an array whose size only the arguments tell (or a large one), and a GPU thread cannot "
            "allocate: give arrays static sizes such as `f64[3]`, or each thread memory of its own (workspace=True)",
            self.op_now.loc or self.func.loc,
        )

    def copy_to_heap(self, source: Ref) -> Ref:
        if self.module.workspace:
            return super().copy_to_heap(source)
        self.heap("0")
        return source

    def unique(self, ref: Ref) -> Ref:
        assert ref.buffer is not None
        if self.module.workspace or ref.buffer.flag == "true":
            return super().unique(ref)
        self.scope.owned.pop(ref.buffer, None)
        return self.copy(ref)

    def free_lines(self, buffer: Buffer) -> list[str]:
        return super().free_lines(buffer) if self.module.workspace else []

    def report(
        self, kind: str, loc: Loc | None, message: str, values: Sequence[tuple[str, str]] = ()
    ) -> list[str]:
        self.module.fallible = True
        return self.fail_return(str(context.KIND_NUMBERS[kind]))


class _Internal(_InThread, InternalEmitter):
    pass


class _Entry(_InThread, EntryEmitter):
    def _reset(self, how: str) -> list[str]:
        return []


class DeviceModule(ModuleText):
    """The text of functions for one thread; `fallible` says whether any of them can report an error.

    workspace: arrays may be made, in memory that the caller gives.
    """

    internal = _Internal
    entry = _Entry
    exported_support = ()

    def __init__(self, graph: Module, target: OneThread, options: Options, workspace: bool):
        super().__init__(graph, target, options)
        self.strips = False
        self.workspace = workspace
        self.fallible = workspace

    def record_functions(self, record: str) -> RecordFunctions:
        if not self.workspace:
            raise Refused("this keeps what its gradient needs in records, which take a workspace", None)
        return super().record_functions(record)


class OneThread(CpuTarget):
    """What a target of device functions adds: no context to poll, no memory but the workspace."""

    interrupts = False
    heap_align = 64

    def runtime(self, name: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        if name == "aot.chunk":
            return "define internal ptr @aot.chunk(ptr %ctx, i64 %need) {\n  ret ptr null\n}", (), ()
        return memory.RUNTIME[name]


class _Target(OneThread, NvptxTarget):
    pass


def device_target() -> OneThread:
    """The target of device functions for NVIDIA's GPUs."""
    return _Target()


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter or result: element "f64", "f32", "i64" or "bool", and its number of dimensions."""

    element: str
    rank: int


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """PTX of one device function `name`; `returns` is the element of the scalar it returns, None for a status."""

    name: str
    ptx: str
    parameters: tuple[Argument, ...]
    results: tuple[Argument, ...]
    returns: str | None
    fallible: bool
    workspace: bool


def device_code(
    graph: Module,
    function: str,
    name: str,
    arch: str = DEFAULT_ARCH,
    options: Options | None = None,
    workspace: bool = False,
) -> DeviceCode:
    """The function of an optimised graph as a device function called `name`; `Refused` where it cannot be one."""
    options = options or Options()
    text, code = device_text(graph, function, name, device_target(), options, workspace)
    return replace(code, ptx=emit_ptx(text, [name], arch, options.opt))


def device_text(
    graph: Module, function: str, name: str, target: OneThread, options: Options, workspace: bool
) -> tuple[str, DeviceCode]:
    """Its LLVM text for any target, and what it is but for the PTX. Orders the operations of the graph, in place."""
    for each in sorted(recursive_functions(graph, call_order(graph, [function]))):
        raise recursion(graph.funcs[each])
    func = graph.funcs[function]
    for each in graph.funcs.values():
        order(each.body)
    module = DeviceModule(graph, target, options, workspace)
    if workspace:
        module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    text = module.write([function])
    parameters = tuple(_argument(p.type) for p in func.params)
    results = tuple(_argument(t) for t in func.result_types)
    returns = results[0].element if len(results) == 1 and not results[0].rank and not module.fallible else None
    text += _wrapper(func, name, returns, workspace)
    return text, DeviceCode(name, "", parameters, results, returns, module.fallible, workspace)


def _argument(type_: object) -> Argument:
    element = element_of(type_)  # type: ignore[arg-type]
    assert isinstance(element, Scalar)
    return Argument(element.kind, len(dims_of(type_)))  # type: ignore[arg-type]


def recursion(func: Func) -> Refused:
    """What is wrong with a function that calls itself."""
    name = func.name.split(".")[0]  # what was generated for it has longer names
    return Refused(f"`{name}` calls itself; a GPU thread has no stack for recursion: write it as a loop", func.loc)


_PLACED = """
  %ctx = call ptr @aotdiff.placed(ptr %workspace, i64 %bytes)
  %none = icmp eq ptr %ctx, null
  br i1 %none, label %small, label %run
small:
  ret i32 6
run:
"""


def _wrapper(func: Func, name: str, returns: str | None, workspace: bool) -> str:
    """The function with its C ABI around the native entry, which LLVM puts into it."""
    params: list[str] = []
    for i, p in enumerate(func.params):
        params.append(f"{memory_type(p.type)} %p{i}" if isinstance(p.type, Scalar) else f"ptr %p{i}")
        params += [f"i64 %p{i}_{axis}" for axis in range(len(dims_of(p.type)))]
    own: list[str] = []
    for j, type_ in enumerate(func.result_types):
        own.append(f"ptr %r{j}")
        own += [f"i64 %r{j}_{axis}" for axis in range(len(dims_of(type_)))]
    call = f"call i32 {entry_name(func.name)}({', '.join([*params, *own, 'ptr %ctx' if workspace else 'ptr null'])})"
    if workspace:
        head = f"define i32 @{name}({', '.join([*params, *own, 'ptr %workspace', 'i64 %bytes'])}) nounwind"
        return f"{PLACED}{head} {{{_PLACED}  %code = {call}\n  ret i32 %code\n}}\n"
    if returns is None:
        head = f"define i32 @{name}({', '.join([*params, *own])}) nounwind"
        return f"{head} {{\n  %code = {call}\n  ret i32 %code\n}}\n"
    t = MEMORY_TYPES[returns]
    body = f"  %r0 = alloca {t}\n  %code = {call}\n  %value = load {t}, ptr %r0\n  ret {t} %value"
    return f"define {t} @{name}({', '.join(params)}) nounwind {{\n{body}\n}}\n"
