"""Strips of iterations in vector lanes: every construct inside, every number of iterations left over."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from aotdiff.codegen import Options, emit_llvm, lanes
from native import Compiled, NativeError, check, same, shapes_of

from aotdiff.ir.builder import new_func
from aotdiff.ir.graph import Loc, Module
from aotdiff.ir.interpreter import ExecutionError
from aotdiff.ir.interpreter import run as interpret
from aotdiff.ir.types import BOOL, F32, F64, I64, Array
from tests.ad.programs import Generator as Programs
from tests.passes.generator import Generator as Graphs

SEVERAL = lanes._several
VECTOR, MATRIX, INTS = Array(F64, (None,)), Array(F64, (None, None)), Array(I64, (None,))


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips wherever they are possible."""
    monkeypatch.setattr(lanes._Cost, "both", lambda self, region: (1.0, 0.0))
    monkeypatch.setattr(lanes, "_worth_a_look", lambda op: True)
    monkeypatch.setattr(lanes, "_several", lambda *_: 2)


def single(params, body, loc=None) -> Module:
    module = Module()
    module.add(new_func("f", params, body, loc))
    return module


def agree(module: Module, *args, rtol: float = 1e-12) -> None:
    check(module, "f", *args, rtol=rtol, atol=1e-14, levels=(3,))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_strips_are_made() -> None:
    module = single([("x", VECTOR)], lambda b, x: b.par([b.dim(x, 0)], ["sum"], lambda b, i: [b.read(x, i)]))
    assert "x double>" in emit_llvm(module, ["f"])
    assert "x double>" not in emit_llvm(module, ["f"], Options(strips=False))


@pytest.mark.parametrize("n", [0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 40])
def test_maps_and_reductions_of_any_size(n: int) -> None:
    def body(b, x, k, f):
        def each(b, i):
            v, j, g = b.read(x, i), b.read(k, i), b.read(f, i)
            big = b.scalar("gt", v, b.const(0.0))
            odd = b.scalar("eq", b.scalar("mod", j, b.i64(2)), b.i64(1))
            return [
                b.scalar("exp", v),
                b.add(j, i),
                b.mul(g, b.const(2.0, F32)),
                big,
                v,
                v,
                v,
                v,
                v,
                v,
                j,
                j,
                j,
                j,
                j,
                g,
                big,
                odd,
            ]

        kinds = ["map"] * 4 + [
            "sum",
            "prod",
            "max",
            "min",
            "argmax",
            "argmin",
            "sum",
            "prod",
            "max",
            "argmin",
            "argmax",
        ]
        return b.par([b.dim(x, 0)], [*kinds, "sum", "any", "all"], each)

    module = single([("x", VECTOR), ("k", INTS), ("f", Array(F32, (None,)))], body)
    x = rng(n).normal(size=n)
    f = np.round(rng(n + 1).normal(size=n) * 4).astype(np.float32)
    agree(module, x, rng(n).integers(-3, 4, n), f)
    if n > 2:
        x[n // 2 :] = math.nan
        agree(module, x, rng(n).integers(-3, 4, n), f)


def test_first_winner_across_lanes() -> None:
    module = single(
        [("x", VECTOR)], lambda b, x: b.par([b.dim(x, 0)], ["argmax", "argmin"], lambda b, i: [b.read(x, i)] * 2)
    )
    for values in (
        [2.0] * 20,
        [1, 5, 5, 1] * 6,
        [0.0, -0.0] * 9,
        [-math.inf] * 10,
        [math.nan] * 10,
        [*range(20), math.nan, 3],
    ):
        agree(module, np.array(values, float))


@pytest.mark.parametrize("n", [1, 5, 8, 21])
def test_branches_and_masked_reads(n: int) -> None:
    """The side not taken reads out of range; sides have loops, divisions and inner branches."""

    def body(b, x, m):
        size = b.dim(x, 0)

        def each(b, i):
            following = b.add(i, b.i64(1))
            inside = b.scalar("lt", following, size)

            def then(b):
                total = b.par([b.dim(m, 1)], ["sum"], lambda b, j: [b.read(m, following, j)])[0]
                (far,) = b.if_(
                    b.scalar("gt", b.read(x, following), b.const(0.0)),
                    lambda b: [
                        b.read(x, b.scalar("floordiv", b.i64(10), b.add(i, b.i64(1)))) if n > 10 else b.const(5.0)
                    ],
                    lambda b: [b.scalar("log", b.read(x, i))],
                )
                return [b.read(x, following), b.add(total, far), following]

            u, v, k = b.if_(inside, then, lambda b: [b.const(-1.0), b.const(0.0), b.scalar("neg", i)])
            return [u, v, k, u]

        return b.par([size], ["map", "map", "map", "sum"], each)

    agree(single([("x", VECTOR), ("m", MATRIX)], body), rng(n).normal(size=n), rng(n + 1).normal(size=(n, 3)))


@pytest.mark.parametrize("n", [0, 2, 8, 19])
def test_loops_and_local_arrays(n: int) -> None:
    def body(b, x, m):
        d = b.dim(m, 1)

        def each(b, i):
            row = b.par([d], ["map"], lambda b, j: [b.mul(b.read(m, i, j), b.read(x, i))])[0]
            same_row = b.par([d], ["map"], lambda b, j: [b.cast(j, F64)])[0]

            def step(b, k, s, a, u, small):
                at = b.scalar("mod", b.cast(b.mul(s, b.const(3.0)), I64), d)
                at = b.scalar("mod", b.add(at, d), d)
                a2 = b.update(a, b.add(b.read(a, k), s), at)
                u2 = b.update(u, b.cast(k, F64), k)
                return [b.scalar("sin", b.add(s, b.read(a2, k))), a2, u2, b.insert(small, a2, b.i64(0)), s, k, a2]

            start = b.read(x, i)
            s, a, u, small, history, ks, cat = b.for_(d, [start, row, same_row, same_row], step, ["map", "map", "cat"])[
                :7
            ]
            best = b.par([d], ["argmax", "max"], lambda b, j: [b.read(a, j)] * 2)
            total = b.par([b.dim(cat, 0)], ["sum"], lambda b, j: [b.read(cat, j)])[0]
            return [
                s,
                a,
                u,
                small,
                b.read(history, b.i64(0)),
                b.read(ks, b.i64(1)),
                total,
                *best,
                b.reshape(a, [d, b.i64(1)]),
            ]

        kinds = ["sum", "map", "map", "map", "map", "sum", "map", "map", "map", "map"]
        return b.par([b.dim(x, 0)], kinds, each, inner=[d, d, d, d, b.i64(1)])

    agree(single([("x", VECTOR), ("m", MATRIX)], body), rng(n).normal(size=n), rng(n + 1).normal(size=(n, 4)))


@pytest.mark.parametrize("n", [0, 1, 9, 35])
def test_rows_that_are_read_over_and_over(n: int) -> None:
    """Nearest centre: each iteration reads its row once per centre; also in f32, as a matrix, and from the inside."""

    def body(b, points, f, cube, centres):
        k, d = b.dims(centres)

        def distance(b, i, j):
            def term(b, q):
                away = b.sub(b.read(points, i, q), b.read(centres, j, q))
                wide = b.cast(b.mul(b.read(f, i, q), b.read(f, i, b.i64(0))), F64)
                return [b.add(b.mul(away, away), wide)]

            (flat,) = b.par([d], ["sum"], term)
            (deep,) = b.par([d, b.dim(cube, 2)], ["sum"], lambda b, q, r: [b.read(cube, i, q, r)])
            return [b.add(flat, deep)]

        def each(b, i):
            return b.par([k], ["min", "argmin"], lambda b, j: distance(b, i, j) * 2)

        return b.par([b.dim(points, 0)], ["sum", "map"], each)

    types = [("points", MATRIX), ("f", Array(F32, (None, None))), ("cube", Array(F64, (None, None, None)))]
    module = single([*types, ("centres", MATRIX)], body)
    points, cube = rng(n).normal(size=(n, 4)), rng(n + 2).normal(size=(n, 4, 2))
    agree(module, points, rng(1).normal(size=(n, 4)).astype(np.float32), cube, rng().normal(size=(3, 4)))
    plan = lanes.plan_of(next(op for op in module.funcs["f"].body.ops if op.name == "par"), 8)
    assert plan is not None and [array.name for array, _ in plan.rows] == ["points", "f", "cube"]


@pytest.mark.parametrize("n", [0, 3, 16, 21])
def test_accumulators(n: int) -> None:
    def body(b, x, k, y):
        def outer(b, at_index, at_gather, at_one, scalar, counts):
            def each(b, i):
                v, j = b.read(x, i), b.read(k, i)
                b.accum(at_index, v, i)
                b.accum(at_gather, v, j)
                b.accum(at_one, v, b.i64(1))
                b.accum(scalar, b.const(0.5))
                b.accum(counts, b.i64(1), j)

                def local(b, h, same_h):
                    b.par([b.i64(3)], [], lambda b, q: (b.accum(h, b.mul(v, b.cast(q, F64)), q), [])[1])
                    b.accum(h, v, j)
                    b.accum(same_h, b.const(2.0), b.i64(0))
                    b.if_(
                        b.scalar("gt", v, b.const(0.0)),
                        lambda b: (b.accum(at_gather, b.const(1.0), j), b.accum(at_one, v, b.i64(0)), [])[2],
                        lambda b: [],
                    )
                    return []

                h, same_h = b.withacc([y, y], local)
                return [h, same_h]

            return b.par([b.dim(x, 0)], ["map", "map"], each, inner=[b.i64(3), b.i64(3)])

        ints = b.par([b.i64(3)], ["map"], lambda b, i: [b.i64(0)])[0]
        zeros = b.par([b.dim(x, 0)], ["map"], lambda b, i: [b.const(0.0)])[0]
        return b.withacc([zeros, y, y, b.const(1.0), ints], outer)

    module = single([("x", VECTOR), ("k", INTS), ("y", Array(F64, (3,)))], body)
    agree(module, rng(n).normal(size=n), rng(n).integers(0, 3, n), rng().normal(size=3))


def test_rank_two_and_uniform_values() -> None:
    def body(b, m, c):
        n, k = b.dims(m)
        return b.par(
            [n, k],
            ["map", "sum", "argmin", "map"],
            lambda b, i, j: [
                b.add(b.read(m, i, j), b.read(m, b.scalar("mod", j, n), b.i64(0))),
                b.cast(i, F64),
                b.read(m, i, j),
                c,
            ],
        )

    module = single([("m", MATRIX), ("c", BOOL)], body)
    for shape in ((3, 5), (2, 8), (1, 25), (5, 1), (0, 3), (3, 0)):
        agree(module, rng().normal(size=shape), True)


def test_checks_report_the_first_lane() -> None:
    def body(b, x, k):
        def each(b, i):
            j = b.read(k, i)
            b.check(b.scalar("lt", j, b.dim(x, 0)), "IndexError", "index {0} at {1}", j, i)
            return b.if_(b.scalar("ge", j, b.i64(0)), lambda b: inside(b, j), lambda b: [b.const(0.0)])

        def inside(b, j):
            b.check(b.scalar("gt", b.read(x, j), b.const(0.0)), "AssertionFailed", "{0} is not positive", b.read(x, j))
            return [b.scalar("log", b.read(x, j))]

        return b.par([b.dim(k, 0)], ["sum"], each)

    compiled = Compiled(single([("x", VECTOR), ("k", INTS)], body, Loc("c.grad", 7, 1)))
    x = np.array([1.0, 2.0, -3.0])
    for n in (5, 8, 30):
        k = np.arange(n) % 2
        same(compiled.call("f", [x, k], [()]), interpret(compiled.module, "f", [x, k]), rtol=1e-12)
        k[n - 2] = 3
        with pytest.raises(NativeError, match=f"c.grad:7: index 3 at {n - 2}"):
            compiled.call("f", [x, k], [()])
        k[n - 2] = 2
        with pytest.raises(NativeError, match="c.grad:7: -3 is not positive"):
            compiled.call("f", [x, k], [()])
        k[n - 2] = -1
        same(compiled.call("f", [x, k], [()]), interpret(compiled.module, "f", [x, k]), rtol=1e-12)


@pytest.mark.parametrize("seed", range(15))
def test_random_graphs(seed: int) -> None:
    generator = Graphs(seed)
    module, args = generator.program(), generator.arguments()
    try:
        with np.errstate(all="ignore"):
            expected = interpret(module, "f", args)
    except ExecutionError:
        return
    found = Compiled(module, ["f"]).call("f", args, shapes_of(expected))
    for a, e in zip(found, expected, strict=True):
        a, e = np.asarray(a, float), np.asarray(e, float)
        wild = ~np.isfinite(a) | ~np.isfinite(e) | (np.abs(e) > 1e12)
        np.testing.assert_allclose(np.where(wild, 0, a), np.where(wild, 0, e), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", range(10))
def test_random_nests(seed: int) -> None:
    module = Module()
    func = module.add(Programs(seed, depth=3, length=3).func())
    check(
        module,
        func.name,
        0.4,
        rng(seed).normal(size=11),
        rng(seed).normal(size=(9, 10)),
        rtol=1e-9,
        atol=1e-9,
        levels=(3,),
    )


@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 16, 3), (5, 17, 2), (8, 9, 0), (0, 4, 4), (3, 0, 2), (13, 40, 7)])
def test_contractions(sizes: tuple[int, int, int]) -> None:
    """Matrix products with what is fused around them, in batches too, and sums that do not depend on the column."""
    n, k, m = sizes[0], sizes[1], sizes[2]

    def body(b, x, w, u, batch):
        def each(b, i, j):
            bias = b.read(u, j)
            total, row, last = b.par(
                [b.dim(w, 0)],
                ["sum", "sum", "sum"],
                lambda b, q: [
                    b.mul(b.read(x, i, q), b.read(w, q, j)),
                    b.mul(b.read(x, i, q), b.cast(i, F64)),
                    b.read(w, q, j),
                ],
            )
            return [b.scalar("tanh", b.add(total, bias)), row, b.add(last, b.cast(b.add(i, j), F64))]

        plain = list(b.par([b.dim(x, 0), b.dim(w, 1)], ["map", "map", "map"], each))

        def other(b, s, i, j):
            return b.par([b.dim(w, 0)], ["sum"], lambda b, q: [b.mul(b.read(batch, s, i, q), b.read(w, q, j))])

        def transposed(b, i, j):
            return b.par([b.dim(x, 1)], ["sum"], lambda b, q: [b.mul(b.read(x, i, q), b.read(x, j, q))])

        plain += b.par([b.dim(x, 0), b.dim(x, 0)], ["map"], transposed)
        return [*plain, *b.par([b.dim(batch, 0), b.dim(batch, 1), b.dim(w, 1)], ["map"], other)]

    cube = Array(F64, (None, None, None))
    module = single([("x", MATRIX), ("w", MATRIX), ("u", VECTOR), ("batch", cube)], body)
    x, w, batch = rng().normal(size=(n, m)), rng(1).normal(size=(m, k)), rng(2).normal(size=(2, n, m))
    agree(module, x, w, rng(3).normal(size=k), batch)


@pytest.mark.parametrize("n", [0, 1, 2, 8, 9, 17, 40])
def test_branches_that_the_index_decides(n: int) -> None:
    """Strips all on one side, on the other, and on both."""

    def body(b, x, k):
        last = b.sub(b.dim(x, 0), b.i64(1))

        def each(b, i):
            def inside(b):
                left, right = b.read(x, b.sub(i, b.i64(1))), b.read(x, b.add(i, b.i64(1)))
                return [b.add(left, right), b.mul(left, right)]

            edge = b.scalar("or", b.scalar("eq", i, b.i64(0)), b.scalar("eq", i, last))
            first = b.if_(b.scalar("lt", i, k), lambda b: [b.read(x, i)], lambda b: [b.const(2.0)])[0]
            return [first, *b.if_(edge, lambda b: [b.read(x, i), b.const(0.5)], inside)]

        return b.par([b.dim(x, 0)], ["map", "map", "sum"], each)

    module = single([("x", VECTOR), ("k", I64)], body)
    for k in (-1, 0, 5, 8, 16, 100):
        agree(module, rng(n).normal(size=n), k)


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 63, 64, 65, 73, 140])
def test_sums_of_columns_of_any_number(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many vectors at once where they wait for memory; what is left is one vector, or as many again."""
    monkeypatch.setattr(lanes, "_several", lambda *_: lanes.MANY)

    def column(b, x, j):
        return [b.par([b.dim(x, 0)], ["sum"], lambda b, i: [b.read(x, i, j)])[0]]

    module = single([("x", MATRIX)], lambda b, x: b.par([b.dim(x, 1)], ["map"], lambda b, j: column(b, x, j)))
    agree(module, rng().normal(size=(11, columns)))


@pytest.mark.parametrize("several", [1, 2, 4, lanes.MANY])
@pytest.mark.parametrize("n", [1, 8, 9, 14, 31, 70, 125])
def test_idle_lanes_are_stored_in_their_own_block(n: int, several: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a strip of too few iterations stores behind the end of an array leaves the next one alone."""
    monkeypatch.setattr(lanes, "_several", lambda *_: several)

    def body(b, x):
        size = b.dim(x, 0)

        def step(b, k, total):
            def three(b, i):
                v = b.read(x, i)
                return [b.mul(v, b.const(2.0)), b.scalar("exp", v), b.add(v, total)]

            def last(b, i):
                at = b.sub(b.sub(size, b.i64(1)), i)
                return [b.add(b.mul(b.read(made[0], at), b.read(made[1], i)), b.read(made[2], at))]

            made = b.par([size], ["map", "map", "map"], three)
            return b.par([size], ["sum"], last)

        return b.for_(b.i64(3), [b.const(0.5)], step)

    agree(single([("x", VECTOR)], body), rng(n).normal(size=n), rtol=1e-10)


@pytest.mark.parametrize("several", [1, 2])
def test_rows_of_their_own_are_stored_whole(several: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load from what only some lanes have stored would wait for the cache."""
    monkeypatch.setattr(lanes, "_several", lambda *_: several)

    def body(b, x):
        size = b.dim(x, 0)

        def step(b, k, total):
            made = b.par([size], ["map"], lambda b, i: [b.scalar("exp", b.mul(total, b.read(x, i)))])[0]
            return [b.add(total, b.read(made, k))]

        return b.for_(b.i64(3), [b.const(0.5)], step)

    module = single([("x", VECTOR)], body)
    text = emit_llvm(module, ["f"])
    assert "@llvm.masked.load" in text
    assert "@llvm.masked.store" not in text
    agree(module, rng().normal(size=11))


def test_two_vectors_are_left_over_at_once() -> None:
    def body(b, x):
        return b.par([b.dim(x, 0)], ["map"], lambda b, i: [b.scalar("exp", b.read(x, i))])

    text = emit_llvm(single([("x", VECTOR)], body), ["f"])
    widths = set(re.findall(r"@llvm.masked.load.v(\d+)f64", text))
    assert len(widths) == 2


@pytest.mark.parametrize("carried", [True, False])
def test_long_loops_take_two_vectors_where_they_wait_for_each_other(carried: bool) -> None:
    """A step of a trajectory needs the one before, so a second vector fills the time; a term of a sum does not."""

    def body(b, x):
        def step(b, _, v):
            for _ in range(60):
                v = b.mul(v, b.read(x, b.i64(0)))
            return [v]

        def each(b, i):
            if carried:
                return b.for_(b.dim(x, 0), [b.read(x, i)], step)
            return b.par([b.dim(x, 0)], ["sum"], lambda b, j: step(b, j, b.mul(b.read(x, i), b.read(x, j))))

        return b.par([b.dim(x, 0)], ["sum"], each)

    region = single([("x", VECTOR)], body).funcs["f"].body.ops[-2].regions[0]
    assert SEVERAL(region, lanes._Varying(region).varying, False) == (2 if carried else 1)
