"""Emission of one function: ownership of memory, regions. What stands for its values is in `valuetext`.

The rules of ownership (see `values.Buffer`): whoever owns a buffer frees it after the last use of the values
that show it, or hands it on. An operation that writes takes a buffer over if it is owned here and no value that
shows it is needed later; otherwise it copies first. Captured values belong to the region around; a branch and the
body of `withacc`, which run at most once, are given what dies with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen.bufferize import Flow
from aotdiff.codegen.values import Buffer, Ref, Scope
from aotdiff.codegen.valuetext import ValueText

from aotdiff.ir.graph import Func, Op, Region, Value

if TYPE_CHECKING:
    from aotdiff.codegen.module import ModuleText

Emit = Callable[["FunctionEmitter", Op], None]


class FunctionEmitter(ValueText):
    """Emits the body of `func`; the ABI around it is in `calls.py` and `entry.py`."""

    def __init__(self, module: ModuleText, func: Func, flow: Flow, recursive: bool):
        super().__init__(module, func, recursive)
        self.flow = flow

    # Ownership ----------------------------------------------------------------------------------------------

    def is_dead(self, buffer: Buffer, scope: Scope) -> bool:
        """Whether no value that shows this memory is used after the current operation."""
        # Dependents stay noted: what is dead after this operation may live in its regions, if it moves there.
        last, now = scope.last_use, scope.index
        seen = {buffer}
        work = [buffer]
        while work:
            each = work.pop()
            if any(last.get(v, -1) > now for v in each.members):
                return False
            work += [d for d in each.dependents if d not in seen]
            seen.update(each.dependents)
        return True

    def _uses_now(self, buffer: Buffer) -> int:
        """How often the current operation mentions this memory."""
        op = self.op_now
        uses = sum(1 for v in op.operands if self._shows(v, buffer))
        return uses + sum(1 for v in self.flow.captures.get(op, ()) if self._shows(v, buffer))

    def _shows(self, value: Value, buffer: Buffer) -> bool:
        found = self.env.get(value)
        if not isinstance(found, Ref) or found.buffer is None:
            return False
        return found.buffer is buffer or (found.buffer.flag != "true" and buffer in found.buffer.roots)

    def can_take(self, ref: Ref) -> bool:
        """Whether the current operation, which uses `ref`, may take its memory over."""
        buffer, scope = ref.buffer, self.scope
        if buffer is None or ref.part or buffer not in scope.owned or buffer.flag == "false":
            return False
        return self.is_dead(buffer, scope) and self._uses_now(buffer) <= 1

    def consume(self, ref: Ref, lanes: int = 1) -> Ref:
        """The array in memory that may be written: its own if nobody needs it afterwards, else a copy."""
        if ref.lanes != lanes:
            return self.widen(ref, lanes)
        if not self.can_take(ref):
            return self.copy(ref)
        assert ref.buffer is not None
        ref.buffer.members = []
        if ref.buffer.flag == "true":
            return ref
        return self.unique(ref)

    def unique(self, ref: Ref) -> Ref:
        """A conditionally owned buffer made our own: copied where it is not."""
        buffer = ref.buffer
        assert buffer is not None
        if buffer.flag == "true":
            return ref
        if buffer.flag == "false":
            self.scope.owned.pop(buffer, None)
            return self.copy_to_heap(ref)
        share, go = self.label("share"), self.label("own")
        before = self.block_name
        self.branch(buffer.flag, go, share)
        self.start(share)
        copied = self.copy_to_heap(ref)
        assert copied.buffer is not None
        after = self.block_name
        self.jump(go)
        self.start(go)
        ptr = self.phi("ptr", (ref.ptr, before), (copied.ptr, after))
        del self.scope.owned[copied.buffer]
        del self.scope.owned[buffer]
        new = self.own(Buffer(ptr, record=buffer.record, count=buffer.count))
        return Ref(ptr, ref.dims, ref.element, new, lanes=ref.lanes)

    def free_lines(self, buffer: Buffer) -> list[str]:
        """Instructions that give a buffer back."""
        if buffer.stack or buffer.pinned or buffer.flag == "false":
            return []
        ptr, before = buffer.ptr, []
        if buffer.flag != "true":
            ptr = self.name()
            before = [f"{ptr} = select i1 {buffer.flag}, ptr {buffer.ptr}, ptr null"]
        if buffer.record is None:
            self.module.need("aot.free")
            return [*before, f"call void @aot.free(ptr %ctx, ptr {ptr})"]
        names = self.module.record_functions(buffer.record)
        if buffer.count is None:
            return [*before, f"call void {names.drop}(ptr %ctx, ptr {ptr})"]
        return [*before, f"call void {names.drop_array}(ptr %ctx, ptr {ptr}, i64 {buffer.count})"]

    def free(self, buffer: Buffer) -> None:
        for line in self.free_lines(buffer):
            self.do(line)

    def free_rest(self, scope: Scope, keep: Sequence[Buffer] = ()) -> list[str]:
        """Instructions that free all a scope still owns, at its end."""
        lines: list[str] = []
        for buffer in scope.owned:
            if buffer not in keep:
                lines += self.free_lines(buffer)
        scope.owned = {b: None for b in scope.owned if b in keep}
        return lines

    def _release_dead(self, op: Op | None, values: Sequence[Value]) -> None:
        """Free what the current operation used last."""
        scope = self.scope
        candidates: dict[Buffer, None] = dict.fromkeys(scope.fresh)
        scope.fresh = []
        self._add_buffers(candidates, values)
        if op is not None:
            self._add_buffers(candidates, op.operands)
            self._add_buffers(candidates, self.flow.captures.get(op, ()))
        for buffer in candidates:
            if buffer in scope.owned and not buffer.pinned and self.is_dead(buffer, scope):
                del scope.owned[buffer]
                self.free(buffer)

    def _add_buffers(self, found: dict[Buffer, None], values: Sequence[Value]) -> None:
        for value in values:
            what = self.env.get(value)
            if isinstance(what, Ref) and what.buffer is not None:
                found[what.buffer] = None
                found.update(dict.fromkeys(what.buffer.roots))

    # Regions --------------------------------------------------------------------------------------------------

    def enter(self, region: Region, owned: Sequence[Buffer] = ()) -> Scope:
        scope = Scope(region, self.flow.last_use[region], dict.fromkeys(owned))
        self.scopes.append(scope)
        return scope

    def leave(self) -> None:
        self.scopes.pop()

    def run(self, scope: Scope) -> None:
        """Emit all operations but the `yield`; the scope then stands at the `yield`."""
        from aotdiff.codegen.emit import EMITTERS, SCALARS

        scope.fresh = list(scope.owned)
        self._release_dead(None, ())
        for k, op in enumerate(scope.region.ops[:-1]):
            scope.index = k
            scalar = SCALARS.get(op.name)
            if scalar is not None:
                self._scalar(op, scalar)
                continue
            EMITTERS[op.name](self, op)
            self._release_dead(op, op.results)
        scope.index = len(scope.region.ops) - 1

    def simple(self, op: Op) -> None:
        """A scalar operation, or one that makes no array."""
        from aotdiff.codegen.emit import EMITTERS, SCALARS

        scalar = SCALARS.get(op.name)
        if scalar is not None:
            self._scalar(op, scalar)
        else:
            EMITTERS[op.name](self, op)

    def _scalar(self, op: Op, emit: Callable[[FunctionEmitter, Op, list], str]) -> None:
        """A scalar operation, for all lanes where its result varies."""
        result = op.results[0]
        if not self.varies(result):
            self.env[result] = emit(self, op, [self.env[v] for v in op.operands])
            return
        assert self.strip is not None
        args = [self.as_vector(v) for v in op.operands]
        self.lanes = self.strip.lanes
        self.env[result] = emit(self, op, args)
        self.lanes = 1
        self.strip.follow(self, op)

    def dying_captures(self, op: Op) -> list[Buffer]:
        """Owned buffers that the regions of the current operation use last (and its operands do not)."""
        found: dict[Buffer, None] = {}
        self._add_buffers(found, self.flow.captures.get(op, ()))
        operands: dict[Buffer, None] = {}
        self._add_buffers(operands, op.operands)
        scope = self.scope
        return [b for b in found if b in scope.owned and b not in operands and self.is_dead(b, scope)]
