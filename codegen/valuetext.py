"""The values of one function as text: names, lanes of strips, sizes, memory, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen.scalartext import ScalarText
from aotdiff.codegen.text import Text, is_literal, trips
from aotdiff.codegen.values import Buffer, Handle, Ref, Scope, element_size, llvm_type, memory_type

from aotdiff.ir.graph import Func, Loc, Op, Value
from aotdiff.ir.types import Record, Scalar, dims_of

if TYPE_CHECKING:
    from aotdiff.codegen.module import ModuleText
    from aotdiff.codegen.strip import Strip

SMALL = 64  # elements of the largest array kept on the stack
OUT_OF_MEMORY = "out of memory"


class ValueText(ScalarText):
    """Text that stands for the values of `func`, and the memory of its arrays."""

    def __init__(self, module: ModuleText, func: Func, recursive: bool):
        super().__init__(module)
        self.func = func
        self.recursive = recursive
        self.env: dict[Value, str | Ref | Handle] = {}
        self.hints: dict[Value, tuple[str, tuple[str, ...], int]] = {}
        self.moved: dict[Op, tuple[Ref, list[Value]]] = {}  # reads that are done elsewhere: the array, the indices
        self.placed: set[Op] = set()  # inserts whose block is in its place already
        self.strip: Strip | None = None
        self.inside = False  # a `par`, whose iterations may be some thread's share
        self.scopes: list[Scope] = []
        self.nonneg: set[str] = set()
        self.stack_room = 2048 if recursive else 65536
        self.fail_return: Callable[[str], list[str]] = lambda code: []
        self.interrupt = ""
        self.interrupts: dict[tuple[str, int] | None, str] = {}  # where a call ends that was interrupted, by line
        self._memory_fail: dict[int, str] = {}
        self._dummy = ""

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    @property
    def op_now(self) -> Op:
        scope = self.scope
        return scope.region.ops[scope.index]

    # Values -----------------------------------------------------------------------------------------------

    def val(self, value: Value) -> str:
        found = self.env[value]
        assert isinstance(found, str)
        return found

    def ref(self, value: Value) -> Ref:
        found = self.env[value]
        assert isinstance(found, Ref)
        return found

    def handle(self, value: Value) -> Handle:
        found = self.env[value]
        assert isinstance(found, Handle)
        return found

    def bind(self, value: Value, what: str | Ref | Handle) -> None:
        """Give a graph value its LLVM names; sizes the type knows become numbers."""
        if isinstance(what, Ref):
            dims = tuple(str(s) if s is not None else d for s, d in zip(dims_of(value.type), what.dims, strict=True))
            what = Ref(what.ptr, dims, what.element, what.buffer, what.part, what.lanes)
            if what.buffer is not None:
                what.buffer.members.append(value)
            self.nonneg.update(dims)
        self.env[value] = what

    # Lanes ------------------------------------------------------------------------------------------------

    def varies(self, value: Value) -> bool:
        """Whether the value differs between the lanes of the strip being emitted."""
        return self.strip is not None and value in self.strip.varying

    def lanes_of(self, value: Value) -> int:
        return self.strip.lanes if self.strip is not None and value in self.strip.varying else 1

    def value_type(self, value: Value) -> str:
        """LLVM type of a scalar as it is kept: a vector where it varies."""
        assert isinstance(value.type, Scalar)
        t, lanes = llvm_type(value.type), self.lanes_of(value)
        return t if lanes == 1 else f"<{lanes} x {t}>"

    def as_vector(self, value: Value) -> str:
        """A scalar in all lanes of the strip."""
        assert self.strip is not None and isinstance(value.type, Scalar)
        name = self.val(value)
        return name if self.varies(value) else self.splat(name, value.type.kind, self.strip.lanes)

    def like(self, value: Value, model: Value) -> str:
        """A scalar as wide as `model`."""
        return self.as_vector(value) if self.varies(model) else self.val(value)

    def widen(self, ref: Ref, lanes: int) -> Ref:
        """The array with each element in all lanes, if it is not that already."""
        if ref.lanes == lanes:
            return ref
        if ref.ptr == "null":
            return Ref("null", ref.dims, ref.element, lanes=lanes)
        wide = self.new_array(ref.dims, ref.element, lanes)
        if ref.dims:
            assert isinstance(ref.element, Scalar)
            row = Row(self, self.count(ref.dims))
            value = self.op(f"load {memory_type(ref.element)}, ptr {self.slot(ref.ptr, ref.element, row.index)}")
            t = memory_type(ref.element, lanes)
            first = self.op(f"insertelement {t} poison, {memory_type(ref.element)} {value}, i64 0")
            full = self.op(f"shufflevector {t} {first}, {t} poison, <{lanes} x i32> zeroinitializer")
            at = self.slot(wide.ptr, ref.element, row.index, lanes)
            self.do(f"store {t} {full}, ptr {at}, align {_lanes_align(ref.element, lanes)}")
            row.close(self)
        return wide

    def dummy(self) -> str:
        """Storage for what inactive lanes write."""
        if not self._dummy:
            self._dummy = self.alloca("[8 x i8]", 8)
        return self._dummy

    # Sizes ------------------------------------------------------------------------------------------------

    def clamp(self, size: str) -> str:
        """max(size, 0)."""
        if is_literal(size):
            return str(max(int(size), 0))
        if size in self.nonneg:
            return size
        self.module.declare("declare i64 @llvm.smax.i64(i64, i64)")
        return self.op(f"call i64 @llvm.smax.i64(i64 {size}, i64 0)")

    # Memory -----------------------------------------------------------------------------------------------

    def element_at(self, ref: Ref | Handle, indices: Sequence[str]) -> str:
        """Address of an element."""
        linear = "0"
        for index, size in zip(indices, ref.dims, strict=True):
            linear = self.add(self.mul(linear, size), index)
        return self.slot(ref.ptr, ref.element, linear, ref.lanes)

    def slot(self, ptr: str, element: Scalar | Record, linear: str, lanes: int = 1) -> str:
        if linear == "0":
            return ptr
        return self.op(f"getelementptr inbounds {memory_type(element, lanes)}, ptr {ptr}, i64 {linear}")

    def load_element(self, element: Scalar | Record, ptr: str, lanes: int = 1, align: int = 0) -> str:
        t, align = memory_type(element, lanes), align or _lanes_align(element, lanes)
        value = self.op(f"load {t}, ptr {ptr}" + (f", align {align}" if align else ""))
        return self.op(f"icmp ne {t} {value}, zeroinitializer") if llvm_type(element) == "i1" else value

    def store_element(self, element: Scalar | Record, value: str, ptr: str, lanes: int = 1, align: int = 0) -> None:
        t, align = memory_type(element, lanes), align or _lanes_align(element, lanes)
        if llvm_type(element) == "i1":
            value = self.op(f"zext {'i1' if lanes == 1 else f'<{lanes} x i1>'} {value} to {t}")
        self.lines.append(f"  store {t} {value}, ptr {ptr}" + (f", align {align}" if align else ""))

    def count(self, dims: Sequence[str]) -> str:
        """Number of elements of an array that exists."""
        total = "1"
        for d in dims:
            total = self.mul(total, d)
        return total

    def byte_count(self, dims: Sequence[str], element: Scalar | Record, lanes: int = 1) -> str:
        return self.mul(self.count(dims), str(element_size(element) * lanes))

    def new_byte_count(self, dims: Sequence[str], element: Scalar | Record, lanes: int = 1) -> str:
        """Bytes of an array to be made; -1 (which no allocation can satisfy) where that overflows."""
        total, overflow = str(element_size(element) * lanes), ""
        for d in sorted(dims, key=is_literal, reverse=True):
            if is_literal(total) and is_literal(d):
                total = str(min(int(total) * int(d), 1 << 62))
                continue
            self.module.declare("declare { i64, i1 } @llvm.umul.with.overflow.i64(i64, i64)")
            pair = self.op(f"call {{ i64, i1 }} @llvm.umul.with.overflow.i64(i64 {total}, i64 {d})")
            total = self.op(f"extractvalue {{ i64, i1 }} {pair}, 0")
            over = self.op(f"extractvalue {{ i64, i1 }} {pair}, 1")
            overflow = self.op(f"or i1 {overflow}, {over}") if overflow else over
        return self.op(f"select i1 {overflow}, i64 -1, i64 {total}") if overflow else total

    def is_small(self, dims: Sequence[str], element: Scalar | Record, lanes: int = 1) -> bool:
        """Static, and small enough for the stack."""
        if isinstance(element, Record) or not dims or not all(is_literal(d) for d in dims):
            return False
        total = 1
        for d in dims:
            total *= int(d)
        return total <= SMALL and total * element_size(element) * lanes <= self.stack_room

    def new_stack(self, dims: Sequence[str], element: Scalar | Record, lanes: int = 1) -> Buffer:
        total = 1
        for d in dims:
            total *= int(d)
        self.stack_room -= total * element_size(element) * lanes
        ptr = self.alloca(f"[{max(total, 1)} x {memory_type(element, lanes)}]", 16 if lanes == 1 else 64)
        return self.own(Buffer(ptr, stack=True))

    def own(self, buffer: Buffer) -> Buffer:
        """The current scope becomes the owner."""
        self.scope.owned[buffer] = None
        self.scope.fresh.append(buffer)
        return buffer

    def check_memory(self, ptr: str) -> None:
        """Stop with MemoryError if an allocation failed."""
        bad = self.op(f"icmp eq ptr {ptr}, null")
        self.unless(bad, self._memory_failure())

    def _memory_failure(self) -> str:
        loc = self.op_now.loc or self.func.loc
        line = loc.line if loc else 0
        if line not in self._memory_fail:
            label = self.label("nomem")
            self._memory_fail[line] = label
            self.cold.append(f"{label}:")
            self.cold += ["  " + t for t in self.report("MemoryError", loc, OUT_OF_MEMORY)]
        return self._memory_fail[line]

    def heap(self, bytes_: str) -> str:
        """Memory from the workspace."""
        self.module.need("aot.alloc")
        align = self.module.target.heap_align
        ptr = self.op(f"call noalias align {align} ptr @aot.alloc(ptr %ctx, i64 {bytes_})")
        self.check_memory(ptr)
        return ptr

    def new_array(self, dims: Sequence[str], element: Scalar | Record, lanes: int = 1) -> Ref:
        """A fresh array owned by the current scope, contents undefined."""
        dims = tuple(dims)
        if self.is_small(dims, element, lanes):
            buffer = self.new_stack(dims, element, lanes)
        else:
            buffer = self.own(Buffer(self.heap(self.new_byte_count(dims, element, lanes))))
        self._mark_records(buffer, dims, element)
        return Ref(buffer.ptr, dims, element, buffer, lanes=lanes)

    def _mark_records(self, buffer: Buffer, dims: Sequence[str], element: Scalar | Record) -> None:
        if isinstance(element, Record):
            buffer.record, buffer.count = element.name, self.count(dims)

    def new_result(self, value: Value, dims: Sequence[str], element: Scalar | Record) -> Ref:
        """Storage of a result array: where the value is wanted in the end, or fresh."""
        lanes = self.lanes_of(value)
        ptr, wanted, room = self.hints.pop(value, ("", (), 0))
        if room != lanes:
            return self.new_array(dims, element, lanes)
        self.check_same_dims(tuple(dims), wanted)
        buffer = self.own(Buffer(ptr, pinned=True))
        return Ref(ptr, tuple(dims), element, buffer, lanes=lanes)

    def check_same_dims(self, dims: tuple[str, ...], wanted: tuple[str, ...], unless_null: str = "") -> None:
        """ValueError where an array does not have the size there is room for."""
        wrong = ""
        for d, w in zip(dims, wanted, strict=True):
            if d == w:
                continue
            differs = self.op(f"icmp ne i64 {d}, {w}")
            wrong = self.op(f"or i1 {wrong}, {differs}") if wrong else differs
        if not wrong:
            return
        if unless_null:
            real = self.op(f"icmp ne ptr {unless_null}, null")
            wrong = self.op(f"and i1 {wrong}, {real}")
        label = self.label("baddims")
        self.cold.append(f"{label}:")
        loc = self.op_now.loc or self.func.loc
        message = "an array of sizes [" + ", ".join(f"{{{i}}}" for i in range(len(dims))) + "] where ["
        message += ", ".join(f"{{{i + len(dims)}}}" for i in range(len(dims))) + "] was expected"
        values = [("i64", d) for d in (*dims, *wanted)]
        self.cold += ["  " + t for t in self.report("ValueError", loc, message, values)]
        self.unless(wrong, label)

    def copy_bytes(self, to: str, source: str, bytes_: str) -> None:
        self.module.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        self.do(self.memcpy(to, source, bytes_))

    def memcpy(self, to: str, source: str, bytes_: str) -> str:
        return f"call void @llvm.memcpy.p0.p0.i64(ptr align 8 {to}, ptr align 8 {source}, i64 {bytes_}, i1 false)"

    def copy_array(self, to: str, source: Ref) -> None:
        """Copy the elements (scalars), nothing from an undefined array."""
        if source.ptr != "null":
            self.copy_bytes(to, source.ptr, self.byte_count(source.dims, source.element, source.lanes))

    def copy(self, source: Ref) -> Ref:
        """A fresh copy owned by the current scope."""
        if isinstance(source.element, Record):
            return self._copy_records(source, source.element)
        if self.is_small(source.dims, source.element, source.lanes):
            fresh = self.new_array(source.dims, source.element, source.lanes)
            self.copy_array(fresh.ptr, source)
            return fresh
        return self.copy_to_heap(source)

    def copy_to_heap(self, source: Ref) -> Ref:
        """A fresh copy that can outlive the function."""
        if isinstance(source.element, Record):
            return self._copy_records(source, source.element)
        self.module.need("aot.clone")
        bytes_ = self.byte_count(source.dims, source.element, source.lanes)
        align = self.module.target.heap_align
        ptr = self.op(f"call noalias align {align} ptr @aot.clone(ptr %ctx, ptr {source.ptr}, i64 {bytes_})")
        self.check_memory(ptr)
        return Ref(ptr, source.dims, source.element, self.own(Buffer(ptr)), lanes=source.lanes)

    def _copy_records(self, source: Ref, record: Record) -> Ref:
        names = self.module.record_functions(record.name)
        if source.dims:
            count = self.count(source.dims)
            ptr = self.op(f"call ptr {names.clone_array}(ptr %ctx, ptr {source.ptr}, i64 {count})")
            self.check_memory(ptr)
            buffer = Buffer(ptr, record=record.name, count=count)
        else:
            ptr = self.op(f"call ptr {names.clone}(ptr %ctx, ptr {source.ptr})")
            null = self.op(f"icmp eq ptr {ptr}, null")
            real = self.op(f"icmp ne ptr {source.ptr}, null")
            self.unless(self.op(f"and i1 {null}, {real}"), self._memory_failure())
            buffer = Buffer(ptr, record=record.name)
        return Ref(ptr, source.dims, source.element, self.own(buffer))

    # Errors ---------------------------------------------------------------------------------------------------

    def located(self, line: int, text: str) -> tuple[str, str]:
        """The line of an error and its text with the place in it, as they are written in the code."""
        return str(line), self.module.string(text)

    def report(self, kind: str, loc: Loc | None, message: str, values: Sequence[tuple[str, str]] = ()) -> list[str]:
        """Instructions that report an error and leave the function. Values are (LLVM type, name)."""
        return self.module.target.report(self, kind, loc, message, values)


def _lanes_align(element: Scalar | Record, lanes: int) -> int:
    """Alignment of an array of vectors; 0 for that of its type."""
    return 0 if lanes == 1 else min(64, lanes * element_size(element))


class Row:
    """A counting loop being emitted; `index` is its counter."""

    def __init__(self, fe: Text, count: str):
        self.head, body, self.exit = fe.label("row"), fe.label("rowbody"), fe.label("rowend")
        self.before = fe.block_name
        fe.jump(self.head)
        fe.start(self.head)
        self.since, self.trips = fe.size(), trips("0", count, 1)
        self.index = fe.name()
        self.hole = fe.hole()
        fe.branch(fe.op(f"icmp slt i64 {self.index}, {count}"), body, self.exit)
        fe.start(body)

    def close(self, fe: Text) -> None:
        following = fe.op(f"add nuw nsw i64 {self.index}, 1")
        fe.fill(self.hole, f"{self.index} = phi i64 [ 0, %{self.before} ], [ {following}, %{fe.block_name} ]")
        fe.back(self.head, None, self.trips, self.since)
        fe.start(self.exit)
