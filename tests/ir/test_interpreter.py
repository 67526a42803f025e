"""The interpreter: scalar operations against mpmath and IEEE tables, structured ones against values worked by hand."""

import math

import mpmath
import numpy as np
import pytest

from aotdiff.ir.interpreter import EVALUATE, EXECUTE, REDUCE, Counter, ExecutionError, GraphError, run
from aotdiff.ir.ops import OPS, REDUCTIONS, SCALAR_OPS
from aotdiff.ir.parser import parse_module

INF, NAN = math.inf, math.nan


def evaluate(body: str, args: list, params: str, types: str) -> list:
    text = f"func @f({params}) -> ({types}) {{\n{body}\n}}"
    return run(parse_module(text), "f", args)


def scalar(name: str, *xs):
    kinds = {float: "f64", bool: "bool", int: "i64"}
    params = ", ".join(f"%x{i}: {kinds[type(x)]}" for i, x in enumerate(xs))
    result = "bool" if OPS[name].result == "bool" else kinds[type(xs[0])]
    operands = ", ".join(f"%x{i}" for i in range(len(xs)))
    return evaluate(f"%r = {name} {operands} : {result}\nyield %r", list(xs), params, result)[0]


def same(x, y) -> bool:
    if isinstance(x, float) and isinstance(y, float):
        return (x != x and y != y) or (x == y and math.copysign(1, x) == math.copysign(1, y))
    return type(x) is type(y) and x == y


def test_tables_cover_the_operations():
    assert EVALUATE.keys() == SCALAR_OPS.keys()
    assert EXECUTE.keys() == OPS.keys() - SCALAR_OPS.keys() - {"yield"}
    assert set(REDUCE) == set(REDUCTIONS)


EDGES = [
    ("div", (1.0, 0.0), INF), ("div", (-1.0, 0.0), -INF), ("div", (1.0, -0.0), -INF), ("div", (0.0, 0.0), NAN),
    ("pow", (0.0, -1.0), INF), ("pow", (-0.0, -1.0), -INF), ("pow", (-0.0, -2.0), INF), ("pow", (-8.0, 1 / 3), NAN),
    ("pow", (NAN, 0.0), 1.0), ("pow", (1.0, NAN), 1.0), ("pow", (-10.0, 309.0), -INF), ("pow", (10.0, 400.0), INF),
    ("ipow", (0.0, 0), 1.0), ("ipow", (-2.0, 3), -8.0), ("ipow", (2.0, -2), 0.25), ("ipow", (-0.0, -3), -INF),
    ("ipow", (3, 4), 81), ("ipow", (2, 64), 0), ("ipow", (-2, 63), -(2**63)), ("ipow", (0, 0), 1),
    ("floordiv", (-7, 2), -4), ("floordiv", (7, -2), -4), ("mod", (-7, 2), 1), ("mod", (7, -2), -1),
    ("floordiv", (-7.0, 2.0), -4.0), ("mod", (-7.5, 2.0), 0.5), ("mod", (7.5, -2.0), -0.5), ("mod", (1.0, 0.0), NAN),
    ("floordiv", (1.0, 0.0), INF), ("mod", (INF, 2.0), NAN), ("mod", (5.5, INF), 5.5),
    ("floordiv", (-(2**63), -1), -(2**63)), ("add", (2**63 - 1, 1), -(2**63)), ("neg", (-(2**63),), -(2**63)),
    ("mul", (2**62, 4), 0), ("abs", (-(2**63),), -(2**63)),
    ("minimum", (NAN, 1.0), NAN), ("maximum", (1.0, NAN), NAN), ("maximum", (-0.0, 0.0), 0.0),
    ("minimum", (0.0, -0.0), -0.0), ("maximum", (2, 3), 3),
    ("sign", (-0.0,), 0.0), ("sign", (NAN,), NAN), ("sign", (-3,), -1), ("abs", (-0.0,), 0.0),
    ("round", (0.5,), 0.0), ("round", (1.5,), 2.0), ("round", (-0.5,), -0.0), ("round", (INF,), INF),
    ("floor", (-0.5,), -1.0), ("ceil", (-0.5,), -0.0), ("floor", (1e300,), 1e300),
    ("exp", (1000.0,), INF), ("exp", (-INF,), 0.0), ("expm1", (1000.0,), INF), ("log", (0.0,), -INF),
    ("log", (-1.0,), NAN), ("log1p", (-1.0,), -INF), ("log2", (8.0,), 3.0), ("log10", (0.0,), -INF),
    ("sqrt", (-0.0,), -0.0), ("sqrt", (-1.0,), NAN), ("cbrt", (-8.0,), -2.0), ("sin", (INF,), NAN),
    ("cosh", (-1000.0,), INF), ("sinh", (-1000.0,), -INF), ("atanh", (1.0,), INF), ("atanh", (-1.0,), -INF),
    ("acosh", (0.5,), NAN), ("asin", (2.0,), NAN), ("tanh", (INF,), 1.0),
    ("lgamma", (0.0,), INF), ("lgamma", (-2.0,), INF), ("digamma", (0.0,), -INF), ("digamma", (-1.0,), NAN),
    ("relu", (-1.0,), 0.0), ("relu", (NAN,), NAN), ("relu", (-0.0,), 0.0), ("softplus", (1000.0,), 1000.0),
    ("softplus", (-1000.0,), 0.0), ("softplus", (NAN,), NAN), ("sigmoid", (-1000.0,), 0.0), ("sigmoid", (1000.0,), 1.0),
    ("logaddexp", (-INF, -INF), -INF), ("logaddexp", (INF, INF), INF), ("logaddexp", (1e3, -1e3), 1e3),
    ("logaddexp", (NAN, 1.0), NAN), ("logaddexp", (-INF, 2.0), 2.0),
    ("xlogy", (0.0, 0.0), 0.0), ("xlogy", (0.0, NAN), NAN), ("xlogy", (1.0, 0.0), -INF), ("hypot", (INF, NAN), INF),
    ("hypot", (1e200, 0.0), 1e200), ("atan2", (-0.0, -1.0), -math.pi), ("atan2", (0.0, 0.0), 0.0),
    ("eq", (NAN, NAN), False), ("ne", (NAN, NAN), True), ("lt", (NAN, 1.0), False), ("ge", (2, 2), True),
    ("and", (True, False), False), ("or", (True, False), True), ("not", (True,), False), ("eq", (True, True), True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "expected"), EDGES)
def test_edges(name, args, expected):
    assert same(scalar(name, *args), expected)


REFERENCE = {
    "exp": mpmath.exp, "expm1": mpmath.expm1, "log": mpmath.log, "log1p": mpmath.log1p, "sqrt": mpmath.sqrt,
    "log2": lambda x: mpmath.log(x, 2), "log10": mpmath.log10, "cbrt": mpmath.cbrt, "sin": mpmath.sin,
    "cos": mpmath.cos, "tan": mpmath.tan, "asin": mpmath.asin, "acos": mpmath.acos, "atan": mpmath.atan,
    "sinh": mpmath.sinh, "cosh": mpmath.cosh, "tanh": mpmath.tanh, "asinh": mpmath.asinh, "acosh": mpmath.acosh,
    "atanh": mpmath.atanh, "erf": mpmath.erf, "erfc": mpmath.erfc, "lgamma": mpmath.loggamma,
    "digamma": mpmath.digamma, "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log(1 + mpmath.exp(x)), "atan2": mpmath.atan2, "hypot": mpmath.hypot,
    "logaddexp": lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y)), "xlogy": lambda x, y: x * mpmath.log(y),
    "pow": mpmath.power,
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCE)
def test_against_mpmath(name):
    domain = SCALAR_OPS[name].domain
    with mpmath.workdps(40):
        for t in (0.0, 0.13, 0.5, 0.77, 1.0):
            xs = [lo + (hi - lo) * ((t + 0.37 * i) % 1.01) for i, (lo, hi) in enumerate(domain)]
            expected = float(mpmath.re(REFERENCE[name](*map(mpmath.mpf, xs))))
            assert scalar(name, *xs) == pytest.approx(expected, rel=2e-15, abs=1e-15)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_polygamma(order):
    with mpmath.workdps(40):
        for x in (1e-3, 0.4, 1.7, 4.0, 33.0, -0.4, -2.75):
            got = EVALUATE["polygamma"](x, order)
            assert got == pytest.approx(float(mpmath.polygamma(order, mpmath.mpf(x))), rel=1e-13)
    assert EVALUATE["polygamma"](INF, order) == 0.0 and math.isnan(EVALUATE["polygamma"](NAN, order))


@pytest.mark.parametrize("order", [0, 1, 2, 3, 6])
def test_sinc(order):
    quarters = [0, 0.25, 0.5, 0.75, 1]
    with mpmath.workdps(60):
        for x in (0.0, 1e-40, 1e-9, 0.3, -2.0, 4.5, 9.0, 40.0):
            # integral of t^n cos(x t + n pi / 2) over 0..1
            value = mpmath.quad(lambda t, x=x: t**order * mpmath.cos(x * t + order * mpmath.pi / 2), quarters)
            assert EVALUATE["sinc"](x, order) == pytest.approx(float(value), rel=1e-13, abs=1e-45)


def test_casts():
    def cast(value, source, to):
        return evaluate(f"%r = cast %x : {to}\nyield %r", [value], f"%x: {source}", to)[0]

    assert cast(2.9, "f64", "i64") == 2 and cast(-2.9, "f64", "i64") == -2
    assert cast(1e300, "f64", "i64") == 2**63 - 1 and cast(-INF, "f64", "i64") == -(2**63)
    assert cast(NAN, "f64", "i64") == 0
    assert cast(9.3e18, "f64", "i64") == 2**63 - 1
    assert cast(NAN, "f64", "bool") is True and cast(0.0, "f64", "bool") is False and cast(True, "bool", "f64") == 1.0
    assert cast(0.1, "f64", "f32") == float(np.float32(0.1)) and cast(1e300, "f64", "f32") == INF
    # One rounding: 2**54 + 2**30 + 1 would round differently by way of f64.
    n = 2**54 + 2**30 + 1
    assert cast(n, "i64", "f32") == float(np.float32(np.int64(n)))


def test_f32_is_rounded_after_every_operation():
    got = evaluate("%a = mul %x, %x : f32\n%r = add %a, %x : f32\nyield %r", [0.1], "%x: f32", "f32")[0]
    x = np.float32(0.1)
    assert got == float(x * x + x)


def test_par_maps_and_reductions():
    body = """
      %n = dim %x {axis = 0} : i64
      %zero = const 0.0 : f64
      %a, %b, %c, %d, %e, %f, %g, %h, %i = par %n
        {kinds = ["map", "sum", "prod", "max", "min", "argmax", "argmin", "any", "all"]}
        : f64[?], f64, f64, f64, f64, i64, i64, bool, bool (%k: i64) {
        %v = read %x, %k : f64
        %w = neg %v : f64
        %p = gt %v, %zero : bool
        yield %w, %v, %v, %v, %v, %v, %v, %p, %p
      }
      yield %a, %b, %c, %d, %e, %f, %g, %h, %i"""
    types = "f64[?], f64, f64, f64, f64, i64, i64, bool, bool"
    a, *rest = evaluate(body, [[2.0, -3.0, 2.0, -3.0]], "%x: f64[?]", types)
    assert a.tolist() == [-2.0, 3.0, -2.0, 3.0] and rest == [-2.0, 36.0, 2.0, -3.0, 0, 1, True, False]
    a, *rest = evaluate(body, [[]], "%x: f64[?]", types)
    assert a.shape == (0,) and rest == [0.0, 1.0, -INF, INF, -1, -1, False, True]
    a, *rest = evaluate(body, [[1.0, NAN, 5.0]], "%x: f64[?]", types)
    assert math.isnan(rest[2]) and math.isnan(rest[3]) and rest[4:6] == [1, 1]


def test_par_of_rank_two_with_inner_arrays():
    body = """
      %k = const 2 : i64
      %a, %m = par %n, %k, %k {kinds = ["map", "argmin"]} : f64[?, 2, 2], i64 (%i: i64, %j: i64) {
        %r = par %k {kinds = ["map"]} : f64[2] (%l: i64) {
          %s = add %i, %l : i64
          %t = cast %s : f64
          yield %t
        }
        %u = mul %i, %j : i64
        %v = neg %u : i64
        yield %r, %v
      }
      yield %a, %m"""
    a, m = evaluate(body, [2], "%n: i64", "f64[?, 2, 2], i64")
    assert a.tolist() == [[[0, 1], [0, 1]], [[1, 2], [1, 2]]] and m == 3
    a, m = evaluate(body, [0], "%n: i64", "f64[?, 2, 2], i64")
    assert a.shape == (0, 2, 2) and m == -1
    with pytest.raises(GraphError, match="negative"):
        evaluate(body, [-1], "%n: i64", "f64[?, 2, 2], i64")


def test_for_carries_maps_and_concatenations():
    body = """
      %r, %m, %c, %o = for %n, %x {kinds = ["map", "cat"]} : f64, f64[?], i64[?], i64[?] (%k: i64, %s: f64) {
        %t = add %s, %s : f64
        %q = par %k {kinds = ["map"]} : i64[?] (%i: i64) {
          yield %i
        }
        yield %t, %s, %q
      }
      yield %r, %m, %c, %o"""
    types = "f64, f64[?], i64[?], i64[?]"
    r, m, c, o = evaluate(body, [1.5, 3], "%x: f64, %n: i64", types)
    assert (r, m.tolist(), c.tolist(), o.tolist()) == (12.0, [1.5, 3.0, 6.0], [0, 0, 1], [0, 0, 1, 3])
    r, m, c, o = evaluate(body, [1.5, -2], "%x: f64, %n: i64", types)
    assert (r, m.tolist(), c.tolist(), o.tolist()) == (1.5, [], [], [0])


def test_while_gives_its_trip_count():
    body = """
      %one = const 1.0 : f64
      %r, %trips, %m = while %x {kinds = ["map"]} : f64, i64, f64[?] (%k: i64, %s: f64) {
        %c = gt %s, %one : bool
        yield %c
      } do (%k_1: i64, %s_1: f64) {
        %two = const 2.0 : f64
        %t = div %s_1, %two : f64
        yield %t, %s_1
      }
      yield %r, %trips, %m"""
    r, trips, m = evaluate(body, [10.0], "%x: f64", "f64, i64, f64[?]")
    assert (r, trips, m.tolist()) == (0.625, 4, [10.0, 5.0, 2.5, 1.25])


def test_updates_leave_their_operand_alone():
    body = """
      %i = const 1 : i64
      %v = const 9.0 : f64
      %y = update %x, %v, %i : f64[?]
      %b = par %i {kinds = ["map"]} : f64[?] (%k: i64) {
        yield %v
      }
      %z = insert %x, %b, %i : f64[?]
      yield %x, %y, %z"""
    given = np.array([1.0, 2.0])
    x, y, z = evaluate(body, [given], "%x: f64[?]", "f64[?], f64[?], f64[?]")
    assert (x.tolist(), y.tolist(), z.tolist()) == ([1.0, 2.0], [1.0, 9.0], [1.0, 9.0]) and given.tolist() == [1.0, 2.0]


def test_accumulators_reach_callees_and_branches():
    text = """
        func @add(%h: acc<f64[?]>, %x: f64, %i: i64) -> () {
          accum %h, %x, %i
          yield
        }
        func @f(%x: f64[?], %s: f64) -> (f64[?], f64, i64) {
          %n = dim %x {axis = 0} : i64
          %zero = const 0 : i64
          %y, %t, %m = withacc %x, %s : f64[?], f64, i64 (%h: acc<f64[?]>, %g: acc<f64>) {
            par %n {kinds = []} (%i: i64) {
              %v = read %x, %i : f64
              %c = gt %i, %zero : bool
              if %c {
                call @add %h, %v, %zero
                yield
              } else {
                accum %g, %v
                yield
              }
              yield
            }
            yield %n
          }
          yield %y, %t, %m
        }"""
    y, t, m = run(parse_module(text), "f", [[1.0, 2.0, 3.0], 10.0])
    assert (y.tolist(), t, m) == ([6.0, 2.0, 3.0], 11.0, 3)


def test_records_and_undefined_values():
    text = """
        record @r = (f64, f64[?])
        func @f(%x: f64[?], %n: i64, %c: bool) -> (f64, f64) {
          %a = par %n {kinds = ["map"]} : record<r>[?] (%i: i64) {
            %v = cast %i : f64
            %p = record_make %v, %x {record = "r"} : record<r>
            yield %p
          }
          %one = const 1 : i64
          %q = read %a, %one : record<r>
          %u, %w = record_unpack %q : f64, f64[?]
          %y = read %w, %one : f64
          %z = if %c : f64[?] {
            yield %x
          } else {
            %none = undef : f64[?]
            yield %none
          }
          yield %u, %y
        }"""
    assert run(parse_module(text), "f", [[4.0, 5.0], 2, False]) == [1.0, 5.0]


def test_a_failed_check_stops_with_its_message_and_place():
    text = """
        func @f(%x: f64, %n: i64, %c: bool) -> (f64) {
          check %c, %n, %x {kind = "IndexError", message = "index {0} of {1}"} loc("a.grad":7:3)
          yield %x
        }"""
    module = parse_module(text)
    assert run(module, "f", [1.5, 3, True]) == [1.5]
    with pytest.raises(ExecutionError) as error:
        run(module, "f", [1.5, 3, False])
    assert str(error.value) == "a.grad:7: index 3 of 1.5"
    assert (error.value.kind, error.value.message) == ("IndexError", "index 3 of 1.5")


def test_meaningless_accesses_are_faults_of_the_graph():
    with pytest.raises(GraphError, match="read at"):
        evaluate("%r = read %x, %i : f64\nyield %r", [[1.0], -1], "%x: f64[?], %i: i64", "f64")
    with pytest.raises(GraphError, match="said to have"):
        evaluate("%r = shaped %x, %i : f64[?]\nyield %r", [[1.0], 2], "%x: f64[?], %i: i64", "f64[?]")
    with pytest.raises(GraphError, match="expand derivatives"):
        text = "func @f(%x: f64) -> (f64) {\n %r = vjp @f %x, %x {value = false, wrt = [0]} : f64\n yield %r\n}"
        run(parse_module(text), "f", [1.0])
    with pytest.raises(TypeError, match="shape"):
        evaluate("yield %x", [[1.0]], "%x: f64[3]", "f64[3]")


def test_recursion_and_step_counter():
    text = """
        func @f(%n: i64) -> (i64) {
          %one = const 1 : i64
          %c = le %n, %one : bool
          %r = if %c : i64 {
            yield %one
          } else {
            %m = sub %n, %one : i64
            %s = call @f %m : i64
            %t = mul %n, %s : i64
            yield %t
          }
          yield %r
        }"""
    counter = Counter()
    assert run(parse_module(text), "f", [20], counter) == [math.factorial(20)]
    assert counter.steps == 3 * 20 + 3 * 19
    with pytest.raises(RecursionError):
        run(parse_module(text.replace("le %n", "eq %n")), "f", [-1])


def test_argsort_is_stable_with_nan_last():
    (p,) = evaluate("%r = argsort %x : i64[?]\nyield %r", [[3.0, NAN, 1.0, 3.0]], "%x: f64[?]", "i64[?]")
    assert p.tolist() == [2, 0, 3, 1]
