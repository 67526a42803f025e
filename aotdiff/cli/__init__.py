"""The command line: `aotdiff COMMAND ...`.

Exit status: 0 done, 1 the program has errors (when compiled or when run), 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from aotdiff import __version__
from aotdiff.cli import build, execute, stages, tools
from aotdiff.cli.common import UsageError, report


class _Parser(argparse.ArgumentParser):
    """Takes every negative number for an argument, `-1e5` and `-inf` too."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._negative_number_matcher = re.compile(r"-(\.?\d|inf$|nan$)")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(prog="aotdiff", description="Compile .grad programs and their derivatives.")
    top.add_argument("--version", action="version", version=f"aotdiff {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for part in (build, execute, stages, tools):
        part.add_commands(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status."""
    options = parser().parse_args(argv)
    try:
        status = options.action(options)
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"aotdiff {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("aotdiff: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return _failed(error, getattr(options, "json", False))


def _failed(error: Exception, as_json: bool) -> int:
    """Report an error of the program; anything else is a bug of ours and keeps its traceback."""
    from aotdiff.frontend.diagnostics import CompileError

    if isinstance(error, CompileError):
        report(error.diagnostics, as_json)
        return 1
    from aotdiff.runtime.errors import KINDS

    if not isinstance(error, tuple(k for k in KINDS.values() if issubclass(k, Exception))) or ".grad" not in str(error):
        raise error
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), file=sys.stderr)
    else:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1
