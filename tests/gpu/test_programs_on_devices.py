"""Samples and benchmark programs on the emulated device: the samples' own checks, the values of the CPU."""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotdiff as ad

pytestmark = pytest.mark.filterwarnings("ignore:.*one thread of the device")
ROOT = Path(__file__).parents[2]
compile_for = functools.partial(ad.compile, target="emulated")


@pytest.mark.parametrize("path", sorted((ROOT / "samples").glob("*.py")), ids=lambda path: path.stem)
def test_samples(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ad, "compile", compile_for)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tests" / "benchmarks")
    import aotdiff_peers  # pyright: ignore[reportMissingImports]
    import workloads  # pyright: ignore[reportMissingImports]

    def results(name: str, compile_: Callable[..., Any]) -> list[Any]:
        monkeypatch.setattr(ad, "compile", compile_)
        made = aotdiff_peers.build(name, workloads.make(name, "S"))
        value = made["primal"]()
        return [*(value if isinstance(value, tuple) else [value]), *made["grad"]()]

    return results


@pytest.mark.parametrize("name", [
    "llsq", "lse", "ode", "gmm", "lstm", "kmeans", "ba", "rosenbrock", "mlp", "heat", "blackscholes", "gmm_hvp",
    "rosenbrock_hvp", "mlp_hvp",
])  # fmt: skip
def test_benchmark_programs(name: str, benchmarks: Any) -> None:
    """All of them but `det`, which calls itself."""
    for wanted, found in zip(benchmarks(name, ad.compile), benchmarks(name, compile_for), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-13 * np.max(np.abs(wanted), initial=0.0))
