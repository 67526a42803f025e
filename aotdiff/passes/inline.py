"""inline, inline-small: calls replaced by the body of their function.

Callees first, so that what is inlined has its own calls inlined already. Recursive functions, functions that say
`inline = "never"` and, before differentiation, functions with a user's derivative rule stay calls. Those that say
`inline = "small"` are inlined where their arrays are known to be small: loops over them may then be written out.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.rewrite import copy_op
from aotdiff.ir.types import dims_of
from aotdiff.passes.facts import callees, op_count
from aotdiff.passes.registry import register

# A function above this size is inlined only where it is called once; no function is grown beyond LARGEST.
SMALL = 400
LARGEST = 20_000
SMALL_ARRAY = 64  # elements


@register("inline", "Replace calls by bodies, except of recursive functions and those with a derivative rule.")
def inline(module: Module) -> None:
    inline_calls(module, lambda func: "vjp" not in func.attrs and "jvp" not in func.attrs)


@register("inline-small", "Replace calls of small functions by bodies, derivative rules or not.")
def inline_small(module: Module) -> None:
    inline_calls(module, lambda func: True)


@register("inline-all", "Replace all calls but those of recursive functions by bodies.")
def inline_all(module: Module) -> None:
    inline_calls(module, lambda func: True, everything=True)


@register("inline-rules-kept", "As inline-all, except for functions with a derivative rule and those that say never.")
def inline_rules_kept(module: Module) -> None:
    kept = ("vjp", "jvp")
    inline_calls(
        module,
        lambda func: func.attrs.get("inline") != "never" and not any(rule in func.attrs for rule in kept),
        everything=True,
    )


def inline_calls(module: Module, allowed: Callable[[Func], bool], everything: bool = False) -> None:
    """Inline calls of non-recursive functions that are allowed and not too large; `everything`: however large."""
    graph = {func.name: callees(func) for func in module.funcs.values()}
    order, recursive = _order(graph)
    uses = Counter(name for names in graph.values() for name in names)
    sizes: dict[str, int] = {}
    bodies: set[str] = set()
    for name in order:
        func = module.funcs[name]
        if not bodies.isdisjoint(graph[name]):
            _Inliner(module, bodies, sizes, sys.maxsize if everything else LARGEST).func(func)
        size = sizes[name] = op_count(func.body)
        wanted = func.attrs.get("inline") == "always" or size <= SMALL or uses[name] == 1
        wanted = everything or (wanted and func.attrs.get("inline") != "never")
        if wanted and name not in recursive and allowed(func):
            bodies.add(name)


def recursive_functions(module: Module) -> set[str]:
    """Names of functions that can reach themselves by calls; a rule that calls its function is no recursion."""
    graph = {}
    for func in module.funcs.values():
        rules = sum(rule in func.attrs for rule in ("vjp", "jvp"))
        names = callees(func)
        graph[func.name] = names[: len(names) - rules]
    return _order(graph)[1]


def _order(graph: dict[str, list[str]]) -> tuple[list[str], set[str]]:
    order: list[str] = []
    recursive: set[str] = set()
    for component in _components({name: [c for c in names if c in graph] for name, names in graph.items()}):
        order += component
        if len(component) > 1 or component[0] in graph[component[0]]:
            recursive.update(component)
    return order, recursive


def _components(graph: dict[str, list[str]]) -> list[list[str]]:
    """Strongly connected components, callees first (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(graph[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, edges = work[-1]
            following = next((n for n in edges if n not in index or n in on_stack), None)
            if following is not None and following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(graph[following])))
                continue
            if following is not None:
                low[node] = min(low[node], index[following])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                at = stack.index(node)
                found.append(stack[at:])
                on_stack.difference_update(stack[at:])
                del stack[at:]
    return found


class _Inliner:
    def __init__(self, module: Module, bodies: set[str], sizes: dict[str, int], largest: int):
        self.module = module
        self.largest = largest
        self.bodies = bodies
        self.sizes = sizes
        self.env: dict[Value, Value] = {}
        self.grown = 0
        self.choices = False

    def func(self, func: Func) -> None:
        self.grown = op_count(func.body)
        self.choices = False
        self.region(func.body)
        if self.choices:
            func.attrs["choices"] = True

    def region(self, region: Region) -> None:
        out: list[Op] = []
        env = self.env
        for op in region.ops:
            if env:
                op.operands = [env.get(v, v) for v in op.operands]
            for inner in op.regions:
                self.region(inner)
            if op.name != "call" or not self.fits(op):
                out.append(op)
                continue
            callee = self.module.funcs[op.attrs["callee"]]
            self.grown += self.sizes[callee.name]
            self.choices = self.choices or "choices" in callee.attrs
            inner_env = dict(zip(callee.params, op.operands, strict=True))
            out += [copy_op(inner, inner_env) for inner in callee.body.ops[:-1]]
            for result, value in zip(op.results, callee.body.yielded, strict=True):
                env[result] = inner_env.get(value, value)
        region.ops = out

    def fits(self, op: Op) -> bool:
        name = op.attrs["callee"]
        if name not in self.bodies or self.grown + self.sizes[name] > self.largest:
            return False
        if self.largest == sys.maxsize or self.module.funcs[name].attrs.get("inline") != "small":
            return True
        return all(_is_small(v) for v in op.operands)


def _is_small(value: Value) -> bool:
    sizes = [SMALL_ARRAY + 1 if d is None else d for d in dims_of(value.type)]
    return math.prod(sizes) <= SMALL_ARRAY
