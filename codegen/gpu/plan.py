"""Launch plans: what the host does to run a function on a device, as plain data.

A plan is a tree of statements over named variables. A variable (a `str` beginning with `%`) is a host scalar, or a
buffer: a flat run of elements on the device that is counted by how many variables show it. Shapes are not part of
buffers: sizes are host scalars. An operand is a variable or a number.

    alloc %3: f64[%n]                 a new buffer, contents undefined
    launch map_1 <<<%g>>> (%x, %n, %3)
    own %4 = %3                       the buffer to be written to: itself where no other variable shows it, else a copy
    drop %3                           the variable is not needed any more; the last one frees the buffer

Everything a plan says is done in order on one stream, so nothing but `fetch`, `check` with a false condition, and the
end of the function makes the host wait. Kernels do nothing once the error word is set. An argument's buffer is never
written to, so that a whole plan can be run again (a thread may have run out of scratch memory).

This module needs the standard library alone: written-out modules carry a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

Operand = int | float | bool | str
SIZES = {"f64": 8, "f32": 4, "i64": 8, "bool": 1}
ERROR_WORDS = 16  # i64: site number + 1 (0: no error), then up to 15 values, as bits, of the site's types
SCRATCH_SITE = 1 << 40  # in the error word: a thread needs more scratch; then how many bytes, and the kernel's number

# Scalar operations the host does itself; all others run on the device.
HOST_OPS = frozenset([
    "add", "sub", "mul", "div", "ratio", "floordiv", "mod", "neg", "minimum", "maximum", "clamp", "abs", "sign",
    "floor", "ceil", "round", "sqrt", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "select", "cast",
])  # fmt: skip


# Statements -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statement:
    pass


Block = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Alloc(Statement):
    """A new buffer of `count` elements, contents undefined."""

    var: str
    element: str
    count: Operand


@dataclass(frozen=True, slots=True)
class Drop(Statement):
    """The variable is not used any more."""

    var: str


@dataclass(frozen=True, slots=True)
class Let(Statement):
    """Bind `var` to what `source` is: a number, or the same buffer. What `var` was before is dropped."""

    var: str
    source: Operand


@dataclass(frozen=True, slots=True)
class Own(Statement):
    """Bind `var` to a buffer with the content of `source` that nothing else shows; `source` is dropped.

    That is the buffer of `source` itself where no other variable shows it, else a copy of its `count` elements.
    """

    var: str
    source: str
    element: str
    count: Operand


@dataclass(frozen=True, slots=True)
class Compute(Statement):
    """A scalar operation of `HOST_OPS` on scalars of `kind`, giving one of `to`; or "blocks" (work, threads, most):
    how many blocks of that many threads `work` iterations take."""

    var: str
    op: str
    args: tuple[Operand, ...]
    kind: str
    to: str


@dataclass(frozen=True, slots=True)
class Fetch(Statement):
    """An element as a host scalar. The host waits; the error word is looked at first."""

    var: str
    source: str
    element: str
    index: Operand = 0


@dataclass(frozen=True, slots=True)
class Fill(Statement):
    """The same value for `count` elements from `start`."""

    to: str
    element: str
    value: Operand
    count: Operand
    start: Operand = 0


@dataclass(frozen=True, slots=True)
class Copy(Statement):
    """`count` elements from one buffer to another."""

    to: str
    source: str
    element: str
    count: Operand
    start: Operand = 0
    source_start: Operand = 0


@dataclass(frozen=True, slots=True)
class Grow(Statement):
    """Make room for `need` elements in the buffer of `var`, of which `used` are kept; twice that if it moves."""

    var: str
    element: str
    used: Operand
    need: Operand


@dataclass(frozen=True, slots=True)
class Launch(Statement):
    """Run a kernel with this many blocks. One argument per parameter of the kernel; see `Kernel`."""

    kernel: str
    blocks: Operand
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class If(Statement):
    cond: Operand
    then: Block
    other: Block


@dataclass(frozen=True, slots=True)
class For(Statement):
    """`count` times, with `index` from 0."""

    index: str
    count: Operand
    body: Block


@dataclass(frozen=True, slots=True)
class While(Statement):
    """`before`, then stop unless `cond`, then `body`; again."""

    before: Block
    cond: Operand
    body: Block


@dataclass(frozen=True, slots=True)
class Check(Statement):
    """Unless `cond`, raise the error of a site with these values, or the device's error if there is one."""

    cond: Operand
    site: int
    values: tuple[Operand, ...]


STATEMENTS: dict[str, type[Statement]] = {
    "alloc": Alloc, "drop": Drop, "let": Let, "own": Own, "compute": Compute, "fetch": Fetch, "fill": Fill,
    "copy": Copy, "grow": Grow, "launch": Launch, "if": If, "for": For, "while": While, "check": Check,
}  # fmt: skip
_TAGS = {cls: tag for tag, cls in STATEMENTS.items()}


# Plans ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter leaf: a host scalar, or a buffer whose sizes are the host scalars `dims`."""

    var: str
    element: str
    dims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A result leaf. `device`: the value is in a buffer (always so for arrays), else it is a host scalar."""

    value: Operand
    element: str
    dims: tuple[Operand, ...] = ()
    device: bool = True


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel. `params`: "ptr", "f64", "f32", "i64" or "bool" (passed as i8), one per argument of its launches.

    Behind those come, always, a pointer to the error word, and with `scratch` a pointer to scratch memory and, as i64,
    how many bytes of it each thread of the grid has. `block`: threads per block. `shared`: bytes of static shared
    memory. `barriers`: whether it has any. `exact`: it has as many blocks as its launch says, never fewer: each leaves
    something, or adds in an order of its own.
    """

    name: str
    params: tuple[str, ...]
    block: int
    shared: int = 0
    scratch: bool = False
    barriers: bool = False
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """What an error says: `message` has `{0}` and so on for values of these types ("i64" or "f64")."""

    kind: str
    path: str
    line: int
    message: str
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled function. `serial`: nothing in it runs in parallel."""

    name: str
    params: tuple[Param, ...]
    results: tuple[Result, ...]
    body: Block
    kernels: tuple[Kernel, ...]
    sites: tuple[Site, ...]
    serial: bool = False

    def statements(self) -> Iterator[Statement]:
        """All statements, outer before inner."""
        stack = list(reversed(self.body))
        while stack:
            each = stack.pop()
            yield each
            for block in reversed(blocks_of(each)):
                stack += reversed(block)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "params": [[p.var, p.element, *p.dims] for p in self.params],
            "results": [[r.value, r.element, r.device, *r.dims] for r in self.results],
            "body": _block_json(self.body),
            "kernels": [
                [k.name, list(k.params), k.block, k.shared, k.scratch, k.barriers, k.exact] for k in self.kernels
            ],
            "sites": [[s.kind, s.path, s.line, s.message, *s.types] for s in self.sites],
            "serial": self.serial,
        }

    def __str__(self) -> str:
        params = ", ".join(f"{p.var}: {p.element}{_dims_text(p.dims)}" for p in self.params)
        lines = [f"plan {self.name}({params}) {{"]
        lines += _block_lines(self.body, 1)
        results = [f"{_text(r.value)}: {r.element}{_dims_text(r.dims)}" for r in self.results]
        lines.append(f"  return {', '.join(results)}" if results else "  return")
        return "\n".join([*lines, "}"])


def blocks_of(statement: Statement) -> tuple[Block, ...]:
    """The blocks inside a statement."""
    if isinstance(statement, If):
        return statement.then, statement.other
    if isinstance(statement, For):
        return (statement.body,)
    return (statement.before, statement.body) if isinstance(statement, While) else ()


def from_json(data: dict[str, Any]) -> Plan:
    """The plan that `Plan.to_json` wrote."""
    return Plan(
        data["name"],
        tuple(Param(p[0], p[1], tuple(p[2:])) for p in data["params"]),
        tuple(Result(r[0], r[1], tuple(r[3:]), r[2]) for r in data["results"]),
        _block_from(data["body"]),
        tuple(Kernel(k[0], tuple(k[1]), *k[2:]) for k in data["kernels"]),
        tuple(Site(*s[:4], types=tuple(s[4:])) for s in data["sites"]),
        data["serial"],
    )


# JSON: a statement is a list, its tag first ------------------------------------------------------------------


def _block_json(block: Block) -> list[Any]:
    return [[_TAGS[type(s)], *(_field_json(getattr(s, f.name)) for f in fields(s))] for s in block]


def _field_json(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return {"block": _block_json(value)} if value and isinstance(value[0], Statement) else list(value)


def _block_from(data: list[Any]) -> Block:
    return tuple(STATEMENTS[item[0]](*map(_field_from, item[1:])) for item in data)


def _field_from(value: Any) -> Any:
    if isinstance(value, dict):
        return _block_from(value["block"])
    return tuple(value) if isinstance(value, list) else value


# Text -------------------------------------------------------------------------------------------------------


def _text(operand: Operand) -> str:
    if isinstance(operand, bool):
        return "true" if operand else "false"
    return str(operand)


def _dims_text(dims: tuple[Operand, ...]) -> str:
    return f"[{', '.join(map(_text, dims))}]" if dims else ""


def _list(operands: tuple[Operand, ...]) -> str:
    return ", ".join(map(_text, operands))


def _block_lines(block: Block, depth: int) -> list[str]:
    return [line for s in block for line in _lines(s, depth)]


def _lines(s: Statement, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(s, If):
        other = _block_lines(s.other, depth + 1)
        between = [f"{pad}}} else {{", *other] if other else []
        return [f"{pad}if {_text(s.cond)} {{", *_block_lines(s.then, depth + 1), *between, f"{pad}}}"]
    if isinstance(s, For):
        return [f"{pad}for {s.index} in {_text(s.count)} {{", *_block_lines(s.body, depth + 1), f"{pad}}}"]
    if isinstance(s, While):
        before = _block_lines(s.before, depth + 1)
        return [f"{pad}while {{", *before, f"{pad}}} {_text(s.cond)} {{", *_block_lines(s.body, depth + 1), f"{pad}}}"]
    return [pad + _line(s)]


def _line(s: Statement) -> str:
    match s:
        case Alloc(var, element, count):
            return f"alloc {var}: {element}[{_text(count)}]"
        case Drop(var):
            return f"drop {var}"
        case Let(var, source):
            return f"{var} = {_text(source)}"
        case Own(var, source, element, count):
            return f"own {var} = {source}: {element}[{_text(count)}]"
        case Compute(var, op, args, kind, to):
            return f"{var} = {op} {_list(args)}: {kind}" + (f" -> {to}" if to != kind else "")
        case Fetch(var, source, element, index):
            return f"fetch {var} = {source}[{_text(index)}]: {element}"
        case Fill(to, element, value, count, start):
            return f"fill {to}[{_text(start)}; {_text(count)}] = {_text(value)}: {element}"
        case Copy(to, source, element, count, start, source_start):
            return f"copy {to}[{_text(start)}; {_text(count)}] = {source}[{_text(source_start)}]: {element}"
        case Grow(var, element, used, need):
            return f"grow {var}: {element}[{_text(need)}], {_text(used)} used"
        case Launch(kernel, blocks, args):
            return f"launch {kernel}<{_text(blocks)}>({_list(args)})"
        case Check(cond, site, values):
            return f"check {_text(cond)} else site {site}" + (f" ({_list(values)})" if values else "")
    raise TypeError(f"no text for {type(s).__name__}")
