"""The graph: modules of functions, functions of regions, regions of operations in order.

Values are immutable and defined once (SSA); arrays have value semantics. Control flow is structured: an
operation may own regions, each a single list of operations that ends with `yield`. A region sees every value
defined before it in the regions around it. What each operation means is declared in `ir.ops`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aotdiff.ir.types import Type


@dataclass(frozen=True, slots=True)
class Loc:
    """A place in a `.grad` file: 1-based line and column."""

    path: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


class Value:
    """Result of an operation or argument of a region. `name` is a hint for printing: the stem, no `%`."""

    __slots__ = ("type", "name", "owner", "index")

    def __init__(self, type_: Type, name: str = "", owner: Op | Region | None = None, index: int = 0):
        self.type = type_
        self.name = name
        self.owner = owner
        self.index = index

    @property
    def op(self) -> Op | None:
        """The defining operation, or None for a region argument."""
        owner = self.owner
        return owner if type(owner) is Op else None  # asked more than anything else: this is the fastest way

    def __repr__(self) -> str:
        return f"<%{self.name or '_'}: {self.type}>"


class Op:
    """One operation. `attrs` holds plain immutable data only (str, int, float, bool, tuples, types)."""

    __slots__ = ("name", "operands", "attrs", "regions", "results", "loc")

    def __init__(
        self,
        name: str,
        operands: list[Value],
        result_types: list[Type],
        attrs: dict[str, Any] | None = None,
        regions: list[Region] | None = None,
        loc: Loc | None = None,
    ):
        self.name = name
        self.operands = operands
        self.attrs = attrs or {}
        self.regions = regions or []
        self.results = [Value(t, "", self, i) for i, t in enumerate(result_types)]
        self.loc = loc

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def __repr__(self) -> str:
        return f"<op {self.name}>"


class Region:
    """A list of operations with arguments; the last operation is `yield`."""

    __slots__ = ("args", "ops")

    def __init__(self, args: list[Value] | None = None, ops: list[Op] | None = None):
        self.args = args or []
        self.ops = ops or []
        for i, arg in enumerate(self.args):
            arg.owner, arg.index = self, i

    def add_arg(self, type_: Type, name: str = "") -> Value:
        value = Value(type_, name, self, len(self.args))
        self.args.append(value)
        return value

    @property
    def terminator(self) -> Op:
        return self.ops[-1]

    @property
    def yielded(self) -> list[Value]:
        return self.ops[-1].operands

    def walk(self) -> Iterator[Op]:
        """Every operation here and in nested regions, in order, outer before inner."""
        stack = [iter(self.ops)]
        while stack:
            for op in stack[-1]:
                yield op
                if op.regions:
                    stack += [iter(region.ops) for region in reversed(op.regions)]
                    break
            else:
                stack.pop()


class Func:
    """A function: `body.args` are the parameters, `body`'s `yield` gives the results.

    attrs: `vjp` / `jvp` (names of functions with a user's rule), `recursive` (bool), `inline` ("never", "always",
    "small": where its arrays are), `export` (bool). `loc` is the line of the definition.
    """

    __slots__ = ("name", "body", "result_types", "attrs", "loc")

    def __init__(
        self,
        name: str,
        body: Region,
        result_types: list[Type],
        attrs: dict[str, Any] | None = None,
        loc: Loc | None = None,
    ):
        self.name = name
        self.body = body
        self.result_types = result_types
        self.attrs = attrs or {}
        self.loc = loc

    @property
    def params(self) -> list[Value]:
        return self.body.args


@dataclass(slots=True)
class Module:
    """Functions by name, in order; `records` gives the field types of residual records."""

    funcs: dict[str, Func] = field(default_factory=dict)
    records: dict[str, tuple[Type, ...]] = field(default_factory=dict)

    def add(self, func: Func) -> Func:
        if func.name in self.funcs:
            raise ValueError(f"function @{func.name} defined twice")
        self.funcs[func.name] = func
        return func

    def fresh_name(self, stem: str) -> str:
        """`stem`, or `stem_2`, `stem_3` ... whichever is free."""
        name, k = stem, 1
        while name in self.funcs:
            k += 1
            name = f"{stem}_{k}"
        return name
