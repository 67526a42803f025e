"""Compiled results on disk, shared by all processes of a user.

An entry is one file: a checksum, then the content; it appears under its name in one step (rename), so a reader sees
all of it or nothing. Whatever is wrong with the folder or an entry (read-only, full, damaged), the cache then
behaves as if it were empty. `AOTDIFF_CACHE` names the folder (`off` for none), `AOTDIFF_CACHE_SIZE` its size in MB.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_MAGIC = b"aotdiff1"
_DIGEST = 32
MEGABYTE = 1024 * 1024
_DEFAULT_SIZE = 1024  # MB
_TRIM_CHANCE = 1 / 32
_STALE = 3600.0  # seconds after which an unfinished temporary file is nobody's


def folder() -> Path | None:
    """Where entries are, or None where caching is switched off."""
    named = os.environ.get("AOTDIFF_CACHE")
    if named is not None:
        return None if named.lower() in ("", "off", "0") else Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "aotdiff"
    try:
        return Path.home() / ".cache" / "aotdiff"
    except RuntimeError:
        return None


def key(*parts: str | bytes) -> str:
    """The name of the entry for these parts; which part is which matters."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def get(name: str) -> bytes | None:
    """The content of an entry; None if there is none, or it is damaged."""
    place = folder()
    if place is None:
        return None
    path = place / name[:2] / name
    try:
        data = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST
    content = data[start:]
    if not data.startswith(_MAGIC) or hashlib.sha256(content).digest() != data[len(_MAGIC) : start]:
        _remove(path)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # recently used
    return content


def put(name: str, content: bytes) -> None:
    """Keep an entry, if that is possible."""
    place = folder()
    if place is None:
        return
    temporary = None
    try:
        target = place / name[:2]
        target.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".tmp-", dir=target)
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(content).digest() + content)
        os.replace(temporary, target / name)
    except OSError:
        if temporary is not None:
            _remove(Path(temporary))
        return
    if random.random() < _TRIM_CHANCE:
        trim()


@dataclass(frozen=True, slots=True)
class Info:
    """What `aotdiff cache info` shows; sizes in bytes."""

    folder: Path | None
    entries: int
    size: int
    limit: int


def info() -> Info:
    files = [stat for _, stat in _files()]
    return Info(folder(), len(files), sum(stat.st_size for stat in files), _limit())


def clear() -> int:
    """Remove every entry; gives how many there were."""
    return sum(_remove(path) for path, _ in list(_files()))


def trim() -> None:
    """Remove what is least recently used until the rest fits, and what killed writers left."""
    files = sorted(_files(), key=lambda item: item[1].st_mtime, reverse=True)
    total, limit, now = 0, _limit(), time.time()
    for path, stat in files:
        if path.name.startswith(".tmp-"):
            if now - stat.st_mtime > _STALE:
                _remove(path)
            continue
        total += stat.st_size
        if total > limit:
            _remove(path)


def _limit() -> int:
    try:
        return int(float(os.environ.get("AOTDIFF_CACHE_SIZE", _DEFAULT_SIZE)) * MEGABYTE)
    except (ValueError, OverflowError):
        return _DEFAULT_SIZE * MEGABYTE


def _files() -> Iterator[tuple[Path, os.stat_result]]:
    """Entries and temporary files: nothing else that somebody put into the folder."""
    place = folder()
    if place is None:
        return
    try:
        groups = [entry.path for entry in os.scandir(place) if len(entry.name) == 2 and entry.is_dir()]
    except OSError:
        return
    for group in groups:
        try:
            for entry in os.scandir(group):
                if len(entry.name) == 2 * _DIGEST or entry.name.startswith(".tmp-"):
                    yield Path(entry.path), entry.stat()
        except OSError:
            continue


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


# What entries depend on besides the program --------------------------------------------------------------------


@cache
def compiler_version() -> str:
    """Changes whenever the installed compiler does: sizes and times of its files."""
    package = Path(__file__).resolve().parent.parent
    folders: Iterable[Path] = [package, *(p.resolve() for p in _outside(package))]
    parts = []
    for root in folders:
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".lark", ".grad")):
            stat = path.stat()
            parts.append(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}")
    return key(*parts)


def _outside(package: Path) -> list[Path]:
    """`aotdiff.codegen` and `aotdiff.grammar`, where they are not below the package (an editable install)."""
    beside = [package.parent / "codegen", package.parent / "grammar"]
    return [] if (package / "codegen").is_dir() else [p for p in beside if p.is_dir()]


@cache
def machine() -> str:
    """The processor, its model and features as far as the system and LLVM tell; and Python's version.

    The system names the real processor; where something simulates another (valgrind, qemu) only LLVM sees that one.
    """
    from aotdiff.codegen import loader

    text = platform.machine() + platform.system() + (sys.implementation.cache_tag or sys.version)
    text += loader.features_of(loader.Options())
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = file.read(1 << 14).split("\n\n")[0]
        wanted = ("model name", "flags", "Features", "CPU part", "cpu family", "model", "stepping")
        return text + "".join(line for line in first.split("\n") if line.split("\t")[0].strip() in wanted)
    except OSError:
        return text + platform.processor()
