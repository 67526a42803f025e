"""The state of lowering one function body: names, open regions, shapes, checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aotdiff.frontend import ast, types
from aotdiff.frontend.lower_integers import Emitter, Integers
from aotdiff.frontend.lower_values import FUNCTIONS, Delayed, Item, all_found, flatten, like
from aotdiff.frontend.program import STD_FOLDER
from aotdiff.ir.builder import static_size
from aotdiff.ir.graph import Loc, Op, Region, Value
from aotdiff.ir.types import BOOL, F32, F64, I64, Array, Scalar, Type, dims_of, element_of

if TYPE_CHECKING:
    from aotdiff.frontend.lower_module import Lowering

SCALARS = {"f64": F64, "f32": F32, "i64": I64, "bool": BOOL}

LINALG = str(STD_FOLDER / "linalg.grad")

MOST_ELEMENTS = 2**47  # of an array along one dimension

ExpressionRule = Callable[["Context", Any], Item]
StatementRule = Callable[["Context", Any], None]
EXPRESSIONS: dict[type, ExpressionRule] = {}
STATEMENTS: dict[type, StatementRule] = {}


def lowers(kind: type) -> Callable[[Any], Any]:
    """Registers the rule of an expression or statement."""

    def register(rule: Any) -> Any:
        (STATEMENTS if issubclass(kind, ast.Stmt) else EXPRESSIONS)[kind] = rule
        return rule

    return register


class Context:
    """One function being written. `env` maps declarations (`scope.Binding`) and hidden flags to items."""

    __slots__ = ("lowering", "program", "real", "ints", "env", "shapes", "exits", "result", "params", "_locs")

    def __init__(self, lowering: Lowering, program: Any, real: str, body: Region, loc: Loc | None):
        self.lowering = lowering
        self.program = program
        self.real = real
        self.ints = Integers(body, loc)
        self.env: dict[Any, Item] = {}
        self.shapes: dict[Value, list[Value]] = {}
        self.exits: list[Any] = []  # hidden flags of the loops around, innermost last
        self.result: Any = None  # the declared result, for `return`
        self.params: set[Value] = set()
        self._locs: dict[ast.Span, Loc] = {}

    @property
    def b(self) -> Emitter:
        return self.ints.stack[-1]

    # Walking ---------------------------------------------------------------------------------------------

    def expr(self, node: ast.Expr) -> Item:
        """The item of an expression."""
        before = self.b.loc
        self.b.loc = self.loc(node.span)
        item = EXPRESSIONS[type(node)](self, node)
        self.b.loc = before
        return item

    def value(self, node: ast.Expr) -> Value:
        """A scalar or array expression as a value."""
        return self.force(self.expr(node))

    def stmt(self, node: ast.Stmt) -> None:
        before = self.b.loc
        self.b.loc = self.loc(node.span)
        STATEMENTS[type(node)](self, node)
        self.b.loc = before

    def loc(self, span: ast.Span) -> Loc:
        known = self._locs.get(span)
        if known is None:
            known = self._locs[span] = Loc(span.path, span.line, span.column)
        return known

    @contextmanager
    def at(self, span: ast.Span) -> Iterator[None]:
        """What is written meanwhile belongs to this place."""
        builder = self.b
        before, builder.loc = builder.loc, self.loc(span)
        yield
        builder.loc = before

    def scalar_of(self, type_: Any) -> Scalar:
        """The scalar type that the checker gave an expression."""
        found = types.element_of(type_)
        if isinstance(found, types.Variable):
            return F64 if found.floating else I64
        assert isinstance(found, types.Scalar), f"no scalar type: {found!r}"
        return SCALARS[self.real if found.kind == "real" else found.kind]

    def scalar_of_real(self) -> Scalar:
        return SCALARS[self.real]

    def kind_of(self, type_: Type) -> Scalar:
        """The scalar type of a graph type."""
        element = element_of(type_)
        assert isinstance(element, Scalar)
        return element

    def kind_named(self, type_: Any) -> str | None:
        """`f64` or `f32` for the float type of a mention; None for none."""
        if type_ is None:
            return None
        return self.scalar_of(type_).kind

    # Regions ---------------------------------------------------------------------------------------------

    @contextmanager
    def region(self, types_: Sequence[Type], names: Sequence[str]) -> Iterator[Region]:
        with self.ints.region(list(types_), list(names)) as region:
            yield region

    def par(
        self,
        extents: Sequence[Value],
        kinds: Sequence[str],
        body: Callable[..., Sequence[Value]],
        names: Sequence[str] | None = None,
        lengths: Sequence[Value] | None = None,
    ) -> list[Value]:
        """Independent iterations; `body(*indices)` returns one value per kind, arrays among them with known shapes.

        `lengths` are the extents as they are where there is an iteration at all.
        """
        op = self.par_op(extents, kinds, body, names, lengths)
        for kind, result in zip(kinds, op.results, strict=True):
            if kind == "map":
                self.shapes[result] = op.operands[: len(dims_of(result.type))]
        return op.results

    def par_op(
        self,
        extents: Sequence[Value],
        kinds: Sequence[str],
        body: Callable[..., Sequence[Value]],
        names: Sequence[str] | None = None,
        lengths: Sequence[Value] | None = None,
    ) -> Op:
        """The operation; at most one result is an array-valued map. A map in a map is one over both."""
        names = names or [("i", "j", "k", "l")[r] if r < 4 else f"i{r}" for r in range(len(extents))]
        with self.region([I64] * len(extents), names) as region:
            builder = self.b
            for index, length in zip(region.args, lengths or extents, strict=True):
                self.ints.bound_index(index, length)
            yields = list(body(*region.args))
            inner = [size for v in yields for size in (self.shape(v) if dims_of(v.type) else [])]
        inner = [self.hoisted(size) for size in inner]
        if list(kinds) == ["map"] and (nested := _only_map(region, yields[0])) is not None:
            region = Region(region.args + nested.args, region.ops[:-1] + nested.ops)
            return self.b.par_op([*extents, *inner], kinds, region)
        builder.ret(yields)
        return self.b.par_op(extents, kinds, region, inner)

    # Shapes ----------------------------------------------------------------------------------------------

    def shape(self, item: Value | Delayed) -> list[Value]:
        """The sizes of an array; none of a scalar."""
        if isinstance(item, Delayed):
            return item.shape
        known = self.shapes.get(item)
        if known is None:
            known = self.shapes[item] = [self.ints.dim(item, k) for k in range(len(dims_of(item.type)))]
        return known

    def kind(self, item: Value | Delayed) -> Scalar:
        if isinstance(item, Delayed):
            return item.kind
        element = element_of(item.type)
        assert isinstance(element, Scalar)
        return element

    def known_shape(self, value: Value, sizes: Sequence[Value]) -> Value:
        """The array, noted to have these sizes; the graph learns them too."""
        if not sizes or not isinstance(value.type, Array):
            return value
        own = [self.ints.dim(value, k) for k in range(value.type.rank)] if value not in self.shapes else None
        if own is not None and all(a is b for a, b in zip(own, sizes, strict=True)):
            self.shapes[value] = own
            return value
        named = self.b.shaped(value, list(sizes))
        named.name = value.name
        self.shapes[named] = list(sizes)
        return named

    def hoisted(self, size: Value) -> Value:
        """The same integer as a value that is visible here."""
        found = self.try_hoisted(size)
        if found is None:
            raise Unhoistable(size)
        return found

    def try_hoisted(self, value: Value) -> Value | None:
        """As `hoisted`; None where the value depends on what is not visible here."""
        if self.ints.visible(value):
            return value
        op = value.op
        if op is None:
            return None
        if op.name == "const":
            return self.ints.const(op.attrs["value"])
        if op.name == "dim":
            array = op.operands[0]
            known = self.shapes.get(array)
            if known is not None and known[op.attrs["axis"]] is not value:
                return self.try_hoisted(known[op.attrs["axis"]])
            return self.ints.dim(array, op.attrs["axis"]) if self.ints.visible(array) else None
        if op.name not in _HOISTED or (op.name in ("floordiv", "mod") and not static_size(op.operands[1])):
            return None
        operands = all_found(self.try_hoisted(v) for v in op.operands)
        return None if operands is None else self._copied(op, operands)

    def _copied(self, op: Op, operands: list[Value]) -> Value:
        simple = {"add": self.ints.add, "sub": self.ints.sub, "mul": self.ints.mul, "neg": self.ints.neg}
        if op.name in simple:
            return simple[op.name](*operands)
        return self.b.emit(op.name, operands, [op.result.type], dict(op.attrs)).result

    # Arrays ----------------------------------------------------------------------------------------------

    def element(self, item: Value | Delayed, indices: Sequence[Value]) -> Value:
        """One element, unchecked; the scalar itself for a scalar."""
        if isinstance(item, Delayed):
            return item.element(list(indices))
        return self.b.read(item, *indices) if indices else item

    def force(self, item: Item) -> Value:
        """The array written out."""
        if not isinstance(item, Delayed):
            assert isinstance(item, Value), f"no value: {item!r}"
            return item
        return self.par(item.shape, ["map"], lambda *indices: [item.element(list(indices))])[0]

    def forced(self, item: Item) -> Item:
        """The item with all its arrays written out."""
        if isinstance(item, Delayed):
            return self.force(item)
        return tuple(self.forced(part) for part in item) if isinstance(item, tuple) else item

    def kept(self, item: Item) -> Item:
        """The item for several uses: a formula is written out, a view of what never changes is not."""
        if isinstance(item, tuple):
            return tuple(self.kept(part) for part in item)
        if isinstance(item, Delayed) and not (item.bases is not None and all(v in self.params for v in item.bases)):
            return self.force(item)
        return item

    # Checks ----------------------------------------------------------------------------------------------

    def check(self, cond: Value, kind: str, message: str, *values: Value) -> None:
        """An error where `cond` is false, unless that is known to be true.

        Indices in the linear algebra are right by construction; without checks a call of it that nobody needs is
        dropped, and two calls alike are made one.
        """
        if kind == "IndexError" and self.program.main.file.path == LINALG:
            return
        op = cond.op
        if op is None or op.name != "const" or not op.attrs["value"]:
            self.b.check(cond, kind, message, *values)

    def conjunction(self, conds: Sequence[Value]) -> Value:
        total = conds[0] if conds else self.b.true()
        for cond in conds[1:]:
            total = self.b.scalar("and", total, cond)
        return total

    def check_index(self, index: Value, size: Value, axis: int, shown: Value | None = None) -> None:
        """0 <= index < size, or an IndexError here."""
        ints = self.ints
        conds = [] if ints.natural(index) else [self.b.scalar("le", ints.const(0), index)]
        conds += [] if ints.at_least(size, index, 1) else [self.b.scalar("lt", index, size)]
        if conds:
            message = f"index {{0}} is out of range for size {{1}} (axis {axis})"
            self.check(self.conjunction(conds), "IndexError", message, shown or index, size)
            ints.assume_within(index, size)

    def check_equal(self, a: Value, b: Value, message: str) -> None:
        """Two sizes that must agree, or a ValueError here; `{0}` and `{1}` in the message are the sizes."""
        if not self.ints.equal(a, b):
            self.check(self.b.scalar("eq", a, b), "ValueError", message, a, b)
            self.ints.assume_equal(a, b)

    def check_size(self, size: Value, what: str) -> None:
        """A size that must not be negative, or a ValueError here; nor beyond all memory."""
        ints = self.ints
        if ints.natural(size) and ints.is_tame(ints.poly(size)):
            return
        most = ints.const(MOST_ELEMENTS)
        self.check(self.b.scalar("ge", size, ints.const(0)), "ValueError", f"{what}: the size {{0}} is negative", size)
        self.check(self.b.scalar("le", size, most), "MemoryError", f"{what}: the size {{0}} is too large", size)
        ints.assume_within(size, most, inclusive=True)

    # Merging ---------------------------------------------------------------------------------------------

    def same_shape(self, a: Value, b: Value) -> bool:
        return all(self.ints.equal(x, y) for x, y in zip(self.shape(a), self.shape(b), strict=True))

    def conform(self, value: Value, wanted: Type, sizes: Sequence[Value]) -> Value:
        """An array whose sizes are known to be these, with the static sizes of a type."""
        fixed = wanted.dims if isinstance(wanted, Array) else ()
        if dims_of(value.type) != fixed and any(d is not None for d in fixed):
            known = [s if d is None else self.ints.const(d) for d, s in zip(fixed, sizes, strict=True)]
            named = self.b.shaped(value, known)
            self.shapes[named] = list(sizes)
            return named
        return value


class Unhoistable(Exception):
    """A size that depends on what is inside the loop it is needed for."""

    def __init__(self, size: Value):
        super().__init__(size)
        self.size = size


_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not")
_ARITHMETIC = ("add", "sub", "mul", "neg", "maximum", "minimum", "floordiv", "mod", "abs", "sign", "ipow", "cast")
_HOISTED = frozenset([*_ARITHMETIC, *_COMPARED, "select"])  # sizes that broadcast are selected
_LIGHT = {"const", "read", "add", "sub", "mul", "neg", "cast", "select", "minimum", "maximum", "abs", "dim", *_COMPARED}


def _only_map(region: Region, value: Value) -> Region | None:
    """The region of a map of scalars that is all a region does, but for what may as well be done for each element."""
    op = value.op
    if op is None or not region.ops or op is not region.ops[-1] or op.name != "par" or op.attrs["kinds"] != ("map",):
        return None
    if dims_of(op.regions[0].yielded[0].type) or not all(other.name in _LIGHT for other in region.ops[:-1]):
        return None
    return op.regions[0]


def names_of(item: Item, stem: str) -> None:
    """Give values without a name the name of what they are bound to."""
    leaves = flatten(item)
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, Value) and not leaf.name:
            leaf.name = stem if len(leaves) == 1 else f"{stem}_{k}"


def is_function(item: Item) -> bool:
    return isinstance(item, FUNCTIONS)


def rebuilt(item: Item, leaves: Sequence[Any]) -> Item:
    return like(item, iter(leaves))
