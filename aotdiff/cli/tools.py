"""Commands around programs: fmt, graph, cache."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path
from typing import Any

from aotdiff.cli.common import UsageError, function_of, open_program, write


def add_commands(commands: Any) -> None:
    """Put the commands of this file on the command line."""
    p = commands.add_parser("fmt", help="format programs", description="Rewrite programs in one layout.")
    p.add_argument("files", nargs="+", metavar="FILE")
    p.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file would change")
    p.add_argument("--json", action="store_true", help="diagnostics as JSON")
    p.set_defaults(action=fmt)
    p = commands.add_parser("graph", help="draw a function's graph", description="Draw a function and its adjoint.")
    p.add_argument("file", metavar="FILE.grad")
    p.add_argument("function", metavar="FN")
    p.add_argument("-o", dest="output", required=True, metavar="out.svg|out.html")
    p.add_argument("--order", type=int, default=1, help="also draw the adjoint of this order (default 1)")
    p.add_argument("--json", action="store_true", help="diagnostics as JSON")
    p.set_defaults(action=graph)
    about = (
        "Show or empty the cache of compiled code. AOTDIFF_CACHE names its folder (off for none), "
        "AOTDIFF_CACHE_SIZE how many MB it may have (1024)."
    )
    p = commands.add_parser("cache", help="the cache of compiled code", description=about)
    p.add_argument("what", choices=("info", "clear"))
    p.add_argument("--json", action="store_true")
    p.set_defaults(action=cache)


def fmt(options: argparse.Namespace) -> int:
    """Format files in place."""
    from aotdiff.frontend.format import format_source

    changed = 0
    for name in options.files:
        try:
            text = Path(name).read_bytes().decode("utf-8")
        except OSError as error:
            raise UsageError(f"cannot read {name}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{name} is not UTF-8 text") from None
        new = format_source(text, name)
        if new == text:
            continue
        changed += 1
        if options.check:
            sys.stderr.writelines(difflib.unified_diff(text.splitlines(True), new.splitlines(True), name, name))
        else:
            write(Path(name), new)
    return 1 if options.check and changed else 0


def graph(options: argparse.Namespace) -> int:
    """Draw a function."""
    from aotdiff.cli.drawing import draw

    output = Path(options.output)
    if output.suffix not in (".svg", ".html"):
        raise UsageError(f"-o takes a name that ends in .svg or .html, not {options.output!r}")
    if options.order < 0:
        raise UsageError("--order is 0 or more")
    f = function_of(open_program(options.file), options.function)
    write(output, draw(f, output.suffix == ".html", options.order))
    return 0


def cache(options: argparse.Namespace) -> int:
    """Show or empty the cache."""
    from aotdiff.runtime import cache as store

    if options.what == "clear":
        removed = store.clear()
        print(json.dumps({"removed": removed}) if options.json else f"{removed} entries removed")
        return 0
    found = store.info()
    if options.json:
        where = None if found.folder is None else str(found.folder)
        print(json.dumps({"folder": where, "entries": found.entries, "size": found.size, "limit": found.limit}))
    elif found.folder is None:
        print("the cache is switched off")
    else:
        size, limit = found.size / store.MEGABYTE, found.limit / store.MEGABYTE
        megabytes = f"{size:.1f} MB of at most {limit:.0f} MB"
        print(f"{found.folder}: {found.entries} entries, {megabytes}")
    return 0
