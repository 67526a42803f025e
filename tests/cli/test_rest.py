"""The rest of the command line: formatting, pictures, diagnostics for editors, progress, threads."""

import io
import json
import re
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

import aotdiff as ad
from aotdiff.cli import common

SAMPLES = Path(__file__).parents[2] / "samples"


# fmt ---------------------------------------------------------------------------------------------------------------


def test_fmt_keeps_comments_and_is_idempotent(cli, tmp_path):
    text = "# first\nfn f( x:f64[n] )->f64{ # why\n  # inside\n  let y=x*2.0   # twice\n  sum( y )\n}\n# last\n"
    (tmp_path / "loose.grad").write_text(text)
    assert cli("fmt", "loose.grad", "--check").status == 1
    assert cli("fmt", "loose.grad").status == 0
    once = (tmp_path / "loose.grad").read_text()
    assert [c.strip() for c in re.findall(r"#.*", once)] == [c.strip() for c in re.findall(r"#.*", text)]
    assert "fn f(x: f64[n]) -> f64" in once and "let y = x*2.0" in once
    assert cli("fmt", "loose.grad", "--check").status == 0
    assert cli("fmt", "loose.grad").status == 0 and (tmp_path / "loose.grad").read_text() == once
    assert cli("check", "loose.grad").status == 0


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.grad")), ids=lambda p: p.stem)
def test_samples_are_formatted(cli, sample):
    assert cli("fmt", "--check", sample).err == ""


def test_fmt_writes_through_links_and_keeps_modes(cli, tmp_path):
    (tmp_path / "real.grad").write_text("fn f( x:f64 )->f64=x\n")
    (tmp_path / "real.grad").chmod(0o640)
    (tmp_path / "link.grad").symlink_to("real.grad")
    assert cli("fmt", "link.grad").status == 0
    assert (tmp_path / "link.grad").is_symlink() and (tmp_path / "real.grad").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "real.grad").read_text() == "fn f(x: f64) -> f64 = x\n"


# graph -------------------------------------------------------------------------------------------------------------


def test_picture(cli, tmp_path):
    """Well-formed, with the source, the function and its adjoint; every line inside the picture."""
    result = cli("graph", SAMPLES / "rosenbrock.grad", "rosenbrock", "-o", "out.svg")
    assert result.status == 0, result.err
    root = xml.parse(tmp_path / "out.svg").getroot()
    assert root.tag.endswith("svg")
    width, height = float(root.get("width")), float(root.get("height"))
    texts = root.findall(".//{*}text")
    assert all(0 <= float(t.get("x")) < width and 0 <= float(t.get("y")) < height for t in texts)
    words = ["".join(t.itertext()) for t in texts]
    assert any("sum(100.0 * (x[i+1] - x[i]**2)**2" in w for w in words)
    assert "rosenbrock" in words and "vjp(rosenbrock, wrt = x)" in words
    assert any("par" in w for w in words) and any("yield" in w for w in words)
    assert any(w.startswith("v.9 = v.8 * 100.0") for w in words) and not any("const" in w for w in words)
    assert len(root.findall(".//{*}path[@class='edge']")) > 20
    assert {g.get("data-line") for g in root.findall(".//{*}g")} & {"3", "4"}


def test_picture_colours_the_lines_of_the_program_only(cli, tmp_path):
    """Line 3 of the file of library functions is not line 3 of the program."""
    (tmp_path / "inverse.grad").write_text("fn f(a: f64[n, n]) -> f64[n, n] = inv(a)\n")
    assert cli("graph", "inverse.grad", "f", "-o", "out.svg").status == 0
    root = xml.parse(tmp_path / "out.svg").getroot()
    assert {g.get("data-line") for g in root.findall(".//{*}g")} == {"1", None}


def test_page(cli, tmp_path):
    assert cli("graph", SAMPLES / "rosenbrock.grad", "rosenbrock", "-o", "out.html").status == 0
    page = (tmp_path / "out.html").read_text()
    assert page.startswith("<!doctype html>") and "<svg" in page and "<script>" in page and page.count("http") == 1


# Diagnostics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["check", "wrong.grad"],
        ["build", "wrong.grad"],
        ["run", "wrong.grad", "f", "1.0"],
        ["bench", "wrong.grad", "f", "1.0"],
        ["gradcheck", "wrong.grad", "f", "1.0"],
        ["graph", "wrong.grad", "f", "-o", "x.svg"],
        ["emit", "wrong.grad", "f", "--stage", "ssa"],
    ],
    ids=lambda words: words[0],
)
def test_diagnostics_as_json(cli, words):
    result = cli(*words, "--json")
    assert result.status == 1
    first, *_ = json.loads(result.err)
    assert first["path"] == "wrong.grad" and first["line"] == 1 and first["column"] == 27
    assert "velocty" in first["message"] and {"end", "notes"} <= first.keys()


def test_derivatives_that_do_not_agree_as_json(cli, tmp_path):
    text = "fn f(x: f64) -> f64 = x * x\nfn back(x: f64, ct: f64) -> f64 = 3.0 * x * ct\nderivative vjp f = back\n"
    (tmp_path / "rule.grad").write_text(text)
    result = cli("gradcheck", "rule.grad", "f", "2.0", "--order", "1", "--json")
    assert result.status == 1
    (entry,) = json.loads(result.err)["wrong"]
    assert entry["parameter"] == "x" and abs(entry["reverse"] / entry["difference"] - 1.5) < 1e-6


def test_errors_of_a_run_as_json(cli):
    result = cli("run", "ok.grad", "at", "[1.0]", "5", "--json")
    error = json.loads(result.err)
    assert result.status == 1 and error["error"] == "IndexError" and "ok.grad:5" in error["message"]


# bench, progress, threads ------------------------------------------------------------------------------------------


def test_bench_as_json(cli):
    result = cli("bench", "ok.grad", "total", "--random", "n=50", "--seconds", "0.02", "--json")
    rows = json.loads(result.out)["seconds"]
    assert rows.keys() == {"value", "value_and_grad"}
    assert all(0 < row["best"] <= row["median"] < 1 for row in rows.values())


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_after_a_while_on_a_terminal(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    with common.progress("building x", after=0.05):
        time.sleep(0.3)
    assert "building x ... 0 s" in shown.getvalue() and shown.getvalue().endswith("\r\033[K")
    quick = Terminal()
    monkeypatch.setattr("sys.stderr", quick)
    with common.progress("building x"):
        pass
    assert quick.getvalue() == ""
    piped = io.StringIO()
    monkeypatch.setattr("sys.stderr", piped)
    with common.progress("building x", after=0.0):
        time.sleep(0.05)
    assert piped.getvalue() == ""


def test_set_num_threads():
    """Every number of threads gives the same results: calls use one."""
    m = ad.compile_source("fn f(x: f64[n]) -> f64 = sum(exp(x))")
    found = set()
    for count in (0, 1, 4):
        ad.set_num_threads(count)
        found.add(m.f([0.5] * 1000))
    ad.set_num_threads(0)
    assert len(found) == 1
    for wrong in (-1, 1.5, True, None):
        with pytest.raises(ValueError, match="set_num_threads takes a number of threads"):
            ad.set_num_threads(wrong)
