"""Arrays: element reads and writes, shapes, sorting."""

from __future__ import annotations

from aotdiff.codegen import checks
from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.values import Buffer, Ref, element_size, llvm_type, memory_type
from aotdiff.codegen.valuetext import Row

from aotdiff.ir.graph import Op
from aotdiff.ir.types import Array, Record, Scalar


def emit_same(fe: FunctionEmitter, op: Op) -> None:
    """The operand under another name."""
    found = fe.env[op.operands[0]]
    fe.bind(op.results[0], found)


def emit_undef(fe: FunctionEmitter, op: Op) -> None:
    """Zero for a scalar; a null pointer, which copies skip, for an array or record."""
    type_ = op.results[0].type
    if isinstance(type_, Scalar):
        fe.bind(op.results[0], fe.literal(0, type_))
    elif isinstance(type_, Array):
        fe.bind(op.results[0], Ref("null", tuple(str(d or 0) for d in type_.dims), type_.element))
    else:
        assert isinstance(type_, Record)
        fe.bind(op.results[0], Ref("null", (), type_))


def emit_dim(fe: FunctionEmitter, op: Op) -> None:
    size = fe.ref(op.operands[0]).dims[op.attrs["axis"]]
    fe.nonneg.add(size)
    fe.bind(op.results[0], size)


def emit_read(fe: FunctionEmitter, op: Op) -> None:
    array, indices = fe.moved.get(op) or (fe.ref(op.operands[0]), op.operands[1:])
    if fe.strip is not None:
        fe.bind(op.results[0], fe.strip.read(fe, op, array, indices))
        return
    ptr = fe.element_at(array, [fe.val(v) for v in indices])
    value = fe.load_element(array.element, ptr)
    if isinstance(array.element, Record):
        fe.bind(op.results[0], Ref(value, (), array.element, array.buffer, part=True))
    else:
        fe.bind(op.results[0], value)


def emit_update(fe: FunctionEmitter, op: Op) -> None:
    target = fe.consume(fe.ref(op.operands[0]), fe.lanes_of(op.results[0]))
    if fe.strip is not None:
        fe.strip.write(fe, op, target)
        fe.bind(op.results[0], target)
        return
    ptr = fe.element_at(target, [fe.val(v) for v in op.operands[2:]])
    if isinstance(target.element, Record):
        _replace_record(fe, op, target.element, ptr)
    else:
        fe.store_element(target.element, fe.val(op.operands[1]), ptr)
    fe.bind(op.results[0], target)


def _replace_record(fe: FunctionEmitter, op: Op, record: Record, ptr: str) -> None:
    new = hand_over(fe, fe.ref(op.operands[1]))
    old = fe.load("ptr", ptr)
    fe.do(f"call void {fe.module.record_functions(record.name).drop}(ptr %ctx, ptr {old})")
    fe.store("ptr", new, ptr)


def hand_over(fe: FunctionEmitter, ref: Ref) -> str:
    """Pointer to heap memory with this content that now belongs to another structure."""
    buffer = ref.buffer
    if buffer is not None and not buffer.stack and not buffer.pinned and fe.can_take(ref):
        ref = fe.unique(ref)
    else:
        ref = fe.copy_to_heap(ref)
    assert ref.buffer is not None
    del fe.scope.owned[ref.buffer]
    return ref.ptr


def emit_insert(fe: FunctionEmitter, op: Op) -> None:
    rank = len(op.operands) - 2
    block = fe.ref(op.operands[1])
    lanes = fe.lanes_of(op.results[0])
    target = fe.consume(fe.ref(op.operands[0]), lanes)
    if op in fe.placed:
        fe.placed.discard(op)
        fe.bind(op.results[0], target)
        return
    block = fe.widen(block, lanes)
    offsets = [fe.val(v) for v in op.operands[2:]]
    rows = [Row(fe, block.dims[r]) for r in range(rank - 1)]
    indices = [row.index for row in rows]
    to = fe.element_at(target, [*map(fe.add, offsets[:-1], indices), offsets[-1]])
    source = fe.element_at(block, [*indices, "0"])
    if isinstance(block.element, Record):
        raise NotImplementedError("insert of records")
    fe.copy_bytes(to, source, fe.mul(block.dims[-1], str(element_size(block.element) * lanes)))
    for row in reversed(rows):
        row.close(fe)
    fe.bind(op.results[0], target)


def emit_reshape(fe: FunctionEmitter, op: Op) -> None:
    array = fe.ref(op.operands[0])
    dims = tuple(fe.val(v) for v in op.operands[1:])
    fe.bind(op.results[0], Ref(array.ptr, dims, array.element, array.buffer, array.part, array.lanes))


def emit_argsort(fe: FunctionEmitter, op: Op) -> None:
    array = fe.ref(op.operands[0])
    result = fe.new_result(op.results[0], array.dims, Scalar("i64"))
    bytes_ = fe.byte_count(array.dims, result.element)
    scratch = fe.own(Buffer(fe.heap(bytes_)))
    function = fe.module.sorter(memory_type(array.element), llvm_type(array.element))
    flags = checks.flags(fe)
    args = f"ptr {array.ptr}, i64 {array.dims[0]}, ptr {result.ptr}, ptr {scratch.ptr}, ptr {flags[0]}, ptr {flags[1]}"
    checks.stop_if(fe, fe.op(f"call i1 {function}({args})"))
    fe.bind(op.results[0], result)
