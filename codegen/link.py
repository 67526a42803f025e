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

import llvmlite.binding as llvm
from aotdiff.codegen.system import system_of


class LinkError(Exception):
    """No linker, or it refused."""


def find_compiler(triple: str | None = None) -> list[str] | None:
    """The command of a C compiler: $CC, cc, gcc, clang, or `python -m ziglang cc`.

    With a triple, one for that machine: this machine's where it is the same, `aarch64-linux-gnu-gcc`, or zig again.
    """
    if triple is None or _is_ours(triple):
        asked = os.environ.get("CC")
        if asked and shutil.which(shlex.split(asked)[0]):
            return shlex.split(asked)
        names = ["cc", "gcc", "clang"]
        target = []
    else:
        arch, system = triple.split("-")[0], "musl" if "musl" in triple else "gnu"
        names = [f"{triple}-gcc", f"{arch}-linux-{system}-gcc"]
        target = ["-target", f"{arch}-linux-{system}"]
    for name in names:
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", *target]
    return None


def _is_ours(triple: str) -> bool:
    """Whether this machine's compiler makes code for it."""
    ours = llvm.get_process_triple()
    return triple.split("-")[0] == ours.split("-")[0] and system_of(triple) == system_of(ours)


def links(triple: str | None) -> bool:
    """Whether there are shared libraries for this target: on Linux; elsewhere the object is linked by other means."""
    return triple is None or "linux" in triple


def shared_library(data: bytes, path: Path, triple: str | None = None) -> None:
    """Write the shared library of this object code; the file appears whole or not at all."""
    compiler = find_compiler(triple)
    if compiler is None:
        what = "cc, gcc or clang" if triple is None else f"a gcc for {triple}"
        raise LinkError(
            f"no C compiler found to link a shared library: install {what}, or `pip install ziglang`; "
            "`--emit obj,header` works without one"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".aotdiff-") as folder:
        source, made = Path(folder, "code.o"), Path(folder, "code.so")
        source.write_bytes(data)
        libraries = ["-lmvec"] if b"_ZGV" in data else []
        libraries += ["-pthread"] if b"pthread_create" in data else []
        _run([*compiler, "-shared", "-o", str(made), str(source), *libraries, "-lm"])
        os.replace(made, path)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LinkError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise LinkError(f"{' '.join(command[:3])} failed:\n{done.stderr.strip()}")
