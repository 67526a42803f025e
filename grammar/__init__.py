"""The grammar of `.grad` files, `grad.lark`, and the parser Lark makes of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lark import Lark, Token

GRAMMAR = Path(__file__).with_name("grad.lark")


class AllTerminals:
    """Makes Lark keep the terminals that no rule names: comments, separators, and the signs of common mistakes."""

    always_accept = ("COMMENT", "SEMICOLON", "DOUBLE_AMPERSAND", "CARET", "BANG", "OPEN_STRING", "BAD")

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


class _File(str):
    """A path that is the same to `str` wherever it is: Lark makes it part of what identifies the grammar."""

    __slots__ = ()

    def __str__(self) -> str:
        return "tables"


class Kept(NamedTuple):
    """What Lark made of the grammar, kept between processes: reading it back takes a twentieth of the time."""

    get: Callable[[], bytes | None]
    put: Callable[[bytes], None]


def make_parser(transformer: Any, kept: Kept | None = None) -> Lark:
    """An LALR parser for one top-level item that calls `transformer` at each reduction, every token included."""
    if kept is None:
        return _parser(transformer)
    try:
        with tempfile.TemporaryDirectory(prefix="aotdiff-") as folder:
            path, before = Path(folder) / "tables", kept.get()
            if before is not None:
                path.write_bytes(before)
            lark = _parser(transformer, _File(path))
            after = path.read_bytes()
    except OSError:  # no room for the file
        return _parser(transformer)
    if after != before:
        kept.put(after)
    return lark


def _parser(transformer: Any, file: str | None = None) -> Lark:
    from lark import Lark  # here: only a process that parses pays for the import

    return Lark(
        GRAMMAR.read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        keep_all_tokens=True,
        maybe_placeholders=True,
        postlex=AllTerminals(),
        transformer=transformer,
        cache=file or False,
    )
