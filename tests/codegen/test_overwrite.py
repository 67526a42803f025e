"""Maps that take over the memory of an array that dies in them."""

from __future__ import annotations

import numpy as np
from aotdiff.codegen import emit_llvm
from native import check

from aotdiff.ir.builder import new_func
from aotdiff.ir.graph import Module
from aotdiff.ir.types import BOOL, F64, I64, Array

VECTOR = Array(F64, (None,))


def single(params, body) -> Module:
    module = Module()
    module.add(new_func("f", params, body))
    return module


def _scaled(b, n, x, factor):
    return b.par([n], ["map"], lambda b, i: [b.mul(b.read(x, i), factor)])[0]


def _arrays(module) -> int:
    """Arrays that the emitted function asks for."""
    text = emit_llvm(module, ["f"])
    return text.count("call noalias align 64 ptr @aot.alloc(") + text.count("call noalias align 64 ptr @aot.clone(")


def test_a_chain_of_maps_is_built_in_the_result() -> None:
    def body(b, x):
        n = b.dim(x, 0)
        y = _scaled(b, n, x, b.const(2.0))
        z = b.par([n], ["map", "sum"], lambda b, i: [b.add(b.read(y, i), b.const(1.0)), b.read(y, i)])
        return [_scaled(b, n, z[0], z[1])]

    module = single([("x", VECTOR)], body)
    assert _arrays(module) == 0
    check(module, "f", np.array([1.0, -2.0, 4.0]))


def test_branches_change_the_same_array() -> None:
    def body(b, c, x):
        n = b.dim(x, 0)
        y = _scaled(b, n, x, b.const(3.0))
        return b.if_(c, lambda b: [_scaled(b, n, y, b.const(0.5))], lambda b: [y])

    module = single([("c", BOOL), ("x", VECTOR)], body)
    assert _arrays(module) == 0
    for c in (True, False):
        check(module, "f", c, np.arange(5.0))


def test_what_is_needed_later_stays() -> None:
    """Read again afterwards, read at another index, of another size, of another type, or a parameter."""

    def body(b, x, m):
        n = b.dim(x, 0)
        y = _scaled(b, n, x, b.const(2.0))
        z = _scaled(b, n, y, b.const(2.0))
        both = b.par([n], ["sum"], lambda b, i: [b.mul(b.read(y, i), b.read(z, i))])[0]
        last = b.sub(n, b.i64(1))
        turned = b.par([n], ["map"], lambda b, i: [b.add(b.read(z, i), b.read(z, b.sub(last, i)))])[0]
        first = _scaled(b, m, turned, both)
        larger = b.par([n], ["map"], lambda b, i: [b.scalar("gt", b.read(turned, i), b.const(1.0))])[0]
        return [first, larger]

    module = single([("x", VECTOR), ("m", I64)], body)
    assert _arrays(module) == 3  # y, z, and turned, of which only the first m are in a result
    check(module, "f", np.arange(6.0) - 2.0, 4)


def test_two_maps_of_one_array() -> None:
    def body(b, x):
        n = b.dim(x, 0)
        y = _scaled(b, n, x, b.const(2.0))
        pair = b.par([n], ["map", "map"], lambda b, i: [b.add(b.read(y, i), b.const(1.0)), b.read(y, i)])
        return [b.par([n], ["sum"], lambda b, i: [b.mul(b.read(pair[0], i), b.read(pair[1], i))])[0]]

    module = single([("x", VECTOR)], body)
    assert _arrays(module) == 2
    check(module, "f", np.arange(20.0))


def test_a_carried_array_is_changed_in_place() -> None:
    def body(b, x, steps):
        n = b.dim(x, 0)

        def step(b, k, y):
            return [_scaled(b, n, y, b.const(1.5))]

        return b.for_(steps, [x], step)

    module = single([("x", VECTOR), ("steps", I64)], body)
    assert _arrays(module) == 1  # the copy of the parameter it starts from
    for steps in (0, 1, 3):
        check(module, "f", np.arange(19.0), steps)
