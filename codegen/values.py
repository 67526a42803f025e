"""What the emitter knows about graph values: LLVM names of arrays and records, and who owns their memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from aotdiff.ir.graph import Region, Value
from aotdiff.ir.types import Record, Scalar

LLVM_TYPES = {"f64": "double", "f32": "float", "i64": "i64", "bool": "i1"}
MEMORY_TYPES = {"f64": "double", "f32": "float", "i64": "i64", "bool": "i8"}
SIZES = {"f64": 8, "f32": 4, "i64": 8, "bool": 1}


def llvm_type(type_: Scalar | Record) -> str:
    """Type of a scalar (or record pointer) in a register."""
    return LLVM_TYPES[type_.kind] if isinstance(type_, Scalar) else "ptr"


def memory_type(type_: Scalar | Record, lanes: int = 1) -> str:
    """Type of an array element in memory."""
    name = MEMORY_TYPES[type_.kind] if isinstance(type_, Scalar) else "ptr"
    return name if lanes == 1 else f"<{lanes} x {name}>"


def element_size(type_: Scalar | Record) -> int:
    return SIZES[type_.kind] if isinstance(type_, Scalar) else 8


@dataclass(eq=False, slots=True)
class Buffer:
    """A piece of memory with one owner: the scope whose `owned` holds it.

    flag: "true", "false" or an i1 name: whether it is really ours to free and to write; where it is not, the
    memory belongs to one of `roots`, which therefore must outlive this buffer.
    pinned: it may be written but never freed or handed on (home of a carried array, a caller's storage).
    stack: an alloca, of the same standing as a pinned buffer for anything that outlives the function or iteration.
    members: values that show this memory. dependents: buffers that have this one among their roots.
    record: name of the record type if the elements are records; `count` elements (None: a single record).
    """

    ptr: str
    flag: str = "true"
    pinned: bool = False
    stack: bool = False
    record: str | None = None
    count: str | None = None
    roots: tuple[Buffer, ...] = ()
    members: list[Value] = field(default_factory=list)
    dependents: list[Buffer] = field(default_factory=list)


@dataclass(slots=True)
class Ref:
    """An array (or, with no `dims` and a record element, a record). `buffer` is None for a parameter that is only read.

    part: the memory is a part of what the buffer owns (a field of a record, an element of an array of records).
    lanes: more than 1 inside a strip, where each element is a vector with the values of that many iterations.
    """

    ptr: str
    dims: tuple[str, ...]
    element: Scalar | Record
    buffer: Buffer | None = None
    part: bool = False
    lanes: int = 1

    @property
    def is_block(self) -> bool:
        """Whether it is a whole block of the workspace, which ends at a multiple of 64 bytes."""
        buffer = self.buffer
        if buffer is None or self.part or buffer.ptr != self.ptr:
            return False
        return buffer.flag == "true" and not buffer.pinned and not buffer.stack


@dataclass(slots=True)
class Handle:
    """An accumulator: its storage. `shared`: several threads add to it at once; `replaced`: a value that is added takes
    the place of what was there."""

    ptr: str
    dims: tuple[str, ...]
    element: Scalar
    lanes: int = 1
    shared: bool = False
    replaced: bool = False


@dataclass(eq=False, slots=True)
class Scope:
    """One region while it is emitted: what it owns, and at which operation it stands."""

    region: Region
    last_use: dict[Value, int]
    owned: dict[Buffer, None] = field(default_factory=dict)
    fresh: list[Buffer] = field(default_factory=list)
    index: int = -1
