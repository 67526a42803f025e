"""Arrays whose rows a strip reads over and over, copied with lanes innermost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.codegen.par import Level
from aotdiff.codegen.text import is_literal
from aotdiff.codegen.values import Buffer, Ref, element_size, llvm_type

from aotdiff.ir.graph import Value
from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter


def turn(fe: FunctionEmitter, array: Value, base: str) -> Buffer:
    """Copy the rows of the lanes, from row `base` on, into an array with lanes innermost. It stays pinned."""
    strip, source = fe.strip, fe.ref(array)
    assert strip is not None and isinstance(source.element, Scalar)
    element, size = source.element, fe.count(source.dims[1:])
    row = fe.new_array(source.dims[1:], element, strip.lanes)
    assert row.buffer is not None
    row.buffer.pinned = True
    first = fe.slot(source.ptr, element, fe.mul(base, size))
    width = fe.module.target.lanes()
    if strip.masks:
        _turn_masked(fe, first, size, row)
    elif width > 1 and strip.lanes % width == 0 and element.is_float:
        whole = fe.op(f"and i64 {size}, {-width}")
        _turn_squares(fe, first, size, row, whole)
        _turn_elements(fe, first, size, row, whole)
    else:
        _turn_elements(fe, first, size, row, "0")
    strip.rows[array] = row
    return row.buffer


def _turn_masked(fe: FunctionEmitter, first: str, size: str, row: Ref) -> None:
    """Where some lanes have no row."""
    strip, element = fe.strip, row.element
    assert strip is not None and isinstance(element, Scalar)
    starts = [fe.slot(first, element, fe.mul(size, str(n))) for n in range(strip.lanes)]
    loop = Level(fe, size, [])

    def each(n: int) -> str:
        ptr = strip.if_active(fe, fe.slot(starts[n], element, loop.index), n, fe.module.nowhere())
        return fe.load_element(element, ptr)

    vector = fe.by_lane(element.kind, strip.lanes, each)
    fe.store_element(element, vector, fe.slot(row.ptr, element, loop.index, strip.lanes), strip.lanes)
    loop.close(fe, [], rolled=True)


def _turn_elements(fe: FunctionEmitter, first: str, size: str, row: Ref, start: str) -> None:
    """Element by element, from element `start` of each row on."""
    strip, element = fe.strip, row.element
    assert strip is not None and isinstance(element, Scalar)
    loop = Level(fe, size, [], 1, start)
    lanes = Level(fe, str(strip.lanes), [])
    value = fe.load_element(element, fe.slot(first, element, fe.add(fe.mul(lanes.index, size), loop.index)))
    at = fe.add(fe.mul(loop.index, str(strip.lanes)), lanes.index)
    fe.store_element(element, value, fe.slot(row.ptr, element, at))
    lanes.close(fe, [])
    loop.close(fe, [], rolled=True)


def _turn_squares(fe: FunctionEmitter, first: str, size: str, row: Ref, whole: str) -> None:
    """The first `whole` elements of each row, in squares of vectors that are transposed in registers."""
    strip, element, width = fe.strip, row.element, fe.module.target.lanes()
    assert strip is not None and isinstance(element, Scalar)
    align = element_size(element)
    groups = Level(fe, str(strip.lanes), [], width)
    start = fe.slot(first, element, fe.mul(groups.index, size))
    starts = [fe.slot(start, element, fe.mul(size, str(n))) for n in range(width)]
    loop = Level(fe, whole, [], width)
    vectors = [fe.load_element(element, fe.slot(s, element, loop.index), width, align) for s in starts]
    target = fe.slot(row.ptr, element, fe.add(fe.mul(loop.index, str(strip.lanes)), groups.index))
    for k, vector in enumerate(_transposed(fe, vectors, f"<{width} x {llvm_type(element)}>")):
        fe.store_element(element, vector, fe.slot(target, element, str(k * strip.lanes)), width, align)
    loop.close(fe, [], rolled=True)
    groups.close(fe, [], rolled=True)


def turn_back(fe: FunctionEmitter, source: Ref, rows: list[str]) -> str:
    """Copy an array with lanes innermost into a row for each lane, in squares; gives how many elements that were."""
    strip, element, width = fe.strip, source.element, fe.module.target.lanes()
    assert strip is not None and isinstance(element, Scalar)
    lanes, count = source.lanes, fe.count(source.dims)
    if strip.masks or not element.is_float or width < 2 or lanes != strip.lanes or lanes % width:
        return "0"
    whole = str(int(count) & -width) if is_literal(count) else fe.op(f"and i64 {count}, {-width}")
    if whole == "0":
        return whole
    align = element_size(element)
    loop = Level(fe, whole, [], width)
    start = fe.slot(source.ptr, element, fe.mul(loop.index, str(lanes)))
    for group in range(0, lanes, width):
        places = [fe.slot(start, element, str(k * lanes + group)) for k in range(width)]
        vectors = [fe.load_element(element, place, width, align) for place in places]
        for n, vector in enumerate(_transposed(fe, vectors, f"<{width} x {llvm_type(element)}>")):
            fe.store_element(element, vector, fe.slot(rows[group + n], element, loop.index), width, align)
    loop.close(fe, [])
    return whole


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
