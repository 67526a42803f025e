"""Strips away from the edges of a `par`: conditions on the index are decided there."""

from __future__ import annotations

import re

import numpy as np
from aotdiff.codegen import Options, emit_llvm
from aotdiff.codegen.ranges import find
from native import Compiled, same, shapes_of

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Module, Value
from aotdiff.ir.interpreter import run as interpret
from aotdiff.ir.types import F64, I64, Array

VECTOR = Array(F64, (None,))


def _stencil(b: Builder, x: Value, shift: Value) -> list[Value]:
    """Sums over x, exp of neighbours inside; what happens at the edges depends on `shift` too."""
    n = b.dim(x, 0)
    last = b.sub(n, b.i64(1))

    def inside(b: Builder, i: Value) -> list[Value]:
        left, right = b.read(x, b.sub(i, b.i64(1))), b.read(x, b.add(i, b.i64(1)))
        return [b.scalar("exp", b.sub(left, right))]

    def body(b: Builder, i: Value) -> list[Value]:
        edge = b.scalar("or", b.scalar("eq", i, b.i64(0)), b.scalar("eq", i, last))
        one = b.if_(edge, lambda b: [b.read(x, i)], lambda b: inside(b, i))[0]
        early = b.scalar("lt", i, b.i64(3))
        two = b.if_(early, lambda b: [b.scalar("sin", one)], lambda b: [b.scalar("exp", b.neg(one))])[0]
        late = b.scalar("gt", b.add(i, b.i64(2)), last)
        three = b.if_(late, lambda b: [b.mul(two, two)], lambda b: [two])[0]
        free = b.scalar("lt", i, shift)
        four = b.if_(free, lambda b: [b.scalar("log", b.add(b.mul(one, one), b.const(1.0)))], lambda b: [three])[0]
        return [b.add(three, four), four, four, four]

    return b.par([n], ["map", "sum", "max", "argmin"], body)


def test_every_size() -> None:
    module = Module()
    module.add(new_func("f", [("x", VECTOR), ("shift", I64)], _stencil))
    compiled = Compiled(module)
    for n in [*range(20), 31, 32, 33, 34, 35, 36, 49, 50, 65, 66, 67, 68, 71, 72, 73, 84, 100]:
        for shift in (-1, 0, 5, 100):
            args = np.cos(np.arange(n) * 1.7), shift
            expected = interpret(module, "f", args)
            same(compiled.call("f", args, shapes_of(expected)), expected)


def test_what_is_decided() -> None:
    func = new_func("f", [("x", VECTOR), ("shift", I64)], _stencil)
    par = next(op for op in func.body.ops if op.name == "par")
    found = find(par)
    assert found is not None
    assert found.low == 3
    assert sorted(more for _, more in found.highs) == [-1, 0]
    conditions = [op.operands[0] for op in par.regions[0].walk() if op.name == "if"]
    assert [found.decided.get(c) for c in conditions] == [False, False, False, None]


def test_strips_begin_at_a_cache_line() -> None:
    """Where there are many, the strips away from the edges begin at a multiple of the lanes."""
    module = Module()
    module.add(new_func("f", [("x", VECTOR), ("shift", I64)], _stencil))
    begin = r"(%[\w.]+) = and i64 %[\w.]+, -8\n *%[\w.]+ = select i1 %[\w.]+, i64 \1, i64"
    assert re.search(begin, emit_llvm(module, ["f"], Options(cpu="skylake-avx512")))
