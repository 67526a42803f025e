"""Vector mathematics is within 4 ulp, special values are those of the scalar functions; see the table of benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from vector_math import Version, arguments, compare, versions

ALL = versions()
WIDEST = [v for v in ALL if v.lanes == max(w.lanes for w in ALL if (w.name, w.kind) == (v.name, v.kind))]


@pytest.mark.parametrize("version", WIDEST, ids=lambda v: f"{v.name}-{v.kind}")
def test_error_and_special_values(version: Version) -> None:
    found = compare(version, arguments(version, 2000, seed=7))
    assert found.fine, found
