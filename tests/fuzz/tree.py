"""A program as a tree of text pieces: what the generator writes and what the shrinker cuts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Node:
    """A piece of a program.

    `kind` is the type of an expression ("f", "i", "b", "f[n]", "f[n,m]"), or "stmt", "block", "func", "program".
    `parts` are strings and nodes, in order.
    """

    __slots__ = ("kind", "parts")

    def __init__(self, kind: str, parts: list[Any]) -> None:
        self.kind = kind
        self.parts = parts

    def text(self) -> str:
        """The source text, not laid out yet."""
        out: list[str] = []
        pending: list[Any] = [self]
        while pending:
            part = pending.pop()
            if isinstance(part, str):
                out.append(part)
            else:
                pending += reversed(part.parts)
        return "".join(out)

    def walk(self) -> Iterator[Node]:
        """The node and everything inside, outermost first."""
        yield self
        for part in self.parts:
            if isinstance(part, Node):
                yield from part.walk()

    def children(self) -> list[Node]:
        return [part for part in self.parts if isinstance(part, Node)]


def layout(text: str) -> str:
    """Indentation by braces, for reading; nothing else changes."""
    lines, depth = [], 0
    for raw in text.split("\n"):
        line = raw.strip()
        if not line:
            continue
        closing = len(line) - len(line.lstrip("}"))
        if line.startswith(("fn ", "export ")) and lines and not lines[-1].startswith("export"):
            lines.append("")
        lines.append("    " * (depth - closing) + line)
        depth += line.count("{") - line.count("}")
    return "\n".join(lines) + "\n"
