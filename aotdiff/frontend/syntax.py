"""What to say when a token does not fit: a common mistake by its own message, else what was found and wanted."""

from __future__ import annotations

from lark import Token

from aotdiff.frontend.builtins import BUILTINS
from aotdiff.frontend.diagnostics import Note
from aotdiff.frontend.failure import OPERANDS, Explanation, Failure, described, expected, kinds, listed
from aotdiff.frontend.layout import Chunk
from aotdiff.frontend.lexing import end_span
from aotdiff.frontend.mistakes import FOREIGN, RULES, bad_character
from aotdiff.frontend.transform import normal, token_span

STATEMENT_STARTS = kinds("NAME LET VAR FOR WHILE IF RETURN BREAK CONTINUE ASSERT")


def explain(failure: Failure) -> Explanation:
    for rule in RULES:
        found = rule(failure)
        if found is not None:
            return found
    return general(failure)


def explain_item(path: str, chunk: Chunk) -> Explanation:
    """What is wrong with a line at the top level that begins no item."""
    first = chunk.tokens[0]
    span = token_span(path, first)
    if first.type in ("BAD", "OPEN_STRING"):
        return bad_character(Failure(path, chunk.tokens, 0, None)) or Explanation(span, "unexpected character")
    if first in FOREIGN:
        return Explanation(span, FOREIGN[str(first)])
    if first.type in ("DOUBLE_SLASH", "SLASH"):
        return Explanation(span, "a comment begins with `#` and ends with its line")
    if first.type == "VAR":
        return Explanation(span, "a variable belongs in a function; a constant is written `let name = value`")
    if first.type == "NAME" and len(chunk.tokens) > 1 and chunk.tokens[1].type == "LPAR":
        if any(token.type in ("ARROW", "LBRACE") for token in chunk.tokens):
            return Explanation(span, f"a function begins with `fn`: `fn {first}(...)`")
    wanted = "`fn`, `let`, `type`, `import`, `export` or `derivative`"
    return Explanation(span, f"found {described(first)} outside a function; here a line begins with {wanted}")


def names_meant(chunk: Chunk) -> list[str]:
    """The name that a line outside all items would have defined, if it looks like a definition."""
    kinds_here = [token.type for token in chunk.tokens]
    first, second = (chunk.tokens * 2)[:2] if chunk.tokens else ("", "")
    if kinds_here[:2] == ["NAME", "LPAR"] and ("ARROW" in kinds_here or "LBRACE" in kinds_here):
        return [normal(first)]
    if kinds_here[:1] == ["VAR"] or first in FOREIGN:
        return [normal(second)] if kinds_here[1:2] == ["NAME"] else []
    return []


def general(failure: Failure) -> Explanation:
    """`found X, expected A, B or C`"""
    token, last = failure.token, failure.before()
    ends = token.type in ("NL", "$END")
    span = end_span(failure.path, last) if ends and last is not None else token_span(failure.path, token)
    notes: list[Note | str] = []
    if token.type == "STAR" and last is not None and last.type == "STAR":
        notes.append("the power operator is `**`, without a space")
    wanted = expected(failure)
    if token.type in OPERANDS and failure.accepts("PLUS"):
        if last is not None and last.type in ("NAME", "INT", "FLOAT", "RPAR", "RSQB"):
            wanted = ["an operator", *(w for w in wanted if w != "an operator")]
    if last is not None and not ends and "the end of the statement" in wanted:
        notes += _missing_between(last, token)
    if token.type in ("RETURN", "BREAK", "CONTINUE") and failure.inside() in ("IF", "IF_STMT", "WHILE"):
        notes.append(f"what follows a condition stands in braces: `{{ {token} ... }}`")
    return Explanation(span, f"found {described(token)}, expected {listed(wanted)}", notes)


def _missing_between(last: Token, token: Token) -> list[str]:
    """What would let a statement go on with this token, or end before it."""
    if last.type == "NAME" and last in BUILTINS and token.type in ("NAME", "INT", "FLOAT"):
        return [f"arguments stand in parentheses: `{last}({token})`"]
    if token.type in STATEMENT_STARTS:
        return ["a statement ends with its line, or with `;`"]
    return []
