"""Blocks of arrays that are replaced: by a grid of their own, whatever the sizes, kinds and offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aotdiff.codegen.gpu.emulated import EmulatedTarget

import aotdiff as ad
from aotdiff.runtime.gpu.stages import plan_text

PROGRAM = """
fn columns(x: f64[n, m], y: f64[n], k: i64) -> f64[n, m] {
    var a = 2.0 * x
    a[:, k] = sin(y)
    a[:, 0] = a[:, m-1] * y
    a
}
fn inner(x: f64[n, m]) -> f64[n, m] {
    var a = x
    a[1..n-1, 1..m-1] = x[1..n-1, 1..m-1] * x[0..n-2, 2..m]
    a
}
fn shifted(x: f64[n, m]) -> f64[n, m] {
    var a = x
    a[1..n, :] = a[0..n-1, :]
    a
}
fn rows(x: f64[n, m], y: f64[m]) -> f64[n, m] {
    var a = x
    for k in 1..n { a[k, :] = a[k-1, :] * y }
    a
}
fn found(x: f64[n, m]) -> f64[n, m] {
    var a = x
    let k = argmax(x[0, :])
    a[:, k] = a[:, 0] * a[:, k]
    a
}
fn cubes(x: f64[n, m]) -> f64[n, m, 2] {
    var a = zeros(n, m, 2)
    a[:, :, 0] = x
    a[0, :, :] = [x[0, i] + f64(j) for i in 0..m, j in 0..2]
    a
}
fn side(x: f64[n, m], y: f64[n, m]) -> f64[n, 2*m] = concat(x, y, axis=1)
fn numbers(k: i64[n, m]) -> i64[n, m] {
    var a = k
    a[:, 1] = k[:, 0] + k[:, 1]
    a
}
fn single(x: f32[n, m]) -> f32[n, m] {
    var a = x
    a[:, 1] = a[:, 0] * a[:, 1]
    a
}
"""
RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    return ad.compile_source(PROGRAM), ad.compile_source(PROGRAM, target="emulated")


def arguments(name: str, n: int, m: int) -> list[Any]:
    x = RNG.normal(size=(n, m))
    given = {"columns": [x, RNG.normal(size=n), m - 1], "rows": [x, RNG.normal(size=m)], "side": [x, 1.0 - x]}
    given |= {"numbers": [(10 * x).astype(np.int64)], "single": [x.astype(np.float32)]}
    return given.get(name, [x])


NAMES = ("columns", "inner", "shifted", "rows", "found", "cubes", "side", "numbers", "single")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("n", "m"), [(300, 3), (2, 70), (20, 17)])
def test_values_and_derivatives(both: Any, name: str, n: int, m: int) -> None:
    args = arguments(name, n, m)
    cpu, device = both[0][name], both[1][name]
    np.testing.assert_allclose(device(*args), cpu(*args), rtol=1e-6 if name == "single" else 1e-14)
    if name in ("numbers", "single") or (n, m) != (20, 17):
        return
    weights = RNG.normal(size=np.shape(cpu(*args)))
    np.testing.assert_allclose(device.vjp("x")(*args, weights), cpu.vjp("x")(*args, weights), rtol=1e-12)
    second = [f.vjp("x").vjp("x")(*args, weights, args[0]) for f in (device, cpu)]
    np.testing.assert_allclose(*second, rtol=1e-11, atol=1e-13)


def test_no_thread_does_it_alone(both: Any) -> None:
    for name in set(NAMES) - {"found"}:  # whose index is on the device, where one thread checks it
        compiler, root, places = both[1][name].recipe()
        plan, _, _ = plan_text(compiler, root, places, "f64", EmulatedTarget())
        blocks = {kernel.name: kernel.block for kernel in plan.kernels}
        assert any("insert" in kernel for kernel in blocks) and 1 not in blocks.values(), (name, blocks)


def test_an_offset_that_does_not_fit(both: Any) -> None:
    for module in both:
        with pytest.raises(IndexError, match="index 3 is out of range for size 3"):
            module.columns(np.ones((300, 3)), np.ones(300), 3)


def test_nothing_to_replace(both: Any) -> None:
    for n, m in ((0, 3), (2, 2)):
        x = RNG.normal(size=(n, m))
        for module in both:
            np.testing.assert_array_equal(module.cubes(np.zeros((1, 0))), np.zeros((1, 0, 2)))
            if n:
                np.testing.assert_array_equal(module.inner(x), x)
