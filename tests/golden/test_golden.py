"""Golden texts: the graph, the adjoint and the second adjoint of small programs, one construct each.

A program is NAME.grad; its comment lines give arguments (`# args: [...]`, JSON) and patterns of its LLVM code
(`# CHECK: ...`, in the manner of FileCheck). NAME.ssa, NAME.adjoint and NAME.adjoint2 hold whole texts, rewritten
by `pytest --update-golden`. Every text is also executed: parsed, run by the interpreter, compared with compiled code.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aotdiff as ad
from aotdiff.ir.interpreter import run
from aotdiff.ir.parser import parse_module
from aotdiff.ir.printer import print_module
from aotdiff.ir.verifier import verify

HERE = Path(__file__).parent
PROGRAMS = sorted(HERE.glob("*.grad"))
STAGES = ("ssa", "adjoint", "adjoint2")


def arguments(path: Path) -> list:
    line = next(ln for ln in path.read_text().splitlines() if ln.startswith("# args:"))
    values = json.loads(line.removeprefix("# args:"))
    return [np.asarray(v) if isinstance(v, list) else v for v in values]


def derived(path: Path, stage: str):
    """The function, its gradient, or the pullback of its gradient."""
    f = getattr(ad.compile(path), path.stem)
    return {"ssa": lambda: f, "adjoint": lambda: f.grad(), "adjoint2": lambda: f.grad().vjp()}[stage]()


def extra(path: Path, stage: str, args: list) -> list:
    """The cotangent of the gradient that the second adjoint wants."""
    if stage != "adjoint2":
        return []
    g = derived(path, "adjoint")(*args)
    return [np.cos(np.arange(g.size, dtype=float)).reshape(g.shape) if isinstance(g, np.ndarray) else 0.7]


def text_of(path: Path, stage: str) -> tuple[str, str]:
    compiler, root, places = derived(path, stage).recipe()
    graph, name = compiler.expanded(root, places, "f64")
    verify(graph)
    return print_module(graph, locs=False), name


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_text(path: Path, stage: str, request: pytest.FixtureRequest) -> None:
    text, name = text_of(path, stage)
    golden = path.with_suffix("." + stage)
    if request.config.getoption("--update-golden"):
        golden.write_text(text)
    assert golden.exists(), f"no {golden.name}: run pytest --update-golden and review it"
    assert golden.read_text() == text, f"{golden.name} differs: review, then pytest --update-golden"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_text_runs(path: Path, stage: str) -> None:
    golden = path.with_suffix("." + stage)
    _, name = text_of(path, stage)
    args = arguments(path)
    args += extra(path, stage, args)
    got = run(parse_module(golden.read_text()), name, args)
    want = derived(path, stage)(*args)
    for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("path", [p for p in PROGRAMS if "# CHECK" in p.read_text()], ids=lambda p: p.stem)
def test_llvm(path: Path) -> None:
    """Patterns of the gradient's LLVM code: vector mathematics, no allocation, rolled loops."""
    compiler, root, places = derived(path, "adjoint").recipe()
    llvm = compiler.code_text(root, places, "f64", "llvm")
    found = subprocess.run(
        [sys.executable, "-m", "filecheck", str(path)], input=llvm, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
