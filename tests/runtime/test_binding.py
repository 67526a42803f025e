"""What arguments are taken as they are, what is converted, what is refused and in which words."""

import array
import re

import numpy as np
import pytest

import aotdiff as ad
from aotdiff import cli
from aotdiff.runtime.binding import Binder, arrange, choose_real
from aotdiff.runtime.interface import Group, Interface, Leaf, Parameter

SCALAR = Leaf("f64")


def interface(*kinds, result=SCALAR):
    names = "xyzw"
    return Interface("f", tuple(Parameter(n, k) for n, k in zip(names, kinds, strict=False)), result, "f.grad", 3)


def convert(kind, value):
    (converted,) = Binder(interface(kind)).values([value])
    return converted


VECTOR, SINGLE, INTS, BOOLS = (Leaf(element, ("n",)) for element in ("f64", "f32", "i64", "bool"))


def test_used_in_place():
    x = np.arange(3.0)
    x.flags.writeable = False
    assert convert(VECTOR, x) is x


class Dlpack:
    def __init__(self, a):
        self.a = a

    def __dlpack__(self, **options):
        return self.a.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.a.__dlpack_device__()


class Arraylike:
    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (VECTOR, [1, 2, 3]),
        (VECTOR, (1.0, 2, np.float64(3))),
        (VECTOR, np.array([1, 2, 3], np.int32)),
        (VECTOR, np.array([1.0, 9.0, 2.0, 9.0, 3.0])[::2]),
        (VECTOR, np.array([1.0, 2.0, 3.0]).astype(">f8")),
        (VECTOR, array.array("d", [1, 2, 3])),
        (VECTOR, memoryview(np.array([1.0, 2.0, 3.0]))),
        (VECTOR, Dlpack(np.array([1.0, 2.0, 3.0]))),
        (VECTOR, Arraylike()),
        (SINGLE, [1.0, 2.0, 3.0]),
        (SINGLE, np.array([1, 2, 3], np.uint8)),
        (INTS, np.array([1, 2, 3], np.uint64)),
        (INTS, [1, 2, 3]),
    ],
)
def test_converted(kind, value):
    converted = convert(kind, value)
    assert converted.dtype == {"f64": np.float64, "f32": np.float32, "i64": np.int64}[kind.element]
    assert converted.flags.c_contiguous and converted.dtype.isnative
    np.testing.assert_array_equal(converted, [1, 2, 3])


def test_unaligned_is_copied():
    raw = np.zeros(25, np.uint8)
    x = raw[1:].view(np.float64)
    assert convert(VECTOR, x).flags.aligned


@pytest.mark.parametrize("kind", [VECTOR, SINGLE, INTS, BOOLS])
def test_empty_list(kind):
    assert convert(kind, []).shape == (0,)


@pytest.mark.parametrize(
    ("element", "value", "expected"),
    [
        ("f64", 1, 1.0),
        ("f64", np.float64(0.5), 0.5),
        ("f64", np.array(0.5), 0.5),
        ("f64", np.int32(2), 2.0),
        ("f32", 0.1, 0.1),
        ("f32", np.float32(0.1), float(np.float32(0.1))),
        ("i64", np.uint8(7), 7),
        ("i64", -(1 << 63), -(1 << 63)),
        ("bool", np.bool_(True), True),
        ("bool", False, False),
    ],
)
def test_scalars(element, value, expected):
    converted = convert(Leaf(element), value)
    assert converted == expected and type(converted) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value", "error", "words"),
    [
        (VECTOR, np.zeros(2, np.float32), TypeError, ["float32", "astype(np.float64)"]),
        (SINGLE, np.zeros(2), TypeError, ["float64", "astype(np.float32)"]),
        (SINGLE, np.zeros(2, np.float16), TypeError, ["float16"]),
        (VECTOR, np.zeros(2, bool), TypeError, ["bool"]),
        (VECTOR, np.zeros(2, complex), TypeError, ["complex128"]),
        (VECTOR, np.array(["a"]), TypeError, ["f64[n]"]),
        (VECTOR, 1.0, TypeError, ["float 1.0"]),
        (VECTOR, None, TypeError, ["None"]),
        (VECTOR, "abc", TypeError, ["str"]),
        (VECTOR, np.zeros((2, 2)), ValueError, ["(2, 2)", "f64[n] has 1 dimension"]),
        (VECTOR, [[1.0], [1.0, 2.0]], ValueError, ["different lengths"]),
        (VECTOR, np.ma.masked_array([1.0], [True]), TypeError, ["masked"]),
        (INTS, [1.0], TypeError, ["float64"]),
        (INTS, np.array([1 << 63], np.uint64), ValueError, ["fit"]),
        (BOOLS, [0, 1], TypeError, ["int64", "np.asarray(x, bool)"]),
        (Leaf("f64"), np.float32(1), TypeError, ["float32", "np.float64(x)"]),
        (Leaf("f32"), np.float64(1), TypeError, ["float64", "np.float32(x)"]),
        (Leaf("f64"), True, TypeError, ["bool"]),
        (Leaf("f64"), [1.0], TypeError, ["list"]),
        (Leaf("f64"), 10**400, ValueError, ["too large"]),
        (Leaf("f64"), 1j, TypeError, ["complex"]),
        (Leaf("i64"), 1.0, TypeError, ["float 1.0"]),
        (Leaf("i64"), 1 << 63, ValueError, ["fit"]),
        (Leaf("i64"), True, TypeError, ["bool"]),
        (Leaf("bool"), 1, TypeError, ["int 1"]),
        (Group((VECTOR, Leaf("f64"))), (1.0,), ValueError, ["1 items"]),
        (Group((VECTOR, Leaf("f64"))), 1.0, TypeError, ["(f64[n], f64)"]),
        (Group((VECTOR, Leaf("f64"))), ([1.0], "a"), TypeError, ["x[1]"]),
    ],
)
def test_refused(kind, value, error, words):
    with pytest.raises(error) as caught:
        Binder(interface(kind)).values([value])
    assert all(word in str(caught.value) for word in ["f.grad:3", "f: parameter x", *words]), caught.value


def test_keywords():
    f = interface(VECTOR, Leaf("f64"), Leaf("i64"))
    assert list(arrange(f, (1,), {"z": 3, "y": 2})) == [1, 2, 3]
    for args, kwargs, words in [
        ((1, 2), {}, "z: i64 missing"),
        ((1, 2, 3, 4), {}, "takes 3 arguments"),
        ((1, 2), {"y": 2, "z": 3}, "'y' twice"),
        ((1, 2), {"q": 3}, "no parameter 'q'"),
    ]:
        with pytest.raises(TypeError, match=words):
            arrange(f, args, kwargs)


def test_real_is_chosen_by_arrays():
    f = interface(Leaf("real", ("n",)), Leaf("real"), Leaf("f64"))
    single, double = np.zeros(2, np.float32), np.zeros(2)
    assert choose_real(f, [single, 1.0, np.float64(1)], "f64") == "f32"
    assert choose_real(f, [[1.0], np.float32(1), 1.0], "f64") == "f32"
    assert choose_real(f, [[1.0], 1, 1], "f64") == "f64"
    assert choose_real(f, [[1.0], 1, 1], "f32") == "f32"
    assert choose_real(f, [memoryview(single), 1, 1], "f64") == "f32"
    with pytest.raises(TypeError, match="x is f32 and parameter y is f64"):
        choose_real(f, [single, double[0], 1.0], "f64")


def test_outputs():
    binder = Binder(interface(VECTOR, result=Group((VECTOR, Leaf("f64")))))
    x = np.zeros(3)
    out = np.empty(3)
    assert binder.outputs([x], (out, None))[0] is out
    assert binder.outputs([x], (None, None))[0].shape == (3,)
    for bad, error, words in [
        ((np.empty(2), None), ValueError, "shape"),
        ((np.empty(3, np.float32), None), TypeError, "float64"),
        ((np.empty(6)[::2], None), ValueError, "contiguous"),
        ((x, None), ValueError, "overlaps"),
        (out, TypeError, "tuple of 2"),
    ]:
        with pytest.raises(error, match=words):
            binder.outputs([x], bad)


# Sizes of cotangents and tangents ------------------------------------------------------------------------------------

SIZED = """fn grow(x: f64[n], y: f64[n,k]) -> f64[n+1] = [(if i < n { x[i] * sum(y[i]) } else { 1.0 }) for i in 0..n+1]
fn norms(x: f64[n], y: f64[k]) -> f64 = sum(x**2) * sum(y**3)
fn pair(x: f64[n], p: (f64[n], f64)) -> (f64[n], f64) = (x * p.0 * p.1, sum(x))
fn whole(k: i64, x: f64[n]) -> f64[2*k] = [x[0] * f64(i) for i in 0..2*k]
"""


@pytest.fixture(scope="module", params=["O3", "O0", "library", "emulated"])
def sized(request, tmp_path_factory):
    if request.param == "O0":
        return ad.compile_source(SIZED, opt=0)
    if request.param == "emulated":
        return ad.compile_source(SIZED, target="emulated")
    if request.param == "O3":
        return ad.compile_source(SIZED)
    folder = tmp_path_factory.mktemp("sized")
    (folder / "sized.grad").write_text(SIZED)
    assert cli.main(["build", str(folder / "sized.grad"), "-o", str(folder), "--order", "2"]) == 0
    return ad.load(folder / "sized.so")


A, B, M43 = np.ones(4), np.ones(2), np.ones((4, 3))


@pytest.mark.parametrize(
    ("make", "args", "words"),
    [
        (lambda m: m.grow.vjp(), (A, M43, A), "`ct` has size 4 where its type f64[n + 1] wants 5"),
        (lambda m: m.grow.value_and_vjp(), (A, M43, np.ones(6)), "`ct` has size 6"),
        (lambda m: m.grow.vjp(wrt=("x", "y")), (A, M43, B), "`ct` has size 2"),
        (lambda m: m.grow.jvp(wrt="y"), (A, M43, M43.T), r"`d_y` has size 3 where its type f64[n, k] wants 4 (axis 0)"),
        (lambda m: m.norms.hvp(), (A, B, B), "`v` has size 2 where its type f64[n] wants 4"),
        (lambda m: m.norms.hvp(wrt=("x", "y")), (A, B, A, A), "`v_y` has size 4 where its type f64[k] wants 2"),
        (lambda m: m.norms.grad().vjp(), (A, B, B), "`ct` has size 2"),
        (lambda m: m.norms.grad().jvp(), (A, B, np.ones(5)), "`d_x` has size 5"),
        (lambda m: m.pair.vjp(), (A, (A, 1.0), B, 1.0), "`ct0` has size 2"),
        (lambda m: m.pair.jvp(wrt="p"), (A, (A, 1.0), (B, 1.0)), "`d_p` has size 2"),
        (lambda m: m.whole.vjp(), (3, A, A), "`ct` has size 4 where its type f64[2*k] wants 6"),
    ],
)
def test_sizes_of_cotangents_and_tangents(sized, make, args, words):
    """Native code does not look at them: memory beyond the array would be read."""
    with pytest.raises(ValueError, match=re.escape(words)):
        make(sized)(*args)
    tensors = [ad.tensor(a) if isinstance(a, np.ndarray) and not isinstance(args[1], tuple) else a for a in args]
    with pytest.raises(ValueError, match=re.escape(words)):
        make(sized)(*tensors)


def test_right_sizes_of_cotangents_and_tangents(sized):
    assert sized.grow.vjp()(A, M43, np.ones(5)).tolist() == [3.0] * 4
    assert [g.tolist() for g in sized.norms.hvp(wrt=("x", "y"))(A, B, A, B)] == [[16.0] * 4, [48.0] * 2]
    assert sized.pair.vjp()(A, (A, 2.0), A, 1.0).tolist() == [3.0] * 4
    assert sized.whole.vjp()(2, A, np.ones(4)).tolist() == [6.0, 0.0, 0.0, 0.0]
