"""A zero adjoint is an absence: it never meets an infinite partial."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aotdiff.ad.reverse import vjp_func
from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Module, Value
from aotdiff.ir.interpreter import run
from aotdiff.ir.types import F64, I64, Array
from aotdiff.ir.verifier import verify
from tests.ad.reference import check_orders

VECTOR = Array(F64, (None,))


def last_is_unused(b: Builder, a: Value) -> list[Value]:
    """`s += y; y = sqrt(a[k])`: the last root is not used."""

    def step(b: Builder, k: Value, s: Value, y: Value) -> list[Value]:
        return [b.add(s, y), b.scalar("sqrt", b.read(a, k))]

    return b.for_(b.dim(a, 0), [b.const(0.0), b.const(1.0)], step)[:1]


def only_last_is_used(b: Builder, a: Value) -> list[Value]:
    """`y = sqrt(a[k])`: only the last root is used."""
    return b.for_(b.dim(a, 0), [b.read(a, b.i64(0))], lambda b, k, y: [b.scalar("sqrt", b.read(a, k))])


def gradient(body, values: list[float]) -> np.ndarray:
    module = Module()
    func = module.add(new_func("f", [("a", VECTOR)], body))
    reverse = vjp_func(module, func, (0,), False)
    verify(module)
    return run(module, reverse.name, [np.array(values), 1.0])[0]


def test_last_value_unused() -> None:
    np.testing.assert_allclose(gradient(last_is_unused, [4.0, 1.0, 0.0]), [0.25, 0.5, 0.0])
    np.testing.assert_allclose(gradient(last_is_unused, [0.0]), [0.0])


def test_only_last_value_used() -> None:
    np.testing.assert_allclose(gradient(only_last_is_used, [0.0, 0.0, 4.0]), [0.0, 0.0, 0.25])
    assert gradient(only_last_is_used, [4.0, 0.0])[1] == math.inf


def test_overwritten_carry_without_iterations() -> None:
    """With no iteration the result is the init."""
    module = Module()

    def body(b: Builder, x: Value, n: Value) -> list[Value]:
        return b.for_(n, [b.mul(x, x)], lambda b, k, y: [b.scalar("log", b.add(x, b.cast(k, F64)))])

    func = module.add(new_func("f", [("x", F64), ("n", I64)], body))
    reverse = vjp_func(module, func, (0,), False)
    assert run(module, reverse.name, [3.0, 0, 1.0]) == [6.0]
    assert run(module, reverse.name, [3.0, 2, 1.0]) == [0.25]


@pytest.mark.parametrize("body", [last_is_unused, only_last_is_used])
def test_orders(body) -> None:
    module = Module()
    func = module.add(new_func("f", [("a", VECTOR)], body))
    check_orders(module, func, [np.array([1.3, 0.7, 2.1])], 3)
