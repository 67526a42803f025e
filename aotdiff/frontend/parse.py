"""Text to tree: `parse` is the front door of the front end."""

from __future__ import annotations

from aotdiff.frontend import ast
from aotdiff.frontend.diagnostics import Diagnostics


def parse(source: str, path: str, diagnostics: Diagnostics) -> ast.File:
    """The tree of a file; every syntax error in it goes to `diagnostics`.

    Never raises for what the text says. What could not be read is left out; the names it would have defined are in
    `File.broken_names` (`*` for an import, which may define any name), so that their uses are not reported again.
    """
    from aotdiff.frontend.reader import read_file  # here: only a process that parses pays for importing Lark

    return read_file(source, path, diagnostics)
