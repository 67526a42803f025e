"""Libraries ahead of time: object code with C entries, its header, a Python module, and a description of itself.

`plan` decides what a library has and under which names; the rest writes one product each.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aotdiff.codegen import CArgument, CFunction, driver, library_llvm, unique_names
from aotdiff.codegen.bufferize import recursive_functions
from aotdiff.codegen.header import header
from aotdiff.codegen.processor import required_features
from aotdiff.codegen.team import TABLE
from aotdiff.codegen.text import ascii_name, c_string
from aotdiff.ir.graph import Loc
from aotdiff.ir.graph import Module as Graph
from aotdiff.runtime import adapters, fastcall_text, interrupt
from aotdiff.runtime.centry import c_arguments
from aotdiff.runtime.compiler import Compiler, subset
from aotdiff.runtime.extension_text import extension_text
from aotdiff.runtime.function import Chain, chain_places
from aotdiff.runtime.interface import Interface, derive, leaves
from aotdiff.runtime.loaded import built_chains
from aotdiff.runtime.opening import FORMAT


@dataclass(frozen=True, slots=True)
class Entry:
    """One built function: a derivative (`end`, "" for none) of an export with `real` decided.

    The first `own` parameters are the export's.
    """

    root: str
    end: str
    real: str
    c_name: str
    native: str
    interface: Interface
    chain: Chain
    own: int


@dataclass(slots=True)
class Plan:
    """Everything a library has. `renamed` are (name, C name) pairs that differ."""

    compiler: Compiler
    order: int
    reals: tuple[str, ...]
    interfaces: list[Interface]
    entries: list[Entry] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)


def plan(compiler: Compiler, order: int, reals: Sequence[str]) -> Plan:
    """What to build for a program."""
    main = compiler.source.path
    interfaces = [replace(f, path=shown_path(f.path, main)) for f in compiler.interfaces()]
    made = Plan(compiler, order, tuple(reals), interfaces)
    names = unique_names([f.name for f in made.interfaces])
    for f, name in zip(made.interfaces, names, strict=True):
        if name != f.name:
            made.renamed.append((f.name, name))
        for real in made.reals if f.is_generic else ("f64",):
            instance = f.instance(real)
            suffix = "_f32" if f.is_generic and real == "f32" else ""
            for end, chain in built_chains(instance, order).items():
                derived = instance
                for form, wrt, tupled in chain:
                    derived = derive(derived, form, wrt, tupled)
                native = f"{f.name}{end.replace('_', '.')}.{real}"
                made.entries.append(
                    Entry(f.name, end, real, f"{name}{end}{suffix}", native, derived, chain, len(f.parameters))
                )
    _distinct(made)
    return made


def _distinct(made: Plan) -> None:
    """An export may have the name of another one's derivative or variant: then these get other names."""
    exports = {e.c_name for e in made.entries if not e.end}
    taken: set[str] = set()
    for k, entry in enumerate(made.entries):
        name, count = entry.c_name, 1
        while not exports.isdisjoint(_new_names(name, bool(entry.end))) or not taken.isdisjoint(_c_names(name)):
            count += 1
            name = f"{entry.c_name}_{count}"
        taken.update(_c_names(name))
        if name != entry.c_name:
            made.entries[k] = replace(entry, c_name=name)
            what = f"the {entry.end[1:].replace('_', ' of the ')} of " if entry.end else ""
            made.renamed.append((what + entry.root, name))


def _c_names(name: str) -> list[str]:
    return [name, f"{name}_into", f"{name}_workspace"]


def _new_names(name: str, derived: bool) -> list[str]:
    """Names that come in with an entry besides an export's own."""
    return _c_names(name)[0 if derived else 1 :]


# The graph -----------------------------------------------------------------------------------------------------


def graph_of(made: Plan, stage: str = "optimized") -> Graph:
    """One graph with every entry under its native name; `stage`: lowered, expanded or optimized."""
    whole = Graph()
    for real in dict.fromkeys(entry.real for entry in made.entries):
        entries = [entry for entry in made.entries if entry.real == real]
        part = subset(made.compiler.graph(real), list(dict.fromkeys(entry.root for entry in entries)))
        tops = _with_forms(part, entries, made)
        _rename(part, {name: f"{name}.{real}" for name in part.funcs} | tops)
        whole.funcs.update(part.funcs)
        whole.records.update(part.records)
    _shorten_paths(whole, made.compiler.source.path)
    if stage != "lowered":
        made.compiler.expand(whole)
    if stage == "optimized":
        made.compiler.optimize(whole)
    return whole


def _shorten_paths(graph: Graph, main: str) -> None:
    """Products name files as seen from the program's folder: where it was, or we are, is nobody's business."""
    known: dict[Loc, Loc] = {}

    def shown(loc: Loc | None) -> Loc | None:
        if loc is not None and loc not in known:
            known[loc] = replace(loc, path=shown_path(loc.path, main))
        return None if loc is None else known[loc]

    for func in graph.funcs.values():
        func.loc = shown(func.loc)
        for op in func.body.walk():
            op.loc = shown(op.loc)


def shown_path(path: str, main: str) -> str:
    """A path relative to the folder of the main file where it is inside, else the name alone."""
    folder, place = Path(os.path.abspath(main)).parent, Path(os.path.abspath(path))
    return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else place.name


def _with_forms(part: Graph, entries: list[Entry], made: Plan) -> dict[str, str]:
    """Add the functions of all entries; gives graph names to native names."""
    from aotdiff.ad.forms import make_form
    from aotdiff.ir.rewrite import copy_func

    roots = {f.name: f for f in made.interfaces}
    tops: dict[str, str] = {}
    for func in part.funcs.values():
        func.attrs["export"] = False
    for entry in entries:
        name = entry.root
        for form, wrt in chain_places(roots[entry.root].instance(entry.real), entry.chain):
            name = make_form(part, name, form, wrt).name
        if name in tops:
            name = part.add(copy_func(part.funcs[name], part.fresh_name(name))).name
        part.funcs[name].attrs["export"] = True
        tops[name] = entry.native
    return tops


def _rename(part: Graph, names: dict[str, str]) -> None:
    """Give functions other names, wherever they are mentioned."""
    for func in part.funcs.values():
        func.name = names[func.name]
        for key in ("vjp", "jvp"):
            if key in func.attrs:
                func.attrs[key] = names[func.attrs[key]]
        func.attrs.pop("derived", None)
        for op in func.body.walk():
            if "callee" in op.attrs:
                op.attrs["callee"] = names[op.attrs["callee"]]
    part.funcs = {func.name: func for func in part.funcs.values()}


# Products ------------------------------------------------------------------------------------------------------


def c_functions(made: Plan, graph: Graph | None = None) -> list[CFunction]:
    """The C entries, in order; with a graph their documentation says which errors they give."""
    return [_c_function(entry, graph) for entry in made.entries]


def _c_function(entry: Entry, graph: Graph | None) -> CFunction:
    f = entry.interface
    parameters = [c_arguments(p.name, p.kind) for p in f.parameters]
    results = tuple(CArgument(n, leaf.element, leaf.sizes) for n, leaf in zip(_result_names(entry), leaves(f.result)))
    extra = sum(map(len, parameters[entry.own :]))
    flat = tuple(argument for arguments in parameters for argument in arguments)
    doc = f"{f.name}: {f}"
    if f.path:
        doc += f"\n{f.path}:{f.line}"
    if graph is not None:
        sized = bool(CFunction(entry.c_name, entry.native, flat, results).size_names())
        doc += f"\nerrors: {', '.join(_errors(graph, entry.native, sized))}"
    return CFunction(entry.c_name, entry.native, flat, results, doc, extra=extra)


def _errors(graph: Graph, name: str, sized: bool) -> list[str]:
    """Kinds of errors that a function gives, with the lines of its own file that they are about.

    `sized`: it takes sizes, and refuses negative ones.
    """
    found: dict[str, set[int]] = {"MemoryError": set()} | ({"ValueError": set()} if sized else {})
    own = graph.funcs[name].loc
    pending, reached = [name], {name: None}
    while pending:
        for op in graph.funcs[pending.pop()].body.walk():
            if op.name == "check":
                ours = op.loc is not None and own is not None and op.loc.path == own.path
                found.setdefault(op.attrs["kind"], set()).update([op.loc.line] if ours and op.loc else [])
            elif "callee" in op.attrs and op.attrs["callee"] not in reached:
                reached[op.attrs["callee"]] = None
                pending.append(op.attrs["callee"])
    if recursive_functions(graph, list(reached)):
        found["RecursionError"] = set()
    return [f"{kind} (line {', '.join(map(str, sorted(lines)))})" if lines else kind
            for kind, lines in sorted(found.items())]  # fmt: skip


def _result_names(entry: Entry) -> list[str]:
    count = len(list(leaves(entry.interface.result)))
    stem = {"": "out", "_vjp": "ct_of", "_jvp": "tangent", "_hvp": "hv_of", "_vjp_vjp": "ct_of"}[entry.end]
    if stem.endswith("_of"):
        _, names, _ = entry.chain[-1]
        inside = {p.name: len([x for x in leaves(p.kind) if x.is_float]) for p in entry.interface.parameters}
        return [f"{stem}_{n}" if inside[n] == 1 else f"{stem}_{n}_{k}" for n in names for k in range(inside[n])]
    return [stem] if count == 1 else [f"{stem}{k}" for k in range(count)]


def metadata(made: Plan, options: driver.Options) -> dict[str, Any]:
    """What a library says about itself."""
    functions = []
    for f in made.interfaces:
        entries: dict[str, dict[str, Any]] = {}
        for entry in made.entries:
            if entry.root == f.name:
                fast = ascii_name(f"aotdiff.fast.{entry.native}") if _wrapper(entry) else None
                native = ascii_name(f"aotdiff.{entry.native}")
                entries.setdefault(entry.real, {})[entry.end] = {"c": entry.c_name, "entry": native, "fast": fast}
        functions.append({"interface": f.to_json(), "entries": entries, "gradients": {}})
        for gradient in _gradients(made, f.name):
            place = {"entry": ascii_name(f"aotdiff.{gradient.native}"), "fast": None}
            if gradient.fast:
                place["fast"] = ascii_name(f"aotdiff.fast.{gradient.native}")
            functions[-1]["gradients"].setdefault(gradient.real, {})[gradient.end] = place
    reals = list(made.reals)
    features = required_features(options.cpu, options.triple)
    return {
        "format": FORMAT, "order": made.order, "reals": reals, "features": features, "functions": functions,
        "threads": TABLE if options.threads != 1 else None,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Gradient:
    """An entry of `runtime.adapters`: `text` is its LLVM text, `fast` that of its wrapper for fast calls."""

    real: str
    end: str
    native: str
    text: str
    fast: str | None


def _gradients(made: Plan, root: str, graph: Graph | None = None) -> list[_Gradient]:
    """Derivatives of an export around what is built; `graph` as in `_wrapper`."""
    found = []
    entries = {(e.real, e.end): e for e in made.entries if e.root == root}
    for real, end in entries:
        if end != "_vjp":
            continue
        f = entries[real, ""].interface
        built = {e.end: f"aotdiff.{e.native}" for e in made.entries if (e.root, e.real) == (root, real)}
        long = any(_runs_long(graph, e.native) for e in entries.values() if e.real == real)
        for name, chain in adapters.chains(f, built):
            derived = derive(f, *chain[0])
            native = f"{root}.{name}.{real}"
            own = f"aotdiff.{native}"
            text = adapters.adapter_text(f, own, chain, built)
            fast = fastcall_text.wrapper_text(derived, own, f"aotdiff.fast.{native}", long)
            found.append(_Gradient(real, name, native, text, fast))
    return found


def _wrapper(entry: Entry, graph: Graph | None = None) -> str | None:
    """Text of the wrapper for fast calls, if there is one; the optimised graph tells whether it gives up the GIL."""
    name = entry.native
    long = _runs_long(graph, name)
    return fastcall_text.wrapper_text(entry.interface, f"aotdiff.{name}", f"aotdiff.fast.{name}", long)


def _runs_long(graph: Graph | None, name: str) -> bool:
    """Whether a call may take more than a moment."""
    if graph is None:
        return True
    return any(op.name in ("par", "for", "while", "call") for op in graph.funcs[name].body.walk())


def llvm_text(made: Plan, options: driver.Options, graph: Graph, stem: str | None) -> str:
    """LLVM text of the library: C entries; with a `stem`, also what `ad.load` and the Python module `stem` use."""
    parts = [library_llvm(graph, c_functions(made), options)]
    if stem is not None:
        parts += [interrupt.HANDLER_TEXT, extension_text(stem)]
        parts += [text for entry in made.entries if (text := _wrapper(entry, graph))]
        for f in made.interfaces:
            parts += [text for g in _gradients(made, f.name, graph) for text in (g.text, g.fast) if text]
        parts = [fastcall_text.with_helpers(parts)]
        build = hashlib.sha256("\n".join([*parts, options.key()]).encode()).hexdigest()
        literal, size = c_string(json.dumps(metadata(made, options) | {"build": build}, sort_keys=True))
        parts.append(f"@aotdiff_metadata = weak constant [{size} x i8] {literal}\n")
    return "\n".join(parts)


def header_text(made: Plan, stem: str, graph: Graph) -> str:
    """The C header; `graph` is the optimised one."""
    threads = made.compiler.options.threads
    return header(c_functions(made, graph), stem, 1 if threads is None else threads)
