"""What a name stands for, and the nested scopes that say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aotdiff.frontend.ast import Span
from aotdiff.frontend.sizes import UNKNOWN, Size
from aotdiff.frontend.types import Type


class Region:
    """A stretch of code whose variables only it may write: a function's body, a comprehension, a lambda."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what


class Binding:
    """One declaration of a name; `ast.Name.binding` points at it, and it is the same object for all its uses.

    `kind` is "parameter", "size", "let", "var", "index" (loop and generator targets), "function", "constant",
    "builtin" (`node` is the `builtins.Builtin`) or "builtin constant". `node` is what declares it: a Parameter,
    LambdaParameter, Pattern, For, GeneratorClause, Function or Constant; for a size the Function or Lambda.
    `size` is its symbolic value where it is an i64 that does not change.
    """

    __slots__ = ("kind", "name", "node", "region", "size", "span", "type")

    def __init__(
        self,
        name: str,
        kind: str,
        type_: Type,
        node: Any = None,
        span: Span | None = None,
        size: Size = UNKNOWN,
        region: Region | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.type = type_
        self.node = node
        self.span = span
        self.size = size
        self.region = region

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}: {self.type!r}>"


class Scope:
    """Names declared here, then those of the scopes around."""

    __slots__ = ("names", "parent")

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self.names: dict[str, Binding] = {}

    def declare(self, binding: Binding) -> Binding:
        self.names[binding.name] = binding
        return binding

    def find(self, name: str) -> Binding | None:
        scope: Scope | None = self
        while scope is not None:
            if (found := scope.names.get(name)) is not None:
                return found
            scope = scope.parent
        return None

    def snapshot(self) -> Scope:
        """A copy that later declarations do not change: what a lambda sees."""
        copy = Scope(self.parent.snapshot() if self.parent is not None else None)
        copy.names.update(self.names)
        return copy

    def all_names(self) -> Iterator[str]:
        scope: Scope | None = self
        while scope is not None:
            yield from scope.names
            scope = scope.parent
