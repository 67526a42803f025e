"""induction: stepped integers become closed forms; what they compute does not change."""

from __future__ import annotations

import numpy as np
import pytest

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Module, Value
from aotdiff.ir.interpreter import run as interpret
from aotdiff.ir.types import I64, Array
from aotdiff.ir.verifier import verify
from aotdiff.passes.pipeline import run


def module_of(body) -> Module:
    module = Module()
    module.add(new_func("f", [("n", I64), ("s", I64), ("a", Array(I64, (None,)))], body))
    verify(module)
    return module


def carries(module: Module) -> int:
    """Carried values left in the loops of the function."""
    run(module, ("canonicalize", "induction", "canonicalize", "cse", "dce"), verify_each=True)
    return sum(op.attrs["carries"] for op in module.funcs["f"].body.walk() if op.name in ("for", "while"))


def counter(b: Builder, n: Value, s: Value, a: Value) -> list[Value]:
    """Steps of 1 and of s + 2."""

    def step(b: Builder, k: Value, total: Value, i: Value, j: Value) -> list[Value]:
        total = b.scalar("maximum", b.add(total, b.mul(i, j)), b.mul(i, i))
        return [total, b.add(i, b.i64(1)), b.add(b.sub(j, b.i64(-2)), s)]

    return b.for_(n, [b.i64(0), s, b.i64(7)], step)


def triangle(b: Builder, n: Value, s: Value, a: Value) -> list[Value]:
    """A counter through the upper triangle of a matrix, of a size that is never negative."""
    size = b.dim(a, 0)

    def row(b: Builder, i: Value, total: Value, k: Value) -> list[Value]:
        def entry(b: Builder, j: Value, total: Value, k: Value) -> list[Value]:
            mixed = b.scalar("mod", b.add(b.mul(total, b.i64(3)), b.mul(k, b.add(j, b.i64(1)))), b.i64(1009))
            return [mixed, b.add(k, b.i64(1))]

        return b.for_(b.sub(b.sub(size, b.i64(1)), i), [total, k], entry)

    return b.for_(size, [b.i64(0), s], row)


def searching(b: Builder, n: Value, s: Value, a: Value) -> list[Value]:
    """A `while` that counts down by 3."""

    def go(b: Builder, k: Value, i: Value, total: Value) -> list[Value]:
        return [b.scalar("gt", i, s)]

    def step(b: Builder, k: Value, i: Value, total: Value) -> list[Value]:
        return [b.sub(i, b.i64(3)), b.scalar("mod", b.add(b.mul(total, i), b.i64(5)), b.i64(97))]

    return b.while_([n, b.i64(1)], go, step)


def conditional(b: Builder, n: Value, s: Value, a: Value) -> list[Value]:
    """Not stepped evenly: stays carried."""

    def step(b: Builder, k: Value, i: Value) -> list[Value]:
        odd = b.scalar("eq", b.scalar("mod", b.add(i, k), b.i64(2)), b.i64(1))
        return [b.add(i, b.select(odd, b.i64(2), b.i64(1)))]

    return b.for_(n, [s], step)


@pytest.mark.parametrize(("body", "left"), [(counter, 1), (triangle, 2), (searching, 1), (conditional, 1)])
def test_closed_forms(body, left: int) -> None:
    module = module_of(body)
    inputs = [(n, s, np.zeros(max(n, 0), np.int64)) for n in (-2, 0, 1, 2, 3, 7, 12) for s in (-4, 0, 1, 5)]
    expected = [interpret(module, "f", list(x)) for x in inputs]
    assert carries(module) == left
    assert [interpret(module, "f", list(x)) for x in inputs] == expected
