"""Loops that keep what they carry: one array has all iterations, and what comes after the last."""

from __future__ import annotations

import numpy as np
from aotdiff.codegen import emit_llvm
from native import Compiled, same, shapes_of

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Module, Value
from aotdiff.ir.interpreter import run as interpret
from aotdiff.ir.types import F64, I64, Array

VECTOR = Array(F64, (None,))


def _single(body, *params) -> Module:
    module = Module()
    module.add(new_func("f", [("x", VECTOR), ("steps", I64), *params], body))
    return module


def _shifted(b: Builder, n: Value, y: Value) -> Value:
    """y[n - 1 - i] + 1: not to be built in the place of y."""
    last = b.sub(n, b.i64(1))
    return b.par([n], ["map"], lambda b, i: [b.add(b.read(y, b.sub(last, i)), b.const(1.0))])[0]


def _agree(module: Module) -> None:
    compiled = Compiled(module, ["f"])
    for n in (0, 1, 7, 40):
        for steps in (0, 1, 2, 5):
            args = np.arange(float(n)) ** 1.5, steps
            expected = interpret(module, "f", args)
            for _ in range(2):
                same(compiled.call("f", args, shapes_of(expected)), expected)


def test_kept_without_copies() -> None:
    def body(b: Builder, x: Value, steps: Value) -> list[Value]:
        n = b.dim(x, 0)
        last, kept = b.for_(steps, [x], lambda b, k, y: [_shifted(b, n, y), y], ["map"], [n])
        total = b.par([steps, n], ["sum"], lambda b, k, i: [b.read(kept, k, i)])[0]
        return [b.par([n], ["map"], lambda b, i: [b.mul(b.read(last, i), total)])[0]]

    module = _single(body)
    text = emit_llvm(module, ["f"])
    assert text.count("call noalias align 64 ptr @aot.alloc(") == 1
    assert text.count("call void @llvm.memcpy") == 1  # the start
    _agree(module)


def test_the_one_before_is_carried_too() -> None:
    """Another carry shows the slots, and outlives the loop; what is carried is also changed and branched on."""

    def body(b: Builder, x: Value, steps: Value) -> list[Value]:
        n = b.dim(x, 0)

        def step(b: Builder, k: Value, y: Value, before: Value) -> list[Value]:
            some = b.scalar("gt", n, b.i64(0))

            def other(b: Builder) -> list[Value]:
                changed = lambda b: [b.update(y, b.const(3.0), b.i64(0))]  # noqa: E731
                return b.if_(some, changed, lambda b: [_shifted(b, n, before)])

            new = b.if_(b.scalar("eq", k, b.i64(1)), lambda b: [y], other)[0]
            return [new, y, y]

        last, before, kept = b.for_(steps, [x, x], step, ["map"], [n])
        first = b.par([n], ["map"], lambda b, i: [b.add(b.read(last, i), b.read(before, i))])[0]
        return [first, before, b.par([steps, n], ["sum"], lambda b, k, i: [b.read(kept, k, i)])[0]]

    _agree(_single(body))


def test_the_kept_array_is_a_result_or_dead() -> None:
    def body(b: Builder, x: Value, steps: Value) -> list[Value]:
        n = b.dim(x, 0)
        last, kept = b.for_(steps, [x], lambda b, k, y: [_shifted(b, n, y), y], ["map"], [n])
        alone, _ = b.for_(steps, [last], lambda b, k, y: [_shifted(b, n, y), y], ["map"], [n])
        return [kept, alone]

    _agree(_single(body))
