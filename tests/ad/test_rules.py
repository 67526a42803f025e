"""Derivative rules by value: every operation against mpmath to third order, special points as the conventions say."""

import math

import mpmath
import numpy as np
import pytest

from aotdiff.ad.expand import expand_derivatives
from aotdiff.ad.forms import make_form
from aotdiff.ad.forward import jvp_func
from aotdiff.ad.rules import NON_DIFFERENTIABLE, PARTIALS, RULES, contributions, formulas
from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Module, Region, Value
from aotdiff.ir.interpreter import run
from aotdiff.ir.ops import OPS, SCALAR_OPS
from aotdiff.ir.types import BOOL, F32, F64, I64
from aotdiff.ir.verifier import verify
from aotdiff.passes import pipeline

INF, NAN = math.inf, math.nan

_mp = mpmath.mp
REFERENCE = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "ratio": lambda x, y: x / y,
    "mod": lambda x, y: x - y * mpmath.floor(x / y),
    "neg": lambda x: -x,
    "pow": lambda x, y: x**y,
    "ipow": lambda x, n: x**n,
    "minimum": min,
    "maximum": max,
    "clamp": lambda x, lo, hi: min(max(x, lo), hi),
    "abs": abs,
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": lambda x: mpmath.log(1 + x),
    "log2": lambda x: mpmath.log(x, 2),
    "log10": mpmath.log10,
    "sqrt": mpmath.sqrt,
    "cbrt": mpmath.cbrt,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "asin": mpmath.asin,
    "acos": mpmath.acos,
    "atan": mpmath.atan,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "sech2": lambda x: mpmath.sech(x) ** 2,
    "asinh": mpmath.asinh,
    "acosh": mpmath.acosh,
    "atanh": mpmath.atanh,
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
    "lgamma": mpmath.loggamma,
    "digamma": mpmath.digamma,
    "polygamma": lambda x: mpmath.polygamma(2, x),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "sigmoid_tail": lambda x: mpmath.sign(x) / (1 + mpmath.exp(abs(x))),
    "from_sigmoid_tail": lambda q: 1 - q if q >= 0 else -q,
    "from_tanh_tail": lambda q, x: mpmath.sign(q) - 2 * q,
    "softplus": lambda x: mpmath.log(1 + mpmath.exp(x)),
    "sinc": lambda x: mpmath.diff(lambda t: mpmath.sin(t) / t, x, 1),
    "relu": lambda x: max(x, 0),
    "atan2": mpmath.atan2,
    "hypot": mpmath.hypot,
    "logaddexp": lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y)),
    "xlogy": lambda x, y: x * mpmath.log(y),
    "select": lambda x, y: x,
    "cast": lambda x: x,
}
ATTRS = {"polygamma": {"order": 2}, "sinc": {"order": 1}, "cast": {"to": F64}}
SMOOTH = sorted(PARTIALS)


def scalar_module(name, arity, **attrs):
    """A module whose @f applies one scalar operation to `arity` f64 parameters."""

    def body(b, *xs):
        return [b.scalar(name, *xs, **attrs)]

    module = Module()
    module.add(new_func("f", [(f"x{i}", F64) for i in range(arity)], body))
    return module


def derivative(module, order, wrt):
    """Name of the `order`-th directional derivative of @f: parameters, then `order` times one direction per `wrt`."""
    name = "f"
    for _ in range(order):
        name = jvp_func(module, module.funcs[name], wrt, value=False).name
    verify(module)
    return name


def directional(module, order, point, direction, wrt=None):
    name = derivative(module, order, range(len(point)) if wrt is None else wrt)
    return run(module, name, [*point, *direction * order])[0]


def test_every_scalar_operation_has_a_rule_or_is_said_to_have_none():
    assert set(RULES) == set(SCALAR_OPS)
    assert not set(PARTIALS) & NON_DIFFERENTIABLE
    assert set(REFERENCE) == set(PARTIALS), "a new operation needs a reference here"
    assert all(formulas(name) and all(formulas(name).values()) for name in PARTIALS)


def _emitted(name):
    """Names of the operations the rule of `name` writes."""
    region = Region([Value(F64, f"x{i}") for i in range(4)] + [Value(BOOL, "c"), Value(I64, "n")])
    b = Builder(region)
    x, y, z, ct, c, n = region.args
    operands = {"select": [c, x, y], "ipow": [x, n], "clamp": [x, y, z]}.get(name) or [x, y, z][: OPS[name].arity]
    op = b.scalar(name, *operands, **ATTRS.get(name, {})).op
    before = len(region.ops)
    contributions(b, op, ct)
    return {o.name for o in region.ops[before:]}


@pytest.mark.parametrize("name", SMOOTH)
def test_rules_are_closed(name):
    assert _emitted(name) <= set(RULES)


def _points(name):
    spec = SCALAR_OPS[name]
    rng = np.random.default_rng(len(name))
    domain = spec.domain or ((-2, 2),) * (2 if name == "select" else 1)
    for _ in range(3):
        point = [float(rng.uniform(lo, hi)) for lo, hi in domain]
        yield point, [float(d) for d in rng.uniform(-1, 1, len(point))]


def _module_of(name, exponent):
    if name == "ipow":
        module = Module()
        module.add(new_func("f", [("x", F64)], lambda b, x: [b.scalar("ipow", x, b.i64(exponent))]))
        return module
    if name == "select":
        module = Module()
        body = lambda b, x, y: [b.select(b.true(), x, y)]  # noqa: E731
        module.add(new_func("f", [("x", F64), ("y", F64)], body))
        return module
    return scalar_module(name, SCALAR_OPS[name].arity, **ATTRS.get(name, {}))


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", SMOOTH)
def test_against_mpmath(name, order):
    reference = REFERENCE[name]
    for exponent in (-2, 1, 2, 3) if name == "ipow" else (0,):
        for point, direction in _points(name):
            if name == "ipow":
                point, direction = point[:1], direction[:1]
            got = directional(_module_of(name, exponent), order, point, direction)
            with _mp.workdps(40):
                xs, us = [mpmath.mpf(p) for p in point], [mpmath.mpf(u) for u in direction]

                def along(t, xs=xs, us=us, exponent=exponent):
                    args = [x + t * u for x, u in zip(xs, us, strict=True)]
                    return reference(*args, exponent) if name == "ipow" else reference(*args)

                want = float(mpmath.re(mpmath.diff(along, 0, order)))
            assert got == pytest.approx(want, rel=1e-11, abs=1e-11), (name, order, point, exponent)


def test_unwanted_partials_are_not_formed():
    region = Region([Value(F64, "x"), Value(F64, "y"), Value(F64, "ct")])
    b = Builder(region)
    x, y, ct = region.args
    op = b.scalar("pow", x, y).op
    found = contributions(b, op, ct, [True, False])
    assert found[0] is not None and found[1] is None
    assert "log" not in {o.name for o in region.ops}


def test_integers_have_no_derivative():
    region = Region([Value(I64, "n"), Value(I64, "m"), Value(F64, "ct")])
    b = Builder(region)
    n, m, ct = region.args
    assert contributions(b, b.add(n, m).op, ct) == [None, None]
    assert contributions(b, b.cast(n, F64).op, ct) == [None]


# Special points -------------------------------------------------------------------------------------------


def partials(module, point, order=1):
    """The `order`-th pure partial in each argument."""
    return [directional(module, order, point, [1.0], [i]) for i in range(len(point))]


def same(got, want):
    return all(math.isnan(g) if math.isnan(w) else g == pytest.approx(w, rel=1e-14, abs=0) for g, w in
               zip(got, want, strict=True))


# (row, operation, attributes, point, value, first partials, second pure partials or None where regular)
ROWS = [
    ("D1", "abs", (0.0,), 0.0, (0,), (0,)),
    ("D1", "abs", (-0.0,), 0.0, (0,), (0,)),
    ("D2", "relu", (0.0,), 0.0, (0,), (0,)),
    ("D3", "maximum", (1.0, 1.0), 1.0, (0.5, 0.5), (0, 0)),
    ("D3", "minimum", (1.0, 1.0), 1.0, (0.5, 0.5), (0, 0)),
    ("D4", "maximum", (NAN, 1.0), NAN, (NAN, NAN), (NAN, NAN)),
    ("D4", "maximum", (1.0, NAN), NAN, (NAN, NAN), (NAN, NAN)),
    ("D4", "minimum", (NAN, 1.0), NAN, (NAN, NAN), (NAN, NAN)),
    ("D4", "minimum", (1.0, NAN), NAN, (NAN, NAN), (NAN, NAN)),
    ("D5", "clamp", (1.0, 1.0, 2.0), 1.0, (0, 1, 0), (0, 0, 0)),
    ("D6", "clamp", (2.0, 1.0, 2.0), 2.0, (0, 0, 1), (0, 0, 0)),
    ("D6", "clamp", (0.5, 3.0, 2.0), 2.0, (0, 0, 1), (0, 0, 0)),
    ("D6", "clamp", (2.0, 2.0, 2.0), 2.0, (0, 0, 1), (0, 0, 0)),
    ("P7", "clamp", (NAN, 1.0, 2.0), NAN, (NAN, NAN, NAN), None),
    ("P7", "clamp", (5.0, NAN, 2.0), NAN, (NAN, NAN, NAN), None),
    ("P7", "relu", (NAN,), NAN, (NAN,), None),
    ("P7", "abs", (NAN,), NAN, (NAN,), None),
    ("D10", "floor", (2.0,), 2.0, (0,), (0,)),
    ("D10", "sign", (0.0,), 0.0, (0,), (0,)),
    ("D11", "mod", (5.5, 2.0), 1.5, (1, -2), (0, 0)),
    ("D12", "sqrt", (0.0,), 0.0, (INF,), (-INF,)),
    ("D12", "cbrt", (0.0,), 0.0, (INF,), (-INF,)),
    ("D15", "hypot", (0.0, 0.0), 0.0, (0, 0), (NAN, NAN)),
    ("D16", "hypot", (1e200, 1e200), 1.4142135623730951e200, (0.5**0.5, 0.5**0.5), None),
    ("D16", "hypot", (1e-200, 1e-200), 1.4142135623730951e-200, (0.5**0.5, 0.5**0.5), None),
    ("D16", "asinh", (1e200,), 461.2101657793691, (1e-200,), (0,)),
    ("D16", "asinh", (-1e200,), -461.2101657793691, (1e-200,), (0,)),
    ("D16", "acosh", (1e200,), 461.2101657793691, (1e-200,), (0,)),
    ("D17", "pow", (0.0, 0.0), 1.0, (0, 0), (0, 0)),
    ("D17", "pow", (3.0, 0.0), 1.0, (0, math.log(3.0)), (0, math.log(3.0) ** 2)),
    ("D17", "pow", (-3.0, 0.0), 1.0, (0, NAN), (0, NAN)),
    ("D18", "pow", (0.0, 1.0), 0.0, (1, 0), (0, 0)),
    ("D19", "pow", (0.0, 2.0), 0.0, (0, 0), (2, 0)),
    ("D20", "pow", (0.0, 0.5), 0.0, (INF, 0), (-INF, 0)),
    ("D21", "pow", (0.0, 1.5), 0.0, (0, 0), (INF, 0)),
    ("D24", "pow", (0.0, -1.0), INF, (-INF, -INF), (INF, INF)),
    ("D25", "pow", (2.0, 1.0), 2.0, (1, 1.38629436111989061883), (0, 2 * math.log(2.0) ** 2)),
    ("D26", "atan2", (0.0, 0.0), 0.0, (0, 0), (NAN, NAN)),
    ("D27", "atan2", (1e-200, 1e-200), 0.7853981633974483, (5e199, -5e199), None),
    ("D28", "atan2", (1.0, 0.0), math.pi / 2, (0, -1), (0, 0)),
    ("D28", "atan2", (0.0, -1.0), math.pi, (-1, 0), (0, 0)),
    ("D29", "logaddexp", (-INF, -INF), -INF, (0, 0), (0, 0)),
    ("D30", "logaddexp", (-INF, 1.0), 1.0, (0, 1), (0, 0)),
    ("D30", "logaddexp", (1.0, -INF), 1.0, (1, 0), (0, 0)),
    ("D37", "xlogy", (0.0, 2.0), 0.0, (math.log(2.0), 0), (0, 0)),
    ("D38", "xlogy", (0.0, 0.0), 0.0, (-INF, 0), (0, NAN)),
    ("P6", "log", (0.0,), -INF, (INF,), (-INF,)),
    ("P6", "log", (-1.0,), NAN, (-1,), (-1,)),
    ("P6", "asin", (1.0,), math.pi / 2, (INF,), None),
    ("tails", "tanh", (20.0,), 1.0, (1.69934170211664e-17,), None),
    ("tails", "tanh", (-20.0,), -1.0, (1.69934170211664e-17,), None),
    ("tails", "tanh", (800.0,), 1.0, (0,), (0,)),
    ("tails", "sigmoid", (40.0,), 1.0, (4.24835425529159e-18,), None),
    ("tails", "sigmoid", (-800.0,), 0.0, (0,), (0,)),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{r[0]}-{r[1]}-{r[2]}" for r in ROWS])
def test_special_points(row):
    _, name, point, value, first, second = row
    module = scalar_module(name, len(point))
    assert same(run(module, "f", point), [value])
    assert same(partials(module, point), first)
    if second is not None:
        assert same(partials(scalar_module(name, len(point)), point, 2), second)


def by_forms(module, forms, point, wrt):
    name = "f"
    for form in forms:
        name = make_form(module, name, form, wrt).name
        expand_derivatives(module)
        pipeline.run(module, ["inline"])
    return run(module, name, list(point))


@pytest.mark.parametrize("row", ROWS, ids=[f"{r[0]}-{r[1]}-{r[2]}" for r in ROWS])
def test_special_points_in_reverse(row):
    _, name, point, value, first, second = row
    assert same(by_forms(scalar_module(name, len(point)), ["grad"], point, tuple(range(len(point)))), first)
    for i in range(len(point)):
        for form in (["hessian"], ["grad", "grad"]):
            if second is not None:
                got = by_forms(scalar_module(name, len(point)), form, point, (i,))
                assert same(got, second[i : i + 1]), (form, i)


@pytest.mark.parametrize("name", SMOOTH)
def test_reverse_against_forward(name):
    """Third order: the gradient's second directional derivative, and the directional third derivative."""
    for point, direction in _points(name):
        if name == "ipow":
            point, direction = point[:1], direction[:1]
        wrt = tuple(range(len(point)))
        want = directional(_module_of(name, 3), 3, point, direction)
        args = [*point, *direction, *direction]
        got = np.dot(by_forms(_module_of(name, 3), ["grad", "jvp", "jvp"], args, wrt), direction)
        assert got == pytest.approx(want, rel=1e-12, abs=1e-12)
        if len(point) == 1:
            want = directional(_module_of(name, 3), 3, point, [1.0])
            got = by_forms(_module_of(name, 3), ["grad", "grad", "grad"], point, wrt)
            assert got == pytest.approx([want], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("exponent", "at_zero"), [
    (0.0, (1, 0, 0, 0)), (1.0, (0, 1, 0, 0)), (2.0, (0, 0, 2, 0)), (3.0, (0, 0, 0, 6)), (0.5, (0, INF, -INF, INF)),
    (1.5, (0, 0, INF, -INF)), (-1.0, (INF, -INF, INF, -INF)),
])
def test_literal_exponents_agree_with_run_time_ones(exponent, at_zero):
    module = Module()
    module.add(new_func("f", [("x", F64)], lambda b, x: [b.scalar("pow", x, b.const(exponent))]))
    for order in (1, 2, 3):
        assert same([directional(module, order, [0.0], [1.0])], [at_zero[order]])
        assert same([directional(scalar_module("pow", 2), order, [0.0, exponent], [1.0], [0])], [at_zero[order]])


@pytest.mark.parametrize("n", [0, 1, 2, 3, -1])
def test_integer_powers_at_zero(n):
    falling = [1, n, n * (n - 1), n * (n - 1) * (n - 2)]
    for run_time in (False, True):
        module = Module()
        body = lambda b, x, k, own=run_time: [b.scalar("ipow", x, k if own else b.i64(n))]  # noqa: E731
        module.add(new_func("g", [("x", F64), ("n", I64)], body))
        name = "g"
        for order in (1, 2, 3):
            name = jvp_func(module, module.funcs[name], (0,), value=False).name
            got = run(module, name, [0.0, n, *[1.0] * order])[0]
            assert same([got], [falling[order] * (0.0 ** (n - order) if n >= order else INF) if falling[order] else 0])


def test_mixed_partial_of_pow_where_the_exponent_is_zero():
    module = scalar_module("pow", 2)
    first = jvp_func(module, module.funcs["f"], (0, 1), value=False)
    second = jvp_func(module, first, (0, 1), value=False)
    # d/dy d/dx x ** y at (2, 0) is 1 / x
    assert run(module, second.name, [2.0, 0.0, 1.0, 0.0, 0.0, 1.0]) == [0.5]
    assert run(module, second.name, [2.0, 0.0, 0.0, 1.0, 1.0, 0.0]) == [0.5]


def test_sinc_at_zero_to_fourth_order():
    module = scalar_module("sinc", 1, order=0)
    assert [directional(module, k, [0.0], [1.0]) for k in range(1, 5)] == pytest.approx([0, -1 / 3, 0, 1 / 5])


def test_kept_precision_of_second_derivatives_in_the_tails():
    with _mp.workdps(40):
        want = float(mpmath.diff(mpmath.tanh, 20, 2))
    assert directional(scalar_module("tanh", 1), 2, [20.0], [1.0]) == pytest.approx(want, rel=1e-13)


def test_a_side_not_chosen_contributes_nothing_even_with_infinite_direction():
    module = Module()
    module.add(new_func("f", [("x", F64)], lambda b, x: [b.scalar("maximum", x, b.const(1.0))]))
    assert directional(module, 1, [0.0], [INF]) == 0.0


def test_single_precision_rules_stay_in_single_precision():
    for name in SMOOTH:
        if name in ("cast", "select", "ipow"):
            continue
        module = Module()
        arity = SCALAR_OPS[name].arity
        body = lambda b, *xs, name=name: [b.scalar(name, *xs, **ATTRS.get(name, {}))]  # noqa: E731
        module.add(new_func("f", [(f"x{i}", F32) for i in range(arity)], body))
        for order in (1, 2):
            derivative(module, order, range(arity))
