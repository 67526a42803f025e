"""The reverse sweep: walks a function backwards and writes what gives each active value its adjoint.

An adjoint is one of three things: absent (zero), a value of the region being reversed, or a handle of an accumulator,
for what a loop captures from around it. Constructs have their rules in `reverse_par`, `reverse_loop` and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aotdiff.ad import reverse_acc, reverse_branch, reverse_call, reverse_loop, reverse_par
from aotdiff.ad.activity import Activity
from aotdiff.ad.residuals import Pairing
from aotdiff.ad.rules import contributions
from aotdiff.ad.sizes import Sizes
from aotdiff.ad.structure import Structure
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import Acc, Array, Scalar, dims_of, element_of

if TYPE_CHECKING:
    from aotdiff.ad.reverse import Pullbacks


@dataclass(eq=False, slots=True)
class Scope:
    """Adjoints of the values of one forward region while it is being reversed.

    A "loop" turns what it captures into handles; a "branch" has its own view of the adjoints around it.
    """

    kind: str
    parent: Scope | None
    adjoints: dict[Value, Value] = field(default_factory=dict)
    handles: dict[Value, Value] = field(default_factory=dict)
    acc_region: Region = field(default_factory=Region)


class Sweep:
    """State of one reverse sweep. `b` writes to the reverse region at hand."""

    __slots__ = (
        "pullbacks", "structure", "sizes", "activity", "pairs", "scope", "level", "b", "handle_adjoints",
        "forward_calls", "entered", "repeated", "again", "source",
    )

    def __init__(self, pullbacks: Pullbacks, source: Func, structure: Structure, sizes: Sizes, activity: Activity,
                 builder: Builder):
        self.pullbacks = pullbacks
        self.source = source  # the function of the module that is reversed
        self.structure = structure
        self.sizes = sizes
        self.activity = activity
        self.pairs: dict[Region, Pairing] = {}
        self.scope = Scope("root", None)
        self.level: dict[Value, Scope] = {}
        self.b = builder
        # For the handles of a `withacc` being reversed: the adjoint of its result, None for zero.
        self.handle_adjoints: dict[Value, Value | None] = {}
        self.forward_calls: dict[Op, reverse_call.ForwardCall] = {}
        # The call of the sweep that runs a forward call again; regions that are reversed in more than one place.
        self.again: dict[Op, Op] = {}
        self.entered: set[Region] = set()
        self.repeated: set[Region] = set()

    # Regions ---------------------------------------------------------------------------------------------

    def enter(self, region: Region) -> None:
        """Values of `region` get their adjoints in the scope at hand."""
        if region in self.entered:
            self.repeated.add(region)
        self.entered.add(region)
        level, scope = self.level, self.scope
        for arg in region.args:
            level[arg] = scope
        for op in region.ops:
            for result in op.results:
                level[result] = scope

    def sweep(self, region: Region) -> None:
        """Reverse the operations of a region that was entered and whose yields were seeded."""
        for op in reversed(region.ops):
            if op.name == "yield":
                continue
            self.b.loc = op.loc
            self._op(op)

    def _op(self, op: Op) -> None:
        if op.name in SCALAR_OPS:
            self._scalar(op)
        elif op.name in _RULES:
            _RULES[op.name](self, op)

    def _scalar(self, op: Op) -> None:
        ct = self.take(op.results[0])
        if ct is None:
            return
        wanted = [self.active(v) for v in op.operands]
        for v, c in zip(op.operands, contributions(self.b, op, ct, wanted), strict=True):
            if c is not None and self.active(v):
                self.add(v, c)

    # Adjoints --------------------------------------------------------------------------------------------

    def active(self, value: Value) -> bool:
        return value in self.activity.active

    def take(self, value: Value) -> Value | None:
        """The final adjoint of a value of this scope, None for zero; it is consumed."""
        return self.scope.adjoints.pop(value, None)

    def take_or_zeros(self, value: Value) -> Value:
        found = self.take(value)
        return self.zeros(value) if found is None else found

    def zeros(self, value: Value) -> Value:
        """A zero adjoint of the type and sizes of `value`."""
        element = element_of(value.type)
        assert isinstance(element, Scalar)
        sizes = self.sizes.of(value) if isinstance(value.type, Array) else []
        return self.b.fill(self.b.const(0.0, element), sizes)

    def view(self, value: Value) -> Value | None:
        """The adjoint so far of a value that is not captured by a loop."""
        scope, home = self.scope, self.level[value]
        while value not in scope.adjoints and scope is not home:
            assert scope.parent is not None
            scope = scope.parent
        return scope.adjoints.get(value)

    def set(self, value: Value, adjoint: Value) -> None:
        if not adjoint.name and value.name:
            adjoint.name = f"{value.name}_adj"
        self.scope.adjoints[value] = adjoint

    def handle(self, value: Value) -> Value | None:
        """The accumulator for the adjoint of a captured value, made at first use; None if `value` is not captured."""
        scope, home, loop = self.scope, self.level[value], None
        while scope is not home:
            if scope.kind == "loop":
                loop = scope
            assert scope.parent is not None, f"%{value.name} is not in scope"
            scope = scope.parent
        if loop is None:
            return None
        if value not in loop.handles:
            element = element_of(value.type)
            assert isinstance(element, Scalar)
            name = f"{value.name}_acc" if value.name else "acc"
            loop.handles[value] = loop.acc_region.add_arg(Acc(element, dims_of(value.type)), name)
        return loop.handles[value]

    def add(self, value: Value, c: Value) -> None:
        """Contribute `c`, of the type of `value`, to its adjoint."""
        if not self.active(value):
            return
        handle = self.handle(value)
        if handle is not None:
            self._accumulate(handle, value, c)
            return
        before = self.view(value)
        self.set(value, c if before is None else self.total(value, before, c))

    def _accumulate(self, handle: Value, value: Value, c: Value) -> None:
        if not isinstance(value.type, Array):
            self.b.accum(handle, c)
            return

        def element(b: Builder, *index: Value) -> list[Value]:
            b.accum(handle, b.read(c, *index), *index)
            return []

        self.b.par(self.sizes.of(value), [], element)

    def total(self, value: Value, x: Value, y: Value) -> Value:
        """x + y, elementwise, in the shape of `value`."""
        if not isinstance(value.type, Array):
            return self.b.add(x, y)

        def element(b: Builder, *index: Value) -> list[Value]:
            return [b.add(b.read(x, *index), b.read(y, *index))]

        return self.b.par(self.sizes.of(value), ["map"], element)[0]

    def add_element(self, array: Value, c: Value, indices: Sequence[Value]) -> None:
        """Contribute the scalar `c` to one element of an array's adjoint."""
        if not self.active(array):
            return
        handle = self.handle(array)
        if handle is not None:
            self.b.accum(handle, c, *indices)
            return
        before = self.view(array)
        if before is None:
            before = self.zeros(array)
        elif _zeroed(before, indices):
            # What the checker does not know: it is an update, as `_zeroed` has seen.
            self.set(array, self.b.update(before.op.operands[0], c, *indices))  # type: ignore[union-attr]
            return
        self.set(array, self.b.update(before, self.b.add(self.b.read(before, *indices), c), *indices))

    # Writing reverse regions -------------------------------------------------------------------------------

    def open(self, kind: str) -> tuple[Scope, Builder]:
        """Begin a scope; give back both to `close`."""
        saved = self.scope, self.b
        self.scope = Scope(kind, self.scope)
        return saved

    def close(self, saved: tuple[Scope, Builder]) -> Scope:
        """End a scope; it is returned."""
        scope = self.scope
        self.scope, self.b = saved
        return scope

    def finish_loop(self, saved: tuple[Scope, Builder], loop: Callable[[Builder], list[Value]]) -> list[Value]:
        """End a "loop" scope: `loop(b)` writes the reverse loop, in a `withacc` if handles were made."""
        scope = self.close(saved)
        if not scope.handles:
            return loop(self.b)
        inits = []
        for value in scope.handles:
            before = self.view(value)
            inits.append(self.zeros(value) if before is None else before)
        inner = Builder(scope.acc_region, self.b.loc)
        inner.ret(loop(inner))
        results = self.b.withacc_op(inits, scope.acc_region).results
        for value, result in zip(scope.handles, results, strict=False):
            self.set(value, result)
        return results[len(inits) :]

    def row(self, array: Value, lead: Sequence[Value], sizes: Sequence[Value]) -> Value:
        """`array[lead...]`: an element, or the sub-array of these sizes."""
        if not sizes:
            return self.b.read(array, *lead)
        return self.b.par(sizes, ["map"], lambda b, *index: [b.read(array, *lead, *index)])[0]


def _zeroed(array: Value, indices: Sequence[Value]) -> bool:
    """Whether the last thing done to the array was to set this element to zero."""
    op = array.op
    if op is None or op.name != "update" or op.operands[2:] != list(indices):
        return False
    value = op.operands[1].op
    return value is not None and value.name == "const" and value.attrs["value"] == 0.0


# Arrays ----------------------------------------------------------------------------------------------------


def _read(sw: Sweep, op: Op) -> None:
    c = sw.take(op.results[0])
    if c is not None:
        sw.add_element(op.operands[0], c, op.operands[1:])


def _update(sw: Sweep, op: Op) -> None:
    array, value, *indices = op.operands
    c = sw.take(op.results[0])
    if c is None:
        return
    if sw.active(value):
        sw.add(value, sw.b.read(c, *indices))
    if sw.active(array):
        sw.add(array, sw.b.update(c, sw.b.const(0.0, value.type), *indices))


def _insert(sw: Sweep, op: Op) -> None:
    array, block, *offsets = op.operands
    c = sw.take(op.results[0])
    if c is None:
        return
    if sw.active(block):

        known = dims_of(block.type)

        def element(b: Builder, *index: Value) -> list[Value]:
            places = zip(offsets, index, known, strict=True)
            return [b.read(c, *(o if n == 1 else b.add(o, i) for o, i, n in places))]

        sw.add(block, sw.b.par(sw.sizes.of(block), ["map"], element)[0])
    if sw.active(array):
        sw.add(array, sw.b.insert(c, sw.zeros(block), *offsets))


def _reshape(sw: Sweep, op: Op) -> None:
    c = sw.take(op.results[0])
    if c is not None:
        sw.add(op.operands[0], sw.b.reshape(c, sw.sizes.of(op.operands[0])))


def _shaped(sw: Sweep, op: Op) -> None:
    c = sw.take(op.results[0])
    if c is not None:
        sw.add(op.operands[0], c)


_RULES: dict[str, Callable[[Sweep, Op], None]] = {
    "read": _read,
    "update": _update,
    "insert": _insert,
    "reshape": _reshape,
    "shaped": _shaped,
    "par": reverse_par.sweep_par,
    "for": reverse_loop.sweep_loop,
    "while": reverse_loop.sweep_loop,
    "if": reverse_branch.sweep_if,
    "withacc": reverse_acc.sweep_withacc,
    "accum": reverse_acc.sweep_accum,
    "call": reverse_call.sweep_call,
}


