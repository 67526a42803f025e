"""Contractions: a `par` over two or more indices around one sum, several rows at once around strips of columns.

What the rows share, which is what is read at the column, is read once for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.codegen import checks, pack
from aotdiff.codegen.leftover import first_lanes
from aotdiff.codegen.par import Level, Reduction, level_with_looks
from aotdiff.codegen.strip import Strip
from aotdiff.codegen.terms import Partial, Terms
from aotdiff.codegen.text import is_literal
from aotdiff.codegen.turn import turn
from aotdiff.codegen.values import element_size

from aotdiff.ir.graph import Op, Region
from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.lanes import Plan
    from aotdiff.codegen.par import Nest

ROWS = 4
FEW_ROWS = 8  # of few vectors: as many sums at once
MANY = 4  # vectors of a strip that two more rows of half as many may follow
MUCH = 8  # operations besides the sum
LINE = 64
ROLLED = 4  # sums at once that keep a core busy without LLVM unrolling their loop


def emit(fe: FunctionEmitter, nest: Nest, plan: Plan, linear: str) -> None:
    """The two innermost loops."""
    _Product(fe, nest, plan, linear).emit()


class _Product:
    """All tiles: blocks of rows, in each blocks of terms, in each strips of columns, in each some rows at once."""

    def __init__(self, fe: FunctionEmitter, nest: Nest, plan: Plan, linear: str):
        self.fe, self.nest, self.plan, self.linear = fe, nest, plan, linear
        region = nest.region
        at = next(k for k, op in enumerate(region.ops) if op.name == "par")
        self.loop, self.before, self.after = region.ops[at], region.ops[:at], region.ops[at + 1 : -1]
        self.lanes = plan.lanes * plan.several
        count = self.loop.operands[0]
        if count.op is not None and count.op in self.before:
            fe.simple(count.op)
        self.terms = Terms(fe, fe.val(count))
        self.packs = pack.find(fe, nest, self.loop, self.lanes, self.terms)
        self.span = nest.span(-2)
        self.partial: Partial | None = None

    def reductions(self) -> list[Reduction]:
        region = self.loop.regions[0]
        return [Reduction("sum", v.type, self.fe.lanes_of(v)) for v in region.yielded if isinstance(v.type, Scalar)]

    def emit(self) -> None:
        fe, (start, end) = self.fe, self.span
        number = end if start == "0" else fe.op(f"sub i64 {end}, {start}")
        many = not is_literal(number) or int(number) > pack.BLOCK
        if self.terms.blocks:
            left, right = self.nest.span(-1)
            rows = fe.intrinsic("smin", "i64", [number, str(pack.BLOCK)]) if many else number
            columns = right if left == "0" else fe.op(f"sub i64 {right}, {left}")
            self.partial = Partial(fe, self.terms, self.reductions(), rows, columns, 2 * self.plan.lanes)
        if many:
            level = Level(fe, end, [], pack.BLOCK, start)
            self.span = level.index, fe.intrinsic("smin", "i64", [fe.add(level.index, str(pack.BLOCK)), end])
            self._block()
            level.close(fe, [])
        else:
            self._block()
        for each in (self.packs, self.partial):
            if each is not None:
                each.close(fe)

    def _block(self) -> None:
        """Some rows."""
        self.terms.open(self.fe)
        if self.packs is not None:
            self.packs.pack_rows(*self.span)
        self._columns()
        self.terms.close(self.fe)

    def _columns(self) -> None:
        """Strips of several vectors, then what is left: of two vectors while there is more than one."""
        fe, lanes = self.fe, self.lanes
        start, end = self.nest.span(-1)
        count = end if start == "0" else fe.op(f"sub i64 {end}, {start}")
        known = int(count) if is_literal(count) else -1
        main = fe.add(start, str(known & -lanes) if known >= 0 else fe.op(f"and i64 {count}, {-lanes}"))
        if not 0 <= known < lanes:
            self._strips(lanes, start, main)
        left = known % lanes if known >= 0 else lanes
        if left:
            self._rest(main, end, left)

    def _rest(self, main: str, end: str, most: int) -> None:
        """What whole strips leave, at `most` so much: more rows of few columns at once.

        Not where there are few rows, which counts where such products are made over and over.
        """
        fe, one, (first, last) = self.fe, self.plan.lanes, self.span
        if self.rows_at_once(one) == ROWS or (is_literal(last) and int(last) <= ROWS):
            self._strips(one, main, end, end)
            return
        if len(self.nest.lead) == 2:
            self._narrow(main, end, most)
            return
        few, many, done = fe.label("few"), fe.label("many"), fe.label("rested")
        rows = fe.op(f"sub i64 {last}, {first}")
        fe.branch(fe.op(f"icmp sle i64 {rows}, {ROWS}"), few, many)
        fe.start(few)
        self._strips(one, main, end, end, ROWS)
        fe.jump(done)
        fe.start(many)
        self._narrow(main, end, most)
        fe.jump(done)
        fe.start(done)

    def _narrow(self, main: str, end: str, most: int) -> None:
        """Strips of two vectors while more than one is left, then of one."""
        fe, one = self.fe, self.plan.lanes
        if self.plan.several == MANY and self.rows_at_once(2 * one) > ROWS and most > one:
            left = fe.op(f"sub i64 {end}, {main}")
            second = fe.add(main, fe.op(f"and i64 {fe.add(left, str(one - 1))}, {-2 * one}"))
            self._strips(2 * one, main, second, end)
            main = second
        self._strips(one, main, end, end)

    def _strips(self, lanes: int, start: str, stop: str, end: str = "", rows: int = 0) -> None:
        """Strips that begin before `stop`, of `rows` at once; some lanes of the last may be behind `end`, if given."""
        fe = self.fe
        level = Level(fe, stop, [], lanes, start)
        masks = [first_lanes(fe, fe.op(f"sub i64 {end}, {level.index}"), lanes)] if end else []
        _Tile(self, lanes, level.index, masks).all_rows(rows or self.rows_at_once(lanes))
        level.close(fe, [])

    def rows_at_once(self, lanes: int) -> int:
        """How many rows a tile has: more where each has few vectors, unless much else is done for each."""
        vectors = lanes // self.plan.lanes * len(self.loop.results)
        few = vectors < self.plan.several * len(self.loop.results) and len(self.before) + len(self.after) <= MUCH
        return FEW_ROWS if few and FEW_ROWS * vectors <= ROWS * MANY else ROWS


class _Tile:
    """Some rows of one strip of columns."""

    def __init__(self, product: _Product, lanes: int, base: str, masks: list[str]):
        self.product, self.fe, self.nest, self.base = product, product.fe, product.nest, base
        self.loop, self.before, self.after = product.loop, product.before, product.after
        self.span, self.packs, self.terms = product.span, product.packs, product.terms
        fe, plan = self.fe, product.plan
        self.row, self.column = self.nest.region.args[-2:]
        self.strip = Strip(lanes, plan.varying, plan.local, {self.column: base}, masks, {}, self.column)
        self.strip.begin = self.terms.begin
        packs = self.packs
        if packs is not None:
            self.strip.elsewhere = lambda op: packs.address(op, self.row, self.column, not masks)
        numbers = ", ".join(f"i64 {n}" for n in range(lanes))
        self.columns = fe.op(f"add nuw nsw <{lanes} x i64> {fe.splat(base, 'i64', lanes)}, <{numbers}>")

    def all_rows(self, rows: int) -> None:
        fe, (start, end) = self.fe, self.span
        if self.nest.outermost:
            checks.poll(fe)
        fe.strip = self.strip
        turned = [turn(fe, key, self.base, self.terms) for key in self.product.plan.rows]
        fe.strip = None
        if self.packs is not None and not self.strip.masks:
            self.packs.pack_columns(self.base)
        if is_literal(end):
            rows = min(rows, int(end))
        look = 1 if checks.runs_long(self.nest.region) else 0
        level = level_with_looks(fe, end, [], look, max(rows, 1), start)
        self._rows(level.index, max(rows, 1))
        level.close(fe, [])
        for buffer in turned:
            buffer.pinned = False
            del fe.scope.owned[buffer]
            fe.free(buffer)

    def _rows(self, first: str, rows: int) -> None:
        """Some rows at once: what comes before the sum for each, one loop for all sums, what comes after for each.

        Where fewer are left the last one is made more than once.
        """
        fe = self.fe
        fe.strip = self.strip
        scope = fe.enter(self.nest.region)
        fe.env[self.column] = self.columns
        last = fe.op(f"sub i64 {self.span[1]}, 1")
        indices = [first] + [fe.intrinsic("smin", "i64", [fe.add(first, str(r)), last]) for r in range(1, rows)]
        if self.packs is not None:
            self.packs.read_rows(self.span[0], indices)
        known = []
        for index in indices:
            fe.env[self.row] = index
            fe.nonneg.add(index)
            self._ops(self.before)
            known.append({v: fe.env[v] for v in (self.row, *(v for op in self.before for v in op.results))})
        if not self.strip.masks:
            self._fetch(indices)
        reductions = self.product.reductions()
        sums, end = self._whole(indices, self._sums(known, reductions), reductions)
        for index, values, totals in zip(indices, known, sums, strict=True):
            fe.env.update(values)
            fe.env.update(zip(self.loop.results, totals, strict=True))
            self._ops(self.after)
            self._store(index)
        if end:
            fe.jump(end)
            fe.start(end)
        for line in fe.free_rest(scope):
            fe.do(line)
        fe.leave()
        fe.strip = None

    def _whole(
        self, indices: list[str], sums: list[list[str]], reductions: list[Reduction]
    ) -> tuple[list[list[str]], str]:
        """Sums of all terms, and where to go on after them: there if this is not the last block."""
        fe, partial = self.fe, self.product.partial
        if partial is None:
            return sums, ""
        column = fe.op(f"sub i64 {self.base}, {self.nest.span(-1)[0]}")
        far = [fe.op(f"sub i64 {index}, {self.span[0]}") for index in indices]
        places = [partial.addresses(fe, column, row, self.strip.lanes) for row in far]
        sums = partial.joined(fe, reductions, sums, places)
        keep, whole, end = fe.label("keep"), fe.label("whole"), fe.label("kept")
        fe.branch(self.terms.last, whole, keep)
        fe.start(keep)
        partial.keep(fe, sums, places, [r.lanes for r in reductions])
        fe.jump(end)
        fe.start(whole)
        return sums, end

    def _ops(self, ops: list[Op]) -> None:
        for op in ops:
            self.fe.simple(op)

    def _sums(self, known: list[dict], reductions: list[Reduction]) -> list[list[str]]:
        """The sums of each row over the terms of a block, in one loop."""
        fe, region = self.fe, self.loop.regions[0]
        starts = [s for _ in known for r in reductions for s in r.starts(fe)]
        level = Level(fe, self.terms.end, starts, 1, self.terms.begin)
        fe.env[region.args[0]] = level.index
        scope = fe.enter(region)
        following: list[str] = []
        for values in known:
            fe.env.update(values)
            self._ops(region.ops[:-1])
            following += self._joined(reductions, region, level.accumulators[len(following) :])
        for line in fe.free_rest(scope):
            fe.do(line)
        fe.leave()
        level.close(fe, following, rolled=len(following) >= ROLLED)
        width = len(reductions)
        return [level.accumulators[n * width : (n + 1) * width] for n in range(len(known))]

    def _joined(self, reductions: list[Reduction], region: Region, state: list[str]) -> list[str]:
        fe = self.fe
        return [
            r.join(fe, [now], fe.val(value), "0")[0]
            for r, now, value in zip(reductions, state, region.yielded, strict=False)
        ]

    def _fetch(self, indices: list[str]) -> None:
        """Have the cache ask for what is written after long sums."""
        fe = self.fe
        fe.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")

        def ask() -> list[str]:
            for index in indices:
                at = self._place(index)
                for m in self.nest.maps:
                    start, element = m.slot(fe, at), m.array.element
                    for n in range(0, self.strip.lanes, LINE // element_size(element)):
                        ptr = fe.slot(start, element, str(n))
                        fe.do(f"call void @llvm.prefetch.p0(ptr {ptr}, i32 1, i32 3, i32 1)")
            return []

        pack.when(fe, self.terms.long, ask, [], [])

    def _place(self, index: str) -> str:
        """Where the results of a row begin."""
        fe, lead = self.fe, self.nest.lead
        at = index if len(lead) == 2 else fe.add(fe.mul(self.product.linear, lead[-2]), index)
        return fe.add(fe.mul(at, lead[-1]), self.base)

    def _store(self, index: str) -> None:
        fe, at = self.fe, self._place(index)
        for m in self.nest.maps:
            assert isinstance(m.value.type, Scalar)
            self.strip.store_contiguous(fe, m.value.type, fe.as_vector(m.value), m.slot(fe, at))
