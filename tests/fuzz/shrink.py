"""Makes a failing program small: greedily, as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.tree import Node

SIMPLE = {"f": ["s", "0.5"], "i": ["1", "0"], "b": ["true", "false"], "f[n]": ["x"], "f[n,m]": ["a"]}


def shrink(tree: Node, fails: Callable[[str], bool], seconds: float) -> str:
    """The text of the smallest program found; the tree is changed in place."""
    end = time.monotonic() + seconds
    best = tree.text()
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for node in list(tree.walk()):
            for parts in candidates(node):
                if time.monotonic() > end:
                    return best
                before, node.parts = node.parts, parts
                text = tree.text()
                if len(text) < len(best) and fails(text):
                    best, smaller = text, True
                    break
                node.parts = before
    return best


def candidates(node: Node) -> Iterator[list[Any]]:
    """What the parts of a node may be replaced by, the smallest first."""
    if node.kind in ("stmt", "func"):
        yield [""]
    if node.kind == "stmt":
        for block in blocks(node):
            yield block.parts[1:-1]
        if "".join(p for p in node.parts if isinstance(p, str)).startswith("@checkpoint"):
            yield [p.partition(") ")[2] if isinstance(p, str) and p.startswith("@") else p for p in node.parts]
        return
    for text in SIMPLE.get(node.kind, []):
        yield [text]
    if node.kind not in ("block", "func", "program"):
        for inner in list(node.walk())[1:]:
            if inner.kind == node.kind:
                yield [inner]
    if node.kind == "func" and len(node.parts) > 3:
        yield [node.parts[0], *node.parts[-3:]]


def blocks(node: Node) -> list[Node]:
    return [child for child in node.children() if child.kind == "block"]
