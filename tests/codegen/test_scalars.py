"""Every scalar operation at ordinary and edge values, against the interpreter (and mpmath where that is weaker)."""

from __future__ import annotations

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from aotdiff.codegen import Options
from aotdiff.codegen.emit import EMITTERS, SCALARS, WITHOUT_EMITTER
from native import Compiled, NativeError, same  # noqa: F401

from aotdiff.ir.builder import new_func
from aotdiff.ir.graph import Module
from aotdiff.ir.interpreter import EVALUATE, fit
from aotdiff.ir.ops import OPS, SCALAR_OPS
from aotdiff.ir.types import BOOL, F32, F64, I64, Array

INF, NAN = math.inf, math.nan
FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    3.0,
    0.1,
    7.3,
    -7.3,
    12.75,
    1e-300,
    -1e-300,
    1e-20,
    40.0,
    1e10,
    1e300,
    -1e300,
    5e-324,
    INF,
    -INF,
    NAN,
]
INTS = [0, 1, -1, 2, -2, 3, 7, -7, 10, 1 << 40, 2**63 - 1, -(2**63), -(2**63) + 1]
BOOLS = [False, True]
VALUES = {
    "f64": FLOATS,
    "f32": [np.float32(x).item() for x in FLOATS if not 0 < abs(x) < 1e-45 and not 1e38 < abs(x) < INF],
    "i64": INTS,
    "bool": BOOLS,
}
TYPES = {"f64": F64, "f32": F32, "i64": I64, "bool": BOOL}


def test_table_is_complete() -> None:
    assert set(SCALARS) == set(SCALAR_OPS)
    assert set(SCALARS) | set(EMITTERS) | set(WITHOUT_EMITTER) == set(OPS)
    assert not set(SCALARS) & set(EMITTERS)


def _signatures() -> list[tuple[str, tuple[str, ...], dict]]:
    """(operation, operand kinds, attributes) of everything the table allows."""
    found = []
    for name, spec in SCALAR_OPS.items():
        if name in ("const", "ipow", "select", "cast"):
            continue
        kinds = {
            "float": ["f64", "f32"],
            "number": ["f64", "f32", "i64"],
            "bool": ["bool"],
            "any": ["f64", "f32", "i64", "bool"],
        }[spec.operands]
        for kind in kinds:
            orders = {"polygamma": (1, 2, 3, 5), "sinc": (0, 1, 2, 3, 4, 7)}.get(name)
            for order in orders or (None,):
                found.append((name, (kind,) * spec.arity, {} if order is None else {"order": order}))
    for kind in ("f64", "f32", "i64"):
        found.append(("ipow", (kind, "i64"), {}))
    for kind in ("f64", "f32", "i64", "bool"):
        found.append(("select", ("bool", kind, kind), {}))
        found += [("cast", (kind,), {"to": TYPES[to]}) for to in ("f64", "f32", "i64", "bool") if to != kind]
    return found


SIGNATURES = _signatures()
ULPS = {"lgamma": 64, "digamma": 64, "polygamma": 64, "sinc": 64, "ipow": 64, "pow": 4}


def _mapped(name: str, attrs: dict, b, *xs) -> list:
    def each(b, i):
        return [b.scalar(name, *(b.read(x, i) for x in xs), **attrs)]

    return b.par([b.dim(xs[0], 0)], ["map"], each)


def _compile(level: int) -> Compiled:
    """One function per signature that maps arrays of operands to an array of results."""
    module = Module()
    for n, (name, kinds, attrs) in enumerate(SIGNATURES):
        params = [(f"x{i}", Array(TYPES[k], (None,))) for i, k in enumerate(kinds)]
        module.add(new_func(f"f{n}", params, functools.partial(_mapped, name, attrs)))
    return Compiled(module, options=Options(opt=level))


@pytest.fixture(scope="module", params=[0, 3])
def compiled(request) -> Compiled:
    return _compile(request.param)


def _operands(name: str, kinds: tuple[str, ...]) -> list[tuple]:
    lists = [VALUES[k] for k in kinds]
    if name == "ipow":
        lists[1] = [0, 1, 2, 3, 5, 8, 13, 62] if kinds[0] == "i64" else [0, 1, -1, 2, -2, 3, -3, 10, -10, 50]
    rows = list(itertools.product(*lists))
    if name in ("floordiv", "mod") and kinds[0] == "i64":
        rows = [r for r in rows if r[1] != 0]
    if name in ("digamma", "polygamma", "sinc"):  # the reference overflows beyond
        rows = [r for r in rows if not abs(r[0]) > 1e10 and not 0 < abs(r[0]) < 1e-20]
    return rows[:: max(1, len(rows) // 3000)]


def _label(n: int) -> str:
    name, kinds, attrs = SIGNATURES[n]
    return "-".join([name, *kinds, *map(str, attrs.values())])


@pytest.mark.parametrize("n", range(len(SIGNATURES)), ids=_label)
def test_values(compiled: Compiled, n: int) -> None:
    name, kinds, attrs = SIGNATURES[n]
    rows = _operands(name, kinds)
    result_type = compiled.module.funcs[f"f{n}"].result_types[0].element
    expected = [fit(EVALUATE[name](*row, **attrs), result_type) for row in rows]
    args = [
        np.array(column, {"f64": "f8", "f32": "f4", "i64": "i8", "bool": "?"}[k])
        for column, k in zip(zip(*rows), kinds)
    ]
    (actual,) = compiled.call(f"f{n}", args, [(len(rows),)])
    if result_type in (I64, BOOL):
        np.testing.assert_array_equal(actual, expected)
        return
    eps = 2.3e-16 if result_type == F64 else 1.2e-7
    tolerance = eps * ULPS.get(name, 8)
    for row, a, e in zip(rows, actual.tolist(), expected):
        if e != e or a != a or math.isinf(e) or math.isinf(a):
            assert (a != a and e != e) or a == e, (row, a, e)
            continue
        least = 1.0 if name in ("digamma", "polygamma") else 1e-307 if result_type == F64 else 1e-37
        assert abs(a - e) <= tolerance * max(abs(e), least), (row, a, e)


def _mp(name: str, order: int | None, x: float) -> mpmath.mpf:
    with mpmath.workdps(40):
        v = mpmath.mpf(x)
        if name == "digamma":
            return mpmath.digamma(v)
        if name == "polygamma":
            return mpmath.psi(order, v)
        if name == "sigmoid":
            return 1 / (1 + mpmath.exp(-v))
        if name == "sigmoid_tail":
            return mpmath.sign(v) / (1 + mpmath.exp(abs(v)))
        if name == "softplus":
            return mpmath.log1p(mpmath.exp(v))
        if name == "sech2":
            return 1 / mpmath.cosh(v) ** 2
        return mpmath.diff(lambda t: mpmath.sinc(t), v, order) if order else mpmath.sinc(v)


SPECIAL = ("digamma", "polygamma", "sigmoid", "sigmoid_tail", "softplus", "sech2", "sinc")


@pytest.mark.parametrize("n", [i for i, s in enumerate(SIGNATURES) if s[0] in SPECIAL and s[1] == ("f64",)], ids=_label)
def test_precision(compiled: Compiled, n: int) -> None:
    name, _, attrs = SIGNATURES[n]
    points = [
        0.01,
        0.3,
        0.9,
        1.0,
        1.2,
        1.46,
        1.47,
        2.0,
        2.2,
        3.7,
        5.5,
        9.9,
        10.1,
        19.9,
        33.0,
        -0.2,
        -0.7,
        -1.3,
        -3.6,
        -8.5,
    ]
    if name in ("sigmoid", "sigmoid_tail", "softplus", "sech2"):
        points += [-30.0, 30.0, -300.0, 300.0]
    (actual,) = compiled.call(f"f{n}", [np.array(points)], [(len(points),)])
    for x, a in zip(points, actual.tolist()):
        e = _mp(name, attrs.get("order"), x)
        scale = max(abs(e), mpmath.mpf("0.01") if name == "sinc" else 0)
        assert abs(a - e) <= 2e-14 * scale, (x, a, e)
