"""Shared libraries from object code, by the system's C compiler or the one in the package `ziglang`."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


class LinkError(Exception):
    """No linker, or it refused."""


def find_compiler() -> list[str] | None:
    """The command of a C compiler: $CC, cc, gcc, clang, or `python -m ziglang cc`."""
    asked = os.environ.get("CC")
    if asked and shutil.which(shlex.split(asked)[0]):
        return shlex.split(asked)
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def shared_library(data: bytes, path: Path) -> None:
    """Write the shared library of this object code; the file appears whole or not at all."""
    compiler = find_compiler()
    if compiler is None:
        raise LinkError(
            "no C compiler found to link a shared library: install cc, gcc or clang, or `pip install ziglang`; "
            "`--emit obj` works without one"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".aotdiff-") as folder:
        source, made = Path(folder, "code.o"), Path(folder, "code.so")
        source.write_bytes(data)
        libraries = ["-lmvec"] if b"_ZGV" in data else []
        _run([*compiler, "-shared", "-o", str(made), str(source), *libraries, "-lm"])
        os.replace(made, path)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LinkError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise LinkError(f"{' '.join(command[:3])} failed:\n{done.stderr.strip()}")
