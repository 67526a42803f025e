"""Machine code for NVIDIA's GPUs, made without one: every operation and kind, samples, benchmark programs.

nvJitLink is the assembler that the driver has too; it refuses what a driver would refuse.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aotdiff.codegen.gpu import nvptx
from aotdiff.codegen.gpu.device import device_target, device_text
from aotdiff.codegen.loader import Options

import aotdiff as ad
from aotdiff.ir.builder import new_func
from aotdiff.ir.graph import Module
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import BOOL, F32, F64, I64
from aotdiff.runtime.gpu.stages import plan_text
from aotdiff.runtime.interface import leaves
from tests.gpu.wheels import machine_code, needs_machine_code

ARCHES = ("sm_80", "sm_90")
TYPES = {"f64": F64, "f32": F32, "i64": I64, "bool": BOOL}
ORDERS = {"polygamma": (1, 2, 5), "sinc": (0, 1, 3)}
KINDS = {"float": ("f64", "f32"), "number": ("f64", "f32", "i64"), "bool": ("bool",), "any": tuple(TYPES)}


def signatures(name: str) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Operand kinds and attributes of everything the table of operations allows."""
    if name == "const":
        return [((), {"value": 1, "type": TYPES[kind]}) for kind in TYPES]
    if name == "ipow":
        return [((kind, "i64"), {}) for kind in KINDS["number"]]
    if name == "select":
        return [(("bool", kind, kind), {}) for kind in TYPES]
    if name == "cast":
        return [((kind,), {"to": TYPES[to]}) for kind in TYPES for to in TYPES if to != kind]
    spec = SCALAR_OPS[name]
    orders = [{"order": order} for order in ORDERS.get(name, ())] or [{}]
    return [((kind,) * (spec.arity or 0), attrs) for kind in KINDS[spec.operands] for attrs in orders]


def ptx_of(name: str, opt: int, arches: tuple[str, ...]) -> list[str]:
    """One module of device functions, a function for each kind of operands, as PTX for each architecture."""
    texts, symbols = [], []
    for kinds, attrs in signatures(name):
        module = Module()
        params = [(f"x{i}", TYPES[kind]) for i, kind in enumerate(kinds)]
        module.add(new_func("f", params, lambda b, *xs, a=attrs: [_made(b, name, xs, a)]))
        symbol = "_".join([name, *kinds, *map(str, attrs.values())])
        symbols.append("".join(c if c.isalnum() else "_" for c in symbol))
        texts.append(device_text(module, "f", symbols[-1], device_target(), Options(opt=opt), False)[0])
    return [nvptx.emit_ptx(texts, symbols, arch, opt) for arch in arches]


def _made(b: Any, name: str, xs: Any, attrs: dict[str, Any]) -> Any:
    return b.const(attrs["value"], attrs["type"]) if name == "const" else b.scalar(name, *xs, **attrs)


@needs_machine_code
@pytest.mark.parametrize("opt", [0, 3])
@pytest.mark.parametrize("name", SCALAR_OPS)
def test_operations(name: str, opt: int) -> None:
    for arch, ptx in zip(ARCHES, ptx_of(name, opt, ARCHES), strict=True):
        assert ptx.count(".visible .func") == len(signatures(name))
        assert machine_code([ptx], arch).cubin.startswith(b"\x7fELF")


# Programs ----------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "samples").glob("*.grad"))
BENCHMARKS = sorted((ROOT / "tests" / "benchmarks" / "programs").glob("*.grad"))
HVPS = {"gmm": ("alpha", "mu", "q", "l"), "mlp": ("W1", "b1", "W2", "b2", "W3", "b3"), "rosenbrock": ("x",)}
RECURSIVE = {"expand", "det_minors"}  # these are refused


def kernels_of(f: Any, opt: int, arches: tuple[str, ...]) -> list[str]:
    """PTX of a function's kernels for each architecture; none where it has no kernels."""
    compiler, root, places = f.recipe()
    plan, text, _ = plan_text(compiler, root, places, "f64", nvptx.NvptxTarget())
    return [nvptx.emit_ptx(text, None, arch, opt) for arch in arches] if plan.kernels else []


def functions(path: Path, opt: int) -> list[Any]:
    """The exported functions, their gradients by all float parameters, and what is timed of second order."""
    module = ad.compile(path, target="cuda", opt=opt)
    found = [module[name] for name in module]
    for f in list(found):
        floats = [p.name for p in f.parameters if any(leaf.is_float for leaf in leaves(p.kind))]
        if floats and any(leaf.is_float for leaf in leaves(f.interface.result)):
            found.append(f.vjp(wrt=tuple(floats)))
        if f.name in HVPS and path in BENCHMARKS:
            found.append(f.hvp(wrt=HVPS[f.name]))
    return found


@needs_machine_code
@pytest.mark.parametrize("path", [*SAMPLES, *BENCHMARKS], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_programs(path: Path) -> None:
    for f in functions(path, 3):
        if f.recipe()[1] in RECURSIVE:
            with pytest.raises(ad.CompileError, match="recursion does not run on a device"):
                kernels_of(f, 3, ARCHES)
            continue
        for arch, ptx in zip(ARCHES, kernels_of(f, 3, ARCHES), strict=False):
            assert machine_code([ptx], arch).spills() == {}, (f.name, arch)


@needs_machine_code
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_without_optimisation(path: Path) -> None:
    for f in functions(path, 0):
        for ptx in kernels_of(f, 0, ("sm_80",)):
            assert machine_code([ptx], "sm_80").cubin.startswith(b"\x7fELF")


# Small matrices, one a thread ----------------------------------------------------------------------------------

BATCHED = """
fn solves(a: f64[b, {k}, {k}], y: f64[b, {k}]) -> f64[b, {k}] = [solve(a[i, :, :], y[i, :]) for i in 0..b]
fn inverses(a: f64[b, {k}, {k}]) -> f64[b, {k}, {k}] = [inv(a[i, :, :]) for i in 0..b]
fn factors(a: f64[b, {k}, {k}]) -> f64[b, {k}, {k}] = [cholesky(a[i, :, :]) for i in 0..b]
fn volumes(a: f64[b, {k}, {k}]) -> f64[b] = [logdet(a[i, :, :]) for i in 0..b]
"""
NAMES = ("solves", "inverses", "factors", "volumes")


@needs_machine_code
@pytest.mark.parametrize("k", [4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_small_matrices(k: int, name: str) -> None:
    """Nothing is spilled. Rows that pivots choose are indexed, and in local memory anyway."""
    f = ad.compile_source(BATCHED.format(k=k), target="cuda")[name]
    for g in (f, f.vjp("a")):
        (ptx,) = kernels_of(g, 3, ("sm_90",))
        assert not machine_code([ptx], "sm_90").spills(), g.name
