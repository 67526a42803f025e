"""The sums of a contraction in blocks of terms: what several tiles read stays in the caches.

What a tile has added up of a block is kept until the last one, row by row of a strip; so sums of f32 keep their digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen.pack import give_back, when
from aotdiff.codegen.par import Level, Reduction
from aotdiff.codegen.text import is_literal
from aotdiff.codegen.values import element_size

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter

BLOCK = 384
LONG = 16
LONGEST = 512  # the last block may have more terms than others


class Terms:
    """`count` terms in blocks of at most `most`; the current one is from `begin` to before `end`.

    long: whether they take longer than memory. several: whether there is more than one block.
    """

    def __init__(self, fe: FunctionEmitter, count: str):
        self.count = count = fe.clamp(count)
        self.begin, self.end = "0", count
        self.blocks = not is_literal(count) or int(count) > LONGEST
        self.long = fe.op(f"icmp sge i64 {count}, {LONG}")
        self.most = count
        self.several = "false"
        if self.blocks:
            self.most = fe.intrinsic("smin", "i64", [count, str(LONGEST)])
            self.several = fe.op(f"icmp sgt i64 {count}, {LONGEST}")
        self._level: Level | None = None
        self.first = self.last = "true"

    def number(self, fe: FunctionEmitter) -> str:
        """How many terms the block has."""
        return self.end if self.begin == "0" else fe.op(f"sub i64 {self.end}, {self.begin}")

    def place(self, fe: FunctionEmitter, k: str) -> str:
        """The number of a term in its block."""
        return k if self.begin == "0" else fe.op(f"sub i64 {k}, {self.begin}")

    def open(self, fe: FunctionEmitter) -> None:
        """The loop over blocks; there is one, if without terms, where there are no terms."""
        if not self.blocks:
            return
        self._level = Level(fe, fe.intrinsic("smax", "i64", [self.count, "1"]), [])
        self.begin = self._level.index
        left = fe.op(f"sub i64 {self.count}, {self.begin}")
        self.last = fe.op(f"icmp sle i64 {left}, {LONGEST}")
        self.first = fe.op(f"icmp eq i64 {self.begin}, 0")
        self.end = fe.op(f"select i1 {self.last}, i64 {self.count}, i64 {fe.add(self.begin, str(BLOCK))}")

    def close(self, fe: FunctionEmitter) -> None:
        if self._level is not None:
            self._level.step = fe.intrinsic("smax", "i64", [self.number(fe), "1"])
            self._level.close(fe, [])
            self._level, self.begin, self.end = None, "0", self.count


class Partial:
    """Sums of the blocks before, of so many rows of all strips; `lanes`: so far may one reach beyond the columns."""

    def __init__(
        self, fe: FunctionEmitter, terms: Terms, reductions: Sequence[Reduction], rows: str, columns: str, lanes: int
    ):
        self.terms, self.rows = terms, rows
        self.types = [r.type for r in reductions]
        self.size = max(element_size(t) for t in self.types)
        count = fe.mul(fe.mul(rows, fe.add(columns, str(lanes))), str(len(self.types) * self.size))
        (self.ptr,) = when(fe, terms.several, lambda: [fe.heap(count)], ["null"], ["ptr"])

    def addresses(self, fe: FunctionEmitter, column: str, row: str, lanes: int) -> list[str]:
        """Of the sums of a row: how many columns are before the strip, and how many rows before this one."""
        start = fe.add(fe.mul(column, self.rows), fe.mul(row, str(lanes)))
        start = fe.mul(start, str(len(self.types)))
        return [
            fe.slot(self.ptr, t, fe.mul(fe.add(start, str(n * lanes)), str(self.size // element_size(t))))
            for n, t in enumerate(self.types)
        ]

    def joined(
        self, fe: FunctionEmitter, reductions: Sequence[Reduction], sums: list[list[str]], places: list[list[str]]
    ) -> list[list[str]]:
        """Sums with those of the blocks before, if there are any."""
        add, end, before = fe.label("add"), fe.label("added"), fe.block_name
        fe.branch(self.terms.first, end, add)
        fe.start(add)
        totals = [
            [
                r.join(fe, [x], fe.load_element(t, place, r.lanes), "0")[0]
                for r, t, x, place in zip(reductions, self.types, row, at, strict=True)
            ]
            for row, at in zip(sums, places, strict=True)
        ]
        after = fe.block_name
        fe.jump(end)
        fe.start(end)
        kinds = [r.starts(fe)[0][0] for r in reductions]
        return [
            [fe.phi(k, (total, after), (x, before)) for k, x, total in zip(kinds, row, each, strict=True)]
            for row, each in zip(sums, totals, strict=True)
        ]

    def keep(self, fe: FunctionEmitter, sums: list[list[str]], places: list[list[str]], lanes: list[int]) -> None:
        for row, at in zip(sums, places, strict=True):
            for t, value, place, width in zip(self.types, row, at, lanes, strict=True):
                fe.store_element(t, value, place, width)

    def close(self, fe: FunctionEmitter) -> None:
        give_back(fe, self.terms.several, self.ptr)
