"""blocks: an inserted block goes where another of the same place and sizes overwrites it before anything reads it.

The adjoint of `a[i] = row` reads row i of the cotangent and sets it to zero; what is then added to the row is inserted
(see acc-to-map), and the zeros were for nothing. What is read between is known to lie outside the block by indices
that differ by a constant.

`is_zero_block` and `apart` answer questions about inserted blocks for other passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.types import dims_of
from aotdiff.passes.facts import ArgOwners, Size, Sizes, constant
from aotdiff.passes.registry import register_local


@register_local("blocks", "Drop inserted blocks that are overwritten before they are read.")
def blocks(module: Module, func: Func) -> None:
    inserts = [op for op in func.body.walk() if op.name == "insert"]
    if len(inserts) > 1:
        _Blocks(func, inserts).run()


def is_zero(value: Value) -> bool:
    """A zero scalar, or an array filled with zeros."""
    op = value.op
    if op is not None and op.name == "par" and op.attrs["kinds"][value.index] == "map":
        return is_zero(op.regions[0].yielded[value.index])
    return constant(value) == 0.0


def is_zero_block(array: Value, offsets: Sequence[Value], dims: Sequence[Size], sizes: Sizes) -> bool:
    """Whether this block of the array was set to zero, and nothing put there since."""
    while True:
        if is_zero(array):
            return True
        op = array.op
        if op is None or op.name != "insert":
            return False
        theirs = dims_by_source(op.operands[1], sizes)
        if _same(op.operands[2:], offsets) and theirs == list(dims):
            return is_zero(op.operands[1])
        if not apart(op.operands[2:], theirs, offsets, dims):
            return False
        array = op.operands[0]


def apart(a: Sequence[Value], a_dims: Sequence[Size], b: Sequence[Value], b_dims: Sequence[Size]) -> bool:
    """Whether two blocks of one array have no element in common, for all that is known."""
    for x, n, y, m in zip(a, a_dims, b, b_dims, strict=True):
        (base, at), (other, to) = _offset(x), _offset(y)
        if base is not other:
            continue
        if (isinstance(n, int) and to - at >= n) or (isinstance(m, int) and at - to >= m):
            return True
    return False


def _offset(value: Value) -> tuple[Value | None, int]:
    """A value as something plus a constant."""
    number, total = constant(value), 0
    while number is None:
        op = value.op
        if op is None or op.name not in ("add", "sub"):
            return value, total
        step = constant(op.operands[1])
        if step is None:
            return value, total
        total += step if op.name == "add" else -step
        value = op.operands[0]
        number = constant(value)
    return None, total + number


def _same(a: Sequence[Value], b: Sequence[Value]) -> bool:
    return all(_offset(x) == _offset(y) for x, y in zip(a, b, strict=True))


def dims_by_source(array: Value, sizes: Sizes) -> list[Size]:
    """The sizes of an array or handle, so that equal ones compare equal."""
    return [sizes.by_source(array, axis) for axis in range(len(dims_of(array.type)))]


class _Blocks:
    def __init__(self, func: Func, inserts: list[Op]):
        self.inserts = inserts
        self.sizes = Sizes(ArgOwners.of(func.body))
        self.users: dict[Value, list[Op]] = {op.results[0]: [] for op in inserts}
        self.home: dict[Op, Region] = {}
        self._study(func.body)

    def _study(self, region: Region) -> None:
        for op in region.ops:
            if op.name == "insert":
                self.home[op] = region
            for v in op.operands:
                if v in self.users:
                    self.users[v].append(op)
            for inner in op.regions:
                self._study(inner)

    def run(self) -> None:
        for op in self.inserts:
            while (found := self._overwritten_by(op)) is not None:
                self._bypass(found)

    def _overwritten_by(self, last: Op) -> Op | None:
        """An insert before `last` into the same array, in the same region, for nothing."""
        dims, between = dims_by_source(last.operands[1], self.sizes), [last]
        while True:
            op = between[-1].operands[0].op
            if op is None or op.name != "insert" or self.home.get(op) is not self.home[last]:
                return None
            between.append(op)
            theirs = dims_by_source(op.operands[1], self.sizes)
            if _same(op.operands[2:], last.operands[2:]) and theirs == dims:
                return op if self._unread(between, op, theirs) else None

    def _unread(self, between: list[Op], op: Op, dims: list[Size]) -> bool:
        """Whether the block of `op` shows in none of the arrays on the way to what overwrites it."""
        for following, each in zip(between, between[1:]):
            for user in self.users[each.results[0]]:
                if user is following and user.operands.count(each.results[0]) == 1:
                    continue
                if user.name != "read" or not apart(op.operands[2:], dims, user.operands[1:], [1] * len(dims)):
                    return False
        return True

    def _bypass(self, op: Op) -> None:
        """Have what follows `op` use the array before it."""
        old, new = op.results[0], op.operands[0]
        for user in self.users.pop(old):
            user.operands = [new if v is old else v for v in user.operands]
            if new in self.users:
                self.users[new].append(user)
        if new in self.users:
            self.users[new].remove(op)
        del self.home[op]
        op.operands[0] = new
