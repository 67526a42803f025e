"""Expressions: literals, operators, indexing, branches as values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from aotdiff.frontend import ast
from aotdiff.frontend import lower_arrays as arrays
from aotdiff.frontend.lower_branches import branch, lower_block
from aotdiff.frontend.lower_context import Context, is_function, lowers
from aotdiff.frontend.lower_functions import call_node, lambda_value, named, parameter_names
from aotdiff.frontend.lower_values import BuiltIn, Delayed, Form, Function, Item, rank
from aotdiff.ir.builder import static_size
from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import BOOL, I64, Scalar

# Literals and names ---------------------------------------------------------------------------------------

CONSTANTS = {"pi": math.pi, "inf": math.inf, "nan": math.nan}


def number(cx: Context, value: float, kind: Scalar) -> Value:
    return cx.ints.const(int(value)) if kind == I64 else cx.b.const(value, kind)


@lowers(ast.Int)
@lowers(ast.Float)
def literal(cx: Context, node: ast.Int | ast.Float) -> Item:
    return number(cx, node.value, cx.scalar_of(node.type))


@lowers(ast.Bool)
def boolean(cx: Context, node: ast.Bool) -> Item:
    return cx.b.const(node.value, BOOL)


@lowers(ast.Name)
def name(cx: Context, node: ast.Name) -> Item:
    binding = node.binding
    if binding in cx.env:
        return cx.env[binding]
    if binding.kind == "function":
        return named(cx, node)
    if binding.kind == "constant":
        return cx.lowering.constant(cx, node)
    if binding.kind == "builtin":
        return BuiltIn(binding.node)
    assert binding.kind == "builtin constant", f"{node.name} is not bound"
    return cx.b.const(CONSTANTS[node.name], cx.scalar_of(node.type))


# Operators ------------------------------------------------------------------------------------------------

_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul"}
_COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


@lowers(ast.Unary)
def unary(cx: Context, node: ast.Unary) -> Item:
    operand = cx.expr(node.operand)
    kind = cx.kind(operand)
    if node.op == "not":
        return arrays.elementwise(cx, lambda x: cx.b.scalar("not", x), [operand], BOOL, "`not`")
    op = operand.op if isinstance(operand, Value) else None
    if op is not None and op.name == "const":
        return number(cx, -op.attrs["value"], kind)
    return arrays.elementwise(cx, lambda x: negated(cx, x), [operand], kind, "`-`")


def negated(cx: Context, x: Value) -> Value:
    return cx.ints.neg(x) if x.type == I64 else cx.b.neg(x)


@lowers(ast.Binary)
def binary(cx: Context, node: ast.Binary) -> Item:
    if node.op in ("and", "or"):
        return logical(cx, node)
    left, right = cx.expr(node.left), cx.expr(node.right)
    if node.op == "@":
        return arrays.matmul(cx, left, right)
    return operate(cx, node.op, left, right, node.type)


def operate(cx: Context, op: str, left: Item, right: Item, type_: object) -> Item:
    """A binary operator on scalars or arrays; `type_` is the checker's for the result."""
    what = f"`{op}`"
    if op == "**":
        return power(cx, left, right)
    kind = arrays.common_kind(cx, [left, right])
    if op == "/" and kind == I64:
        kind = cx.scalar_of(type_)
    left, right = arrays.cast(cx, left, kind), arrays.cast(cx, right, kind)
    if op in _COMPARISONS:
        name = _COMPARISONS[op]
        return arrays.elementwise(cx, lambda x, y: cx.b.scalar(name, x, y), [left, right], BOOL, what)
    if op in _ARITHMETIC:
        return arrays.elementwise(cx, arithmetic(cx, _ARITHMETIC[op], kind), [left, right], kind, what)
    if op == "/":
        return arrays.elementwise(cx, lambda x, y: cx.b.div(x, y), [left, right], kind, what)
    name = {"//": "floordiv", "%": "mod"}[op]
    if kind == I64:
        return arrays.elementwise(cx, lambda x, y: divided(cx, name, x, y), [left, right], kind, what, effects=True)
    return arrays.elementwise(cx, lambda x, y: cx.b.scalar(name, x, y), [left, right], kind, what)


def arithmetic(cx: Context, name: str, kind: Scalar) -> Callable[..., Value]:
    if kind == I64:
        return {"add": cx.ints.add, "sub": cx.ints.sub, "mul": cx.ints.mul}[name]
    return lambda x, y: cx.b.scalar(name, x, y)


def divided(cx: Context, name: str, x: Value, y: Value) -> Value:
    """i64 division, checked."""
    ints = cx.ints
    if not (ints.positive(y) or ints.at_least(ints.const(-1), y)):
        word = "division" if name == "floordiv" else "remainder"
        cx.check(cx.b.scalar("ne", y, ints.const(0)), "ZeroDivisionError", f"integer {word} by zero")
    return ints.divide(name, x, y)


def power(cx: Context, base: Item, exponent: Item) -> Item:
    """`x ** y`: an i64 exponent stays one."""
    a, b = cx.kind(base), cx.kind(exponent)
    if b == I64:
        loc = cx.b.loc

        def write(x: Value, n: Value) -> Value:
            if a == I64 and not cx.ints.natural(n):
                cx.b.loc = loc
                message = "{0} ** {1}: an integer has no negative power; write f64(x) ** n"
                cx.check(cx.b.scalar("ge", n, cx.ints.const(0)), "ValueError", message, x, n)
            return cx.b.scalar("ipow", x, n)

        return arrays.elementwise(cx, write, [base, exponent], a, "`**`", effects=a == I64)
    kind = arrays.common_kind(cx, [base, exponent])
    base, exponent = arrays.cast(cx, base, kind), arrays.cast(cx, exponent, kind)
    return arrays.elementwise(cx, lambda x, y: cx.b.scalar("pow", x, y), [base, exponent], kind, "`**`")


def logical(cx: Context, node: ast.Binary) -> Item:
    """`and` and `or`: scalars stop early, arrays work element by element."""
    left = cx.expr(node.left)
    if rank(left):
        return both(cx, node.op, left, cx.expr(node.right))
    known = left.op.attrs["value"] if left.op is not None and left.op.name == "const" else None
    if known is not None:
        return left if known == (node.op == "or") else cx.expr(node.right)
    with cx.region([], []) as region:
        cx.ints.assume_condition(left, node.op == "and")
        right = cx.expr(node.right)
        inner = cx.b
    if rank(right):  # nothing to skip: the result has an array's shape either way
        cx.b.region.ops.extend(_moved(cx, region.ops))
        return both(cx, node.op, left, right)
    if all(_is_light(op) for op in region.ops):
        cx.b.region.ops.extend(_moved(cx, region.ops))
        return cx.b.scalar(node.op, left, right)
    inner.ret([right])
    with cx.region([], []) as other:
        cx.b.ret([cx.b.const(node.op == "or", BOOL)])
    return cx.b.if_op(left, [region, other] if node.op == "and" else [other, region]).result


def both(cx: Context, op: str, left: Item, right: Item) -> Item:
    return arrays.elementwise(cx, lambda x, y: cx.b.scalar(op, x, y), [left, right], BOOL, f"`{op}`")


_COSTLY = {"exp", "log", "pow", "lgamma", "digamma", "erf", "erfc", "floordiv", "mod", "ipow"}


def _is_light(op: Op) -> bool:
    """Whether it may as well run always: no effects, no loops, nothing unsafe or dear."""
    return not op.regions and op.name not in _COSTLY and op.name not in ("check", "call", "vjp", "jvp", "accum", "read")


def _moved(cx: Context, ops: Iterable[Op]) -> list[Op]:
    """Operations of a region that is dissolved into the current one."""
    ops = list(ops)
    for op in ops:
        for result in op.results:
            cx.ints.home[result] = cx.b.region
    return ops


# Tuples, attributes ---------------------------------------------------------------------------------------


@lowers(ast.Tuple)
def tuple_(cx: Context, node: ast.Tuple) -> Item:
    return tuple(cx.expr(element) for element in node.elements)


@lowers(ast.TupleItem)
def tuple_item(cx: Context, node: ast.TupleItem) -> Item:
    return cx.expr(node.tuple)[node.position]


@lowers(ast.Attribute)
def attribute(cx: Context, node: ast.Attribute) -> Item:
    return arrays.transpose(cx, cx.expr(node.value))


# Indexing -------------------------------------------------------------------------------------------------

Selector = tuple[Value, Value | None]  # an index and None, or where a slice starts and its size


@lowers(ast.Index)
def index(cx: Context, node: ast.Index) -> Item:
    array = cx.expr(node.array)
    return selected(cx, array, selectors(cx, array, node.items))


def selectors(cx: Context, array: Item, items: list[ast.Expr | ast.Slice]) -> list[Selector]:
    """One selector per dimension, checked."""
    shape = cx.shape(array)
    found: list[Selector] = []
    for axis, item in enumerate(items):
        with cx.at(item.span):
            found.append(_selector(cx, item, shape[axis], axis))
    return found + [(cx.ints.const(0), size) for size in shape[len(items) :]]


def _selector(cx: Context, item: ast.Expr | ast.Slice, size: Value, axis: int) -> Selector:
    if isinstance(item, ast.Slice):
        return _slice(cx, item, size, axis)
    place = from_end(cx, item, size)
    cx.check_index(place, size, axis, shown=cx.ints.sub(place, size) if _negative(item) else None)
    return place, None


def _negative(node: ast.Expr) -> int | None:
    """The value of a literal negative index."""
    if isinstance(node, ast.Unary) and node.op == "-" and isinstance(node.operand, ast.Int):
        return -node.operand.value
    return None


def from_end(cx: Context, node: ast.Expr, size: Value) -> Value:
    """An index or bound; a literal negative one counts from the end."""
    literal_value = _negative(node)
    if literal_value is not None:
        return cx.ints.add(size, cx.ints.const(literal_value))
    return cx.value(node)


def _slice(cx: Context, item: ast.Slice, size: Value, axis: int) -> Selector:
    ints = cx.ints
    low = ints.const(0) if item.low is None else from_end(cx, item.low, size)
    high = size if item.high is None else from_end(cx, item.high, size)
    forward = ints.at_least(high, low)
    conds = [] if ints.natural(low) else [cx.b.scalar("le", ints.const(0), low)]
    conds += [] if ints.at_least(size, high) else [cx.b.scalar("le", high, size)]
    if conds:
        message = f"slice {{0}}..{{1}} is out of range for size {{2}} (axis {axis})"
        cx.check(cx.conjunction(conds), "IndexError", message, low, high, size)
    if not forward:
        message = f"slice {{0}}..{{1}} runs backwards (axis {axis})"
        cx.check(cx.b.scalar("le", low, high), "IndexError", message, low, high)
    if conds or not forward:
        ints.assume_within(low, size, inclusive=True)
        ints.assume_within(high, size, inclusive=True)
        ints.assume_at_least(high, low)
    return low, ints.difference(high, low)


def selected(cx: Context, array: Item, chosen: list[Selector]) -> Item:
    """The part of an array; the element itself where every dimension has an index."""
    if all(size is None for _, size in chosen):
        return cx.element(array, [place for place, _ in chosen])
    shape = [size for _, size in chosen if size is not None]
    if len(shape) == len(chosen) and all(static_size(low) == 0 for low, _ in chosen):
        if all(size is s for size, s in zip(shape, cx.shape(array), strict=True)):
            return array

    def place(idx: list[Value]) -> list[Value]:
        rest = iter(idx)
        return [low if size is None else cx.ints.add(low, next(rest)) for low, size in chosen]

    return arrays.view(cx, array, shape, place)


# Arrays ---------------------------------------------------------------------------------------------------


@lowers(ast.ArrayLiteral)
def array_literal(cx: Context, node: ast.ArrayLiteral) -> Item:
    items = [cx.expr(element) for element in node.elements]
    kind = cx.scalar_of(node.type)
    items = [arrays.cast(cx, item, kind) for item in items]
    if rank(items[0]) == 0:
        return written(cx, kind, items)
    return stacked(cx, kind, items, node)


def written(cx: Context, kind: Scalar, items: list[Value]) -> Value:
    """A vector of scalars, element by element."""
    shape = [cx.ints.const(len(items))]
    array = blank(cx, kind, shape)
    for k, item in enumerate(items):
        array = cx.b.update(array, item, cx.ints.const(k))
    cx.shapes[array] = shape
    return array


def stacked(cx: Context, kind: Scalar, items: list[Item], node: ast.ArrayLiteral) -> Item:
    """Arrays of one shape under a new first dimension."""
    first = cx.shape(items[0])
    for item, element in zip(items[1:], node.elements[1:], strict=True):
        with cx.at(element.span):
            for a, b in zip(first, cx.shape(item), strict=True):
                cx.check_equal(a, b, "the elements of an array have different sizes, {0} and {1}")
    return stack_axis(cx, kind, items, first)


def stack_axis(cx: Context, kind: Scalar, items: list[Item], shape: list[Value]) -> Item:
    """Arrays of the same shape, one after the other along a new first dimension."""
    total = [cx.ints.const(len(items)), *shape]
    array = blank(cx, kind, total)
    zero, one = cx.ints.const(0), cx.ints.const(1)
    for k, item in enumerate(items):
        part = item
        block = Delayed(kind, [one, *shape], lambda idx, part=part: cx.element(part, idx[1:]))
        array = cx.b.insert(array, cx.force(block), cx.ints.const(k), *[zero] * len(shape))
    cx.shapes[array] = total
    return array


def blank(cx: Context, kind: Scalar, shape: list[Value]) -> Value:
    """An array to be written over."""
    zero = cx.b.const(0, kind)
    return cx.force(arrays.full(cx, zero, shape))


# Branches, blocks, functions --------------------------------------------------------------------------------


@lowers(ast.Block)
def block(cx: Context, node: ast.Block) -> Item:
    return lower_block(cx, node)


@lowers(ast.If)
def if_(cx: Context, node: ast.If) -> Item:
    cond = cx.value(node.condition)
    otherwise = node.otherwise
    return branch(cx, cond, lambda: cx.expr(node.then), lambda: cx.expr(otherwise) if otherwise is not None else ())


@lowers(ast.Lambda)
def lambda_(cx: Context, node: ast.Lambda) -> Item:
    return lambda_value(cx, node)


@lowers(ast.DerivativeForm)
def form(cx: Context, node: ast.DerivativeForm) -> Item:
    function = cx.expr(node.function)
    assert is_function(function)
    tupled = node.wrt_tuple and node.wrt is not None
    return Form(node.form, function, wrt_positions(function, node), tupled, node.span, node.cotangents)


def wrt_positions(function: Function, node: ast.DerivativeForm) -> tuple[int, ...]:
    """The parameters that `wrt` means: names are those of the function that is differentiated."""
    names = all_parameter_names(function)
    if node.wrt is not None and all(name in names for name in node.wrt):
        return tuple(names.index(name) for name in node.wrt)
    assert node.positions is not None, f"{node.form}: no positions for {node.wrt}"
    return tuple(node.positions)


def all_parameter_names(f: Function) -> list[str]:
    """Names of a function's parameters, those that forms add included."""
    if not isinstance(f, Form):
        return list(parameter_names(f))
    inner = all_parameter_names(f.function)
    chosen = [inner[k] if k < len(inner) else f"x{k}" for k in f.wrt]
    if f.form.endswith("jvp"):
        return inner + [f"d_{name}" for name in chosen]
    if f.form == "hvp":
        return inner + ([f"v_{name}" for name in chosen] if len(chosen) > 1 else ["v"])
    if f.form.endswith("vjp"):
        return inner + ([f"ct{k}" for k in range(f.cotangents)] if f.cotangents > 1 else ["ct"])
    return inner


@lowers(ast.Call)
def call(cx: Context, node: ast.Call) -> Item:
    return call_node(cx, node)
