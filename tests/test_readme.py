"""The README's code blocks run and say what their comments say."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.M | re.S)
PYTHON = [code for kind, code in BLOCKS if kind == "python"]
SHELL = [line for kind, code in BLOCKS if kind == "sh" for line in code.splitlines()]


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [m for m in re.findall(r"^print\(.*?\) +# (.*)$", code, re.M) if not m.startswith(("any", "the"))]
    for wanted in printed:
        assert wanted in done.stdout


def installed(line: str) -> str:
    """The command with this environment's programs for those of the README's virtual environment."""
    line = line.split("&&")[-1] if "pip install" in line else line
    return line.replace(".venv/bin/aotdiff", f"{sys.executable} -m aotdiff").strip()


@pytest.mark.parametrize("line", [ln for ln in SHELL if ".venv/bin/aotdiff" in ln and " build " not in ln])
def test_command(line: str, tmp_path: Path) -> None:
    os.symlink(ROOT / "samples", tmp_path / "samples")
    done = subprocess.run(installed(line), shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout or " check " in line or (tmp_path / "build" / "rosenbrock.html").exists()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_c_program(tmp_path: Path) -> None:
    (source,) = [code for kind, code in BLOCKS if kind == "c"]
    (tmp_path / "main.c").write_text(source)
    os.symlink(ROOT / "samples", tmp_path / "samples")
    for line in SHELL:
        if " build " in line or line.startswith("cc "):
            command = installed(line)
            done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    assert done.stdout == "-400 1002 -200\n"


def test_two_commands_come_first() -> None:
    assert "pip install" in SHELL[0] and "gmm_objective" in SHELL[0]
    assert SHELL[1] == ".venv/bin/python -m pytest -q -n 2"
    assert "python -m pytest -q -n 2" in (ROOT / ".ci" / "run").read_text()
