"""Structured operations against the interpreter at O0 and O3; storage, in-place updates, errors."""

from __future__ import annotations

import ctypes
import math
import threading
import time

import numpy as np
import pytest
from aotdiff.codegen import Context, Options, emit_llvm
from native import Compiled, NativeError, check, same, shapes_of

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Func, Loc, Module, Region, Value
from aotdiff.ir.interpreter import run
from aotdiff.ir.types import BOOL, F32, F64, I64, Acc, Array, Record

VECTOR, MATRIX, INTS = Array(F64, (None,)), Array(F64, (None, None)), Array(I64, (None,))


def module_of(*funcs: Func) -> Module:
    module = Module()
    for f in funcs:
        module.add(f)
    return module


def single(params, body, loc=None) -> Module:
    return module_of(new_func("f", params, body, loc))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# par -------------------------------------------------------------------------------------------------------


def test_maps_and_reductions_of_rank_two() -> None:
    def body(b, m):
        n, k = b.dims(m)
        return b.par(
            [n, k],
            ["map", "sum", "prod", "max", "min", "argmax", "argmin", "any", "all"],
            lambda b, i, j: [
                b.mul(b.read(m, i, j), b.cast(i, F64)),
                *[b.read(m, i, j)] * 6,
                b.scalar("gt", b.read(m, i, j), b.const(1.0)),
                b.scalar("gt", b.read(m, i, j), b.const(-9.0)),
            ],
        )

    module = single([("m", MATRIX)], body)
    for shape in ((3, 5), (1, 1), (0, 4), (4, 0), (17, 33)):
        check(module, "f", rng().normal(size=shape), rtol=1e-12)
    check(module, "f", np.array([[1.0, math.nan], [5.0, math.nan]]))
    check(module, "f", np.array([[2.0, 2.0], [2.0, -0.0]]))


def test_reductions_of_f32_and_i64() -> None:
    def body(b, x, y):
        first = b.par([b.dim(x, 0)], ["sum", "max", "argmin"], lambda b, i: [b.read(x, i)] * 3)
        return [*first, *b.par([b.dim(y, 0)], ["sum", "prod", "max", "min", "argmax"], lambda b, i: [b.read(y, i)] * 5)]

    module = single([("x", Array(F32, (None,))), ("y", INTS)], body)
    check(module, "f", np.arange(5, dtype=np.float32) - 2, np.array([3, 1, 3, 2]))
    check(module, "f", np.zeros(0, np.float32), np.zeros(0, np.int64))


def test_array_valued_map_is_built_in_place() -> None:
    def body(b, m):
        n, k = b.dims(m)
        return b.par(
            [n], ["map"], lambda b, i: b.par([k], ["map"], lambda b, j: [b.scalar("exp", b.read(m, i, j))]), inner=[k]
        )

    module = single([("m", MATRIX)], body)
    check(module, "f", rng().normal(size=(4, 3)))
    assert "aot.alloc" not in emit_llvm(module, ["f"])


def test_array_valued_map_of_changed_and_shared_arrays() -> None:
    """The yielded array is also used, updated, and yielded twice."""

    def row(b, x, i):
        fresh = b.par([b.dim(x, 0)], ["map"], lambda b, j: [b.add(b.read(x, j), b.cast(i, F64))])[0]
        changed = b.update(fresh, b.const(7.0), b.i64(0))
        return [changed, fresh, changed, b.read(fresh, b.i64(0))]

    def body(b, x):
        n = b.dim(x, 0)
        return b.par([n], ["map"] * 4, lambda b, i: row(b, x, i), inner=[n, n, n])

    check(single([("x", VECTOR)], body), "f", rng().normal(size=4))


def test_negative_extents_are_empty() -> None:
    """The emitter treats them as 0; the interpreter refuses them."""
    module = single([("n", I64)], lambda b, n: b.par([n], ["sum", "map"], lambda b, i: [b.cast(i, F64)] * 2))
    compiled = Compiled(module)
    total, array = compiled.call("f", [-3], [(), (0,)])
    assert total == 0.0 and array.shape == (0,)


# if ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(None,), (4,), (100,)])
def test_branches_of_owned_borrowed_and_undefined_arrays(dims) -> None:
    def body(b, c, x):
        n = b.dim(x, 0)
        double = b.par([n], ["map"], lambda b, i: [b.add(b.read(x, i), b.read(x, i))])[0]
        one = b.if_(
            c, lambda b: [b.update(double, b.const(1.0), b.i64(0)), double, x], lambda b: [double, x, b.undef(x.type)]
        )
        safe = b.if_(c, lambda b: [b.read(one[2], b.i64(1))], lambda b: [b.const(0.0)])
        two = b.if_(c, lambda b: [x], lambda b: b.par([n], ["map"], lambda b, i: [b.const(3.0)]))
        three = b.update(two[0], b.const(9.0), b.i64(2))
        return [one[0], one[1], safe[0], two[0], three]

    module = single([("c", BOOL), ("x", Array(F64, dims))], body)
    x = rng().normal(size=dims[0] or 6)
    for c in (True, False):
        check(module, "f", c, x)


def test_branch_sizes_differ() -> None:
    def body(b, c, x, n):
        fresh = lambda b, k: b.par([k], ["map"], lambda b, i: [b.cast(i, F64)])  # noqa: E731
        (y,) = b.if_(c, lambda b: fresh(b, n), lambda b: [x])
        return [b.dim(y, 0), *b.par([b.dim(y, 0)], ["sum"], lambda b, i: [b.read(y, i)])]

    module = single([("c", BOOL), ("x", VECTOR), ("n", I64)], body)
    check(module, "f", True, rng().normal(size=5), 9)
    check(module, "f", False, rng().normal(size=5), 9)


def test_branch_results_depend_on_inner_temporaries() -> None:
    """A merged reference to a temporary of one side must not outlive it."""

    def body(b, c, d, x):
        n = b.dim(x, 0)

        def then(b):
            t = b.par([n], ["map"], lambda b, i: [b.scalar("neg", b.read(x, i))])[0]
            u = b.par([n], ["map"], lambda b, i: [b.scalar("exp", b.read(x, i))])[0]
            (r,) = b.if_(d, lambda b: [t], lambda b: [u])
            return [r, b.add(b.read(t, b.i64(0)), b.read(u, b.i64(0)))]

        y, s = b.if_(c, then, lambda b: [x, b.const(0.0)])
        z = b.update(y, b.const(5.0), b.i64(1))
        return [y, z, s]

    module = single([("c", BOOL), ("d", BOOL), ("x", VECTOR)], body)
    for c in (True, False):
        for d in (True, False):
            check(module, "f", c, d, rng().normal(size=3))


# Loops ---------------------------------------------------------------------------------------------------------


def test_for_with_all_kinds_of_carries_and_maps() -> None:
    def body(b, x, n):
        def step(b, k, s, a, c, small):
            kf = b.cast(k, F64)
            grown = b.par([b.add(k, b.i64(1))], ["map"], lambda b, i: [b.add(kf, b.cast(i, F64))])[0]
            a2 = b.update(a, kf, b.scalar("mod", k, b.dim(a, 0)))
            small2 = b.par([b.i64(3)], ["map"], lambda b, i: [b.mul(b.read(small, i), b.const(0.5))])[0]
            return [b.add(s, kf), a2, grown, small2, b.mul(s, s), grown, small2]

        small = b.par([b.i64(3)], ["map"], lambda b, i: [b.cast(i, F64)])[0]
        return b.for_(n, [b.const(0.0), x, x, small], step, ["map", "cat", "map"], [b.i64(3)])

    def loosen(module):
        return module

    module = loosen(single([("x", VECTOR), ("n", I64)], body))
    for n in (0, 1, 7):
        check(module, "f", rng().normal(size=4), n)


def test_swapped_and_shared_carries() -> None:
    for type_, size in ((VECTOR, 5), (Array(F64, (3,)), 3), (Array(F64, (90,)), 90)):

        def body(b, x, y, n):
            def step(b, k, p, q, r):
                return [q, p, b.update(p, b.cast(k, F64), b.i64(1))]

            def same_twice(b, k, p, q):
                new = b.update(p, b.cast(k, F64), b.i64(0))
                return [new, new]

            def previous(b, k, p, q):
                return [b.update(p, b.read(q, b.i64(0)), b.scalar("mod", k, b.i64(3))), p]

            return [*b.for_(n, [x, y, x], step), *b.for_(n, [x, y], same_twice), *b.for_(n, [x, y], previous)]

        module = single([("x", type_), ("y", type_), ("n", I64)], body)
        for n in (0, 1, 2, 5):
            check(module, "f", rng().normal(size=size), rng(1).normal(size=size), n)


def test_while_with_growing_maps() -> None:
    def body(b, x, limit):
        n = b.dim(x, 0)
        return b.while_(
            [x, b.const(1.0)],
            lambda b, k, a, s: [b.scalar("lt", s, limit)],
            lambda b, k, a, s: [
                b.update(a, s, b.scalar("mod", k, n)),
                b.mul(s, b.const(1.5)),
                s,
                a,
                b.par([k], ["map"], lambda b, i: [b.cast(i, F64)])[0],
            ],
            ["map", "map", "cat"],
            [n],
        )

    module = single([("x", VECTOR), ("limit", F64)], body)
    for limit in (0.0, 1.2, 1e6):
        check(module, "f", rng().normal(size=3), limit)


def test_carry_replaced_by_captured_array() -> None:
    def body(b, x, y, n):
        (a,) = b.for_(
            n,
            [x],
            lambda b, k, a: b.if_(
                b.scalar("eq", b.scalar("mod", k, b.i64(2)), b.i64(0)),
                lambda b: [y],
                lambda b: [b.update(a, b.cast(k, F64), b.i64(0))],
            ),
        )
        return [a, b.update(a, b.const(-1.0), b.i64(1))]

    module = single([("x", VECTOR), ("y", VECTOR), ("n", I64)], body)
    for n in range(5):
        check(module, "f", rng().normal(size=3), rng(2).normal(size=3), n)


# Accumulators ----------------------------------------------------------------------------------------------------


def test_accumulators_through_everything() -> None:
    module = Module()

    def scatter_body(b, h, s, x, i):
        b.accum(h, b.read(x, i), b.scalar("mod", i, b.i64(3)))
        b.accum(s, b.const(1.0))
        return [b.mul(b.read(x, i), b.const(2.0))]

    scatter = module.add(
        new_func("scatter", [("h", Acc(F64, (None,))), ("s", Acc(F64, ())), ("x", VECTOR), ("i", I64)], scatter_body)
    )

    def body(b, x, y):
        def inside(b, h, s):
            def each(b, i):
                (v,) = b.call(scatter, [h, s, x, i])
                b.if_(b.scalar("gt", v, b.const(0.0)), lambda b: (b.accum(h, v, b.i64(2)), [])[1], lambda b: [])
                return [v]

            return [*b.par([b.dim(x, 0)], ["sum"], each), y]

        return [*b.withacc([y, b.const(10.0)], inside), y]

    module.add(new_func("f", [("x", VECTOR), ("y", VECTOR)], body))
    check(module, "f", rng().normal(size=7), rng(1).normal(size=3))


# Records ---------------------------------------------------------------------------------------------------------


def _record_module() -> Module:
    module = Module()
    inner, outer = Record("inner"), Record("outer")
    module.records = {
        "inner": (F64, VECTOR, Array(F64, (2,))),
        "outer": (inner, Array(inner, (None,)), BOOL, I64),
    }

    def make(b: Builder, fields, record: Record) -> Value:
        return b.emit("record_make", fields, [record], {"record": record.name}).result

    def unpack(b: Builder, record: Value) -> list[Value]:
        assert isinstance(record.type, Record)
        return b.emit("record_unpack", [record], list(module.records[record.type.name])).results

    def an_inner(b, x, s):
        pair = b.par([b.i64(2)], ["map"], lambda b, i: [b.add(s, b.cast(i, F64))])[0]
        doubled = b.par([b.dim(x, 0)], ["map"], lambda b, i: [b.mul(b.read(x, i), s)])[0]
        return make(b, [s, doubled, pair], inner)

    def forward(b, x, n):
        many = b.par([n], ["map"], lambda b, i: [an_inner(b, x, b.cast(i, F64))])[0]
        return [make(b, [an_inner(b, x, b.const(3.0)), many, b.true(), n], outer)]

    f = module.add(new_func("forward", [("x", VECTOR), ("n", I64)], forward))

    def use(b, r):
        one, many, flag, n = unpack(b, r)
        s, a, p = unpack(b, one)
        total = b.for_(b.dim(many, 0), [s], lambda b, k, t: [b.add(t, b.read(unpack(b, b.read(many, k))[1], b.i64(0)))])
        changed = b.update(a, b.const(1.0), b.i64(0))
        return [total[0], a, changed, p, flag, n]

    g = module.add(new_func("use", [("r", outer)], use))

    def main(b, x, n, c):
        (r,) = b.call(f, [x, n])
        (r2,) = b.if_(c, lambda b: [r], lambda b: b.call(f, [x, b.i64(1)]))
        (last,) = b.for_(n, [r2], lambda b, k, r: b.call(f, [x, b.add(k, b.i64(1))]))
        first = b.call(g, [last])
        return [*first, *b.call(g, [r2]), *b.call(g, [r])]

    module.add(new_func("main", [("x", VECTOR), ("n", I64), ("c", BOOL)], main))
    return module


def test_records() -> None:
    module = _record_module()
    for c in (True, False):
        for n in (0, 2, 5):
            check(module, "main", rng().normal(size=3), n, c)


# Calls and recursion -----------------------------------------------------------------------------------------------


def _recursive(name: str, params, results, body) -> Module:
    """A function that calls itself: `body(b, recur, *args)`."""
    region = Region([Value(t, n) for n, t in params])
    func = Func(name, region, results, {"recursive": True}, Loc("deep.grad", 3, 1))
    module = module_of(func)
    builder = Builder(region)
    builder.ret(body(builder, lambda b, args: b.call(func, args), *region.args))
    return module


def test_recursion_in_place() -> None:
    """fn g(a, i) = if i == 0 { a } else { g(update(a, i), i - 1) }: one buffer, ten thousand frames."""

    def body(b, recur, a, i):
        return b.if_(
            b.scalar("eq", i, b.i64(0)),
            lambda b: [a],
            lambda b: recur(b, [b.update(a, b.cast(i, F64), b.scalar("mod", i, b.dim(a, 0))), b.sub(i, b.i64(1))]),
        )

    module = _recursive("g", [("a", VECTOR), ("i", I64)], [VECTOR], body)
    check(module, "g", np.zeros(4), 50)
    compiled = Compiled(module)
    start = time.perf_counter()
    (out,) = compiled.call("g", [np.zeros(100_000), 10_000], [(100_000,)])
    assert out[10_000] == 10_000.0 and out[1] == 1.0
    assert time.perf_counter() - start < 0.5
    assert compiled.context.total < 4_000_000


def test_recursion_that_updates_and_returns_a_scalar() -> None:
    def body(b, recur, a, i):
        def more(b):
            a2 = b.update(a, b.cast(i, F64), b.scalar("mod", i, b.dim(a, 0)))
            return [b.add(recur(b, [a2, b.sub(i, b.i64(1))])[0], b.const(1.0))]

        return b.if_(
            b.scalar("eq", i, b.i64(0)), lambda b: b.par([b.dim(a, 0)], ["sum"], lambda b, j: [b.read(a, j)]), more
        )

    module = _recursive("g", [("a", VECTOR), ("i", I64)], [F64], body)
    check(module, "g", np.zeros(4), 50)
    compiled = Compiled(module)
    start = time.perf_counter()
    compiled.call("g", [np.zeros(100_000), 10_000], [()])
    assert time.perf_counter() - start < 0.5


def test_recursion_too_deep_is_an_error() -> None:
    module = _recursive("g", [("x", F64)], [F64], lambda b, recur, x: [b.add(recur(b, [b.add(x, b.const(1.0))])[0], x)])
    compiled = Compiled(module, options=Options(opt=0))
    for _ in range(2):
        with pytest.raises(NativeError, match="deep.grad:3: recursion too deep in `g`") as caught:
            compiled.call("g", [1.0], [()])
        assert caught.value.kind == "RecursionError" and caught.value.line == 3

    def in_thread() -> None:
        with pytest.raises(NativeError):
            compiled.call("g", [1.0], [()])

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()


def test_results_that_are_parameters() -> None:
    module = Module()
    both = module.add(new_func("both", [("x", VECTOR), ("y", VECTOR)], lambda b, x, y: [y, x, x]))
    module.add(
        new_func("f", [("x", VECTOR), ("y", VECTOR)], lambda b, x, y: [*b.call(both, [x, y]), *b.call(both, [x, x])])
    )
    check(module, "f", rng().normal(size=3), rng(1).normal(size=3))


# Arrays ------------------------------------------------------------------------------------------------------------


def test_insert_reshape_argsort() -> None:
    def body(b, m, block, x):
        n, k = b.dims(m)
        put = b.insert(m, block, b.i64(1), b.i64(0))
        flat = b.reshape(put, [b.mul(n, k)])
        order = b.argsort(x)
        return [put, m, flat, b.update(flat, b.const(0.0), b.i64(0)), order, b.argsort(flat)]

    module = single([("m", MATRIX), ("block", MATRIX), ("x", VECTOR)], body)
    x = np.array([3.0, math.nan, -1.0, 3.0, -0.0, 0.0, math.inf, math.nan, -math.inf])
    check(module, "f", rng().normal(size=(4, 3)), rng(1).normal(size=(2, 2)), x)
    check(module, "f", rng().normal(size=(2, 3)), np.zeros((0, 0)), np.zeros(0))
    check(single([("x", INTS)], lambda b, x: [b.argsort(x)]), "f", rng().integers(-5, 5, 100))
    check(single([("x", VECTOR)], lambda b, x: [b.argsort(x)]), "f", rng().integers(-5, 5, 1000) * 1.0)


# Cost ----------------------------------------------------------------------------------------------------------------


def _seconds(module: Module, args, shapes, name: str = "f") -> tuple[float, Compiled]:
    compiled = Compiled(module, [name])
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        compiled.call(name, args, shapes)
        best = min(best, time.perf_counter() - start)
    return best, compiled


def _inner_if(b, k, a):
    return b.if_(
        b.scalar("eq", b.scalar("mod", k, b.i64(3)), b.i64(0)),
        lambda b: [a],
        lambda b: [b.update(a, b.cast(k, F64), k)],
    )


def _inner_loop(b, k, a):
    return b.for_(b.i64(2), [a], lambda b, j, a: [b.update(a, b.cast(j, F64), k)])


def _inner_acc(b, k, a):
    def inside(b, h):
        b.accum(h, b.const(1.0), k)
        return []

    return b.withacc([b.update(a, b.const(2.0), k)], inside)


def _through_reshape(b, k, a):
    flat = b.reshape(a, [b.dim(a, 0), b.i64(1)])
    return [b.update(a, b.read(flat, k, b.i64(0)), k)]


def _while_inside(b, k, a):
    return b.while_([a], lambda b, j, a: [b.scalar("lt", j, b.i64(1))], lambda b, j, a: _inner_if(b, k, a))[:1]


@pytest.mark.parametrize(
    "step",
    [
        lambda b, k, a: [b.update(a, b.cast(k, F64), k)],
        _inner_if,
        _inner_loop,
        _inner_acc,
        _through_reshape,
        _while_inside,
    ],
)
def test_a_loop_that_writes_one_element_a_step_is_linear(step) -> None:
    module = single([("x", VECTOR)], lambda b, x: b.for_(b.dim(x, 0), [x], step))
    check(module, "f", rng().normal(size=6))
    n = 200_000
    seconds, compiled = _seconds(module, [np.zeros(n)], [(n,)])
    assert seconds < 0.05  # a copy a step would take 10 s
    assert compiled.context.total < 40 * n


def test_loops_do_not_grow_memory() -> None:
    """Fresh carried arrays, temporaries, calls and records in a long loop."""
    module = _record_module()
    f, g = module.funcs["forward"], module.funcs["use"]

    def body(b, x, n):
        def step(b, k, a, s):
            new = b.par([b.dim(a, 0)], ["map"], lambda b, i: [b.mul(b.read(a, i), b.const(0.5))])[0]
            (r,) = b.call(f, [new, b.i64(3)])
            return [new, b.add(s, b.call(g, [r])[0])]

        return b.for_(n, [x, b.const(0.0)], step)

    module.add(new_func("h", [("x", VECTOR), ("n", I64)], body))
    check(module, "h", rng().normal(size=3), 4)
    compiled = Compiled(module, ["h"])
    compiled.call("h", [np.ones(100), 20], [(100,), ()])
    few = compiled.context.total
    compiled.call("h", [np.ones(100), 20_000], [(100,), ()])
    assert compiled.context.total == few


def test_sizes_that_change_do_not_grow_memory() -> None:
    def body(b, n):
        one = b.par([b.i64(1)], ["map"], lambda b, i: [b.const(1.0)])[0]
        flat = b.reshape(one, [b.scalar("minimum", n, b.i64(1))])

        def step(b, k, a):
            size = b.add(b.scalar("mod", k, b.i64(1000)), b.i64(1))
            return b.par([size], ["map"], lambda b, i: [b.read(a, b.i64(0))])

        (a,) = b.for_(n, [flat], step)
        return [b.dim(a, 0), b.read(a, b.i64(0))]

    module = single([("n", I64)], body)
    check(module, "f", 5)
    compiled = Compiled(module)
    compiled.call("f", [100_000], [(), ()])
    assert compiled.context.total < 1_000_000


# Errors ---------------------------------------------------------------------------------------------------------------


def test_check_formats_its_message() -> None:
    def body(b, i, x, y):
        b.check(b.scalar("lt", i, b.i64(10)), "IndexError", "100% wrong: {0} of {1}, {2}, {{0}}", i, x, y)
        return [x]

    module = single([("i", I64), ("x", F64), ("y", F32)], body, Loc("a b.grad", 12, 3))
    compiled = Compiled(module)
    assert compiled.call("f", [3, 1.5, 0.0], [()]) == [1.5]
    with pytest.raises(NativeError) as caught:
        compiled.call("f", [11, 1.5, 0.25], [()])
    assert str(caught.value) == "a b.grad:12: 100% wrong: 11 of 1.5, 0.25, {11}"
    assert (caught.value.kind, caught.value.line) == ("IndexError", 12)


@pytest.mark.parametrize("kind", ["IndexError", "ValueError", "ZeroDivisionError", "AssertionFailed", "RecursionError"])
def test_check_kinds_in_called_functions_and_loops(kind: str) -> None:
    module = Module()

    def inner(b, i):
        b.check(b.scalar("lt", i, b.i64(5)), kind, "too much")
        return [i]

    g = module.add(new_func("g", [("i", I64)], inner, Loc("p.grad", 4, 1)))

    def body(b, n):
        return b.for_(n, [b.i64(0)], lambda b, k, s: b.par([b.i64(2)], ["sum"], lambda b, i: b.call(g, [b.add(k, i)])))

    module.add(new_func("f", [("n", I64)], body, Loc("p.grad", 9, 1)))
    for level in (0, 3):
        compiled = Compiled(module, ["f"], Options(opt=level))
        assert compiled.call("f", [2], [()]) == [3]
        with pytest.raises(NativeError, match="p.grad:4: too much") as caught:
            compiled.call("f", [8], [()])
        assert caught.value.kind == kind
        assert compiled.call("f", [2], [()]) == [3]


def test_out_of_memory_is_an_error() -> None:
    def body(b, n, m):
        a = b.par([n, m], ["map"], lambda b, i, j: [b.cast(b.add(i, j), F64)])[0]
        c = b.update(a, b.const(1.0), b.i64(0), b.i64(0))
        return [b.read(c, b.i64(0), b.i64(0)), b.read(a, b.i64(0), b.i64(1))]

    module = single([("n", I64), ("m", I64)], body, Loc("m.grad", 2, 1))
    compiled = Compiled(module, options=Options(opt=0))
    for n, m in ((1 << 40, 4), (1 << 62, 1 << 62), (1 << 61, 1), (1 << 44, 1 << 20)):
        with pytest.raises(NativeError, match="m.grad:2: out of memory") as caught:
            compiled.call("f", [n, m], [(), ()])
        assert caught.value.kind == "MemoryError"
    assert compiled.call("f", [3, 4], [(), ()]) == [1.0, 1.0]


def test_wrong_result_sizes_are_refused() -> None:
    module = single([("x", VECTOR)], lambda b, x: b.par([b.dim(x, 0)], ["map"], lambda b, i: [b.read(x, i)]))
    compiled = Compiled(module)
    with pytest.raises(NativeError, match=r"an array of sizes \[3\] where \[2\] was expected") as caught:
        compiled.call("f", [np.ones(3)], [(2,)])
    assert caught.value.kind == "ValueError"


def test_interrupt() -> None:
    def body(b, x):
        return b.while_([x], lambda b, k, s: [b.scalar("ge", s, b.const(0.0))], lambda b, k, s: [b.scalar("abs", s)])[
            :1
        ]

    module = single([("x", F64)], body, Loc("w.grad", 5, 1))
    compiled = Compiled(module)
    flag = ctypes.c_int32(0)
    compiled.context.interrupt = ctypes.addressof(flag)
    timer = threading.Timer(0.1, lambda: setattr(flag, "value", 1))
    timer.start()
    with pytest.raises(NativeError) as caught:
        compiled.call("f", [1.0], [()])
    assert caught.value.kind == "KeyboardInterrupt"


def test_context_is_kept_small_between_calls() -> None:
    module = single([("x", VECTOR)], lambda b, x: [b.read(b.update(x, b.const(2.0), b.i64(0)), b.i64(0))])
    compiled = Compiled(module)
    assert isinstance(compiled.context, Context)
    compiled.context.keep = 1 << 20
    for n in (10, 1000, 100_000, 1_000_000, 10):
        assert compiled.call("f", [np.ones(n)], [()]) == [2.0]
        assert compiled.context.total <= 1 << 20
    compiled.free()
    assert compiled.context.chunks is None


def test_text_is_the_same_every_time() -> None:
    assert emit_llvm(_record_module(), ["main"]) == emit_llvm(_record_module(), ["main"])


def test_parameters_are_never_written() -> None:
    module = single(
        [("x", VECTOR)], lambda b, x: b.for_(b.dim(x, 0), [x], lambda b, k, a: [b.update(a, b.const(0.0), k)])
    )
    x = rng().normal(size=5)
    before = x.copy()
    out = Compiled(module).call("f", [x], [(5,)])
    same(out, [np.zeros(5)])
    np.testing.assert_array_equal(x, before)
    assert shapes_of(out) == [(5,)] and run(module, "f", [x])[0].shape == (5,)


def test_branch_that_may_give_an_array_from_outside() -> None:
    """The array outlives its own last use as long as the result of the branch lives, also inside a later region."""

    def weigh(b: Builder, array: Value, init: Value) -> list[Value]:
        def each(b: Builder, i: Value) -> list[Value]:
            return [b.mul(b.read(array, i), b.read(array, i))]

        def body(b: Builder, h: Value) -> list[Value]:
            (squares,) = b.par([b.dim(array, 0)], ["map"], each)

            def add(b: Builder, i: Value) -> list[Value]:
                b.accum(h, b.mul(b.read(squares, i), b.read(array, i)), i)
                return []

            b.par([b.dim(array, 0)], [], add)
            return []

        return b.withacc([init], body)

    def body(b: Builder, x: Value, a: Value) -> list[Value]:
        u = b.update(a, x, b.i64(0))
        positive = b.scalar("gt", x, b.const(0.0))
        (r,) = b.if_(positive, lambda b: [b.update(u, b.add(x, x), b.i64(1))], lambda b: [u])
        zeros = b.fill(b.const(0.0), [b.dim(a, 0)])
        return weigh(b, u, zeros) + weigh(b, r, zeros)

    module = single([("x", F64), ("a", VECTOR)], body)
    for x in (1.5, -1.5):
        check(module, "f", x, np.array([0.1, 0.2, 0.3]))


def test_recursion_does_not_need_the_threads_stack() -> None:
    """Sixty thousand frames from a thread with a quarter of a megabyte; release gives our stack back."""

    def body(b, recur, x, i):
        def more(b):
            parts = b.par([b.i64(8)], ["map"], lambda b, j: [b.mul(x, b.cast(j, F64))])[0]
            inner = recur(b, [b.mul(x, b.const(0.5)), b.sub(i, b.i64(1))])[0]
            return [b.add(inner, b.read(parts, b.scalar("mod", i, b.i64(8))))]

        return b.if_(b.scalar("eq", i, b.i64(0)), lambda b: [x], more)

    module = _recursive("g", [("x", F64), ("i", I64)], [F64], body)
    check(module, "g", 1.5, 20)
    compiled, found = Compiled(module), []
    size = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: found.extend(compiled.call("g", [1.0, 60_000], [()])))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    same(found, compiled.call("g", [1.0, 60_000], [()]))
    assert len(found) == 1
    assert compiled.context.stack is not None
    compiled.free()
    assert compiled.context.stack is None
