"""Programs lowered and run by the interpreter: statements, functions, control flow. Values by hand or NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aotdiff.frontend.diagnostics import CompileError
from tests.frontend.lowering import call, checks, close, fails, lowered

X = np.array([1.0, -2.0, 3.5, 0.25])
A = np.arange(12.0).reshape(3, 4) - 4.0


# Control flow -------------------------------------------------------------------------------------------------


def test_break_in_nested_ifs_keeps_what_was_assigned():
    source = """
fn f(x: f64[n]) -> (f64, i64) {
    var s = 0.0
    var at = -1
    for i in 0..n {
        if x[i] > 0.0 {
            s += x[i]
            if s > 3.0 {
                at = i
                s = 100.0
                break
            }
        }
        s += 0.5
    }
    (s, at)
}"""
    s, at = call(source, "f", X)
    assert (s, at) == (100.0, 2)
    s, at = call(source, "f", X[:2])
    assert (s, at) == (2.0, -1)


def test_continue_and_return_in_while():
    source = """
fn f(limit: i64) -> i64 {
    var k = 0
    var odd = 0
    while true {
        k += 1
        if k % 2 == 0 { continue }
        odd += k
        if odd > limit { return k }
    }
}"""
    assert call(source, "f", 20) == 9  # 1 + 3 + 5 + 7 + 9 = 25


def test_return_in_the_middle_of_an_expression():
    source = """
fn f(x: f64) -> f64 {
    let y = 1.0 + if x < 0.0 { return -1.0 } else { sqrt(x) }
    2.0 * y
}
fn g(x: f64) -> f64 {
    var s = 1.0
    for i in 0..3 { s += if x < 0.0 { break } else { x } * 2.0 }
    s
}
fn h(x: f64) -> f64 = if x > 0.0 { if x > 1.0 { return 5.0 }; x } else { 0.0 }
"""
    assert call(source, "f", -3.0) == -1.0
    assert call(source, "f", 4.0) == 6.0
    assert call(source, "g", 2.0) == 13.0
    assert call(source, "g", -2.0) == 1.0
    assert [call(source, "h", v) for v in (2.0, 0.5, -1.0)] == [5.0, 0.5, 0.0]


def test_return_of_arrays_from_loops():
    source = """
fn f(a: f64[n, m], level: f64) -> f64[m] {
    for i in 0..n {
        if sum(a[i]) > level { return a[i] * 2.0 }
    }
    zeros(m)
}"""
    close(call(source, "f", A, 0.0), A[1] * 2.0)
    close(call(source, "f", A, 1e9), np.zeros(4))


def test_else_if_chain_with_exits():
    source = """
fn f(k: i64) -> i64 {
    var s = 0
    for i in 0..10 {
        if i == k { break } else if i % 3 == 0 { continue } else { s += 1 }
        s += 10
    }
    s
}"""
    wanted = []
    for k in range(10):
        s = 0
        for i in range(10):
            if i == k:
                break
            if i % 3 == 0:
                continue
            s += 11
        wanted.append(s)
    assert [call(source, "f", k) for k in range(10)] == wanted


def test_loop_that_changes_the_size_of_a_variable():
    source = """
fn halve(x: f64[n]) -> f64 {
    var v = x
    while len(v) > 1 {
        let h = len(v) // 2
        v = v[0..h] + v[h..2*h]
    }
    v[0]
}
fn grow(k: i64) -> f64 {
    var v = [1.0]
    for i in 0..k { v = concat(v, [f64(i)]) }
    sum(v) * len(v)
}"""
    close(call(source, "halve", X), X.sum())
    assert call(source, "grow", 3) == (1.0 + 0 + 1 + 2) * 4


def test_for_over_elements_and_rows_and_steps():
    source = """
fn elements(x: f64[n]) -> f64 { var s = 1.0; for v in x { s = s * 0.5 + v }; s }
fn rows(a: f64[n, m]) -> f64[m] { var s = zeros(m); for r in a { s = 2.0 * s + r }; s }
fn steps(a: i64, b: i64, s: i64) -> i64 { var t = 0; for i in a..b step s { t = 10 * t + i }; t }
"""
    s = 1.0
    for v in X:
        s = s * 0.5 + v
    close(call(source, "elements", X), s)
    r = np.zeros(4)
    for row in A:
        r = 2 * r + row
    close(call(source, "rows", A), r)
    assert call(source, "steps", 1, 8, 3) == 147
    assert call(source, "steps", 7, 0, -3) == 741
    assert call(source, "steps", 0, 5, -1) == 0
    fails(source, "steps", 0, 5, 0, kind="ValueError", line=4, has="step")


def test_several_variables_at_once_and_elements_in_tuples():
    source = """
fn f(x: f64) -> (f64, f64[2]) {
    var a = x
    var v = [0.0, 0.0]
    (a, v[1]) = (a * 2.0, a)
    (v[0], a) = (a, v[1])
    (a, v)
}"""
    a, v = call(source, "f", 3.0)
    assert a == 3.0
    close(v, [6.0, 3.0])


def test_nested_element_targets():
    source = """
fn f(a: f64[n, m]) -> f64[n, m] {
    var b = a
    b[1][2] = 100.0
    b[1..3][0][1] += 1.0
    b[0][1..3] = [7.0, 8.0]
    b[2] = 0.5
    b[:, 0] *= 2.0
    b
}"""
    b = A.copy()
    b[1, 2] = 100.0
    b[1, 1] += 1.0
    b[0, 1:3] = [7, 8]
    b[2] = 0.5
    b[:, 0] *= 2.0
    close(call(source, "f", A), b)


# Functions ----------------------------------------------------------------------------------------------------


def test_lambdas_see_values_as_they_were_and_are_passed_on():
    source = """
fn twice(f: fn(f64) -> f64, x: f64) -> f64 = f(f(x))
fn apply(g: fn(fn(f64) -> f64, f64) -> f64, f: fn(f64) -> f64, x: f64) -> f64 = g(f, x)
fn f(a: f64, x: f64) -> f64 {
    var k = a
    let g = |t: f64| t * k + 1.0
    k = 1000.0
    twice(g, x) + apply(twice, g, x) + twice(|t| twice(|u| u + t, t), x)
}"""
    g = lambda t: t * 3.0 + 1.0  # noqa: E731
    inner = lambda t: t + t + t  # noqa: E731
    assert call(source, "f", 3.0, 2.0) == 2 * g(g(2.0)) + inner(inner(2.0))


def test_recursion_with_a_function_argument():
    source = """
fn iterate(f: fn(f64) -> f64, n: i64, x: f64) -> f64 = if n == 0 { x } else { iterate(f, n - 1, f(x)) }
fn g(a: f64, x: f64) -> f64 = iterate(|t| a * t + 1.0, 3, x)
"""
    assert call(source, "g", 2.0, 1.0) == 15.0


def test_mutual_recursion_is_marked():
    module = lowered("""
fn even(n: i64) -> bool = if n == 0 { true } else { odd(n - 1) }
fn odd(n: i64) -> bool = if n == 0 { false } else { even(n - 1) }
fn user(n: i64) -> bool = even(n)
""")
    assert module.funcs["even"].attrs.get("recursive")
    assert module.funcs["odd"].attrs.get("recursive")
    assert not module.funcs["user"].attrs.get("recursive")


def test_size_parameters_and_affine_sizes():
    source = """
fn f(x: f64[2*n + 1]) -> f64[n] = x[0..n]
fn g(bins: i64, x: f64[bins]) -> f64[bins + 1] = concat(x, [1.0])
fn h(d: f64[k], p: f64[k*(k-1)//2]) -> i64 = k
export f
export g
export h
"""
    close(call(source, "f", np.arange(7.0)), [0, 1, 2])
    fails(source, "f", np.arange(6.0), kind="ValueError", line=2)
    fails(source, "g", 3, np.arange(4.0), kind="ValueError", line=3, has="4")
    assert call(source, "h", np.zeros(3), np.zeros(3)) == 3
    fails(source, "h", np.zeros(3), np.zeros(2), kind="ValueError", line=4)


def test_result_that_does_not_fit_its_type():
    source = """
fn f(x: f64[n], k: i64) -> f64[n] {
    let y = 2.0 * x
    y[0..k]
}"""
    close(call(source, "f", X, 4), 2.0 * X)
    fails(source, "f", X, 3, kind="ValueError", line=4, has="3")


def test_annotated_declarations():
    source = """
fn f(x: f64[n], y: f64[m]) -> f64 {
    let a: f64 = 3
    let z: f64[n] = y
    sum(x * z) * a
}"""
    close(call(source, "f", X, X), 3.0 * (X * X).sum())
    fails(source, "f", X, X[:2], kind="ValueError", line=4)


def test_constants_and_types():
    source = """
let g = 9.81
let table = [i * i for i in 0..5]
let factor: f32 = 0.5
type Vec = f64[3]
fn f(v: Vec, k: i64) -> f64 = g * sum(v) + table[k]
fn h(x: f32) -> f32 = g * x * factor
"""
    close(call(source, "f", np.ones(3), 4), 9.81 * 3 + 16)
    close(call(source, "h", np.float32(2.0)), np.float32(9.81), 1e-7)


def test_real_is_the_float_type_asked_for():
    source = "fn f(x: real[n]) -> real = sum(x) / n + 0.1\nfn user(x: f32[n]) -> f32 = f(x)\n"
    for real, dtype in (("f64", np.float64), ("f32", np.float32)):
        module = lowered(source, real)
        assert str(module.funcs["f"].result_types[0]) == real
        close(call(source, "f", np.ones(4, dtype), real=real), dtype(1.1), 1e-6)
    assert str(lowered(source, "f64").funcs["user"].result_types[0]) == "f32"


def test_endless_specialisation_is_an_error():
    from aotdiff.frontend.diagnostics import CompileError

    source = """
fn d(f: fn(f64) -> f64, n: i64, x: f64) -> f64 = if n == 0 { f(x) } else { d(grad(f), n - 1, x) }
fn g(x: f64) -> f64 = d(sin, 2, x)
"""
    with pytest.raises(CompileError):
        lowered(source)


# Derivative forms -----------------------------------------------------------------------------------------------


def test_forms_and_their_nesting():
    source = """
fn f(x: f64[n], s: f64) -> f64 = s * sum(x**3)
fn g(x: f64[n], s: f64) -> (f64[n], f64) = grad(f, wrt = (x, s))(x, s)
fn one(x: f64[n], s: f64) -> f64 { let t = grad(f, wrt = (s,))(x, s); t.0 }
fn h(x: f64[n], s: f64) -> f64[n, n] = hessian(f)(x, s)
fn v(x: f64[n], s: f64, d: f64[n]) -> f64[n] = hvp(f)(x, s, d)
fn pair(x: f64, y: f64) -> (f64, i64, f64) = (x * y, 3, x + y * y)
fn jv(x: f64, y: f64) -> (f64, f64) = jvp(pair, wrt = (x, y))(x, y, 1.0, 2.0)
fn vj(x: f64, y: f64) -> (f64, f64) = vjp(pair, wrt = (x, y))(x, y, 1.0, 2.0)
fn jac(x: f64, y: f64) -> ((f64, f64), (f64, f64)) = jacobian(pair, wrt = (x, y))(x, y)
fn val(x: f64, y: f64) -> ((f64, i64, f64), f64) = value_and_vjp(pair, wrt = y)(x, y, 1.0, 2.0)
"""
    x = np.array([1.0, 2.0])
    gx, gs = call(source, "g", x, 2.0)
    close(gx, 6 * x**2)
    close(gs, 9.0)
    close(call(source, "one", x, 2.0), 9.0)
    close(call(source, "h", x, 2.0), np.diag(12 * x))
    close(call(source, "v", x, 2.0, x), 12 * x * x)
    assert call(source, "jv", 2.0, 3.0) == [3.0 + 4.0, 1.0 + 12.0]
    assert call(source, "vj", 2.0, 3.0) == [3.0 + 2.0, 2.0 + 12.0]
    assert call(source, "jac", 2.0, 3.0) == [3.0, 2.0, 1.0, 6.0]
    assert call(source, "val", 2.0, 3.0) == [6.0, 3, 11.0, 14.0]


def test_forms_of_built_ins_and_captured_values():
    source = """
fn f(x: f64) -> f64 = grad(sin)(x) + grad(pow, wrt = y)(2.0, x) + grad(|t| t * x)(3.0)
fn g(x: f64[n], w: f64[n]) -> f64 = sum(grad(|u: f64[n]| sum(u * w * x))(x))
fn total(v: f64[n]) -> f64[n] = grad(norm)(v)
fn outer_derivative(x: f64) -> f64 = grad(|t: f64| t * grad(|u| u * t * x)(1.0))(x)
"""
    close(call(source, "f", 1.5), math.cos(1.5) + 2**1.5 * math.log(2) + 1.5)
    close(call(source, "g", X, A[0]), (A[0] * X).sum())
    close(call(source, "total", X), X / np.linalg.norm(X))
    close(call(source, "outer_derivative", 3.0), 2 * 3.0 * 3.0)


def test_form_of_a_function_with_function_parameters():
    source = """
fn area(f: fn(f64) -> f64, a: f64, b: f64) -> f64 = (b - a) * (f(a) + f(b)) / 2.0
fn g(c: f64, a: f64) -> f64 = grad(area, wrt = a)(|x| c * x * x, a, 2.0)
"""
    c, a = 3.0, 1.0
    wanted = -(c * a * a + c * 4) / 2 + (2 - a) * c * a
    close(call(source, "g", c, a), wanted)


def test_cotangents_and_tangents_have_their_sizes_checked():
    source = """
fn f(x: f64[n]) -> f64[n] = x * x
fn g(x: f64[n], ct: f64[m]) -> f64[n] = vjp(f)(x, ct)
fn h(x: f64[n], ct: f64[m]) -> f64[n] = vjp(|u: f64[n]| u[0..len(u)-1])(x, ct)
"""
    close(call(source, "g", X, X), 2 * X * X)
    fails(source, "g", X, X[:2], kind="ValueError", line=3)
    close(call(source, "h", X, X[1:]), np.append(X[1:], 0))
    fails(source, "h", X, X, kind="ValueError", line=4)


def test_rules_are_used_and_checked():
    source = """
fn f(x: f64[n], s: f64) -> f64 = s * sum(x)
fn f_rule(x: f64[n], s: f64, ct: f64) -> (f64[n], f64) = (full(7.0 * ct, n), 11.0 * ct)
derivative vjp f = f_rule
fn g(x: f64[n]) -> (f64[n], f64) = grad(f, wrt = (x, s))(x, 2.0)
"""
    gx, gs = call(source, "g", X)
    close(gx, np.full(4, 7.0))
    assert gs == 11.0


# Run-time checks ------------------------------------------------------------------------------------------------


def test_indices_that_cannot_fail_have_no_check():
    source = """
fn f(x: f64[n], a: f64[n, m]) -> f64 {
    var t = sum(x[i + 1] - x[i] for i in 0..n-1)
    for i in 1..n-1 { t += x[i - 1] * x[i + 1] + a[i, m - 1 - (m - 1)] * 0.0 }
    for i in n-1..-1 step -1 { t += x[i] }
    for i in 0..n { for j in 0..i { t += a[i, 0] * 0.0 + x[i - j] } }
    t
}"""
    assert all("axis 1" in message for message in checks(source, "f") if message.startswith("index"))
    source = """
fn f(x: f64[n], d: i64) -> f64 = sum(x[(i + d) % n] for i in 0..n) + sum(x[2*i + 1] for i in 0..n//2)
fn g(x: f64[n]) -> f64[n] { var y = x; for i in 0..n step 2 { y[i] = 0.0 }; y[0..n] }
"""
    assert checks(source, "g") == []
    close(call(source, "f", X, 3), X.sum() + X[1] + X[3])


def test_errors_name_line_and_sizes():
    source = """
fn f(x: f64[n], y: f64[m]) -> f64 {
    let a = x + 1.0
    dot(a,
        y)
}
fn g(x: f64[n]) -> f64 = reshape(x,
    2, 3)[0, 0]
fn h(k: i64) -> f64[k] = zeros(k)
fn p(a: i64, b: i64) -> i64 = a ** b
fn q(n: i64) -> i64 = max(i for i in 0..n)
"""
    fails(source, "f", X, X[:2], kind="ValueError", line=4, has="4 and 2")
    fails(source, "g", X, kind="ValueError", line=7, has="4")
    fails(source, "h", -2, kind="ValueError", line=9, has="-2")
    fails(source, "p", 2, -1, kind="ValueError", line=10)
    assert call(source, "p", 2, 10) == 1024
    fails(source, "q", 0, kind="ValueError", line=11)
    assert call(source, "q", 5) == 4


def test_where_evaluates_both_sides():
    source = "fn f(c: bool, x: f64[n]) -> f64 = where(c, x[0], x[7])\n"
    fails(source, "f", True, X, kind="IndexError", line=1, has="7")


def test_checkpoint_checks_its_segments():
    source = """
fn f(x: f64, k: i64) -> f64 {
    var y = x
    @checkpoint(segments = k) for t in 0..4 { y = 2.0 * y }
    y
}"""
    assert call(source, "f", 1.0, 2) == 16.0
    fails(source, "f", 1.0, 0, kind="ValueError", line=4)


def test_checkpointed_loops_are_cut_into_segments():
    source = """
fn f(x: f64[n], steps: i64, k: i64) -> f64 {
    var y = x
    var s = 1.0
    @checkpoint(segments = k) for t in 1..steps step 2 {
        if t == 15 { break }
        y = y * 0.5 + s * t
        s = s + y[0]
    }
    sum(y) + s
}
fn g(x: f64[n], steps: i64, k: i64) -> f64 = grad(|u: f64[n]| f(u, steps, k))(x)[1]
"""
    assert any(f.attrs.get("inline") == "never" for f in lowered(source).funcs.values())
    for steps in (0, 1, 2, 9, 30):
        y, s = X.copy(), 1.0
        for t in range(1, steps, 2):
            if t == 15:
                break
            y = y * 0.5 + s * t
            s = s + y[0]
        for k in (1, 2, 3, 100):
            close(call(source, "f", X, steps, k), y.sum() + s)
    close(call(source, "g", X, 9, 3), 0.5**4)


def test_a_rule_says_nothing_about_what_is_captured() -> None:
    source = """fn twice(f: fn(f64) -> f64, x: f64) -> f64 = f(f(x))
fn back(f: fn(f64) -> f64, x: f64, ct: f64) -> f64 = ct * grad(|y| f(f(y)))(x)
derivative vjp twice = back
fn f(x: f64, a: f64) -> f64 = twice(|y| a * y, x)
"""
    with pytest.raises(CompileError) as caught:
        lowered(source)
    (found,) = caught.value.diagnostics
    assert found.line == 3 and "numbers that a function passed to it captures" in found.message
    assert call(source.replace("a * y", "2.0 * y") + "export g = grad(f)\n", "g", 1.0, 0.0) == 4.0
