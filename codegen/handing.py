"""Values that leave a region: who owns them afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.values import Buffer, Ref, Scope


@dataclass(slots=True)
class Out:
    """A value as it leaves: its memory, whether it is ours now (an i1), else whose it may be.

    owner: the buffer that left its scope and wants a new one. keep: the same, if it is pinned or on the stack.
    """

    ref: Ref
    flag: str
    roots: tuple[Buffer, ...] = ()
    owner: Buffer | None = None

    @property
    def keep(self) -> Buffer | None:
        owner = self.owner
        return owner if owner is not None and (owner.pinned or owner.stack) else None


def closure(buffers: list[Buffer]) -> tuple[Buffer, ...]:
    """The buffers and the roots they have in turn, once each."""
    found: dict[Buffer, None] = {}
    stack = list(reversed(buffers))
    while stack:
        buffer = stack.pop()
        if buffer not in found:
            found[buffer] = None
            stack += reversed(buffer.roots)
    return tuple(found)


def hand_out(fe: FunctionEmitter, scope: Scope, ref: Ref, taken: dict[Buffer, None], stays: bool) -> Out:
    """Take a yielded value out of `scope` without copying where possible.

    taken: buffers already handed out at this `yield`. stays: pinned and stack memory may pass, because the region
    around is of the same iteration and function.
    """
    buffer = ref.buffer
    if buffer is None:
        return Out(ref, "false")
    if buffer not in scope.owned and buffer not in taken:
        return Out(ref, "false", closure([buffer]))
    fixed = buffer.pinned or buffer.stack
    if buffer in taken or ref.part or (fixed and not stays):
        return _copied(fe, scope, ref, stays)
    if buffer.flag != "true" and any(r in scope.owned or r in taken for r in closure(list(buffer.roots))):
        ref = fe.unique(ref)
        buffer = ref.buffer
        assert buffer is not None
    del scope.owned[buffer]
    taken[buffer] = None
    if fixed:
        return Out(ref, "false", (buffer,), buffer)
    return Out(ref, buffer.flag, closure(list(buffer.roots)), buffer)


def _copied(fe: FunctionEmitter, scope: Scope, ref: Ref, stays: bool) -> Out:
    copied = fe.copy(ref) if stays else fe.copy_to_heap(ref)
    buffer = copied.buffer
    assert buffer is not None
    del scope.owned[buffer]
    if buffer.stack:
        return Out(copied, "false", (buffer,), buffer)
    return Out(copied, "true", (), buffer)


def adopt(fe: FunctionEmitter, buffer: Buffer) -> Buffer:
    """The current scope owns a result; its roots learn that it depends on them."""
    for root in buffer.roots:
        root.dependents.append(buffer)
    return fe.own(buffer)
