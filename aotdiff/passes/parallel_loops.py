"""parallel-loops: a `for` whose iterations do not need each other becomes a `par`. For targets with many threads.

Each carried value has to be one of

- a scalar to which each iteration adds (or multiplies, or takes the larger or smaller of) something: a reduction;
- an array at whose elements each iteration adds something, wherever that is: an accumulator;
- an array of rank 1 of which iteration k writes element k + c: a map, inserted at c.

What the iterations compute must not look at carried values otherwise. Loops inside a `par` stay as they are.

adjoint-loops: the same for innermost loops that differentiation wrote (`reverse`), on all targets. The order of what
they add up is not promised, and as a `par` they run several iterations at once. Their indices run forward again.

free-loops: loops that carry nothing, whatever is in them, on all targets; not those in a `par`, which has iterations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op, free_values, substitute, use_counts
from aotdiff.ir.types import I64, Acc, Array, Scalar, dims_of
from aotdiff.passes.registry import PASSES, register_local

_REDUCTIONS = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}


# What the body of a loop of differentiation may have besides scalar operations.
_FLAT = ("read", "dim", "shaped", "undef", "yield", "if", "accum")


@register_local("parallel-loops", "Turn loops whose iterations are independent into pars.")
def parallel_loops(module: Module, func: Func) -> None:
    _region(func.body, _parallel)


@register_local("adjoint-loops", "Turn loops of derivatives that only add things up into pars.")
def adjoint_loops(module: Module, func: Func) -> None:
    if any("reverse" in op.attrs for op in func.body.walk()) and _region(func.body, _summing):
        for name in ("canonicalize", "cse", "dce"):
            PASSES[name].run(module, [func])


@register_local("free-loops", "Turn loops that carry nothing into pars.")
def free_loops(module: Module, func: Func) -> None:
    _region(func.body, _free)


def _region(region: Region, convert: Callable[[Op], tuple[list[Op], list[Value]] | None]) -> bool:
    """Whether a loop was converted."""
    out: list[Op] = []
    env: Env = {}
    found = False
    for op in region.ops:
        if op.name != "par":
            for inner in op.regions:
                found |= _region(inner, convert)
        made = convert(op) if op.name == "for" else None
        if made is None:
            out.append(op)
            continue
        ops, results = made
        out += ops
        env.update(zip(op.results, results, strict=True))
        found = True
    region.ops = out
    substitute(region, env)
    return found


def _summing(op: Op) -> tuple[list[Op], list[Value]] | None:
    """The `par` for a loop of differentiation that has no loop inside and carries sums only."""
    body = op.regions[0]
    if "reverse" not in op.attrs or any(isinstance(a.type, Array) for a in body.args):
        return None
    if any(each.name not in SCALAR_OPS and each.name not in _FLAT for each in body.walk()):
        return None
    for arg, value in zip(body.args[1:], body.yielded, strict=False):
        if value is not arg and not _is_added(body, arg, value):
            return None
    return _parallel_forward(op)


def _free(op: Op) -> tuple[list[Op], list[Value]] | None:
    """The `par` for a loop that carries nothing: its results are one for each iteration, or it adds to accumulators."""
    if op.attrs["carries"] or "checkpoint" in op.attrs or any(each.name == "call" for each in op.regions[0].walk()):
        return None
    return _parallel_forward(op)


def _parallel_forward(op: Op) -> tuple[list[Op], list[Value]] | None:
    """The `par` for a loop, counting up."""
    made = _parallel(op)
    if made is not None:
        (par,) = (each for each in made[0] if each.name == "par")
        _run_forward(par, op.operands[0])
    return made


def _is_added(body: Region, arg: Value, value: Value) -> bool:
    """Whether a carried number is a sum; one from which something is taken away becomes one."""
    op = value.op
    if op is not None and op.name == "sub" and op in body.ops and op.operands[0] is arg:
        less = Op("neg", [op.operands[1]], [value.type], None, None, op.loc)
        body.ops.insert(body.ops.index(op), less)
        op.name, op.operands = "add", [arg, less.result]
    return op is not None and op.name == "add"


def _run_forward(par: Op, count: Value) -> None:
    """Count up what a reverse loop counts down: n - r, from n to 1, becomes k + 1, from 1 to n."""
    body = par.regions[0]
    downs = [each for each in body.walk() if each.name == "sub" and each.operands == [count, body.args[0]]]
    if not downs or len(downs) != use_counts(body)[body.args[0]]:
        return
    one = Op("const", [], [I64], {"value": 1, "type": I64}, None, par.loc)
    body.ops[:0] = [one]
    for each in downs:
        each.name, each.operands = "add", [body.args[0], one.result]


@dataclass(slots=True)
class _Carry:
    """How a carried value changes: `kind` is "keep", "acc", "write" or a reduction of `value`."""

    kind: str
    value: Value | None = None
    offset: Value | None = None
    steps: dict[Op, tuple[Value, list[Value]] | Op] = field(default_factory=dict)  # update -> what is added where
    skip: set[Op] = field(default_factory=set)  # operations of the chain
    sized: set[Value] = field(default_factory=set)  # versions of the array: all have its sizes


def _parallel(op: Op) -> tuple[list[Op], list[Value]] | None:
    """Operations that do the same without an order, and the values of the results."""
    body, carries = op.regions[0], op.attrs["carries"]
    if "cat" in op.attrs["kinds"] or any(not isinstance(a.type, (Array, Scalar)) for a in body.args):
        return None
    uses = Counter(use_counts(body))
    found: list[_Carry] = []
    for arg, value in zip(body.args[1:], body.yielded, strict=False):
        carry = _carry(body, arg, value, uses)
        if carry is None:
            return None
        found.append(carry)
    if not _independent(body, found, body.yielded[carries:]):
        return None
    changes = any(c.kind != "keep" for c in found) or any(each.name == "accum" for each in body.walk())
    if not changes and not op.attrs["kinds"]:
        return None
    return _Writer(op, found).write()


def _carry(body: Region, arg: Value, value: Value, uses: Counter[Value]) -> _Carry | None:
    if value is arg:
        return _Carry("keep")
    if isinstance(arg.type, Scalar):
        op = value.op
        if op is None or op.name not in _REDUCTIONS or op not in body.ops or uses[value] != 1 or uses[arg] != 1:
            return None
        if arg not in op.operands or arg.type.kind == "bool":
            return None
        other = op.operands[1] if op.operands[0] is arg else op.operands[0]
        return _Carry(_REDUCTIONS[op.name], other, skip={op})
    return _array(body, arg, value, uses)


def _array(body: Region, arg: Value, value: Value, uses: Counter[Value]) -> _Carry | None:
    """The chain of writes from the carried array to the next one."""
    carry = _Carry("acc", sized={arg})
    here = set(body.ops)
    while value is not arg:
        op = value.op
        if op is None or op not in here:
            return None
        carry.skip.add(op)
        carry.sized.add(value)
        base = op.operands[0] if op.operands else None
        if base is None:
            return None
        looked = sum(1 for o in body.walk() if o.name == "dim" and o.operands[0] is base)
        if op.name == "withacc" and len(op.operands) == 1 == len(op.results) and uses[base] - looked == 1:
            carry.steps[op] = op
        elif op.name == "update":
            added = _added(op, base, uses, looked, here)
            if added is not None:
                carry.steps[op] = added[0], op.operands[2:]
                carry.skip |= added[1]
            elif base is arg and not carry.steps and uses[base] - looked == 1 and len(op.operands) == 3:
                carry.kind, carry.value, carry.offset = "write", op.operands[1], op.operands[2]
            else:
                return None
        else:
            return None
        value = base
        if carry.kind == "write" and len(carry.skip) > 1:
            return None
    return carry


def _added(
    op: Op, base: Value, uses: Counter[Value], looked: int, here: set[Op]
) -> tuple[Value, set[Op]] | None:
    """What an update adds to the element that was there, and the operations that do it."""
    add = op.operands[1].op
    if add is None or add.name != "add" or add not in here or uses[op.operands[1]] != 1 or uses[base] - looked != 2:
        return None
    for old, other in (add.operands, add.operands[::-1]):
        read = old.op
        if read is not None and read.name == "read" and read in here and uses[old] == 1:
            if read.operands == [base, *op.operands[2:]]:
                return other, {add, read}
    return None


def _independent(body: Region, carries: Sequence[_Carry], maps: Sequence[Value]) -> bool:
    """Whether nothing but the chains depends on carried values."""
    tainted = {a for a, c in zip(body.args[1:], carries, strict=True) if c.kind != "keep"}
    skip = {op for c in carries for op in c.skip}
    sized = {v for c in carries for v in c.sized}
    for op in body.ops[:-1]:
        if op in skip:
            tainted.update(op.results)
            continue
        if any(v in tainted for v in _outside(op, sized)):
            return False
    wanted = list(maps)
    for c in carries:
        wanted += [v for v in (c.value, c.offset) if v is not None]
        for step in c.steps.values():
            if isinstance(step, Op):
                if any(v in tainted for v in free_values(step.regions[0])):
                    return False
            else:
                wanted += [step[0], *step[1]]
    return not any(v in tainted for v in wanted)


def _outside(op: Op, sized: set[Value]) -> list[Value]:
    """Values that an operation needs, but for arrays of which it only wants a size."""
    found = [] if op.name == "dim" and op.operands[0] in sized else list(op.operands)
    for region in op.regions:
        inside = set(region.args)
        for inner in region.walk():
            if not (inner.name == "dim" and inner.operands[0] in sized):
                found += inner.operands
            inside.update(inner.results)
        found = [v for v in found if v not in inside]
    return found


def _shift(body: Region, index: Value) -> tuple[bool, Value | None, int]:
    """Whether an index is k + c with the same c in each iteration; c as a value from outside, or as a number."""
    k, op = body.args[0], index.op
    if index is k:
        return True, None, 0
    if op is None or op not in body.ops or op.name not in ("add", "sub") or k not in op.operands:
        return False, None, 0
    if op.name == "sub" and (op.operands[0] is not k or op.operands[1].op is None or op.operands[1].op.name != "const"):
        return False, None, 0
    other = op.operands[1] if op.operands[0] is k else op.operands[0]
    if other is k:
        return False, None, 0
    made = other.op
    if made is not None and made.name == "const":
        return True, None, -made.attrs["value"] if op.name == "sub" else made.attrs["value"]
    inside = other in body.args or any(other in inner.results for inner in body.ops)
    return not inside, other, 0


class _Writer:
    """Writes the `par` of a loop."""

    def __init__(self, op: Op, carries: list[_Carry]):
        self.op, self.carries = op, carries
        self.body = op.regions[0]
        self.inits = op.operands[1 : 1 + len(carries)]
        self.region = Region()
        self.b = Builder(self.region, op.loc)

    def write(self) -> tuple[list[Op], list[Value]] | None:
        op, b = self.op, self.b
        self.shifts: dict[int, tuple[Value | None, int]] = {}
        for c, carry in enumerate(self.carries):
            if carry.kind == "write":
                assert carry.offset is not None
                fine, value, number = _shift(self.body, carry.offset)
                if not fine:
                    return None
                self.shifts[c] = value, number
        accs = [c for c, carry in enumerate(self.carries) if carry.kind == "acc"]
        joined = [c for c, carry in enumerate(self.carries) if carry.kind not in ("acc", "keep")]
        kinds = ["map" if self.carries[c].kind == "write" else self.carries[c].kind for c in joined]
        kinds += op.attrs["kinds"]
        inner = op.operands[1 + len(self.carries) :]
        count = self._count()

        def loop(b: Builder, *handles: Value) -> list[Value]:
            region = self._region(dict(zip(accs, handles, strict=True)), joined)
            return b.par_op([count], kinds, region, inner).results

        if accs:
            made = b.withacc([self.inits[c] for c in accs], loop)
        else:
            made = loop(b)
        totals, rest = made[: len(accs)], made[len(accs) :]
        results: list[Value] = list(self.inits)
        for c, value in zip(accs, totals, strict=True):
            results[c] = value
        for c, value in zip(joined, rest, strict=False):
            results[c] = self._joined(c, value)
        return self.region.ops, results + rest[len(joined) :]

    def _count(self) -> Value:
        """How many iterations there are: a `par` has none below 0."""
        count = self.op.operands[0]
        made = count.op
        if made is not None and (made.name == "dim" or (made.name == "const" and made.attrs["value"] >= 0)):
            return count
        return self.b.scalar("maximum", count, self.b.i64(0))

    def _joined(self, c: int, value: Value) -> Value:
        kind, init, b = self.carries[c].kind, self.inits[c], self.b
        if kind == "write":
            outside, number = self.shifts[c]
            if outside is None and number == 0:
                return b.insert(init, value, b.i64(0))
            start = outside if outside is not None else b.i64(number)
            some = b.scalar("lt", b.i64(0), self.op.operands[0])  # else c may be anywhere
            return b.insert(init, value, b.select(some, start, b.i64(0)))
        name = next(name for name, found in _REDUCTIONS.items() if found == kind)
        return b.scalar(name, init, value)

    def _region(self, handles: dict[int, Value], joined: list[int]) -> Region:
        """The body with additions to handles for updates."""
        index = Value(self.body.args[0].type, self.body.args[0].name)
        region = Region([index])
        env: Env = {self.body.args[0]: index}
        for arg, init in zip(self.body.args[1:], self.inits, strict=True):
            env[arg] = init  # only sizes of it are asked for, or it never changes
        steps = {op: (c, step) for c, carry in enumerate(self.carries) for op, step in carry.steps.items()}
        skip = {op: c for c, carry in enumerate(self.carries) for op in carry.skip}
        b = Builder(region, self.op.loc)
        for op in self.body.ops[:-1]:
            if op in steps:
                c, step = steps[op]
                env[op.results[0]] = self.inits[c]
                self._add(b, handles[c], step, env)
            elif op in skip:
                env[op.results[0]] = self.inits[skip[op]] if isinstance(op.results[0].type, Array) else index
            else:
                region.ops.append(copy_op(op, env))
        yielded = [self.carries[c].value for c in joined] + self.body.yielded[len(self.carries) :]
        b.ret([env.get(v, v) for v in yielded if v is not None])
        return region

    def _add(self, b: Builder, handle: Value, step: tuple[Value, list[Value]] | Op, env: Env) -> None:
        if isinstance(step, Op):
            inner = step.regions[0]
            env[inner.args[0]] = handle
            b.region.ops += [copy_op(each, env) for each in inner.ops[:-1]]
            return
        value, indices = step
        assert isinstance(handle.type, Acc) and len(indices) == len(dims_of(handle.type))
        b.accum(handle, env.get(value, value), *(env.get(i, i) for i in indices))
