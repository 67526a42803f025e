"""Libraries that the tests of products share, built once."""

import subprocess
from pathlib import Path

import pytest
from aotdiff.codegen import find_compiler

from aotdiff.cli import main

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture(scope="session")
def compiler() -> list[str]:
    found = find_compiler()
    if found is None:
        pytest.skip("no C compiler")
    return found


@pytest.fixture(scope="session")
def built(compiler, tmp_path_factory):
    """`built("name", text=None, *options)`: a folder with the products of a sample or of a text."""
    made: dict[tuple, Path] = {}

    def build(name: str, text: str | None = None, *options: str) -> Path:
        key = (name, text, options)
        if key not in made:
            folder = tmp_path_factory.mktemp(name)
            source = SAMPLES / f"{name}.grad"
            if text is not None:
                source = folder / f"{name}.grad"
                source.write_text(text)
            assert main(["build", str(source), "-o", str(folder), *options]) == 0
            made[key] = folder
        return made[key]

    return build


@pytest.fixture(scope="session")
def c_program(compiler, tmp_path_factory):
    """`c_program(source, *arguments)`: compiles C or C++ text or a file; gives a function that runs the program."""

    def compile_(source: str | Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
        folder = tmp_path_factory.mktemp("program")
        file = source if isinstance(source, Path) else folder / "main.c"
        if isinstance(source, str):
            file.write_text(source)
        command = [*compiler, "-g", "-Wall", "-Wextra", "-Werror", file, *arguments, "-o", folder / "main"]
        if file.suffix == ".cpp":
            command += ["-std=c++17", "-lstdc++"]
        done = subprocess.run([*map(str, command), "-lm", "-lpthread"], capture_output=True, text=True, check=False)
        if "sanitize" in done.stderr and "cannot find" in done.stderr:
            pytest.skip("this compiler has no sanitizers")
        assert done.returncode == 0, done.stderr
        return subprocess.run([folder / "main"], capture_output=True, text=True, check=False, timeout=60)

    return compile_
