"""Which work the host does itself, which it controls, and which scalars therefore live on the device.

- A `par` is worth a kernel of its own unless it has few iterations, known when compiling; so are sorting and putting a
  block into an array.
- A `par` of very few iterations around such a `par` is a loop of the host: its kernels are inside.
- A structured operation around such a `par` is controlled by the host: it runs its loops and branches. So is one
  that does nothing but arithmetic of integers the host has (sizes), and one whose results have sizes that only running
  it can tell. Any other operation runs in one thread of the device, together with its neighbours.
- Where no `par` at all is worth a kernel, one thread does everything that is not arithmetic of sizes.
- A scalar lives on the host if it is a constant, a size, a parameter, or made of such by operations the host has.
"""

from __future__ import annotations

import math

from aotdiff.codegen.gpu.plan import HOST_OPS

from aotdiff.ir.graph import Func, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import Acc, Array, Record, Scalar, dims_of, element_of
from aotdiff.passes.facts import ArgOwners, Size, Sizes, constant

FEW = 64  # iterations that one thread may as well do
VERY_FEW = 8  # iterations that the host goes through one by one, where each has kernels
_STRUCTURED = ("for", "while", "if", "withacc")


class Residence:
    """`device`: scalars in device memory. `control`: structured operations that the host runs.

    `serial`: one thread does what the host does not.
    """

    def __init__(self, func: Func):
        self.device: set[Value] = set()
        self.control: set[Op] = set()
        self.sizes = Sizes(ArgOwners.of(func.body))
        self._worth: dict[Op, bool] = {}
        self.serial = not any(self.worth(op) for op in func.body.ops)
        self._solve(func)
        if self.serial and not self._results_known(func):
            self.serial = False
            self._solve(func)

    def _solve(self, func: Func) -> None:
        self.device.clear()
        self.control.clear()
        self._changed = True
        while self._changed:
            self._changed = False
            self._region(func.body)

    def _results_known(self, func: Func) -> bool:
        """Whether the host can tell the sizes of the results when one thread does the rest."""
        known = set(func.params)
        for op in func.body.ops:
            if self.is_host(op) and all(v in known for v in op.operands):
                known.update(op.results)
        sizes = [self.size(v, k) for v in func.body.yielded for k, d in enumerate(dims_of(v.type)) if d is None]
        roots = [s if isinstance(s, Value) else s[0] for s in sizes if not isinstance(s, int)]
        return all(root in known for root in roots)

    def is_host(self, op: Op) -> bool:
        """Whether the host does this operation without a kernel."""
        if op.name in SCALAR_OPS:
            return op.results[0] not in self.device
        if op.name == "check":
            return op.operands[0] not in self.device
        if op.name == "insert":  # a copy, where the elements lie together
            return len(dims_of(op.operands[0].type)) == 1 and not isinstance(element_of(op.operands[0].type), Record)
        return op.name in ("dim", "shaped", "reshape", "stop_gradient", "undef", "record_make", "record_unpack")

    def worth(self, op: Op) -> bool:
        """Whether it is, or has in it, what is worth a kernel."""
        found = self._worth.get(op)
        if found is None:
            found = (op.name == "par" and not _few(op)) or (op.name in ("argsort", "insert") and not _is_short(op))
            found = found and not self.is_host(op)
            found = found or any(self.worth(inner) for r in op.regions for inner in r.ops)
            self._worth[op] = found
        return found

    # The fixpoint -----------------------------------------------------------------------------------------

    def _region(self, region: Region) -> None:
        for op in region.ops:
            self._op(op)

    def _op(self, op: Op) -> None:
        if op.name in SCALAR_OPS:
            if op.name != "const" and (op.name not in HOST_OPS or any(v in self.device for v in op.operands)):
                self._mark(op.results[0])
        elif op.name == "stop_gradient":
            self._join(op.results[0], op.operands[0])
        elif (op.name in _STRUCTURED and self._is_control(op)) or (op.name == "par" and self._is_looped(op)):
            self.control.add(op)
            _CONTROL[op.name](self, op)
        elif op.name == "record_unpack":
            _unpacked(self, op)
        elif op.name not in ("dim", "undef") and not (op.name == "insert" and self.is_host(op)):
            self.control.discard(op)
            for result in op.results:
                self._mark(result)

    def _mark(self, value: Value) -> None:
        if isinstance(value.type, Scalar) and value not in self.device:
            self.device.add(value)
            self._changed = True

    def _join(self, value: Value, source: Value) -> None:
        if source in self.device:
            self._mark(value)

    def _if(self, op: Op) -> None:
        for region in op.regions:
            self._region(region)
            for result, value in zip(op.results, region.yielded, strict=True):
                self._join(result, value)

    def _loop(self, op: Op) -> None:
        first, carries = (1 if op.name == "for" else 0), op.attrs["carries"]
        for c in range(carries):
            args = [region.args[1 + c] for region in op.regions]
            for source in (op.operands[first + c], op.regions[-1].ops[-1].operands[c], *args):
                for value in (op.results[c], *args):
                    self._join(value, source)
        for region in op.regions:
            self._region(region)
        for c in range(carries):
            value = op.regions[-1].yielded[c]
            for target in (op.results[c], *(region.args[1 + c] for region in op.regions)):
                self._join(target, value)

    def _withacc(self, op: Op) -> None:
        inits = len(op.operands)
        for result in op.results[:inits]:
            self._mark(result)
        self._region(op.regions[0])
        for result, value in zip(op.results[inits:], op.regions[0].yielded, strict=True):
            self._join(result, value)

    # Who runs a structured operation ----------------------------------------------------------------------

    def _is_control(self, op: Op) -> bool:
        if not self.serial and (self.worth(op) or not self.sizes_known(op)):
            return True
        return self._of_integers(op)

    def size(self, value: Value, axis: int) -> Size:
        """The size of an array along an axis, as `Sizes.size`; also of what a `for` collects."""
        op = value.op
        if op is None or op.name != "for" or value.index < op.attrs["carries"] or "cat" in op.attrs["kinds"]:
            return self.sizes.size(value, axis)
        sizes = op.operands[1 + op.attrs["carries"] :]
        for result in op.results[op.attrs["carries"] :]:
            rank = len(dims_of(result.type)) - 1
            if result is value:
                found = op.operands[0] if axis == 0 else sizes[axis - 1]
                known = constant(found)
                return found if known is None else max(known, 0)
            sizes = sizes[rank:]
        raise AssertionError("a result that is none")

    def _is_looped(self, op: Op) -> bool:
        """Whether the host goes through the iterations of a `par`."""
        return _few(op, VERY_FEW) and any(self.worth(inner) for inner in op.regions[0].ops)

    def _par(self, op: Op) -> None:
        for result in op.results:
            self._mark(result)
        self._region(op.regions[0])

    def sizes_known(self, op: Op) -> bool:
        """Whether the sizes of all results follow from what is known before the operation runs."""
        if op.name == "while" and op.attrs["kinds"]:
            return False
        inside: set[Value] | None = None
        for result in op.results:
            if isinstance(element_of(result.type), Record):
                return False
            for axis, known in enumerate(dims_of(result.type)):
                if known is not None:
                    continue
                size = self.size(result, axis)
                if isinstance(size, int):
                    continue
                root = size if isinstance(size, Value) else size[0]
                inside = _inside(op) if inside is None else inside
                if root in inside:
                    return False
        return True

    def _of_integers(self, op: Op) -> bool:
        """Whether it is arithmetic of integers that the host has, and nothing else."""
        if not all(_is_integer(v) for v in op.results) or not op.results:
            return False
        inside = _inside(op)
        for region in op.regions:
            for inner in region.walk():
                for v in inner.operands:
                    if v not in inside and (v in self.device or (inner.name != "dim" and not _is_integer(v))):
                        return False
                if inner.name in ("yield", "dim", "const"):
                    continue
                if inner.name not in HOST_OPS and inner.name not in ("if", "for", "while", "check"):
                    return False
                if not all(_is_integer(v) for v in inner.results):
                    return False
        return not any(v in self.device for v in op.operands)


_CONTROL = {
    "if": Residence._if,
    "for": Residence._loop,
    "while": Residence._loop,
    "withacc": Residence._withacc,
    "par": Residence._par,
}


def _unpacked(residence: Residence, op: Op) -> None:
    """Fields of a record that was made here live where they lived."""
    made = op.operands[0].op
    if made is not None and made.name == "record_make":
        for result, value in zip(op.results, made.operands, strict=True):
            residence._join(result, value)


def _is_integer(value: Value) -> bool:
    return isinstance(value.type, Scalar) and value.type.kind in ("i64", "bool")


def _few(op: Op, most: int = FEW) -> bool:
    """Whether a `par` has few iterations for sure."""
    sizes = [constant(v) for v in op.operands[: op.attrs["rank"]]]
    return all(s is not None for s in sizes) and math.prod(max(s, 0) for s in sizes) <= most


def _is_short(op: Op) -> bool:
    """Whether what is to be sorted or inserted has few elements for sure."""
    what = op.operands[1 if op.name == "insert" else 0]
    sizes = dims_of(what.type)
    few = all(d is not None for d in sizes) and math.prod(d or 0 for d in sizes) <= FEW
    return few or isinstance(element_of(what.type), Record)


def _inside(op: Op) -> set[Value]:
    """Values defined by the operation or inside it."""
    found = set(op.results)
    for region in op.regions:
        found.update(region.args)
        for inner in region.walk():
            found.update(inner.results)
            for nested in inner.regions:
                found.update(nested.args)
    return found


def has_memory(value: Value) -> bool:
    return isinstance(value.type, (Array, Acc, Record))
