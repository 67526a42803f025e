"""The tree of a `.grad` file: what the parser makes, the checker annotates and the lowering reads.

Nodes are plain records. `span` is where the node stands in its file. The checker fills `Expr.type` (a
`frontend.types.Type`; `real` stays symbolic in functions that say `real`) and the few fields marked
"checker"; nothing else of a node changes after parsing. Names are NFKC-normalised by the parser.

What the checker adds besides types: every `binding` is a `scope.Binding`, one object for a declaration and all its
uses (a `Name` inside a written type has one too); `Name.instance` is the scalar type that a mention of a function or
constant with a `real` signature was given (None otherwise); `Call.resolution` is a `check_builtins.BuiltinUse` where a
built-in is called; `DerivativeForm.positions` are the parameters that `wrt` means; `NamedType.expansion` is the
written type that a `type` name stands for at this place; `sizes` of functions and lambdas are the bindings of
the size names of their signature, in order of first appearance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open range of text: 1-based lines and columns (columns count characters); `end` is exclusive."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(slots=True, eq=False)
class Node:
    span: Span


# Types as written -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class TypeExpr(Node):
    pass


@dataclass(slots=True, eq=False)
class NamedType(TypeExpr):
    """`f64`, `f32`, `i64`, `bool`, `real`, or the name of a `type` definition."""

    name: str
    expansion: TypeExpr | None = field(default=None, init=False)  # checker


@dataclass(slots=True, eq=False)
class ArrayType(TypeExpr):
    """`f64[k, d*(d-1)//2]`; sizes are expressions made of Int, Name, Binary and Unary."""

    element: TypeExpr
    sizes: list[Expr]


@dataclass(slots=True, eq=False)
class TupleType(TypeExpr):
    elements: list[TypeExpr]


@dataclass(slots=True, eq=False)
class FunctionType(TypeExpr):
    parameters: list[TypeExpr]
    result: TypeExpr


# Expressions ----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Expr(Node):
    type: Any = field(default=None, init=False)  # checker: frontend.types.Type


@dataclass(slots=True, eq=False)
class Int(Expr):
    """An integer literal; `type` says which scalar type its context gave it."""

    value: int


@dataclass(slots=True, eq=False)
class Float(Expr):
    value: float


@dataclass(slots=True, eq=False)
class Bool(Expr):
    value: bool


@dataclass(slots=True, eq=False)
class Name(Expr):
    """A variable, size, parameter, function, built-in or constant (`pi`, `inf`, `nan`)."""

    name: str
    binding: Any = field(default=None, init=False)  # checker
    instance: Any = field(default=None, init=False)  # checker


@dataclass(slots=True, eq=False)
class Unary(Expr):
    op: str  # "-", "not"
    operand: Expr


@dataclass(slots=True, eq=False)
class Binary(Expr):
    op: str  # + - * / // % @ ** == != < <= > >= and or
    left: Expr
    right: Expr
    op_span: Span


@dataclass(slots=True, eq=False)
class Call(Expr):
    """`f(a, b, axis = 1)`; for a reduction over a generator `arguments` is one `Generator`."""

    function: Expr
    arguments: list[Expr]
    keywords: list[Keyword]
    resolution: Any = field(default=None, init=False)  # checker


@dataclass(slots=True, eq=False)
class Keyword(Node):
    name: str
    value: Expr


@dataclass(slots=True, eq=False)
class Index(Expr):
    """`a[i, 1..n, :]`; an item is an Expr or a Slice."""

    array: Expr
    items: list[Expr | Slice]


@dataclass(slots=True, eq=False)
class Slice(Node):
    """`lo..hi`, either side missing; `:` has neither."""

    low: Expr | None
    high: Expr | None


@dataclass(slots=True, eq=False)
class TupleItem(Expr):
    """`t.0`"""

    tuple: Expr
    position: int


@dataclass(slots=True, eq=False)
class Attribute(Expr):
    """`a.T` (any other attribute is the checker's error)."""

    value: Expr
    name: str


@dataclass(slots=True, eq=False)
class Tuple(Expr):
    elements: list[Expr]


@dataclass(slots=True, eq=False)
class ArrayLiteral(Expr):
    elements: list[Expr]


@dataclass(slots=True, eq=False)
class Range(Node):
    """`a..b`, with `step` only in `for` statements."""

    low: Expr
    high: Expr
    step: Expr | None


@dataclass(slots=True, eq=False)
class GeneratorClause(Node):
    """`for i in a..b` or `for v in array` inside a comprehension or reduction."""

    target: str
    target_span: Span
    iterable: Range | Expr
    binding: Any = field(default=None, init=False)  # checker


@dataclass(slots=True, eq=False)
class Generator(Expr):
    """`expr for i in a..b, j in c..d if cond`: the only argument of a reduction."""

    body: Expr
    clauses: list[GeneratorClause]
    condition: Expr | None


@dataclass(slots=True, eq=False)
class Comprehension(Expr):
    """`[expr for i in a..b, j in c..d]`; a `condition` is the checker's error."""

    body: Expr
    clauses: list[GeneratorClause]
    condition: Expr | None


@dataclass(slots=True, eq=False)
class If(Expr):
    """`if c { } else if d { } else { }`, as value and as statement. `otherwise` is a Block, an If, or None."""

    condition: Expr
    then: Block
    otherwise: Block | If | None


@dataclass(slots=True, eq=False)
class Block(Expr):
    """Statements, then a value or None."""

    statements: list[Stmt]
    value: Expr | None


@dataclass(slots=True, eq=False)
class LambdaParameter(Node):
    name: str
    annotation: TypeExpr | None
    binding: Any = field(default=None, init=False)  # checker


@dataclass(slots=True, eq=False)
class Lambda(Expr):
    parameters: list[LambdaParameter]
    body: Expr
    sizes: list[Any] = field(default_factory=list, init=False)  # checker


@dataclass(slots=True, eq=False)
class DerivativeForm(Expr):
    """`grad(f, wrt = (x, y))` and its kin, wherever such a call names one of the nine forms.

    `wrt` is None (default), a list of names for `x` or `(x, y)`; `wrt_tuple` tells `(x,)` from `x`.
    """

    form: str  # grad value_and_grad vjp jvp value_and_vjp value_and_jvp jacobian hessian hvp
    function: Expr
    wrt: list[str] | None
    wrt_tuple: bool
    wrt_span: Span | None
    positions: list[int] | None = field(default=None, init=False)  # checker
    cotangents: int = field(default=1, init=False)  # checker: how many a vjp of this function takes


# Statements -----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Stmt(Node):
    pass


@dataclass(slots=True, eq=False)
class Pattern(Node):
    """A name, or a tuple of patterns: the left side of `let (a, (b, c)) = ...`."""

    name: str | None
    elements: list[Pattern] | None
    binding: Any = field(default=None, init=False)  # checker


@dataclass(slots=True, eq=False)
class Let(Stmt):
    """`let p = e`, `var p = e`, with an optional type."""

    mutable: bool
    pattern: Pattern
    annotation: TypeExpr | None
    value: Expr


@dataclass(slots=True, eq=False)
class Assign(Stmt):
    """`target op value`; target is Name, Index (nested too) or Tuple of these; op is `=`, `+=`, `-=`, `*=`, `/=`."""

    target: Expr
    op: str
    value: Expr


@dataclass(slots=True, eq=False)
class For(Stmt):
    """`for i in range { }`, `for v in array { }`; `segments` is the argument of `@checkpoint`, or None."""

    target: str
    target_span: Span
    iterable: Range | Expr
    body: Block
    segments: Expr | None
    binding: Any = field(default=None, init=False)  # checker


@dataclass(slots=True, eq=False)
class While(Stmt):
    condition: Expr
    body: Block


@dataclass(slots=True, eq=False)
class Break(Stmt):
    pass


@dataclass(slots=True, eq=False)
class Continue(Stmt):
    pass


@dataclass(slots=True, eq=False)
class Return(Stmt):
    value: Expr


@dataclass(slots=True, eq=False)
class Assert(Stmt):
    condition: Expr
    message: str | None


@dataclass(slots=True, eq=False)
class ExprStmt(Stmt):
    """An expression as a statement: an `if` without value, else the checker's "dropped value" error."""

    value: Expr


# Top level ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Parameter(Node):
    name: str
    annotation: TypeExpr
    binding: Any = field(default=None, init=False)  # checker


@dataclass(slots=True, eq=False)
class Function(Node):
    """`body` is a Block for the `{ }` form, any other Expr for the `= expr` form. `name_span` is the name alone."""

    name: str
    name_span: Span
    parameters: list[Parameter]
    result: TypeExpr | None
    body: Expr
    sizes: list[Any] = field(default_factory=list, init=False)  # checker


@dataclass(slots=True, eq=False)
class TypeDefinition(Node):
    name: str
    name_span: Span
    definition: TypeExpr


@dataclass(slots=True, eq=False)
class Constant(Node):
    """Top-level `let`."""

    name: str
    name_span: Span
    annotation: TypeExpr | None
    value: Expr


@dataclass(slots=True, eq=False)
class DerivativeRule(Node):
    """`derivative vjp f = f_pullback`"""

    mode: str  # "vjp" or "jvp"
    function: str
    function_span: Span
    rule: Expr


@dataclass(slots=True, eq=False)
class Import(Node):
    path: str
    path_span: Span


@dataclass(slots=True, eq=False)
class Export(Node):
    """`export f` (value None) or `export g = expression`."""

    name: str
    name_span: Span
    value: Expr | None


@dataclass(slots=True, eq=False)
class File(Node):
    """One source file; `source` is its text.

    `broken_names` are the names of items that could not be read (they are left out; `*` when an import could not).
    """

    path: str
    source: str
    imports: list[Import]
    types: list[TypeDefinition]
    constants: list[Constant]
    functions: list[Function]
    rules: list[DerivativeRule]
    exports: list[Export]
    broken_names: set[str] = field(default_factory=set)
