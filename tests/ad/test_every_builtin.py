"""Every built-in of the language and every operation of the graph is differentiated to third order, by its table.

Scalar operations are held to mpmath in `test_rules` and `test_functions`, by their tables; here are the built-ins of
arrays, and what is said to have no derivative at all. A new one that is not entered fails.
"""

from __future__ import annotations

import numpy as np
import pytest

import aotdiff as ad
from aotdiff.ad.forward_sweep import HANDLERS
from aotdiff.ad.reverse_sweep import _RULES
from aotdiff.ad.rules import NON_DIFFERENTIABLE
from aotdiff.frontend.builtins import BUILTINS
from aotdiff.ir.interpreter import EVALUATE
from aotdiff.ir.ops import OPS, SCALAR_OPS
from tests.ad.test_functions import ONE, TWO

# A function of x: f64[4] for each; `a` is a matrix of x that is symmetric, positive definite.
SETTING = "let a = [(if i == j { 3.0 } else { 0.0 }) + x[i] * x[j] for i in 0..4, j in 0..4]"
ARRAYS = {
    "clamp": "sum(clamp(x, 0.3 * x[1], 0.8 + x[0]) ** 3)",
    "where": "sum(where(x > 0.7, x ** 3, sin(x)))",
    "sum": "sum(a, axis = 0)[1] ** 2 + sum(x ** 4)",
    "prod": "prod(x) * prod(a, axis = 1)[2]",
    "max": "max(x) ** 3 * max(a, axis = 0, keepdims = true)[0, 1]",
    "min": "min(x) ** 3 * min(a, axis = 1)[1]",
    "mean": "mean(a) * mean(x ** 3)",
    "logsumexp": "logsumexp(x) * logsumexp(a, axis = 1)[0]",
    "softmax": "dot(softmax(x), x) + softmax(a, axis = 0)[1, 2]",
    "log_softmax": "dot(log_softmax(x), x) + log_softmax(a, axis = 1)[1, 2]",
    "cumsum": "sum(cumsum(x) ** 3) + cumsum(a, axis = 0)[2, 1] ** 2",
    "cumprod": "sum(cumprod(x)) + cumprod(a, axis = 1)[2, 3]",
    "sort": "dot(sort(x), x ** 2) + sort(a, axis = 0)[1, 1] ** 2",
    "flip": "dot(flip(x), x ** 2) + flip(a, axis = 1)[0, 3] ** 2",
    "full": "sum(full(x[0], 3) ** 3) * x[1]",
    "reshape": "sum(reshape(x, 2, 2) @ reshape(x, 2, 2)) * x[0]",
    "concat": "sum(concat(x, 2.0 * x) ** 3) + sum(concat(a, a, axis = 1)[0] ** 2)",
    "stack": "sum(stack(x, x ** 2)[1] ** 2)",
    "diag": "sum(diag(a) ** 2) + diag(x)[2, 2] ** 3",
    "outer": "sum(outer(x, x ** 2) ** 2)",
    "dot": "dot(x, x ** 2)",
    "norm": "norm(x) * norm(x[..2])",
    "trace": "trace(a @ a) * x[0]",
    "cholesky": "sum(cholesky(a))",
    "inv": "sum(inv(a))",
    "det": "det(a)",
    "logdet": "logdet(a)",
    "solve": "dot(solve(a, x), x ** 2)",
    "solve_triangular": "dot(solve_triangular(a, x), x) + sum(solve_triangular(a, a, lower = false))",
    "stop_gradient": "sum(x ** 3) + 0.0 * sum(stop_gradient(x))",
}
CONVERSIONS = {"f64", "f32", "real"}
WITHOUT = {
    "isnan", "isinf", "isfinite", "any", "all", "argmax", "argmin", "zeros", "ones", "eye", "len", "shape",
    "i64", "bool",
}  # fmt: skip
X = np.array([0.9, 0.4, 0.75, 1.3])
V = np.array([0.3, -0.8, 0.5, 0.2])


def test_no_builtin_is_forgotten() -> None:
    assert set(BUILTINS) == set(ONE) | set(TWO) | set(ARRAYS) | CONVERSIONS | WITHOUT
    assert not set(ARRAYS) & (set(ONE) | set(TWO))


@pytest.mark.parametrize("name", ARRAYS)
def test_third_order(name: str) -> None:
    """Each order against differences of the one below, and the last one in three mixes of the modes."""
    module = ad.compile_source(f"""
fn f(x: f64[4]) -> f64 {{ {SETTING}; {ARRAYS[name]} + 0.0 * a[0, 0] }}
export f
export d1 = jvp(f)
export g1 = grad(f)
export d2 = |x: f64[4], v: f64[4]| jvp(jvp(f))(x, v, v)
export d3 = |x: f64[4], v: f64[4]| jvp(jvp(jvp(f)))(x, v, v, v)
export h3 = |x: f64[4], v: f64[4]| jvp(hvp(f))(x, v, v)
export r3 = |x: f64[4], v: f64[4]| grad(|x: f64[4]| dot(hvp(f)(x, v), v))(x)
""")
    below = [module.f, lambda x: module.d1(x, V), lambda x: module.d2(x, V), lambda x: module.d3(x, V)]
    for order in (1, 2, 3):
        slope = [below[order - 1](X + t * 1e-4 * V) for t in (1, -1, 2, -2)]
        want = (8 * (slope[0] - slope[1]) - (slope[2] - slope[3])) / 12e-4
        assert below[order](X) == pytest.approx(want, rel=1e-8, abs=1e-8), order
    assert module.g1(X) @ V == pytest.approx(module.d1(X, V), rel=1e-12)
    for found in (module.h3(X, V) @ V, module.r3(X, V) @ V):
        assert found == pytest.approx(module.d3(X, V), rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("name", sorted(NON_DIFFERENTIABLE - {"const"}))
def test_without_derivative_means_constant(name: str) -> None:
    """What is said to have no derivative gives no float, or is flat around every point of its domain."""
    spec = SCALAR_OPS[name]
    if spec.result == "bool" or spec.operands == "bool":
        return
    rng = np.random.default_rng(1)
    for _ in range(20):
        point = [rng.uniform(low, high) for low, high in spec.domain]
        values = {EVALUATE[name](*(p + h for p in point)) for h in (0.0, 1e-6, -1e-6)}
        assert len(values) == 1, point


def test_every_construct_has_both_modes() -> None:
    """Operations that are no arithmetic: those without a rule take or give nothing that varies."""
    nothing = {"dim", "argsort", "check", "yield", "undef", "stop_gradient"}
    replaced = {"vjp", "jvp"}  # by calls, before anything around them is differentiated
    records = {"record_make", "record_unpack"}  # reversed as wholes, see `ad.transpose`
    structured = set(OPS) - set(SCALAR_OPS) - nothing - replaced
    assert set(_RULES) == structured - records
    assert set(HANDLERS) - {"select"} == structured
