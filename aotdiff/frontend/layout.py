"""Between lexer and parser: statement ends, brackets, and the pieces a file is parsed in.

`Layout` decides which newlines end a statement, puts back brackets that are missing, and cuts the file into `Chunk`s,
one for each top-level item, so that no mistake reaches beyond its item.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lark import Token

from aotdiff.frontend.ast import Span
from aotdiff.frontend.diagnostics import Note
from aotdiff.frontend.transform import kinds, token_span

MAX_NESTING = 200
MAX_PROBLEMS = 20  # bracket errors that are shown of one item

OPENERS = {"LPAR": "RPAR", "LSQB": "RSQB", "LBRACE": "RBRACE"}
CLOSERS = {closer: opener for opener, closer in OPENERS.items()}
SIGN = {"LPAR": "(", "RPAR": ")", "LSQB": "[", "RSQB": "]", "LBRACE": "{", "RBRACE": "}"}

CAN_END = kinds("NAME INT FLOAT STRING TRUE FALSE RPAR RSQB RBRACE RETURN BREAK CONTINUE DOT BAD OPEN_STRING")
OPERATORS = kinds(
    "PLUS MINUS STAR SLASH DOUBLE_SLASH PERCENT AT POWER EQUAL_EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL"
    " AND OR"
)
CONTINUES = OPERATORS - {"MINUS", "AT"} | {"ELSE", "RBRACE", "COMMA"}  # at the start of a line
ITEM_STARTS = kinds("FN EXPORT IMPORT TYPE DERIVATIVE")
STATEMENT_STARTS = kinds("LET VAR WHILE RETURN BREAK CONTINUE ASSERT")
ASSIGNMENTS = kinds("EQUAL PLUS_EQUAL MINUS_EQUAL STAR_EQUAL SLASH_EQUAL")


@dataclass(slots=True)
class Problem:
    """A mistake seen here; `damaging` when the tokens may no longer mean what was meant.

    `position` is where in the chunk a surplus bracket was left out: it is not reported when the parser finds fault
    with the same statement before.
    """

    span: Span
    message: str
    notes: list[Note | str]
    damaging: bool
    position: int = -1


@dataclass(slots=True)
class Chunk:
    """The tokens of one top-level item, without its newline.

    `quiet` are ranges of token positions where a mistake was reported already; an error of the parser in or next to
    one is its consequence; `doubtful` are the lines of these. `problems` are the bracket errors, reported when the
    chunk's turn comes.
    """

    tokens: list[Token] = field(default_factory=list)
    quiet: list[tuple[int, int]] = field(default_factory=list)
    doubtful: set[int] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    too_deep: bool = False

    def is_quiet(self, position: int) -> bool:
        return any(low <= position <= high for low, high in self.quiet)


@dataclass(slots=True)
class Opened:
    """An open bracket: its token, its position in the chunk, the indentation of its line."""

    token: Token
    position: int
    indent: int


def made_token(kind: str, text: str, after: Token) -> Token:
    """A token of no width behind another one."""
    line, column, end = after.end_line, after.end_column, after.end_pos
    return Token(kind, text, end, line, column, line, column, end)


class Layout:
    """Cuts a file's tokens into chunks with statement ends and matched brackets."""

    def __init__(self, path: str, tokens: list[Token]) -> None:
        self.path = path
        self.tokens = tokens
        self.chunks: list[Chunk] = []
        self.chunk = Chunk()
        self.stack: list[Opened] = []
        self.newline: Token | None = None  # the first newline since the last token
        self.indent = 1  # column of the first token of the line
        self.suspect: Opened | None = None  # a brace whose closing one stands too far left
        self.settled = False  # no more bracket errors for this chunk
        self.put_back_kinds: list[str] = []

    def run(self) -> list[Chunk]:
        at_line_start = True
        for i, token in enumerate(self.tokens):
            kind = token.type
            if kind == "NL":
                self.newline = self.newline or token
                at_line_start = True
                continue
            if kind == "SEMICOLON":
                self.separate(token)
                continue
            if at_line_start:
                self.indent = token.column or 1
                if self.stack:
                    self.check_line_start(i)
                at_line_start = False
            if self.newline is not None:
                self.end_line(i)
                self.newline = None
            self.add(i)
        self.finish_chunk()
        return self.chunks

    # Statement ends ---------------------------------------------------------------------------------------

    def previous(self) -> Token | None:
        return self.chunk.tokens[-1] if self.chunk.tokens else None

    def inside_parentheses(self) -> bool:
        return bool(self.stack) and self.stack[-1].token.type != "LBRACE"

    def separate(self, token: Token) -> None:
        """A `;`: the end of a statement, except inside `(` and `[`, where the parser will refuse it."""
        last = self.previous()
        if self.inside_parentheses():
            self.chunk.tokens.append(token)
        elif not self.stack:
            self.finish_chunk()
        elif last is not None and last.type not in ("LBRACE", "NL"):
            self.chunk.tokens.append(token.update(type="NL"))

    def end_line(self, i: int) -> None:
        """The newline before token `i`: kept where it ends a statement."""
        following, last = self.tokens[i], self.previous()
        assert self.newline is not None
        if last is None and self.chunk.problems:
            self.finish_chunk()
        if last is None or self.inside_parentheses():
            return
        if following.type in CONTINUES and last.type != "NL" and (self.stack or following.type != "RBRACE"):
            return
        if not self.stack and following.type in ITEM_STARTS | {"LET"}:
            self.finish_chunk()
            return
        if not self.stack and self.opens_body(following):
            what = f"`{following}` of a definition stays on the line of the definition"
            self.problem(following, what, damaging=False)
            return
        if last.type not in CAN_END and not self.cut_short(i, last):
            return
        if self.stack:
            self.chunk.tokens.append(self.newline)
        else:
            self.finish_chunk()

    def cut_short(self, i: int, last: Token) -> bool:
        """Whether a line that ends in the middle of a statement is followed by what can only be another one."""
        if self.tokens[i].type in STATEMENT_STARTS:
            return last.type not in ("LBRACE", "NL")
        assigns = self.tokens[i].type == "NAME" and self.kind_after(i) in ASSIGNMENTS
        return assigns and last.type in OPERATORS | ASSIGNMENTS

    def opens_body(self, following: Token) -> bool:
        """Whether `following` goes on with a function whose line ended before its body."""
        if following.type not in ("LBRACE", "EQUAL", "ARROW") or self.chunk.tokens[0].type != "FN":
            return False
        return not any(token.type in ("LBRACE", "EQUAL") for token in self.chunk.tokens)

    # Brackets ---------------------------------------------------------------------------------------------

    def add(self, i: int) -> None:
        """Take a token into the chunk."""
        token = self.tokens[i]
        kind = token.type
        if kind == "FN" and not self.stack and self.chunk.tokens and self.kind_after(i) == "NAME":
            self.before_definition(i)
        elif kind == "ELSE" and self.stack and self.stack[-1].token.type == "LBRACE":
            last = self.previous()
            ended = last is not None and last.type not in ("RBRACE", "NL", "LBRACE")
            if ended and self.kind_after(i) in ("LBRACE", "IF"):
                self.put_back(token)
        elif kind == "IF":
            last = self.previous()
            if last is None or last.type in ("LBRACE", "NL"):
                token.type = "IF_STMT"
        if kind in OPENERS:
            self.stack.append(Opened(token, len(self.chunk.tokens), self.indent))
            if len(self.stack) == MAX_NESTING and not self.chunk.too_deep:
                self.problem(token, f"brackets nested more than {MAX_NESTING} deep; split the expression with `let`")
                self.chunk.too_deep = True
        elif kind in CLOSERS:
            if not self.close(i):
                return
            if kind == "RBRACE" and self.chunk.tokens[-1].type == "NL":
                self.chunk.tokens.pop()  # a `;` before it
        self.chunk.tokens.append(token)

    def before_definition(self, i: int) -> None:
        """`fn name` behind something else at the top level: it begins a line of its own."""
        tokens = self.chunk.tokens
        if len(tokens) == 1 and tokens[0].type == "EXPORT":
            name = self.tokens[i + 1]
            text = f"a function is exported by its name: `fn {name}` without `export` here, and `export {name}` "
            self.problem(tokens[0], text + "on a line of its own", damaging=False)
            tokens.clear()
        elif tokens[0].type in ITEM_STARTS:
            self.problem(self.tokens[i], "expected a new line before the next `fn`", damaging=False)
            self.finish_chunk()

    def kind_after(self, i: int, distance: int = 1) -> str:
        return self.tokens[i + distance].type if i + distance < len(self.tokens) else ""

    def close(self, i: int) -> bool:
        """Match a closing bracket; False when it is to be dropped."""
        token = self.tokens[i]
        opener = CLOSERS[token.type]
        depth, outside = len(self.stack) - 1, False
        while depth >= 0 and self.stack[depth].token.type != opener:
            outside = outside or self.stack[depth].token.type == "LBRACE"
            depth -= 1
        if depth < 0 or depth < len(self.stack) - 1 and self.too_many(i, depth, outside):
            self.surplus(token)
            return False
        while len(self.stack) > depth + 1:
            self.put_back(token)
        closed = self.stack.pop()
        if opener == "LBRACE" and token.column == self.indent and self.indent < closed.indent and self.suspect is None:
            self.suspect = closed
        return True

    def too_many(self, i: int, depth: int, outside: bool) -> bool:
        """Whether closing bracket `i`, for which others would have to be put back, is itself the mistake.

        The better fit for the rest of the line decides; where both fit, a block is not left by `)` or `]`.
        """
        forgotten, surplus = self.misfits(i, depth), self.misfits(i, len(self.stack))
        return forgotten > surplus or outside and forgotten == surplus

    def misfits(self, i: int, depth: int) -> int:
        """Brackets without partner on the rest of the line behind token `i`, if `depth` brackets are open there."""
        line = self.tokens[i].line
        opened = [(entry.token.type, entry.token.line == line) for entry in self.stack[:depth]]
        wrong = 0
        for k in range(i + 1, len(self.tokens)):
            kind = self.tokens[k].type
            if kind == "NL":
                break
            if kind in OPENERS:
                opened.append((kind, True))
            elif kind in CLOSERS and opened and opened[-1][0] == CLOSERS[kind]:
                opened.pop()
            elif kind in CLOSERS:
                wrong += 1
        return wrong + sum(here for _, here in opened)

    def surplus(self, token: Token) -> None:
        opener = CLOSERS[token.type]
        if opener in self.put_back_kinds:
            self.put_back_kinds.remove(opener)  # this is the one that was missing earlier
            return
        notes: list[Note | str] = []
        if self.stack:
            opened = self.stack[-1].token
            notes = [Note(f"the innermost open bracket is this `{opened}`", token_span(self.path, opened))]
        position = len(self.chunk.tokens)
        self.problem(token, f"`{token}` closes nothing: there is no `{SIGN[opener]}` for it", notes, position=position)
        self.hush(position)
        self.chunk.doubtful.add(token.line or 0)

    def put_back(self, found: Token | None) -> None:
        """Report the innermost open bracket as never closed and close it behind the last token."""
        opened = self.stack.pop()
        self.put_back_kinds.append(opened.token.type)
        blamed = opened
        if opened.token.type == "LBRACE" and self.suspect is not None:
            blamed = self.suspect
        sign, closer = str(blamed.token), OPENERS[blamed.token.type]
        notes: list[Note | str] = []
        if found is not None:
            notes.append(Note(f"`{SIGN[closer]}` is missing before this", token_span(self.path, found)))
        self.problem(blamed.token, f"`{sign}` is never closed: `{SIGN[closer]}` is missing", notes)
        last = self.chunk.tokens[-1]
        self.chunk.doubtful.update(range(opened.token.line or 0, (last.line or 0) + 1) if closer != "RBRACE" else ())
        one_line = found is not None and found.line == opened.token.line
        low = opened.position if one_line or opened.token.type != "LBRACE" else len(self.chunk.tokens)
        self.hush(low)
        closer = OPENERS[opened.token.type]
        self.chunk.tokens.append(made_token(closer, SIGN[closer], last))

    def hush(self, low: int) -> None:
        """Errors from token `low` to the one that comes next are consequences."""
        self.chunk.quiet.append((low, len(self.chunk.tokens) + 1))

    def problem(
        self, at: Token, message: str, notes: list[Note | str] | None = None, damaging: bool = True, position: int = -1
    ) -> None:
        if not self.settled and len(self.chunk.problems) < MAX_PROBLEMS:
            span = token_span(self.path, at)
            self.chunk.problems.append(Problem(span, message, notes or [], damaging, position))

    def check_line_start(self, i: int) -> None:
        """At a line that begins a statement or an item, brackets that are still open were forgotten."""
        token = self.tokens[i]
        kind = token.type
        if kind in ITEM_STARTS and self.kind_after(i) in ("NAME", "STRING"):
            nested = self.stack[-1].token.type == "LBRACE" and (token.column or 1) > (self.chunk.tokens[0].column or 1)
            if not nested:
                self.close_all(token)
                self.finish_chunk()
        elif self.inside_parentheses() and self.begins_statement(i):
            while self.inside_parentheses():
                self.put_back(token)

    def begins_statement(self, i: int) -> bool:
        kind, last = self.tokens[i].type, self.previous()
        if kind in STATEMENT_STARTS:
            return True
        ended = last is not None and last.type in CAN_END
        return ended and kind == "NAME" and self.kind_after(i) in ASSIGNMENTS

    def close_all(self, found: Token | None) -> None:
        """Close what the end of the item leaves open; one message is enough."""
        while self.stack:
            self.put_back(found)
            self.settled = True

    def finish_chunk(self) -> None:
        self.close_all(None)
        if self.chunk.tokens or self.chunk.problems:
            self.chunks.append(self.chunk)
        self.chunk = Chunk()
        self.suspect = None
        self.settled = False
        self.put_back_kinds = []
        self.newline = None
