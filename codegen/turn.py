"""Arrays whose rows a strip reads over and over, copied with lanes innermost, and back.

Where the size of a row is not known when compiling, the copy is a function that all strips of a module share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.par import Level
from aotdiff.codegen.text import is_literal
from aotdiff.codegen.values import Buffer, Ref, element_size, llvm_type

from aotdiff.ir.graph import Value
from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.strip import Strip

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


def turn(fe: FunctionEmitter, array: Value, base: str) -> Buffer:
    """Copy the rows of the lanes, from row `base` on, into an array with lanes innermost. It stays pinned."""
    strip, source = fe.strip, fe.ref(array)
    assert strip is not None and isinstance(source.element, Scalar)
    element, size = source.element, fe.count(source.dims[1:])
    row = fe.new_array(source.dims[1:], element, strip.lanes)
    assert row.buffer is not None
    row.buffer.pinned = True
    first = fe.slot(source.ptr, element, fe.mul(base, size))

    def write(text: FunctionEmitter, strip: Strip, names: Sequence[str]) -> None:
        first, size, to = names
        width = text.module.target.lanes()
        if strip.masks:
            _turn_masked(text, strip, element, first, size, to)
        elif width > 1 and strip.lanes % width == 0 and element.is_float:
            whole = text.op(f"and i64 {size}, {-width}")
            _turn_squares(text, strip, element, first, size, to, whole)
            _turn_elements(text, strip, element, first, size, to, whole)
        else:
            _turn_elements(text, strip, element, first, size, to, "0")

    args = [("ptr noalias readonly", first), ("i64", size), ("ptr noalias", row.ptr)]
    _copied(fe, f"turn.{element.kind}", args, size, write)
    strip.rows[array] = row
    return row.buffer


def _turn_masked(fe: FunctionEmitter, strip: Strip, element: Scalar, first: str, size: str, to: str) -> None:
    """Where some lanes have no row."""
    starts = [fe.slot(first, element, fe.mul(size, str(n))) for n in range(strip.lanes)]
    loop = Level(fe, size, [])

    def each(n: int) -> str:
        ptr = strip.if_active(fe, fe.slot(starts[n], element, loop.index), n, fe.module.nowhere())
        return fe.load_element(element, ptr)

    vector = fe.by_lane(element.kind, strip.lanes, each)
    fe.store_element(element, vector, fe.slot(to, element, loop.index, strip.lanes), strip.lanes)
    loop.close(fe, [], rolled=True)


def _turn_elements(
    fe: FunctionEmitter, strip: Strip, element: Scalar, first: str, size: str, to: str, start: str
) -> None:
    """Element by element, from element `start` of each row on."""
    loop = Level(fe, size, [], 1, start)
    lanes = Level(fe, str(strip.lanes), [])
    value = fe.load_element(element, fe.slot(first, element, fe.add(fe.mul(lanes.index, size), loop.index)))
    at = fe.add(fe.mul(loop.index, str(strip.lanes)), lanes.index)
    fe.store_element(element, value, fe.slot(to, element, at))
    lanes.close(fe, [])
    loop.close(fe, [], rolled=True)


def _turn_squares(
    fe: FunctionEmitter, strip: Strip, element: Scalar, first: str, size: str, to: str, whole: str
) -> None:
    """The first `whole` elements of each row, in squares of vectors that are transposed in registers."""
    align, width = element_size(element), fe.module.target.lanes()
    groups = Level(fe, str(strip.lanes), [], width)
    start = fe.slot(first, element, fe.mul(groups.index, size))
    starts = [fe.slot(start, element, fe.mul(size, str(n))) for n in range(width)]
    loop = Level(fe, whole, [], width)
    vectors = [fe.load_element(element, fe.slot(s, element, loop.index), width, align) for s in starts]
    target = fe.slot(to, element, fe.add(fe.mul(loop.index, str(strip.lanes)), groups.index))
    for k, vector in enumerate(_transposed(fe, vectors, f"<{width} x {llvm_type(element)}>")):
        fe.store_element(element, vector, fe.slot(target, element, str(k * strip.lanes)), width, align)
    loop.close(fe, [], rolled=True)
    groups.close(fe, [], rolled=True)


def turn_back(fe: FunctionEmitter, source: Ref, first: str, size: str) -> None:
    """Copy an array into a row for each lane: `first` is where the first row begins, each takes `size` elements."""
    element, lanes, width = source.element, source.lanes, fe.module.target.lanes()
    assert isinstance(element, Scalar)

    def write(text: FunctionEmitter, strip: Strip, names: Sequence[str]) -> None:
        source, count, first, size = names
        done = "0"
        if not strip.masks and element.is_float and width > 1 and lanes == strip.lanes and lanes % width == 0:
            done = str(int(count) & -width) if is_literal(count) else text.op(f"and i64 {count}, {-width}")
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
