"""Where the parser stopped: what was found, what would have fitted, and how to say it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lark import Token
from lark.parsers.lalr_analysis import Shift

from aotdiff.frontend.ast import Span
from aotdiff.frontend.diagnostics import Note
from aotdiff.frontend.layout import CLOSERS
from aotdiff.frontend.transform import kinds

KEYWORDS = kinds(
    "FN LET VAR FOR WHILE IN IF IF_STMT ELSE RETURN BREAK CONTINUE ASSERT EXPORT IMPORT DERIVATIVE TYPE TRUE FALSE AND"
    " OR NOT"
)
HEADS = KEYWORDS - {"AND", "OR", "NOT"} | {"LBRACE", "AT"}
UPDATES = kinds("PLUS_EQUAL MINUS_EQUAL STAR_EQUAL SLASH_EQUAL")
OPERANDS = kinds("NAME INT FLOAT STRING TRUE FALSE LPAR IF NOT")

# What may be wanted besides operands, in the order it is said.
WANTED = {
    "RPAR": "`)`",
    "RSQB": "`]`",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "ARROW": "`->`",
    "LBRACE": "`{`",
    "IN": "`in`",
    "LPAR": "`(`",
    "FOR": "`for`",
    "VBAR": "`|`",
    "STRING": 'a text in `"`',
    "COMMA": "`,`",
}


def open_tokens(values: list[Any]) -> list[int]:
    """The positions of the tokens on a parser's stack, without brackets that are closed and what is in them."""
    found: list[int] = []
    for i, value in enumerate(values):
        if not isinstance(value, Token):
            continue
        if value.type in CLOSERS:
            opener = CLOSERS[value.type]
            depth = len(found) - 1
            while depth >= 0 and values[found[depth]].type != opener:
                depth -= 1
            if depth >= 0:
                del found[depth:]
        else:
            found.append(i)
    return found


@dataclass(slots=True)
class Failure:
    """The place where the parser stopped: `tokens[position]` does not fit `state`."""

    path: str
    tokens: list[Token]
    position: int
    state: Any

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def before(self, distance: int = 1) -> Token | None:
        return self.tokens[self.position - distance] if self.position >= distance else None

    def kind_before(self, distance: int = 1) -> str:
        token = self.before(distance)
        return token.type if token is not None else ""

    def after(self) -> Token | None:
        return self.tokens[self.position + 1] if self.position + 1 < len(self.tokens) else None

    def accepts(self, kind: str) -> bool:
        """Whether a token of this kind would have fitted; reductions are tried out on a copy of the states."""
        conf = self.state.parse_conf
        states = list(self.state.state_stack)
        while kind in conf.states[states[-1]]:
            action, argument = conf.states[states[-1]][kind]
            if action is Shift:
                return True
            if argument.expansion:
                del states[-len(argument.expansion) :]
            goto = conf.states[states[-1]][argument.origin.name][1]
            if goto == conf.end_state:
                return True
            states.append(goto)
        return False

    def inside(self) -> str:
        """The kind of the keyword or bracket whose operand is being read."""
        values = self.state.value_stack
        kinds_open = [values[i].type for i in open_tokens(values) if values[i].type in HEADS]
        return kinds_open[-1] if kinds_open else ""

    def brackets(self) -> list[str]:
        """The kinds of the brackets of this block that are open here, outermost first."""
        found: list[str] = []
        values = self.state.value_stack
        for kind in (values[i].type for i in open_tokens(values)):
            if kind == "LBRACE":
                found = []
            elif kind in ("LPAR", "LSQB"):
                found.append(kind)
        return found


@dataclass(slots=True)
class Explanation:
    """The diagnostic to give; `instead` is a token to read in place of the one that does not fit.

    A `consequence` is given only where nothing else was wrong before it.
    """

    span: Span
    message: str
    notes: list[Note | str] = field(default_factory=list)
    instead: Token | None = None
    consequence: bool = False


def expected(failure: Failure) -> list[str]:
    wanted: list[str] = []
    if failure.accepts("INT"):
        wanted.append("an expression")
    elif failure.accepts("NAME"):
        wanted.append("a type" if failure.accepts("FN") else "a name")
    brackets = failure.brackets()
    for kind, text in WANTED.items():
        if kind in ("LBRACE", "LPAR", "VBAR", "COLON") and wanted[:1] in (["an expression"], ["a type"]):
            continue
        if kind == "EQUAL" and brackets or kind == "COMMA" and not brackets and failure.inside() not in ("FN",):
            continue
        if failure.accepts(kind) and not (kind == "LPAR" and failure.accepts("PLUS")):
            wanted.append(text)
    if failure.accepts("PLUS") and len(wanted) < 3:
        wanted.append("an operator")
    if failure.accepts("NL") or failure.accepts("RBRACE") or failure.accepts("$END"):
        wanted.append("the end of the statement")
    return wanted or ["something else"]


def listed(wanted: list[str]) -> str:
    wanted = wanted[:4]
    return wanted[0] if len(wanted) == 1 else ", ".join(wanted[:-1]) + " or " + wanted[-1]


def described(token: Token) -> str:
    kind = token.type
    if kind == "NL":
        return "`;`" if token == ";" else "the end of the line"
    if kind == "$END":
        return "the end of the file" if token else "the end of the line"
    if kind in KEYWORDS:
        return f"the reserved word `{token}`"
    if kind in ("INT", "FLOAT"):
        return f"the number `{token}`"
    if kind in ("STRING", "OPEN_STRING"):
        return "a text"
    return f"`{token}`"
