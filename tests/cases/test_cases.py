"""Programs with values computed elsewhere: every case of this folder, a test a file."""

import importlib.util
from pathlib import Path

import pytest

import aotdiff as ad

FOLDER = Path(__file__).parent
CASES = sorted(path for path in FOLDER.glob("*.grad") if path.with_suffix(".json").exists())

spec = importlib.util.spec_from_file_location("case_runner", FOLDER / "run.py")
assert spec is not None and spec.loader is not None
runner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runner)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path):
    problems = [f"{label}: {problem}" for label, problem in runner.run_case(ad, path) if problem]
    assert not problems, "\n".join(problems)
