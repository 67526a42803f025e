"""Mathematics of sums over rows takes an iteration in each lane, in a loop behind that of the sums."""

from __future__ import annotations

import numpy as np
import pytest
from aotdiff.codegen import Options, emit_llvm
from native import check

from aotdiff.ir.builder import new_func
from aotdiff.ir.graph import Module
from aotdiff.ir.types import F64, Array


def recurrent() -> Module:
    """h = sigmoid(a @ h), three times."""

    def step(b, k, h, a):
        def each(b, i):
            total = b.par([b.dim(a, 1)], ["sum"], lambda b, j: [b.mul(b.read(a, i, j), b.read(h, j))])[0]
            return [b.scalar("sigmoid", total)]

        return b.par([b.dim(a, 0)], ["map"], each)

    def body(b, a, h):
        return b.for_(b.i64(3), [h], lambda b, k, now: step(b, k, now, a))

    module = Module()
    module.add(new_func("f", [("a", Array(F64, (None, None))), ("h", Array(F64, (None,)))], body))
    return module


@pytest.mark.parametrize("n", [1, 7, 8, 14, 40])
def test_values(n: int) -> None:
    rng = np.random.default_rng(n)
    check(recurrent(), "f", rng.normal(size=(n, n)), rng.normal(size=n), rtol=1e-12, levels=(0, 3))


def test_no_scalar_function_is_called() -> None:
    assert "@exp(double" not in emit_llvm(recurrent(), ["f"])
    assert "@exp(double" in emit_llvm(recurrent(), ["f"], Options(strips=False))
