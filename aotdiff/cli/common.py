"""What several commands share: reading programs, naming functions, reporting, writing files."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aotdiff.frontend.diagnostics import Diagnostic
    from aotdiff.runtime.collection import Collection
    from aotdiff.runtime.function import Function


class UsageError(Exception):
    """The command line is wrong; the text says how."""


def report(diagnostics: Sequence[Diagnostic], as_json: bool) -> None:
    """Diagnostics to stderr, for people or as one JSON array."""
    if as_json:
        print(json.dumps([d.to_json() for d in diagnostics], ensure_ascii=False), file=sys.stderr)
    elif diagnostics:
        print("\n\n".join(d.render() for d in diagnostics), file=sys.stderr)


def open_module(path: str, **options: Any) -> Collection:
    """Compile a program, or load a built library."""
    from aotdiff.runtime import module

    try:
        return module.load(path) if path.endswith(".so") else module.compile(path, **options)
    except OSError as error:
        raise unreadable(path, error) from None


def open_program(path: str, **options: Any) -> Collection:
    """Compile a program whose graph is looked at, which a built library does not have."""
    if path.endswith(".so"):
        raise UsageError(f"{path} is a built library: name the program that it was built from")
    return open_module(path, **options)


def unreadable(path: str, error: OSError) -> UsageError:
    """What to say of a file that cannot be read."""
    hint = f"; did you mean {path}.grad?" if os.path.exists(f"{path}.grad") else ""
    return UsageError(f"cannot read {path}: {error.strerror or error}{hint}")


def function_of(module: Collection, name: str) -> Function:
    """An exported function by name."""
    if name in module:
        return module[name]
    from aotdiff.frontend.diagnostics import suggest

    hint = suggest(name, module) or f"it exports {', '.join(module) or 'nothing'}"
    raise UsageError(f"the program exports no {name!r}: {hint}")


def names_of(text: str | None) -> tuple[str, ...]:
    """`x,y` as names."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def write(path: Path, content: bytes | str) -> None:
    """Write a file in one step: whoever reads it sees the old content or the new."""
    try:
        _write(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _write(path: Path, data: bytes) -> None:
    """Through links, and with the mode that the file had."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_mask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def progress(what: str, after: float = 1.0) -> Iterator[None]:
    """Say what is being done once it has taken a while (on a terminal only)."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    start = time.monotonic()

    def show() -> None:
        wait = after
        while not done.wait(wait):
            print(f"\r{what} ... {time.monotonic() - start:.0f} s", end="", file=sys.stderr, flush=True)
            wait = 1.0

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if time.monotonic() - start > after:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
