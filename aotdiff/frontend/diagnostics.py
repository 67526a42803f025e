"""Diagnostics: what is wrong, where, and what to write instead.

Every message about a source file has one shape: `file.grad:3:14: error: message`, the source line, carets under the
whole span, then `note:` lines. Checks report into a `Diagnostics`, go on, and raise once at the end, so that all
errors of a file are shown together.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aotdiff.frontend.ast import Span

INDENT = "  "
TAB_WIDTH = 4
WINDOW = 160  # longest part of a source line that is shown


@dataclass(slots=True)
class Note:
    """A remark under a diagnostic; with a span it shows its own source line."""

    message: str
    span: Span | None = None
    source_line: str | None = None

    def __str__(self) -> str:
        return self.message

    def render(self) -> str:
        if self.span is None:
            return f"note: {self.message}"
        head = f"{self.span.path}:{self.span.line}:{self.span.column}: note: {self.message}"
        end = (self.span.end_line, self.span.end_column)
        return "\n".join([head, *excerpt(self.source_line, self.span.line, self.span.column, end)])

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"message": self.message}
        if self.span is not None:
            data.update(path=self.span.path, line=self.span.line, column=self.span.column)
            data["end"] = [self.span.end_line, self.span.end_column]
        return data


@dataclass(slots=True)
class Diagnostic:
    """One message; `end` is the exclusive (line, column) where the marked text ends."""

    path: str
    line: int
    column: int
    end: tuple[int, int]
    message: str
    notes: list[Note | str] = field(default_factory=list)
    severity: str = "error"
    source_line: str | None = None

    @property
    def span(self) -> Span:
        return Span(self.path, self.line, self.column, self.end[0], self.end[1])

    def render(self) -> str:
        """The text shown to a user: head, source line, carets, notes."""
        lines = [f"{self.path}:{self.line}:{self.column}: {self.severity}: {self.message}"]
        lines += excerpt(self.source_line, self.line, self.column, self.end)
        lines += [note.render() if isinstance(note, Note) else f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render()

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "end": list(self.end),
            "severity": self.severity,
            "message": self.message,
            "notes": [n.to_json() if isinstance(n, Note) else {"message": n} for n in self.notes],
            "source_line": self.source_line,
        }


class CompileError(Exception):
    """The program has errors; `diagnostics` has them all, in the order of the text."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = list(diagnostics)
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        return "\n\n".join(d.render() for d in self.diagnostics)


class Diagnostics:
    """Collects the messages of one compilation, over all its files.

    `add_source` gives it the text of a file, from which the shown lines are taken. Reading it gives the messages
    sorted by file (in the order the sources came), line and column, each only once.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Diagnostic] = {}
        self._lines: dict[str, list[str]] = {}

    def add_source(self, path: str, source: str) -> None:
        self._lines[path] = split_lines(source)

    def source_line(self, path: str, line: int) -> str | None:
        lines = self._lines.get(path, [])
        return lines[line - 1] if 0 < line <= len(lines) else None

    def error(self, span: Span, message: str, notes: Iterable[Note | str] = ()) -> Diagnostic:
        return self.add(span, message, notes, "error")

    def warning(self, span: Span, message: str, notes: Iterable[Note | str] = ()) -> Diagnostic:
        return self.add(span, message, notes, "warning")

    def add(self, span: Span, message: str, notes: Iterable[Note | str], severity: str) -> Diagnostic:
        kept = list(notes)
        for note in kept:
            if isinstance(note, Note) and note.span is not None and note.source_line is None:
                note.source_line = self.source_line(note.span.path, note.span.line)
        end = (span.end_line, span.end_column)
        line = self.source_line(span.path, span.line)
        made = Diagnostic(span.path, span.line, span.column, end, message, kept, severity, line)
        return self._found.setdefault((span.path, span.line, span.column, severity, message), made)

    def items(self) -> list[Diagnostic]:
        order = {path: i for i, path in enumerate(self._lines)}

        def place(d: Diagnostic) -> tuple[int, str, int, int]:
            return order.get(d.path, len(order)), d.path, d.line, d.column

        return sorted(self._found.values(), key=place)

    def errors(self) -> list[Diagnostic]:
        return [d for d in self.items() if d.severity == "error"]

    @property
    def has_errors(self) -> bool:
        return any(d.severity == "error" for d in self._found.values())

    def raise_if_errors(self) -> None:
        """Raise a `CompileError` with every message if one of them is an error."""
        if self.has_errors:
            raise CompileError(self.items())

    def render(self) -> str:
        return "\n\n".join(d.render() for d in self.items())

    def __iter__(self) -> Iterator[Diagnostic]:
        return iter(self.items())

    def __len__(self) -> int:
        return len(self._found)


# Showing a place --------------------------------------------------------------------------------------------


def split_lines(source: str) -> list[str]:
    """The lines of a source as the lexer counts them: ended by newlines only, without a carriage return before it."""
    return [line.removesuffix("\r") for line in source.split("\n")]


def excerpt(source_line: str | None, line: int, column: int, end: tuple[int, int]) -> list[str]:
    """The source line and the line of carets under columns `column` to `end` (to its end when the span goes on)."""
    if source_line is None:
        return []
    stop = end[1] if end[0] == line else len(source_line.rstrip()) + 1
    first = min(max(column - 1, 0), len(source_line))
    last = min(max(stop - 1, first + 1), max(len(source_line), first + 1))
    before, marked, after = source_line[:first], source_line[first:last], source_line[last:]
    before, marked, after = _cropped(before, marked, after)
    left = _shown(before, 0)
    middle = _shown(marked, _width(left))
    right = _shown(after, _width(left) + _width(middle))
    carets = " " * _width(left) + "^" * max(1, _width(middle))
    return [(INDENT + left + middle + right).rstrip(), INDENT + carets]


def _cropped(before: str, marked: str, after: str) -> tuple[str, str, str]:
    """The three parts of a line, cut to a readable length around the marked one."""
    if len(before) + len(marked) + len(after) <= WINDOW:
        return before, marked, after
    marked = marked[:WINDOW]
    room = WINDOW - len(marked)
    left = max(room // 2, room - len(after))
    if len(before) > left:
        before = "..." + before[len(before) - left :]
    right = max(0, room - len(before))
    if len(after) > right:
        after = after[:right] + "..."
    return before, marked, after


def _shown(text: str, column: int) -> str:
    """Text with tabs expanded from `column` on and control characters made visible."""
    out: list[str] = []
    for char in text:
        piece = char
        if char == "\t":
            piece = " " * (TAB_WIDTH - column % TAB_WIDTH)
        elif unicodedata.category(char) in ("Cc", "Cs"):
            piece = "\ufffd"
        out.append(piece)
        column += _width(piece)
    return "".join(out)


def _width(text: str) -> int:
    """Columns a terminal uses: wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


# Did you mean ------------------------------------------------------------------------------------------------


def suggest(name: str, candidates: Iterable[str]) -> str:
    """`did you mean "velocity"?` for the candidates nearest to a misspelt name, or an empty string."""
    near = closest(name, candidates)
    if not near:
        return ""
    return "did you mean " + " or ".join(f'"{n}"' for n in near) + "?"


def closest(name: str, candidates: Iterable[str], most: int = 2) -> list[str]:
    """The candidates that a slip of the keyboard away from `name` could give, nearest first; ties only."""
    limit = max(1, len(name) // 3)
    scored: list[tuple[int, str]] = []
    for candidate in dict.fromkeys(candidates):
        if candidate == name or min(len(name), len(candidate)) < 2:
            continue
        if candidate.lower().replace("_", "") == name.lower().replace("_", ""):
            scored.append((0, candidate))
        elif abs(len(candidate) - len(name)) <= limit:
            distance = edit_distance(name.lower(), candidate.lower(), limit)
            if distance <= limit and distance < min(len(name), len(candidate)) - 1 + (len(name) > 2):
                scored.append((distance, candidate))
    scored.sort(key=lambda pair: (pair[0], pair[1][:1] != name[:1], abs(len(pair[1]) - len(name))))
    return [candidate for distance, candidate in scored if distance == scored[0][0]][:most]


def edit_distance(a: str, b: str, limit: int) -> int:
    """Insertions, deletions, changes and swaps of neighbours from a to b; some number above `limit` if more."""
    before: Sequence[int] = []
    row: Sequence[int] = range(len(b) + 1)
    for i, char in enumerate(a, 1):
        current = [i]
        for j, other in enumerate(b, 1):
            cost = min(row[j] + 1, current[j - 1] + 1, row[j - 1] + (char != other))
            if i > 1 and j > 1 and char == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        if min(current) > limit:
            return limit + 1
        before, row = row, current
    return row[len(b)]
