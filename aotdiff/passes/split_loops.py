"""split-loops: what a `for` computes without looking at the numbers it carries becomes a `par` in front of it.

    for k in n with s { ... dear ... %e ; s + %e }
becomes
    %e = par k in n { ... dear ... } ; for k in n with s { s + e[k] }

The loop that is left adds up in the order that was written. What was dear runs several iterations at once, its adjoint
is that of a `par`, so nothing has to be kept of the iterations, and with the sum alone wanted for its derivative no
loop is left at all. Only for loops around which there is no `par` (else that one has the iterations), and for bodies
that are dear enough to pay for an element of memory in each iteration.
"""

from __future__ import annotations

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op, free_values, substitute
from aotdiff.ir.types import Acc, Scalar
from aotdiff.passes.cost import TRANSCENDENTAL, body_cost
from aotdiff.passes.facts import constant
from aotdiff.passes.registry import register_local

# What may be left for the loop: a handful of operations.
_LEFT = 6.0
# Loops with fewer iterations, when that is known, are written out.
_FEW = 16


@register_local("split-loops", "Compute in a par what loops do without looking at the numbers they carry.")
def split_loops(module: Module, func: Func) -> None:
    _region(func.body)


def _region(region: Region) -> None:
    out: list[Op] = []
    env: Env = {}
    for op in region.ops:
        made = _split(op) if op.name == "for" else None
        if made is None:
            if op.name != "par":
                for inner in op.regions:
                    _region(inner)
            out.append(op)
            continue
        out += made
        env.update(zip(op.results, made[-1].results, strict=True))
    region.ops = out
    substitute(region, env)


def _split(op: Op) -> list[Op] | None:
    """A `par` and the loop that is left, which comes last."""
    body = op.regions[0]
    count = constant(op.operands[0])
    if op.attrs["kinds"] or set(op.attrs) != {"carries", "kinds"} or (count is not None and count <= _FEW):
        return None
    changed = [a for a, v in zip(body.args[1:], body.yielded, strict=True) if a is not v]
    if not changed or not all(isinstance(a.type, Scalar) for a in changed):
        return None
    ahead, behind = _parts(body, set(changed))
    if ahead is None or body_cost(behind) > _LEFT or body_cost(ahead) < TRANSCENDENTAL:
        return None
    return _Writer(op, ahead, behind).write()


def _parts(body: Region, tainted: set[Value]) -> tuple[list[Op] | None, list[Op]]:
    """What does not depend on these values, and what does; no first part where the second is not plain arithmetic."""
    ahead: list[Op] = []
    behind: list[Op] = []
    for op in body.ops[:-1]:
        needed = [*op.operands, *(v for inner in op.regions for v in free_values(inner))]
        if any(isinstance(v.type, Acc) for v in needed):
            return None, behind
        if not any(v in tainted for v in needed):
            ahead.append(op)
        elif op.name in SCALAR_OPS:
            behind.append(op)
            tainted.update(op.results)
        else:
            return None, behind
    return ahead, behind


class _Writer:
    def __init__(self, op: Op, ahead: list[Op], behind: list[Op]):
        self.op, self.ahead, self.behind = op, ahead, behind
        self.body = op.regions[0]
        self.region = Region()
        self.b = Builder(self.region, op.loc)

    def write(self) -> list[Op] | None:
        """None where the loop needs more of an iteration than numbers."""
        made = {v for op in self.ahead for v in op.results}
        needed = [v for op in self.behind for v in op.operands] + self.body.yielded
        passed = [v for v in dict.fromkeys(needed) if v in made and constant(v) is None]
        if not passed or not all(isinstance(v.type, Scalar) for v in passed):
            return None
        op, b = self.op, self.b
        inits = op.operands[1 : 1 + op.attrs["carries"]]
        kept: Env = {
            a: init for a, init, v in zip(self.body.args[1:], inits, self.body.yielded, strict=True) if a is v
        }
        count = op.operands[0] if _is_count(op.operands[0]) else b.scalar("maximum", op.operands[0], b.i64(0))
        saved = b.par([count], ["map"] * len(passed), lambda b, k: self.computed(b, k, passed, kept))

        def step(b: Builder, k: Value, *carried: Value) -> list[Value]:
            env: Env = {self.body.args[0]: k, **dict(zip(self.body.args[1:], carried, strict=True))}
            env.update((v, b.read(array, k)) for v, array in zip(passed, saved, strict=True))
            for each in [*(each for each in self.ahead if each.name == "const"), *self.behind]:
                b.region.ops.append(copy_op(each, env))
            return [env.get(v, v) for v in self.body.yielded]

        b.for_(op.operands[0], inits, step)
        return self.region.ops

    def computed(self, b: Builder, k: Value, passed: list[Value], kept: Env) -> list[Value]:
        env: Env = {self.body.args[0]: k, **kept}
        b.region.ops += [copy_op(op, env) for op in self.ahead]
        return [env[v] for v in passed]


def _is_count(value: Value) -> bool:
    """Whether a number of iterations is known not to be negative."""
    op = value.op
    return op is not None and (op.name == "dim" or (op.name == "const" and op.attrs["value"] >= 0))
