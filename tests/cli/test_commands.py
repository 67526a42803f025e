"""The command line: what it prints where, and its exit status."""

import json
import subprocess
import sys

import numpy as np
import pytest

COMMANDS = ["build", "bench", "cache", "check", "emit", "fmt", "gradcheck", "graph", "opt", "ops", "run"]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_everywhere(cli, command):
    result = cli(*([command] if command else []), "--help")
    assert result.status == 0 and result.out.startswith("usage: aotdiff")


def test_version(cli):
    assert cli("--version").out == "aotdiff 0.1.0\n"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["check"],
        ["check", "missing.grad"],
        ["run", "ok.grad", "totl", "1"],
        ["run", "ok.grad", "total", "[1.0]"],
        ["run", "ok.grad", "total", "[1.0]", "2", "3"],
        ["run", "ok.grad", "total", "@missing.npy", "2"],
        ["run", "ok.grad", "total", "x", "2"],
        ["run", "ok.grad", "total", '"text"', "2"],
        ["run", "ok.grad", "total", "[1.0]", "2", "--grad", "y"],
        ["run", "ok.grad", "total", "[1.0]", "x=[2.0]"],
        ["emit", "ok.grad", "total", "--stage", "wasm"],
        ["opt", "missing.ssa"],
        ["ops", "ad"],
        ["gradcheck", "ok.grad", "total"],
        ["graph", "ok.grad", "total", "-o", "x.png"],
        ["graph", "ok.grad", "total", "-o", "/proc/none.svg"],
        ["bench", "ok.grad", "total", "[1.0]", "2", "--seconds", "0"],
        ["gradcheck", "counts.grad", "count", "3"],
        ["opt"],
        ["gradcheck", "ok.grad", "total", "[1.0]", "2", "--order", "0"],
        ["gradcheck", "ok.grad", "total", "--random", "n=-3"],
        ["gradcheck", "ok.grad", "total", "--random", "n=3,rows=2"],
        ["graph", "ok.grad", "total", "-o", "x.svg", "--order", "-1"],
        ["graph", "lib.so", "total", "-o", "x.svg"],
        ["emit", "lib.so", "total", "--stage", "ssa"],
    ],
)
def test_wrong_command_lines(cli, words):
    result = cli(*words)
    assert result.status == 2 and result.err and not result.out
    assert "Traceback" not in result.err


# check -----------------------------------------------------------------------------------------------------------


def test_check(cli):
    result = cli("check", "ok.grad")
    assert (result.status, result.out, result.err) == (0, "", "")


def test_check_reports_every_error(cli):
    result = cli("check", "ok.grad", "wrong.grad")
    assert result.status == 1 and not result.out
    assert "wrong.grad:1:27: error:" in result.err and "wrong.grad:3:31: error:" in result.err


def test_check_json(cli):
    result = cli("check", "--json", "wrong.grad")
    found = json.loads(result.err)
    assert [(d["path"], d["line"], d["severity"]) for d in found] == [
        ("wrong.grad", 1, "error"),
        ("wrong.grad", 3, "error"),
    ]
    assert json.loads(cli("check", "--json", "ok.grad").err) == []


# run -------------------------------------------------------------------------------------------------------------


def test_run(cli):
    assert cli("run", "ok.grad", "total", "[1.0, 2.0]", "0.5").out == "2.5\n"
    assert cli("run", "ok.grad", "total", "scale=3", "[1, 2]").out == "15.0\n"
    assert cli("run", "ok.grad", "halves", "[3.0]").out == "([1.5], 1)\n"


def test_run_gradient(cli):
    result = cli("run", "ok.grad", "total", "[1.0, 2.0]", "0.5", "--grad", "x,scale")
    assert result.out == "2.5\ngrad x:\n[1., 2.]\ngrad scale: 5.0\n"


def test_run_json(cli):
    result = cli("run", "ok.grad", "total", "[1.0, 2.0]", "0.5", "--grad", "x", "--json")
    assert json.loads(result.out) == {"value": 2.5, "grad": {"x": [1.0, 2.0]}}


@pytest.mark.parametrize("number", ["-1", "-1e5", "-.5", "-inf", "-2.5e-3"])
def test_run_negative_numbers(cli, number):
    assert float(cli("run", "ok.grad", "total", "[1.0]", number).out) == float(number)


def test_run_files(cli, tmp_path):
    np.save(tmp_path / "x.npy", np.array([1.0, 2.0]))
    np.savez(tmp_path / "all.npz", x=np.array([1.0, 2.0]), scale=np.array(0.5), other=np.zeros(3))
    (tmp_path / "all.json").write_text('{"x": [1.0, 2.0], "scale": 0.5}')
    (tmp_path / "x.json").write_text("[1.0, 2.0]")
    for words in (
        ["@x.npy", "0.5"],
        ["@all.npz"],
        ["@all.json"],
        ["@all.npz:x", "@all.npz:scale"],
        ["@x.json", "scale=@all.json:scale"],
    ):
        assert cli("run", "ok.grad", "total", *words).out == "2.5\n", words
    assert cli("run", "ok.grad", "at", "@all.npz").status == 2


def test_run_time_errors(cli):
    result = cli("run", "ok.grad", "at", "[1.0]", "4")
    assert result.status == 1 and not result.out
    assert result.err.startswith("IndexError: ok.grad:5")
    result = cli("run", "ok.grad", "at", "[1.0]", "4", "--json")
    assert json.loads(result.err)["error"] == "IndexError"


def test_run_compile_errors(cli):
    result = cli("run", "wrong.grad", "f", "1.0")
    assert result.status == 1 and "wrong.grad:1:27: error:" in result.err


# The compiler from inside ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("ast", ["Function name='total'", "Generator"]),
        ("ssa", ["func @total(%x: f64[?], %scale: f64", "par"]),
        ("adjoint", ["func @total_vjp"]),
        ("residuals", []),
        ("after:dce", ["func @total"]),
        ("llvm", ["define"]),
        ("asm", ["ret"]),
    ],
)
def test_emit(cli, stage, words):
    result = cli("emit", "ok.grad", "total", "--stage", stage)
    assert result.status == 0, result.err
    assert all(word in result.out for word in words), result.out


def test_emit_orders(cli):
    second = cli("emit", "ok.grad", "total", "--stage", "adjoint", "--order", "2")
    assert second.status == 0
    assert len(second.out) > len(cli("emit", "ok.grad", "total", "--stage", "adjoint").out)


def test_opt(cli, tmp_path):
    text = cli("emit", "ok.grad", "total", "--stage", "ssa").out
    (tmp_path / "f.ssa").write_text(text)
    assert cli("opt", "f.ssa").out == text
    result = cli("opt", "f.ssa", "--passes", "canonicalize,cse,dce", "--print-after-all")
    assert result.status == 0 and "# after cse" in result.out
    assert cli("opt", "f.ssa", "--passes", "nonsense").status == 2
    assert "cse" in cli("opt", "f.ssa", "--list").out
    (tmp_path / "bad.ssa").write_text("func @f(")
    result = cli("opt", "bad.ssa")
    assert result.status == 1 and "bad.ssa" in result.err


def test_ops(cli):
    listed = cli("ops").out.splitlines()
    assert any(line.startswith("tanh ") for line in listed) and any(line.startswith("par ") for line in listed)
    one = cli("ops", "mul").out
    assert "x * y" in one and "ops.py:" in one and "rules.py:" in one


# The rest ----------------------------------------------------------------------------------------------------------


def test_gradcheck(cli):
    result = cli("gradcheck", "ok.grad", "total", "--random", "n=3")
    assert result.status == 0 and "entries agree, up to order 2" in result.out
    assert cli("gradcheck", "ok.grad", "total", "[1.0]", "2.0", "--order", "3").status == 0
    assert "n" in cli("gradcheck", "ok.grad", "total").err


def test_bench(cli):
    result = cli("bench", "ok.grad", "total", "--random", "n=3", "--seconds", "0.01", "--json")
    assert set(json.loads(result.out)["seconds"]) == {"value", "value_and_grad"}


def test_graph(cli, tmp_path):
    import xml.etree.ElementTree as xml

    assert cli("graph", "ok.grad", "total", "-o", "out.svg").status == 0
    xml.parse(tmp_path / "out.svg")
    assert cli("graph", "ok.grad", "total", "-o", "out.html").status == 0
    assert "</html>" in (tmp_path / "out.html").read_text()


def test_cache(cli):
    cli("run", "ok.grad", "at", "[1.0]", "0")
    assert json.loads(cli("cache", "info", "--json").out)["entries"] > 0
    assert cli("cache", "info").out.endswith(" MB of at most 1024 MB\n")
    assert "entries removed" in cli("cache", "clear").out
    assert json.loads(cli("cache", "info", "--json").out)["entries"] == 0


def test_module_runs():
    result = subprocess.run([sys.executable, "-m", "aotdiff", "--version"], capture_output=True, text=True)
    assert result.stdout.startswith("aotdiff ")


def test_import_is_cheap():
    code = (
        "import sys, aotdiff; print(len([m for m in sys.modules if m.split('.')[0] in ('numpy', 'lark', 'llvmlite')]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "0"
