"""Forward mode where a choice gave a constant: what follows has derivative zero, even where partials are infinite.

Each program is a function of one variable times a point where a constant was chosen (`FLAT`: all derivatives zero) or
not (`MOVING`: reverse mode says what they are), to the third order, in every mix of the modes.
"""

from __future__ import annotations

import numpy as np
import pytest

import aotdiff as ad
from aotdiff.ad.forward import jvp_func
from aotdiff.ir.parser import parse_module
from aotdiff.ir.printer import print_func
from aotdiff.ir.verifier import verify

PROGRAMS = """
fn chosen(x: real) -> real = sqrt(where(x > 0.0, x, 0.0))
fn other_side(x: real) -> real = log(where(x <= 0.0, 0.0, x * x) * 2.0 + 0.0)
fn of_if(x: real) -> real {
    let y = if x > 0.0 { x * x } else { 0.0 }
    y**1.5 + cbrt(y) * x + log(1.0 / (1.0 + y))
}
fn statement(x: real) -> real { var s = 0.0; if x > 0.0 { s = x }; sqrt(2.0 * s) }
fn two_choices(x: real) -> real {
    let a = where(x > 0.0, x, 0.0)
    let b = if x > 1.0 { x * x } else { 0.0 }
    sqrt(2.0 * a + 3.0 * b) + sqrt(where(x < 0.0, b, a))
}
fn greater(x: real) -> real = sqrt(maximum(x, 0.0)) + log(1.0 + cbrt(maximum(0.0, x)))
fn lesser(x: real) -> real = sqrt(-2.0 * minimum(0.0, -x)) + sqrt(-minimum(-x, 0.0))
fn rectified(x: real) -> real = sqrt(relu(2.0 * x)) + x * 0.0
fn clamped(x: real) -> real = sqrt(clamp(x, 0.0, 9.0)) + cbrt(clamp(0.0, x, 9.0)) + sqrt(-clamp(0.0, -9.0, -x))
fn conjunction(x: real) -> real = cbrt(if x > 0.0 and x < 100.0 { x } else { 0.0 })
fn divided(x: real) -> real { let y = where(x > 0.0, x, 0.0); 1.0 / y + (y + 1.0) / y }
fn product_with_inf(x: real) -> real = where(x > 0.0, x, 1.0) * (if x > 0.0 { 1.0 } else { inf })
fn loop_of_if(x: real) -> real {
    var s = 0.0
    for i in 0..4 { if x > 0.5 * real(i) { s += x * x } }
    sqrt(s)
}
fn in_the_loop(x: real) -> real {
    var s = where(x > 0.0, x, 0.0)
    for i in 0..3 { s = sqrt(s) }
    s
}
fn never_run(x: real) -> real {
    var s = 0.0
    for i in 0..i64(x) { s += x }
    var t = s
    while t < x { t = t + 0.4 * x }
    sqrt(s) + sqrt(t)
}
fn while_with_exit(x: real) -> real {
    var s = 0.0
    var k = 0
    while true {
        if x < 0.0 { break }
        s += x * x
        k += 1
        if k > 2 { break }
    }
    sqrt(s) / (s + 0.5)
}
fn early(x: real) -> real = sqrt(early_return(x))
fn early_return(x: real) -> real { if x < 0.0 { return 0.0 }; let y = x * x; y * x }
fn filtered(x: real) -> real = sqrt(sum(x * real(i) for i in 0..4 if x > 0.0))
fn greatest(x: real) -> real = sqrt(max(if x > 0.0 { x * real(i) } else { 0.0 } for i in 0..4))
fn of_nothing(x: real) -> real {
    let n = if x > 0.0 { 3 } else { 0 }
    atan2(0.5, 1.5 + min(x + 0.1 * real(i) for i in 0..n)**2)
}
fn square_of_nothing(x: real) -> real {
    let n = if x > 0.0 { 3 } else { 0 }
    let least = [min(x + 0.1 * real(i) for i in 0..n) + real(j) for j in 0..2]
    exp(-least[0] * least[0]) + 1.0 / sum(y**2 for y in least)
}
fn multiplied(x: real) -> real = sqrt(prod(if x > 0.0 { x * real(i + 1) } else { 0.0 } for i in 0..3))
fn elements(x: real) -> real {
    let y = [if x > real(i) { x - real(i) } else { 0.0 } for i in 0..7]
    sum(sqrt(y)) + y[0] + sum(y)
}
fn array_chosen(x: real) -> real { let y = if x > 0.0 { [x, x * x] } else { [0.0, 0.0] }; sum(sqrt(reshape(y, 2, 1))) }
fn matrix(x: real) -> real {
    let a = [where(x > 0.0 or i + j > 9, x * real(i + j), 0.0) for i in 1..3, j in 0..2]
    sum(norm(a[i]) for i in 0..2) + sqrt(a[1, 1])
}
fn turns(x: real, n: i64) -> real = if n == 0 { x } else { 0.5 * turns(x, n - 1) }
fn of_call(x: real) -> real = sqrt(turns(where(x > 0.0, x, 0.0), 3))
fn falls(x: real, n: i64) -> real = if n == 0 or x < 0.0 { 0.0 } else { sqrt(falls(x, n - 1)) + x }
fn of_recursion(x: real) -> real = cbrt(falls(x, 3))
fn root(x: real) -> real = sqrt(x)
fn root_pushed(x: real, t: real) -> real = 0.5 * t / sqrt(x)
derivative jvp root = root_pushed
fn of_rule(x: real) -> real = root(where(x > 0.0, x, 0.0)) * 2.0
fn root2(x: real) -> real = sqrt(x)
fn root2_pulled(x: real, c: real) -> real = 0.5 * c / sqrt(x)
derivative vjp root2 = root2_pulled
fn of_pulled_rule(x: real) -> real = root2(where(x > 0.0, x, 0.0)) + 1.0
fn slope(x: real) -> real = sqrt(grad(|y: real| where(y > 0.0, y * y * y, 1.0))(x))
"""
NAMES = [line.split("(")[0][3:] for line in PROGRAMS.splitlines() if line.startswith("fn ")]
HELPERS = ("early_return", "turns", "falls", "root", "root2", "root_pushed", "root2_pulled")
NAMES = [name for name in NAMES if name not in HELPERS]
MOVING = 2.25
FORMS = """
export {f}_1 = jvp({f})
export {f}_1r = grad(|t: real, x: real| jvp({f})(x, t))
export {f}_2 = |x: real, t: real| jvp(jvp({f}))(x, t, t)
export {f}_2r = |x: real, t: real| grad(|x: real| jvp({f})(x, t))(x)
export {f}_2h = |x: real, t: real| hvp({f})(x, t)
export {f}_3 = |x: real, t: real| jvp(jvp(jvp({f})))(x, t, t, t)
export {f}_3r = |x: real, t: real| grad(|x: real| jvp(jvp({f}))(x, t, t))(x)
export {f}_3h = |x: real, t: real| jvp(hvp({f}))(x, t, t)
export {f}_r1 = grad({f})
export {f}_r2 = grad(grad({f}))
"""


class Derivatives:
    """The derivatives of one program, by form."""

    def __init__(self, name: str, opt: int) -> None:
        self.name = name
        self.module = ad.compile_source(PROGRAMS + FORMS.format(f=name), opt=opt)

    def at(self, form: str, *args) -> float:
        return getattr(self.module, f"{self.name}_{form}")(*args)

    def vanish(self, dtype) -> None:
        """A constant was chosen: every derivative is 0, though the partials that follow are not finite."""
        x, t = dtype(-1.0), dtype(1.0)
        found = {form: self.at(form, x, t) for form in ("1", "2", "2r", "2h", "3", "3r", "3h")}
        found |= {form: self.at(form, x) for form in ("r1", "r2")} | {"1r": self.at("1r", t, x)}
        assert all(v == 0.0 for v in found.values()), found

    def agree(self, dtype, tol: float) -> None:
        """The other side: guards go by what was chosen, not by the tangent's value, which may be 0."""
        x, t = dtype(MOVING), dtype(1.0)
        want = {1: self.at("r1", x), 2: self.at("r2", x), 3: self.at("3h", x, t)}
        assert np.all(np.isfinite(list(want.values())))
        for form in ("1", "2", "2r", "2h", "3", "3r"):
            np.testing.assert_allclose(self.at(form, x, t), want[int(form[0])], tol, tol, err_msg=form)
        for t in (0.0, 1.0):
            np.testing.assert_allclose(self.at("1r", dtype(t), x), want[1], tol)


@pytest.mark.parametrize("opt", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_choices(name: str, opt: int) -> None:
    found = Derivatives(name, opt)
    for dtype, tol in ((np.float64, 1e-11), (np.float32, 2e-4)):
        found.vanish(dtype)
        found.agree(dtype, tol)


def test_zero_by_value_is_no_guard() -> None:
    """D13: 0 * inf on a live path stays NaN, in forward mode too."""
    module = ad.compile_source("fn f(x: f64) -> f64 = sqrt(x * x)\nexport g = jvp(f)")
    assert np.isnan(module.g(0.0, 1.0))


def tangent_of(text: str) -> str:
    module = parse_module(text)
    new = jvp_func(module, module.funcs["f"], [0], value=False)
    verify(module)
    return print_func(new)


def test_select_stays_outermost() -> None:
    """One select, at the end of the chain."""
    assert tangent_of("""func @f(%x: f64) -> (f64) {
      %z = const 0.0 : f64
      %c = gt %x, %z : bool
      %s = select %c, %x, %z : f64
      %r = sqrt %s : f64
      %e = exp %r : f64
      yield %e
    }""") == """\
func @f_jvp(%x: f64, %x_tan: f64) -> (f64) attributes {choices = true, derived = ["jvp", "f", [0], false]} {
  %z = const 0.0 : f64
  %c = gt %x, %z : bool
  %s = select %c, %x, %z : f64
  %r = sqrt %s : f64
  %0 = const 0.5 : f64
  %1 = mul %x_tan, %0 : f64
  %r_tan = div %1, %r : f64
  %e = exp %r : f64
  %e_tan = mul %r_tan, %e : f64
  %2 = const 0.0 : f64
  %3 = select %c, %e_tan, %2 : f64
  yield %3
}"""


def test_nothing_is_carried_without_need() -> None:
    """A loop's tangent that meets no singular operation has no guard; one that does is there after an iteration."""
    text = """func @f(%x: f64, %n: i64) -> (f64) {{
      %z = const 0.0 : f64
      %s = for %n, %z {{carries = 1, kinds = []}} : f64 (%k: i64, %s0: f64) {{
        %1 = {op} %s0 : f64
        %2 = add %1, %x : f64
        yield %2
      }}
      yield %s
    }}"""
    assert "bool" not in tangent_of(text.format(op="sin"))
    found = tangent_of(text.format(op="sqrt"))
    assert found.count("gt %k, ") == 1 and "_live" not in found
