"""Blocks, branches, and the ways out of them.

`break`, `continue` and `return` set hidden flags in the environment; what follows a statement that may leave is
guarded by them. Where one side of an `if` always leaves, what follows the `if` moves into its other side, so that
most exits need no flag at run time. See note: exits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from aotdiff.frontend import ast
from aotdiff.frontend.check_values import leaves as always_leaves
from aotdiff.frontend.lower_context import Context, rebuilt
from aotdiff.frontend.lower_integers import Emitter
from aotdiff.frontend.lower_proofs import Poly
from aotdiff.frontend.lower_values import NEVER, Item, Never, all_found, flatten
from aotdiff.ir.graph import Region, Value
from aotdiff.ir.types import BOOL, I64, Array, Type, dims_of

Write = Callable[[], Item]


class Flag:
    """A hidden variable of the environment: False, True, or a bool value."""

    __slots__ = ("what",)

    def __init__(self, what: str):
        self.what = what


@dataclass(slots=True, eq=False)
class LoopExits:
    """The flags of one loop."""

    stop: Flag
    skip: Flag


@dataclass(slots=True, eq=False)
class FunctionExit:
    """The flag and values of `return`; `convert` brings a returned item into the declared type."""

    flag: Flag
    values: Flag
    convert: Callable[[Item, ast.Span], Item]


# What code may do -------------------------------------------------------------------------------------------


@cache
def _parts(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.name not in ("span", "type", "binding", "resolution", "expansion"))


def children(node: ast.Node) -> Iterator[ast.Node]:
    """The nodes directly inside, in order."""
    for name in _parts(type(node)):
        part = getattr(node, name)
        if isinstance(part, ast.Node):
            yield part
        elif isinstance(part, list):
            yield from (p for p in part if isinstance(p, ast.Node))


_BARRIERS = (ast.Lambda, ast.Generator, ast.Comprehension)
_NONE: frozenset[str] = frozenset()


def exits(cx: Context, node: ast.Node) -> frozenset[str]:
    """Which of break, continue and return may leave a node."""
    known = cx.lowering.exits.get(node)
    if known is None:
        known = cx.lowering.exits[node] = _exits(cx, node)
    return known


def _exits(cx: Context, node: ast.Node) -> frozenset[str]:
    if isinstance(node, _BARRIERS):
        return _NONE
    found = _NONE.union(*(exits(cx, child) for child in children(node)))
    if isinstance(node, ast.Return):
        return found | {"return"}
    if isinstance(node, ast.Break):
        return frozenset({"break"})
    if isinstance(node, ast.Continue):
        return frozenset({"continue"})
    return found - {"break", "continue"} if isinstance(node, (ast.For, ast.While)) else found


def assigned(cx: Context, node: ast.Node) -> dict[Any, None]:
    """Variables that a node writes and does not declare itself, in order."""
    known = cx.lowering.assigned.get(node)
    if known is None:
        written: dict[Any, None] = {}
        declared: set[Any] = set()
        _collect(node, written, declared)
        known = cx.lowering.assigned[node] = {b: None for b in written if b not in declared}
    return known


def _collect(node: ast.Node, written: dict[Any, None], declared: set[Any]) -> None:
    if isinstance(node, ast.Assign):
        for target in targets(node.target):
            written[target.binding] = None
    elif isinstance(node, ast.Pattern) and node.binding is not None:
        declared.add(node.binding)
    if not isinstance(node, _BARRIERS):
        for child in children(node):
            _collect(child, written, declared)


def targets(node: ast.Expr) -> Iterator[ast.Name]:
    """The variables of the left side of an assignment."""
    if isinstance(node, ast.Tuple):
        for element in node.elements:
            yield from targets(element)
    else:
        while isinstance(node, ast.Index):
            node = node.array
        assert isinstance(node, ast.Name)
        yield node


# Blocks -----------------------------------------------------------------------------------------------------


def lower_block(cx: Context, node: ast.Block) -> Item:
    """The value of a block; `()` where it has none, NEVER where it does not get to its end."""
    return statements(cx, node.statements, 0, node.value)


def statements(cx: Context, nodes: list[ast.Stmt], start: int, tail: ast.Expr | None) -> Item:
    """The rest of a block, from one statement on."""
    for k in range(start, len(nodes)):
        node = nodes[k]
        ways = exits(cx, node)
        if not ways:
            cx.stmt(node)
            continue
        simpler = simplified(cx, node)
        if simpler is not None:
            return statements(cx, [*simpler, *nodes[k + 1 :]], 0, tail)
        last = k + 1 == len(nodes) and tail is None
        if not last and isinstance(node, ast.ExprStmt) and isinstance(node.value, ast.If) and _one_sided(node.value):
            return _if_with_rest(cx, node.value, lambda k=k: statements(cx, nodes, k + 1, tail))
        cx.stmt(node)
        left = has_left(cx, ways)
        if left is True:
            return NEVER
        if left is False:
            continue
        return () if last else branch(cx, left, lambda: NEVER, lambda k=k: statements(cx, nodes, k + 1, tail))
    return cx.expr(tail) if tail is not None else ()


def simplified(cx: Context, node: ast.Stmt) -> list[ast.Stmt] | None:
    """Statements of the same meaning in which only whole values of `let` and statements leave; None where it is so.

    `return if ...` becomes an `if` with a `return` on both sides; an `if` inside an expression gets a name first.
    """
    if isinstance(node, ast.Return) and exits(cx, node.value) and isinstance(node.value, (ast.If, ast.Block)):
        return [ast.ExprStmt(node.span, _returning(node.value))]
    if isinstance(node, ast.ExprStmt) and isinstance(node.value, ast.If) and not exits(cx, node.value.condition):
        return None
    if isinstance(node, ast.Let) and isinstance(node.value, ast.Block):
        return None
    if isinstance(node, ast.Let) and isinstance(node.value, ast.If) and not exits(cx, node.value.condition):
        return None
    if isinstance(node, (ast.Let, ast.Assign, ast.Assert, ast.Return, ast.ExprStmt)):
        lets: list[ast.Stmt] = []
        made = _spilled(cx, node, lets, whole=False)
        return [*lets, made] if lets else None
    return None


def _returning(node: ast.Expr) -> ast.Expr:
    """A branch or block whose value is returned."""
    if isinstance(node, ast.If):
        assert node.otherwise is not None
        then, otherwise = _returning(node.then), _returning(node.otherwise)
        # What the checker does not know: sides may be values where statements usually are.
        return ast.If(node.span, node.condition, then, otherwise)  # type: ignore[arg-type]
    assert isinstance(node, ast.Block)
    if node.value is None:
        return node
    return ast.Block(node.span, [*node.statements, ast.Return(node.value.span, node.value)], None)


def _spilled(cx: Context, node: Any, lets: list[ast.Stmt], whole: bool) -> Any:
    """A copy with the branches and blocks that may leave replaced by names, which `lets` declares."""
    if not exits(cx, node) or (isinstance(node, ast.Stmt) and whole):
        return node
    if isinstance(node, ast.Binary) and node.op in ("and", "or") and exits(cx, node.right):
        known = ast.Block(node.span, [], _typed(ast.Bool(node.span, node.op == "or"), node.type))
        right = ast.Block(node.span, [], node.right)
        sides = (right, known) if node.op == "and" else (known, right)
        node = _typed(ast.If(node.span, node.left, *sides), node.type)
    if isinstance(node, ast.If):
        condition = _spilled(cx, node.condition, lets, whole=True)
        if condition is not node.condition:
            node = _typed(ast.If(node.span, condition, node.then, node.otherwise), node.type)
    if whole and isinstance(node, (ast.If, ast.Block)):
        pattern = ast.Pattern(node.span, "value", None)
        pattern.binding = Flag("value")
        lets.append(ast.Let(node.span, False, pattern, None, node))
        name = _typed(ast.Name(node.span, "value"), node.type)
        name.binding = pattern.binding
        return name
    made = copy.copy(node)
    for field_name in _parts(type(node)):
        part = getattr(node, field_name)
        if isinstance(part, ast.Expr) and not isinstance(node, ast.If):
            setattr(made, field_name, _spilled(cx, part, lets, whole=True))
        elif isinstance(part, list):
            parts = [_spilled(cx, p, lets, whole=True) if isinstance(p, ast.Node) else p for p in part]
            setattr(made, field_name, parts)
    return made


def _typed(node: Any, type_: Any) -> Any:
    node.type = type_
    return node


def _one_sided(node: ast.If) -> bool:
    """Whether exactly one side of an `if` always leaves and the other never does on its own account."""
    return always_leaves(node.then) != (node.otherwise is not None and always_leaves(node.otherwise))


def _if_with_rest(cx: Context, node: ast.If, rest: Write) -> Item:
    """An `if` of which one side always leaves, with what follows it in the other side."""
    then_leaves = always_leaves(node.then)
    otherwise = node.otherwise
    going_on = otherwise if then_leaves else node.then
    ways = exits(cx, going_on) if going_on is not None else _NONE

    def leave() -> Item:
        cx.expr(node.then if then_leaves else otherwise)  # type: ignore[arg-type]  # an expression: it leaves nothing
        return NEVER

    def go_on() -> Item:
        if isinstance(going_on, ast.If) and _one_sided(going_on) and ways:
            return _if_with_rest(cx, going_on, rest)
        if going_on is not None and cx.expr(going_on) is NEVER:
            return NEVER
        left = has_left(cx, ways)
        if left is True:
            return NEVER
        return rest() if left is False else branch(cx, left, lambda: NEVER, rest)

    before = cx.b.loc
    cx.b.loc = cx.loc(node.span)
    cond = cx.value(node.condition)
    item = branch(cx, cond, leave, go_on) if then_leaves else branch(cx, cond, go_on, leave)
    cx.b.loc = before
    return item


def has_left(cx: Context, ways: Iterable[str]) -> Any:
    """Whether code that may leave in these ways has: False, True, or a bool value."""
    left: Any = False
    for way in sorted(ways):
        flag = cx.result.flag if way == "return" else cx.exits[-1].stop if way == "break" else cx.exits[-1].skip
        state = cx.env[flag]
        if state is True:
            return True
        if state is not False:
            left = state if left is False else cx.b.scalar("or", left, state)
    return left


# Branches ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Side:
    region: Region
    builder: Emitter
    value: Item
    env: dict[Any, Item]
    facts: list[Poly]


def branch(cx: Context, cond: Value, then: Write, otherwise: Write) -> Item:
    """`if`: variables that a side changes are merged, and so are the values of the sides."""
    op = cond.op
    if op is not None and op.name == "const":
        return (then if op.attrs["value"] else otherwise)()
    before = cx.env
    sides = [_side(cx, before, cond, holds, write) for holds, write in ((True, then), (False, otherwise))]
    cx.env = before
    merge = _Merge(cx, sides)
    changed = [k for k in before if any(side.env[k] is not before[k] for side in sides)]
    slots = [merge.item(*(side.env[k] for side in sides)) for k in changed]
    value = merge.item(*(side.value for side in sides))
    results = merge.finish(cond)
    for k, slot in zip(changed, slots, strict=True):
        before[k] = _filled(slot, results)
        stem = getattr(k, "name", None) or getattr(k, "what", "")
        for leaf in flatten(before[k]):
            if isinstance(leaf, Value) and not leaf.name:
                leaf.name = stem
    return _filled(value, results)


def _side(cx: Context, before: dict[Any, Item], cond: Value, holds: bool, write: Write) -> _Side:
    cx.env = dict(before)
    with cx.region([], []) as region:
        known = len(cx.ints.facts)
        cx.ints.assume_condition(cond, holds)
        value = cx.forced(write())
        builder = cx.b
        facts = cx.ints.facts[known:]
    return _Side(region, builder, value, cx.env, facts)


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of a merged value among the results."""

    index: int


def _filled(item: Item, results: list[Value]) -> Item:
    if isinstance(item, tuple):
        return tuple(_filled(part, results) for part in item)
    return results[item.index] if isinstance(item, _Slot) else item


class _Merge:
    """Collects what the two sides yield."""

    def __init__(self, cx: Context, sides: list[_Side]):
        self.cx = cx
        self.sides = sides
        self.yields: list[list[Value]] = [[], []]
        self.shapes: list[list[Value] | None] = []

    def item(self, a: Item, b: Item) -> Item:
        """What stands for the merged item until the results exist."""
        if a is b:
            return a
        if isinstance(a, Never):
            return NEVER if isinstance(b, Never) else rebuilt(b, [self.half(1, leaf) for leaf in flatten(b)])
        if isinstance(b, Never):
            return rebuilt(a, [self.half(0, leaf) for leaf in flatten(a)])
        if isinstance(a, tuple):
            return tuple(self.item(x, y) for x, y in zip(a, b, strict=True))
        return self.pair(self.value(0, a), self.value(1, b))

    def value(self, side: int, item: Any) -> Value:
        """A value or flag of one side as a value there."""
        return self.sides[side].builder.const(item, BOOL) if isinstance(item, bool) else item

    def half(self, side: int, item: Any) -> Item:
        """A value of the side that goes on; the other gives nothing."""
        if not isinstance(item, Value):
            return item
        other = self.sides[1 - side].builder.undef(item.type)
        return self.pair(item, other) if side == 0 else self.pair(other, item)

    def pair(self, a: Value, b: Value) -> Item:
        for k, known in enumerate(zip(*self.yields, strict=True)):
            if known[0] is a and known[1] is b:
                return _Slot(k)
        a, b = self.same_kind(a, b)
        self.yields[0].append(a)
        self.yields[1].append(b)
        self.shapes.append(self.shape(a, b))
        return _Slot(len(self.shapes) - 1)

    def same_kind(self, a: Value, b: Value) -> tuple[Value, Value]:
        """An i64 beside a float is a float."""
        kinds = self.cx.kind(a), self.cx.kind(b)
        if kinds[0] == kinds[1] or isinstance(a.type, Array):
            return a, b
        if kinds[0].is_float:
            return a, self.sides[1].builder.cast(b, kinds[0])
        return self.sides[0].builder.cast(a, kinds[1]), b

    def shape(self, a: Value, b: Value) -> list[Value] | None:
        """The sizes of the merged array, where both sides agree on them."""
        if not isinstance(a.type, Array):
            return None
        cx = self.cx
        known = [cx.shapes.get(v) for v in (a, b) if not _is_undef(v)]
        if not known or any(sizes is None for sizes in known):
            return None
        sizes, others = known[0], known[-1]
        assert sizes is not None and others is not None
        if not all(cx.ints.equal(x, y) for x, y in zip(sizes, others, strict=True)):
            return None
        return all_found(cx.try_hoisted(size) for size in sizes)

    def finish(self, cond: Value) -> list[Value]:
        """Write the operation."""
        for side, values in zip(self.sides, self.yields, strict=True):
            side.builder.ret(values)
        if not self.yields[0] and all(len(side.region.ops) == 1 for side in self.sides):
            return []
        op = self.cx.b.if_op(cond, [side.region for side in self.sides])
        for result, shape in zip(op.results, self.shapes, strict=True):
            if shape is not None:
                self.cx.shapes[result] = shape
        self.note_integers(op.results)
        return op.results

    def note_integers(self, results: list[Value]) -> None:
        """Integers that the branch chose may be known to lie in a range on both sides."""
        ints = self.cx.ints
        for result, *values in zip(results, *self.yields, strict=True):
            if result.type == I64:
                sides = zip(values, self.sides, strict=True)
                ints.choose(result, [(v, side.facts) for v, side in sides if not _is_undef(v)])


def _is_undef(value: Value) -> bool:
    return value.op is not None and value.op.name == "undef"


def static_free(type_: Type) -> Type:
    """The type with no size known."""
    return Array(type_.element, (None,) * type_.rank) if isinstance(type_, Array) and dims_of(type_) else type_


# Note: exits
# A flag is a Python bool while every path to this point agrees on it, and becomes a graph value only where paths
# that disagree merge. `return` at the end of a function body is `return` anywhere else: the body's value counts as
# returned, so a function whose last `if` returns on both sides has its flag true on both and needs no guard.
