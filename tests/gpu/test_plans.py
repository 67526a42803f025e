"""Launch plans as text: of small programs, one construct each, and through JSON and back.

A program is golden/NAME.grad, whose function NAME has the plan NAME.plan; some have a gradient too, with the plan
NAME.grad_plan. `pytest --update-golden` rewrites them for review. Each plan is run, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aotdiff.codegen.gpu import plan as plans
from aotdiff.codegen.gpu.emulated import EmulatedTarget

import aotdiff as ad
from aotdiff.runtime.gpu.stages import plan_text

HERE = Path(__file__).parent / "golden"
PROGRAMS = sorted(HERE.glob("*.grad"))
X = np.array([0.3, -1.2, 0.8, 2.5, -0.4])
ARGUMENTS: dict[str, list[Any]] = {
    "map": [X, X + 1.0],
    "reduction": [X],
    "best": [X],
    "block": [X, X + 1.0],
    "scatter": [X, np.array([1, 0, 1, 4, 1])],
    "steps": [X, 3],
    "until": [X, 100.0],
    "branch": [X],
    "serial": [X, 0.5],
    "scratch": [X],
}
GRADIENTS = {"scatter": "gather", "reduction": "reduction", "steps": "steps"}


def derived(path: Path, stage: str, target: str) -> ad.Function:
    module = ad.compile(path, target=target)
    return module[path.stem] if stage == "plan" else module[GRADIENTS[path.stem]].grad()


def planned(path: Path, stage: str) -> tuple[plans.Plan, str]:
    compiler, root, places = derived(path, stage, "emulated").recipe()
    plan, text, _ = plan_text(compiler, root, places, "f64", EmulatedTarget())
    return plan, text


CASES = [(p, "plan") for p in PROGRAMS] + [(p, "grad_plan") for p in PROGRAMS if p.stem in GRADIENTS]


@pytest.mark.parametrize(("path", "stage"), CASES, ids=lambda v: v if isinstance(v, str) else v.stem)
def test_text(path: Path, stage: str, request: pytest.FixtureRequest) -> None:
    text = str(planned(path, stage)[0]) + "\n"
    golden = path.with_suffix("." + stage)
    if request.config.getoption("--update-golden"):
        golden.write_text(text)
    assert golden.read_text() == text, f"{golden.name} differs: review, then pytest --update-golden"


@pytest.mark.filterwarnings("ignore:.*one thread of the device")
@pytest.mark.parametrize(("path", "stage"), CASES, ids=lambda v: v if isinstance(v, str) else v.stem)
def test_values(path: Path, stage: str) -> None:
    args = ARGUMENTS[path.stem]
    np.testing.assert_allclose(
        derived(path, stage, "emulated")(*args), derived(path, stage, "cpu")(*args), rtol=1e-13, atol=1e-14
    )


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_json(path: Path) -> None:
    plan, _ = planned(path, "plan")
    assert plans.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_kernels_of_a_reduction() -> None:
    """A grid-stride loop, the error word first, a tree of barriers, one value per block."""
    plan, text = planned(HERE / "reduction.grad", "plan")
    (reduce, fold) = plan.kernels
    assert (reduce.block, reduce.barriers, reduce.scratch) == (256, True, False)
    assert fold.name == "fold_sum_f64" and fold.params == ("i64", "ptr", "ptr")
    kernel = text[text.index(f"@kernel.{reduce.name}(") :].split("\n}\n")[0]
    assert kernel.count("@llvm.coro.suspend") == 8 + 1  # 256 threads in halves, and the end
    assert "load atomic i64, ptr %errors monotonic" in kernel
    assert "presplitcoroutine" in kernel


def test_an_atomic_only_where_threads_share() -> None:
    _, text = planned(HERE / "scatter.grad", "grad_plan")
    assert "atomicrmw fadd ptr" in text
    _, text = planned(HERE / "serial.grad", "plan")
    assert "atomicrmw" not in text


def test_scratch_is_asked_for() -> None:
    plan, text = planned(HERE / "scratch.grad", "plan")
    assert [k.scratch for k in plan.kernels] == [True]
    assert "call void @aot.open(ptr %ctx, ptr %errors, i64 %arena, i64 0)" in text
