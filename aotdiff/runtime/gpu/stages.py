"""From a program to a launch plan and code for a device: the stages behind the graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from aotdiff.codegen.gpu import plan as plans
from aotdiff.runtime import cache

if TYPE_CHECKING:
    from aotdiff.codegen.gpu.kernels import Known
    from aotdiff.codegen.gpu.target import GpuTarget
    from aotdiff.ir.graph import Loc
    from aotdiff.ir.graph import Module as Graph
    from aotdiff.runtime.compiler import Compiler, Places

Finish = Callable[[str], bytes]  # LLVM text of the kernels -> what the device loads


def planned(
    compiler: Compiler, root: str, places: Places, real: str, target: Callable[[], GpuTarget], finish: Finish, key: str
) -> tuple[plans.Plan, bytes, tuple[int, ...] | None]:
    """The plan of a function or derivative, its kernels' code and `ObjectCode.reads`, from the cache if it is there.

    `target` makes the emitter's target, `finish` turns text into code; `key` names both, with what they depend on.
    """
    whole = compiler.entry_key(root, places, real, "plan " + key)
    found = cache.get(whole)
    if found is not None:
        head, _, code = found.partition(b"\n")
        data, reads = json.loads(head)
        return plans.from_json(data), code, tuple(reads)
    plan, text, reads = plan_text(compiler, root, places, real, target())
    code = finish(text)
    cache.put(whole, json.dumps([plan.to_json(), reads]).encode() + b"\n" + code)
    return plan, code, reads


def plan_text(
    compiler: Compiler, root: str, places: Places, real: str, target: GpuTarget, prefix: str = "",
    known: Known | None = None,
) -> tuple[plans.Plan, str, tuple[int, ...]]:  # fmt: skip
    """The plan, the LLVM text of its kernels (but for `known` ones), and which parameter leaves' values it reads.

    A `CompileError` where the device cannot do it.
    """
    from aotdiff.codegen.gpu.build import build
    from aotdiff.codegen.gpu.places import Unsupported
    from aotdiff.runtime.reads import values_read

    refused: Unsupported | None = None
    options, fixed = compiler.codegen_options(), compiler.options.deterministic
    for early in (False, True):
        try:
            graph, name = device_graph(compiler, root, places, real, early)
            found = {} if known is None else dict(known)
            plan, module = build(graph, name, target, options, prefix, fixed, found)
            if known is not None:
                known.update(found)
            return plan, module.text(), values_read(graph, name)
        except Unsupported as error:
            refused = error
            if not error.records:
                break
    assert refused is not None
    raise _refused(compiler, refused.message, refused.loc) from None


def device_graph(
    compiler: Compiler, root: str, places: Places, real: str, early: bool = False
) -> tuple[Graph, str]:
    """The optimised graph of one function, without calls.

    `early`: everything is inlined before it is differentiated too, so that no call leaves a record of what its
    reverse sweep needs.
    """
    from aotdiff.passes.pipeline import PREPARE, run
    from aotdiff.runtime.compiler import subset

    graph, name = compiler.derivative(root, places, real)
    if early:
        run(graph, ("inline-rules-kept",))
    if compiler.options.opt > 1:  # before differentiation: what is parallel has parallel derivatives
        run(graph, (*PREPARE, "parallel-loops"))
    compiler.expand(graph)
    graph = subset(graph, [name])
    for func in graph.funcs.values():  # what differentiates is expanded: rules only look like recursion now
        for rule in ("vjp", "jvp"):
            func.attrs.pop(rule, None)
    run(graph, ("strip", "inline-all"))
    graph = subset(graph, [name])
    _no_calls(graph, name)
    compiler.optimize(graph)
    return graph, name


def _no_calls(graph: Graph, name: str) -> None:
    """Refuse recursion, at the function that recurses."""
    from aotdiff.codegen.gpu.places import Unsupported

    for op in graph.funcs[name].body.walk():
        if op.name == "call":
            callee = graph.funcs[op.attrs["callee"]]
            shown = callee.name.split(".")[0]  # what was generated for it has longer names
            raise Unsupported(f"{shown} calls itself: recursion does not run on a device", callee.loc or op.loc)


def _refused(compiler: Compiler, message: str, loc: Loc | None) -> Exception:
    from aotdiff.frontend.diagnostics import CompileError, Diagnostic

    path, line, column = (loc.path, loc.line, loc.column) if loc else (compiler.source.path, 1, 1)
    text = compiler.program().sources.get(path, "").splitlines()
    shown = text[line - 1] if 0 < line <= len(text) else None
    return CompileError([Diagnostic(path, line, column, (line, column + 1), message, source_line=shown)])
