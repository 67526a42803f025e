"""Makes operations: one method per shape of operation, types inferred from the operands.

A `Builder` appends to one region. Regions of structured operations are written by callbacks that get a
builder for the region and its arguments and return what the region yields:

    total, = b.par([n], ["sum"], lambda b, i: [b.read(x, i)])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotdiff.ir.graph import Func, Loc, Op, Region, Value
from aotdiff.ir.ops import map_result, reduction_result, scalar_result
from aotdiff.ir.types import (
    BOOL,
    F64,
    I64,
    Acc,
    Array,
    Record,
    Scalar,
    Type,
    array_type,
    dims_of,
    element_of,
    join_dims,
)

Body = Callable[..., Sequence[Value]]


def static_size(value: Value) -> int | None:
    """The size a constant i64 value stands for, else None."""
    op = value.op
    return op.attrs["value"] if op is not None and op.name == "const" else None


class Builder:
    """Appends operations to `region`; `loc` is given to each operation made."""

    __slots__ = ("region", "loc", "_consts")

    def __init__(self, region: Region, loc: Loc | None = None):
        self.region = region
        self.loc = loc
        self._consts: dict[tuple, Value] = {}

    # Any operation --------------------------------------------------------------------------------------

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        types: Sequence[Type],
        attrs: dict | None = None,
        regions: list[Region] | None = None,
    ) -> Op:
        """Append an operation with the given result types."""
        op = Op(name, list(operands), list(types), attrs, regions, self.loc)
        self.region.ops.append(op)
        return op

    def scalar(self, name: str, *operands: Value, **attrs: object) -> Value:
        """Append a scalar operation of `ir.ops.SCALAR_OPS`."""
        return self.emit(name, operands, [scalar_result(name, [v.type for v in operands], attrs)], attrs).result

    # Constants -------------------------------------------------------------------------------------------

    def const(self, value: int | float | bool, type_: Type = F64) -> Value:
        """A scalar constant; one operation per constant and region."""
        assert isinstance(type_, Scalar)
        value = float(value) if type_.is_float else bool(value) if type_ == BOOL else int(value)
        key = (type_, repr(value))
        if key not in self._consts:
            self._consts[key] = self.scalar("const", value=value, type=type_)
        return self._consts[key]

    def i64(self, value: int) -> Value:
        return self.const(value, I64)

    def true(self) -> Value:
        return self.const(True, BOOL)

    def false(self) -> Value:
        return self.const(False, BOOL)

    def undef(self, type_: Type) -> Value:
        return self.emit("undef", [], [type_], {"type": type_}).result

    # Scalars ---------------------------------------------------------------------------------------------

    def add(self, x: Value, y: Value) -> Value:
        return self.scalar("add", x, y)

    def sub(self, x: Value, y: Value) -> Value:
        return self.scalar("sub", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self.scalar("mul", x, y)

    def div(self, x: Value, y: Value) -> Value:
        return self.scalar("div", x, y)

    def neg(self, x: Value) -> Value:
        return self.scalar("neg", x)

    def select(self, c: Value, x: Value, y: Value) -> Value:
        return self.scalar("select", c, x, y)

    def cast(self, x: Value, to: Type) -> Value:
        return x if x.type == to else self.scalar("cast", x, to=to)

    # Arrays ----------------------------------------------------------------------------------------------

    def dim(self, array: Value, axis: int) -> Value:
        """The size along `axis`; a constant where the type knows it."""
        known = dims_of(array.type)[axis]
        return self.i64(known) if known is not None else self.emit("dim", [array], [I64], {"axis": axis}).result

    def dims(self, array: Value) -> list[Value]:
        return [self.dim(array, k) for k in range(len(dims_of(array.type)))]

    def read(self, array: Value, *indices: Value) -> Value:
        assert isinstance(array.type, Array) and len(indices) == array.type.rank
        return self.emit("read", [array, *indices], [array.type.element]).result

    def update(self, array: Value, value: Value, *indices: Value) -> Value:
        assert isinstance(array.type, Array) and len(indices) == array.type.rank
        return self.emit("update", [array, value, *indices], [array.type]).result

    def insert(self, array: Value, block: Value, *offsets: Value) -> Value:
        assert isinstance(array.type, Array) and len(offsets) == array.type.rank
        return self.emit("insert", [array, block, *offsets], [array.type]).result

    def reshape(self, array: Value, sizes: Sequence[Value]) -> Value:
        return self._with_sizes("reshape", array, sizes)

    def shaped(self, array: Value, sizes: Sequence[Value]) -> Value:
        return self._with_sizes("shaped", array, sizes)

    def _with_sizes(self, name: str, array: Value, sizes: Sequence[Value]) -> Value:
        dims = tuple(static_size(s) for s in sizes)
        return self.emit(name, [array, *sizes], [array_type(element_of(array.type), dims)]).result

    def argsort(self, array: Value) -> Value:
        return self.emit("argsort", [array], [array_type(I64, dims_of(array.type))]).result

    def fill(self, value: Value, sizes: Sequence[Value]) -> Value:
        """An array of one repeated scalar (a `par`); the scalar itself for no sizes."""
        return self.par(sizes, ["map"], lambda b, *_: [value])[0] if sizes else value

    # Effects and calls -------------------------------------------------------------------------------------

    def accum(self, handle: Value, value: Value, *indices: Value) -> None:
        assert isinstance(handle.type, Acc) and len(indices) == handle.type.rank
        self.emit("accum", [handle, value, *indices], [])

    def check(self, cond: Value, kind: str, message: str, *values: Value) -> None:
        """Stop with error `kind` unless `cond`; `{0}` in the message is the first value."""
        self.emit("check", [cond, *values], [], {"kind": kind, "message": message})

    def call(self, func: Func, args: Sequence[Value]) -> list[Value]:
        return self.emit("call", args, func.result_types, {"callee": func.name}).results

    def ret(self, values: Sequence[Value]) -> None:
        """End the region."""
        self.emit("yield", values, [])

    # Control flow ------------------------------------------------------------------------------------------

    def region_of(self, types: Sequence[Type], names: Sequence[str], body: Body) -> Region:
        """A region with arguments of these types, written by `body(builder, *args)`."""
        region = Region([Value(t, n) for t, n in zip(types, names, strict=True)])
        inner = Builder(region, self.loc)
        inner.ret(list(body(inner, *region.args)))
        return region

    def par(
        self,
        extents: Sequence[Value],
        kinds: Sequence[str],
        body: Body,
        inner: Sequence[Value] = (),
        names: Sequence[str] | None = None,
    ) -> list[Value]:
        """Independent iterations; `body(b, *indices)` returns one value per kind, `inner` sizes array-valued maps."""
        rank = len(extents)
        region = self.region_of([I64] * rank, names or _index_names(rank), body)
        return self.par_op(extents, kinds, region, inner).results

    def par_op(self, extents: Sequence[Value], kinds: Sequence[str], region: Region, inner: Sequence[Value] = ()) -> Op:
        """A `par` around a region that is already written."""
        lead = tuple(static_size(e) for e in extents)
        types = [
            map_result(v.type, lead) if kind == "map" else reduction_result(kind, v.type)
            for kind, v in zip(kinds, region.yielded, strict=True)
        ]
        attrs = {"rank": len(extents), "kinds": tuple(kinds)}
        return self.emit("par", [*extents, *inner], types, attrs, [region])

    def for_(
        self,
        count: Value,
        inits: Sequence[Value],
        body: Body,
        maps: Sequence[str] = (),
        inner: Sequence[Value] = (),
        names: Sequence[str] | None = None,
    ) -> list[Value]:
        """Counted loop; `body(b, k, *carried)` returns the next carried values, then one value per map."""
        types = _carry_types(inits)
        region = self.region_of([I64, *types], names or ["k", *(v.name for v in inits)], body)
        return self.for_op(count, inits, region, maps, inner).results

    def for_op(
        self,
        count: Value,
        inits: Sequence[Value],
        region: Region,
        maps: Sequence[str] = (),
        inner: Sequence[Value] = (),
    ) -> Op:
        carries = len(inits)
        types = [arg.type for arg in region.args[1:]] + _loop_maps(maps, region.yielded[carries:], static_size(count))
        attrs = {"carries": carries, "kinds": tuple(maps)}
        return self.emit("for", [count, *inits, *inner], types, attrs, [region])

    def while_(
        self,
        inits: Sequence[Value],
        cond: Body,
        body: Body,
        maps: Sequence[str] = (),
        inner: Sequence[Value] = (),
        names: Sequence[str] | None = None,
    ) -> list[Value]:
        """Conditional loop: results are the final carried values, the trip count, the maps."""
        types = [I64, *_carry_types(inits)]
        names = names or ["k", *(v.name for v in inits)]
        regions = [self.region_of(types, names, cond), self.region_of(types, names, body)]
        return self.while_op(inits, regions, maps, inner).results

    def while_op(
        self, inits: Sequence[Value], regions: list[Region], maps: Sequence[str] = (), inner: Sequence[Value] = ()
    ) -> Op:
        carries = len(inits)
        types = [arg.type for arg in regions[1].args[1:]] + [I64] + _loop_maps(maps, regions[1].yielded[carries:], None)
        attrs = {"carries": carries, "kinds": tuple(maps)}
        return self.emit("while", [*inits, *inner], types, attrs, regions)

    def if_(self, cond: Value, then: Body, otherwise: Body) -> list[Value]:
        """Branch: `then(b)` and `otherwise(b)` return values of the same types."""
        return self.if_op(cond, [self.region_of([], [], then), self.region_of([], [], otherwise)]).results

    def if_op(self, cond: Value, regions: list[Region]) -> Op:
        types = [_join(a.type, b.type) for a, b in zip(regions[0].yielded, regions[1].yielded, strict=True)]
        return self.emit("if", [cond], types, {}, regions)

    def withacc(self, inits: Sequence[Value], body: Body, names: Sequence[str] | None = None) -> list[Value]:
        """Accumulators: `body(b, *handles)` returns extra results, which come after the accumulated ones."""
        types: list[Type] = []
        for init in inits:
            element = element_of(init.type)
            assert isinstance(element, Scalar)
            types.append(Acc(element, dims_of(init.type)))
        region = self.region_of(types, names or [f"{v.name}_acc" if v.name else "acc" for v in inits], body)
        return self.withacc_op(inits, region).results

    def withacc_op(self, inits: Sequence[Value], region: Region) -> Op:
        return self.emit("withacc", inits, [v.type for v in [*inits, *region.yielded]], {}, [region])


def _index_names(rank: int) -> list[str]:
    return [("i", "j", "k", "l")[r] if r < 4 else f"i{r}" for r in range(rank)]


def _carry_types(inits: Sequence[Value]) -> list[Type]:
    """Types of carried arguments: sizes of arrays are kept (the verifier asks every yield to agree)."""
    return [v.type for v in inits]


def _loop_maps(kinds: Sequence[str], values: Sequence[Value], count: int | None) -> list[Type]:
    types: list[Type] = []
    for kind, value in zip(kinds, values, strict=True):
        if kind == "map":
            types.append(map_result(value.type, (count,)))
        else:
            offsets = None if count is None else count + 1
            types += [Array(element_of(value.type), (None,)), Array(I64, (offsets,))]
    return types


def _join(a: Type, b: Type) -> Type:
    """Type of a merge of two values."""
    if isinstance(a, Array) and isinstance(b, Array):
        return Array(a.element, join_dims(a.dims, b.dims))
    assert a == b or isinstance(a, Record)
    return a


def new_func(
    name: str, params: Sequence[tuple[str, Type]], body: Body, loc: Loc | None = None, attrs: dict | None = None
) -> Func:
    """A function whose body is written by `body(builder, *params)`; result types follow from what it returns."""
    region = Region([Value(t, n) for n, t in params])
    builder = Builder(region, loc)
    results = list(body(builder, *region.args))
    builder.ret(results)
    return Func(name, region, [v.type for v in results], attrs, loc)
