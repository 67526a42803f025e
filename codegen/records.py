"""Residual records: a block of 8-byte slots that owns its arrays and inner records."""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.codegen.arrays import hand_over
from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.text import symbol
from aotdiff.codegen.values import Buffer, Ref, element_size

from aotdiff.ir.graph import Module, Op
from aotdiff.ir.types import Record, Scalar, Type, dims_of, element_of


@dataclass(frozen=True, slots=True)
class RecordFunctions:
    """Names of the functions that free and copy records of one type, and arrays of them (pointer, count)."""

    drop: str
    clone: str
    drop_array: str
    clone_array: str


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a field is: its first slot; an array has its pointer there and its unknown sizes behind."""

    type: Type
    first: int

    @property
    def width(self) -> int:
        return 1 + sum(d is None for d in dims_of(self.type))


def layout(fields: tuple[Type, ...]) -> tuple[list[Slot], int]:
    """Slots of the fields, and the size in bytes."""
    slots: list[Slot] = []
    position = 0
    for type_ in fields:
        slots.append(Slot(type_, position))
        position += slots[-1].width
    return slots, 8 * max(position, 1)


def emit_make(fe: FunctionEmitter, op: Op) -> None:
    record = op.results[0].type
    assert isinstance(record, Record)
    slots, size = layout(fe.module.graph.records[record.name])
    ptr = fe.heap(str(size))
    for value, slot in zip(op.operands, slots, strict=True):
        at = fe.bytes_at(ptr, 8 * slot.first)
        if isinstance(slot.type, Scalar):
            fe.store_element(slot.type, fe.val(value), at)
            continue
        ref = fe.ref(value)
        fe.store("ptr", hand_over(fe, ref), at)
        unknown = [d for k, d in zip(dims_of(slot.type), ref.dims, strict=True) if k is None]
        for n, d in enumerate(unknown):
            fe.store("i64", d, fe.bytes_at(ptr, 8 * (slot.first + 1 + n)))
    fe.bind(op.results[0], Ref(ptr, (), record, fe.own(Buffer(ptr, record=record.name))))


def emit_unpack(fe: FunctionEmitter, op: Op) -> None:
    ref = fe.ref(op.operands[0])
    assert isinstance(ref.element, Record)
    slots, _ = layout(fe.module.graph.records[ref.element.name])
    for result, slot in zip(op.results, slots, strict=True):
        at = fe.bytes_at(ref.ptr, 8 * slot.first)
        if isinstance(slot.type, Scalar):
            fe.bind(result, fe.load_element(slot.type, at))
            continue
        dims, n = [], slot.first
        for known in dims_of(slot.type):
            n += known is None
            dims.append(str(known) if known is not None else fe.load("i64", fe.bytes_at(ref.ptr, 8 * n)))
        element = element_of(slot.type)
        fe.bind(result, Ref(fe.load("ptr", at), tuple(dims), element, ref.buffer, part=True))


# Freeing and copying ---------------------------------------------------------------------------------------


def function_names(record: str) -> RecordFunctions:
    names = [symbol(f"aot.{what}.{record}") for what in ("drop", "clone", "drops", "clones")]
    return RecordFunctions(*names)


class RecordText:
    """Writes the functions of `RecordFunctions`; `used` collects the record types they mention."""

    def __init__(self, graph: Module, record: str):
        self.slots, self.size = layout(graph.records[record])
        self.names = function_names(record)
        self.used: list[str] = []
        self._count = 0
        self._lines: list[str] = []

    def text(self) -> str:
        return "\n".join([self._drop(), self._clone(), self._drop_array(), self._clone_array()])

    def _op(self, text: str) -> str:
        self._count += 1
        self._lines.append(f"  %t{self._count} = {text}")
        return f"%t{self._count}"

    def _load(self, base: str, slot: int, type_: str) -> str:
        return self._op(f"load {type_}, ptr {self._op(f'getelementptr i8, ptr {base}, i64 {8 * slot}')}")

    def _count_of(self, base: str, slot: Slot) -> str:
        total, n = "1", slot.first
        for known in dims_of(slot.type):
            n += known is None
            size = str(known) if known is not None else self._load(base, n, "i64")
            total = size if total == "1" else self._op(f"mul i64 {total}, {size}")
        return total

    def _owned(self) -> list[Slot]:
        return [s for s in self.slots if not isinstance(s.type, Scalar)]

    def _drop(self) -> str:
        """Frees the fields, then the record; an inner record last, by a tail call, so that chains need no stack."""
        self._lines = []
        tails: list[str] = []
        for slot in self._owned():
            ptr, element = self._load("%p", slot.first, "ptr"), element_of(slot.type)
            if isinstance(element, Record):
                names = function_names(element.name)
                self.used.append(element.name)
                if isinstance(slot.type, Record):
                    tails.append(f"call void {names.drop}(ptr %ctx, ptr {ptr})")
                else:
                    count = self._count_of("%p", slot)
                    self._lines.append(f"  call void {names.drop_array}(ptr %ctx, ptr {ptr}, i64 {count})")
            else:
                self._lines.append(f"  call void @aot.free(ptr %ctx, ptr {ptr})")
        lines = [*self._lines, "  call void @aot.free(ptr %ctx, ptr %p)"]
        lines += [f"  {t}" for t in tails[:-1]] + [f"  musttail {t}" for t in tails[-1:]]
        return "\n".join(
            [
                f"define internal void {self.names.drop}(ptr %ctx, ptr %p) #1 {{",
                "entry:",
                "  %null = icmp eq ptr %p, null",
                "  br i1 %null, label %out, label %go",
                "go:",
                *lines,
                "  ret void",
                "out:",
                "  ret void",
                "}",
            ]
        )

    def _clone(self) -> str:
        self._lines = []
        new = self._op(f"call ptr @aot.clone(ptr %ctx, ptr %p, i64 {self.size})")
        self._stop_if_null(new, "new")
        for n, slot in enumerate(self._owned()):
            ptr, element = self._load("%p", slot.first, "ptr"), element_of(slot.type)
            copied = self._clone_field(slot, ptr, element)
            failed = self._op(f"icmp eq ptr {copied}, null")
            real = self._op(f"icmp ne ptr {ptr}, null")
            bad = self._op(f"and i1 {failed}, {real}")
            self._lines += [f"  br i1 {bad}, label %out, label %f{n}", f"f{n}:"]
            at = self._op(f"getelementptr i8, ptr {new}, i64 {8 * slot.first}")
            self._lines.append(f"  store ptr {copied}, ptr {at}")
        return "\n".join(
            [
                f"define internal ptr {self.names.clone}(ptr %ctx, ptr %p) #1 {{",
                "entry:",
                "  %null = icmp eq ptr %p, null",
                "  br i1 %null, label %out, label %go",
                "go:",
                *self._lines,
                f"  ret ptr {new}",
                "out:",
                "  ret ptr null",
                "}",
            ]
        )

    def _stop_if_null(self, ptr: str, stem: str) -> None:
        failed = self._op(f"icmp eq ptr {ptr}, null")
        self._lines += [f"  br i1 {failed}, label %out, label %{stem}", f"{stem}:"]

    def _clone_field(self, slot: Slot, ptr: str, element: Scalar | Record) -> str:
        if isinstance(slot.type, Record):
            self.used.append(slot.type.name)
            return self._op(f"call ptr {function_names(slot.type.name).clone}(ptr %ctx, ptr {ptr})")
        count = self._count_of("%p", slot)
        if isinstance(element, Record):
            self.used.append(element.name)
            return self._op(f"call ptr {function_names(element.name).clone_array}(ptr %ctx, ptr {ptr}, i64 {count})")
        bytes_ = self._op(f"mul i64 {count}, {element_size(element)}")
        return self._op(f"call ptr @aot.clone(ptr %ctx, ptr {ptr}, i64 {bytes_})")

    def _drop_array(self) -> str:
        return f"""define internal void {self.names.drop_array}(ptr %ctx, ptr %p, i64 %n) #1 {{
entry:
  %null = icmp eq ptr %p, null
  br i1 %null, label %out, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %end
body:
  %at = getelementptr ptr, ptr %p, i64 %i
  %e = load ptr, ptr %at
  call void {self.names.drop}(ptr %ctx, ptr %e)
  %j = add i64 %i, 1
  br label %loop
end:
  call void @aot.free(ptr %ctx, ptr %p)
  br label %out
out:
  ret void
}}"""

    def _clone_array(self) -> str:
        return f"""define internal ptr {self.names.clone_array}(ptr %ctx, ptr %p, i64 %n) #1 {{
entry:
  %bytes = shl i64 %n, 3
  %new = call ptr @aot.clone(ptr %ctx, ptr %p, i64 %bytes)
  %failed = icmp eq ptr %new, null
  %none = icmp eq ptr %p, null
  %stop = or i1 %failed, %none
  br i1 %stop, label %out, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %out
body:
  %at = getelementptr ptr, ptr %p, i64 %i
  %e = load ptr, ptr %at
  %c = call ptr {self.names.clone}(ptr %ctx, ptr %e)
  %null = icmp eq ptr %c, null
  %real = icmp ne ptr %e, null
  %bad = and i1 %null, %real
  br i1 %bad, label %fail, label %next
next:
  %to = getelementptr ptr, ptr %new, i64 %i
  store ptr %c, ptr %to
  %j = add i64 %i, 1
  br label %loop
out:
  ret ptr %new
fail:
  ret ptr null
}}"""
