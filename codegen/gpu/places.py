"""What a graph value is for the host; see `build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aotdiff.codegen.gpu import plan as p

from aotdiff.ir.graph import Loc

if TYPE_CHECKING:
    from aotdiff.codegen.gpu.build import Planner


class Unsupported(Exception):
    """What a device cannot do; `loc` is where the program asks for it. `records`: arrays of records are in the way."""

    def __init__(self, message: str, loc: Loc | None, records: bool = False):
        super().__init__(message)
        self.records = records
        self.message = message
        self.loc = loc


@dataclass(slots=True)
class Host:
    """A scalar the host has."""

    operand: p.Operand


@dataclass(slots=True)
class Cell:
    """A scalar in a buffer of one element."""

    var: str


@dataclass(slots=True)
class Flat:
    """An array: a buffer, and its sizes."""

    var: str
    dims: tuple[p.Operand, ...]


@dataclass(slots=True)
class Target:
    """An accumulator: a buffer that kernels add to."""

    var: str
    dims: tuple[p.Operand, ...]


@dataclass(slots=True)
class Fields:
    """A record: what its fields are."""

    values: list[Where]


Where = Host | Cell | Flat | Target | Fields


def mentioned(where: Where) -> set[p.Operand]:
    """Variables it consists of."""
    if isinstance(where, Host):
        return {where.operand}
    if isinstance(where, Fields):
        return {name for each in where.values for name in mentioned(each)}
    return {where.var, *getattr(where, "dims", ())}


def share(planner: Planner, where: Where, hint: str = "", dims: tuple[p.Operand, ...] | None = None) -> Where:
    """The same under variables of their own."""
    if isinstance(where, Host):
        return where
    if isinstance(where, Fields):
        return Fields([share(planner, each) for each in where.values])
    var = planner.name(hint)
    planner.emit(p.Let(var, where.var))
    return Cell(var) if isinstance(where, Cell) else Flat(var, where.dims if dims is None else dims)
