"""Drives the LALR parser over a file, item by item, and resumes after errors.

On an error inside a block the parser's stack is cut back to the last statement that was whole, an ERROR statement is
put in place of the broken one, and reading goes on at the next statement end. On an error outside a block the item
is given up, but for the body of a function, which is still read for its own errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from lark import Lark, Token, UnexpectedToken

from aotdiff.frontend import ast
from aotdiff.frontend.ast import Span
from aotdiff.frontend.diagnostics import Diagnostics
from aotdiff.frontend.failure import Failure, open_tokens
from aotdiff.frontend.layout import ITEM_STARTS, Chunk, Layout, made_token
from aotdiff.frontend.lexing import read_tokens
from aotdiff.frontend.shadowing import resolve_forms
from aotdiff.frontend.syntax import explain, explain_item, names_meant
from aotdiff.frontend.transform import TreeBuilder, kinds, normal, token_span
from aotdiff.grammar import Kept, make_parser

HEADERS = kinds("FN FOR WHILE IF_STMT AT")  # what may end in a block that is read on its own

MAX_STACK = 4000  # symbols the parser may have open: a chain of signs or `else if`, without brackets

_lock = threading.Lock()  # one parser and one builder serve all threads
_kept: list[Kept] = []


def keep_tables(get: Callable[[], bytes | None], put: Callable[[bytes], None]) -> None:
    """Keep the parser's tables for the next process; to be called before the first text is read."""
    _kept[:] = [Kept(get, put)]


@cache
def parser() -> tuple[Lark, TreeBuilder]:
    builder = TreeBuilder()
    return make_parser(builder, *_kept), builder


def read_file(source: str, path: str, diagnostics: Diagnostics) -> ast.File:
    """See `aotdiff.frontend.parse.parse`."""
    source = source.removeprefix("\ufeff")
    diagnostics.add_source(path, source)
    with _lock:
        lark, builder = parser()
        builder.begin(path, source, diagnostics)
        reader = FileReader(lark, builder, source, path, diagnostics)
        return reader.read()


def tokens_of(lark: Lark, source: str) -> Iterator[Token]:
    interactive = lark.parse_interactive(source)
    return interactive.lexer_thread.lex(interactive.parser_state)


def lex(source: str) -> list[Token]:
    """All tokens of a text, comments and newlines included."""
    with _lock:
        return list(tokens_of(parser()[0], source))


class FileReader:
    """Reads one file's chunks into an `ast.File`."""

    def __init__(self, lark: Lark, builder: TreeBuilder, source: str, path: str, diagnostics: Diagnostics) -> None:
        self.lark = lark
        self.builder = builder
        self.source = source
        self.path = path
        self.diagnostics = diagnostics
        lines = source.split("\n")
        whole = Span(path, 1, 1, len(lines), len(lines[-1]) + 1)
        self.file = ast.File(whole, path, source, [], [], [], [], [], [])
        self.after_broken: Chunk | None = None  # the function before, if it could not be read
        self.in_junk = False  # among lines that belong to no item, reported already

    def read(self) -> ast.File:
        raw = tokens_of(self.lark, self.source)
        chunks = Layout(self.path, read_tokens(raw, self.path, self.diagnostics)).run()
        for chunk in chunks:
            self.read_chunk(chunk, last=chunk is chunks[-1])
        resolve_forms(self.file, self.builder)
        return self.file

    def read_chunk(self, chunk: Chunk, last: bool) -> None:
        if not self.begins_item(chunk):
            self.read_junk(chunk)
            return
        self.in_junk = False
        self.after_broken = None
        self.builder.damaged = False
        self.builder.doubtful = chunk.doubtful
        known = len(self.diagnostics)
        node = None if chunk.too_deep else ItemReader(self.lark, self.builder, chunk, last).read()
        self.report_problems(chunk)
        if node is None or self.builder.damaged:
            self.remember_broken(chunk)
            if len(self.diagnostics) == known:  # errors were held back as consequences of others, and there are none
                self.diagnostics.error(token_span(self.path, chunk.tokens[0]), "this definition could not be read")
        else:
            self.keep(node)

    def report_problems(self, chunk: Chunk) -> None:
        for problem in chunk.problems:
            self.diagnostics.error(problem.span, problem.message, problem.notes)
            self.builder.damaged = self.builder.damaged or problem.damaging

    def begins_item(self, chunk: Chunk) -> bool:
        """Whether a chunk is an item; an indented `let` behind a function that broke is a piece of it."""
        if not chunk.tokens:
            return False
        first = chunk.tokens[0]
        if first.type == "LET":
            broken = self.after_broken
            return broken is None or (first.column or 1) <= (broken.tokens[0].column or 1)
        return first.type in ITEM_STARTS

    def read_junk(self, chunk: Chunk) -> None:
        """Lines outside all items: one message for a run of them, none when a broken function left them behind."""
        self.file.broken_names.update(names_meant(chunk))
        if self.in_junk or self.after_broken is not None:
            return
        self.in_junk = True
        if chunk.tokens:
            failure = explain_item(self.path, chunk)
            self.diagnostics.error(failure.span, failure.message, failure.notes)
        else:
            self.report_problems(chunk)

    def remember_broken(self, chunk: Chunk) -> None:
        kind = chunk.tokens[0].type
        if kind == "FN":
            self.after_broken = chunk
        if kind == "IMPORT":
            self.file.broken_names.add("*")
        elif kind != "DERIVATIVE" and len(chunk.tokens) > 1 and chunk.tokens[1].type == "NAME":
            self.file.broken_names.add(normal(chunk.tokens[1]))

    def keep(self, node: ast.Node) -> None:
        file = self.file
        places: dict[type, list[Any]] = {
            ast.Function: file.functions,
            ast.Constant: file.constants,
            ast.TypeDefinition: file.types,
            ast.DerivativeRule: file.rules,
            ast.Import: file.imports,
            ast.Export: file.exports,
        }
        places[type(node)].append(node)


class ItemReader:
    """Feeds one chunk to the parser."""

    def __init__(self, lark: Lark, builder: TreeBuilder, chunk: Chunk, last: bool) -> None:
        self.builder = builder
        self.chunk = chunk
        self.tokens = [*chunk.tokens, made_token("$END", "end of file" if last else "", chunk.tokens[-1])]
        self.state = lark.parse_interactive().parser_state
        self.given_up = False
        self.last_failure = -1

    def read(self) -> ast.Node | None:
        """The node of the item, or None where it has none."""
        tokens, feed = self.tokens, self.state.feed_token
        states, values = self.state.state_stack, self.state.value_stack
        result: Any = None
        position, end = 0, len(tokens) - 1
        while position <= end and not self.given_up:
            states_before, values_before = states[:], values[:]
            try:
                result = feed(tokens[position], position == end)
            except UnexpectedToken:
                # An LALR parser reduces before it notices; what would have fitted is known from the state before.
                states[:], values[:] = states_before, values_before
                position = self.recover(position)
            else:
                position += 1
                if len(states) > MAX_STACK:
                    self.refuse_depth(tokens[position - 1])
        return None if self.given_up else result

    def refuse_depth(self, token: Token) -> None:
        message = "nested too deeply; split the expression with `let`"
        self.builder.diagnostics.error(token_span(self.builder.path, token), message)
        self.given_up = True

    def recover(self, position: int) -> int:
        """Report the token that does not fit, mend the parser's stack, and say where to go on."""
        failure = explain(Failure(self.builder.path, self.tokens, position, self.state))
        follows = failure.consequence and (self.builder.damaged or bool(self.chunk.problems))
        reported = not follows and not self.chunk.is_quiet(position)
        if reported:
            self.builder.diagnostics.error(failure.span, failure.message, failure.notes)
        if failure.instead is not None:
            self.state.feed_token(failure.instead)
            return position + 1
        self.builder.damaged = True
        if position == self.last_failure:
            self.given_up = True
            return position
        self.last_failure = position
        end = self.cut_back(position)
        if reported:
            self.chunk.problems = [p for p in self.chunk.problems if not position <= p.position <= end]
        return end

    def cut_back(self, position: int) -> int:
        """Drop the unfinished statement from the stack and its remaining tokens from the input."""
        values, states = self.state.value_stack, self.state.state_stack
        braces = [i for i in open_tokens(values) if values[i].type == "LBRACE"]
        kept = braces[-1] + 1 if braces else 0
        if kept and len(values) > kept and isinstance(values[kept], list):
            kept += 1
            if len(values) > kept and isinstance(values[kept], Token) and values[kept].type == "NL":
                kept += 1
        dropped = values[kept:]
        del values[kept:]
        del states[kept + 1 :]
        if kept and isinstance(values[-1], list):
            return self.skip(position, headed=False, nested=0)
        begin = dropped[0] if dropped else self.tokens[position]
        headed = isinstance(begin, Token) and begin.type in HEADERS
        opens = 0
        for kind in (dropped[i].type for i in open_tokens(dropped)):
            opens += kind in ("LPAR", "LSQB")
            headed = headed and (kind != "EQUAL" or opens > 0)  # the one-expression form of a function
        self.state.feed_token(made_token("ERROR", "", self.tokens[position]))
        return self.skip(position, headed, opens, outside=kept == 0)

    def skip(self, position: int, headed: bool, nested: int, outside: bool = False) -> int:
        """The position where the broken statement ends, or where the block of its header begins.

        `nested` counts the round and square brackets that are open; `outside` says that no block is.
        """
        braces = 0
        for i in range(position, len(self.tokens)):
            kind = self.tokens[i].type
            if braces == 0 and kind in ("NL", "RBRACE", "$END") and not (headed and self.tokens[i] == ";"):
                return i
            if kind == "LBRACE":
                if headed and braces == 0 and nested == 0:
                    return i
                braces += 1
            elif kind == "RBRACE":
                braces -= 1
            elif kind in ("LPAR", "LSQB"):
                nested += 1
            elif kind in ("RPAR", "RSQB"):
                nested = max(0, nested - 1)
            elif kind == "EQUAL" and nested == 0 and braces == 0 and outside:
                headed = False
        return len(self.tokens) - 1
