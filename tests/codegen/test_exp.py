"""exp in lanes, which is written out: within one unit in the last place, special values as libm has them."""

from __future__ import annotations

import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
from aotdiff.codegen import Options, emit_llvm, runtime_math
from aotdiff.codegen import target as targets
from native import Compiled

from aotdiff.ir.builder import new_func
from aotdiff.ir.graph import Module
from aotdiff.ir.types import F64, Array

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from vector_math import Version, arguments


def module() -> Module:
    made = Module()

    def body(b, x):
        return b.par([b.dim(x, 0)], ["map"], lambda b, i: [b.scalar("exp", b.read(x, i))])

    made.add(new_func("f", [("x", Array(F64, (None,)))], body))
    return made


def _exact(x: float) -> mpmath.mpf:
    with mpmath.workdps(40):
        return mpmath.exp(mpmath.mpf(float(x)))


@pytest.mark.parametrize("scales", [True, False], ids=["scales", "multiplies"])
def test_error(scales: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without an instruction that multiplies by powers of two."""
    if not scales:
        monkeypatch.setattr(targets.CpuTarget, "scale", lambda self, f, x, n: runtime_math.scale(f, x, n))
    x = arguments(Version("exp", "f64", 1, 1, ""), 200)[0]
    x = np.concatenate([x, np.linspace(-745.5, -707.0, 500), np.linspace(709.0, 710.5, 500)])
    got = Compiled(module()).call("f", [x], [x.shape])[0]
    top = mpmath.mpf(np.finfo(np.float64).max)
    for at, found in zip(x, got, strict=True):
        if np.isnan(at):
            assert np.isnan(found)
            continue
        exact = _exact(at) if np.isfinite(at) else mpmath.mpf(np.exp(at))
        unit = np.spacing(float(min(exact, top * 0.99)))
        if np.isinf(found) or not exact < top:
            assert exact > top * (1 - mpmath.mpf(2) ** -53), at
            assert np.isinf(found) or found == np.finfo(np.float64).max
        else:
            assert abs(mpmath.mpf(float(found)) - exact) <= unit, at


def test_zero_is_one() -> None:
    assert Compiled(module()).call("f", [np.zeros(11)], [(11,)])[0].tolist() == [1.0] * 11


@pytest.mark.parametrize("fast", [False, True])
def test_it_is_written_out(fast: bool) -> None:
    text = emit_llvm(module(), ["f"], Options(fast_math=fast))
    assert "_exp(" not in text and "define internal <" in text
