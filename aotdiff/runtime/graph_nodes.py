"""The recorded graph: one `Node` per call, edges from a call to what its arguments came from.

An edge is where a gradient goes: a leaf tensor, a `Node` with one float result, or a `Slot` of a node with several.
A node refers to what its derivative reads (`saved`), never to its results, so there are no cycles. A rule says how
to go backward; it is shared by all calls of the same kind:

    rule.raw(node, ct)        gradients for `node.edges`, from numbers and numpy arrays
    rule.recorded(node, ct)   the same from tensors, by recorded calls
    rule.outputs              float results; with one, `ct` is its gradient, else a dict from index to gradient
    rule.fresh                whether the arrays that `raw` gives are nobody else's
    rule.saves                whether a walk that frees has something to free
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Edge = Any  # a leaf tensor, a Node, a Slot


class Cell:
    """The version of a buffer, shared by every tensor that shows it.

    `viewed` says that tensors with history of their own look into the buffer: a recorded change would go past them.
    """

    __slots__ = ("version", "viewed")

    def __init__(self) -> None:
        self.version = 0
        self.viewed = False


class Node:
    """One recorded call.

    `versions` belong to `saved`; None means that all were 0. `saved` is None once freed. `shapes` and `likes` are for
    the rule: other shapes of the arguments inside the call; shape and dtype of each of several results. Calls on a
    device have their `stream`, where going backward through them happens too.
    """

    __slots__ = ("__weakref__", "edges", "likes", "rule", "saved", "shapes", "stream", "versions", "watch")

    def __init__(self, rule: Any, saved: tuple[Any, ...], versions: tuple[int, ...] | None, edges: tuple[Any, ...]):
        self.rule = rule
        self.saved: tuple[Any, ...] | None = saved
        self.versions = versions
        self.edges = edges
        self.shapes: Any = None
        self.likes: Any = None
        self.watch: Any = None

    def name(self) -> str:
        return self.rule.name

    def __repr__(self) -> str:
        return f"<recorded call of {self.rule.name}>"


class Slot:
    """One float result of a call with several."""

    __slots__ = ("index", "node")

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.index = index


class Watch:
    """Who wants to see the gradient of a result: hooks in order, and the tensor that keeps it."""

    __slots__ = ("dtype", "hooks", "retains", "tensor")

    def __init__(self) -> None:
        self.hooks: dict[int, Callable[[Any], Any]] = {}
        self.tensor: Any = None  # a weak reference
        self.dtype: Any = None
        self.retains = False


def watch_of(edge: Node | Slot, make: bool = False) -> Watch | None:
    """The watch on a result, made if asked for."""
    if type(edge) is Node:
        if edge.watch is None and make:
            edge.watch = Watch()
        return edge.watch
    node, index = edge.node, edge.index  # type: ignore[union-attr]  # a Slot, not a Node
    if node.watch is None:
        if not make:
            return None
        node.watch = {}
    if make:
        return node.watch.setdefault(index, Watch())
    return node.watch.get(index)


class Hook:
    """A registered hook; `remove()` ends it. Also a context manager."""

    __slots__ = ("_hooks", "_key")
    _last = 0

    def __init__(self, hooks: dict[int, Callable[[Any], Any]], function: Callable[[Any], Any]) -> None:
        Hook._last += 1
        self._hooks, self._key = hooks, Hook._last
        hooks[self._key] = function

    def remove(self) -> None:
        self._hooks.pop(self._key, None)

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()
