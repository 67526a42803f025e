"""Written types to types: aliases, sizes, and the signatures that bind size names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from aotdiff.frontend import ast
from aotdiff.frontend.diagnostics import Note, suggest
from aotdiff.frontend.program import Definition
from aotdiff.frontend.scope import Binding, Region, Scope
from aotdiff.frontend.sizes import ONE, UNKNOWN, ZERO, Size, Symbol, affine, number, symbol_size
from aotdiff.frontend.types import (
    ERROR,
    I64,
    REAL,
    SCALARS,
    Array,
    Function,
    Scalar,
    Tuple,
    Type,
    mentions,
)


class Reporter(Protocol):
    """Where messages go."""

    def error(self, span: ast.Span, message: str, notes: list[Note | str] | None = None) -> None: ...


@dataclass(slots=True)
class SizeSource:
    """What binds a size name: dimension `dimension` of parameter `parameter` is `coefficient * name + rest`.

    `path` leads to the array inside a tuple parameter. A bare use has coefficient 1 and rest 0.
    """

    parameter: int
    path: tuple[int, ...]
    dimension: int
    coefficient: Size = ONE
    rest: Size = ZERO


@dataclass(slots=True)
class Signature:
    """The parameters and result of a function or lambda, with the scope its body starts in."""

    function: Function
    scope: Scope
    sizes: list[Binding]
    region: Region
    says_real: bool
    promised: bool = True  # the result is written (else it is inferred from the body)
    given: list[bool] = field(default_factory=list)  # which parameters have a written type


class TypeReader:
    """Turns written types of one file into types. `real` is what the word `real` means at this place."""

    def __init__(self, reporter: Reporter, visible: dict[str, Definition], real: Type) -> None:
        self.reporter = reporter
        self.visible = visible
        self.real = real
        self.failed = False  # whether a size had an error
        self.in_function_type = False
        self.constant_size: Callable[[ast.Name], Size] = lambda node: UNKNOWN  # of a top-level constant

    def read(self, node: ast.TypeExpr, scope: Scope) -> Type:
        """The type; sizes are looked up in a scope. ERROR where something in it is reported."""
        node = self.expanded(node)
        if isinstance(node, ast.NamedType):
            scalar = SCALARS.get(node.name)
            if scalar is None:
                return ERROR
            return self.real if scalar is REAL else scalar
        if isinstance(node, ast.ArrayType):
            return self.array(node, scope)
        if isinstance(node, ast.TupleType):
            return Tuple(tuple(self.read(element, scope) for element in node.elements))
        if isinstance(node, ast.FunctionType):
            outside, self.in_function_type = self.in_function_type, True
            parameters = tuple(self.read(parameter, scope) for parameter in node.parameters)
            result = self.read(node.result, scope)
            self.in_function_type = outside
            if isinstance(result, Function):
                self.reporter.error(node.result.span, "a function cannot be the result of a function")
                result = ERROR
            return Function(parameters, result)
        return ERROR

    def array(self, node: ast.ArrayType, scope: Scope) -> Type:
        element = self.read(node.element, scope)
        before, self.failed = self.failed, False
        sizes = tuple(self.size(size, scope) for size in node.sizes)
        failed, self.failed = self.failed, before or self.failed
        if element is ERROR or failed:
            return ERROR
        if isinstance(element, Array):
            return Array(element.element, sizes + element.sizes)
        if not isinstance(element, Scalar):
            self.reporter.error(node.element.span, f"the elements of an array are scalars, not {element!r}")
            return ERROR
        return Array(element, sizes)

    def expanded(self, node: ast.TypeExpr) -> ast.TypeExpr:
        """The definition a `type` name stands for, as this place's own copy; other types as they are."""
        seen: set[str] = set()
        while isinstance(node, ast.NamedType) and node.name not in SCALARS:
            if node.expansion is None:
                node.expansion = self.definition(node, seen)
            if node.expansion is None:
                return node
            seen.add(node.name)
            node = node.expansion
        return node

    def definition(self, node: ast.NamedType, seen: set[str]) -> ast.TypeExpr | None:
        found = self.visible.get(node.name)
        if isinstance(found, ast.TypeDefinition):
            if node.name in seen or _contains_itself(found, self.visible):
                return None  # reported where it is defined
            return copy.deepcopy(found.definition)
        notes: list[Note | str] = []
        if found is not None:
            notes.append(Note("it is defined here", found.name_span))
            self.reporter.error(node.span, f"`{node.name}` is not a type", notes)
            return None
        types = [name for name, what in self.visible.items() if isinstance(what, ast.TypeDefinition)]
        hint = suggest(node.name, [*SCALARS, *types]) or _foreign(node.name)
        message = f"unknown type `{node.name}`" + (f"; {hint}" if hint else "")
        self.reporter.error(node.span, message, ["the scalar types are f64, f32, i64, bool and real"])
        return None

    # Sizes ------------------------------------------------------------------------------------------------

    def size(self, node: ast.Expr, scope: Scope) -> Size:
        """The symbolic size a size expression means; UNKNOWN after an error or for what may change."""
        value = self.size_value(node, scope)
        if not value.known:
            return value
        if (constant := value.constant) is not None and constant < 0:
            return self.fail(node.span, f"a size cannot be negative (this is {constant})")
        return value.with_text(spelt(node))

    def size_value(self, node: ast.Expr, scope: Scope) -> Size:
        node.type = I64
        if isinstance(node, ast.Int):
            return number(node.value)
        if isinstance(node, ast.Name):
            return self.size_name(node, scope)
        if isinstance(node, ast.Unary) and node.op == "-":
            return -self.size_value(node.operand, scope)
        if isinstance(node, ast.Binary) and node.op in ("+", "-", "*", "//"):
            left, right = self.size_value(node.left, scope), self.size_value(node.right, scope)
            if node.op == "//" and right.constant == 0:
                return self.fail(node.span, "a size is divided by 0")
            return _SIZE_OPERATORS[node.op](left, right)
        return self.fail(node.span, "a size is made of numbers, names and `+ - * //`")

    def fail(self, span: ast.Span, message: str, notes: list[Note | str] | None = None) -> Size:
        self.failed = True
        self.reporter.error(span, message, notes)
        return UNKNOWN

    def size_name(self, node: ast.Name, scope: Scope) -> Size:
        binding = scope.find(node.name)
        if binding is None:
            return self.global_size(node, scope)
        node.binding = binding
        if binding.type is not I64 and binding.type is not ERROR:
            notes: list[Note | str] = [Note("it is declared here", binding.span)] if binding.span else []
            return self.fail(node.span, f"the size `{node.name}` is {binding.type!r}; a size is an i64", notes)
        if binding.type is ERROR:
            self.failed = True
        return binding.size

    def global_size(self, node: ast.Name, scope: Scope) -> Size:
        if isinstance(self.visible.get(node.name), ast.Constant):
            return self.constant_size(node)
        known = [name for name in scope.all_names() if (b := scope.find(name)) is not None and b.type is I64]
        hint = suggest(node.name, known)
        message = f"no parameter gives the size `{node.name}`" + (f"; {hint}" if hint else "")
        notes: list[Note | str] = ["a size name is bound by a dimension of a parameter's array type"]
        if self.in_function_type:
            notes = [f"a function type binds no sizes: a parameter `{node.name}: i64` gives this one"]
        return self.fail(node.span, message, notes)


_SIZE_OPERATORS: dict[str, Callable[[Size, Size], Size]] = {
    "+": Size.__add__,
    "-": Size.__sub__,
    "*": Size.__mul__,
    "//": Size.__floordiv__,
}
_STRENGTH = {"+": 1, "-": 1, "*": 2, "//": 2}


def spelt(node: ast.Expr, strength: int = 0) -> str:
    """A size expression as one would write it: `n`, `d*(d-1)//2`."""
    if isinstance(node, ast.Int):
        return str(node.value)
    if isinstance(node, ast.Name):
        return node.name
    if isinstance(node, ast.Unary):
        return "-" + spelt(node.operand, 3)
    if isinstance(node, ast.Binary) and node.op in _STRENGTH:
        own = _STRENGTH[node.op]
        text = f"{spelt(node.left, own)}{node.op}{spelt(node.right, own + 1)}"
        return f"({text})" if own < strength else text
    return "?"


def _foreign(name: str) -> str:
    """Names of other languages for a type of this one."""
    ours = {"float": "f64", "double": "f64", "float64": "f64", "float32": "f32", "int": "i64", "int64": "i64"}
    return f'did you mean "{ours[name]}"?' if name in ours else ""


def _contains_itself(definition: ast.TypeDefinition, visible: dict[str, Definition]) -> bool:
    """Whether a `type` name leads back to itself."""
    pending, seen = [definition.definition], set[str]()
    while pending:
        for name in _type_names(pending.pop()):
            if name == definition.name:
                return True
            found = visible.get(name)
            if isinstance(found, ast.TypeDefinition) and name not in seen:
                seen.add(name)
                pending.append(found.definition)
    return False


def _type_names(node: ast.TypeExpr) -> Iterator[str]:
    if isinstance(node, ast.NamedType):
        yield node.name
    elif isinstance(node, ast.ArrayType):
        yield from _type_names(node.element)
    elif isinstance(node, ast.TupleType):
        for element in node.elements:
            yield from _type_names(element)
    elif isinstance(node, ast.FunctionType):
        for parameter in (*node.parameters, node.result):
            yield from _type_names(parameter)


def check_definition(reporter: Reporter, node: ast.TypeDefinition, visible: dict[str, Definition]) -> None:
    """Report a `type` that means nothing: an unknown name, or one that leads back to itself. Sizes bind at its uses."""
    if _contains_itself(node, visible):
        reporter.error(node.name_span, f"the type `{node.name}` is defined by itself")
        return
    if node.name in SCALARS:
        reporter.error(node.name_span, f"`{node.name}` is a built-in type")
        return
    reader = TypeReader(reporter, visible, REAL)
    for name in _named_types(node.definition):
        reader.expanded(name)


def _named_types(node: ast.TypeExpr) -> Iterator[ast.NamedType]:
    if isinstance(node, ast.NamedType):
        yield node
    elif isinstance(node, ast.ArrayType):
        yield from _named_types(node.element)
    elif isinstance(node, ast.TupleType):
        for element in node.elements:
            yield from _named_types(element)
    elif isinstance(node, ast.FunctionType):
        for parameter in (*node.parameters, node.result):
            yield from _named_types(parameter)


# Signatures -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Dimension:
    """One size of a parameter's type, where it may bind a name."""

    node: ast.Expr
    parameter: int
    path: tuple[int, ...]
    dimension: int


class SignatureReader:
    """Reads the parameters of one function or lambda: binds its size names, then reads types against them."""

    def __init__(self, types: TypeReader, owner: ast.Function | ast.Lambda, outer: Scope | None) -> None:
        self.types = types
        self.owner = owner
        self.scope = Scope(outer)
        self.region = Region("function" if isinstance(owner, ast.Function) else "lambda")
        self.sizes: list[Binding] = []
        self.integers: dict[str, Binding] = {}

    def read(self, fallback: list[Type] | None = None, promised: ast.TypeExpr | None = None) -> Signature:
        """The signature; `fallback` has the types of parameters without a written one."""
        owner = self.owner
        self.declare_integers(fallback)
        dimensions = self.dimensions()
        self.bind_bare(dimensions)
        self.bind_affine(dimensions)
        parameters: list[Type] = []
        for position, parameter in enumerate(owner.parameters):
            if parameter.annotation is not None:
                parameters.append(self.types.read(parameter.annotation, self.scope))
            else:
                parameters.append(fallback[position] if fallback is not None else ERROR)
        result = self.types.read(promised, self.scope) if promised is not None else ERROR
        if isinstance(result, Function):
            assert promised is not None
            self.types.reporter.error(promised.span, "a function cannot be the result of a function")
            result = ERROR
        says_real = any(mentions(type_, REAL) for type_ in (*parameters, result))
        self.declare_parameters(parameters)
        owner.sizes = list(self.sizes)
        binders = frozenset(_only_symbol(b) for b in (*self.sizes, *self.integers.values()))
        values = {p: _only_symbol(b) for p, b in self.positions()}
        names = tuple(parameter.name for parameter in owner.parameters)
        function = Function(tuple(parameters), result, names, binders, values)
        given = [parameter.annotation is not None for parameter in owner.parameters]
        return Signature(function, self.scope, self.sizes, self.region, says_real, promised is not None, given)

    def declare_integers(self, fallback: list[Type] | None) -> None:
        """i64 parameters may be used as sizes of the others, so they come first."""
        for position, parameter in enumerate(self.owner.parameters):
            if parameter.annotation is not None:
                node = self.types.expanded(parameter.annotation)
                whole = isinstance(node, ast.NamedType) and node.name == "i64"
            else:
                whole = fallback is not None and fallback[position] is I64
            if whole and parameter.name not in self.integers:
                size = symbol_size(Symbol(parameter.name, "parameter"))
                binding = Binding(parameter.name, "parameter", I64, parameter, parameter.span, size, self.region)
                self.integers[parameter.name] = self.scope.declare(binding)

    def positions(self) -> Iterator[tuple[int, Binding]]:
        for position, parameter in enumerate(self.owner.parameters):
            binding = self.integers.get(parameter.name)
            if binding is not None and binding.node is parameter:
                yield position, binding

    def dimensions(self) -> list[_Dimension]:
        found: list[_Dimension] = []

        def visit(node: ast.TypeExpr, parameter: int, path: tuple[int, ...], before: int = 0) -> None:
            node = self.types.expanded(node)
            if isinstance(node, ast.ArrayType):
                for dimension, size in enumerate(node.sizes):
                    found.append(_Dimension(size, parameter, path, before + dimension))
                visit(node.element, parameter, path, before + len(node.sizes))
            elif isinstance(node, ast.TupleType):
                for position, element in enumerate(node.elements):
                    visit(element, parameter, (*path, position))

        for position, parameter in enumerate(self.owner.parameters):
            if parameter.annotation is not None:
                visit(parameter.annotation, position, ())
        return found

    def bind_bare(self, dimensions: list[_Dimension]) -> None:
        """A name alone binds where it first occurs; the order of names is that of first appearance anywhere."""
        sources: dict[str, SizeSource] = {}
        for place in dimensions:
            if isinstance(place.node, ast.Name) and place.node.name not in sources:
                sources[place.node.name] = SizeSource(place.parameter, place.path, place.dimension)
        for place in dimensions:
            for name in size_names(place.node):
                if self.scope.names.get(name.name) is not None:
                    continue
                symbol = symbol_size(Symbol(name.name, "size"))
                source = sources.get(name.name)
                binding = Binding(name.name, "size", I64, source, name.span, symbol, self.region)
                self.sizes.append(self.scope.declare(binding))

    def bind_affine(self, dimensions: list[_Dimension]) -> None:
        """Names that occur only inside expressions: bound by one that is affine in them, the others being bound."""
        waiting = [binding for binding in self.sizes if binding.node is None]
        progress = True
        while waiting and progress:
            progress = False
            for binding in list(waiting):
                source = self.affine_source(binding, dimensions, waiting)
                if source is not None:
                    binding.node = source
                    waiting.remove(binding)
                    progress = True
        for binding in waiting:
            assert binding.span is not None
            where = "it occurs only inside expressions that it does not follow from"
            message = f"nothing gives the size `{binding.name}`: {where}"
            hint = f"use `{binding.name}` alone as a dimension, or in the form `2*{binding.name} + 1`"
            self.types.reporter.error(binding.span, message, [hint])

    def affine_source(
        self, binding: Binding, dimensions: list[_Dimension], waiting: list[Binding]
    ) -> SizeSource | None:
        others = {_only_symbol(other) for other in waiting if other is not binding}
        for place in dimensions:
            if not any(name.name == binding.name for name in size_names(place.node)):
                continue
            size = _Quiet(self.types).size_value(place.node, self.scope)
            parts = affine(size, _only_symbol(binding))
            if parts is not None and not (size.symbols() & others):
                return SizeSource(place.parameter, place.path, place.dimension, *parts)
        return None

    def declare_parameters(self, types: list[Type]) -> None:
        seen: dict[str, ast.Parameter | ast.LambdaParameter] = {}
        for parameter, type_ in zip(self.owner.parameters, types):
            name = parameter.name
            if name in seen:
                message = f"two parameters are called `{name}`"
                self.types.reporter.error(parameter.span, message, [Note("the other is here", seen[name].span)])
                continue
            seen[name] = parameter
            binding = self.integers.get(name)
            if binding is None or binding.node is not parameter:
                clash = self.scope.names.get(name)
                if clash is not None and clash.kind == "size" and clash.span is not None:
                    message = f"`{name}` is a size here and a parameter of type {type_!r}; a size is an i64"
                    self.types.reporter.error(clash.span, message, [Note("the parameter is here", parameter.span)])
                binding = Binding(name, "parameter", type_, parameter, parameter.span, UNKNOWN, self.region)
                self.scope.declare(binding)
            parameter.binding = binding


class _Quiet(TypeReader):
    """Reads sizes without reporting: for a look at what they say."""

    def __init__(self, other: TypeReader) -> None:
        super().__init__(self, other.visible, other.real)

    def error(self, span: ast.Span, message: str, notes: list[Note | str] | None = None) -> None:
        """Drop it: the real reading reports it."""


def _only_symbol(binding: Binding) -> Symbol:
    (symbol,) = binding.size.symbols()
    return symbol


def size_names(node: ast.Expr) -> Iterator[ast.Name]:
    """The names in a size expression, left to right."""
    if isinstance(node, ast.Name):
        yield node
    elif isinstance(node, ast.Binary):
        yield from size_names(node.left)
        yield from size_names(node.right)
    elif isinstance(node, ast.Unary):
        yield from size_names(node.operand)
