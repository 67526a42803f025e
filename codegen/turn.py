"""Arrays whose rows a strip reads over and over, copied with lanes innermost, and back.

Where the size of a row is not known when compiling, the copy is a function that all strips of a module share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.lanes import Key
from aotdiff.codegen.par import Level
from aotdiff.codegen.text import is_literal
from aotdiff.codegen.values import Buffer, Ref, element_size, llvm_type

from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.strip import Strip
    from aotdiff.codegen.terms import Terms

Write = Callable[[FunctionEmitter, "Strip", Sequence[str]], None]


def _copied(fe: FunctionEmitter, stem: str, args: Sequence[tuple[str, str]], size: str, write: Write) -> None:
    """A copy of which `write` is the text, given names of the arguments: called, or in its place if `size` is known."""
    strip = fe.strip
    assert strip is not None
    if is_literal(size):
        write(fe, strip, [name for _, name in args])
        return
    symbol = f"@aot.{stem}.{strip.lanes}{'.masked' if strip.masks else ''}"
    given = [*args, *((strip.mask_type, mask) for mask in strip.masks[-1:])]
    names = [f"%a{n}" for n in range(len(given))]

    def make() -> str:
        text = FunctionEmitter(fe.module, fe.func, fe.flow, False)
        text.strip = replace(strip, masks=names[len(args) :])
        write(text, text.strip, names[: len(args)])
        text.do("ret void")
        params = ", ".join(f"{type_} {name}" for (type_, _), name in zip(given, names, strict=True))
        return f"define internal void {symbol}({params}) #6 {{\n{text.body()}\n}}"

    fe.module.define(symbol, make)
    types = ["ptr" if type_.startswith("ptr") else type_ for type_, _ in given]
    passed = ", ".join(f"{type_} {name}" for type_, (_, name) in zip(types, given, strict=True))
    fe.do(f"call void {symbol}({passed})")


def turn(fe: FunctionEmitter, key: Key, base: str, terms: Terms | None = None) -> Buffer:
    """Copy the rows of the lanes, from row `base` on, into an array with lanes innermost. It stays pinned.

    terms: the elements of a row that are wanted, if not all; their array begins with the first of them.
    """
    strip, (array, lead) = fe.strip, key
    source, inner = fe.ref(array), fe.ref(array).dims[len(lead) + 1 :]
    assert strip is not None and isinstance(source.element, Scalar)
    element, size = source.element, fe.count(inner)
    row = fe.new_array(inner if terms is None else (terms.most,), element, strip.lanes)
    assert row.buffer is not None
    row.buffer.pinned = True
    first, count = fe.element_at(source, [*map(fe.val, lead), base, *("0" for _ in inner)]), size
    if terms is not None:
        first, count = fe.slot(first, element, terms.begin), terms.number(fe)

    def write(text: FunctionEmitter, strip: Strip, names: Sequence[str]) -> None:
        rows = _Rows(text, strip, element, *names)
        width = text.module.target.lanes()
        whole = "0"
        if width > 1 and strip.lanes % width == 0 and element.is_float:
            whole = (
                str(int(rows.count) & -width) if is_literal(rows.count) else text.op(f"and i64 {rows.count}, {-width}")
            )
            rows.squares(whole)
        rows.elements(whole)

    args = [("ptr noalias readonly", first), ("i64", size), ("i64", count), ("ptr noalias", row.ptr)]
    _copied(fe, f"turn.{element.kind}", args, count, write)
    strip.rows[key] = row
    return row.buffer


def _rounded(fe: FunctionEmitter, count: str, width: int) -> str:
    """The multiple of `width`, a power of two, that is not above `count`."""
    return str(int(count) & -width) if is_literal(count) else fe.op(f"and i64 {count}, {-width}")


class _Rows:
    """Rows, from `first` on, each `size` elements behind the one before; `count` of each are copied to `to`.

    Lanes that have no row take the first one.
    """

    def __init__(
        self, fe: FunctionEmitter, strip: Strip, element: Scalar, first: str, size: str, count: str, to: str
    ):  # fmt: skip
        self.fe, self.strip, self.element = fe, strip, element
        self.first, self.size, self.count, self.to = first, size, count, to

    def elements(self, start: str) -> None:
        """Element by element, from element `start` of each row on."""
        fe, element, lanes = self.fe, self.element, self.strip.lanes
        if self.strip.masks:
            self._vectors(start)
            return
        loop = Level(fe, self.count, [], 1, start)
        each = Level(fe, str(lanes), [])
        value = fe.load_element(element, fe.slot(self._row(each.index), element, loop.index))
        at = fe.add(fe.mul(loop.index, str(lanes)), each.index)
        fe.store_element(element, value, fe.slot(self.to, element, at))
        each.close(fe, [])
        loop.close(fe, [], rolled=True)

    def _vectors(self, start: str) -> None:
        """The same where some lanes may have no row."""
        fe, element, lanes = self.fe, self.element, self.strip.lanes
        starts = [self._row(str(n), n) for n in range(lanes)]
        loop = Level(fe, self.count, [], 1, start)
        vector = fe.by_lane(
            element.kind, lanes, lambda n: fe.load_element(element, fe.slot(starts[n], element, loop.index))
        )
        fe.store_element(element, vector, fe.slot(self.to, element, loop.index, lanes), lanes)
        loop.close(fe, [], rolled=True)

    def _row(self, lane: str, n: int | None = None) -> str:
        row = self.fe.slot(self.first, self.element, self.fe.mul(self.size, lane))
        return row if n is None else self.strip.if_active(self.fe, row, n, self.first)

    def squares(self, whole: str) -> None:
        """The first `whole` elements of each row, in squares of vectors that are transposed in registers."""
        fe, lanes = self.fe, self.strip.lanes
        if self.strip.masks:
            for group in range(0, lanes, fe.module.target.lanes()):
                self._squares(str(group), group, whole)
            return
        groups = Level(fe, str(lanes), [], fe.module.target.lanes())
        self._squares(groups.index, None, whole)
        groups.close(fe, [], rolled=True)

    def _squares(self, group: str, n: int | None, whole: str) -> None:
        """Of the rows of one vector; n: the number of the first lane where some may have no row."""
        fe, element, lanes = self.fe, self.element, self.strip.lanes
        align, width = element_size(element), fe.module.target.lanes()
        starts = [self._row(fe.add(group, str(k)), None if n is None else n + k) for k in range(width)]
        loop = Level(fe, whole, [], width)
        vectors = [fe.load_element(element, fe.slot(s, element, loop.index), width, align) for s in starts]
        target = fe.slot(self.to, element, fe.add(fe.mul(loop.index, str(lanes)), group))
        for k, vector in enumerate(_transposed(fe, vectors, f"<{width} x {llvm_type(element)}>")):
            fe.store_element(element, vector, fe.slot(target, element, str(k * lanes)), width, align)
        loop.close(fe, [], rolled=True)


def turn_back(fe: FunctionEmitter, source: Ref, first: str, size: str) -> None:
    """Copy an array into a row for each lane: `first` is where the first row begins, each takes `size` elements."""
    element, lanes, width = source.element, source.lanes, fe.module.target.lanes()
    assert isinstance(element, Scalar)

    def write(text: FunctionEmitter, strip: Strip, names: Sequence[str]) -> None:
        source, count, first, size = names
        done = "0"
        if not strip.masks and element.is_float and width > 1 and lanes == strip.lanes and lanes % width == 0:
            done = _rounded(text, count, width)
        if done != "0":
            _squares_back(text, element, lanes, source, first, size, done)
        level = Level(text, count, [], 1, done)
        vector = text.load_element(element, text.slot(source, element, level.index, lanes), lanes)
        start = text.slot(first, element, level.index)
        for n in range(strip.lanes):
            one = vector if lanes == 1 else text.lane(vector, element.kind, lanes, n)
            there = text.slot(start, element, text.mul(size, str(n)))
            text.store_element(element, one, strip.if_active(text, there, n, text.dummy()))
        level.close(text, [], rolled=not is_literal(count))

    args = [("ptr", source.ptr), ("i64", fe.count(source.dims)), ("ptr", first), ("i64", size)]
    _copied(fe, f"turn_back.{element.kind}.{lanes}", args, size, write)


def _squares_back(
    fe: FunctionEmitter, element: Scalar, lanes: int, source: str, first: str, size: str, whole: str
) -> None:
    """The first `whole` elements of each row, in squares: groups of rows after one another, or at once if few."""
    align, width, few = element_size(element), fe.module.target.lanes(), is_literal(whole)
    groups = None if few else Level(fe, str(lanes), [], width)
    loop = Level(fe, whole, [], width)
    for group in range(0, lanes, width) if groups is None else [groups.index]:
        lane = str(group)
        start = fe.slot(first, element, fe.add(fe.mul(lane, size), loop.index))
        there = fe.slot(source, element, fe.add(fe.mul(loop.index, str(lanes)), lane))
        places = [fe.slot(there, element, str(k * lanes)) for k in range(width)]
        vectors = [fe.load_element(element, place, width, align) for place in places]
        columns = _transposed(fe, vectors, f"<{width} x {llvm_type(element)}>")
        for n, vector in enumerate(columns):
            fe.store_element(element, vector, fe.slot(start, element, fe.mul(size, str(n))), width, align)
    loop.close(fe, [], rolled=not few)
    if groups is not None:
        groups.close(fe, [], rolled=True)


def _transposed(fe: FunctionEmitter, rows: list[str], vector: str) -> list[str]:
    """Columns of a square of vectors: halves change places, then quarters, down to single elements."""
    width = len(rows)
    distance = width // 2
    while distance:
        low = [j if not j & distance else width + j - distance for j in range(width)]
        high = [j + distance if not j & distance else width + j for j in range(width)]
        for i in (i for i in range(width) if not i & distance):
            a, b = rows[i], rows[i + distance]
            rows[i], rows[i + distance] = _shuffled(fe, vector, a, b, low), _shuffled(fe, vector, a, b, high)
        distance //= 2
    return rows


def _shuffled(fe: FunctionEmitter, vector: str, a: str, b: str, places: list[int]) -> str:
    mask = ", ".join(f"i32 {p}" for p in places)
    return fe.op(f"shufflevector {vector} {a}, {vector} {b}, <{len(places)} x i32> <{mask}>")
