"""Which cotangents and tangents a form takes, how its results are nested, how sizes are written and solved."""

import numpy as np
import pytest

from aotdiff.runtime.interface import Group, Interface, Leaf, Parameter, Refused, derive, from_json, wrt_leaves
from aotdiff.runtime.sizes import result_shapes

N, M = Leaf("f64", ("n",)), Leaf("f64", ("m",))


def interface(result, **parameters):
    return Interface("f", tuple(Parameter(name, kind) for name, kind in parameters.items()), result, "f.grad", 3)


SCALAR = interface(Leaf("f64"), x=N, k=Leaf("i64"), y=M)
COUNTED = interface(Group((Leaf("f64"), Leaf("i64"))), x=N)
ONE = interface(Group((N,)), x=N)
SEVERAL = interface(Group((Leaf("f64"), N, Leaf("i64"))), x=N, a=Leaf("f64"))


@pytest.mark.parametrize(
    ("f", "form", "wrt", "tupled", "expected"),
    [
        (SCALAR, "grad", "x", False, "fn(x: f64[n], k: i64, y: f64[m]) -> f64[n]"),
        (SCALAR, "grad", "x", True, "fn(x: f64[n], k: i64, y: f64[m]) -> (f64[n],)"),
        (SCALAR, "value_and_grad", "yx", True, "fn(x: f64[n], k: i64, y: f64[m]) -> (f64, (f64[m], f64[n]))"),
        (
            SCALAR,
            "hessian",
            "xy",
            True,
            "fn(x: f64[n], k: i64, y: f64[m]) -> ((f64[n, n], f64[n, m]), (f64[m, n], f64[m, m]))",
        ),
        (SCALAR, "hvp", "x", False, "fn(x: f64[n], k: i64, y: f64[m], v: f64[n]) -> f64[n]"),
        (SCALAR, "hvp", "xy", True, "fn(x: f64[n], k: i64, y: f64[m], v_x: f64[n], v_y: f64[m]) -> (f64[n], f64[m])"),
        (SCALAR, "vjp", "x", False, "fn(x: f64[n], k: i64, y: f64[m], ct: f64) -> f64[n]"),
        (SCALAR, "jvp", "x", False, "fn(x: f64[n], k: i64, y: f64[m], d_x: f64[n]) -> f64"),
        (SEVERAL, "vjp", "a", False, "fn(x: f64[n], a: f64, ct0: f64, ct1: f64[n]) -> f64"),
        (SEVERAL, "jvp", "xa", True, "fn(x: f64[n], a: f64, d_x: f64[n], d_a: f64) -> (f64, f64[n])"),
        (SEVERAL, "jacobian", "x", False, "fn(x: f64[n], a: f64) -> (f64[n], f64[n, n])"),
        (SEVERAL, "jacobian", "xa", True, "fn(x: f64[n], a: f64) -> ((f64[n], f64), (f64[n, n], f64[n]))"),
        (
            SEVERAL,
            "value_and_jvp",
            "a",
            False,
            "fn(x: f64[n], a: f64, d_a: f64) -> ((f64, f64[n], i64), (f64, f64[n]))",
        ),
        (COUNTED, "value_and_grad", "x", False, "fn(x: f64[n]) -> ((f64, i64), f64[n])"),
        (COUNTED, "jvp", "x", False, "fn(x: f64[n], d_x: f64[n]) -> f64"),
        (ONE, "jvp", "x", False, "fn(x: f64[n], d_x: f64[n]) -> (f64[n],)"),
        (ONE, "jacobian", "x", False, "fn(x: f64[n]) -> (f64[n, n],)"),
    ],
)
def test_derived(f, form, wrt, tupled, expected):
    assert str(derive(f, form, tuple(wrt), tupled)) == expected


def test_names_nest():
    hvp = derive(SCALAR, "hvp", ("x",), False)
    both = derive(hvp, "vjp", ("v", "x"), True)
    assert both.name == "vjp(hvp(f, wrt = x), wrt = (v, x))"
    assert both.names == ("x", "k", "y", "v", "ct")
    again = derive(both, "vjp", ("x",), False)
    assert again.names == ("x", "k", "y", "v", "ct", "ct0", "ct1")
    assert derive(derive(SCALAR, "vjp", ("x",), False), "vjp", ("x",), False).names[-2:] == ("ct", "ct_2")


@pytest.mark.parametrize(
    ("f", "form", "wrt", "words"),
    [
        (SEVERAL, "grad", "x", ["one number", "(f64, f64[n], i64)"]),
        (SCALAR, "grad", "k", ["'k'", "i64"]),
        (SCALAR, "grad", "z", ["'z'", "x, k, y"]),
        (interface(Leaf("i64"), x=N), "vjp", "x", ["i64"]),
    ],
)
def test_refused(f, form, wrt, words):
    with pytest.raises(Refused) as error:
        derive(f, form, tuple(wrt), False)
    assert all(word in str(error.value) for word in words)


def test_places_of_tuple_parameters():
    f = interface(Leaf("f64"), p=Group((Leaf("i64"), N, Leaf("f64"))), x=M)
    assert wrt_leaves(f, ("x", "p")) == (3, 1, 2)


def test_json_round_trip():
    f = interface(Group((Leaf("real", (("+", ("*", 2, "n"), 1),)), Leaf("bool"))), x=Leaf("real", ("n", 3)))
    assert from_json(f.to_json()) == f
    assert str(f.instance("f32")) == "fn(x: f32[n, 3]) -> (f32[2*n + 1], bool)"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (("//", ("*", "d", ("-", "d", 1)), 2), "d*(d - 1)//2"),
        (("-", "n", ("-", "m", 1)), "n - (m - 1)"),
        (("*", ("+", "n", 1), "m"), "(n + 1)*m"),
    ],
)
def test_size_text(size, text):
    assert str(Leaf("f64", (size,))) == f"f64[{text}]"


def test_result_shapes():
    size = ("+", ("*", 2, "n"), 1)
    f = interface(Group((Leaf("f64", ("n", ("-", "k", 1))), Leaf("f64"))), x=Leaf("f64", (size,)), k=Leaf("i64"))
    shapes = result_shapes(f)
    assert shapes([np.zeros(7), 4]) == [(3, 3), ()]
    assert shapes([np.zeros(7), -4]) == [(3, 0), ()]


def test_result_shapes_need_parameters():
    with pytest.raises(TypeError, match="m does not follow"):
        result_shapes(interface(M, x=N))
