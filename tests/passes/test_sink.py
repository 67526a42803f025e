"""sink-arms: the side of a select that is not taken contributes exactly nothing to a derivative."""

import math

import numpy as np
import pytest

from aotdiff.ad.expand import expand_derivatives
from aotdiff.ad.forms import make_form
from aotdiff.ir.interpreter import ExecutionError, run
from aotdiff.ir.parser import parse_module
from aotdiff.ir.printer import print_func
from aotdiff.ir.verifier import verify
from aotdiff.passes import pipeline

NAN, INF = math.nan, math.inf


def sunk(text):
    module = parse_module(text)
    pipeline.run(module, ["sink-arms"])
    verify(module)
    pipeline.run(module, ["dce"])
    verify(module)
    return module


def body(text):
    return print_func(sunk(text).funcs["f"])


def gradient(text, args, wrt=(0,), form="grad"):
    module = sunk(text)
    name = make_form(module, "f", form, wrt).name
    expand_derivatives(module)
    verify(module)
    return run(module, name, args)


def check(text, args, want, wrt=(0,), form="grad"):
    for got, w in zip(gradient(text, args, wrt, form), want, strict=True):
        assert np.allclose(got, w, rtol=1e-14, atol=0), (got, w)


SCALAR = """func @f(%x: f64) -> (f64) {
  %z = const 0.0 : f64
  %c = gt %x, %z : bool
  %0 = sqrt %x : f64
  %1 = log %0 : f64
  %2 = select %c, %1, %x : f64
  yield %2
}"""


def test_what_one_side_needs_moves():
    assert body(SCALAR) == """func @f(%x: f64) -> (f64) {
  %z = const 0.0 : f64
  %c = gt %x, %z : bool
  %0 = if %c : f64 {
    %1 = sqrt %x : f64
    %2 = log %1 : f64
    yield %2
  } else {
    yield %x
  }
  yield %0
}"""


@pytest.mark.parametrize("form", ["grad", "hessian"])
def test_scalar(form):
    assert gradient(SCALAR, [0.0], form=form) == [1.0 if form == "grad" else 0.0]
    assert gradient(SCALAR, [-1.0], form=form) == [1.0 if form == "grad" else 0.0]
    assert gradient(SCALAR, [2.0], form=form) == pytest.approx([0.25 if form == "grad" else -0.125])


def test_nothing_moves_where_every_partial_is_finite():
    text = """func @f(%x: f64, %c: bool) -> (f64) {
  %two = const 2.0 : f64
  %0 = mul %x, %two : f64
  %1 = add %0, %x : f64
  %2 = select %c, %1, %x : f64
  yield %2
}"""
    assert body(text) == text


def test_a_value_used_elsewhere_is_live():
    text = """func @f(%x: f64, %c: bool) -> (f64, f64) {
  %0 = sqrt %x : f64
  %1 = select %c, %0, %x : f64
  yield %1, %0
}"""
    assert body(text) == text


def test_masked_data_may_be_nan():
    text = """func @f(%w: f64, %x: f64[3]) -> (f64) {
      %n = const 3 : i64
      %s = par %n {kinds = ["sum"]} : f64 (%i: i64) {
        %0 = read %x, %i : f64
        %c = eq %0, %0 : bool
        %1 = mul %0, %w : f64
        %z = const 0.0 : f64
        %2 = select %c, %1, %z : f64
        yield %2
      }
      yield %s
    }"""
    x = np.array([1.0, NAN, 3.0])
    check(text, [2.0, x], [4.0])
    check(text, [2.0, x], [np.array([2.0, 0.0, 2.0])], (1,))


# S2: where(b > 1, a / (b - 1), 0)
def test_both_arguments():
    text = """func @f(%a: f64, %b: f64) -> (f64) {
      %one = const 1.0 : f64
      %z = const 0.0 : f64
      %c = gt %b, %one : bool
      %0 = sub %b, %one : f64
      %1 = div %a, %0 : f64
      %2 = select %c, %1, %z : f64
      yield %2
    }"""
    check(text, [1.0, 1.0], [0.0, 0.0], (0, 1))
    check(text, [1.0, 3.0], [0.5, -0.25], (0, 1))


# where(x > 0, log(x), 0) of arrays: a map of logarithms, a map of comparisons, a map of selects
ARRAYS = """func @f(%x: f64[?]) -> (f64) {
  %n = dim %x {axis = 0} : i64
  %l = par %n {kinds = ["map"]} : f64[?] (%i: i64) {
    %0 = read %x, %i : f64
    %1 = sqrt %0 : f64
    yield %1
  }
  %m = par %n {kinds = ["map"]} : f64[?] (%j: i64) {
    %2 = read %l, %j : f64
    %3 = log %2 : f64
    yield %3
  }
  %ms = shaped %m, %n : f64[?]
  %s = par %n {kinds = ["sum"]} : f64 (%k: i64) {
    %4 = read %x, %k : f64
    %z = const 0.0 : f64
    %c = gt %4, %z : bool
    %5 = read %ms, %k : f64
    %6 = select %c, %5, %z : f64
    yield %6
  }
  yield %s
}"""


def test_elements_are_followed_into_the_maps_that_make_them():
    assert body(ARRAYS) == """func @f(%x: f64[?]) -> (f64) {
  %n = dim %x {axis = 0} : i64
  %s = par %n {kinds = ["sum"]} : f64 (%k: i64) {
    %0 = read %x, %k : f64
    %z = const 0.0 : f64
    %c = gt %0, %z : bool
    %1 = read %x, %k : f64
    %2 = if %c : f64 {
      %3 = sqrt %1 : f64
      %4 = log %3 : f64
      yield %4
    } else {
      yield %z
    }
    yield %2
  }
  yield %s
}"""
    check(ARRAYS, [np.array([2.0, -1.0, 0.0, 0.5])], [[0.25, 0.0, 0.0, 1.0]])


def test_an_array_read_more_than_once_an_element_stays():
    text = ARRAYS.replace("%s = par %n {", "%s = par %n, %n {").replace("(%k: i64)", "(%h: i64, %k: i64)")
    assert body(text).count("par") == 3


def test_several_selects_on_one_condition_share_a_branch():
    text = """func @f(%x: f64) -> (f64) {
      %z = const 0.0 : f64
      %one = const 1.0 : f64
      %c = gt %x, %z : bool
      %r = sqrt %x : f64
      %a = select %c, %r, %z : f64
      %t = add %a, %one : f64
      %q = div %one, %r : f64
      %b = select %c, %q, %one : f64
      %s = mul %t, %b : f64
      yield %s
    }"""
    assert body(text).count("if %c") == 1 and "select" not in body(text)
    check(text, [0.0], [0.0])
    check(text, [4.0], [-0.0625])  # (r + 1) / r


def test_selects_on_one_condition_that_depend_on_each_other():
    text = """func @f(%x: f64) -> (f64) {
      %z = const 0.0 : f64
      %c = gt %x, %z : bool
      %r = sqrt %x : f64
      %a = select %c, %r, %z : f64
      %e = exp %a : f64
      %q = log %x : f64
      %u = mul %q, %e : f64
      %b = select %c, %u, %z : f64
      %s = add %b, %e : f64
      yield %s
    }"""
    assert body(text).count("if %c") == 2
    check(text, [-1.0], [0.0])


def test_nested_selects():
    text = """func @f(%x: f64) -> (f64) {
      %z = const 0.0 : f64
      %one = const 1.0 : f64
      %c = gt %x, %z : bool
      %d = gt %x, %one : bool
      %0 = log %x : f64
      %1 = sqrt %0 : f64
      %2 = select %d, %1, %0 : f64
      %3 = select %c, %2, %x : f64
      yield %3
    }"""
    # %0 serves both sides of the inner select: it moves with it into the outer branch
    assert gradient(text, [0.0]) == [1.0]
    assert gradient(text, [0.5]) == [2.0]


CHECKED = """func @f(%x: f64[?], %k: i64, %c: bool) -> (f64) {
  %n = dim %x {axis = 0} : i64
  %s = par %n {kinds = ["sum"]} : f64 (%i: i64) {
    %0 = add %i, %k : i64
    %1 = lt %0, %n : bool
    check %1, %0 {kind = "IndexError", message = "index {0}"}
    %2 = read %x, %0 : f64
    %3 = log %2 : f64
    yield %3
  }
  %r = exp %s : f64
  %z = const 0.0 : f64
  %4 = select %c, %r, %z : f64
  yield %4
}"""


def test_checks_of_both_sides_stay():
    for condition in (True, False):
        with pytest.raises(ExecutionError, match="index 2"):
            run(sunk(CHECKED), "f", [np.ones(2), 1, condition])
    assert run(sunk(CHECKED), "f", [np.full(2, 3.0), 0, True]) == pytest.approx([9.0])
    text = body(CHECKED)
    assert text.count("check") == 1 and text.count("log") == 1
    assert text.index("check") < text.index("if %c") < text.index("log")
    check(CHECKED, [np.zeros(2), 0, False], [[0.0, 0.0]])


def test_a_called_function_that_checks_is_called_for_its_checks():
    text = """func @f(%x: f64, %c: bool) -> (f64) {
      %0 = sqrt %x : f64
      %1 = call @g %0 : f64
      %z = const 0.0 : f64
      %2 = select %c, %1, %z : f64
      yield %2
    }
    func @g(%x: f64) -> (f64) {
      %z = const 0.0 : f64
      %0 = ge %x, %z : bool
      check %0 {kind = "ValueError", message = "negative"}
      %1 = log %x : f64
      yield %1
    }"""
    with pytest.raises(ExecutionError, match="negative"):
        run(sunk(text), "f", [-1.0, False])
    module = sunk(text)
    (branch,) = [op for op in module.funcs["f"].body.ops if op.name == "if"]
    assert [op.name for op in branch.regions[0].ops] == ["sqrt", "call", "yield"]


def test_effects_stay():
    text = """func @f(%x: f64, %c: bool) -> (f64, f64) {
  %z = const 0.0 : f64
  %a, %r = withacc %z : f64, f64 (%z_acc: acc<f64>) {
    %0 = call @g %x, %z_acc : f64
    %1 = select %c, %0, %z : f64
    yield %1
  }
  yield %a, %r
}

func @g(%x: f64, %h: acc<f64>) -> (f64) {
  %0 = log %x : f64
  accum %h, %0
  yield %0
}
"""
    assert body(text) + "\n" == text.split("\nfunc @g")[0]


def test_integer_selects_stay():
    text = """func @f(%n: i64, %c: bool) -> (i64) {
  %0 = mul %n, %n : i64
  %1 = select %c, %0, %n : i64
  yield %1
}"""
    assert body(text) == text


def test_what_was_computed_before_a_branch_for_one_side():
    text = """func @f(%x: f64, %c: bool) -> (f64) {
      %0 = sqrt %x : f64
      %1 = log %0 : f64
      %2 = exp %x : f64
      %r = if %c : f64 {
        %3 = mul %1, %2 : f64
        yield %3
      } else {
        yield %2
      }
      yield %r
    }"""
    assert body(text) == """func @f(%x: f64, %c: bool) -> (f64) {
  %0 = exp %x : f64
  %r = if %c : f64 {
    %1 = sqrt %x : f64
    %2 = log %1 : f64
    %3 = mul %2, %0 : f64
    yield %3
  } else {
    yield %0
  }
  yield %r
}"""
    check(text, [0.0, False], [1.0])


def test_a_branch_needed_by_one_side_of_another():
    text = """func @f(%x: f64, %c: bool, %d: bool) -> (f64) {
      %z = const 0.0 : f64
      %0 = sqrt %x : f64
      %a = if %d : f64 {
        %1 = log %0 : f64
        yield %1
      } else {
        yield %z
      }
      %b = if %c : f64 {
        yield %a
      } else {
        yield %x
      }
      yield %b
    }"""
    (outer,) = [op for op in sunk(text).funcs["f"].body.ops if op.name == "if"]
    assert [op.name for op in outer.regions[0].ops] == ["if", "yield"]
    assert [op.name for op in outer.regions[0].ops[0].regions[0].ops] == ["sqrt", "log", "yield"]
    check(text, [0.0, False, True], [1.0])
    check(text, [0.0, True, False], [0.0])


def test_an_element_read_inside_a_branch():
    text = """func @f(%x: f64[?]) -> (f64) {
      %n = dim %x {axis = 0} : i64
      %r = par %n {kinds = ["map"]} : f64[?] (%i: i64) {
        %0 = read %x, %i : f64
        %1 = sqrt %0 : f64
        yield %1
      }
      %s = par %n {kinds = ["sum"]} : f64 (%j: i64) {
        %2 = read %x, %j : f64
        %z = const 0.0 : f64
        %c = gt %2, %z : bool
        %3 = if %c : f64 {
          %4 = read %r, %j : f64
          yield %4
        } else {
          yield %z
        }
        yield %3
      }
      yield %s
    }"""
    assert body(text).count("par") == 1
    check(text, [np.array([4.0, 0.0])], [[0.25, 0.0]])
