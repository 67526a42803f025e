"""Contractions of large matrices: what is read in steps of a long row is copied first, so that it is contiguous.

Long steps meet a new page each time, and steps of a power of two compete for a few sets of the caches. Vectors that
begin anywhere in a line of the cache are in two of them, which takes twice as long where they come from its second
level. Where a matrix is read at [..., k, column], the columns of a strip are copied before the rows that use them;
where it is read at [..., k, row], the rows are copied in groups of four before the columns that use them. Which it is
is decided when the code runs: the loops read from the copy or from the matrix itself, by pointer and step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aotdiff.codegen.lanes import Key
from aotdiff.codegen.par import Level
from aotdiff.codegen.text import is_literal
from aotdiff.codegen.values import Ref, element_size

from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.par import Nest
    from aotdiff.codegen.terms import Terms

BLOCK = 256  # rows
GROUP = 4
MANY_ROWS = 16
MANY_COLUMNS = 64
MANY_TERMS = 48
LONG_STEP = 2048  # bytes, of rows that are copied


def when(
    fe: FunctionEmitter, condition: str, make: Callable[[], list[str]], otherwise: list[str], types: list[str]
) -> list[str]:
    """What `make` gives where the condition holds, else something else."""
    then, end, before = fe.label("pack"), fe.label("packed"), fe.block_name
    fe.branch(condition, then, end)
    fe.start(then)
    values = make()
    after = fe.block_name
    fe.jump(end)
    fe.start(end)
    pairs = zip(types, values, otherwise, strict=True)
    return [fe.phi(t, (value, after), (other, before)) for t, value, other in pairs]


@dataclass(eq=False, slots=True)
class Packed:
    """One matrix: whether it is copied, where to, and from where the loops read now."""

    key: Key
    copied: str
    buffer: str
    ptr: str = ""
    step: str = ""
    by_row: dict[str, str] = field(default_factory=dict)


class Packs:
    """The matrices of a contraction that may be copied. lanes: the columns of a strip."""

    def __init__(
        self, fe: FunctionEmitter, nest: Nest, loop: Op, lanes: int, terms: Terms, columns: list[Key], rows: list[Key]
    ):
        self.fe, self.nest, self.k, self.lanes, self.terms = fe, nest, loop.regions[0].args[0], lanes, terms
        self.apart = fe.add(terms.most, str(GROUP))  # a group takes a few elements more: no power of two
        (start, end), (left, right) = nest.span(-2), nest.span(-1)
        long = fe.op(f"icmp sge i64 {terms.count}, {MANY_TERMS}")
        number, width = fe.op(f"sub i64 {end}, {start}"), fe.op(f"sub i64 {right}, {left}")
        enough = fe.op(f"and i1 {long}, {fe.op(f'icmp sge i64 {number}, {MANY_ROWS}')}")
        enough = fe.op(f"and i1 {enough}, {fe.op(f'icmp sge i64 {width}, {lanes}')}")
        wide = fe.op(f"and i1 {long}, {fe.op(f'icmp sge i64 {width}, {MANY_COLUMNS}')}")
        self.columns = [self._begin(key, enough, 0, lanes) for key in columns]
        self.rows = [self._begin(key, wide, LONG_STEP, BLOCK) for key in rows]

    def _begin(self, key: Key, worth: str, least: int, width: int) -> Packed:
        fe, ref = self.fe, self.fe.ref(key[0])
        assert isinstance(ref.element, Scalar)
        size = element_size(ref.element)
        copied = worth
        if least:
            copied = fe.op(f"and i1 {worth}, {fe.op(f'icmp sge i64 {ref.dims[-1]}, {least // size}')}")
        bytes_ = fe.mul(self.apart, str(width * size))
        (buffer,) = when(fe, copied, lambda: [fe.heap(bytes_)], ["null"], ["ptr"])
        return Packed(key, copied, buffer)

    def _itself(self, packed: Packed, index: str) -> str:
        """Where the matrix has the first term of a row or column."""
        array, lead = packed.key
        return self.fe.element_at(self.fe.ref(array), [*map(self.fe.val, lead), self.terms.begin, index])

    def pack_rows(self, first: str, end: str) -> None:
        """Copy a block of rows: groups of rows after one another, in each the rows innermost."""
        for packed in self.rows:

            def copy(packed: Packed = packed) -> list[str]:
                return self._copy_rows(packed, first, end)

            when(self.fe, packed.copied, copy, [], [])

    def _copy_rows(self, packed: Packed, first: str, end: str) -> list[str]:
        fe, ref = self.fe, self.fe.ref(packed.key[0])
        assert isinstance(ref.element, Scalar)
        number = fe.op(f"sub i64 {end}, {first}")
        whole = fe.op(f"and i64 {number}, {-GROUP}")
        itself = self._itself(packed, first)
        over_k = Level(fe, self.terms.number(fe), [])
        source = fe.slot(itself, ref.element, fe.mul(over_k.index, ref.dims[-1]))
        target = fe.slot(packed.buffer, ref.element, fe.mul(over_k.index, str(GROUP)))
        groups = Level(fe, whole, [], GROUP)
        there = fe.slot(target, ref.element, fe.mul(groups.index, self.apart))
        size = element_size(ref.element)
        value = fe.load_element(ref.element, fe.slot(source, ref.element, groups.index), GROUP, size)
        fe.store_element(ref.element, value, there, GROUP, size)
        groups.close(fe, [])
        there = fe.slot(target, ref.element, fe.mul(whole, self.apart))
        rest = Level(fe, number, [], 1, whole)
        value = fe.load_element(ref.element, fe.slot(source, ref.element, rest.index))
        fe.store_element(ref.element, value, fe.slot(there, ref.element, fe.op(f"sub i64 {rest.index}, {whole}")))
        rest.close(fe, [], rolled=True)
        over_k.close(fe, [])
        return []

    def read_rows(self, block: str, indices: list[str]) -> None:
        """Where the loop reads the rows of a tile from, of which the first begins a group."""
        fe = self.fe
        for packed in self.rows:
            ref = fe.ref(packed.key[0])
            start = fe.mul(fe.op(f"sub i64 {indices[0]}, {block}"), self.apart)
            copy = fe.slot(packed.buffer, ref.element, start)
            packed.ptr = fe.op(f"select i1 {packed.copied}, ptr {copy}, ptr {self._itself(packed, indices[0])}")
            packed.step = fe.op(f"select i1 {packed.copied}, i64 {GROUP}, i64 {ref.dims[-1]}")
            packed.by_row = {
                index: fe.slot(packed.ptr, ref.element, self._behind(packed, index, indices[0], n < GROUP))
                for n, index in enumerate(indices)
            }

    def _behind(self, packed: Packed, index: str, first: str, same: bool) -> str:
        """How far a row is behind the first one; same: it is in the same group."""
        fe = self.fe
        far = fe.op(f"sub i64 {index}, {first}")
        if same:
            return far
        whole = fe.op(f"and i64 {far}, {-GROUP}")  # rows of the groups before
        copied = fe.add(fe.mul(whole, self.apart), fe.op(f"sub i64 {far}, {whole}"))
        return fe.op(f"select i1 {packed.copied}, i64 {copied}, i64 {far}")

    def pack_columns(self, base: str) -> None:
        """Copy the columns of a strip, unless they are read where they are."""
        for packed in self.columns:
            itself = self._itself(packed, base)

            def copy(packed: Packed = packed, itself: str = itself) -> list[str]:
                return self._copy_columns(packed, itself)

            step = self.fe.ref(packed.key[0]).dims[-1]
            packed.ptr, packed.step = when(self.fe, packed.copied, copy, [itself, step], ["ptr", "i64"])

    def _copy_columns(self, packed: Packed, source: str) -> list[str]:
        fe, ref, lanes = self.fe, self.fe.ref(packed.key[0]), self.lanes
        assert isinstance(ref.element, Scalar)
        size = element_size(ref.element)
        level = Level(fe, self.terms.number(fe), [])
        here = fe.slot(source, ref.element, fe.mul(level.index, ref.dims[-1]))
        value = fe.load_element(ref.element, here, lanes, size)
        there = fe.slot(packed.buffer, ref.element, fe.mul(level.index, str(lanes)))
        fe.store_element(ref.element, value, there, lanes, size)
        level.close(fe, [])
        return [packed.buffer, str(lanes)]

    def address(self, op: Op, row: Value, column: Value, whole: bool) -> str | None:
        """Where a read of the loop finds its element; None for other reads."""
        if len(op.operands) < 3 or op.operands[-2] is not self.k:
            return None
        key = _key(op)
        for packed in self.columns if whole and op.operands[-1] is column else ():
            if packed.key == key:
                return self._at(packed, packed.ptr)
        for packed in self.rows if op.operands[-1] is row else ():
            if packed.key == key:
                return self._at(packed, packed.by_row[self.fe.val(row)])
        return None

    def _at(self, packed: Packed, ptr: str) -> str:
        fe = self.fe
        return fe.slot(ptr, fe.ref(packed.key[0]).element, fe.mul(self.terms.place(fe, fe.val(self.k)), packed.step))

    def close(self, fe: FunctionEmitter) -> None:
        for packed in (*self.columns, *self.rows):
            give_back(fe, packed.copied, packed.buffer)


def give_back(fe: FunctionEmitter, condition: str, buffer: str) -> None:
    """Free memory that there is where the condition holds."""
    fe.module.need("aot.free")

    def free() -> list[str]:
        fe.do(f"call void @aot.free(ptr %ctx, ptr {buffer})")
        return []

    when(fe, condition, free, [], [])


def _key(op: Op) -> Key:
    return op.operands[0], tuple(op.operands[1:-2])


def find(fe: FunctionEmitter, nest: Nest, loop: Op, lanes: int, terms: Terms) -> Packs | None:
    """The matrices that a contraction reads at [..., k, column] or [..., k, row], if they may be large.

    lanes: the columns of a strip.
    """
    region = loop.regions[0]
    row, column = nest.region.args[-2:]
    rows, width = nest.span(-2)[1], nest.span(-1)[1]
    if is_literal(terms.count) and int(terms.count) < MANY_TERMS:
        return None
    if is_literal(rows) and int(rows) < MANY_ROWS:
        return None
    inside = {row, column, region.args[0], *(v for op in nest.region.walk() for v in op.results)}
    columns: dict[Key, None] = {}
    groups: dict[Key, None] = {}
    for op in region.ops:
        if op.name != "read" or len(op.operands) < 3 or op.operands[-2] is not region.args[0]:
            continue
        ref = fe.env.get(op.operands[0])
        if not isinstance(ref, Ref) or not _copyable(ref) or not inside.isdisjoint(op.operands[1:-2]):
            continue
        if op.operands[-1] is column and _at_least(width, lanes):
            columns[_key(op)] = None
        elif op.operands[-1] is row and _at_least(ref.dims[-1], LONG_STEP // element_size(ref.element)):
            groups[_key(op)] = None
    if not columns and not groups:
        return None
    return Packs(fe, nest, loop, lanes, terms, list(columns), list(groups))


def _copyable(ref: Ref) -> bool:
    return ref.lanes == 1 and isinstance(ref.element, Scalar) and ref.element.is_float


def _at_least(size: str, least: int) -> bool:
    """Whether a size may be so large."""
    return not is_literal(size) or int(size) >= least
