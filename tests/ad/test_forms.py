"""The nine derivative forms: parameters, results and their order, values worked by hand."""

import math

import numpy as np
import pytest

from aotdiff.ad.expand import expand_derivatives
from aotdiff.ad.forms import FORMS, make_form
from aotdiff.ir.interpreter import run
from aotdiff.ir.parser import parse_module
from aotdiff.ir.verifier import verify

# s(x, y, n) = sum(x[i] * x[i] * y), with an integer result beside it
SCALAR = """func @f(%x: f64[?], %y: f64, %n: i64) -> (i64, f64) {
  %m = dim %x {axis = 0} : i64
  %s = par %m {kinds = ["sum"]} : f64 (%i: i64) {
    %0 = read %x, %i : f64
    %1 = mul %0, %0 : f64
    %2 = mul %1, %y : f64
    yield %2
  }
  %k = add %n, %m : i64
  yield %k, %s
}"""

# v(x, y) = [x[i] * x[0] for i], and the scalar y * x[0] ** 2
SEVERAL = """func @f(%x: f64[?], %y: f64) -> (f64[?], f64) {
  %m = dim %x {axis = 0} : i64
  %z = const 0 : i64
  %a = read %x, %z : f64
  %v = par %m {kinds = ["map"]} : f64[?] (%i: i64) {
    %0 = read %x, %i : f64
    %1 = mul %0, %a : f64
    yield %1
  }
  %2 = mul %a, %a : f64
  %3 = mul %2, %y : f64
  yield %v, %3
}"""

X, Y = np.array([2.0, 3.0, 5.0]), 7.0
V_BY_X = np.array([[4.0, 0, 0], [3, 2, 0], [5, 0, 2]])


def form(text, name, wrt, args, of="f"):
    module = parse_module(text)
    made = make_form(module, of, name, wrt)
    assert make_form(module, of, name, wrt) is made
    verify(module)
    expand_derivatives(module)
    verify(module)
    return made, run(module, made.name, args)


def check(text, name, wrt, args, want, params=None):
    made, got = form(text, name, wrt, args)
    assert len(got) == len(want) == len(made.result_types)
    for g, w in zip(got, want, strict=True):
        assert np.shape(g) == np.shape(w)
        assert np.allclose(g, w, rtol=1e-13)
    if params is not None:
        assert [p.name for p in made.params] == params


S = float(sum(X * X))


@pytest.mark.parametrize(("name", "wrt", "extra", "want", "params"), [
    ("grad", (0,), [], [2 * X * Y], []),
    ("grad", (1, 0), [], [S, 2 * X * Y], []),
    ("value_and_grad", (0, 1), [], [4, S * Y, 2 * X * Y, S], []),
    ("vjp", (0,), [2.0], [4 * X * Y], ["ct"]),
    ("value_and_vjp", (1,), [2.0], [4, S * Y, 2 * S], ["ct"]),
    ("jvp", (0,), [np.ones(3)], [2 * Y * sum(X)], ["d_x"]),
    ("jvp", (0, 1), [np.ones(3), 1.0], [2 * Y * sum(X) + S], ["d_x", "d_y"]),
    ("value_and_jvp", (1,), [3.0], [4, S * Y, 3 * S], ["d_y"]),
    ("jacobian", (0,), [], [2 * X * Y], []),
    ("jacobian", (1,), [], [S], []),
    ("jacobian", (0, 1), [], [2 * X * Y, S], []),
    ("hessian", (0,), [], [2 * Y * np.eye(3)], []),
    ("hessian", (0, 1), [], [2 * Y * np.eye(3), 2 * X, 2 * X, 0.0], []),
    ("hvp", (0,), [np.array([1.0, 2, 3])], [2 * Y * np.array([1.0, 2, 3])], ["v"]),
    ("hvp", (0, 1), [np.ones(3), 2.0], [2 * Y + 4 * X, 2 * sum(X)], ["v_x", "v_y"]),
])
def test_scalar_function(name, wrt, extra, want, params):
    check(SCALAR, name, wrt, [X, Y, 1, *extra], want, ["x", "y", "n", *params])


V, W = X * X[0], Y * X[0] ** 2


@pytest.mark.parametrize(("name", "wrt", "extra", "want"), [
    ("vjp", (0, 1), [np.ones(3), 2.0], [V_BY_X.sum(0) + [2 * 2 * Y * 2, 0, 0], 2 * 4.0]),
    ("value_and_vjp", (1,), [np.ones(3), 2.0], [V, W, 8.0]),
    ("jvp", (0,), [np.array([1.0, 0, 0])], [V_BY_X[:, 0], 2 * Y * 2]),
    ("value_and_jvp", (1,), [1.0], [V, W, np.zeros(3), 4.0]),
    ("jacobian", (0,), [], [V_BY_X, [28.0, 0, 0]]),
    ("jacobian", (0, 1), [], [V_BY_X, np.zeros(3), [28.0, 0, 0], 4.0]),
])
def test_several_results(name, wrt, extra, want):
    check(SEVERAL, name, wrt, [X, Y, *extra], want)


def test_the_two_cotangents_have_numbers():
    made, _ = form(SEVERAL, "vjp", (0,), [X, Y, np.ones(3), 1.0])
    assert [p.name for p in made.params] == ["x", "y", "ct0", "ct1"]


def both_ways(x_type, r_type, n):
    """r[i] = exp(x[i]) for i < n, x longer or shorter in turn."""
    return f"""func @f(%x: {x_type}) -> ({r_type}) {{
      %n = const {n} : i64
      %m = dim %x {{axis = 0}} : i64
      %v = par %n {{kinds = ["map"]}} : {r_type} (%i: i64) {{
        %k = mod %i, %m : i64
        %0 = read %x, %k : f64
        %1 = exp %0 : f64
        yield %1
      }}
      yield %v
    }}"""


def wrapped(m, n):
    x = np.linspace(0.1, 1.0, m)
    want = np.zeros((n, m))
    for i in range(n):
        want[i, i % m] = math.exp(x[i % m])
    return x, want


@pytest.mark.parametrize(("m", "n"), [(2, 5), (5, 2), (3, 3)])
def test_the_jacobian_goes_the_cheaper_way(m, n):
    x, want = wrapped(m, n)
    check(both_ways(f"f64[{m}]", f"f64[{n}]", n), "jacobian", (0,), [x], [want])
    check(both_ways("f64[?]", f"f64[{n}]", n), "jacobian", (0,), [x], [want])
    made, _ = form(both_ways(f"f64[{m}]", f"f64[{n}]", n), "jacobian", (0,), [x])
    pars = [op for op in made.body.ops if op.name == "par"]
    assert len(pars) == (2 if m <= n else 1)  # by columns: the columns and their transpose
    assert made.result_types[0].dims == (n, m)


def test_jacobian_of_matrices_has_both_shapes():
    text = """func @f(%a: f64[2, 3]) -> (f64[3, 2]) {
      %r = const 3 : i64
      %c = const 2 : i64
      %v = par %r, %c {kinds = ["map"]} : f64[3, 2] (%i: i64, %j: i64) {
        %0 = read %a, %j, %i : f64
        %1 = mul %0, %0 : f64
        yield %1
      }
      yield %v
    }"""
    a = np.arange(6.0).reshape(2, 3)
    want = np.zeros((3, 2, 2, 3))
    for i in range(3):
        for j in range(2):
            want[i, j, j, i] = 2 * a[j, i]
    check(text, "jacobian", (0,), [a], [want])


def test_forms_of_forms():
    text = """func @f(%x: f64) -> (f64) {
      %n = const 5 : i64
      %r = ipow %x, %n : f64
      yield %r
    }"""
    module = parse_module(text)
    name = "f"
    for _ in range(3):
        name = make_form(module, name, "grad", (0,)).name
    hessian = make_form(module, name, "hessian", (0,)).name
    expand_derivatives(module)
    verify(module)
    assert run(module, name, [1.0]) == [60.0]
    assert run(module, hessian, [2.0]) == [120.0]


def test_each_result_of_a_gradient_is_differentiated_alone():
    # sqrt(y) has an infinite slope at 0; the other result does not depend on it.
    text = """func @f(%x: f64, %y: f64) -> (f64, f64) {
      %0 = mul %x, %x : f64
      %1 = sqrt %y : f64
      yield %0, %1
    }"""
    check(text, "grad", (0, 1), [3.0, 0.0], [6.0, 0.0, 0.0, math.inf])


def test_single_precision():
    text = """func @f(%x: f32) -> (f32) {
      %0 = mul %x, %x : f32
      yield %0
    }"""
    check(text, "value_and_grad", (0,), [3.0], [9.0, 6.0])
    check(text, "hessian", (0,), [3.0], [2.0])


def test_a_parameter_of_the_name_of_an_extra_one():
    text = """func @f(%v: f64) -> (f64) {
      %0 = mul %v, %v : f64
      yield %0
    }"""
    check(text, "hvp", (0,), [3.0, 1.0], [2.0], ["v", "v_"])


def extreme(kind):
    return f"""func @f(%x: f64[?], %y: f64) -> (f64) {{
      %n = dim %x {{axis = 0}} : i64
      %r = par %n {{kinds = ["{kind}"]}} : f64 (%i: i64) {{
        %0 = read %x, %i : f64
        %1 = mul %0, %y : f64
        yield %1
      }}
      yield %r
    }}"""


@pytest.mark.parametrize(("kind", "x", "want"), [
    ("max", [3.0, 3.0, 1.0], [[2, 0, 0], 3]),
    ("min", [3.0, 1.0, 1.0], [[0, 2, 0], 1]),
    ("max", [3.0, math.nan, 1.0], [[math.nan] * 3, math.nan]),
    ("min", [math.nan, 1.0, 1.0], [[math.nan] * 3, math.nan]),
])
def test_first_winner_takes_all_and_nan_spoils_all(kind, x, want):
    got = form(extreme(kind), "grad", (0, 1), [np.array(x), 2.0])[1]
    assert np.array_equal(got[0], want[0], equal_nan=True) and np.array_equal(got[1], want[1], equal_nan=True)
    columns = [form(extreme(kind), "jvp", (0,), [np.array(x), 2.0, np.eye(3)[i]])[1][0] for i in range(3)]
    assert np.array_equal(columns, want[0], equal_nan=True)


RULES = """func @f(%x: f64[?], %y: f64) -> (f64) {{
  %z = const 1 : i64
  %0 = read %x, %z : f64
  %1 = call @g %x, %0 : f64
  %2 = mul %1, %y : f64
  yield %2
}}
func @g(%x: f64[?], %y: f64) -> (f64) attributes {{{kind} = "rule"}} {{
  %k = const 0 : i64
  %0 = read %x, %k : f64
  %1 = mul %0, %y : f64
  yield %1
}}
"""
BACK = RULES.format(kind="vjp") + """func @rule(%x: f64[?], %y: f64, %ct: f64) -> (f64[?], f64) {
  %n = dim %x {axis = 0} : i64
  %v = par %n {kinds = ["map"]} : f64[?] (%i: i64) {
    %0 = read %x, %i : f64
    %1 = mul %0, %ct : f64
    yield %1
  }
  %2 = mul %y, %ct : f64
  yield %v, %2
}"""
FORTH = RULES.format(kind="jvp") + """func @rule(%x: f64[?], %y: f64, %dx: f64[?], %dy: f64) -> (f64) {
  %n = dim %x {axis = 0} : i64
  %s = par %n {kinds = ["sum"]} : f64 (%i: i64) {
    %0 = read %x, %i : f64
    %1 = read %dx, %i : f64
    %2 = mul %0, %1 : f64
    yield %2
  }
  %3 = mul %y, %dy : f64
  %4 = add %s, %3 : f64
  yield %4
}"""


@pytest.mark.parametrize("text", [BACK, FORTH])
def test_a_rule_serves_both_modes_and_higher_orders(text):
    # g's rule says g_x = x and g_y = y; f = y * g(x, x[1]): f_x = y * (x + e1 * x[1]), f_y = g
    x = np.array([2.0, 3.0, 5.0])
    fx = Y * np.array([2.0, 6.0, 5.0])
    u = np.array([1.0, -2.0, 0.5])
    check(text, "grad", (0, 1), [x, Y], [fx, 6.0])
    check(text, "jvp", (0,), [x, Y, u], [fx @ u])
    check(text, "jvp", (0, 1), [x, Y, u, 2.0], [fx @ u + 12.0])
    check(text, "hvp", (0,), [x, Y, u], [Y * np.array([1.0, -4.0, 0.5])])
    check(text, "hessian", (0,), [x, Y], [Y * np.diag([1.0, 2.0, 1.0])])


def test_the_table_has_all_nine():
    assert list(FORMS) == ["grad", "value_and_grad", "vjp", "value_and_vjp", "jvp", "value_and_jvp", "jacobian",
                           "hessian", "hvp"]
