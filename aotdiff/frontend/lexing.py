"""The tokens of a file, with signs of other languages reported and replaced by what was meant."""

from __future__ import annotations

from collections.abc import Iterable

from lark import Token

from aotdiff.frontend.ast import Span
from aotdiff.frontend.diagnostics import Diagnostics
from aotdiff.frontend.transform import kinds, token_span

# Signs that have one meaning only: (message, the tokens that stand for it).
REPLACED: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "&&": ("`&&` is written `and`", [("AND", "and")]),
    "||": ("`||` is written `or`", [("OR", "or")]),
    "!": ("`!` is written `not`", [("NOT", "not")]),
    "^": ("the power operator is `**`, not `^`", [("POWER", "**")]),
    "×": ("multiplication is written `*`", [("STAR", "*")]),
    "·": ("multiplication is written `*`", [("STAR", "*")]),
    "⋅": ("multiplication is written `*`", [("STAR", "*")]),
    "∗": ("multiplication is written `*`", [("STAR", "*")]),
    "÷": ("division is written `/`", [("SLASH", "/")]),
    "−": ("this is the character U+2212; minus is written `-`", [("MINUS", "-")]),
    "–": ("this is a dash (U+2013); minus is written `-`", [("MINUS", "-")]),
    "≤": ("`≤` is written `<=`", [("LESS_EQUAL", "<=")]),
    "≥": ("`≥` is written `>=`", [("GREATER_EQUAL", ">=")]),
    "≠": ("`≠` is written `!=`", [("NOT_EQUAL", "!=")]),
    "→": ("`→` is written `->`", [("ARROW", "->")]),
    "…": ("a range is written with two points, `a..b`", [("RANGE", "..")]),
    "¬": ("`¬` is written `not`", [("NOT", "not")]),
    "∧": ("`∧` is written `and`", [("AND", "and")]),
    "∨": ("`∨` is written `or`", [("OR", "or")]),
    "∈": ("`∈` is written `in`", [("IN", "in")]),
    "∞": ("infinity is written `inf`", [("NAME", "inf")]),
    "²": ("the square of x is written `x**2`", [("POWER", "**"), ("INT", "2")]),
    "³": ("the cube of x is written `x**3`", [("POWER", "**"), ("INT", "3")]),
    "\u00a0": ("this is a no-break space (U+00A0); use a plain space", []),
    "\u200b": ("there is an invisible character here (U+200B)", []),
    "\ufeff": ("there is an invisible character here (U+FEFF)", []),
    "\u3000": ("this is a wide space (U+3000); use a plain space", []),
}
OPERAND_ENDS = kinds("NAME INT FLOAT TRUE FALSE RPAR RSQB RBRACE")


def read_tokens(raw: Iterable[Token], path: str, diagnostics: Diagnostics) -> list[Token]:
    """The lexer's tokens without comments; what has no meaning at all stays as BAD, for the parser to refuse."""
    out: list[Token] = []
    for token in raw:
        kind = token.type
        if kind == "NAME":
            if token.isascii():
                if token == "elif" and after_brace(out):
                    diagnostics.error(token_span(path, token), "`elif` is written `else if`")
                    out += [stand_in("ELSE", "else", token), stand_in("IF", "if", token)]
                    continue
            elif not token.isidentifier():
                out += split_name(token, path, diagnostics)
                continue
        elif kind == "COMMENT":
            continue
        elif kind in ("DOUBLE_AMPERSAND", "CARET", "BANG", "BAD") or kind == "DOUBLE_BAR" and after_operand(out):
            out += replaced(token, path, diagnostics)
            continue
        out.append(token)
    return out


def after_operand(out: list[Token]) -> bool:
    return bool(out) and out[-1].type in OPERAND_ENDS


def after_brace(out: list[Token]) -> bool:
    i = len(out) - 1
    while i >= 0 and out[i].type == "NL":
        i -= 1
    return i >= 0 and out[i].type == "RBRACE"


def stand_in(kind: str, text: str, source: Token) -> Token:
    return Token.new_borrow_pos(kind, text, source)


def replaced(token: Token, path: str, diagnostics: Diagnostics) -> list[Token]:
    """What a foreign sign stands for, after saying so."""
    if token not in REPLACED:
        return [stand_in("BAD", str(token), token)]
    message, tokens = REPLACED[token]
    diagnostics.error(token_span(path, token), message)
    return [stand_in(kind, text, token) for kind, text in tokens]


def split_name(token: Token, path: str, diagnostics: Diagnostics) -> list[Token]:
    """The tokens of a word such as `x²` that holds a character no name may have."""
    text = str(token)
    good = 0
    while good < len(text) and text[: good + 1].isidentifier():
        good += 1
    start = token.column or 1

    def piece(kind: str, low: int, high: int) -> Token:
        made = Token(kind, text[low:high], start_pos=token.start_pos, line=token.line, column=start + low)
        made.end_line, made.end_column, made.end_pos = token.line, start + high, token.end_pos
        return made

    sign = piece("BAD", good, good + 1)
    tokens = [piece("NAME", 0, good)] if good else []
    tokens += replaced(sign, path, diagnostics)
    rest = text[good + 1 :]
    if rest and not (rest.isidentifier() and sign.type != "BAD"):
        return [*tokens[:1], piece("BAD", good, len(text))]
    if rest:
        tokens.append(piece("NAME", good + 1, len(text)))
    return tokens


def end_span(path: str, token: Token) -> Span:
    """The place just behind a token."""
    line, column = token.end_line or 1, token.end_column or 1
    return Span(path, line, column, line, column + 1)
