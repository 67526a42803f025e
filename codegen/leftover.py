"""What whole strips leave over: strips in which not all lanes are active.

`padded`: idle lanes are in the last vector only, and all before it are whole from iteration 0 on, so that idle lanes
have slots, too, in an array that is a block of the workspace (see `strip`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.codegen.lanes import MANY
from aotdiff.codegen.par import Level

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter
    from aotdiff.codegen.strip import Body


def emit(body: Body, main: str, vectors: list[str], state: list[str]) -> list[str]:
    """The iterations from `main` on, behind strips that gave `vectors`; gives the accumulators."""
    several = body.plan.several
    if several == 1 or (several == MANY and body.nest.reductions):
        return body.joined(_rest(body, main, vectors, several == 1), state)
    state = body.joined(vectors, state)
    if several in (2, MANY):
        return _few_or_many(body, main, state)
    body = body.narrow(1)
    return body.joined(rests(body, main, True), state)


def rests(body: Body, main: str, padded: bool) -> list[str]:
    """In strips of which the last has idle lanes."""
    fe, extent = body.fe, body.nest.span(-1)[1]
    level = Level(fe, extent, body.starts(), body.lanes, main)
    active = first_lanes(fe, fe.op(f"sub i64 {extent}, {level.index}"), body.lanes)
    level.close(fe, body.strip(level.index, level.accumulators, [active], padded=padded))
    return level.accumulators


def _rest(body: Body, main: str, state: list[str], padded: bool) -> list[str]:
    """Fewer iterations than lanes, in one strip."""
    fe = body.fe
    rest, done, before = fe.label("rest"), fe.label("whole"), fe.block_name
    left = fe.op(f"sub i64 {body.nest.span(-1)[1]}, {main}")
    fe.branch(fe.op(f"icmp sgt i64 {left}, 0"), rest, done)
    fe.start(rest)
    last = body.strip(main, state, [first_lanes(fe, left, body.lanes)], padded=padded)
    after = fe.block_name
    fe.jump(done)
    fe.start(done)
    types = [t for t, _ in body.starts()]
    return [fe.phi(t, (a, before), (b, after)) for t, a, b in zip(types, state, last, strict=True)]


def _few_or_many(body: Body, main: str, state: list[str]) -> list[str]:
    """In one strip of no more vectors than that takes, or up to twice as many.

    Rows are often shorter than a strip, and several vectors at once wait no longer than one.
    """
    fe, end = body.fe, body.fe.label("end")
    left = fe.op(f"sub i64 {body.nest.span(-1)[1]}, {main}")
    ways: list[tuple[list[str], str]] = []
    vectors = 1
    while True:
        part = body.narrow(vectors)
        more = fe.label("more") if vectors < body.plan.several else ""
        if more:
            few = fe.label("few")
            fe.branch(fe.op(f"icmp sle i64 {left}, {part.lanes}"), few, more)
            fe.start(few)
        starts = [start for _, start in part.starts()]
        # Idle lanes of a strip of four or more vectors may be more than those of the last one.
        found = part.joined(_rest(part, main, starts, vectors <= 2), state)
        ways.append((found, fe.block_name))
        fe.jump(end)
        if not more:
            break
        fe.start(more)
        vectors *= 2
    fe.start(end)
    types = [t for r, _ in body.nest.reductions for t, _ in r.starts(fe)]
    return [fe.phi(t, *((found[n], block) for found, block in ways)) for n, t in enumerate(types)]


def first_lanes(fe: FunctionEmitter, count: str, lanes: int) -> str:
    """The mask of the first `count` lanes."""
    numbers = "<" + ", ".join(f"i64 {n}" for n in range(lanes)) + ">"
    return fe.op(f"icmp slt <{lanes} x i64> {numbers}, {fe.splat(count, 'i64', lanes)}")
