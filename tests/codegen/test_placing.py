"""Maps that are built where they are inserted, and those that must not be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from aotdiff.codegen import emit_llvm
from native import Compiled, same, shapes_of

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Module, Value
from aotdiff.ir.interpreter import run as interpret
from aotdiff.ir.types import F64, I64, Array
from aotdiff.passes.pipeline import run

MATRIX = Array(F64, (None, None))
Step = Callable[[Builder, Value, Value, Value], Value]  # (builder, row, matrix, columns) -> matrix


def _loop(step: Step) -> Module:
    """A loop over the rows of a matrix but for the first, which is to be changed row by row."""

    def body(b: Builder, x: Value, steps: Value) -> list[Value]:
        m, n = b.dim(x, 0), b.dim(x, 1)

        def each(b: Builder, k: Value, y: Value) -> list[Value]:
            return [step(b, b.scalar("mod", k, b.sub(m, b.i64(1))), y, n)]

        return b.for_(steps, [x], each)

    module = Module()
    module.add(new_func("f", [("x", MATRIX), ("steps", I64)], body))
    run(module, ["canonicalize"])  # constants come first
    return module


def _row(b: Builder, n: Value, element: Callable[[Builder, Value], Value]) -> Value:
    return b.par([n], ["map"], lambda b, i: [element(b, i)])[0]


def _put(b: Builder, y: Value, row: Value, k: Value, n: Value, column: int = 0) -> Value:
    return b.insert(y, b.reshape(row, [b.i64(1), n]), k, b.i64(column))


def _made(module: Module) -> int:
    """Arrays that the function asks for."""
    text = emit_llvm(module, ["f"])
    return text.count("call noalias align 64 ptr @aot.alloc(") + text.count("call noalias align 64 ptr @aot.clone(")


def _agree(module: Module) -> None:
    compiled = Compiled(module, ["f"])
    for n in (1, 2, 7, 8, 9, 17, 40):
        for steps in (0, 1, 5):
            args = np.sin(np.arange(3.0 * n)).reshape(3, n), steps
            expected = interpret(module, "f", args)
            same(compiled.call("f", args, shapes_of(expected)), expected, 1e-11)


def test_a_row_is_changed_in_place() -> None:
    def step(b: Builder, k: Value, y: Value, n: Value) -> Value:
        element = lambda b, i: b.add(b.scalar("exp", b.neg(b.read(y, k, i))), b.read(y, k, i))  # noqa: E731
        return _put(b, y, _row(b, n, element), k, n)

    module = _loop(step)
    assert _made(module) == 1  # of the parameter
    _agree(module)


def test_two_rows_at_once_of_which_one_is_used_otherwise() -> None:
    def step(b: Builder, k: Value, y: Value, n: Value) -> Value:
        first, last = b.i64(1), b.i64(2)

        def each(b: Builder, i: Value) -> list[Value]:
            u, v = b.read(y, first, i), b.read(y, last, i)
            return [b.scalar("sin", b.add(u, v)), b.mul(u, b.read(y, b.i64(0), i))]

        one, two = b.par([n], ["map", "map"], each)
        y = _put(b, _put(b, y, one, first, n), two, last, n)
        total = b.par([n], ["sum"], lambda b, i: [b.read(one, i)])[0]
        return b.update(y, total, b.i64(0), b.i64(0))

    module = _loop(step)
    assert _made(module) == 2  # of the parameter, the row that is summed
    _agree(module)


def _next_column(b: Builder, k: Value, y: Value, n: Value) -> Value:
    """Reads what another iteration overwrites."""
    last = b.sub(n, b.i64(1))
    return _put(b, y, _row(b, n, lambda b, i: b.add(b.read(y, k, b.sub(last, i)), b.const(1.0))), k, n)


def _some_row(b: Builder, k: Value, y: Value, n: Value) -> Value:
    """Reads a row that may be the one written."""
    return _put(b, y, _row(b, n, lambda b, i: b.add(b.read(y, b.i64(1), i), b.read(y, k, i))), k, n)


def _read_between(b: Builder, k: Value, y: Value, n: Value) -> Value:
    """The old row is used after the new one is there."""
    row = _row(b, n, lambda b, i: b.scalar("cos", b.read(y, k, i)))
    total = b.par([n], ["sum"], lambda b, i: [b.read(y, k, i)])[0]
    return b.update(_put(b, y, row, k, n), total, b.i64(0), b.i64(0))


def _twice_the_same(b: Builder, k: Value, y: Value, n: Value) -> Value:
    """Two rows over each other: the later one stays."""
    one, two = b.par([n], ["map", "map"], lambda b, i: [b.read(y, k, i), b.neg(b.read(y, k, i))])
    return _put(b, _put(b, y, one, k, n), two, k, n)


def _maybe_the_same(b: Builder, k: Value, y: Value, n: Value) -> Value:
    one, two = b.par([n], ["map", "map"], lambda b, i: [b.scalar("sin", b.read(y, k, i)), b.neg(b.read(y, k, i))])
    return _put(b, _put(b, y, two, b.i64(1), n), one, k, n)


def _part_of_a_row(b: Builder, k: Value, y: Value, n: Value) -> Value:
    """Shifted by a column within the row."""
    less = b.sub(n, b.i64(1))
    return _put(b, y, _row(b, less, lambda b, i: b.scalar("sin", b.read(y, k, i))), k, less, 1)


def _whole(b: Builder, k: Value, y: Value, n: Value) -> Value:
    """All rows but the first, from what they were and the first."""
    rows = b.par([b.i64(2), n], ["map"], lambda b, j, i: [b.mul(b.const(0.5), b.read(y, b.i64(0), i))])[0]
    return b.insert(y, rows, b.i64(1), b.i64(0))


@pytest.mark.parametrize(
    "step", [_next_column, _some_row, _read_between, _twice_the_same, _maybe_the_same, _part_of_a_row, _whole]
)
def test_what_is_read_is_as_it_was(step: Step) -> None:
    _agree(_loop(step))


def test_not_before_a_check() -> None:
    """What stops the program before the row is inserted comes before anything is written."""

    def step(b: Builder, k: Value, y: Value, n: Value) -> Value:
        row = _row(b, n, lambda b, i: b.neg(b.read(y, k, i)))
        b.check(b.scalar("lt", k, b.dim(y, 0)), "IndexError", "out of range")
        return _put(b, y, row, k, n)

    module = _loop(step)
    assert _made(module) == 2
    _agree(module)
