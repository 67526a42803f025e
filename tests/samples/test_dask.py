"""Data-parallel gradients on a local cluster."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "samples" / "dask" / "data_parallel.py"


def test_sum_of_shard_gradients_is_the_gradient(tmp_path, monkeypatch, capsys):
    """The sample compares both itself, then fits: here with workers that have a cache of their own."""
    pytest.importorskip("distributed", reason="dask.distributed is not installed (the dask extra)")
    monkeypatch.setenv("AOTDIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(SCRIPT))["main"]
    assert main() < 0.2
    assert "after 30 steps" in capsys.readouterr().out
