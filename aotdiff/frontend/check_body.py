"""The state of checking one body: scopes, messages, and the tables that dispatch on the kind of node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from aotdiff.frontend import ast
from aotdiff.frontend.check_types import TypeReader
from aotdiff.frontend.check_unify import Mismatch, conversion_hint, describe, finished, fit, shape_notes
from aotdiff.frontend.diagnostics import Note
from aotdiff.frontend.program import Unit
from aotdiff.frontend.scope import Binding, Region, Scope
from aotdiff.frontend.sizes import UNKNOWN, Size
from aotdiff.frontend.types import ERROR, F64, Array, Function, Tuple, Type, all_sizes, resolve

if TYPE_CHECKING:
    from aotdiff.frontend.check import Checker

Notes = list["Note | str"]
ExpressionRule = Callable[["Body", Any], Type]
StatementRule = Callable[["Body", Any], None]
EXPRESSIONS: dict[type, ExpressionRule] = {}
STATEMENTS: dict[type, StatementRule] = {}
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def expression_rule(kind: type) -> Callable[[_Rule], _Rule]:
    """Register the rule for a kind of expression."""

    def register(rule: _Rule) -> _Rule:
        EXPRESSIONS[kind] = rule
        return rule

    return register


def statement_rule(kind: type) -> Callable[[_Rule], _Rule]:
    """Register the rule for a kind of statement."""

    def register(rule: _Rule) -> _Rule:
        STATEMENTS[kind] = rule
        return rule

    return register


class CallableType(Type):
    """A function value whose type depends on its use: a lambda, a built-in, a derivative form of one.

    `function` is the `types.Function` that its use settled on, if any; `node` is the expression, for messages.
    """

    __slots__ = ("function", "node")

    def __init__(self, node: ast.Expr) -> None:
        self.node = node
        self.function: Function | None = None

    def __repr__(self) -> str:
        return repr(self.function) if self.function is not None else "a function"


@dataclass(slots=True)
class Message:
    span: ast.Span
    text: str
    notes: Notes


class Body:
    """Checks one function body, constant, rule or export.

    A body may be walked several times: a `var` whose array sizes turn out to change has them widened to unknown in
    the next walk, and only the last walk's messages count.
    """

    def __init__(self, checker: Checker, unit: Unit, scope: Scope, region: Region, real: Type) -> None:
        self.checker = checker
        self.unit = unit
        self.scope = scope
        self.region = region
        self.real = real
        self.types = TypeReader(self, unit.visible, real)
        self.types.constant_size = self.constant_size
        self.messages: list[Message] = []
        self.noted: list[ast.Expr] = []
        self.later: list[Callable[[], None]] = []
        self.instances: list[tuple[ast.Name, Type]] = []
        self.bindings: list[Binding] = []
        self.closures: list[CallableType] = []
        self.loops: list[ast.Stmt] = []
        self.results: list[Type] = []
        self.promised: Type | None = None
        self.following: ast.Node | None = None  # what comes after the statement that is being checked
        self.owner: ast.Function | None = None
        self.widened: dict[ast.Node, tuple[bool, ...]] = {}
        self.fixed: set[ast.Node] = set()  # patterns of `var`s with a written type
        self.widen_again = False
        self.widen_all = False

    # Messages ---------------------------------------------------------------------------------------------

    def error(self, span: ast.Span, message: str, notes: Notes | None = None) -> None:
        self.messages.append(Message(span, message, list(notes or [])))

    def text(self, node: ast.Node) -> str:
        """The source of a node on one line; `...` where it is long."""
        return self.checker.text(node.span)

    def require(self, node: ast.Node, found: Type, wanted: Type, what: str, notes: Notes | None = None) -> bool:
        """Whether a value fits the type it must have; else the message says `what` must be that type."""
        problem = fit(found, wanted)
        if problem is None:
            return True
        self.mismatch(node, found, wanted, what, problem, notes)
        return False

    def mismatch(
        self, node: ast.Node, found: Type, wanted: Type, what: str, problem: Mismatch, notes: Notes | None = None
    ) -> None:
        found, wanted = resolve(found), resolve(wanted)
        more: Notes = []
        if problem.dimension is not None:
            more += shape_notes(problem.found, problem.wanted, problem.dimension)
        elif (hint := conversion_hint(found, wanted, self.text(node))) is not None:
            more.append(hint)
        self.error(node.span, f"{what} must be {describe(wanted)}, found {describe(found)}", more + (notes or []))

    # Walking ----------------------------------------------------------------------------------------------

    def expression(self, node: ast.Expr) -> Type:
        """The type of an expression, also noted on the tree."""
        type_ = EXPRESSIONS[type(node)](self, node)
        node.type = type_
        self.noted.append(node)
        return resolve(type_)

    def statements(self, block: ast.Block) -> None:
        """Check the statements of a block."""
        for position, node in enumerate(block.statements):
            later = block.statements[position + 1] if position + 1 < len(block.statements) else block.value
            self.following = later.value if isinstance(later, ast.ExprStmt) else later
            STATEMENTS[type(node)](self, node)

    @contextmanager
    def inside(self, region: Region | None = None, scope: Scope | None = None) -> Iterator[Scope]:
        """A nested scope; with a region also a barrier for writes, `break`, `continue` and `return`."""
        before = self.scope, self.region, self.loops
        self.scope = Scope(scope if scope is not None else self.scope)
        if region is not None:
            self.region, self.loops = region, []
        try:
            yield self.scope
        finally:
            self.scope, self.region, self.loops = before

    def declare(
        self, name: str, kind: str, type_: Type, node: ast.Node, span: ast.Span, size: Size = UNKNOWN
    ) -> Binding:
        binding = self.scope.declare(Binding(name, kind, type_, node, span, size, self.region))
        self.bindings.append(binding)
        return binding

    def constant_size(self, node: ast.Name) -> Size:
        return self.checker.constant_size(self, self.unit.visible, node)

    # Variables whose sizes change -------------------------------------------------------------------------

    def with_widened_sizes(self, node: ast.Node, type_: Type) -> Type:
        """The type a `var` starts with, given what earlier walks found out about its sizes."""
        flags = self.widened.get(node)
        if self.widen_all:
            flags = (True,) * len(all_sizes(type_))
        return widen(type_, iter(flags)) if flags and any(flags) else type_

    def widen(self, node: ast.Node, before: Type, after: Type) -> None:
        """Note that a variable's sizes change from one type to another; the body is then walked again."""
        old, new = all_sizes(before), all_sizes(after)
        flags = tuple(a.known and not b.known for a, b in zip(old, new))
        if any(flags):
            known = self.widened.get(node, (False,) * len(flags))
            if len(known) == len(flags):
                self.widened[node] = tuple(a or b for a, b in zip(known, flags))
            self.widen_again = True

    # The end ----------------------------------------------------------------------------------------------

    def has_unsettled_lambda(self) -> bool:
        """Whether a lambda still waits for the types of its parameters."""
        return any(closure.function is None for closure in self.closures)

    def forget(self) -> None:
        """Start a new walk."""
        self.messages, self.noted, self.later, self.instances = [], [], [], []
        self.loops, self.results, self.bindings, self.closures = [], [], [], []
        self.widen_again = False

    def finish(self, generic: Type = F64, undecided: Type = F64) -> None:
        """Decide the literals that are left, write the final types on the tree, and hand over the messages."""
        for check in self.later:
            check()
        for holder in (*self.noted, *self.bindings):
            type_ = resolve(holder.type)
            if isinstance(type_, CallableType) and type_.function is not None:
                type_ = type_.function
            holder.type = finished(type_, undecided, generic)
        for name, variable in self.instances:
            name.instance = finished(variable, undecided, generic)
        for message in self.messages:
            self.checker.report(message)


def widen(type_: Type, flags: Iterator[bool]) -> Type:
    """The type with the sizes whose flag is set unknown."""
    type_ = resolve(type_)
    if isinstance(type_, Array):
        return Array(type_.element, tuple(UNKNOWN if next(flags, False) else size for size in type_.sizes))
    if isinstance(type_, Tuple):
        return Tuple(tuple(widen(element, flags) for element in type_.elements))
    return type_


def fits_nothing(*types: Type) -> bool:
    """Whether one of the types is an error that is already reported."""
    return any(resolve(type_) is ERROR for type_ in types)
