"""Checks a program: names, types, sizes, mutability; writes types on the tree or reports every error.

`check` is the entry. The rules live beside it: expressions, calls, built-ins, function values, derivative forms,
statements. See `check_body.Body` for how one body is walked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from aotdiff.frontend import ast, check_arrays, check_forms  # noqa: F401  (these register their rules)
from aotdiff.frontend.check_body import Body, CallableType, Message, Notes, fits_nothing
from aotdiff.frontend.check_expr import missing_value
from aotdiff.frontend.check_functions import Argument, apply, hide_locals, is_function
from aotdiff.frontend.check_recursion import check_recursion
from aotdiff.frontend.check_stmt import annotated, give
from aotdiff.frontend.check_types import Reporter, Signature, SignatureReader, TypeReader, check_definition
from aotdiff.frontend.check_unify import describe, fit, join_types
from aotdiff.frontend.check_values import leaves, value_of
from aotdiff.frontend.diagnostics import Note, suggest
from aotdiff.frontend.eta import exported, innermost
from aotdiff.frontend.program import STD_FOLDER, Definition, ExportedFunction, Program, Unit, load
from aotdiff.frontend.scope import Binding, Region, Scope
from aotdiff.frontend.sizes import UNKNOWN, Size, Symbol, symbol_size
from aotdiff.frontend.types import (
    ERROR,
    F64,
    I64,
    NEVER,
    REAL,
    Function,
    Tuple,
    Type,
    all_sizes,
    float_part,
    float_results,
    has_float,
    resolve,
)

_MOST_WALKS = 8  # of one body, before every size of its variables counts as unknown
_DEPTH = 60_000  # Python frames: several for each level of a tree


def check(program: Program) -> Program:
    """Check a loaded program and annotate its tree. CompileError with all errors, those of loading included."""
    if not program.checked:
        program.checked = True
        with deep_recursion():
            try:
                Checker(program).run()
            except RecursionError:
                place = ast.Span(program.main.file.path, 1, 1, 1, 2)
                program.diagnostics.error(place, "the program is nested too deeply")
    program.diagnostics.raise_if_errors()
    return program


@cache
def std_program(name: str) -> Program:
    """A file of the standard library (`linalg` for `std/linalg.grad`), checked; a program of its own, kept."""
    return check(load(STD_FOLDER / f"{name}.grad"))


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Allow the deep recursion that long expressions need."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class Checker:
    """Checks all definitions of a program, each once and when first needed."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.signatures: dict[ast.Function, Signature] = {}
        self.bindings: dict[ast.Node, Binding] = {}
        self.constants: dict[ast.Constant, Type] = {}
        self.constant_sizes: dict[ast.Constant, Size] = {}
        self.active: set[ast.Node] = set()
        self.done: set[ast.Function] = set()
        self.reading: set[ast.Node] = set()  # functions whose signature is being read
        self.lines: dict[str, list[str]] = {}

    def run(self) -> None:
        units = list(self.program.units.values())
        for unit in units:
            for definition in unit.file.types:
                check_definition(self, definition, unit.visible)
            for function in unit.file.functions:
                self.signature(function)
        for unit in units:
            for constant in unit.file.constants:
                self.constant_type(constant)
            for function in unit.file.functions:
                self.check_function(function)
            for rule in unit.file.rules:
                self.check_rule(unit, rule)
        for name, function in self.program.functions.items():
            self.program.signatures[name] = self.signature(function).function
        for name, constant in self.program.constants.items():
            self.program.constant_types[name] = self.constant_type(constant)
        self.exports()
        if not self.program.diagnostics.has_errors:
            functions = [function for unit in units for function in unit.file.functions]
            others = [constant.value for unit in units for constant in unit.file.constants]
            others += [rule.rule for unit in units for rule in unit.file.rules]
            others += [export.value for export in self.program.exports if export.value is not None]
            check_recursion(self, functions, others, set(self.program.rules))

    # Messages ---------------------------------------------------------------------------------------------

    def error(self, span: ast.Span, message: str, notes: Notes | None = None) -> None:
        self.program.diagnostics.error(span, message, notes or [])

    def report(self, message: Message) -> None:
        self.error(message.span, message.text, message.notes)

    def text(self, span: ast.Span) -> str:
        """The source under a span; `...` where it is long."""
        if span.path not in self.lines:
            self.lines[span.path] = self.program.sources.get(span.path, "").split("\n")
        lines = self.lines[span.path]
        if span.line != span.end_line or not 0 < span.line <= len(lines):
            return "..."
        text = lines[span.line - 1][span.column - 1 : span.end_column - 1]
        return text if len(text) <= 60 else "..."

    def unit_of(self, node: ast.Node) -> Unit:
        return self.program.units.get(node.span.path, self.program.main)

    # Definitions ------------------------------------------------------------------------------------------

    def binding(self, definition: ast.Function | ast.Constant) -> Binding:
        """What the name of a function or constant stands for."""
        found = self.bindings.get(definition)
        if found is None:
            kind = "function" if isinstance(definition, ast.Function) else "constant"
            found = Binding(definition.name, kind, ERROR, definition, definition.name_span)
            self.bindings[definition] = found
            found.type = self.type_of(definition)
            if isinstance(definition, ast.Constant):
                found.size = self.constant_sizes.get(definition, UNKNOWN)
        return found

    def type_of(self, definition: ast.Function | ast.Constant) -> Type:
        if isinstance(definition, ast.Constant):
            return self.constant_type(definition)
        if definition in self.reading:
            text = f"a size in the signature of `{definition.name}` is defined by `{definition.name}` itself"
            self.error(definition.name_span, text)
            return ERROR
        signature = self.signature(definition)
        if not signature.promised and definition not in self.done:
            if definition in self.active:
                hint: Notes = [f"write `fn {definition.name}(...) -> T`"]
                text = f"`{definition.name}` calls itself, so its result type has to be written"
                self.error(definition.name_span, text, hint)
                signature.promised = True
            else:
                self.check_function(definition)
        return signature.function

    def signature(self, function: ast.Function) -> Signature:
        found = self.signatures.get(function)
        if found is None:
            visible = self.unit_of(function).visible
            types = TypeReader(self, visible, REAL)
            types.constant_size = lambda node: self.constant_size(self, visible, node)
            self.reading.add(function)
            found = SignatureReader(types, function, None).read(promised=function.result)
            self.reading.discard(function)
            self.signatures[function] = found
        return found

    def check_function(self, function: ast.Function) -> None:
        if function in self.done or function in self.active:
            return
        self.active.add(function)
        signature = self.signature(function)
        real = REAL if signature.says_real else F64
        body = Body(self, self.unit_of(function), signature.scope, signature.region, real)
        body.owner = function
        body.promised = signature.function.result if function.result is not None else None
        first = Symbol.made
        self.walk(body, signature.scope, function)
        if not signature.promised:
            result = self.inferred(body, function)
            signature.function.result = hide_locals(result, first, signature.function.binders)
        body.finish()
        self.active.discard(function)
        self.done.add(function)

    def walk(self, body: Body, scope: Scope, function: ast.Function) -> None:
        """Walk a body until the sizes of its variables are settled."""
        for walk in range(_MOST_WALKS):
            body.forget()
            body.widen_all = walk >= _MOST_WALKS - 2
            with body.inside(scope=scope):
                self.function_value(body, function)
            if not body.widen_again:
                return

    def function_value(self, body: Body, function: ast.Function) -> None:
        node = function.body
        if not isinstance(node, ast.Block):
            give(body, node, body.expression(node))
            return
        with body.inside():
            body.statements(node)
            node.type = NEVER
            if node.value is not None:
                node.type = body.expression(node.value)
                body.noted.append(node)
                give(body, node.value, resolve(node.type))
            elif not leaves(node):
                promised = "a value" if body.promised is None else describe(body.promised)
                text = f"`{function.name}` must give {promised}, but it ends without a value"
                body.error(function.name_span, text, missing_value(node))

    def inferred(self, body: Body, function: ast.Function) -> Type:
        """The result type of a function that does not say it."""
        result: Type = NEVER
        for type_ in body.results:
            joined = join_types(result, type_)
            if joined is None:
                text = f"`{function.name}` gives {describe(result)} and {describe(type_)}"
                body.error(function.name_span, text, ["write its result type: `-> T`"])
                return ERROR
            result = joined
        return ERROR if result is NEVER else result

    # Constants --------------------------------------------------------------------------------------------

    def constant_type(self, constant: ast.Constant) -> Type:
        found = self.constants.get(constant)
        if found is not None:
            return found
        if constant in self.active:
            self.error(constant.name_span, f"the constant `{constant.name}` is defined by itself")
            self.constants[constant] = ERROR
            return ERROR
        self.active.add(constant)
        body = Body(self, self.unit_of(constant), Scope(), Region("constant"), REAL)
        type_ = body.expression(constant.value)
        if constant.annotation is not None:
            type_ = annotated(body, constant, type_)
        holder = ast.Name(constant.name_span, constant.name)
        holder.type = type_
        body.noted.append(holder)
        body.finish(generic=REAL, undecided=REAL)
        self.active.discard(constant)
        self.constants.setdefault(constant, holder.type)
        if holder.type is I64:
            size = value_of(constant.value)
            known = size.constant is not None
            self.constant_sizes[constant] = size if known else symbol_size(Symbol(constant.name, "constant"))
        return self.constants[constant]

    def constant_size(self, reporter: Reporter, visible: dict[str, Definition], node: ast.Name) -> Size:
        """A top-level constant in a size."""
        definition = visible.get(node.name)
        assert isinstance(definition, ast.Constant)
        type_ = self.constant_type(definition)
        if type_ is not I64:
            if type_ is not ERROR:
                reporter.error(node.span, f"the size `{node.name}` is {type_!r}; a size is an i64")
            return UNKNOWN
        node.binding = self.binding(definition)
        return self.constant_sizes.get(definition, UNKNOWN)

    # Rules ------------------------------------------------------------------------------------------------

    def check_rule(self, unit: Unit, rule: ast.DerivativeRule) -> None:
        target = unit.visible.get(rule.function)
        if not isinstance(target, ast.Function):
            if rule.function in unit.lost or (target is None and unit.incomplete):
                return
            functions = [name for name, what in unit.visible.items() if isinstance(what, ast.Function)]
            hint = suggest(rule.function, functions)
            self.error(rule.function_span, f"there is no function `{rule.function}`" + (f"; {hint}" if hint else ""))
            return
        self.type_of(target)
        f = self.signature(target).function
        body = Body(self, unit, Scope(), Region("rule"), REAL)
        callee = body.expression(rule.rule)
        if not fits_nothing(callee, f.result, *f.parameters):
            self.rule_fits(body, rule, f, callee)
        body.finish(generic=REAL, undecided=F64)

    def rule_fits(self, body: Body, rule: ast.DerivativeRule, f: Function, callee: Type) -> None:
        """A vjp takes f's arguments, then cotangents, and gives one cotangent per float parameter."""
        name = f"`{body.text(rule.rule)}`"
        if not is_function(callee):
            body.error(rule.rule.span, f"a derivative rule is a function; {name} is {describe(callee)}")
            return
        floats = [part for p in f.parameters if not is_function(p) and (part := float_part(p)) is not None]
        if not floats or not has_float(f.result):
            text = f"`{rule.function}` has no derivative: it needs a float parameter and a float result"
            body.error(rule.function_span, text)
            return
        if rule.mode == "vjp":
            extras = float_results(f.result)
            wanted: Type = floats[0] if len(floats) == 1 else Tuple(tuple(floats))
            words = "cotangents", "one cotangent for each float parameter"
        else:
            extras = floats
            wanted = float_part(f.result) or ERROR
            words = "tangents", "the tangent of the result"
        parameters = [*f.parameters, *extras]
        needed = f"a {rule.mode} rule of `{rule.function}` takes its arguments, then the {words[0]}"
        before = len(body.messages)
        sizes = {p: symbol_size(s) for p, s in f.values.items()}
        arguments = [Argument(p, None, sizes.get(i, UNKNOWN)) for i, p in enumerate(parameters)]
        result = apply(body, callee, arguments, rule.rule, name)
        if len(body.messages) > before:
            listed = ", ".join(map(repr, parameters))
            body.messages[before].notes.append(f"{needed}: fn({listed}) -> {wanted!r}")
            return
        if fits_nothing(result):
            return
        problem = fit(result, wanted)
        if problem is not None:
            what = f"the result of {name}"
            body.mismatch(rule.rule, result, wanted, what, problem, [f"it gives {words[1]}"])

    # Exports ----------------------------------------------------------------------------------------------

    def exports(self) -> None:
        main = self.program.main
        seen: dict[str, ast.Export] = {}
        for node in main.file.exports:
            if node.name in seen:
                notes: Notes = [Note("it is exported here", seen[node.name].name_span)]
                self.error(node.name_span, f"`{node.name}` is exported twice", notes)
                continue
            seen[node.name] = node
            self.export(main, node)
        if not main.file.exports:
            for function in main.file.functions:
                f = self.signature(function).function
                if not any(is_function(parameter) for parameter in f.parameters):
                    entry = ExportedFunction(function.name, function.name_span, None, function)
                    self.add_export(entry, f)

    def export(self, unit: Unit, node: ast.Export) -> None:
        if node.value is not None:
            self.export_value(unit, node, node.value)
            return
        target = unit.visible.get(node.name)
        if isinstance(target, ast.Function):
            entry = ExportedFunction(node.name, node.name_span, None, target)
            self.add_export(entry, self.signature(target).function)
            return
        if node.name in unit.lost:
            return
        if target is not None:
            self.error(node.name_span, f"`{node.name}` is not a function; only functions are exported")
            return
        hint = suggest(node.name, [name for name, what in unit.visible.items() if isinstance(what, ast.Function)])
        if hint or not unit.incomplete:
            self.error(node.name_span, f"there is no function `{node.name}`" + (f"; {hint}" if hint else ""))

    def export_value(self, unit: Unit, node: ast.Export, value: ast.Expr) -> None:
        body = Body(self, unit, Scope(), Region("export"), REAL)
        value = exported(value, unit.visible)
        type_ = body.expression(value)
        if not is_function(type_) and not fits_nothing(type_):
            body.error(value.span, f"only functions are exported; this is {describe(type_)}")
        elif isinstance(type_, CallableType) and type_.function is None and not isinstance(value, ast.Lambda):
            if not body.messages and not body.has_unsettled_lambda():
                name = innermost(value)
                hint: Notes = [f"write the types: `|x: f64[n]| {name.name if isinstance(name, ast.Name) else 'f'}(x)`"]
                body.error(value.span, "nothing tells the types of the parameters of this function", hint)
        body.finish(generic=REAL)
        if isinstance(value.type, Function):
            self.add_export(ExportedFunction(node.name, node.name_span, value, None), value.type)

    def add_export(self, entry: ExportedFunction, f: Function) -> None:
        """Add an export whose function may be called from outside."""
        for position, parameter in enumerate(f.parameters):
            if is_function(parameter):
                name = f.names[position] if f.names is not None else str(position)
                text = f"`{entry.name}` cannot be exported: its parameter `{name}` is a function"
                self.error(entry.span, text, ["export a lambda that passes the function"])
                return
        if entry.function is not None and self.signature(entry.function).promised:
            entry.type = f  # a written result is made of what the parameters bind
            self.program.exports.append(entry)
            return
        taken = [size for parameter in f.parameters for size in all_sizes(parameter)]
        if not all(_follows(size, f) for size in taken):
            text = f"`{entry.name}` cannot be exported: a size of its parameters does not follow from the others: {f!r}"
            self.error(entry.span, text, ["write a function whose result type says its sizes"])
            return
        if not all(_follows(size, f) for size in all_sizes(f.result)):
            result = f"a size of its result {resolve(f.result)!r} does not follow from its parameters"
            text = f"`{entry.name}` cannot be exported: {result}"
            hint: Notes = ["write a function whose result type says the size: `fn f(x: f64[n]) -> f64[n]`"]
            self.error(entry.span, text, hint)
            return
        entry.type = f
        self.program.exports.append(entry)


def _follows(size: Size, f: Function) -> bool:
    """Whether a size is known from the arguments of a function."""
    return size.known and all(symbol in f.binders or symbol.kind == "constant" for symbol in size.symbols())
