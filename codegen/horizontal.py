"""Reductions over the lanes of a vector, joined with the accumulators of the iterations before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen.par import Reduction
from aotdiff.codegen.values import llvm_type

from aotdiff.ir.types import Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.function import FunctionEmitter


def horizontal(fe: FunctionEmitter, kind: str, type_: Scalar, vector: str, lanes: int, start: str) -> str:
    """A reduction over lanes, joined with `start`."""
    t, v = llvm_type(type_), f"<{lanes} x {llvm_type(type_)}>"
    suffix = f"v{lanes}{'i1' if t == 'i1' else type_.kind}"
    if type_.is_float and kind in ("sum", "prod"):
        name = f"@llvm.vector.reduce.{'fadd' if kind == 'sum' else 'fmul'}.{suffix}"
        fe.module.declare(f"declare {t} {name}({t}, {v})")
        return fe.op(f"call {fe.module.reduction_flags}{t} {name}({t} {start}, {v} {vector})")
    if type_.is_float:
        short = "fmaximum" if kind == "max" else "fminimum"
    else:
        short = {"sum": "add", "prod": "mul", "max": "smax", "min": "smin", "any": "or", "all": "and"}[kind]
    name = f"@llvm.vector.reduce.{short}.{suffix}"
    fe.module.declare(f"declare {t} {name}({v})")
    reduced = fe.op(f"call {t} {name}({v} {vector})")
    return Reduction(kind, type_).join(fe, [start], reduced, "0")[0]


def horizontal_index(
    fe: FunctionEmitter, r: Reduction, vectors: Sequence[str], lanes: int, start: Sequence[str]
) -> list[str]:
    """An arg-reduction over lanes, joined with `start`: the better value wins, among equals the lower index."""
    best, at = start
    t = llvm_type(r.type)
    value, index = _winner(fe, r, vectors, lanes)
    single = Reduction(r.kind, r.type)
    strictly = single.beats(fe, value, best)
    worse = single.beats(fe, best, value)
    tie = fe.op(f"and i1 {fe.op(f'icmp slt i64 {index}, {at}')}, {fe.op(f'xor i1 {worse}, true')}")
    better = fe.op(f"or i1 {fe.op(f'or i1 {strictly}, {tie}')}, {fe.op(f'icmp slt i64 {at}, 0')}")
    take = fe.op(f"and i1 {better}, {fe.op(f'icmp sge i64 {index}, 0')}")
    return [
        fe.op(f"select i1 {take}, {t} {value}, {t} {best}"),
        fe.op(f"select i1 {take}, i64 {index}, i64 {at}"),
    ]


def _winner(fe: FunctionEmitter, r: Reduction, vectors: Sequence[str], lanes: int) -> tuple[str, str]:
    """The best value of the lanes and the lowest index that has it, -1 if none; NaN is the best of all."""
    best, at = vectors
    t, v, mask, ints = llvm_type(r.type), f"<{lanes} x {llvm_type(r.type)}>", f"<{lanes} x i1>", f"<{lanes} x i64>"
    up = r.kind == "argmax"
    name = ("fmax" if up else "fmin") if r.type.is_float else ("smax" if up else "smin")
    value = _reduced(fe, name, r.type.kind, t, v, lanes, best)
    one, zero = fe.splat(value, r.type.kind, lanes), "zeroinitializer"
    if r.type.is_float:
        wins = fe.op(f"fcmp oeq {v} {best}, {one}")
        nans = fe.op(f"fcmp uno {v} {best}, {zero}")
        some = _reduced(fe, "or", "i1", "i1", mask, lanes, nans)
        wins = fe.op(f"select i1 {some}, {mask} {nans}, {mask} {wins}")
        value = fe.op(f"select i1 {some}, {t} {fe.literal(float('nan'), r.type)}, {t} {value}")
    else:
        wins = fe.op(f"icmp eq {v} {best}, {one}")
    # -1, no iteration at all, is the largest unsigned number
    found = fe.op(f"select {mask} {wins}, {ints} {at}, {ints} splat (i64 -1)")
    return value, _reduced(fe, "umin", "i64", "i64", ints, lanes, found)


def _reduced(fe: FunctionEmitter, name: str, kind: str, t: str, v: str, lanes: int, vector: str) -> str:
    full = f"@llvm.vector.reduce.{name}.v{lanes}{kind}"
    fe.module.declare(f"declare {t} {full}({v})")
    return fe.op(f"call {t} {full}({v} {vector})")
