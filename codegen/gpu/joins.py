"""Joining the accumulators of threads: values of two sets of iterations become those of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.codegen.par import Reduction
from aotdiff.codegen.values import llvm_type

from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter

ROOMS = 8  # accumulators a thread has in shared memory at once: with copies of arrays there, 48 kB at most


def groups(reductions: list[Reduction]) -> list[list[Reduction]]:
    """Reductions one tree joins at once: at most `ROOMS` accumulators each."""
    groups: list[list[Reduction]] = [[]]
    for r in reductions:
        if sum(other.width for other in groups[-1]) + r.width > ROOMS:
            groups.append([])
        groups[-1].append(r)
    return groups


def elements(reduction: Reduction) -> list[Scalar]:
    return [reduction.type, Scalar("i64")] if reduction.width == 2 else [reduction.type]


def join(fe: FunctionEmitter, reductions: list[Reduction], mine: list[str], theirs: list[str]) -> list[str]:
    """Accumulators of two sets of iterations, none of them in both."""
    found: list[str] = []
    for r in reductions:
        at = len(found)
        if r.width == 1:
            found += r.join(fe, [mine[at]], theirs[at], "")
        else:
            found += _join_index(fe, r, (mine[at], mine[at + 1]), (theirs[at], theirs[at + 1]))
    return found


def _join_index(fe: FunctionEmitter, r: Reduction, mine: tuple[str, str], theirs: tuple[str, str]) -> list[str]:
    """The better one; the earlier one where neither is; none at all (index -1) never wins."""
    (a, i), (b, j) = mine, theirs
    better, worse = r.beats(fe, b, a), r.beats(fe, a, b)
    earlier = fe.op(f"icmp ult i64 {j}, {i}")  # -1 is the last of all
    tied = fe.op(f"xor i1 {worse}, true")
    take = fe.op(f"or i1 {better}, {fe.op(f'and i1 {tied}, {earlier}')}")
    real = fe.op(f"icmp sge i64 {j}, 0")
    none = fe.op(f"icmp slt i64 {i}, 0")
    take = fe.op(f"and i1 {real}, {fe.op(f'or i1 {none}, {take}')}")
    t = llvm_type(r.type)
    return [fe.op(f"select i1 {take}, {t} {b}, {t} {a}"), fe.op(f"select i1 {take}, i64 {j}, i64 {i}")]
