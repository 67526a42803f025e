"""Each sample's Python use runs and its own assertions hold."""

import runpy
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.mark.parametrize("script", sorted(SAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_sample(script, capsys):
    runpy.run_path(str(script))
    assert capsys.readouterr().out.strip()


def test_every_program_has_a_use():
    assert {p.stem for p in SAMPLES.glob("*.grad")} == {p.stem for p in SAMPLES.glob("*.py")}
