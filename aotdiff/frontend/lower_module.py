"""The module being written: each specialisation of a function once, its derivative rules, top-level constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aotdiff.frontend import ast, types
from aotdiff.frontend.diagnostics import Diagnostics
from aotdiff.frontend.lower_arrays import cast
from aotdiff.frontend.lower_branches import Flag, FunctionExit, exits, static_free
from aotdiff.frontend.lower_context import LINALG, Context, is_function
from aotdiff.frontend.lower_functions import Inlined, apply, apply_pattern, bind_size_names
from aotdiff.frontend.lower_sizes import (
    Symbols,
    bind_sizes,
    converted,
    graph_type,
    item_leaves,
    resized,
    result_shapes,
    shaped_like,
    type_leaves,
)
from aotdiff.frontend.lower_statements import annotated
from aotdiff.frontend.lower_values import NEVER, Function, Item, Named, depth, key, rebuilt
from aotdiff.ir.graph import Func, Loc, Module, Region, Value
from aotdiff.ir.types import Type, is_differentiable

_DEEPEST = 24  # functions inside functions, before a recursion counts as endless


@dataclass(slots=True)
class Lowering:
    """Everything shared between the functions of one module."""

    program: Any
    real: str
    module: Module = field(default_factory=Module)
    exported: dict[ast.Function, str] = field(default_factory=dict)
    reserved: set[str] = field(default_factory=set)
    instances: dict[tuple, Func] = field(default_factory=dict)
    inlined: dict[tuple, Inlined] = field(default_factory=dict)
    exits: dict[ast.Node, frozenset[str]] = field(default_factory=dict)
    assigned: dict[ast.Node, dict[Any, None]] = field(default_factory=dict)
    mentioned: dict[ast.Node, dict[Any, None]] = field(default_factory=dict)

    def context(self, program: Any, real: str, region: Region, loc: Loc | None) -> Context:
        return Context(self, program, real, region, loc)

    def fresh(self, stem: str) -> str:
        """A name that no function has and no export will get."""
        name, k = stem, 1
        while name in self.module.funcs or name in self.reserved:
            k += 1
            name = f"{stem}_{k}"
        return name

    def signature(self, f: Named) -> types.Function:
        return f.program.signatures[f.node.name]

    # Instances -------------------------------------------------------------------------------------------

    def instantiate(
        self, f: Named, functions: Sequence[Function], extra: Sequence[Value], classes: tuple[int, ...]
    ) -> Func:
        """The graph's function for one specialisation, written when first needed."""
        extra_types = tuple(v.type for v in extra)
        identity = (id(f.node), f.real, tuple(map(key, functions)), extra_types, classes)
        func = self.instances.get(identity)
        if func is None:
            if any(depth(g) > _DEEPEST for g in functions):
                self.endless(f)
            func = self.declare(f, extra)
            self.instances[identity] = func
            self.define(f, func, functions, len(extra), classes)
            self.rules(f, func, functions, len(extra), classes)
        return func

    def endless(self, f: Named) -> None:
        message = f"the recursion of `{f.node.name}` specialises it without end: each call passes a new function"
        self.refuse(f.program, f.node.name_span, message)

    def refuse(self, program: Any, span: ast.Span, message: str, notes: Sequence[str] = ()) -> None:
        """Raise a CompileError: one of the few mistakes that show only here."""
        diagnostics = Diagnostics()
        for path, text in program.sources.items():
            diagnostics.add_source(path, text)
        diagnostics.error(span, message, list(notes))
        diagnostics.raise_if_errors()

    def declare(self, f: Named, extra: Sequence[Value]) -> Func:
        """The function with its parameters and result types; its body comes later, as it may call itself."""
        node, signature, real = f.node, self.signature(f), f.real or "f64"
        public = self.exported.get(node) if (f.real or self.real) == self.real else None
        name = public if public is not None else self.fresh(node.name)
        loc = Loc(node.name_span.path, node.name_span.line, node.name_span.column)
        region = Region()
        cx = self.context(f.program, real, region, loc)
        for parameter, type_ in zip(node.parameters, signature.parameters, strict=True):
            add_parameter(cx, region, parameter.name, type_, real)
        for value in extra:
            region.add_arg(value.type, value.name)
        results = [graph_type(cx, leaf, real) for leaf in type_leaves(signature.result)]
        attrs: dict[str, Any] = {"export": True} if public is not None else {}
        if node.name_span.path == LINALG and _has_loop(node):
            attrs["inline"] = "small"  # long code that is called in several places
        return self.module.add(Func(name, region, results, attrs, loc))

    def define(self, f: Named, func: Func, functions: Sequence[Function], extra: int, classes: Sequence[int]) -> None:
        """Write the body of a declared function."""
        node, signature, real = f.node, self.signature(f), f.real or "f64"
        cx = self.context(f.program, real, func.body, func.loc)
        cx.params.update(func.params)
        symbols, items = _arguments(cx, signature, func.params, functions, extra, classes, "export" in func.attrs)
        for parameter, item in zip(node.parameters, items, strict=True):
            cx.env[parameter.binding] = item
        bind_size_names(cx, node.sizes, symbols)
        results = write_body(cx, node, signature, symbols, real)
        cx.b.ret(results)

    def rules(self, f: Named, func: Func, functions: Sequence[Function], extra: int, classes: Sequence[int]) -> None:
        """Functions for hand-written derivative rules."""
        for mode, rule in f.program.rules.get(f.node.name, {}).items():
            if f.program.functions.get(f.node.name) is f.node:
                caught = list(func.params)[len(func.params) - extra :]
                if any(is_differentiable(v.type) for v in caught):
                    # A rule speaks of parameters only: without this, what is captured would lose its derivative.
                    name = f"`{f.node.name}`"
                    message = f"the rule of {name} says nothing about numbers that a function passed to it captures"
                    note = f"make them parameters of {name}, and of the functions passed to it"
                    self.refuse(f.program, rule.span, message, [note])
                func.attrs[mode] = self.rule(f, func, mode, rule, functions, extra, classes).name

    def rule(
        self,
        f: Named,
        func: Func,
        mode: str,
        rule: ast.DerivativeRule,
        functions: Sequence[Function],
        captured: int,
        classes: Sequence[int],
    ) -> Func:
        """The function's parameters and its cotangents (or tangents) in, those of the other side out."""
        signature, real = self.signature(f), f.real or "f64"
        loc = Loc(rule.span.path, rule.span.line, rule.span.column)
        region = Region()
        own = [region.add_arg(p.type, p.name) for p in func.params]
        seeds = func.result_types if mode == "vjp" else [p.type for p in func.params]
        stem = "ct" if mode == "vjp" else "d"
        extra = [region.add_arg(t, stem) for t in seeds if is_differentiable(t)]
        made = self.module.add(Func(self.fresh(f"{func.name}_{mode}"), region, [], {}, loc))
        cx = self.context(f.program, real, region, loc)
        cx.params.update(region.args)
        symbols, items = _arguments(cx, signature, own, functions, captured, classes, False)
        shapes = result_shapes(cx, signature.result, symbols)
        if mode == "jvp":
            shapes = [cx.shape(v) for item in items for v in item_leaves(item)]
            shapes += [None] * captured
        known = [s for s, t in zip(shapes, seeds, strict=True) if is_differentiable(t)]
        extra = [v if s is None or not s else resized(cx, v, s) for v, s in zip(extra, known, strict=True)]
        grouped = _grouped(signature, mode, extra)
        item = apply(cx, cx.expr(rule.rule), [*items, *grouped], None)
        results = [cx.force(v) for v in item_leaves(item)]
        if mode == "vjp":
            targets = [v for item in items for v in item_leaves(item) if is_differentiable(v.type)]
            results = [_same_sizes(cx, v, t) for v, t in zip(results, targets, strict=True)]
        cx.b.ret(results)
        made.result_types = [v.type for v in results]
        return made

    # Constants --------------------------------------------------------------------------------------------

    def constant(self, cx: Context, node: ast.Name) -> Item:
        """A top-level constant: evaluated once in each function that uses it."""
        definition = node.binding.node
        if definition not in cx.env:
            saved = cx.env
            cx.env = {}
            with cx.ints.outermost():
                item = cx.forced(cx.expr(definition.value))
                if definition.annotation is not None and not is_function(item):
                    item = annotated(cx, item, definition.annotation, definition.value.span)
            cx.env = saved
            cx.env[definition] = item
        item = cx.env[definition]
        if isinstance(item, Value) and cx.kind(item).is_float:
            return cast(cx, item, cx.scalar_of(node.type))
        return item


def add_parameter(cx: Context, region: Region, name: str, type_: types.Type, real: str) -> None:
    """Arguments of a region for a parameter: one per leaf; none for a function."""
    leaves = list(type_leaves(type_))
    for k, leaf in enumerate(leaves):
        region.add_arg(graph_type(cx, leaf, real), name if len(leaves) == 1 else f"{name}_{k}")


def _arguments(
    cx: Context,
    signature: types.Function,
    params: Sequence[Value],
    functions: Sequence[Function],
    extra: int,
    classes: Sequence[int],
    checked: bool,
) -> tuple[Symbols, list[Item]]:
    """What a specialisation's size names stand for, and its arguments; the last `extra` parameters are captured."""
    own = len(params) - extra
    passed, leaves = iter(functions), iter(params[:own])
    items = [next(passed) if _takes_function(t) else shaped_like(t, leaves) for t in signature.parameters]
    symbols, items = bind_sizes(cx, signature, items, checked)
    cx.params.update(v for item in items for v in item_leaves(item))
    if extra:
        values = [v for item in items for v in item_leaves(item)] + list(params[own:])
        found = apply_pattern(cx, values, classes)
        captures = iter(found[own:])
        items = [rebuilt(item, captures) if is_function(item) else item for item in items]
    return symbols, items


def _takes_function(parameter: types.Type) -> bool:
    return isinstance(types.resolve(parameter), types.Function)


def _grouped(signature: types.Function, mode: str, extra: Sequence[Value]) -> list[Item]:
    """Cotangents or tangents as the rule's arguments: one per float result, or per float parameter."""
    parts = (
        types.float_results(signature.result)
        if mode == "vjp"
        else [
            part for p in signature.parameters if not _takes_function(p) and (part := types.float_part(p)) is not None
        ]
    )
    rest = iter(extra)
    return [shaped_like(part, rest) for part in parts]


def _same_sizes(cx: Context, value: Value, like: Value) -> Value:
    """A cotangent, which must have the sizes of its parameter."""
    for axis, (a, b) in enumerate(zip(cx.shape(value), cx.shape(like), strict=True)):
        cx.check_equal(a, b, f"the rule gives a cotangent of size {{0}} for a parameter of size {{1}} (axis {axis})")
    found = resized(cx, value, cx.shape(like))
    assert isinstance(found, Value)
    return cx.conform(found, like.type, cx.shape(like))


# Bodies -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Exit(FunctionExit):
    types: list[Type] = field(default_factory=list)
    result: Any = None

    def blank(self, cx: Context) -> Item:
        """What stands for the returned item before there is one."""
        return shaped_like(self.result, iter([cx.b.undef(static_free(t)) for t in self.types]))


def write_body(cx: Context, node: ast.Function, signature: types.Function, symbols: Symbols, real: str) -> list[Value]:
    """The results of a function's body, in its declared types."""
    what = f"the result of `{node.name}`"

    def convert(item: Item, span: ast.Span) -> Item:
        return shaped_like(signature.result, iter(converted(cx, item, signature.result, symbols, real, span, what)))

    span = _tail(node.body).span
    if "return" not in exits(cx, node.body):
        return list(item_leaves(convert(cx.expr(node.body), span)))
    result_types = [graph_type(cx, leaf, real) for leaf in type_leaves(signature.result)]
    cx.result = _Exit(Flag("returned"), Flag("result"), convert, result_types, signature.result)
    cx.env[cx.result.flag] = False
    cx.env[cx.result.values] = NEVER
    _return_tail(cx, node.body)
    item = cx.env[cx.result.values]
    if item is NEVER:
        item = cx.result.blank(cx)
    return [cx.force(v) for v in item_leaves(item)]


def _tail(node: ast.Expr) -> ast.Expr:
    """The expression that gives a body its value."""
    while isinstance(node, ast.Block) and node.value is not None:
        node = node.value
    return node


def _return_tail(cx: Context, body: ast.Expr) -> None:
    """Write a body whose value is returned, which `return` in it may have been before."""
    block = body if isinstance(body, ast.Block) else ast.Block(body.span, [], body)
    if block.value is not None:
        tail = ast.Return(block.value.span, block.value)
        block = ast.Block(block.span, [*block.statements, tail], None)
    cx.expr(block)


def _has_loop(node: ast.Function) -> bool:
    return isinstance(node.body, ast.Block) and any(isinstance(s, ast.For) for s in node.body.statements)
