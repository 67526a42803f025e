"""Contractions of large matrices: what is read in steps of a long row is copied first, so that it is contiguous.

Long steps meet a new page each time, and steps of a power of two compete for a few sets of the caches.
Where a matrix is read at [k, column], the columns of a strip are copied before the rows that use them; where it is read
at [k, row], the rows are taken in blocks, copied in groups of four before the columns that use them. Which it is
is decided when the code runs: the loops read from the copy or from the matrix itself, by pointer and step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aotdiff.codegen.par import Level
from aotdiff.codegen.text import is_literal
from aotdiff.codegen.values import Ref, element_size

from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.par import Nest

BLOCK = 256  # rows
MANY_ROWS = 128
GROUP = 4
LONG_STEP = 2048  # bytes
LONG_SUM = 256
MANY_COLUMNS = 256


@dataclass(eq=False, slots=True)
class Packed:
    """One matrix: whether it is copied, where to, and from where the loops read now."""

    array: Value
    copied: str
    buffer: str
    ptr: str = ""
    step: str = ""
    by_row: dict[str, str] = field(default_factory=dict)


class Packs:
    """The matrices of a contraction that may be copied."""

    def __init__(self, fe: FunctionEmitter, nest: Nest, loop: Op, lanes: int, columns: list[Value], rows: list[Value]):
        self.fe, self.nest, self.k, self.lanes = fe, nest, loop.regions[0].args[0], lanes
        self.count = fe.val(loop.operands[0])
        self.apart = fe.add(self.count, str(GROUP))  # a group takes a few elements more: no power of two
        start, end = nest.span(-2)
        width = nest.span(-1)
        self.number = fe.op(f"sub i64 {end}, {start}")
        enough = fe.op(f"icmp sge i64 {self.number}, {MANY_ROWS}")
        wide = fe.op(f"icmp sge i64 {fe.op(f'sub i64 {width[1]}, {width[0]}')}, {MANY_COLUMNS}")
        self.columns = [self._begin(v, enough, 0) for v in columns]
        self.rows = [self._begin(v, wide, BLOCK) for v in rows]

    def _begin(self, array: Value, worth: str, width: int) -> Packed:
        fe, ref = self.fe, self.fe.ref(array)
        assert isinstance(ref.element, Scalar)
        size = element_size(ref.element)
        copied = fe.op(f"icmp sge i64 {ref.dims[1]}, {LONG_STEP // size}")
        copied = fe.op(f"and i1 {copied}, {fe.op(f'icmp sge i64 {self.count}, {LONG_SUM}')}")
        copied = fe.op(f"and i1 {copied}, {worth}")
        lanes = width or self.lanes
        (buffer,) = self._when(copied, lambda: [fe.heap(fe.mul(self.apart, str(lanes * size)))], ["null"], ["ptr"])
        return Packed(array, copied, buffer)

    def _when(self, condition: str, make: Callable[[], list[str]], otherwise: list[str], types: list[str]) -> list[str]:
        """What `make` gives where the condition holds, else something else."""
        fe = self.fe
        then, end, before = fe.label("pack"), fe.label("packed"), fe.block_name
        fe.branch(condition, then, end)
        fe.start(then)
        values = make()
        after = fe.block_name
        fe.jump(end)
        fe.start(end)
        pairs = zip(types, values, otherwise, strict=True)
        return [fe.phi(t, (value, after), (other, before)) for t, value, other in pairs]

    def step_of_rows(self) -> str:
        """How many rows a block has."""
        any_ = self.rows[0].copied
        for other in self.rows[1:]:
            any_ = self.fe.op(f"or i1 {any_}, {other.copied}")
        whole = self.fe.intrinsic("smax", "i64", [self.number, "1"])
        return self.fe.op(f"select i1 {any_}, i64 {BLOCK}, i64 {whole}")

    def pack_rows(self, first: str, end: str) -> None:
        """Copy a block of rows: groups of rows after one another, in each the rows innermost."""
        for packed in self.rows:

            def copy(packed: Packed = packed) -> list[str]:
                return self._copy_rows(packed, first, end)

            self._when(packed.copied, copy, [], [])

    def _copy_rows(self, packed: Packed, first: str, end: str) -> list[str]:
        fe, ref = self.fe, self.fe.ref(packed.array)
        assert isinstance(ref.element, Scalar)
        whole = fe.add(first, fe.op(f"and i64 {fe.op(f'sub i64 {end}, {first}')}, {-GROUP}"))
        over_k = Level(fe, self.count, [])
        source = fe.slot(ref.ptr, ref.element, fe.mul(over_k.index, ref.dims[1]))
        target = fe.slot(packed.buffer, ref.element, fe.mul(over_k.index, str(GROUP)))
        groups = Level(fe, whole, [], GROUP, first)
        there = fe.slot(target, ref.element, fe.mul(fe.op(f"sub i64 {groups.index}, {first}"), self.apart))
        size = element_size(ref.element)
        value = fe.load_element(ref.element, fe.slot(source, ref.element, groups.index), GROUP, size)
        fe.store_element(ref.element, value, there, GROUP, size)
        groups.close(fe, [])
        there = fe.slot(target, ref.element, fe.mul(fe.op(f"sub i64 {whole}, {first}"), self.apart))
        rest = Level(fe, end, [], 1, whole)
        value = fe.load_element(ref.element, fe.slot(source, ref.element, rest.index))
        fe.store_element(ref.element, value, fe.slot(there, ref.element, fe.op(f"sub i64 {rest.index}, {whole}")))
        rest.close(fe, [], rolled=True)
        over_k.close(fe, [])
        return []

    def read_rows(self, block: str, indices: list[str]) -> None:
        """Where the loop reads the rows of a group from."""
        fe = self.fe
        for packed in self.rows:
            ref = fe.ref(packed.array)
            start = fe.mul(fe.op(f"sub i64 {indices[0]}, {block}"), self.apart)
            copy = fe.slot(packed.buffer, ref.element, start)
            itself = fe.slot(ref.ptr, ref.element, indices[0])
            packed.ptr = fe.op(f"select i1 {packed.copied}, ptr {copy}, ptr {itself}")
            packed.step = fe.op(f"select i1 {packed.copied}, i64 {GROUP}, i64 {ref.dims[1]}")
            packed.by_row = {
                index: fe.slot(packed.ptr, ref.element, fe.op(f"sub i64 {index}, {indices[0]}")) for index in indices
            }

    def pack_columns(self, base: str, lanes: int) -> None:
        """Copy the columns of a strip, unless they are read where they are."""
        for packed in self.columns:
            ref = self.fe.ref(packed.array)
            itself = self.fe.slot(ref.ptr, ref.element, base)

            def copy(packed: Packed = packed, ref: Ref = ref, itself: str = itself) -> list[str]:
                return self._copy_columns(packed, ref, itself, lanes)

            found = self._when(packed.copied, copy, [itself, ref.dims[1]], ["ptr", "i64"])
            packed.ptr, packed.step = found

    def _copy_columns(self, packed: Packed, ref: Ref, source: str, lanes: int) -> list[str]:
        fe = self.fe
        assert isinstance(ref.element, Scalar)
        size = element_size(ref.element)
        level = Level(fe, self.count, [])
        here = fe.slot(source, ref.element, fe.mul(level.index, ref.dims[1]))
        value = fe.load_element(ref.element, here, lanes, size)
        there = fe.slot(packed.buffer, ref.element, fe.mul(level.index, str(lanes)))
        fe.store_element(ref.element, value, there, lanes, size)
        level.close(fe, [])
        return [packed.buffer, str(lanes)]

    def address(self, op: Op, row: Value, column: Value, whole: bool) -> str | None:
        """Where a read of the loop finds its element; None for other reads."""
        array, *indices = op.operands
        if len(indices) != 2 or indices[0] is not self.k:
            return None
        for packed in self.columns if whole and indices[1] is column else ():
            if packed.array is array:
                return self._at(packed, packed.ptr)
        for packed in self.rows if indices[1] is row else ():
            if packed.array is array:
                return self._at(packed, packed.by_row[self.fe.val(row)])
        return None

    def _at(self, packed: Packed, ptr: str) -> str:
        element = self.fe.ref(packed.array).element
        return self.fe.slot(ptr, element, self.fe.mul(self.fe.val(self.k), packed.step))

    def close(self) -> None:
        for packed in (*self.columns, *self.rows):
            self.fe.module.need("aot.free")
            self.fe.do(f"call void @aot.free(ptr %ctx, ptr {packed.buffer})")


def find(fe: FunctionEmitter, nest: Nest, loop: Op, lanes: int) -> Packs | None:
    """The matrices that a contraction reads at [k, column] or [k, row], if some are not known to be small.

    lanes: the columns of a strip.
    """
    region = loop.regions[0]
    row, column = nest.region.args[-2:]
    extent = fe.env.get(loop.operands[0])
    rows = nest.span(-2)[1]
    if not isinstance(extent, str) or (is_literal(extent) and int(extent) < LONG_SUM):
        return None
    if is_literal(rows) and int(rows) < MANY_ROWS:
        return None
    found: dict[Value, dict[Value, None]] = {row: {}, column: {}}
    for op in region.ops:
        if op.name == "read" and len(op.operands) == 3 and op.operands[1] is region.args[0] and op.operands[2] in found:
            ref = fe.env.get(op.operands[0])
            if isinstance(ref, Ref) and _may_be_long(ref):
                found[op.operands[2]][op.operands[0]] = None
    if not found[row] and not found[column]:
        return None
    return Packs(fe, nest, loop, lanes, list(found[column]), list(found[row]))


def _may_be_long(ref: Ref) -> bool:
    if ref.lanes != 1 or not isinstance(ref.element, Scalar) or not ref.element.is_float:
        return False
    return not is_literal(ref.dims[1]) or int(ref.dims[1]) * element_size(ref.element) >= LONG_STEP
