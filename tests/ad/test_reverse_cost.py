"""A step that costs O(1) stays one in reverse, at every order, whatever construct the update sits in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aotdiff.ad.reverse import vjp_func
from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Func, Module, Value
from aotdiff.ir.interpreter import Counter, run
from aotdiff.ir.types import F64, I64, Array, dims_of
from aotdiff.ir.verifier import verify
from tests.ad.reference import float_params, pairing, random_cts, random_like, slope

Step = Callable[[Builder, Value, Value, Value], Value]


def in_loop(step: Step) -> Func:
    """`for k in 0..n { a = step(a, x, k) }; a`."""

    def body(b: Builder, x: Value, a: Value) -> list[Value]:
        n = b.dim(a, 0)
        return b.for_(n, [a], lambda b, k, a: [step(b, a, x, k)])

    return new_func("f", [("x", F64), ("a", Array(F64, (None,)))], body)


def new_value(b: Builder, a: Value, x: Value, k: Value) -> Value:
    old = b.read(a, k)
    return b.scalar("sin", b.add(b.mul(old, old), b.mul(x, b.read(a, b.i64(0)))))


def plain(b: Builder, a: Value, x: Value, k: Value) -> Value:
    return b.update(a, new_value(b, a, x, k), k)


def in_branch(b: Builder, a: Value, x: Value, k: Value) -> Value:
    odd = b.scalar("eq", b.scalar("mod", k, b.i64(2)), b.i64(1))
    return b.if_(odd, lambda b: [plain(b, a, x, k)], lambda b: [a])[0]


def in_inner_loop(b: Builder, a: Value, x: Value, k: Value) -> Value:
    return b.for_(b.scalar("mod", k, b.i64(3)), [a], lambda b, j, a: [plain(b, a, x, k)])[0]


def in_inner_while(b: Builder, a: Value, x: Value, k: Value) -> Value:
    def cond(b: Builder, j: Value, a: Value) -> list[Value]:
        return [b.scalar("lt", j, b.scalar("mod", k, b.i64(3)))]

    return b.while_([a], cond, lambda b, j, a: [plain(b, a, x, k)])[0]


def accumulated(b: Builder, a: Value, x: Value, k: Value) -> Value:
    def body(b: Builder, h: Value) -> list[Value]:
        b.accum(h, new_value(b, a, x, k), k)
        return []

    return b.withacc([a], body)[0]


def scattered(b: Builder, a: Value, x: Value, k: Value) -> Value:
    """Accumulates into the array it reads, from a short `par`."""

    def body(b: Builder, h: Value) -> list[Value]:
        def each(b: Builder, i: Value) -> list[Value]:
            at = b.scalar("mod", b.add(k, i), b.dim(a, 0))
            b.accum(h, new_value(b, a, x, at), at)
            return []

        b.par([b.i64(2)], [], each)
        return []

    return b.withacc([a], body)[0]


def short_par(b: Builder, a: Value, x: Value, k: Value) -> Value:
    """Reads a few elements in a `par` before it updates."""

    def term(b: Builder, i: Value) -> list[Value]:
        return [b.scalar("sin", b.read(a, b.scalar("mod", b.add(k, i), b.dim(a, 0))))]

    total = b.par([b.i64(2)], ["sum"], term)[0]
    return b.update(a, b.mul(total, x), k)


def block(b: Builder, a: Value, x: Value, k: Value) -> Value:
    value = new_value(b, a, x, k)
    return b.insert(a, b.par([b.i64(1)], ["map"], lambda b, i: [b.mul(value, x)])[0], k)


STEPS = [plain, in_branch, in_inner_loop, in_inner_while, accumulated, scattered, short_par, block]


def arguments(n: int) -> list:
    return [0.3, np.linspace(-0.5, 0.6, n)]


def array_maps(func: Func) -> list[str]:
    """Loops that keep whole arrays."""
    return [
        op.name for op in func.body.walk() for r in op.results
        if op.name in ("for", "while") and r.index >= op.attrs["carries"] and dims_of(r.type)[1:].count(None)
    ]


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.__name__)
def test_linear(step: Step) -> None:
    module = Module()
    func = module.add(in_loop(step))
    rng = np.random.default_rng(1)
    sizes = (16, 32)
    args = [arguments(n) for n in sizes]
    for order in range(1, 4):
        verify(module)
        small = args[0]
        cts = [random_cts(rng, module, func, a) for a in args]
        reverse = vjp_func(module, func, float_params(func), False)
        verify(module)
        direction = {k: random_like(rng, a) for k, a in enumerate(small)}
        expected, error = slope(module, func, small, cts[0], direction)
        found = pairing(run(module, reverse.name, small + cts[0]), direction.values())
        assert found == pytest.approx(expected, rel=1e-4, abs=20 * error)
        args = [a + c for a, c in zip(args, cts, strict=True)]
        steps = []
        for a in args:
            counter = Counter()
            run(module, reverse.name, a, counter=counter)
            steps.append(counter.steps)
        assert steps[1] < 2.3 * steps[0], f"order {order}: {steps}"
        assert not array_maps(reverse)
        func = reverse


def test_pair_loop_keeps_nothing_per_pair() -> None:
    """S23: a loop over pairs of points with a cell each: what is kept is of the size of the points."""
    module = Module()

    def body(b: Builder, x: Value, cell: Value) -> list[Value]:
        n = b.dim(x, 0)

        def pair(b: Builder, i: Value, j: Value, total: Value) -> list[Value]:
            def near(b: Builder) -> list[Value]:
                d = b.sub(b.read(x, i), b.read(x, j))
                return [b.add(total, b.scalar("exp", b.neg(b.mul(d, d))))]

            same = b.scalar("eq", b.read(cell, i), b.read(cell, j))
            return b.if_(same, near, lambda b: [total])

        return b.for_(n, [b.const(0.0)], lambda b, i, t: b.for_(n, [t], lambda b, j, t: pair(b, i, j, t)))

    func = module.add(new_func("f", [("x", Array(F64, (None,))), ("cell", Array(I64, (None,)))], body))
    reverse = vjp_func(module, func, (0,), False)
    verify(module)
    loops = [op for op in reverse.body.walk() if op.name == "for"]
    assert loops and not any(op.attrs["kinds"] for op in loops)


def test_what_is_made_element_by_element_is_made_again() -> None:
    """Of the stages of a step only what they start from is kept, branches on the index or not."""

    def stage(b: Builder, n: Value, x: Value, y: Value) -> Value:
        def element(b: Builder, i: Value) -> list[Value]:
            first = b.scalar("eq", i, b.i64(0))
            before = lambda b: [b.mul(b.read(x, i), b.read(y, b.sub(i, b.i64(1))))]  # noqa: E731
            return b.if_(first, lambda b: [b.read(x, i)], before)

        return b.par([n], ["map"], element)[0]

    def body(b: Builder, x: Value, steps: Value) -> list[Value]:
        n = b.dim(x, 0)

        def step(b: Builder, k: Value, y: Value) -> list[Value]:
            one = stage(b, n, x, y)
            two = stage(b, n, x, one)
            return b.par([n], ["map"], lambda b, i: [b.add(b.read(one, i), b.read(two, i))])

        last = b.for_(steps, [x], step)[0]
        return b.par([n], ["sum"], lambda b, i: [b.mul(b.read(last, i), b.read(last, i))])

    module = Module()
    func = module.add(new_func("f", [("x", Array(F64, (None,))), ("steps", I64)], body))
    verify(module)
    reverse = vjp_func(module, func, [0], False)
    verify(module)
    assert array_maps(reverse) == ["for"]
