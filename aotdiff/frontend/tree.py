"""Walking the tree without recursion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aotdiff.frontend import ast

_FIELDS: dict[type, tuple[str, ...]] = {}


def fields_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a kind of node that the parser fills and that may hold other nodes."""
    known = _FIELDS.get(kind)
    if known is None:
        fields = kind.__dataclass_fields__.values()
        known = tuple(f.name for f in fields if f.init and not f.name.endswith("span"))
        _FIELDS[kind] = known
    return known


def walk(node: object) -> Iterator[ast.Node]:
    """Every node of a piece of the tree, outer ones before inner ones, in the order of the text."""
    pending: list[object] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Node):
            yield part
            pending += [getattr(part, name) for name in reversed(fields_of(type(part)))]
        elif isinstance(part, list):
            pending += reversed(part)


def names_in(node: object) -> Iterator[ast.Name]:
    """Every name in a piece of the tree."""
    return (part for part in walk(node) if isinstance(part, ast.Name))
