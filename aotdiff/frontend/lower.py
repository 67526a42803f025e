"""From the checked tree to the graph: `lower` is the entry; each construct has its own file beside this one.

    lower_module      specialisation, rules, constants        lower_functions    calls, lambdas
    lower_forms       derivative forms                        lower_checkpoint   `@checkpoint`
    lower_expr        operators, indexing, array literals     lower_arrays       broadcasting, views, products
    lower_branches    blocks, `if`, ways out                  lower_loops        `for`, `while`
    lower_statements  declarations, assignments               lower_generators   comprehensions, reductions
    lower_builtins    built-in functions                      lower_sizes        declared types
    lower_context     state of one function                   lower_integers     sizes, indices, proofs
"""

from __future__ import annotations

import sys
from typing import Any

from aotdiff.frontend import lower_along, lower_expr, lower_generators, lower_loops, lower_statements, types  # noqa: F401
from aotdiff.frontend.lower_context import is_function
from aotdiff.frontend.lower_functions import apply
from aotdiff.frontend.lower_module import Lowering, add_parameter
from aotdiff.frontend.lower_sizes import bind_sizes, converted, shaped_like
from aotdiff.frontend.lower_values import Form, Item, Lambda, Named
from aotdiff.ir.graph import Func, Loc, Module, Region

_DEPTH = 60_000  # Python frames: several for each level of a tree


def lower(program: Any, real: str = "f64") -> Module:
    """The graph of a checked program: each export under its name, with `real` decided.

    CompileError for the few errors that only show here, such as recursion that specialises without end.
    """
    lowering = Lowering(program, real)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEPTH))
    try:
        for export in program.exports:
            lowering.reserved.add(export.name)
            if export.value is None:
                lowering.exported.setdefault(export.function, export.name)
        for export in program.exports:
            lower_export(lowering, export)
    finally:
        sys.setrecursionlimit(before)
    mark_recursive(lowering.module)
    return lowering.module


def lower_export(lowering: Lowering, export: Any) -> None:
    """Write the function of one exported name."""
    if export.value is None and lowering.exported.get(export.function) == export.name:
        signature = lowering.program.signatures[export.function.name]
        real = lowering.real if types.mentions(signature, types.REAL) else None
        lowering.instantiate(Named(export.function, real, lowering.program), [], [], ())
        return
    region = Region()
    cx = lowering.context(lowering.program, lowering.real, region, None)
    signature = types.resolve(export.type)
    assert isinstance(signature, types.Function)
    span = export.value.span if export.value is not None else export.span
    cx.b.loc = Loc(span.path, span.line, span.column)
    if export.value is not None:
        item = cx.expr(export.value)
    else:
        real = lowering.real if types.mentions(signature, types.REAL) else None
        item = Named(export.function, real, lowering.program)
    loc = defined_at(item) or cx.b.loc
    func = lowering.module.add(Func(export.name, region, [], {"export": True}, loc))
    names = signature.names or tuple(f"x{k}" for k in range(len(signature.parameters)))
    for name, parameter in zip(names, signature.parameters, strict=True):
        add_parameter(cx, region, name, parameter, lowering.real)
    cx.params.update(region.args)
    rest = iter(list(region.args))
    items: list[Item] = [shaped_like(parameter, rest) for parameter in signature.parameters]
    cx.b.loc = loc
    symbols, items = bind_sizes(cx, signature, items)
    found = apply(cx, item, items, signature.result)
    what = f"the result of `{export.name}`"
    results = converted(cx, found, signature.result, symbols, lowering.real, span, what)
    cx.b.ret(results)
    func.result_types = [v.type for v in results]


def defined_at(item: Item) -> Loc | None:
    """Where the function at the bottom of an exported one is defined."""
    while isinstance(item, Form):
        item = item.function
    if isinstance(item, (Named, Lambda)) and is_function(item):
        span = item.node.name_span if isinstance(item, Named) else item.node.span
        return Loc(span.path, span.line, span.column)
    return None


def mark_recursive(module: Module) -> None:
    """Set `recursive` on functions that may call themselves, also through others or by a derivative."""
    callees = {name: _callees(func) for name, func in module.funcs.items()}
    for component in _components(callees):
        if len(component) > 1 or component[0] in callees[component[0]]:
            for name in component:
                module.funcs[name].attrs["recursive"] = True


def _callees(func: Func) -> list[str]:
    called = {op.attrs["callee"]: None for op in func.body.walk() if "callee" in op.attrs}
    called.update({func.attrs[mode]: None for mode in ("vjp", "jvp") if mode in func.attrs})
    return list(called)


def _components(graph: dict[str, list[str]]) -> list[list[str]]:
    """Strongly connected components (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    waiting: set[str] = set()
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        waiting.add(node)
        for other in graph.get(node, []):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in waiting:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            component: list[str] = []
            while not component or component[-1] != node:
                component.append(stack.pop())
                waiting.discard(component[-1])
            found.append(component)

    for node in graph:
        if node not in order:
            visit(node)
    return found
