"""unroll: loops over few literal sizes are written out, and small arrays of literal sizes become scalars.

One walk writes the function again. An array of known sizes and at most MOST_ELEMENTS elements has, besides its own
value, a list of its elements: a read at a constant index is that element, and nothing reads the array. Small arrays
that a loop carries, or that come out of a branch, are carried and given as scalars where the loop uses them only
at indices that unrolling makes constant. Arrays that nobody uses whole are then dead code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from aotdiff.ir.graph import Func, Loc, Module, Op, Region, Value
from aotdiff.ir.interpreter import evaluate
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import BOOL, F32, F64, I64, Array, Scalar, Type, dims_of
from aotdiff.passes.facts import constant, is_total
from aotdiff.passes.registry import register_local

MOST_ITERATIONS = 16
MOST_SEQUENTIAL = 8
MOST_ELEMENTS = 36
LARGEST_LOOP = 2000  # operations that one loop may become
LARGEST_FUNCTION = 8000

_ONE_OP = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}


@register_local("unroll", "Write out loops over few literal sizes and keep small arrays in scalars.")
def unroll(module: Module, func: Func) -> None:
    if any(_is_small(r.type) for op in func.body.walk() for r in op.results) or _has_literal_loop(func):
        _Unroller(func).run()


def _has_literal_loop(func: Func) -> bool:
    return any(op.name in ("par", "for") and constant(op.operands[0]) is not None for op in func.body.walk())


def _count(type_: Array) -> int:
    """Elements of an array whose sizes are known."""
    assert None not in type_.dims
    return math.prod(d for d in type_.dims if d is not None)


def _is_small(type_: Type) -> bool:
    if not isinstance(type_, Array) or not isinstance(type_.element, Scalar) or None in type_.dims:
        return False
    return 0 < _count(type_) <= MOST_ELEMENTS


def _flat(index: Sequence[int], dims: Sequence[int | None]) -> int | None:
    """Row-major place of an index; None if it is out of range (then a check has failed before) or a size is unknown."""
    at = 0
    for i, n in zip(index, dims, strict=True):
        if n is None or not 0 <= i < n:
            return None
        at = at * n + i
    return at


class _Unroller:
    def __init__(self, func: Func):
        self.func = func
        self.env: dict[Value, Value] = {}
        self.elements: dict[Value, list[Value]] = {}
        self.constants: dict[tuple, Op] = {}
        self.out: list[Op] = []
        self.loc: Loc | None = None
        self.emitted = 0
        self.weights: dict[Region, int] = {}
        self.uses: dict[Value, list[tuple[Op, int]]] = {}
        self.places: dict[Region, Op] = {}
        self.ends: dict[Op, Op] = {}  # for a `yield`, the operation whose region it ends

    def run(self) -> None:
        for op in self.func.body.walk():
            for region in op.regions:
                self.places[region] = op
                self.ends[region.terminator] = op
            for k, v in enumerate(op.operands):
                self.uses.setdefault(v, []).append((op, k))
        ops = self.block(self.func.body)
        self.func.body.ops = [*self.constants.values(), *ops]

    # Writing -------------------------------------------------------------------------------------------------

    def block(self, region: Region) -> list[Op]:
        """The operations of a region written again, `yield` included."""
        outer, self.out = self.out, []
        for op in region.ops:
            self.op(op)
        written, self.out = self.out, outer
        return written

    def get(self, value: Value) -> Value:
        return self.env.get(value, value)

    def append(self, op: Op) -> Op:
        self.out.append(op)
        self.emitted += 1
        return op

    def emit(self, name: str, operands: list[Value], type_: Type, attrs: dict[str, Any] | None = None) -> Value:
        return self.append(Op(name, operands, [type_], attrs, None, self.loc)).result

    def const(self, value: Any, type_: Type) -> Value:
        key = (type_, repr(value))
        if key not in self.constants:
            self.constants[key] = Op("const", [], [type_], {"value": value, "type": type_})
        return self.constants[key].result

    def i64(self, value: int) -> Value:
        return self.const(value, I64)

    def op(self, op: Op) -> None:
        self.loc = op.loc
        operands = [self.get(v) for v in op.operands]
        if op.name == "const":
            self.env[op.result] = self.const(op.attrs["value"], op.attrs["type"])
            return
        if op.name in SCALAR_OPS:
            if is_total(op) and all(v.op is not None and v.op.name == "const" for v in operands):
                self.env[op.result] = self.const(evaluate(op, [constant(v) for v in operands]), op.result.type)
                return
            self.copy(op, operands)
            return
        rule = _RULES.get(op.name)
        if rule is None or not rule(self, op, operands):
            self.copy(op, operands)

    def copy(self, op: Op, operands: list[Value]) -> Op:
        """The operation as it is, its regions written again."""
        regions = []
        for region in op.regions:
            new = Region()
            for arg in region.args:
                self.env[arg] = new.add_arg(arg.type, arg.name)
            new.ops = self.block(region)
            regions.append(new)
        new_op = Op(op.name, operands, [r.type for r in op.results], dict(op.attrs), regions, op.loc)
        for old, result in zip(op.results, new_op.results, strict=True):
            result.name = old.name
            self.env[old] = result
        self.append(new_op)
        return new_op

    # Small arrays --------------------------------------------------------------------------------------------

    def elements_of(self, array: Value) -> list[Value]:
        """The elements of a small array, read here if they were not known."""
        found = self.elements.get(array)
        if found is None:
            assert isinstance(array.type, Array)
            found = [
                self.emit("read", [array, *map(self.i64, index)], array.type.element)
                for index in itertools.product(*(range(d or 0) for d in array.type.dims))
            ]
        return found

    def array(self, elements: list[Value], type_: Array) -> Value:
        """A small array with these elements."""
        zero = self.const(_zero(type_.element), type_.element)
        region = Region([Value(I64, "i") for _ in type_.dims], [Op("yield", [zero], [])])
        sizes = [self.i64(d or 0) for d in type_.dims]
        attrs = {"rank": type_.rank, "kinds": ("map",)}
        value = self.append(Op("par", sizes, [type_], attrs, [region], self.loc)).result
        for index, element in zip(itertools.product(*(range(d or 0) for d in type_.dims)), elements, strict=True):
            if element is not zero:
                value = self.emit("update", [value, element, *map(self.i64, index)], type_)
        self.elements[value] = elements
        return value

    def weight(self, region: Region) -> int:
        """How many operations the region is, loops over literal sizes written out."""
        found = self.weights.get(region)
        if found is None:
            found = 0
            for op in region.ops:
                inside = sum(self.weight(inner) for inner in op.regions)
                found += 1 + inside * (self.trips(op, op.operands) or 1)
            self.weights[region] = found
        return found

    def trips(self, op: Op, operands: list[Value]) -> int | None:
        """Iterations of a loop over few literal sizes."""
        if op.name not in ("par", "for"):
            return None
        sizes = [constant(self.get(n)) for n in operands[: op.attrs["rank"] if op.name == "par" else 1]]
        if any(n is None or n <= 0 for n in sizes):
            return None
        count = math.prod(sizes)
        return count if count <= (MOST_ITERATIONS if op.name == "par" else MOST_SEQUENTIAL) else None

    def unrolls(self, op: Op, operands: list[Value]) -> bool:
        count = self.trips(op, operands)
        if count is None or count * self.weight(op.regions[0]) > LARGEST_LOOP:
            return False
        return self.emitted + count * self.weight(op.regions[0]) <= LARGEST_FUNCTION

    # Which indices become constants ----------------------------------------------------------------------------

    def settles(self, index: Value) -> bool:
        """Whether an index is constant once the loops around it are written out."""
        if constant(self.get(index)) is not None:
            return True
        op = index.op
        if op is None:
            loop = self.places.get(index.owner) if isinstance(index.owner, Region) else None
            if loop is None or loop.name not in ("par", "for") or (loop.name == "for" and index.index > 0):
                return False
            return self.unrolls(loop, loop.operands)
        return op.name in SCALAR_OPS and index.type == I64 and all(self.settles(v) for v in op.operands)

    def carries_scalars(self, loop: Op, carry: int) -> bool:
        """Whether a carried small array is used in the loop only at indices that become constant."""
        seen: set[Value] = set()
        pending = [region.args[1 + carry] for region in loop.regions]
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            for op, k in self.uses.get(value, ()):
                following = self.follow(op, k, loop, carry)
                if following is None:
                    return False
                pending += following
        return True

    def follow(self, op: Op, k: int, loop: Op, carry: int) -> list[Value] | None:
        """Arrays that a use of an array makes of it; None for a use of the array as a whole."""
        if op.name == "dim" or (op.name == "read" and all(self.settles(v) for v in op.operands[1:])):
            return []
        if op.name in ("update", "insert") and k < 2 and all(self.settles(v) for v in op.operands[2:]):
            return [op.result]
        if op.name in ("shaped", "reshape"):
            return [op.result]
        if op.name == "yield":
            return self.follow_yield(op, k, loop, carry)
        if op.name in ("for", "while") and not self.unrolls(op, op.operands):
            inner = k - (op.name == "for")
            if inner < op.attrs["carries"] and _is_small(op.results[inner].type):
                return [op.results[inner], *(region.args[1 + inner] for region in op.regions)]
        return None

    def follow_yield(self, op: Op, k: int, loop: Op, carry: int) -> list[Value] | None:
        owner = self.ends.get(op)
        if owner is loop and op is loop.regions[-1].terminator:
            return [] if k < loop.attrs["carries"] else None
        if owner is not None and owner.name == "if":
            return [owner.results[k]]
        if owner is not None and owner.name in ("for", "while") and k < owner.attrs["carries"]:
            return [owner.results[k]]
        return None


def _zero(element: Any) -> Any:
    return {F64: 0.0, F32: 0.0, I64: 0, BOOL: False}[element]


# Rules: write the operation in another way and give True, or give False to have it copied --------------------------


def _dim(u: _Unroller, op: Op, operands: list[Value]) -> bool:
    known = dims_of(operands[0].type)[op.attrs["axis"]]
    if known is None:
        return False
    u.env[op.result] = u.i64(known)
    return True


def _read(u: _Unroller, op: Op, operands: list[Value]) -> bool:
    elements, index = u.elements.get(operands[0]), [constant(v) for v in operands[1:]]
    if elements is None or None in index:
        return False
    at = _flat(index, dims_of(operands[0].type))
    if at is None:
        return False
    u.env[op.result] = elements[at]
    return True


def _update(u: _Unroller, op: Op, operands: list[Value]) -> bool:
    array, index = operands[0], [constant(v) for v in operands[2:]]
    at = _flat(index, dims_of(array.type)) if _is_small(array.type) and None not in index else None
    if at is None:
        return False
    elements = list(u.elements_of(array))
    elements[at] = operands[1]
    u.elements[u.copy(op, operands).result] = elements
    return True


def _insert(u: _Unroller, op: Op, operands: list[Value]) -> bool:
    array, block, offsets = operands[0], operands[1], [constant(v) for v in operands[2:]]
    if not (_is_small(array.type) and _is_small(block.type)) or None in offsets:
        return False
    elements, dims = list(u.elements_of(array)), dims_of(array.type)
    parts = zip(itertools.product(*(range(d or 0) for d in dims_of(block.type))), u.elements_of(block), strict=True)
    for index, part in parts:
        at = _flat([i + o for i, o in zip(index, offsets)], dims)
        if at is None:
            return False
        elements[at] = part
    assert isinstance(array.type, Array)
    u.env[op.result] = u.array(elements, array.type)
    return True


def _renamed(u: _Unroller, op: Op, operands: list[Value]) -> bool:
    new = u.copy(op, operands).result
    if operands[0] in u.elements and _is_small(new.type):
        u.elements[new] = u.elements[operands[0]]
    return True


def _par(u: _Unroller, op: Op, operands: list[Value]) -> bool:
    if not u.unrolls(op, operands):
        return False
    region = op.regions[0]
    if not all(isinstance(v.type, Scalar) or _is_small(v.type) for v in region.yielded):
        return False
    extents = [constant(n) for n in operands[: op.attrs["rank"]]]
    rows = []
    for index in itertools.product(*map(range, extents)):
        u.env.update(zip(region.args, map(u.i64, index), strict=True))
        for each in region.ops[:-1]:
            u.op(each)
        rows.append([u.get(v) for v in region.yielded])
    u.loc = op.loc
    for r, (kind, result) in enumerate(zip(op.attrs["kinds"], op.results)):
        u.env[result] = _combine(u, kind, result, [row[r] for row in rows], tuple(extents))
    return True


def _combine(u: _Unroller, kind: str, result: Value, values: list[Value], extents: tuple[int, ...]) -> Value:
    """One result of a `par` from the values of all its iterations."""
    if kind == "map":
        inner = values[0].type
        if isinstance(inner, Array):
            values = [element for v in values for element in u.elements_of(v)]
        assert isinstance(result.type, Array)
        return u.array(values, Array(result.type.element, extents + dims_of(inner)))
    if kind in ("argmax", "argmin"):
        return _arg_extreme(u, kind, values)
    total = values[0]
    for v in values[1:]:
        total = u.emit(_ONE_OP[kind], [total, v], result.type)
    return total


def _arg_extreme(u: _Unroller, kind: str, values: list[Value]) -> Value:
    """Index of the first winner, NaN first of all."""
    best, at = values[0], u.i64(0)
    for i, v in enumerate(values[1:], 1):
        wins = u.emit("gt" if kind == "argmax" else "lt", [v, best], BOOL)
        if v.type != I64:
            is_nan = u.emit("ne", [v, v], BOOL)
            fine = u.emit("eq", [best, best], BOOL)
            wins = u.emit("or", [wins, u.emit("and", [is_nan, fine], BOOL)], BOOL)
        best = u.emit("select", [wins, v, best], v.type)
        at = u.emit("select", [wins, u.i64(i), at], I64)
    return at


def _for(u: _Unroller, op: Op, operands: list[Value]) -> bool:
    if op.attrs["kinds"] or not u.unrolls(op, operands):
        return _loop(u, op, operands)
    region, carries = op.regions[0], op.attrs["carries"]
    carried = operands[1 : 1 + carries]
    for k in range(constant(operands[0])):
        u.env.update(zip(region.args, [u.i64(k), *carried], strict=True))
        for each in region.ops[:-1]:
            u.op(each)
        carried = [u.get(v) for v in region.yielded]
    u.env.update(zip(op.results, carried, strict=True))
    return True


def _loop(u: _Unroller, op: Op, operands: list[Value]) -> bool:
    """Carry small arrays as scalars."""
    carries, first = op.attrs["carries"], 1 if op.name == "for" else 0
    small = [j for j in range(carries) if _is_small(op.results[j].type) and u.carries_scalars(op, j)]
    if not small:
        return False
    types = [op.results[j].type for j in range(carries)]
    inits = _flatten(u, operands[first : first + carries], small)
    regions = []
    for place, region in enumerate(op.regions):
        new = Region()
        u.env[region.args[0]] = new.add_arg(I64, region.args[0].name)
        outer, u.out = u.out, []
        for j, arg in enumerate(region.args[1:]):
            if j in small:
                type_ = types[j]
                assert isinstance(type_, Array)
                count = _count(type_)
                u.env[arg] = u.array([new.add_arg(type_.element, arg.name) for _ in range(count)], type_)
            else:
                u.env[arg] = new.add_arg(arg.type, arg.name)
        for each in region.ops[:-1]:
            u.op(each)
        yielded = [u.get(v) for v in region.yielded]
        if place == len(op.regions) - 1:
            yielded = _flatten(u, yielded[:carries], small) + yielded[carries:]
        u.append(Op("yield", yielded, []))
        new.ops, u.out = u.out, outer
        regions.append(new)
    result_types = _result_types(op, small)
    attrs = {**op.attrs, "carries": len(inits)}
    rest = operands[first + carries :]
    new_op = u.append(Op(op.name, [*operands[:first], *inits, *rest], result_types, attrs, regions, op.loc))
    _restore(u, op, new_op.results, small)
    return True


def _flatten(u: _Unroller, values: list[Value], small: list[int]) -> list[Value]:
    return [e for j, v in enumerate(values) for e in (u.elements_of(v) if j in small else [v])]


def _result_types(op: Op, small: list[int]) -> list[Type]:
    """Types of the results when small arrays are several scalars; others keep theirs, which all sides share."""
    types: list[Type] = []
    for j, old in enumerate(op.results):
        if j in small:
            assert isinstance(old.type, Array)
            types += [old.type.element] * _count(old.type)
        else:
            types.append(old.type)
    return types


def _restore(u: _Unroller, op: Op, results: list[Value], small: list[int]) -> None:
    """The results of the old operation from those of the new one, where small arrays are several scalars."""
    at = 0
    for j, old in enumerate(op.results):
        if j not in small:
            results[at].name = old.name
            u.env[old] = results[at]
            at += 1
            continue
        assert isinstance(old.type, Array)
        count = _count(old.type)
        u.env[old] = u.array(results[at : at + count], old.type)
        at += count


def _if(u: _Unroller, op: Op, operands: list[Value]) -> bool:
    """A decided branch is its side; small arrays come out as scalars."""
    if constant(operands[0]) is not None:
        region = op.regions[0] if constant(operands[0]) else op.regions[1]
        for each in region.ops[:-1]:
            u.op(each)
        u.env.update((r, u.get(v)) for r, v in zip(op.results, region.yielded))
        return True
    small = [j for j, r in enumerate(op.results) if _is_small(r.type)]
    if not small:
        return False
    regions = []
    for region in op.regions:
        outer, u.out = u.out, []
        for each in region.ops[:-1]:
            u.op(each)
        u.append(Op("yield", _flatten(u, [u.get(v) for v in region.yielded], small), []))
        regions.append(Region([], u.out))
        u.out = outer
    new_op = u.append(Op("if", operands, _result_types(op, small), {}, regions, op.loc))
    _restore(u, op, new_op.results, small)
    return True


_RULES = {
    "dim": _dim,
    "read": _read,
    "update": _update,
    "insert": _insert,
    "shaped": _renamed,
    "reshape": _renamed,
    "par": _par,
    "for": _for,
    "while": _loop,
    "if": _if,
}
