"""Calls that stay calls: recursion, functions too large to inline, users' rules."""

from __future__ import annotations

import numpy as np
import pytest

from aotdiff.ad.reverse import use_records, vjp_func
from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Func, Module, Value
from aotdiff.ir.interpreter import Counter, run
from aotdiff.ir.types import F64, I64, Array
from aotdiff.ir.verifier import verify
from tests.ad.reference import check_orders, float_params, random_cts

VECTOR = Array(F64, (None,))


def recursive(module: Module, name: str, params: list, results: list, body) -> Func:
    """`body(b, call, *params)` may call itself by `call(b, args)`."""
    stub = module.add(Func(name, new_func(name, params, lambda b, *a: []).body, results, {"recursive": True}))

    def call(b: Builder, args: list[Value]) -> list[Value]:
        return b.call(stub, args)

    stub.body = new_func(name, params, lambda b, *args: body(b, call, *args)).body
    return stub


def power_program(n: int = 5) -> tuple[Module, Func, list]:
    """x ** n."""
    module = Module()

    def body(b: Builder, call, x: Value, n: Value) -> list[Value]:
        return b.if_(b.scalar("eq", n, b.i64(0)), lambda b: [b.const(1.0)],
                     lambda b: [b.mul(x, call(b, [x, b.sub(n, b.i64(1))])[0])])

    return module, recursive(module, "r", [("x", F64), ("n", I64)], [F64], body), [2.0, n]


def tree_program() -> tuple[Module, Func, list]:
    """An array that is only read: its adjoint travels as a handle."""
    module = Module()

    def body(b: Builder, call, a: Value, lo: Value, hi: Value) -> list[Value]:
        def leaf(b: Builder) -> list[Value]:
            return [b.scalar("sin", b.read(a, lo))]

        def split(b: Builder) -> list[Value]:
            mid = b.scalar("floordiv", b.add(lo, hi), b.i64(2))
            ends = b.par([b.i64(2)], ["map"], lambda b, i: [b.select(b.scalar("eq", i, b.i64(0)), lo, mid)])[0]

            def half(b: Builder, i: Value) -> list[Value]:
                start = b.read(ends, i)
                return call(b, [a, start, b.select(b.scalar("eq", i, b.i64(0)), mid, hi)])

            (halves,) = b.par([b.i64(2)], ["map"], half)
            return [b.add(b.mul(b.read(halves, b.i64(0)), b.read(halves, b.i64(1))), b.read(a, mid))]

        return b.if_(b.scalar("le", b.sub(hi, lo), b.i64(1)), leaf, split)

    tree = recursive(module, "tree", [("a", VECTOR), ("lo", I64), ("hi", I64)], [F64], body)
    f = module.add(new_func("f", [("a", VECTOR)], lambda b, a: b.call(tree, [a, b.i64(0), b.dim(a, 0)])))
    return module, f, [np.array([0.3, -0.7, 1.1, 0.4, 0.9])]


def walk_program(n: int = 3) -> tuple[Module, Func, list]:
    """An array that is updated on the way: its adjoint travels by value."""
    module = Module()

    def body(b: Builder, call, a: Value, k: Value) -> list[Value]:
        def step(b: Builder) -> list[Value]:
            v = b.read(a, k)
            new = b.update(a, b.mul(v, b.scalar("sin", b.read(a, b.i64(0)))), k)
            return call(b, [new, b.add(k, b.i64(1))])

        return b.if_(b.scalar("ge", k, b.dim(a, 0)), lambda b: [a], step)

    walk = recursive(module, "walk", [("a", VECTOR), ("k", I64)], [VECTOR], body)

    def entry(b: Builder, x: Value, a: Value) -> list[Value]:
        return b.call(walk, [b.update(a, x, b.i64(1)), b.i64(0)])

    return module, module.add(new_func("f", [("x", F64), ("a", VECTOR)], entry)), [0.6, np.linspace(0.3, 1.1, n)]


def test_power() -> None:
    """S18: x ** n by recursion, n = 5, x = 2: 32, 80, 160."""
    module, f, _ = power_program()
    first = vjp_func(module, f, (0,), True)
    assert run(module, first.name, [2.0, 5, 1.0]) == [32.0, 80.0]
    second = vjp_func(module, vjp_func(module, f, (0,), False), (0,), False)
    assert run(module, second.name, [2.0, 5, 1.0, 1.0]) == [160.0]
    third = vjp_func(module, second, (0,), False)
    assert run(module, third.name, [2.0, 5, 1.0, 1.0, 1.0]) == [240.0]


@pytest.mark.parametrize("program", [tree_program, walk_program])
def test_recursion_over_arrays(program) -> None:
    check_orders(*program(), 3)


def test_calls_in_loops() -> None:
    """Calls that are never inlined, inside `par` and `for`, also of functions that take handles (second order)."""
    module = Module()

    def inner(b: Builder, a: Value, x: Value, i: Value) -> list[Value]:
        j = b.scalar("mod", b.add(i, b.i64(1)), b.dim(a, 0))
        return [b.mul(b.read(a, i), b.scalar("sin", b.mul(x, b.read(a, j)))), b.scalar("exp", b.mul(x, b.const(0.1)))]

    g = module.add(new_func("g", [("a", VECTOR), ("x", F64), ("i", I64)], inner, attrs={"inline": "never"}))

    def body(b: Builder, x: Value, a: Value) -> list[Value]:
        n = b.dim(a, 0)
        total, m = b.par([n], ["sum", "map"], lambda b, i: b.call(g, [a, x, i]))

        def step(b: Builder, k: Value, t: Value, c: Value) -> list[Value]:
            u, v = b.call(g, [c, t, k])
            return [b.add(t, u), b.update(c, v, k)]

        t, c = b.for_(n, [total, m], step)
        return [t, c]

    f = module.add(new_func("f", [("x", F64), ("a", VECTOR)], body))
    check_orders(module, f, [0.6, np.array([0.3, -0.7, 1.1])], 3)


def ruled(kind: str) -> Module:
    """`g(x, n, y) = x * y ** n` with a rule that is 10 times too large, so that its use shows."""
    module = Module()
    params = [("x", F64), ("n", I64), ("y", F64)]

    def value(b: Builder, x: Value, n: Value, y: Value) -> list[Value]:
        return [b.mul(x, b.scalar("ipow", y, n))]

    def partials(b: Builder, x: Value, n: Value, y: Value) -> tuple[Value, Value]:
        power = b.scalar("ipow", y, n)
        slope = b.mul(b.mul(x, b.cast(n, F64)), b.scalar("ipow", y, b.sub(n, b.i64(1))))
        return b.mul(b.const(10.0), power), b.mul(b.const(10.0), slope)

    def pullback(b: Builder, x: Value, n: Value, y: Value, c: Value) -> list[Value]:
        return [b.mul(c, p) for p in partials(b, x, n, y)]

    def pushforward(b: Builder, x: Value, n: Value, y: Value, dx: Value, dy: Value) -> list[Value]:
        px, py = partials(b, x, n, y)
        return [b.add(b.mul(px, dx), b.mul(py, dy))]

    extra = [("c", F64)] if kind == "vjp" else [("dx", F64), ("dy", F64)]
    module.add(new_func("rule", params + extra, pullback if kind == "vjp" else pushforward))
    module.add(new_func("g", params, value, attrs={kind: "rule"}))
    return module


@pytest.mark.parametrize("kind", ["vjp", "jvp"])
def test_rule(kind: str) -> None:
    module = ruled(kind)

    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        return [b.for_(b.i64(2), [x], lambda b, k, t: b.call(module.funcs["g"], [t, b.i64(2), y]))[0]]

    f = module.add(new_func("f", [("x", F64), ("y", F64)], body))
    first = vjp_func(module, f, (0, 1), True)
    # x y^2 y^2: d/dx = (10 y^2)^2; d/dy = 10 * 2 x y^3 + 10 * 2 x y * 10 y^2
    assert run(module, first.name, [3.0, 2.0, 1.0]) == [48.0, 1600.0, 480.0 + 4800.0]
    # The rule is what is differentiated again, exactly: c * 10 * y^n.
    g = vjp_func(module, module.funcs["g"], (0, 2), False)
    assert run(module, g.name, [3.0, 2, 2.0, 1.0]) == [40.0, 120.0]
    second = vjp_func(module, g, (0, 2, 3), False)
    assert run(module, second.name, [3.0, 2, 2.0, 1.0, 1.0, 0.0]) == [0.0, 40.0, 40.0]


def with_records(module: Module) -> Module:
    """What is left to do when no more derivatives are taken."""
    use_records(module)
    verify(module)
    return module


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("program", [power_program, tree_program, walk_program])
def test_records(program, order: int) -> None:
    """Reverse functions with residual records give what those that run the function again give."""
    module, f, args = program()
    for k in range(order):
        rng = np.random.default_rng(k)
        args = [*args, *random_cts(rng, module, f, args)]
        f = vjp_func(module, f, float_params(f), False)
    expected = run(module, f.name, args)
    found = run(with_records(module), f.name, args)
    assert module.records
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)


@pytest.mark.parametrize("program", [power_program, walk_program])
def test_records_are_linear(program) -> None:
    """Depth of recursion 10 and 20: twice the operations, not four times."""
    steps = []
    for size in (10, 20):
        module, f, args = program(size)
        args = [*args, *random_cts(np.random.default_rng(0), module, f, args)]
        f = vjp_func(module, f, float_params(f), False)
        counter = Counter()
        run(with_records(module), f.name, args, counter=counter)
        steps.append(counter.steps)
    assert steps[1] < 2.2 * steps[0], steps
