"""From source to native code: the stages in order, and what is kept on disk.

`Source` is a program as text; `Compiler` holds its checked and lowered form (made only when needed) and gives
object code for a function or any derivative of one.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from aotdiff.runtime import cache, garbage
from aotdiff.runtime.interface import Interface, from_json

if TYPE_CHECKING:
    from aotdiff.frontend.program import Program
    from aotdiff.ir.graph import Module as Graph

FAST_PREFIX = "aotdiff.fast."  # before an entry's name: its wrapper for fast calls
Places = list[tuple[str, tuple[int, ...]]]  # derivative forms, innermost first, with positions of parameter leaves


@dataclass(frozen=True, slots=True)
class Options:
    """How a module is compiled; part of what identifies its code."""

    target: str = "cpu"
    opt: int = 3
    fast_math: bool = False
    real: str = "f64"
    threads: int | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.target not in ("cpu", "cuda", "emulated"):
            raise ValueError(f'target is "cpu", "cuda" or "emulated", not {self.target!r}')
        if self.opt not in (0, 1, 2, 3):
            raise ValueError(f"opt is 0, 1, 2 or 3, not {self.opt!r}")
        if self.real not in ("f64", "f32"):
            raise ValueError(f'real is "f64" or "f32", not {self.real!r}')
        if self.threads is not None and (type(self.threads) is not int or self.threads < 0):
            raise ValueError(f"threads is a number of threads, not {self.threads!r}")

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Source:
    """A program's text: `path` is how messages name it, `base` where its imports are looked for.

    `on_disk` says that `path` is a file; `files` has the imported texts by path where they are not read from disk.
    """

    path: str
    text: str
    base: str
    on_disk: bool = False
    files: tuple[tuple[str, str], ...] = ()

    def load(self) -> Program:
        """Parse, with everything it imports, and check; raises a `CompileError` with all that is wrong."""
        from aotdiff.frontend.check import check
        from aotdiff.frontend.program import load, load_source
        from aotdiff.frontend.reader import keep_tables

        tables = cache.key("parser", cache.compiler_version())
        keep_tables(lambda: cache.get(tables), lambda data: cache.put(tables, data))
        if self.on_disk:
            program = load(self.path)
        else:
            program = load_source(self.text, self.base, self.path, files=dict(self.files))
        return check(program)


def read_source(path: str | os.PathLike[str]) -> Source:
    """A file as a source; OSError where it cannot be read."""
    shown = os.fspath(path)
    with open(shown, "rb") as file:
        data = file.read()
    return Source(shown, data.decode("utf-8-sig", "surrogateescape"), os.path.dirname(shown), on_disk=True)


def _text_of(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode("utf-8-sig")


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """Object code with the native entry of `symbol`; `fast` tells whether it has a wrapper for fast calls.

    `reads` are the parameter leaves whose values it looks at; None where that is not known.
    """

    data: bytes
    symbol: str
    fast: bool
    reads: tuple[int, ...] | None = None


class Compiler:
    """The stages of one program with one set of options. Safe to use from several threads."""

    def __init__(self, source: Source, options: Options) -> None:
        self.source = source
        self.options = options
        self._lock = threading.RLock()
        self._program: Program | None = None
        self._graphs: dict[str, Graph] = {}
        self._imports: dict[str, str] | None = None  # texts by path, once known

    # What it exports -----------------------------------------------------------------------------------------

    def interfaces(self) -> list[Interface]:
        """Exported functions in order; from the cache where the same text was compiled before."""
        with self._lock:
            known = self._index()
            if known is not None:
                return known
            program = self.program()
            from aotdiff.runtime.exports import exported

            interfaces = exported(program)
            self.graph("f64")
            imports = {path: text for path, text in program.sources.items() if path != self.source.path}
            self._imports = imports
            index = {
                "imports": {path: cache.key(text) for path, text in imports.items()},
                "functions": [interface.to_json() for interface in interfaces],
            }
            cache.put(self._index_key(), json.dumps(index).encode())
            return interfaces

    def _index(self) -> list[Interface] | None:
        """Interfaces from the cache, if every imported file still has the text it had."""
        data = cache.get(self._index_key())
        if data is None:
            return None
        try:
            index = json.loads(data)
            texts: dict[str, str] = {}
            carried = dict(self.source.files)
            for path, digest in index["imports"].items():
                texts[path] = carried[path] if path in carried else _text_of(path)
                if cache.key(texts[path]) != digest:
                    return None
            interfaces = [from_json(item) for item in index["functions"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self._imports = texts
        return interfaces

    def _index_key(self) -> str:
        source = self.source
        return cache.key("index", cache.compiler_version(), source.path, os.path.abspath(source.base), source.text)

    def imports(self) -> dict[str, str]:
        """Texts of the imported files by path."""
        if self._imports is None:
            self.interfaces()
        assert self._imports is not None
        return self._imports

    def portable(self) -> Source:
        """The source with the texts of its imports: what another machine needs."""
        return replace(self.source, on_disk=False, files=tuple(sorted(self.imports().items())))

    # Stages --------------------------------------------------------------------------------------------------

    @garbage.seldom()
    def program(self) -> Program:
        """The checked program."""
        with self._lock:
            if self._program is None:
                self._program = self.source.load()
            return self._program

    @garbage.seldom()
    def graph(self, real: str) -> Graph:
        """The lowered program with `real` decided; not to be changed."""
        from aotdiff.frontend.lower import lower

        with self._lock:
            if real not in self._graphs:
                self._graphs[real] = lower(self.program(), real=real)
            return self._graphs[real]

    def derivative(self, root: str, places: Places, real: str) -> tuple[Graph, str]:
        """A graph of its own for one function: `vjp` and `jvp` operations still in it; and the function's name."""
        from aotdiff.ad.forms import make_form

        graph = subset(self.graph(real), [root])
        name = root
        for form, wrt in places:
            made = make_form(graph, name, form, wrt)
            if made.name not in graph.funcs:
                graph.add(made)
            name = made.name
        for func in graph.funcs.values():
            func.attrs["export"] = func.name == name
        return graph, name

    def expanded(self, root: str, places: Places, real: str) -> tuple[Graph, str]:
        """The same with every derivative worked out."""
        graph, name = self.derivative(root, places, real)
        self.expand(graph)
        return subset(graph, [name]), name

    @garbage.seldom()
    def optimized(self, root: str, places: Places, real: str) -> tuple[Graph, str]:
        """The graph that code is made from."""
        graph, name = self.expanded(root, places, real)
        self.optimize(graph)
        return subset(graph, [name]), name

    def expand(self, graph: Graph) -> None:
        """Work every derivative out, in place."""
        from aotdiff.ad.expand import expand_derivatives

        expand_derivatives(graph)

    def optimize(self, graph: Graph) -> None:
        """Run the passes of the optimisation level, in place."""
        from aotdiff.passes.pipeline import optimize

        optimize(graph, self.options.opt)

    def object_code(self, root: str, places: Places, interface: Interface, real: str) -> ObjectCode:
        """Object code of one entry, from the cache if it is there."""
        with self._lock:
            key = self._object_key(root, places, interface, real)
            found = cache.get(key)
            if found is not None:
                head, _, data = found.partition(b"\n")
                symbol, fast, reads = json.loads(head)
                return ObjectCode(data, symbol, fast, tuple(reads))
            made = self._object(root, places, interface, real)
            cache.put(key, json.dumps([made.symbol, made.fast, made.reads]).encode() + b"\n" + made.data)
            return made

    def _object(self, root: str, places: Places, interface: Interface, real: str) -> ObjectCode:
        from aotdiff.codegen import driver
        from aotdiff.runtime.reads import values_read

        graph, name = self.optimized(root, places, real)
        reads = values_read(graph, name)
        text, fast = self.llvm_text(graph, name, interface)
        return ObjectCode(driver.loadable(text, self.codegen_options()), name, fast, reads)

    @garbage.seldom()
    def llvm_text(self, graph: Graph, name: str, interface: Interface | None) -> tuple[str, bool]:
        """LLVM text as emitted for an optimised graph, and whether a wrapper for fast calls is in it."""
        from aotdiff.codegen import driver
        from aotdiff.runtime import fastcall, fastcall_text

        text = driver.emit_llvm(graph, [name], self.codegen_options())
        wrapper = None
        if interface is not None and fastcall.supported():
            loops = any(
                op.name in ("par", "for", "while", "call") for f in graph.funcs.values() for op in f.body.walk()
            )
            wrapper = fastcall_text.wrapper_text(interface, f"aotdiff.{name}", FAST_PREFIX + name, loops)
        return text + (fastcall_text.with_helpers([wrapper]) if wrapper else ""), wrapper is not None

    def c_entry_code(self, root: str, places: Places, interface: Interface, real: str, own: int) -> ObjectCode:
        """Object code with a C entry, for `Function.address`; `own` is as in `c_function`."""
        from aotdiff.codegen import cabi, driver
        from aotdiff.runtime.centry import c_function

        with self._lock:
            key = cache.key("c entry", self._object_key(root, places, interface, real))
            found = cache.get(key)
            if found is None:
                graph, name = self.optimized(root, places, real)
                text = driver.emit_llvm(graph, [name], self.codegen_options(), scratch=True)
                entry = c_function("aotdiff.c_entry", name, interface, own)
                text += cabi.in_memory([entry])
                found = driver.loadable(text, self.codegen_options())
                cache.put(key, found)
            return ObjectCode(found, "c_entry", False)

    def code_text(self, root: str, places: Places, real: str, stage: str) -> str:
        """The text of a stage after the graph: llvm or asm."""
        from aotdiff.codegen import driver

        graph, name = self.optimized(root, places, real)
        options = self.codegen_options()
        if stage == "llvm":
            return str(driver.optimised(graph, [name], options))
        return driver.assembly(graph, [name], options)

    def codegen_options(self) -> Any:
        from aotdiff.codegen.driver import Options as CodeOptions

        return CodeOptions(opt=self.options.opt, fast_math=self.options.fast_math, threads=self.threads())

    def threads(self) -> int:
        """What code is compiled for: 1 for one thread, 0 for any number."""
        from aotdiff.runtime.native import threads

        return threads.compiled(self.options.threads)

    def _object_key(self, root: str, places: Places, interface: Interface, real: str) -> str:
        """The interface counts too: the wrapper makes `(g,)` or `g` of the same native result."""
        return self.entry_key(root, places, real, f"object {interface}")

    def entry_key(self, root: str, places: Places, real: str, what: str) -> str:
        """What names something made of one function or derivative."""
        texts = [part for item in sorted(self.imports().items()) for part in item]
        program = cache.key(cache.compiler_version(), self.source.path, self.source.text, *texts)
        options = f"{self.options.text()} {self.threads()}"
        return cache.key(what, program, options, cache.machine(), root, repr(places), real)


def subset(graph: Graph, roots: list[str]) -> Graph:
    """A copy of the functions that the roots reach."""
    from aotdiff.ir.graph import Module as Graph
    from aotdiff.ir.rewrite import copy_func

    kept: dict[str, Any] = {}
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name in kept:
            continue
        func = kept[name] = graph.funcs[name]
        pending += [op.attrs["callee"] for op in func.body.walk() if "callee" in op.attrs]
        pending += [func.attrs[rule] for rule in ("vjp", "jvp") if rule in func.attrs]
    copied = {name: copy_func(func) for name, func in graph.funcs.items() if name in kept}
    return Graph(copied, dict(graph.records))
