"""The house rules that a tool can check: lint, types, imports that point one way, what lies at the top level."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {**{p.name: p for p in (ROOT / "aotdiff").iterdir() if p.is_dir() and p.name != "__pycache__"}}
PACKAGES |= {"codegen": ROOT / "codegen", "grammar": ROOT / "grammar"}
# Who may import whom; each line also imports itself.
BELOW = {
    "cli": {"runtime", "frontend", "codegen", "passes", "ad", "ir"},
    "runtime": {"frontend", "codegen", "passes", "ad", "ir"},
    "frontend": {"grammar", "std", "passes", "ad", "ir"},
    "codegen": {"passes", "ad", "ir"},
    "passes": {"ad", "ir"},
    "ad": {"passes", "ir"},
    "ir": set(),
    "grammar": set(),
    "std": set(),
}


def imports(path: Path) -> set[str]:
    """Packages of aotdiff that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "aotdiff":
            names += [f"aotdiff.{a.name}" for a in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("aotdiff.")}
    return found & set(PACKAGES)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_point_one_way(package: str) -> None:
    for path in PACKAGES[package].rglob("*.py"):
        wrong = imports(path) - BELOW[package] - {package}
        assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


def test_top_level_is_as_agreed() -> None:
    agreed = {"aotdiff", "grammar", "codegen", "tests", "samples"}
    agreed |= {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert {name for name in top - agreed if not name.startswith(".")} == set()


def test_lint() -> None:
    pytest.importorskip("ruff", reason="ruff comes with the dev extra")
    command = [sys.executable, "-m", "ruff", "check", "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_types(tmp_path: Path) -> None:
    """Type checks of the package as it is installed: `codegen` and `grammar` inside `aotdiff`."""
    pytest.importorskip("basedpyright", reason="basedpyright comes with the dev extra")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "aotdiff", tmp_path / "aotdiff", ignore=ignore)
    for name in ("codegen", "grammar"):
        shutil.copytree(ROOT / name, tmp_path / "aotdiff" / name, ignore=ignore)
    settings = {"include": ["aotdiff"], "pythonVersion": "3.11", "typeCheckingMode": "standard"}
    settings |= {"reportMissingTypeStubs": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "-p", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
