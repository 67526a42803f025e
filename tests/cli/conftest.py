"""What the command line tests share."""

import pytest

from aotdiff.cli import main

PROGRAM = """\
fn total(x: f64[n], scale: f64) -> f64 = scale * sum(x[i] ** 2 for i in 0..n)

fn halves(x: f64[n]) -> (f64[n], i64) = (0.5 * x, n)

fn at(x: f64[n], i: i64) -> f64 = x[i]
"""

WRONG = """\
fn f(x: f64) -> f64 = x + velocty

fn g(x: f64) -> f64 { let y = sin(x, 1.0); y }
"""


class Result:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """Runs the command line in a folder with `ok.grad`, `wrong.grad` and `counts.grad`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AOTDIFF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ok.grad").write_text(PROGRAM)
    (tmp_path / "wrong.grad").write_text(WRONG)
    (tmp_path / "counts.grad").write_text("fn count(n: i64) -> i64 = n + 1\n")

    def run(*words):
        try:
            status = main([str(word) for word in words])
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run
