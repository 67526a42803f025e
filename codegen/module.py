"""A graph module as one LLVM module: functions, and the pieces of run-time support they use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen import lanes, runtime_math, sort, team
from aotdiff.codegen.bufferize import analyse, call_order, recursive_functions, summarise
from aotdiff.codegen.calls import EntryEmitter, InternalEmitter
from aotdiff.codegen.records import RecordFunctions, RecordText, function_names
from aotdiff.codegen.text import c_string

from aotdiff.ir.graph import Module
from aotdiff.passes.maths_apart import move_apart

if TYPE_CHECKING:
    from aotdiff.codegen.driver import Options
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.target import CpuTarget

# LLVM aligns what it spills only if it knows from the start that there is a frame pointer; vectors that cross lines
# are slow to reload.
_FRAME = '"frame-pointer"="all"'
_ATTRIBUTES = (
    f"nounwind {_FRAME}",  # 0: functions of the program
    "nounwind noinline",  # 1: run-time support
    "nounwind alwaysinline",  # 2
    "nounwind willreturn memory(none)",  # 3: mathematics
    "nounwind willreturn memory(none) alwaysinline",  # 4
    f'nounwind {_FRAME} "disable-tail-calls"="true"',  # 5: recursive functions (endless recursion is not a loop)
    f"nounwind noinline {_FRAME}",  # 6: functions that stay apart
    "nounwind noinline optnone",  # 7: what only hands on what it is given, a few times: not worth LLVM's time
)


class ModuleText:
    """Collects the text of one LLVM module. A subclass may have other emitters, and another allocator or none."""

    internal: type[InternalEmitter] = InternalEmitter
    entry: type[EntryEmitter] = EntryEmitter
    exported_support: tuple[str, ...] = ("aotdiff.release",)

    def __init__(self, graph: Module, target: CpuTarget, options: Options):
        self.graph = graph
        self.target = target
        self.fast = "fast " if options.fast_math else ""
        self.flags = self.fast or "contract "
        self.reduction_flags = self.fast or "reassoc contract "
        self.strips = options.strips and options.opt > 1
        split = target.interrupts and team.has_threads(target.triple)
        self.threads = options.threads if split else 1
        self.needed: dict[str, None] = {}
        self.summaries: dict = {}
        self._declarations: dict[str, None] = {}
        self._strings: dict[str, str] = {}
        self._vectors: dict[str, None] = {}
        self._groups: dict[str, int] = {}
        self._records: dict[str, None] = {}
        self._extra: dict[str, str] = {}
        self._functions: list[str] = []
        self._shared: dict[str, str] = {}  # text of a function without its name: its name
        self._flag = self._nowhere = False
        self._numbered = 0

    # What functions ask for --------------------------------------------------------------------------------

    def declare(self, text: str) -> None:
        self._declarations[text] = None

    def need(self, name: str) -> None:
        """A function of `memory.RUNTIME`."""
        self.needed[name] = None

    def declare_vector(self, name: str, text: str) -> None:
        """A vector version of a scalar function, kept although nothing calls it yet."""
        self.declare(text)
        self._vectors[name] = None

    def attribute_group(self, variants: str) -> int:
        """Number of the attribute group of calls with these vector versions."""
        return self._groups.setdefault(variants, len(_ATTRIBUTES) + len(self._groups))

    def string(self, text: str) -> str:
        return self._strings.setdefault(text, f"@.text{len(self._strings)}")

    def zero_flag(self) -> str:
        """The interrupt flag of callers that have none."""
        self._flag = True
        return "@aot.never"

    def nowhere(self) -> str:
        """Memory that inactive lanes read."""
        self._nowhere = True
        return "@aot.nowhere"

    def add_function(self, text: str) -> None:
        self._functions.append(text)

    def share(self, symbol: str, text: str) -> str:
        """Add a function, unless there is one that is the same but for its name; gives the name it has."""
        found = self._shared.setdefault(text.replace(f"{symbol}(", "@("), symbol)
        if found == symbol:
            self._functions.append(text)
        return found

    def new_symbol(self, stem: str) -> str:
        """A name for a function to be added."""
        self._numbered += 1
        return f"{stem}{self._numbered}"

    def record_functions(self, record: str) -> RecordFunctions:
        self._records[record] = None
        return function_names(record)

    def sorter(self, in_memory: str, register: str) -> str:
        name = f"@aot.argsort.{in_memory}"
        self._extra.setdefault(name, sort.sorter(name, in_memory, register, self.target.interrupts))
        for text in sort.DECLARATIONS:
            self.declare(text)
        return name

    def helper(self, fe: FunctionEmitter, name: str, kind: str, args: Sequence[str], order: int | None = None) -> str:
        """Call of a generated mathematical function."""
        return runtime_math.call(self, fe, name, kind, args, order)

    def define(self, name: str, make) -> None:
        """Add a generated function once; `make()` writes it and may ask for others."""
        if name not in self._extra:
            self._extra[name] = ""
            self._extra[name] = make()

    # Writing -------------------------------------------------------------------------------------------------

    def write(self, exports: Sequence[str]) -> str:
        """The whole module, with a native entry for each export."""
        names = call_order(self.graph, list(exports))
        recursive = recursive_functions(self.graph, names)
        self.summaries = summarise(self.graph, names)
        called = {op.attrs["callee"] for n in names for op in self.graph.funcs[n].body.walk() if op.name == "call"}
        deep = _reaching(self.graph, names, recursive)
        for name in names:
            func = self.graph.funcs[name]
            if name not in called and name not in exports:
                continue
            if self.strips:
                move_apart(func, lambda loops: lanes.has_none(loops, self.target.lanes()))
            flow = analyse(func, self.summaries)
            if name in called:
                self._functions.append(self.internal(self, func, flow, name in recursive).emit())
            if name in exports:
                self._functions.append(self.entry(self, func, flow, name in deep).emit())
        for name in self.exported_support:
            self.need(name if self.threads == 1 else f"{name}.threads")
        return self._assemble()

    def _assemble(self) -> str:
        support = self._support()
        strings = []
        for text, name in self._strings.items():
            literal, size = c_string(text)
            strings.append(f"{name} = private unnamed_addr constant [{size} x i8] {literal}")
        if self._flag:
            strings.append("@aot.never = internal constant i32 0")
        if self._nowhere:
            strings.append("@aot.nowhere = internal constant [64 x i8] zeroinitializer, align 64")
        if self._vectors:
            listed = ", ".join(f"ptr @{v}" for v in self._vectors)
            strings.append(
                f"@llvm.compiler.used = appending global [{len(self._vectors)} x ptr] [{listed}], "
                'section "llvm.metadata"'
            )
        groups = [f"attributes #{i} = {{ {text} }}" for i, text in enumerate(_ATTRIBUTES)]
        groups += [
            f'attributes #{n} = {{ nounwind willreturn memory(none) "vector-function-abi-variant"="{variants}" }}'
            for variants, n in self._groups.items()
        ]
        parts = [
            f'target triple = "{self.target.triple}"',
            *strings,
            *self._declarations,
            *self._functions,
            *support,
            *groups,
            '!0 = !{!"branch_weights", i32 2000, i32 1}',
            '!1 = !{!"branch_weights", i32 1, i32 2000}',
            "!2 = distinct !{!2, !3, !4}",
            '!3 = !{!"llvm.loop.unroll.disable"}',
            '!4 = !{!"llvm.loop.vectorize.enable", i1 false}',
            "!5 = distinct !{!5, !6}",
            '!6 = !{!"llvm.loop.unroll.full"}',
        ]
        return "\n".join(parts) + "\n"

    def _support(self) -> list[str]:
        texts: list[str] = []
        written: set[str] = set()
        pending = list(self._records)
        while pending:
            record = pending.pop(0)
            if record in written:
                continue
            written.add(record)
            maker = RecordText(self.graph, record)
            texts.append(maker.text())
            pending += maker.used
            self.need("aot.free")
            self.need("aot.clone")
        texts += self._extra.values()
        done: dict[str, None] = {}
        names = list(self.needed)
        while names:
            name = names.pop(0)
            if name in done:
                continue
            done[name] = None
            text, more, declarations = self.target.runtime(name)
            texts.append(text.strip())
            names += more
            for d in declarations:
                self.declare(d)
        return texts


def _reaching(graph: Module, names: list[str], recursive: set[str]) -> set[str]:
    """Functions from which a recursive one can be reached; `names` has callees first."""
    found = set(recursive)
    for name in names:
        callees = {op.attrs["callee"] for op in graph.funcs[name].body.walk() if op.name == "call"}
        if callees & found:
            found.add(name)
    return found
