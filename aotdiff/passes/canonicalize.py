"""canonicalize: one forward walk that folds constants, applies exact identities and names sizes by their source.

Constants move to the start of the function, each once. Inside a side of `if`, and after a `check`, the condition is
known. Sizes of results are replaced by what they were made from, so that equal sizes are one value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aotdiff.ir.graph import Func, Loc, Module, Op, Region, Value
from aotdiff.ir.interpreter import evaluate
from aotdiff.ir.ops import SCALAR_OPS, scalar_result
from aotdiff.ir.rewrite import resolve, use_counts
from aotdiff.ir.types import BOOL, I64, Acc, Array, Record, Scalar, Type, dims_of, join_dims
from aotdiff.passes.facts import ArgOwners, Size, Sizes, constant, is_nonnegative, is_size, is_total
from aotdiff.passes.registry import register_local
from aotdiff.passes.scalar_rules import RULES


@register_local("canonicalize", "Fold constants and branches, apply exact identities, trace sizes to their source.")
def canonicalize(module: Module, func: Func) -> None:
    Canonicalizer(func).run()


class Canonicalizer:
    """State of one walk: replacements made so far, the operations of the region being rewritten, what is in scope."""

    def __init__(self, func: Func):
        self.func = func
        self.env: dict[Value, Value] = {}
        self.owners = ArgOwners.of(func.body)
        self.sizes = Sizes(self.owners)
        self.constants: dict[tuple, Op] = {}
        self.known: dict[Value, Value] = {}
        self.visible: dict[Value, int] = {}  # in order of definition
        self.uses: dict[Value, int] = {}
        self.out: list[Op] = []
        self.loc: Loc | None = None

    def run(self) -> None:
        self.region(self.func.body)
        self.func.body.ops[:0] = list(self.constants.values())

    def region(self, region: Region, known: Sequence[tuple[Value, bool]] = ()) -> None:
        """Rewrite a region; `known` are conditions decided in it."""
        outer_out, outer_known = self.out, self.known
        self.out = []
        self.known = dict(outer_known) if known or outer_known else {}
        for value, truth in known:
            self.learn(value, truth)
        start = len(self.visible)
        for arg in region.args:
            self.visible[arg] = len(self.visible)
        for op in region.ops:
            self.op(op)
        region.ops = self.out
        while len(self.visible) > start:
            self.visible.popitem()
        self.out, self.known = outer_out, outer_known

    def learn(self, value: Value, truth: bool) -> None:
        """`value` is known from here to the end of the region."""
        if constant(value) is not None:
            return
        self.known[value] = self.const(truth, BOOL)
        op = value.op
        if op is not None and op.name == ("eq" if truth else "ne") and op.operands[0].type == I64:
            self.learn_equal(*(resolve(v, self.known) for v in op.operands))
        if op is not None and op.name == "not":
            self.learn(op.operands[0], not truth)
        if op is not None and op.name == ("and" if truth else "or"):
            for v in op.operands:
                self.learn(v, truth)

    def learn_equal(self, x: Value, y: Value) -> None:
        """From here on the value defined later is the one defined earlier, or a constant."""
        if x is y or (constant(x) is not None and constant(y) is not None):
            return
        if constant(x) is not None or (constant(y) is None and self.visible[x] < self.visible[y]):
            self.known[y] = x
        else:
            self.known[x] = y

    def op(self, op: Op) -> None:
        env, known = self.env, self.known
        if env:
            op.operands = [resolve(v, env) if v in env else v for v in op.operands]
        if known and op.name != "check":
            op.operands = [resolve(v, known) if v in known else v for v in op.operands]
        self.loc = op.loc
        replacement = self.simplify(op)
        if replacement is None:
            self.append(op)
            return
        for old, new in zip(op.results, replacement, strict=True):
            if old is new:
                continue
            env[old] = new
            if old.name and not new.name and new.op is not None and new.op.name != "const":
                new.name = old.name

    def append(self, op: Op) -> None:
        self.out.append(op)
        for result in op.results:
            self.visible[result] = len(self.visible)

    def simplify(self, op: Op) -> list[Value] | None:
        """Values that replace the results; [] drops an operation without results; None keeps it."""
        if op.name == "const":
            return [self.const(op.attrs["value"], op.attrs["type"])]
        if op.name in SCALAR_OPS:
            return self.scalar(op)
        rule = _STRUCTURED.get(op.name)
        if rule is not None:
            return rule(self, op)
        for region in op.regions:
            self.region(region)
        return None

    def scalar(self, op: Op) -> list[Value] | None:
        operands = op.operands
        if all(v.op is not None and v.op.name == "const" for v in operands) and is_total(op):
            return [self.const(evaluate(op, [constant(v) for v in operands]), op.results[0].type)]
        rule = RULES.get(op.name)
        found = rule(self, op) if rule else None
        return None if found is None else [found]

    # Making operations ---------------------------------------------------------------------------------------

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """A scalar operation, simplified, appended where the walk is."""
        op = Op(name, list(operands), [scalar_result(name, [v.type for v in operands], attrs)], attrs, None, self.loc)
        found = self.scalar(op)
        if found is not None:
            return found[0]
        self.append(op)
        return op.result

    def const(self, value: Any, type_: Type) -> Value:
        assert isinstance(type_, Scalar)
        if type_ == I64:
            value = ((value + 2**63) & (2**64 - 1)) - 2**63
        key = (type_, repr(value))
        op = self.constants.get(key)
        if op is None:
            op = self.constants[key] = Op("const", [], [type_], {"value": value, "type": type_})
        return op.result

    def used_once(self, value: Value) -> bool:
        """Whether a value had one use before the walk."""
        if not self.uses:
            self.uses = use_counts(self.func.body)
        return self.uses.get(value, 0) == 1

    def i64(self, value: int) -> Value:
        return self.const(value, I64)

    def nonnegative(self, value: Value) -> bool:
        return is_nonnegative(value, self.owners)

    def size(self, array: Value, axis: int) -> Size:
        """A size whose value may be used here: values of regions already left are not."""
        found = self.sizes.size(array, axis)
        if isinstance(found, int):
            return found
        if isinstance(found, Value):
            found = resolve(found, self.env)
            number = constant(found)
            if number is not None:
                return number
            return resolve(found, self.known) if found in self.visible else (array, axis)
        root = resolve(found[0], self.env)
        return (root, found[1]) if root in self.visible else (array, axis)

    def inline(self, region: Region, args: Sequence[Value]) -> list[Value]:
        """The operations of a region in place of its owner; gives what it yields."""
        self.env.update(zip(region.args, args, strict=True))
        for op in region.ops[:-1]:
            self.op(op)
        return [resolve(resolve(v, self.env), self.known) for v in region.yielded]


# Structured operations ---------------------------------------------------------------------------------------


def _dim(c: Canonicalizer, op: Op) -> list[Value] | None:
    array, axis = op.operands[0], op.attrs["axis"]
    found = c.size(array, axis)
    if isinstance(found, int):
        return [c.i64(found)]
    if isinstance(found, Value):
        return [found]
    op.operands, op.attrs = [found[0]], {"axis": found[1]}
    return None


def _check(c: Canonicalizer, op: Op) -> list[Value] | None:
    cond = resolve(op.operands[0], c.known)
    if constant(cond) is True:
        return []
    op.operands[0] = cond
    c.append(op)
    c.learn(cond, True)
    return []


def _refine(value: Value, dims: tuple[int | None, ...]) -> None:
    """Record sizes that are known now in the type of a result or argument."""
    type_ = value.type
    if isinstance(type_, (Array, Acc)) and any(d is not None and e is None for d, e in zip(dims, type_.dims)):
        merged = tuple(e if e is not None else d for d, e in zip(dims, type_.dims))
        value.type = type(type_)(type_.element, merged)  # type: ignore[arg-type]  # both kinds take the same


def _static(values: Sequence[Value]) -> tuple[int | None, ...]:
    return tuple(constant(v) for v in values)


def _with_sizes(c: Canonicalizer, op: Op) -> list[Value] | None:
    """`shaped` and `reshape`: nothing to do where the sizes are those the array has."""
    array, sizes = op.operands[0], op.operands[1:]
    source = array.op
    if source is not None and source.name == op.name:
        array = op.operands[0] = source.operands[0]
    if len(sizes) == len(dims_of(array.type)) and all(is_size(c.size(array, k), s) for k, s in enumerate(sizes)):
        return [array]
    _refine(op.result, _static(sizes))
    return None


def _like_operand(c: Canonicalizer, op: Op) -> list[Value] | None:
    _refine(op.result, dims_of(op.operands[0].type))
    before = op.operands[0].op
    if op.name == "update" and _is_element(op.operands[1], op.operands[0], op.operands[2:]):
        return [op.operands[0]]
    if op.name == "update" and before is not None and before.name == "update":
        # Where the array in between is used again, the one before it would live on and have to be copied.
        if before.operands[2:] == op.operands[2:] and c.used_once(before.result):
            op.operands[0] = before.operands[0]
    return None


def _is_element(value: Value, array: Value, index: list[Value]) -> bool:
    """Whether the value is the element that the array has there."""
    op = value.op
    return op is not None and op.name == "read" and op.operands[0] is array and op.operands[1:] == index


def _read(c: Canonicalizer, op: Op) -> list[Value] | None:
    """Reads look through `shaped` and axes of size 1 added or left out, and give what an update has just put there.

    Never through an update at another index: the array before the update would live on and have to be copied.
    """
    source = op.operands[0].op
    while source is not None and source.name in ("shaped", "reshape"):
        if source.name == "reshape":
            index = _index_before(c, source, op.operands[1:])
            if index is None:
                return None
            op.operands[1:] = index
        op.operands[0] = source.operands[0]
        source = op.operands[0].op
    if source is not None and source.name == "update" and source.operands[2:] == op.operands[1:]:
        return [source.operands[1]]
    return None


def _index_before(c: Canonicalizer, op: Op, index: list[Value]) -> list[Value] | None:
    """The index in the operand of a `reshape` that only adds axes of size 1 or leaves them out; None for others."""
    array, sizes = op.operands[0], op.operands[1:]
    before = [c.size(array, n) for n in range(len(dims_of(array.type)))]
    kept = [k for k, size in enumerate(sizes) if constant(size) != 1]
    axes = [n for n, size in enumerate(before) if size != 1]
    if len(kept) != len(axes) or not all(is_size(before[n], sizes[k]) for n, k in zip(axes, kept, strict=True)):
        return None
    there = dict(zip(axes, [index[k] for k in kept], strict=True))
    return [there[n] if n in there else c.i64(0) for n in range(len(before))]


# Reductions of one value that are the value itself.
_SELF_OF_ONE = ("sum", "prod", "max", "min", "any", "all")


def _par(c: Canonicalizer, op: Op) -> list[Value] | None:
    rank, kinds = op.attrs["rank"], op.attrs["kinds"]
    if all(constant(n) == 1 for n in op.operands[:rank]) and all(kind in _SELF_OF_ONE for kind in kinds):
        return c.inline(op.regions[0], [c.i64(0)] * rank)
    c.region(op.regions[0])
    _merge_results(c, op)
    lead = _static(op.operands[:rank])
    for kind, value, result in zip(kinds, op.regions[0].yielded, op.results):
        if kind == "map":
            _refine(result, lead + dims_of(value.type))
    return None


def _merge_results(c: Canonicalizer, op: Op) -> None:
    """Results of the same kind and value are one; a map that copies an array over its own sizes is that array."""
    first: dict[tuple, Value] = {}
    for kind, value, result in zip(op.attrs["kinds"], op.regions[0].yielded, op.results):
        same = first.setdefault((kind, value), result)
        copied = _copied(c, op, value) if kind == "map" else None
        if same is not result:
            c.env[result] = same
        elif copied is not None:
            c.env[result] = copied


def _copied(c: Canonicalizer, op: Op, value: Value) -> Value | None:
    """The array of which the `par` reads every element at its own index; with axes of size 1 added to it, maybe."""
    read, extents = value.op, op.operands[: op.attrs["rank"]]
    if read is None or read.name != "read" or isinstance(value.type, Record):
        return None
    axes = [k for k, n in enumerate(extents) if constant(n) != 1]
    array, index = read.operands[0], read.operands[1:]
    whole = index == op.regions[0].args
    if not whole and (not axes or index != [op.regions[0].args[k] for k in axes]):
        return None
    places = range(len(extents)) if whole else axes
    if array not in c.visible or not all(is_size(c.size(array, n), extents[k]) for n, k in enumerate(places)):
        return None
    if whole:
        return array
    assert isinstance(value.type, Scalar)
    shaped = Op("reshape", [array, *extents], [Array(value.type, _static(extents))], {}, None, op.loc)
    c.append(shaped)
    return shaped.result


def _loop(c: Canonicalizer, op: Op) -> list[Value] | None:
    """Carried values that never change become what they started as."""
    first, carries = (1 if op.name == "for" else 0), op.attrs["carries"]
    if first and not op.attrs["kinds"] and constant(op.operands[0]) is not None:
        count = constant(op.operands[0])
        if count <= 0:
            return op.operands[1 : 1 + carries]
        if count == 1:
            return c.inline(op.regions[0], [c.i64(0), *op.operands[1 : 1 + carries]])
    _drop_unchanged(c, op, first)
    for region in op.regions:
        c.region(region)
    return None


def _drop_unchanged(c: Canonicalizer, op: Op, first: int) -> None:
    """Uses of an unchanged carry, inside and after the loop, become uses of its init; dead code removes the carry."""
    body = op.regions[-1]
    for j in range(op.attrs["carries"]):
        init, following = op.operands[first + j], resolve(body.yielded[j], c.env)
        if following is not body.args[1 + j] and following is not init:
            continue
        body.terminator.operands[j] = init
        for region in op.regions:
            c.env[region.args[1 + j]] = init
        c.env[op.results[j]] = init


def _if(c: Canonicalizer, op: Op) -> list[Value] | None:
    cond = op.operands[0]
    if constant(cond) is not None:
        return c.inline(op.regions[0] if constant(cond) else op.regions[1], [])
    if cond.op is not None and cond.op.name == "not":
        op.operands[0] = cond = cond.op.operands[0]
        op.regions.reverse()
    for region, truth in zip(op.regions, (True, False)):
        c.region(region, [(cond, truth)])
    then, other = (region.yielded for region in op.regions)
    for a, b, result in zip(then, other, op.results):
        if isinstance(a.type, Array) and isinstance(b.type, Array):
            _refine(result, join_dims(a.type.dims, b.type.dims))
        if a is b:
            c.env[result] = a
    if all(len(region.ops) == 1 for region in op.regions):
        return _select_instead(c, op)
    return None


def _select_instead(c: Canonicalizer, op: Op) -> list[Value] | None:
    """An `if` that computes nothing: selects for its scalars."""
    then, other = (region.yielded for region in op.regions)
    if any(a is not b and not isinstance(a.type, Scalar) for a, b in zip(then, other)):
        return None
    return [a if a is b else c.emit("select", op.operands[0], a, b) for a, b in zip(then, other)]


def _withacc(c: Canonicalizer, op: Op) -> list[Value] | None:
    for init, arg, result in zip(op.operands, op.regions[0].args, op.results):
        _refine(arg, dims_of(init.type))
        _refine(result, dims_of(init.type))
    if not op.operands:
        return c.inline(op.regions[0], [])
    c.region(op.regions[0])
    for value, result in zip(op.regions[0].yielded, op.results[len(op.operands) :]):
        _refine(result, dims_of(value.type))
    return None


_STRUCTURED: dict[str, Callable[[Canonicalizer, Op], list[Value] | None]] = {
    "dim": _dim,
    "check": _check,
    "shaped": _with_sizes,
    "reshape": _with_sizes,
    "update": _like_operand,
    "insert": _like_operand,
    "read": _read,
    "par": _par,
    "for": _loop,
    "while": _loop,
    "if": _if,
    "withacc": _withacc,
}
