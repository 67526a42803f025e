"""`aotdiff fmt`: one layout for all files.

The formatter works on tokens and keeps the line breaks and comments of the text. It sets indentation, the spaces
between tokens, blank lines (one at most) and the columns of trailing comments; `}` and `else` come on one line, and a
`;` at the end of a line goes. An operator written without spaces (`x*x`, `n-1`) keeps that, and `=` signs that stand
under each other stay so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lark import Token

from aotdiff.frontend.diagnostics import Diagnostics
from aotdiff.frontend.layout import CLOSERS, OPENERS, OPERATORS, Layout
from aotdiff.frontend.lexing import OPERAND_ENDS, read_tokens
from aotdiff.frontend.reader import lex, read_file
from aotdiff.frontend.transform import kinds

INDENT = 4
COMMENT_GAP = 2

LOOSE = kinds("EQUAL_EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL AND OR AT")  # always with spaces
TIGHT_BEFORE = kinds("RPAR RSQB COMMA COLON SEMICOLON DOT RANGE POWER")
TIGHT_AFTER = kinds("LPAR LSQB DOT RANGE POWER")


def format_source(text: str, path: str = "<source>") -> str:
    """The text in its one layout; a `CompileError` when it has syntax errors. Formatting again changes nothing."""
    diagnostics = Diagnostics()
    read_file(text, path, diagnostics)
    diagnostics.raise_if_errors()
    raw = lex(text.removeprefix("\ufeff"))
    chunks = Layout(path, read_tokens(raw, path, diagnostics)).run()
    return Formatter(raw, statement_starts([chunk.tokens for chunk in chunks])).run()


def statement_starts(chunks: list[list[Token]]) -> set[int]:
    """The positions in the text where a statement or an item begins."""
    found: set[int] = set()
    for tokens in chunks:
        for i, token in enumerate(tokens):
            if i == 0 or tokens[i - 1].type in ("NL", "LBRACE"):
                found.add(token.start_pos or 0)
    return found


@dataclass(slots=True)
class Bracket:
    """An open bracket: where its line begins, where lines inside it begin, and whether `|` is open in it."""

    kind: str
    line_indent: int
    inner_indent: int
    bar: bool = False


@dataclass(slots=True)
class Line:
    """A line of the output: code, trailing or lone comment."""

    indent: int
    code: str
    comment: str = ""
    equal: int = -1  # where in the code the first `=` stands
    equal_before: int = -1  # the column it had in the text

    def text(self, column: int) -> str:
        if not self.comment:
            return " " * self.indent + self.code
        if not self.code:
            return " " * self.indent + self.comment
        return (" " * self.indent + self.code).ljust(column) + self.comment


@dataclass(slots=True)
class Formatter:
    raw: list[Token]
    starts: set[int]
    stack: list[Bracket] = field(default_factory=list)
    bar: bool = False  # a `|` is open outside all brackets
    last: Token | None = None  # the token before, also on lines before
    last_tight: bool = False  # it wants no space behind it
    line_indent: int = 0  # where the statement begins to which the rest of the line belongs

    def run(self) -> str:
        lines: list[Line | None] = []
        for tokens in joined(split(self.raw)):
            if tokens:
                lines.append(self.line(tokens))
            else:
                lines.append(None)
        return render(lines)

    # One line ---------------------------------------------------------------------------------------------

    def line(self, tokens: list[Token]) -> Line:
        comment = str(tokens[-1]).rstrip() if tokens[-1].type == "COMMENT" else ""
        code = tokens[:-1] if comment else tokens
        while code and code[-1].type == "SEMICOLON":
            code = code[:-1]
        code = [t for i, t in enumerate(code) if t.type != "SEMICOLON" or self.separates(i, code)]
        indent = self.line_indent = self.indentation(tokens[0])
        made = Line(indent, "", comment)
        for i, token in enumerate(code):
            made.code += self.piece(i, code, indent + len(made.code))
            if token.type == "EQUAL" and made.equal < 0:
                made.equal, made.equal_before = len(made.code) - 1, token.column or 0
        return made

    def separates(self, i: int, code: list[Token]) -> bool:
        """Whether a `;` stands between two statements of its line."""
        return i > 0 and code[i - 1].type not in ("SEMICOLON", "LBRACE") and code[i + 1].type != "RBRACE"

    def indentation(self, first: Token) -> int:
        if first.type in CLOSERS and self.stack:
            return self.stack[-1].line_indent
        inner = self.stack[-1].inner_indent if self.stack else 0
        if self.stack and self.stack[-1].kind != "LBRACE":
            return inner
        begins = first.type in ("COMMENT", "ELSE") or first.start_pos in self.starts
        return inner if begins else inner + INDENT

    def piece(self, i: int, code: list[Token], column: int) -> str:
        """Token `i` of a line with the space before it; brackets are opened and closed on the way."""
        token = code[i]
        before = self.last if token.start_pos not in self.starts else None
        after = code[i + 1] if i + 1 < len(code) else None
        space, self.last_tight = self.spacing(token, before, after)
        text = (" " if space and i > 0 else "") + str(token)
        self.last = stepping(i, code) or token
        if token.type in CLOSERS and self.stack:
            self.line_indent = min(self.line_indent, self.stack.pop().line_indent)
        elif token.type in OPENERS:
            hanging = after is None or token.type == "LBRACE"
            inner = self.line_indent + INDENT if hanging else column + len(text)
            self.stack.append(Bracket(token.type, self.line_indent, inner))
        return text

    # Spaces -----------------------------------------------------------------------------------------------

    def spacing(self, token: Token, before: Token | None, after: Token | None) -> tuple[bool, bool]:
        """Whether a space comes before the token, and whether none may come behind it."""
        kind = token.type
        if kind == "COLON" and before is not None and before.type in ("COMMA", "LSQB"):
            return before.type == "COMMA", False  # all of a dimension
        wants = not (self.last_tight or kind in TIGHT_BEFORE)
        if kind in TIGHT_AFTER:
            if kind in ("LPAR", "LSQB") and before is not None and (before.type in OPERAND_ENDS | {"FN"}):
                return False, True
            return wants, True
        if kind == "VBAR":
            opens = self.flip_bar()
            return wants and opens, opens
        if kind == "MINUS" and (before is None or before.type not in OPERAND_ENDS):
            return wants, True
        if kind == "AT" and token.start_pos in self.starts:
            return wants, True
        if kind in OPERATORS and kind not in LOOSE and before is not None and after is not None:
            if before.end_pos == token.start_pos and token.end_pos == after.start_pos:
                return False, True
        return wants, False

    def flip_bar(self) -> bool:
        """Note a `|`; whether it opens the parameters of a function."""
        if self.stack:
            self.stack[-1].bar = not self.stack[-1].bar
            return self.stack[-1].bar
        self.bar = not self.bar
        return self.bar


def stepping(i: int, code: list[Token]) -> Token | None:
    """`step` where it is a word of the loop (after a value): a token that no operand ends with."""
    if code[i] == "step" and i > 0 and code[i - 1].type in OPERAND_ENDS:
        return Token.new_borrow_pos("STEP", "step", code[i])
    return None


# Lines ---------------------------------------------------------------------------------------------------------


def split(raw: list[Token]) -> list[list[Token]]:
    lines: list[list[Token]] = [[]]
    for token in raw:
        if token.type == "NL":
            lines.append([])
        else:
            lines[-1].append(token)
    return [[] if all(t.type == "SEMICOLON" for t in line) else line for line in lines]


def joined(lines: list[list[Token]]) -> list[list[Token]]:
    """The lines with each `else` behind its `}`; a comment between the two keeps them apart."""
    out: list[list[Token]] = []
    for line in lines:
        if line and line[0].type == "ELSE":
            last = next((k for k in range(len(out) - 1, -1, -1) if out[k]), None)
            if last is not None and out[last][-1].type == "RBRACE":
                del out[last + 1 :]
                out[last] = out[last] + line
                continue
        out.append(line)
    return out


def render(lines: list[Line | None]) -> str:
    """The text of the lines: one blank line at most, none at the edges of a block or the file, comments in columns."""
    kept: list[Line | None] = []
    for line in lines:
        if line is None:
            last = kept[-1] if kept else None
            if last is not None and not last.code.endswith(("{", "(", "[")):
                kept.append(None)
            continue
        if kept and kept[-1] is None and line.code[:1] in ("}", ")", "]"):
            kept.pop()
        kept.append(line)
    while kept and kept[-1] is None:
        kept.pop()
    align_equals(kept)
    columns = comment_columns(kept)
    return "".join((line.text(column) if line is not None else "") + "\n" for line, column in zip(kept, columns))


def align_equals(lines: list[Line | None]) -> None:
    """Keep `=` signs under each other that stood so in the text."""
    i = 0
    while i < len(lines):
        run: list[Line] = []
        while i < len(lines) and (line := lines[i]) is not None and line.equal >= 0:
            if run and (line.equal_before, line.indent) != (run[0].equal_before, run[0].indent):
                break
            run.append(line)
            i += 1
        column = max((line.equal for line in run), default=0)
        for line in run:
            line.code = line.code[: line.equal].ljust(column) + line.code[line.equal :]
        i += 0 if run else 1


def comment_columns(lines: list[Line | None]) -> list[int]:
    """For each line the column of its trailing comment: one for a run of lines that have one."""
    columns = [0] * len(lines)
    i = 0
    while i < len(lines):
        end = i
        while end < len(lines) and (line := lines[end]) is not None and line.code and line.comment:
            end += 1
        run = [line.indent + len(line.code) + COMMENT_GAP for line in lines[i:end] if line is not None]
        columns[i:end] = [max(run)] * len(run) if run else []
        i = max(end, i + 1)
    return columns
