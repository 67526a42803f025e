"""Interfaces of a checked program's exports: from the checker's types to the runtime's plain data."""

from __future__ import annotations

import ast as python
from typing import TYPE_CHECKING

from aotdiff.frontend import sizes, types
from aotdiff.runtime.interface import Group, Interface, Kind, Leaf, Parameter, Size, free_name

if TYPE_CHECKING:
    from aotdiff.frontend.program import ExportedFunction, Program

_OPERATORS: dict[type, str] = {
    python.Add: "+", python.Sub: "-", python.Mult: "*", python.FloorDiv: "//", python.Mod: "%",
}  # fmt: skip


def exported(program: Program) -> list[Interface]:
    """One interface per exported name, in order."""
    return [_interface(export) for export in program.exports]


def _interface(export: ExportedFunction) -> Interface:
    type_ = types.resolve(export.type)
    assert isinstance(type_, types.Function)
    names = _parameter_names(type_)
    convert = _Kinds({symbol: names[position] for position, symbol in type_.values.items()})
    parameters = tuple(
        Parameter(name, convert.kind(parameter)) for name, parameter in zip(names, type_.parameters, strict=True)
    )
    span = export.function.name_span if export.function is not None else export.span
    return Interface(str(export.name), parameters, convert.kind(type_.result), span.path, span.line)


def _parameter_names(type_: types.Function) -> list[str]:
    taken: set[str] = set()
    names = []
    for position in range(len(type_.parameters)):
        stem = str(type_.names[position]) if type_.names else f"x{position}"
        names.append(free_name(stem, taken))
        taken.add(names[-1])
    return names


class _Kinds:
    """Converts the types of one function; size symbols that share a name get names of their own."""

    def __init__(self, names: dict[sizes.Symbol, str]) -> None:
        self.names = names
        self.taken = set(names.values())

    def kind(self, type_: types.Type) -> Kind:
        type_ = types.resolve(type_)
        if isinstance(type_, types.Tuple):
            return Group(tuple(map(self.kind, type_.elements)))
        element = types.element_of(type_)
        return Leaf(repr(element), tuple(map(self.size, types.sizes_of(type_))))

    def size(self, size: sizes.Size) -> Size:
        if size.terms is None:
            return "?"
        symbols = sorted(size.symbols(), key=lambda symbol: symbol.name)
        names = [self.name(symbol) for symbol in symbols]
        if size.text is not None and names == [symbol.name for symbol in symbols]:
            spelt = _parsed(size.text, set(names))
            if spelt is not None:
                return spelt
        return self.polynomial(size)

    def name(self, symbol: sizes.Symbol) -> str:
        if symbol not in self.names:
            self.names[symbol] = free_name(str(symbol.name), self.taken)
            self.taken.add(self.names[symbol])
        return self.names[symbol]

    def polynomial(self, size: sizes.Size) -> Size:
        total: Size | None = None
        for monomial, coefficient in sorted((size.terms or {}).items(), key=lambda item: (-len(item[0]), repr(item))):
            factors = [self.atom(atom) for atom, power in sorted(monomial, key=repr) for _ in range(power)]
            amount = coefficient if total is None or not factors else abs(coefficient)
            term: Size = amount if not factors or amount != 1 else factors.pop(0)
            if total is not None and not factors and isinstance(term, int):
                term = abs(coefficient)
            for factor in factors:
                term = ("*", term, factor)
            total = term if total is None else ("-" if coefficient < 0 else "+", total, term)
        return 0 if total is None else total

    def atom(self, atom: sizes.Atom) -> Size:
        if isinstance(atom, sizes.Symbol):
            return self.name(atom)
        return (atom.op, self.size(atom.left), self.size(atom.right))


def _parsed(text: str, names: set[str]) -> Size | None:
    """A size as the source spelt it; None where that is not an expression in these names."""
    try:
        tree = python.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return _node(tree, names)


def _node(node: python.expr, names: set[str]) -> Size | None:
    if isinstance(node, python.Name):
        return node.id if node.id in names else None
    if isinstance(node, python.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, python.BinOp) and type(node.op) in _OPERATORS:
        left, right = _node(node.left, names), _node(node.right, names)
        return None if left is None or right is None else (_OPERATORS[type(node.op)], left, right)
    return None
