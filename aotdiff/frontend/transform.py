"""From reductions of the grammar to the tree: one method for each rule or alias of `grad.lark`.

A method gets the children of its rule, every token among them, and returns a node (or a plain list for a sequence).
Text that the grammar accepts and the language does not (an assignment to `f(x)`, `a < b < c`) is reported here.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from lark import Token

from aotdiff.frontend import ast
from aotdiff.frontend.ast import Span
from aotdiff.frontend.diagnostics import Diagnostics, split_lines

FORMS = (
    "grad",
    "value_and_grad",
    "vjp",
    "jvp",
    "value_and_vjp",
    "value_and_jvp",
    "jacobian",
    "hessian",
    "hvp",
)
MAX_DEPTH = 1000  # levels of a tree; later stages walk it by recursion
LARGEST = 2**63


def normal(name: str) -> str:
    """A name as the tree has it: NFKC."""
    return str(name) if name.isascii() else unicodedata.normalize("NFKC", name)


def kinds(words: str) -> frozenset[str]:
    """A set of token kinds, written as one line of words."""
    return frozenset(words.split())


def token_span(path: str, token: Token) -> Span:
    # What the checker does not know: tokens of a text have places.
    return Span(path, token.line, token.column, token.end_line, token.end_column)  # type: ignore[arg-type]


class TreeBuilder:
    """Builds the nodes of one file after the other; `begin` names the file.

    `damaged` is set when an error leaves the item that is being read without a true tree.
    """

    def __init__(self) -> None:
        self.begin("", "", Diagnostics())

    def begin(self, path: str, source: str, diagnostics: Diagnostics) -> None:
        self.path = path
        self.diagnostics = diagnostics
        self.damaged = False
        self.doubtful: set[int] = set()  # lines whose brackets are guesses: their mistakes are consequences
        self.forms: list[tuple[ast.DerivativeForm, ast.Call]] = []  # each form with the call it was written as
        self.misshapen: list[ast.Call] = []  # calls that name a form and cannot be one
        self.form_names: set[str] = set()  # names of derivative forms that this file gives to something else
        self._source = source
        self._lines: list[str] | None = None
        self._outer: dict[int, tuple[ast.Node, Span]] = {}  # nodes in parentheses -> span with these
        self._depth: dict[int, int] = {}

    # Places -----------------------------------------------------------------------------------------------

    def outer(self, part: Any) -> Span:
        """The span of a token or node, its parentheses included."""
        if isinstance(part, Token):
            return token_span(self.path, part)
        found = self._outer.get(id(part))
        return found[1] if found is not None and found[0] is part else part.span

    def span(self, children: list[Any]) -> Span:
        """From the first child to the last one that is there."""
        first = children[0]
        last = children[-1]
        if last is None:
            last = next(child for child in reversed(children) if child is not None)
        if isinstance(first, Token):
            line, column = first.line, first.column
        else:
            start = self.outer(first)
            line, column = start.line, start.column
        if isinstance(last, Token):
            # What the checker does not know: tokens of a text have places.
            return Span(self.path, line, column, last.end_line, last.end_column)  # type: ignore[arg-type]
        end = self.outer(last)
        # What the checker does not know: tokens of a text have places.
        return Span(self.path, line, column, end.end_line, end.end_column)  # type: ignore[arg-type]

    def text(self, node: ast.Node) -> str:
        """The source of a node on one line, or `...` where it is long."""
        span = self.outer(node)
        if self._lines is None:
            self._lines = split_lines(self._source)
        if span.line != span.end_line:
            return "..."
        text = self._lines[span.line - 1][span.column - 1 : span.end_column - 1]
        return text if len(text) <= 40 else "..."

    def error(self, part: Any, message: str, notes: tuple[str, ...] = (), damaged: bool = True) -> None:
        span = self.outer(part)
        if span.line not in self.doubtful:
            self.diagnostics.error(span, message, notes)
            self.damaged = self.damaged or damaged

    def deepen(self, node: ast.Node, *parts: ast.Node | None) -> None:
        """Note how deep a tree is, and refuse what later stages could not walk."""
        depth = 1 + max((self._depth.get(id(part), 0) for part in parts), default=0)
        if depth > MAX_DEPTH:
            self.error(node, f"expression nested more than {MAX_DEPTH} levels deep; split it with `let`")
            depth = 0
        self._depth[id(node)] = depth

    # Sequences --------------------------------------------------------------------------------------------

    def start(self, children: list[Any]) -> Any:
        return children[0]

    def items(self, children: list[Any]) -> list[Any]:
        return [child for child in children if not isinstance(child, Token)]

    def raw(self, children: list[Any]) -> list[Any]:
        return children

    def second(self, children: list[Any]) -> Any:
        return children[1]

    # Items ------------------------------------------------------------------------------------------------

    def declare(self, name: str) -> str:
        if name in FORMS:
            self.form_names.add(name)
        return name

    def function(self, children: list[Any]) -> ast.Function:
        _, name, _, parameters, _, result, body = children
        named = self.declare(normal(name))
        return ast.Function(self.span(children), named, self.outer(name), parameters or [], result, body)

    def parameter(self, children: list[Any]) -> ast.Parameter:
        name, _, annotation = children
        return ast.Parameter(self.span(children), self.declare(normal(name)), annotation)

    def constant(self, children: list[Any]) -> ast.Constant:
        _, name, annotation, _, value = children
        return ast.Constant(self.span(children), self.declare(normal(name)), self.outer(name), annotation, value)

    def type_definition(self, children: list[Any]) -> ast.TypeDefinition:
        _, name, _, definition = children
        return ast.TypeDefinition(self.span(children), normal(name), self.outer(name), definition)

    def derivative_rule(self, children: list[Any]) -> ast.DerivativeRule:
        _, mode, function, _, rule = children
        if mode not in ("vjp", "jvp"):
            note = f"write `derivative vjp {function} = ...`"
            self.error(mode, f"a derivative rule is `vjp` or `jvp`, not `{mode}`", (note,))
        return ast.DerivativeRule(self.span(children), str(mode), normal(function), self.outer(function), rule)

    def import_file(self, children: list[Any]) -> ast.Import:
        return ast.Import(self.span(children), self.string(children[1]), self.outer(children[1]))

    def export(self, children: list[Any]) -> ast.Export:
        _, name, _, value = children
        return ast.Export(self.span(children), normal(name), self.outer(name), value)

    def broken(self, children: list[Any]) -> None:
        self.damaged = True

    # Types ------------------------------------------------------------------------------------------------

    def named_type(self, children: list[Any]) -> ast.NamedType:
        return ast.NamedType(self.span(children), normal(children[0]))

    def array_type(self, children: list[Any]) -> ast.ArrayType:
        name, _, sizes, _ = children
        for size in sizes:
            self.check_size(size)
        return ast.ArrayType(self.span(children), self.named_type([name]), sizes)

    def check_size(self, size: ast.Expr) -> None:
        """A size is made of numbers and names by `+ - * //`."""
        pending = [size]
        while pending:
            part = pending.pop()
            if isinstance(part, ast.Binary) and part.op in ("+", "-", "*", "//"):
                pending += [part.left, part.right]
            elif isinstance(part, ast.Unary) and part.op == "-":
                pending.append(part.operand)
            elif not isinstance(part, (ast.Int, ast.Name)):
                hint = ("`//` divides sizes",) if isinstance(part, ast.Binary) and part.op == "/" else ()
                self.error(part, "a size is made of names and whole numbers by `+ - * //`", hint)
                return

    def tuple_type(self, children: list[Any]) -> ast.TypeExpr:
        inside = children[1]
        elements = self.items(inside)
        if len(inside) == 1:
            return elements[0]
        return ast.TupleType(self.span(children), elements)

    def function_type(self, children: list[Any]) -> ast.FunctionType:
        inside, result = children[2], children[5]
        return ast.FunctionType(self.span(children), self.items(inside or []), result)

    # Blocks and statements --------------------------------------------------------------------------------

    def statement_list(self, children: list[Any]) -> list[ast.Stmt]:
        return [] if children[0] is None else [children[0]]

    def statement_append(self, children: list[Any]) -> list[ast.Stmt]:
        statements, _, statement = children
        if statement is not None:
            statements.append(statement)
        return statements

    def block(self, children: list[Any]) -> ast.Block:
        statements = children[1] or []
        value: ast.Expr | None = None
        if statements and isinstance(statements[-1], ast.ExprStmt) and gives_value(statements[-1].value):
            value = statements.pop().value
        return ast.Block(self.span(children), statements, value)

    def let(self, children: list[Any]) -> ast.Let:
        keyword, pattern, annotation, _, value = children
        return ast.Let(self.span(children), keyword.type == "VAR", pattern, annotation, value)

    def pattern_name(self, children: list[Any]) -> ast.Pattern:
        return ast.Pattern(self.span(children), self.declare(normal(children[0])), None)

    def pattern_tuple(self, children: list[Any]) -> ast.Pattern:
        inside = children[1]
        if len(inside) == 1:
            return inside[0]
        return ast.Pattern(self.span(children), None, self.items(inside))

    def expression(self, children: list[Any]) -> ast.ExprStmt:
        return ast.ExprStmt(self.span(children), children[0])

    def assign(self, children: list[Any]) -> ast.Assign:
        target, op, value = children
        self.check_target(target, op)
        return ast.Assign(self.span(children), target, str(op), value)

    def check_target(self, target: ast.Expr, op: Token) -> None:
        if isinstance(target, ast.Tuple):
            if op != "=":
                self.error(op, f"`{op}` changes one variable; a tuple is assigned with `=`")
            for element in target.elements:
                self.check_target(element, op if op == "=" else Token("EQUAL", "="))
            return
        root = target
        while isinstance(root, ast.Index):
            root = root.array
        if isinstance(root, ast.Name):
            return
        if isinstance(root, ast.TupleItem):
            note = "take the tuple apart with `let (a, b) = ...`, or assign all of it: `t = (a, b)`"
            self.error(root, "an element of a tuple cannot be assigned", (note,))
        elif isinstance(root, ast.Attribute):
            self.error(root, f"`{self.text(root)}` is a value, not a place; assign elements of the variable itself")
        else:
            self.error(target, "only variables and their elements can be assigned")

    def if_statement(self, children: list[Any]) -> ast.ExprStmt:
        return ast.ExprStmt(self.span(children), self.if_value(children))

    def if_value(self, children: list[Any]) -> ast.If:
        _, condition, then, otherwise = children
        node = ast.If(self.span(children), condition, then, otherwise)
        self.deepen(node, condition, otherwise)
        return node

    def else_if(self, children: list[Any]) -> ast.If:
        return self.if_value(children[1:])

    def for_loop(self, children: list[Any]) -> ast.For:
        _, name, _, iterable, body = children
        target = self.declare(normal(name))
        return ast.For(self.span(children), target, self.outer(name), iterable, body, None)

    def range(self, children: list[Any]) -> ast.Range:
        return ast.Range(self.span(children), children[0], children[2], None)

    def stepped_range(self, children: list[Any]) -> ast.Range:
        low, _, high, word, step = children
        if word != "step":
            self.error(word, f"found `{word}`, expected `step` or the `{{` of the loop")
        return ast.Range(self.span(children), low, high, step)

    def checkpoint(self, children: list[Any]) -> ast.For:
        name, arguments, loop = children[1], children[3] or [], children[-1]
        form = "`@checkpoint(segments = 32) for ...`"
        if name != "checkpoint":
            self.error(name, f"`@{name}` has no meaning here; the only annotation is {form}")
        elif len(arguments) != 1 or not isinstance(arguments[0], ast.Keyword) or arguments[0].name != "segments":
            self.error(name, f"checkpoint takes the number of segments: {form}")
        else:
            loop.segments = arguments[0].value
        loop.span = self.span(children)
        return loop

    def while_loop(self, children: list[Any]) -> ast.While:
        return ast.While(self.span(children), children[1], children[2])

    def break_loop(self, children: list[Any]) -> ast.Break:
        return ast.Break(self.span(children))

    def continue_loop(self, children: list[Any]) -> ast.Continue:
        return ast.Continue(self.span(children))

    def return_value(self, children: list[Any]) -> ast.Return:
        return ast.Return(self.span(children), children[1])

    def assertion(self, children: list[Any]) -> ast.Assert:
        keyword, condition, message = children
        end = message if message is not None else condition
        text = self.string(message) if message is not None else None
        return ast.Assert(self.span([keyword, end]), condition, text)

    # Expressions ------------------------------------------------------------------------------------------

    def lambda_function(self, children: list[Any]) -> ast.Lambda:
        return ast.Lambda(self.span(children), children[1] or [], children[3])

    def lambda_function_empty(self, children: list[Any]) -> ast.Lambda:
        return ast.Lambda(self.span(children), [], children[1])

    def lambda_parameter(self, children: list[Any]) -> ast.LambdaParameter:
        name, annotation = children
        return ast.LambdaParameter(self.span(children), self.declare(normal(name)), annotation)

    def binary(self, children: list[Any]) -> ast.Binary:
        left, op, right = children
        node = ast.Binary(self.span(children), str(op), left, right, token_span(self.path, op))
        self.deepen(node, left, right)
        return node

    def comparison(self, children: list[Any]) -> ast.Expr:
        """`a < b`; for `a < b < c` an error, and the tree of `a < b and b < c`."""
        result: ast.Expr = self.binary(children[:3])
        for i in range(2, len(children) - 2, 2):
            following = self.binary(children[i : i + 3])
            if i == 2:
                first, op, middle, second, last = (
                    str(c) if isinstance(c, Token) else self.text(c) for c in children[:5]
                )
                hint = f"write `{first} {op} {middle} and {middle} {second} {last}`"
                self.error(children[3], f"comparisons do not chain; {hint}", damaged=False)
            result = ast.Binary(self.span([result, following]), "and", result, following, self.outer(children[i + 1]))
            self.deepen(result, result.left)
        return result

    def unary(self, children: list[Any]) -> ast.Expr:
        op, operand = children
        if op == "-" and isinstance(operand, ast.Int) and operand.value == LARGEST and id(operand) not in self._outer:
            return ast.Int(self.span(children), -LARGEST)
        node = ast.Unary(self.span(children), str(op), operand)
        self.deepen(node, operand)
        return node

    def index(self, children: list[Any]) -> ast.Index:
        node = ast.Index(self.span(children), children[0], children[2])
        self.deepen(node, children[0], *children[2])
        return node

    def slice_all(self, children: list[Any]) -> ast.Slice:
        return ast.Slice(self.span(children), None, None)

    def slice_from(self, children: list[Any]) -> ast.Slice:
        return ast.Slice(self.span(children), children[0], None)

    def slice_to(self, children: list[Any]) -> ast.Slice:
        return ast.Slice(self.span(children), None, children[1])

    def slice_both(self, children: list[Any]) -> ast.Slice:
        return ast.Slice(self.span(children), children[0], children[2])

    def call(self, children: list[Any]) -> ast.Expr:
        function, _, given, _ = children
        arguments: list[ast.Expr] = []
        keywords: list[ast.Keyword] = []
        for item in given or []:
            if isinstance(item, ast.Keyword):
                keywords.append(item)
            else:
                arguments.append(item)
        if keywords and keywords[0] is not given[len(arguments)]:
            late = next(item for item in given[given.index(keywords[0]) :] if not isinstance(item, ast.Keyword))
            note = "`=` names an argument; values are compared with `==`"
            self.error(late, f"an argument without a name stands before `{keywords[0].name} = ...`", (note,))
        node = ast.Call(self.span(children), function, arguments, keywords)
        self.deepen(node, function, *arguments)
        if isinstance(function, ast.Name) and function.name in FORMS:
            return self.derivative_form(node, function.name)
        return node

    def call_generator(self, children: list[Any]) -> ast.Call:
        node = ast.Call(self.span(children), children[0], [children[2]], [])
        self.deepen(node, children[0], children[2])
        return node

    def derivative_form(self, call: ast.Call, form: str) -> ast.Expr:
        """The form that a call of `grad` or its kin is; a call still where it has not the shape of one."""
        if len(call.arguments) != 1 or [keyword.name for keyword in call.keywords] not in ([], ["wrt"]):
            self.misshapen.append(call)
            return call
        wrt: list[str] | None = None
        several, where = False, None
        if call.keywords:
            value = call.keywords[0].value
            where = self.outer(value)
            several = isinstance(value, ast.Tuple)
            names = value.elements if isinstance(value, ast.Tuple) else [value]
            wrt = [name.name for name in names if isinstance(name, ast.Name)]
            if len(wrt) < len(names):
                self.error(value, "`wrt` takes names of parameters: `wrt = x`, `wrt = (x, y)`")
        node = ast.DerivativeForm(call.span, form, call.arguments[0], wrt, several, where)
        self.deepen(node, call.arguments[0])
        self.forms.append((node, call))
        return node

    def refuse_form(self, call: ast.Call) -> None:
        form = self.text(call.function)
        name = self.text(call.arguments[0]) if call.arguments else "f"
        wrong = next((keyword for keyword in call.keywords if keyword.name != "wrt"), None)
        if wrong is not None:
            self.error(wrong, f"`{form}` has no argument `{wrong.name}`; only `wrt = ...`")
            return
        note = f"it gives a function; that one takes the arguments: `{form}({name})(x)`"
        self.error(call, f"`{form}` takes one function and, if wanted, `wrt = ...`", (note,))

    def keyword(self, children: list[Any]) -> ast.Keyword:
        return ast.Keyword(self.span(children), normal(children[0]), children[2])

    def attribute(self, children: list[Any]) -> ast.Attribute:
        value, _, name = children
        if isinstance(value, (ast.Int, ast.Float)):
            power = name if re.fullmatch(r"[eE][0-9]+", str(name)) else ""
            note = f"write `{self.text(value)}.0{power}`"
            self.error(value, "a float has digits on both sides of its point", (note,))
        node = ast.Attribute(self.span(children), value, normal(name))
        self.deepen(node, value)
        return node

    def tuple_item(self, children: list[Any]) -> ast.TupleItem:
        position = int(children[2]) if len(children[2]) < 10 else -1
        if position < 0:
            self.error(children[2], "no tuple has so many elements")
        node = ast.TupleItem(self.span(children), children[0], position)
        self.deepen(node, children[0])
        return node

    def generator(self, children: list[Any]) -> ast.Generator:
        body, _, clauses, _, condition = children
        for clause in clauses:
            self.declare(clause.target)
        last = condition if condition is not None else clauses[-1]
        return ast.Generator(self.span([body, last]), body, clauses, condition)

    def clause(self, children: list[Any]) -> ast.GeneratorClause:
        name, _, iterable = children
        return ast.GeneratorClause(self.span(children), normal(name), self.outer(name), iterable)

    def range_clause(self, children: list[Any]) -> ast.GeneratorClause:
        name, low, high = children[0], children[2], children[4]
        iterable = ast.Range(self.span([low, high]), low, high, None)
        return ast.GeneratorClause(self.span(children), normal(name), self.outer(name), iterable)

    # Atoms ------------------------------------------------------------------------------------------------

    def name(self, children: list[Any]) -> ast.Name:
        token = children[0]
        return ast.Name(token_span(self.path, token), normal(token))

    def integer(self, children: list[Any]) -> ast.Int:
        node = ast.Int(self.span(children), 0)
        digits = children[0].replace("_", "")
        if len(digits) < 5000:  # beyond Python's own limit it is too large in any case
            node.value = int(digits)
        if len(digits) >= 5000 or node.value > LARGEST:
            self.error(children[0], "this number does not fit into i64", ("a float has a point: `1.0e20`",))
        return node

    def real_number(self, children: list[Any]) -> ast.Float:
        value = float(children[0].replace("_", ""))
        if value == float("inf"):
            self.error(children[0], "this number does not fit into f64; the infinite one is `inf`")
        return ast.Float(self.span(children), value)

    def true(self, children: list[Any]) -> ast.Bool:
        return ast.Bool(self.span(children), True)

    def false(self, children: list[Any]) -> ast.Bool:
        return ast.Bool(self.span(children), False)

    def group(self, children: list[Any]) -> ast.Expr:
        node = children[1]
        self._outer[id(node)] = (node, self.span(children))
        return node

    def tuple(self, children: list[Any]) -> ast.Tuple:
        elements = self.items(children)
        node = ast.Tuple(self.span(children), elements)
        self.deepen(node, *elements)
        return node

    def array_literal(self, children: list[Any]) -> ast.ArrayLiteral:
        elements = children[1] or []
        node = ast.ArrayLiteral(self.span(children), elements)
        self.deepen(node, *elements)
        return node

    def comprehension(self, children: list[Any]) -> ast.Comprehension:
        inner = children[1]
        return ast.Comprehension(self.span(children), inner.body, inner.clauses, inner.condition)

    def string(self, token: Token) -> str:
        """The text of a string literal; its escapes are `\\"` and `\\\\`."""
        out: list[str] = []
        inside = iter(token[1:-1])
        for char in inside:
            if char == "\\":
                char = next(inside, "")
                if char not in '"\\':
                    self.error(token, f'`\\{char}` has no meaning in a string; the escapes are `\\"` and `\\\\`')
            out.append(char)
        return "".join(out)


def gives_value(expression: ast.Expr) -> bool:
    """Whether an expression that ends a block is its value: an `if` or a block only when something in it is."""
    if isinstance(expression, ast.Block):
        return expression.value is not None
    if isinstance(expression, ast.If):
        other = expression.otherwise
        return expression.then.value is not None or (other is not None and gives_value(other))
    return True
