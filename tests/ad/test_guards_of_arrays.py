"""Forward mode where elements of arrays are constants: what follows of them has derivative zero, as in reverse mode.

Every program meets an infinite partial at an element nobody wrote, or to which a constant was written. Reverse mode
gives the first derivative; the second and the third are those of a polynomial through values of the first.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.polynomial import Chebyshev

import aotdiff as ad
from aotdiff.ad.forward import jvp_func
from aotdiff.ir.interpreter import run
from aotdiff.ir.parser import parse_module
from aotdiff.ir.printer import print_func
from aotdiff.ir.verifier import verify
from aotdiff.passes.pipeline import CLEANUP
from aotdiff.passes.pipeline import run as optimize
from aotdiff.runtime.compiler import Compiler, Options, Source
from aotdiff.runtime.exports import exported

PROGRAMS = """
fn element(x: real) -> real {
    var y = zeros(4)
    y[0] = x
    sum(sqrt(y))**2
}
fn slice(x: real) -> real {
    var y = zeros(6)
    y[1..3] = [x, x * x]
    sum(y**1.5) + sum(cbrt(y)) * x
}
fn row(x: real) -> real {
    var y = zeros(3, 2)
    y[1] = [x, x * x]
    sum(norm(y[i]) for i in 0..3) + sum(sqrt(y))**2
}
fn added(x: real) -> real {
    var y = zeros(5)
    for i in 0..3 { y[i * i % 5] += x * real(i + 1) }
    let s = sum(sqrt(y))
    s * s
}
fn carried(x: real) -> real {
    var y = zeros(5)
    y[1] = x
    var s = 0.0
    for k in 0..3 {
        y = [sqrt(y[(i + 1) % 5]) for i in 0..5]
        for i in 0..5 { s += sqrt(y[i]) * (1.0 + s) }
    }
    s
}
fn in_places(x: real) -> real {
    var y = zeros(6)
    var k = 0
    while real(k) < x {
        y[2 * k] = x + y[k + 1]
        k += 1
    }
    sum(sqrt(y))**2
}
fn joined(x: real) -> real {
    let y = concat(zeros(3), [x, x * x])
    let z = [y[4 - i] for i in 0..5]
    sum(sqrt(reshape(z, 5, 1)))**2
}
fn overwritten(x: real) -> real {
    var y = [x, x, x * x]
    y[1] = 0.0
    sum(sqrt(y))**2
}
fn perhaps(x: real) -> real {
    var y = zeros(4)
    for i in 0..4 { if x > 0.5 + real(i) { y[i] = x - real(i) } }
    if x > 1.0 { y[3] = x } else { y = [x, x, x, x] }
    sum(sqrt(y))**2
}
fn rows_of(x: real) -> real {
    let a = [lonely(x * real(i + 1), i) for i in 0..3]
    sum(cbrt(a))**2 + sum(1.0 / (sqrt(a[i, 0]) + 1.0) for i in 0..3)
}
fn lonely(x: real, i: i64) -> real[3] {
    var y = zeros(3)
    y[i] = x
    y
}
fn recursive(x: real) -> real {
    var y = zeros(5)
    y[0] = x
    sum(sqrt(put(y, x, 2)))**2
}
fn put(y: real[n], x: real, k: i64) -> real[n] {
    if k == 0 { return y }
    var z = put(y, x, k - 1)
    z[k] = x * sum(z)
    z
}
"""
HELPERS = ("lonely", "put")
NAMES = [line.split("(")[0][3:] for line in PROGRAMS.splitlines() if line.startswith("fn ")]
NAMES = [name for name in NAMES if name not in HELPERS]
FORMS = """
export {f}_r = grad({f})
export {f}_1 = jvp({f})
export {f}_1r = |x: real, t: real| grad(|t: real| jvp({f})(x, t))(t)
export {f}_2 = |x: real, t: real| jvp(jvp({f}))(x, t, t)
export {f}_2r = |x: real, t: real| grad(|x: real| jvp({f})(x, t))(x)
export {f}_2h = |x: real, t: real| hvp({f})(x, t)
export {f}_3 = |x: real, t: real| jvp(jvp(jvp({f})))(x, t, t, t)
export {f}_3r = |x: real, t: real| grad(|x: real| jvp(jvp({f}))(x, t, t))(x)
export {f}_3h = |x: real, t: real| jvp(hvp({f}))(x, t, t)
"""
AT = 2.25


def source(name: str) -> str:
    return PROGRAMS + FORMS.format(f=name)


def compiled(name: str):
    module = ad.compile_source(source(name))
    return lambda form, *args: float(getattr(module, f"{name}_{form}")(*map(np.float64, args)))


def interpreted(name: str):
    compiler = Compiler(Source("test.grad", source(name), "."), Options())
    exported(compiler.program())
    module = compiler.graph("f64")
    compiler.expand(module)
    verify(module)
    return lambda form, *args: float(run(module, f"{name}_{form}", list(args))[0])


@pytest.mark.parametrize("mode", [compiled, interpreted])
@pytest.mark.parametrize("name", NAMES)
def test_constant_elements(name: str, mode) -> None:
    at = mode(name)
    with np.errstate(all="ignore"):
        slope = Chebyshev.interpolate(np.vectorize(lambda x: at("r", x)), 14, [AT - 0.2, AT + 0.2])
    want = [slope(AT), slope.deriv(1)(AT), slope.deriv(2)(AT)]
    assert np.all(np.isfinite(want))
    for form in ("1", "1r", "2", "2r", "2h", "3", "3r", "3h"):
        k = int(form[0])
        np.testing.assert_allclose(at(form, AT, 1.0), want[k - 1], 1e-9, 10.0 ** (2 * k - 13), err_msg=form)


def test_written_zero_is_no_guard() -> None:
    """An element that is zero by value stays live, whatever is written beside it."""
    module = ad.compile_source("""
    fn f(x: f64) -> f64 { var y = zeros(3); y[0] = x * x; y[1] = 1.0 + x; sum(sqrt(y)) }
    export g = jvp(f)
    export h = grad(f)
    """)
    assert np.isnan(module.g(0.0, 1.0)) and np.isnan(module.h(0.0))


def tangent_of(text: str) -> str:
    module = parse_module(text)
    new = jvp_func(module, module.funcs["f"], [0], value=False)
    verify(module)
    optimize(module, CLEANUP)
    return print_func(new)


def test_guards_are_written_beside_the_tangents() -> None:
    found = tangent_of("""func @f(%x: f64, %n: i64) -> (f64) {
      %z = const 0.0 : f64
      %0 = const 0 : i64
      %y = par %n {kinds = ["map"]} : f64[?] (%i: i64) {
        yield %z
      }
      %y1 = update %y, %x, %0 : f64[?]
      %s = par %n {kinds = ["sum"]} : f64 (%i: i64) {
        %1 = read %y1, %i : f64
        %2 = sqrt %1 : f64
        yield %2
      }
      yield %s
    }""")
    wanted = r"""
    (%\d+) = const false : bool
    (%\d+) = const true : bool
    (%\d+) = par \S+ {kinds = \["map"\]} : bool\[\?\] .*
    (%\d+) = update \3, \2, \S+ : bool\[\?\]
    (%\d+) = read \4, \S+ : bool
    """
    lines = [line.strip() for line in found.splitlines() if "bool" in line]
    assert re.fullmatch(wanted.strip().replace("\n    ", "\n"), "\n".join(lines)), lines


@pytest.mark.parametrize("text", [
    # all elements of a literal are written
    """func @f(%x: f64) -> (f64) {
      %z = const 0.0 : f64
      %n = const 2 : i64
      %0 = const 0 : i64
      %1 = const 1 : i64
      %y = par %n {kinds = ["map"]} : f64[2] (%i: i64) {
        yield %z
      }
      %y1 = update %y, %x, %0 : f64[2]
      %y2 = update %y1, %x, %1 : f64[2]
      %2 = read %y2, %1 : f64
      %3 = sqrt %2 : f64
      yield %3
    }""",
    # and all of an array that has tangents before its loop, which writes what has
    """func @f(%x: f64[?], %n: i64) -> (f64) {
      %y = for %n, %x {kinds = []} : f64[?] (%k: i64, %y0: f64[?]) {
        %1 = read %y0, %k : f64
        %2 = sqrt %1 : f64
        %3 = update %y0, %2, %k : f64[?]
        yield %3
      }
      %4 = read %y, %n : f64
      yield %4
    }""",
    # what is added to something with a tangent asks for nothing
    """func @f(%x: f64, %n: i64) -> (f64) {
      %z = const 0.0 : f64
      %0 = const 0 : i64
      %y = par %n {kinds = ["map"]} : f64[?] (%i: i64) {
        yield %z
      }
      %y1 = update %y, %x, %0 : f64[?]
      %1 = read %y1, %n : f64
      %2 = add %1, %x : f64
      %3 = sqrt %2 : f64
      yield %3
    }""",
])
def test_no_guard_without_need(text: str) -> None:
    assert "bool" not in tangent_of(text)
