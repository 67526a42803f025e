"""The grammar of `.grad` files, `grad.lark`, and the parser Lark makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lark import Lark, Token

GRAMMAR = Path(__file__).with_name("grad.lark")


class AllTerminals:
    """Makes Lark keep the terminals that no rule names: comments, separators, and the signs of common mistakes."""

    always_accept = ("COMMENT", "SEMICOLON", "DOUBLE_AMPERSAND", "CARET", "BANG", "OPEN_STRING", "BAD")

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


def make_parser(transformer: Any) -> Lark:
    """An LALR parser for one top-level item that calls `transformer` at each reduction, every token included."""
    from lark import Lark  # here: only a process that parses pays for the import

    return Lark(
        GRAMMAR.read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        keep_all_tokens=True,
        maybe_placeholders=True,
        postlex=AllTerminals(),
        transformer=transformer,
    )
