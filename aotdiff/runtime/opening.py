"""Library files: opened by the system's loader, and asked what they are."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

FORMAT = 4
Description = dict[str, Any]


def open_library(path: str) -> tuple[ctypes.CDLL, Description]:
    """The library in a file, and its description of itself."""
    code, description = _opened(path, path)
    if not _is_in(description["build"], path):  # the loader opens a path once: this is what was there before
        code, description = _copied(path)
    _check_processor(path, description["features"])
    return code, description


def _opened(path: str, shown: str) -> tuple[ctypes.CDLL, Description]:
    code = ctypes.CDLL(os.path.abspath(path))
    try:
        address = ctypes.addressof(ctypes.c_char.in_dll(code, "aotdiff_metadata"))
    except ValueError:
        raise OSError(f"{shown} is not a library made by aotdiff") from None
    description = json.loads(ctypes.string_at(address))
    if description["format"] != FORMAT:
        raise OSError(f"{shown} was built by another version of aotdiff: build it again")
    return code, description


def _is_in(build: str, path: str) -> bool:
    """Whether the file is that build."""
    with open(path, "rb") as file:
        return build.encode() in file.read()


def _copied(path: str) -> tuple[ctypes.CDLL, Description]:
    """The library by way of a copy, which has a path that the loader does not know."""
    handle, place = tempfile.mkstemp(prefix="aotdiff-", suffix=".so")
    os.close(handle)
    try:
        shutil.copyfile(path, place)
        return _opened(place, path)
    finally:
        os.unlink(place)


def _check_processor(path: str, features: Sequence[str]) -> None:
    """Refuse to load code for another processor: the alternative is an illegal instruction."""
    if not features:
        return
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            found = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return
    missing = sorted(set(features) - set(found.split()))
    if found and missing:
        raise OSError(f"{path} needs a processor with {', '.join(missing)}: rebuild here, or with --cpu generic")
