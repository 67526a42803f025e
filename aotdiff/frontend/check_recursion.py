"""What can only be seen once all calls are known: how functions are passed on, and recursion without end.

Functions are compile-time values: a function is compiled once for each combination of functions it is passed. That
ends unless a recursive call passes a function that is built from the one it was given (`d(grad(f), n - 1, x)`), or a
function is differentiated inside itself, which needs a derivative of one order more at each level. And
`grad(f, wrt = y)` of a function parameter asks of every function passed for it that it has a float parameter `y`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from aotdiff.frontend import ast
from aotdiff.frontend.builtins import Builtin
from aotdiff.frontend.check_body import Notes
from aotdiff.frontend.check_types import Reporter
from aotdiff.frontend.scope import Binding
from aotdiff.frontend.tree import names_in, walk
from aotdiff.frontend.types import Function, has_float, resolve

Node = TypeVar("Node")
Slot = Binding  # a function parameter of a function
Source = tuple[Slot, bool]  # it comes from this parameter; whether more is built around it


@dataclass(slots=True)
class _Passing:
    """One function expression given for a function parameter."""

    value: ast.Expr
    sources: list[Source]
    target: Slot
    call: ast.Call


@dataclass(slots=True)
class _Facts:
    """What a function's body mentions."""

    mentioned: set[ast.Function] = field(default_factory=set)
    forms: list[ast.DerivativeForm] = field(default_factory=list)
    passings: list[_Passing] = field(default_factory=list)


def check_recursion(
    reporter: Reporter, functions: Iterable[ast.Function], others: Iterable[ast.Expr], with_rules: set[str]
) -> None:
    """Report calls and derivative forms that cannot be specialised. The program has no other errors.

    `others` are the expressions outside functions: constants, rules, exports.
    """
    search = _Search(reporter, with_rules)
    search.collect(functions, others)
    search.wanted_names()
    search.growing_arguments()
    search.derivatives_of_themselves()


class _Search:
    def __init__(self, reporter: Reporter, with_rules: set[str]) -> None:
        self.reporter = reporter
        self.with_rules = with_rules
        self.values: dict[Binding, ast.Expr] = {}  # what a `let` that names a function stands for
        self.known: dict[Binding, list[Source]] = {}
        self.facts: dict[ast.Node, _Facts] = {}
        self.reached: dict[ast.Function, set[ast.Function]] = {}

    def collect(self, functions: Iterable[ast.Function], others: Iterable[ast.Expr]) -> None:
        for function in functions:
            self.facts[function] = self.facts_of(function.body)
        for other in others:
            self.facts[other] = self.facts_of(other)

    def facts_of(self, root: ast.Expr) -> _Facts:
        facts = _Facts()
        calls: list[ast.Call] = []
        for node in walk(root):
            if isinstance(node, ast.Let) and node.pattern.binding is not None:
                self.values[node.pattern.binding] = node.value
            elif isinstance(node, ast.Name) and (named := _function_of(node.binding)) is not None:
                facts.mentioned.add(named)
            elif isinstance(node, ast.DerivativeForm):
                facts.forms.append(node)
            elif isinstance(node, ast.Call):
                calls.append(node)
        for call in calls:
            callee = self.called(call.function)
            for parameter, value in zip(callee.parameters if callee is not None else (), call.arguments):
                if parameter.binding is not None and isinstance(resolve(parameter.binding.type), Function):
                    sources = self.sources(value)
                    facts.passings.append(_Passing(value, sources, parameter.binding, call))
        return facts

    def called(self, node: ast.Expr) -> ast.Function | None:
        """The function that a call names, through `let`s."""
        for _ in range(100):
            if not isinstance(node, ast.Name):
                return None
            if (named := _function_of(node.binding)) is not None:
                return named
            if node.binding not in self.values:
                return None
            node = self.values[node.binding]
        return None

    def sources(self, value: ast.Expr) -> list[Source]:
        """The function parameters that a function expression is made of."""
        if isinstance(value, ast.Name):
            return self.name_sources(value)
        found: dict[Slot, bool] = {}
        for name in names_in(value):
            found.update({slot: True for slot, _ in self.name_sources(name)})
        return list(found.items())

    def name_sources(self, name: ast.Name) -> list[Source]:
        binding = name.binding
        if not isinstance(binding, Binding):
            return []
        if binding.kind == "parameter" and isinstance(resolve(binding.type), Function):
            return [(binding, False)]
        if binding not in self.values:
            return []
        if binding not in self.known:
            self.known[binding] = []
            self.known[binding] = self.sources(self.values[binding])
        return self.known[binding]

    # Functions built from functions -----------------------------------------------------------------------

    def growing_arguments(self) -> None:
        passings = [passing for facts in self.facts.values() for passing in facts.passings]
        edges: dict[Slot, set[Slot]] = {}
        for passing in passings:
            for source, _ in passing.sources:
                edges.setdefault(source, set()).add(passing.target)
        for passing in passings:
            for source, grows in passing.sources:
                if grows and source in _reachable(edges, passing.target):
                    text = "this recursion never ends at compile time: each call passes a function built from the last"
                    reason = "functions are compile-time values"
                    notes: Notes = [f"it is built from the parameter `{source.name}`; {reason}"]
                    self.reporter.error(passing.value.span, text, notes)

    # Parameters that `wrt` names ---------------------------------------------------------------------------

    def wanted_names(self) -> None:
        """Check the functions passed where a derivative names their parameters."""
        wishes: dict[Slot, set[str]] = {}
        for facts in self.facts.values():
            for form in facts.forms:
                if form.wrt is not None and isinstance(form.function, ast.Name):
                    for slot, _ in self.name_sources(form.function):
                        wishes.setdefault(slot, set()).update(form.wrt)
        if not wishes:
            return
        passings = [passing for facts in self.facts.values() for passing in facts.passings]
        for _ in range(len(self.facts) + 1):  # wishes pass on to whoever hands its own parameter over
            for passing in passings:
                for source, grows in passing.sources:
                    if not grows and passing.target in wishes:
                        wishes.setdefault(source, set()).update(wishes[passing.target])
        for passing in passings:
            self.check_names(passing, wishes.get(passing.target, set()))

    def check_names(self, passing: _Passing, wished: set[str]) -> None:
        names = self.parameter_names(passing.value)
        type_ = resolve(passing.target.type)
        if names is None or not isinstance(type_, Function):
            return
        for name in sorted(wished):
            position = names.index(name) if name in names else -1
            if 0 <= position < len(type_.parameters) and has_float(type_.parameters[position]):
                continue
            text = f"a derivative is taken with respect to `{name}`, which is no float parameter of this function"
            listed = ", ".join(f"`{n}`" for n in names)
            self.reporter.error(passing.value.span, text, [f"its parameters are {listed}"])

    def parameter_names(self, value: ast.Expr) -> list[str] | None:
        """The names of the parameters of a function expression; None where it is itself a parameter."""
        if isinstance(value, ast.Lambda):
            return [parameter.name for parameter in value.parameters]
        if isinstance(value, ast.DerivativeForm):
            return self.parameter_names(value.function)
        if not isinstance(value, ast.Name) or not isinstance(value.binding, Binding):
            return None
        if (named := _function_of(value.binding)) is not None:
            return [parameter.name for parameter in named.parameters]
        if isinstance(value.binding.node, Builtin):
            return list(value.binding.node.parameters)
        known = self.values.get(value.binding)
        return self.parameter_names(known) if known is not None else None

    # Functions differentiated inside themselves -----------------------------------------------------------

    def derivatives_of_themselves(self) -> None:
        differentiated = self.differentiated_parameters()
        for function, facts in self.facts.items():
            if not isinstance(function, ast.Function) or function.name in self.with_rules:
                continue
            places: list[tuple[ast.Expr, ast.Expr]] = [(form, form.function) for form in facts.forms]
            places += [(p.call, p.value) for p in facts.passings if p.target in differentiated]
            for place, value in places:
                if function in self.reach_of(value):
                    text = f"`{function.name}` is differentiated inside itself, which never ends at compile time"
                    notes: Notes = ["each level of the recursion would need a derivative of one order more"]
                    self.reporter.error(place.span, text, notes)
                    break

    def differentiated_parameters(self) -> set[Slot]:
        """Function parameters of which a derivative is taken, here or where they are passed on."""
        found: set[Slot] = set()
        for facts in self.facts.values():
            for form in facts.forms:
                found.update(slot for slot, _ in self.sources(form.function))
        backwards: dict[Slot, set[Slot]] = {}
        for facts in self.facts.values():
            for passing in facts.passings:
                for source, _ in passing.sources:
                    backwards.setdefault(passing.target, set()).add(source)
        return {slot for start in found for slot in _reachable(backwards, start)}

    def reach_of(self, value: ast.Expr) -> set[ast.Function]:
        """The functions that a call of a function expression may run."""
        found: set[ast.Function] = set()
        pending = [value]
        seen: set[Binding] = set()
        while pending:
            for name in names_in(pending.pop()):
                if (named := _function_of(name.binding)) is not None:
                    found |= self.reach(named)
                elif name.binding in self.values and name.binding not in seen:
                    seen.add(name.binding)
                    pending.append(self.values[name.binding])
        return found

    def reach(self, function: ast.Function) -> set[ast.Function]:
        if function not in self.reached:
            edges = {f: facts.mentioned for f, facts in self.facts.items() if isinstance(f, ast.Function)}
            self.reached[function] = _reachable(edges, function)
        return self.reached[function]


def _reachable(edges: dict[Node, set[Node]], start: Node) -> set[Node]:
    found = {start}
    pending = [start]
    while pending:
        for following in edges.get(pending.pop(), ()):
            if following not in found:
                found.add(following)
                pending.append(following)
    return found


def _function_of(binding: object) -> ast.Function | None:
    if isinstance(binding, Binding) and binding.kind == "function" and isinstance(binding.node, ast.Function):
        return binding.node
    return None
