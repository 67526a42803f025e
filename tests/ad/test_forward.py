"""Forward mode of every construct: each order against central differences of the order below, to the third."""

import math

import numpy as np
import pytest

from aotdiff.ad.forward import jvp_func
from aotdiff.ir.interpreter import Counter, run
from aotdiff.ir.parser import parse_module
from aotdiff.ir.printer import print_module
from aotdiff.ir.types import is_differentiable
from aotdiff.ir.verifier import verify

X = np.array([0.7, -1.3, 0.4, 1.9])


def flat(values):
    return np.concatenate([np.ravel(np.asarray(v, float)) for v in values]) if values else np.zeros(0)


def differences(f, args, wrt, direction, h=1e-5):
    def at(t):
        moved = list(args)
        for i, d in zip(wrt, direction, strict=True):
            moved[i] = args[i] + t * d
        return flat(f(moved))

    return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)


def float_results(module, name, args):
    found = run(module, name, args)
    types = module.funcs[name].result_types
    return [v for v, t in zip(found, types, strict=True) if is_differentiable(t)]


def check(text, args, wrt=(0,), orders=3, tol=1e-7):
    """Compares jvp, jvp of jvp ... of @f with differences; returns the module."""
    module = parse_module(text)
    verify(module)
    rng = np.random.default_rng(3)
    name = "f"
    for _ in range(orders):
        direction = [rng.uniform(-1, 1, np.shape(args[i])) for i in wrt]
        direction = [d if np.ndim(d) else float(d) for d in direction]
        new = jvp_func(module, module.funcs[name], wrt, value=True)
        verify(module)
        got = run(module, new.name, [*args, *direction])
        values = run(module, name, args)
        assert np.allclose(flat(got[: len(values)]), flat(values), rtol=1e-14, equal_nan=True)
        want = differences(lambda a, name=name: float_results(module, name, a), args, wrt, direction)
        tangents = flat(got[len(values) :])
        scale = 1 + np.max(np.abs(want), initial=0)
        assert np.allclose(tangents, want, atol=tol * scale, rtol=tol), (tangents, want)
        name = jvp_func(module, module.funcs[name], wrt, value=False).name
        args = [*args, *direction]
    return module


PROGRAMS = {
    "scalars": """func @f(%x: f64[4]) -> (f64) {
      %i = const 0 : i64
      %j = const 3 : i64
      %a = read %x, %i : f64
      %b = read %x, %j : f64
      %p = pow %a, %b : f64
      %s = sin %p : f64
      %d = div %s, %b : f64
      %c = gt %a, %b : bool
      %r = select %c, %p, %d : f64
      yield %r
    }""",
    "map_and_sum": """func @f(%x: f64[?]) -> (f64[?], f64) {
      %n = dim %x {axis = 0} : i64
      %m, %s = par %n {kinds = ["map", "sum"]} : f64[?], f64 (%i: i64) {
        %0 = read %x, %i : f64
        %1 = sin %0 : f64
        %2 = mul %0, %1 : f64
        yield %1, %2
      }
      yield %m, %s
    }""",
    "array_valued_map": """func @f(%x: f64[?]) -> (f64[?, ?]) {
      %n = dim %x {axis = 0} : i64
      %m = par %n, %n {kinds = ["map"]} : f64[?, ?] (%i: i64) {
        %0 = read %x, %i : f64
        %row = par %n {kinds = ["map"]} : f64[?] (%j: i64) {
          %1 = read %x, %j : f64
          %2 = mul %0, %1 : f64
          %3 = exp %2 : f64
          yield %3
        }
        yield %row
      }
      yield %m
    }""",
    "max_and_min_over_two_indices": """func @f(%x: f64[?]) -> (f64, f64) {
      %n = dim %x {axis = 0} : i64
      %a, %b = par %n, %n {kinds = ["max", "min"]} : f64, f64 (%i: i64, %j: i64) {
        %0 = read %x, %i : f64
        %1 = read %x, %j : f64
        %2 = mul %0, %1 : f64
        %3 = sin %2 : f64
        %4 = sub %3, %0 : f64
        yield %3, %4
      }
      yield %a, %b
    }""",
    "max_beside_an_effect": """func @f(%x: f64[?]) -> (f64, f64) {
      %n = dim %x {axis = 0} : i64
      %z = const 0.0 : f64
      %t, %m = withacc %z : f64, f64 (%h: acc<f64>) {
        %a = par %n {kinds = ["max"]} : f64 (%i: i64) {
          %0 = read %x, %i : f64
          %1 = sin %0 : f64
          accum %h, %1
          yield %1
        }
        yield %a
      }
      yield %t, %m
    }""",
    "prod_over_two_indices": """func @f(%x: f64[?]) -> (f64) {
      %n = dim %x {axis = 0} : i64
      %two = const 2 : i64
      %p = par %n, %two {kinds = ["prod"]} : f64 (%i: i64, %j: i64) {
        %0 = read %x, %i : f64
        %1 = cast %j : f64
        %2 = add %0, %1 : f64
        %3 = sin %2 : f64
        yield %3
      }
      yield %p
    }""",
    "loop_with_maps": """func @f(%x: f64[?], %k: i64) -> (f64, f64[?], f64[?], i64[?]) {
      %one = const 1.0 : f64
      %zero = const 0.0 : f64
      %n = dim %x {axis = 0} : i64
      %i0 = const 0 : i64
      %a, %b, %m, %c, %o = for %k, %one, %zero {carries = 2, kinds = ["map", "cat"]} \
            : f64, f64, f64[?], f64[?], i64[?] (%t: i64, %u: f64, %v: f64) {
        %i = mod %t, %n : i64
        %0 = read %x, %i : f64
        %1 = mul %u, %0 : f64
        %2 = sin %1 : f64
        %3 = par %t {kinds = ["map"]} : f64[?] (%j: i64) {
          %4 = mul %u, %v : f64
          yield %4
        }
        %5 = add %v, %u : f64
        yield %2, %5, %1, %3
      }
      yield %b, %m, %c, %o
    }""",
    "carried_array": """func @f(%x: f64[?]) -> (f64[?]) {
      %n = dim %x {axis = 0} : i64
      %z = const 0.5 : f64
      %w = par %n {kinds = ["map"]} : f64[?] (%j: i64) {
        yield %z
      }
      %one = const 1 : i64
      %m = sub %n, %one : i64
      %r = for %m, %w {carries = 1, kinds = []} : f64[?] (%t: i64, %u: f64[?]) {
        %t1 = add %t, %one : i64
        %0 = read %u, %t : f64
        %1 = read %x, %t : f64
        %2 = mul %0, %1 : f64
        %3 = exp %2 : f64
        %4 = update %u, %3, %t1 : f64[?]
        yield %4
      }
      yield %r
    }""",
    "while_newton": """func @f(%x: f64) -> (f64, i64, f64[?]) {
      %two = const 2.0 : f64
      %y, %s, %trips, %m = while %x, %two {carries = 2, kinds = ["map"]} : f64, f64, i64, f64[?] \
            (%k: i64, %u: f64, %d: f64) {
        %eps = const 0.001 : f64
        %a = abs %d : f64
        %c = gt %a, %eps : bool
        yield %c
      } do (%k2: i64, %u2: f64, %d2: f64) {
        %q = mul %u2, %u2 : f64
        %r = sub %q, %x : f64
        %t = add %u2, %u2 : f64
        %e = div %r, %t : f64
        %n = sub %u2, %e : f64
        yield %n, %e, %q
      }
      yield %y, %trips, %m
    }""",
    "branches": """func @f(%x: f64[?], %c: bool) -> (f64, f64) {
      %i = const 0 : i64
      %j = const 1 : i64
      %a, %b = if %c : f64, f64 {
        %0 = read %x, %i : f64
        %1 = sin %0 : f64
        %k = const 2.0 : f64
        yield %1, %k
      } else {
        %2 = read %x, %j : f64
        %3 = exp %2 : f64
        yield %2, %3
      }
      %p = mul %a, %b : f64
      yield %a, %p
    }""",
    "scatter": """func @f(%x: f64[?]) -> (f64[?], f64) {
      %n = dim %x {axis = 0} : i64
      %two = const 2 : i64
      %z = const 0.0 : f64
      %init = par %two {kinds = ["map"]} : f64[2] (%j: i64) {
        yield %z
      }
      %r, %last = withacc %init : f64[2], f64 (%h: acc<f64[2]>) {
        %s = par %n {kinds = ["sum"]} : f64 (%i: i64) {
          %0 = read %x, %i : f64
          %1 = mul %0, %0 : f64
          %k = mod %i, %two : i64
          accum %h, %1, %k
          yield %1
        }
        yield %s
      }
      yield %r, %last
    }""",
    "insert_reshape_sort": """func @f(%x: f64[?]) -> (f64[?, ?]) {
      %n = dim %x {axis = 0} : i64
      %two = const 2 : i64
      %o = const 1 : i64
      %half = floordiv %n, %two : i64
      %p = argsort %x : i64[?]
      %g = par %half {kinds = ["map"]} : f64[?] (%i: i64) {
        %0 = read %p, %i : i64
        %1 = read %x, %0 : f64
        %2 = mul %1, %1 : f64
        yield %2
      }
      %y = insert %x, %g, %o : f64[?]
      %s = shaped %y, %n : f64[?]
      %r = reshape %s, %half, %two : f64[?, ?]
      yield %r
    }""",
    "stopped": """func @f(%x: f64) -> (f64) {
      %q = mul %x, %x : f64
      %s = stop_gradient %q : f64
      %k = const 9.0 : f64
      %d = sub %q, %q : f64
      %r = mul %x, %k : f64
      yield %r
    }""",
    "calls_and_recursion": """func @f(%x: f64, %y: f64, %n: i64) -> (f64, f64) {
      %0 = call @power %x, %n : f64
      %1, %2 = call @pair %0, %y : f64, f64
      yield %1, %2
    }
    func @pair(%a: f64, %b: f64) -> (f64, f64) {
      %0 = sin %b : f64
      %1 = mul %a, %0 : f64
      yield %1, %0
    }
    func @power(%x: f64, %n: i64) -> (f64) attributes {recursive = true} {
      %z = const 0 : i64
      %c = eq %n, %z : bool
      %r = if %c : f64 {
        %one = const 1.0 : f64
        yield %one
      } else {
        %k = const 1 : i64
        %m = sub %n, %k : i64
        %p = call @power %x, %m : f64
        %q = mul %p, %x : f64
        yield %q
      }
      yield %r
    }""",
    "handle_in_callee": """func @f(%x: f64[?]) -> (f64[2]) {
      %n = dim %x {axis = 0} : i64
      %two = const 2 : i64
      %z = const 1.0 : f64
      %init = par %two {kinds = ["map"]} : f64[2] (%j: i64) {
        yield %z
      }
      %r = withacc %init : f64[2] (%h: acc<f64[2]>) {
        par %n {kinds = []} (%i: i64) {
          call @add %x, %h, %i
          yield
        }
        yield
      }
      yield %r
    }
    func @add(%x: f64[?], %h: acc<f64[2]>, %i: i64) -> () {
      %two = const 2 : i64
      %0 = read %x, %i : f64
      %1 = exp %0 : f64
      %k = mod %i, %two : i64
      accum %h, %1, %k
      yield
    }""",
    "records": """record @r = (f64, i64, f64[?])
    func @f(%x: f64[?]) -> (f64) {
      %n = dim %x {axis = 0} : i64
      %rs = par %n {kinds = ["map"]} : record<r>[?] (%i: i64) {
        %0 = read %x, %i : f64
        %1 = sin %0 : f64
        %2 = record_make %1, %i, %x {record = "r"} : record<r>
        yield %2
      }
      %s = par %n {kinds = ["sum"]} : f64 (%j: i64) {
        %4 = read %rs, %j : record<r>
        %5, %6, %7 = record_unpack %4 : f64, i64, f64[?]
        %8 = read %7, %6 : f64
        %9 = mul %8, %5 : f64
        yield %9
      }
      yield %s
    }""",
}
ARGS = {
    "loop_with_maps": [X, 5],
    "while_newton": [2.0],
    "branches": [X, True],
    "stopped": [3.0],
    "calls_and_recursion": [1.2, 0.4, 4],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    args = ARGS.get(name, [X])
    wrt = (0, 1) if name == "calls_and_recursion" else (0,)
    check(PROGRAMS[name], args, wrt)


def test_the_other_side_of_a_branch():
    check(PROGRAMS["branches"], [X, False])


def tangents(text, args, direction, wrt=(0,), order=1):
    module = parse_module(text)
    name = "f"
    for _ in range(order):
        name = jvp_func(module, module.funcs[name], wrt, value=False).name
    verify(module)
    return run(module, name, [*args, *direction * order])


def reduction(kind):
    return f"""func @f(%x: f64[?]) -> (f64) {{
      %n = dim %x {{axis = 0}} : i64
      %r = par %n {{kinds = ["{kind}"]}} : f64 (%i: i64) {{
        %0 = read %x, %i : f64
        yield %0
      }}
      yield %r
    }}"""


@pytest.mark.parametrize(("kind", "x", "want"), [
    ("max", [3.0, 3.0, 1.0], [1, 0, 0]),
    ("min", [3.0, 1.0, 1.0], [0, 1, 0]),
    ("max", [3.0, math.nan, 1.0], [math.nan] * 3),
    ("prod", [2.0, 0.0, 3.0], [0, 6, 0]),
    ("prod", [0.0, 0.0, 3.0], [0, 0, 0]),
    ("sum", [math.inf, 1.0, 2.0], [1, 1, 1]),
])
def test_reductions_at_special_points(kind, x, want):
    got = [tangents(reduction(kind), [np.array(x)], [np.eye(3)[i]])[0] for i in range(3)]
    assert np.array_equal(got, want, equal_nan=True)


def test_reductions_of_nothing():
    for kind in ("max", "min", "sum", "prod"):
        assert tangents(reduction(kind), [np.zeros(0)], [np.zeros(0)]) == [0.0]


def test_second_derivative_of_a_product_with_two_zeros():
    u = np.array([1.0, 1.0, 0.0])
    assert tangents(reduction("prod"), [np.array([0.0, 0.0, 3.0])], [u], order=2) == [6.0]


def test_a_zero_tangent_is_not_multiplied_by_infinity():
    # The carried %b never depends on x; a tangent 0 times the infinite partial of its square root would be NaN.
    text = """func @f(%x: f64, %n: i64) -> (f64) {
      %z = const 0.0 : f64
      %a, %b = for %n, %x, %z {carries = 2, kinds = []} : f64, f64 (%k: i64, %u: f64, %v: f64) {
        %0 = mul %u, %x : f64
        %1 = sqrt %v : f64
        yield %0, %1
      }
      %s = call @root %a, %b : f64
      yield %s
    }
    func @root(%a: f64, %b: f64) -> (f64) {
      %0 = sqrt %b : f64
      %1 = add %a, %0 : f64
      yield %1
    }"""
    assert tangents(text, [2.0, 2], [1.0]) == [12.0]


def test_infinite_partials_of_the_side_not_taken():
    # where(x > 0, sqrt(x), 1) as a branch, at 0
    text = """func @f(%x: f64) -> (f64) {
      %z = const 0.0 : f64
      %c = gt %x, %z : bool
      %r = if %c : f64 {
        %0 = sqrt %x : f64
        yield %0
      } else {
        %1 = const 1.0 : f64
        yield %1
      }
      yield %r
    }"""
    for order in (1, 2, 3):
        assert tangents(text, [0.0], [1.0], order=order) == [0.0]


@pytest.mark.parametrize("rule", ["jvp"])
def test_hand_written_pushforward(rule):
    text = f"""func @f(%x: f64, %n: i64, %y: f64) -> (f64) {{
      %0 = call @g %x, %n, %y : f64
      %1 = mul %0, %x : f64
      yield %1
    }}
    func @g(%x: f64, %n: i64, %y: f64) -> (f64) attributes {{{rule} = "g_rule"}} {{
      %0 = mul %x, %y : f64
      yield %0
    }}
    func @g_rule(%x: f64, %n: i64, %y: f64, %dx: f64, %dy: f64) -> (f64) {{
      %k = const 100.0 : f64
      %0 = mul %dx, %k : f64
      %1 = mul %0, %x : f64
      %2 = add %1, %dy : f64
      yield %2
    }}"""
    # g = 6, and its rule says 100 * x * dx + dy
    assert tangents(text, [2.0, 0, 3.0], [1.0]) == [6.0 + 2.0 * 200.0]
    assert tangents(text, [2.0, 0, 3.0], [1.0, 1.0], wrt=(0, 2)) == [6.0 + 2.0 * 201.0]
    # The rule's own code is differentiated: d(x g)'' = 2 g' + x g'' with g' = 100 x, g'' = 100
    assert tangents(text, [2.0, 0, 3.0], [1.0], order=2) == [2 * 200.0 + 2.0 * 100.0]


def test_rule_of_the_differentiated_function_itself():
    text = """func @f(%x: f64) -> (f64) attributes {jvp = "rule"} {
      yield %x
    }
    func @rule(%x: f64, %d: f64) -> (f64) {
      %0 = mul %d, %x : f64
      yield %0
    }"""
    assert tangents(text, [5.0], [1.0]) == [5.0]
    assert tangents(text, [5.0], [1.0], order=2) == [1.0]


def test_a_rule_given_as_a_pullback_is_transposed():
    text = """func @f(%x: f64[?], %y: f64) -> (f64[?]) attributes {vjp = "back"} {
      yield %x
    }
    func @back(%x: f64[?], %y: f64, %ct: f64[?]) -> (f64[?], f64) {
      yield %ct, %y
    }"""
    module = parse_module(text)
    new = jvp_func(module, module.funcs["f"], (0,), value=True)
    assert not any(op.name in ("vjp", "jvp") for func in module.funcs.values() for op in func.body.walk())
    verify(module)
    # The pullback gives the cotangent to x as it is, whatever f computes.
    value, tangent = run(module, new.name, [np.array([1.0, 2.0]), 3.0, np.array([5.0, 7.0])])
    np.testing.assert_array_equal(value, [1.0, 2.0])
    np.testing.assert_array_equal(tangent, [5.0, 7.0])


def test_functions_are_made_once():
    module = parse_module(PROGRAMS["calls_and_recursion"])
    first = jvp_func(module, module.funcs["f"], (0,), value=True)
    count = len(module.funcs)
    assert jvp_func(module, module.funcs["f"], (0,), value=True) is first
    jvp_func(module, module.funcs["f"], (0,), value=False)
    assert len(module.funcs) == count + 1


def test_one_element_a_step_costs_one_step():
    """The tangent of an in-place loop is an in-place loop: no array is written out inside it."""
    steps = {}
    for n in (50, 100):
        module = parse_module(PROGRAMS["carried_array"])
        new = jvp_func(module, module.funcs["f"], (0,), value=False)
        counter = Counter()
        run(module, new.name, [np.ones(n), np.ones(n)], counter)
        steps[n] = counter.steps
    assert steps[100] < 2.1 * steps[50]


def test_the_text_of_a_generated_function_reads_back():
    for text in PROGRAMS.values():
        module = parse_module(text)
        new = jvp_func(module, module.funcs["f"], (0,), value=True)
        jvp_func(module, new, (0,), value=True)
        printed = print_module(module)
        assert print_module(parse_module(printed)) == printed
