"""Every scalar operation and every reduction in kernels of the emulated device, against the interpreter."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from aotdiff.codegen import driver
from aotdiff.codegen.gpu.build import build
from aotdiff.codegen.gpu.emulated import EmulatedTarget

from aotdiff.ir.builder import new_func
from aotdiff.ir.graph import Module
from aotdiff.ir.interpreter import evaluate, run
from aotdiff.ir.ops import REDUCTIONS, SCALAR_OPS
from aotdiff.ir.types import BOOL, F32, F64, I64, Array, Scalar
from aotdiff.runtime.gpu.emulated import EmulatedDevice
from aotdiff.runtime.gpu.executor import DTYPES, Executor
from aotdiff.runtime.gpu.executor import Array as Held

INF, NAN = math.inf, math.nan
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, 7.3, -7.3, 1e-20, 40.0, 1e10, INF, -INF, NAN]
INTS = [0, 1, -1, 2, -2, 3, 7, -7, 10, 1 << 40, 2**63 - 1, -(2**63)]
TYPES = {"f64": F64, "f32": F32, "i64": I64, "bool": BOOL}
KINDS = {"float": ("f64", "f32"), "number": ("f64", "f32", "i64"), "bool": ("bool",), "any": ("f64", "i64", "bool")}
ATTRS: dict[str, list[dict[str, Any]]] = {
    "polygamma": [{"order": 1}, {"order": 2}],
    "sinc": [{"order": 0}, {"order": 3}],
}


def signatures() -> list[tuple[str, tuple[str, ...], dict[str, Any]]]:
    """(operation, operand kinds, attributes)."""
    found: list[tuple[str, tuple[str, ...], dict[str, Any]]] = []
    for name, spec in SCALAR_OPS.items():
        if name == "const":
            continue
        for kind in KINDS[spec.operands]:
            kinds = (kind,) * (spec.arity or 0)
            if name == "ipow":
                kinds = (kind, "i64")
            if name == "select":
                kinds = ("bool", kind, kind)
            attrs = [{"to": TYPES[to]} for to in TYPES] if name == "cast" else ATTRS.get(name, [{}])
            found += [(name, kinds, each) for each in attrs]
    return found


def inputs(name: str, kinds: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Edge values of all operands, without those the operation has no meaning for."""
    edges = {"f64": EDGES, "f32": [float(np.float32(x)) for x in EDGES], "i64": INTS, "bool": [False, True]}
    found = list(itertools.product(*(edges[kind] for kind in kinds)))
    if name in ("floordiv", "mod") and kinds[0] == "i64":
        found = [v for v in found if v[1] != 0]
    if name == "ipow":
        found = [(x, n) for x, n in found if (n >= 0 or kinds[0] != "i64") and abs(n) < 100]
    if name == "clamp":
        found = [v for v in found if not v[1] > v[2]]
    if name in ("digamma", "polygamma", "lgamma"):
        found = [v for v in found if v[0] != v[0] or 0 < v[0] < INF]
    return found


def device_run(module: Module, args: list[Any]) -> list[Any]:
    """Results of `f` on the emulated device."""
    plan, kernels = build(module, "f", EmulatedTarget(), driver.Options(opt=1))
    device = EmulatedDevice(1)
    executor = Executor(plan, device, driver.loadable(kernels.text(), driver.Options(opt=1)))
    held = []
    for arg in args:
        if isinstance(arg, np.ndarray):
            kind = {"d": "f64", "f": "f32", "l": "i64", "?": "bool"}[arg.dtype.char]
            buffer = device.alloc(arg.nbytes, None)
            device.copy_in(buffer, 0, arg, None)
            arg = Held(buffer, kind, arg.shape)
        held.append(arg)
    done = executor.run(held)
    found = [done.get(k) for k in range(len(plan.results))]
    done.release()
    device.synchronize(None)
    return found


@pytest.mark.parametrize(("name", "kinds", "attrs"), signatures(), ids=lambda v: str(v) if v else "-")
def test_scalar(name: str, kinds: tuple[str, ...], attrs: dict[str, Any]) -> None:
    rows = inputs(name, kinds)
    types = [Array(TYPES[kind], (None,)) for kind in kinds]

    def body(b: Any, *arrays: Any) -> list[Any]:
        return b.par(
            [b.dim(arrays[0], 0)], ["map"], lambda b, i: [b.scalar(name, *(b.read(a, i) for a in arrays), **attrs)]
        )

    module = Module()
    func = module.add(new_func("f", [(f"x{k}", t) for k, t in enumerate(types)], body))
    op = next(op for op in func.body.walk() if op.name == name)
    dtypes = [np.bool_ if kind == "bool" else DTYPES[kind] for kind in kinds]
    columns = [np.array(c, t) for c, t in zip(zip(*rows, strict=True), dtypes, strict=True)]
    (got,) = device_run(module, columns)
    want = np.array([evaluate(op, list(row)) for row in rows])
    result = op.results[0].type
    assert isinstance(result, Scalar)
    if not result.is_float:
        np.testing.assert_array_equal(got, want)
        return
    loose = 1e-11 if name in ("polygamma", "digamma", "lgamma", "sinc") else 4e-15
    tolerance = loose if result.kind == "f64" else 3e-6
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, want.astype(got.dtype), rtol=tolerance, atol=1e-300)


@pytest.mark.parametrize("n", [0, 1, 300, 3000])
@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("element", ["f64", "f32", "i64"])
def test_reduction(kind: str, element: str, n: int) -> None:
    """Blocks joined by a second kernel; ties and NaN as the interpreter has them."""
    element = "bool" if kind in ("any", "all") else element
    rng = np.random.default_rng(n)
    x = rng.integers(-9, 10, n).astype(np.bool_ if element == "bool" else DTYPES[element])
    if kind == "prod" and element != "i64":
        x = (1 + x / 1e4).astype(x.dtype)
    module = Module()

    def body(b: Any, x: Any) -> list[Any]:
        return b.par([b.dim(x, 0)], [kind], lambda b, i: [b.read(x, i)])

    module.add(new_func("f", [("x", Array(TYPES[element], (None,)))], body))
    variants = [x]
    if element in ("f64", "f32") and n > 100:
        variants.append(np.where(np.isin(np.arange(n), [17, 290]), NAN, x).astype(x.dtype))
    for values in variants:
        np.testing.assert_allclose(
            device_run(module, [values]), run(module, "f", [values]), rtol=1e-12 if element == "f64" else 1e-4
        )
