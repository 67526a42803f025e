"""Questions passes ask about values: constants, sizes of arrays, signs, effects."""

from __future__ import annotations

from typing import Any

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import BOOL, I64, Acc, Array, dims_of

# A size: a number, a value, or the size of `root` along an axis.
Size = int | Value | tuple[Value, int]

# Operations that may stop the program, or are meaningless, for some operands.
_PARTIAL = ("floordiv", "mod", "ipow")


def constant(value: Value) -> Any:
    """The number a value stands for, or None."""
    op = value.owner
    return op.attrs["value"] if type(op) is Op and op.name == "const" else None


def is_constant(value: Value, number: int | float) -> bool:
    """Whether the value is the constant `number` (of the same Python type and sign)."""
    found = constant(value)
    return found is not None and type(found) is type(number) and repr(found) == repr(number)


class ArgOwners:
    """Which operation each region belongs to, and with which place: what a region argument stands for."""

    __slots__ = ("owner",)

    def __init__(self) -> None:
        self.owner: dict[Region, tuple[Op, int]] = {}

    def note(self, op: Op) -> None:
        for k, region in enumerate(op.regions):
            self.owner[region] = (op, k)

    @classmethod
    def of(cls, region: Region) -> ArgOwners:
        owners = cls()
        for op in region.walk():
            if op.regions:
                owners.note(op)
        return owners

    def op_of(self, arg: Value) -> Op | None:
        """The structured operation that an argument's region belongs to; None for parameters."""
        found = self.owner.get(arg.owner) if isinstance(arg.owner, Region) else None
        return found[0] if found else None


class Sizes:
    """Sizes of arrays as far as they are known; loop-carried arrays by induction over the loop."""

    def __init__(self, owners: ArgOwners):
        self.owners = owners
        self.assumed: dict[Value, Value] = {}  # loop argument -> its init, proven or being proven
        self.loops: dict[Op, set[int]] = {}  # carries whose sizes do not change

    def size(self, value: Value, axis: int) -> Size:
        """The size along an axis; `(root, axis)` where nothing better is known."""
        known = dims_of(value.type)[axis]
        if known is not None:
            return known
        op = value.op
        if op is None:
            return self._argument(value, axis)
        finder = _FINDERS.get(op.name)
        found = finder(self, op, value, axis) if finder else None
        return (value, axis) if found is None else self._number(found)

    @staticmethod
    def _number(size: Size) -> Size:
        if isinstance(size, Value):
            number = constant(size)
            return size if number is None else number
        return size

    def _argument(self, value: Value, axis: int) -> Size:
        op = self.owners.op_of(value)
        if op is None:
            return (value, axis)
        if op.name == "withacc":
            return self.size(op.operands[value.index], axis)
        if op.name in ("for", "while") and value.index > 0:
            carry = value.index - 1
            if value in self.assumed or carry in self.invariant(op):
                return self.size(op.operands[carry + (op.name == "for")], axis)
        return (value, axis)

    def invariant(self, op: Op) -> set[int]:
        """Carried arrays of a loop that keep the sizes of their inits: the largest set closed under one iteration."""
        if op in self.loops:
            return self.loops[op]
        first = 1 if op.name == "for" else 0
        args = op.regions[-1].args[1:]
        carries = {j for j, arg in enumerate(args) if isinstance(arg.type, Array)}
        for j in carries:  # loops around come first: they may not find this one half done
            self.size(op.operands[first + j], 0)
        if op in self.loops:
            return self.loops[op]
        before = dict(self.loops)
        self.loops[op] = set()
        yielded = op.regions[-1].yielded
        while True:
            for j in carries:
                self.assumed[args[j]] = op.operands[first + j]
            changed = {j for j in carries if not self._same_sizes(yielded[j], op.operands[first + j])}
            for j in carries:
                del self.assumed[args[j]]
            carries -= changed
            if not changed:
                break
            self.loops = {**before, op: set()}  # what was found out about others took too much for granted
        self.loops[op] = carries
        return carries

    def _same_sizes(self, a: Value, b: Value) -> bool:
        return all(self.by_source(a, k) == self.by_source(b, k) for k in range(len(dims_of(a.type))))

    def by_source(self, value: Value, axis: int) -> Size:
        """The size; a value that is the size of an array as the array and axis, so that equal sizes compare equal."""
        found = self.size(value, axis)
        if isinstance(found, Value) and found.op is not None and found.op.name == "dim":
            return self.size(found.op.operands[0], found.op.attrs["axis"])
        return found


def _par_size(sizes: Sizes, op: Op, value: Value, axis: int) -> Size | None:
    rank = op.attrs["rank"]
    if axis < rank:
        return op.operands[axis]
    before = zip(op.regions[0].yielded[: value.index], op.attrs["kinds"])
    at = rank + sum(len(dims_of(v.type)) for v, kind in before if kind == "map")
    return op.operands[at + axis - rank]


def _loop_size(sizes: Sizes, op: Op, value: Value, axis: int) -> Size | None:
    carries, first = op.attrs["carries"], 1 if op.name == "for" else 0
    if value.index < carries:
        return sizes.size(op.operands[first + value.index], axis) if value.index in sizes.invariant(op) else None
    if any(kind != "map" for kind in op.attrs["kinds"]):
        return None
    number = value.index - carries - (0 if first else 1)
    if axis == 0:
        count = op.operands[0] if first else op.results[carries]
        return count if not first or is_nonnegative(count, sizes.owners) else None
    mapped = op.regions[-1].yielded[carries : carries + number]
    return op.operands[first + carries + sum(len(dims_of(v.type)) for v in mapped) + axis - 1]


def _if_size(sizes: Sizes, op: Op, value: Value, axis: int) -> Size | None:
    a, b = (sizes.size(region.yielded[value.index], axis) for region in op.regions)
    return a if a == b else None


def _withacc_size(sizes: Sizes, op: Op, value: Value, axis: int) -> Size | None:
    if value.index >= len(op.results) or op.results[value.index] is not value:
        return None  # a pass is about to replace it
    inits = len(op.operands)
    source = op.operands[value.index] if value.index < inits else op.regions[0].yielded[value.index - inits]
    return sizes.size(source, axis)


_FINDERS = {
    "par": _par_size,
    "for": _loop_size,
    "while": _loop_size,
    "if": _if_size,
    "withacc": _withacc_size,
    "shaped": lambda sizes, op, value, axis: op.operands[1 + axis],
    "reshape": lambda sizes, op, value, axis: op.operands[1 + axis],
    "update": lambda sizes, op, value, axis: sizes.size(op.operands[0], axis),
    "insert": lambda sizes, op, value, axis: sizes.size(op.operands[0], axis),
    "stop_gradient": lambda sizes, op, value, axis: sizes.size(op.operands[0], axis),
    "argsort": lambda sizes, op, value, axis: sizes.size(op.operands[0], axis),
}


def is_size(found: Size, size: Value) -> bool:
    """Whether a size value is the size `found` by `Sizes.size`."""
    if isinstance(found, int):
        return constant(size) == found
    if isinstance(found, Value):
        return found is size
    op = size.op
    return op is not None and op.name == "dim" and (op.operands[0], op.attrs["axis"]) == found


def extent_of(index: Value, owners: ArgOwners) -> Value | None:
    """The extent a loop index runs over from 0; None for other values."""
    op = owners.op_of(index) if index.op is None else None
    if op is not None and op.name == "par":
        return op.operands[index.index]
    if op is not None and op.name == "for" and index.index == 0:
        return op.operands[0]
    return None


def is_nonnegative(value: Value, owners: ArgOwners, depth: int = 6) -> bool:
    """Whether an i64 value is known to be at least 0 (sizes and their sums do not overflow)."""
    if depth == 0 or value.type != I64:
        return False
    op = value.op
    if op is None:
        parent = owners.op_of(value)
        return parent is not None and (parent.name == "par" or (parent.name in ("for", "while") and value.index == 0))
    if op.name == "const":
        return op.attrs["value"] >= 0
    if op.name == "dim":
        return True
    if op.name == "maximum":
        return any(is_nonnegative(v, owners, depth - 1) for v in op.operands)
    if op.name in ("add", "mul", "minimum", "floordiv", "mod"):
        return all(is_nonnegative(v, owners, depth - 1) for v in op.operands)
    if op.name == "cast":
        return op.operands[0].type == BOOL
    return op.name == "while" and value is op.results[op.attrs["carries"]]


def is_total(op: Op) -> bool:
    """Whether a scalar operation has a value for all operands, so that it may run where the program did not ask."""
    if op.name not in _PARTIAL or op.results[0].type != I64:
        return op.name in SCALAR_OPS
    if op.name == "ipow":
        return (constant(op.operands[1]) or -1) >= 0
    return bool(constant(op.operands[1]))


def functions_that_check(module: Module) -> set[str]:
    """Functions that may stop with an error, themselves or in a function they call."""
    checking: set[str] = set()
    callers: dict[str, list[str]] = {}
    for func in module.funcs.values():
        names: list[str] = []
        if _names_called(func.body, names):
            checking.add(func.name)
        for name in names:
            callers.setdefault(name, []).append(func.name)
    pending = list(checking)
    while pending:
        for caller in callers.get(pending.pop(), ()):
            if caller not in checking:
                checking.add(caller)
                pending.append(caller)
    return checking


def has_effects(op: Op, checking: set[str]) -> bool:
    """Whether the operation, or one nested in it, may stop the program or adds to a handle from outside it.

    `checking` are the functions that check.
    """
    if op.name in ("check", "accum"):
        return True
    if "callee" in op.attrs:
        return op.attrs["callee"] in checking or any(isinstance(v.type, Acc) for v in op.operands)
    if not op.regions:
        return False
    inside: set[Region] = set(op.regions)
    handles: list[Value] = []
    for region in op.regions:
        for inner in region.walk():
            inside.update(inner.regions)
            if inner.name == "check" or inner.attrs.get("callee") in checking:
                return True
            handles += [v for v in inner.operands if isinstance(v.type, Acc)]
    return any(h.owner not in inside for h in handles)


def op_count(region: Region) -> int:
    """Operations in a region, nested ones included."""
    count = len(region.ops)
    for op in region.ops:
        for inner in op.regions:
            count += op_count(inner)
    return count


def callees(func: Func) -> list[str]:
    """Names a function refers to: calls, derivatives of functions, rules."""
    names: list[str] = []
    _names_called(func.body, names)
    return names + [func.attrs[rule] for rule in ("vjp", "jvp") if rule in func.attrs]


def _names_called(region: Region, names: list[str]) -> bool:
    """Append the callees in order; whether there is a check. All functions are asked this often: it has to be fast."""
    checks = False
    for op in region.ops:
        if "callee" in op.attrs:
            names.append(op.attrs["callee"])
        elif op.name == "check":
            checks = True
        for inner in op.regions:
            checks = _names_called(inner, names) or checks
    return checks
