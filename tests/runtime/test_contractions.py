"""Products of matrices at sizes on both sides of every block, in all layouts, against numpy."""

import numpy as np
import pytest
from aotdiff.codegen import lanes

import aotdiff as ad
from aotdiff.ir.builder import new_func
from aotdiff.ir.types import F64, Array

TEXT = """
fn nn(A: real[m, k], B: real[k, n]) -> real[m, n] = A @ B
fn tn(A: real[k, m], B: real[k, n]) -> real[m, n] = A.T @ B
fn nt(A: real[m, k], B: real[n, k]) -> real[m, n] = A @ B.T
fn tt(A: real[k, m], B: real[n, k]) -> real[m, n] = A.T @ B.T
fn around(A: real[k, m], B: real[k, n], c: real[n]) -> real[m, n] {
    let scale = [1.0 + i / 1000.0 for i in 0..m]
    [tanh(scale[i] * sum(A[l, i] * B[l, j] * B[l, j] for l in 0..k) + c[j]) for i in 0..m, j in 0..n]
}
"""
# m, k, n: small; rows turned in squares with a rest; copied rows and columns with rests; one block of terms and several
# (the last longer than others, or not), of rows too.
SIZES = [(1, 1, 1), (5, 3, 9), (33, 19, 35), (40, 70, 64), (130, 257, 300), (259, 300, 519), (515, 260, 261)]
SIZES += [(9, 513, 10), (3, 1300, 70), (21, 800, 43), (261, 905, 131), (4, 0, 3), (0, 4, 3)]
SHAPES = {"nn": ((0, 1), (1, 2)), "tn": ((1, 0), (1, 2)), "nt": ((0, 1), (2, 1)), "tt": ((1, 0), (2, 1))}


@pytest.fixture(scope="module")
def module() -> ad.Module:
    return ad.compile_source(TEXT)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("layout", SHAPES)
def test_layouts(module, layout, dtype):
    rng = np.random.default_rng(0)
    for sizes in SIZES:
        a, b = (rng.normal(size=[sizes[d] for d in shape]).astype(dtype) for shape in SHAPES[layout])
        left, right = (a.T if layout[0] == "t" else a), (b.T if layout[1] == "t" else b)
        wanted = left.astype(np.float64) @ right.astype(np.float64)
        found = getattr(module, layout)(a, b)
        assert found.dtype == dtype
        assert np.abs(found - wanted).max(initial=0) <= 40 * np.finfo(dtype).eps * np.sqrt(sizes[1]) * 10, sizes


@pytest.mark.parametrize("threads", [1, 2])
def test_more_than_a_product(module, threads):
    rng = np.random.default_rng(1)
    ad.set_num_threads(threads)
    try:
        for m, k, n in SIZES:
            a, b, c = rng.normal(size=(k, m)), rng.normal(size=(k, n)) / 30, rng.normal(size=n)
            wanted = np.tanh((1 + np.arange(m)[:, None] / 1000) * (a.T @ b**2) + c)
            assert np.allclose(module.around(a, b, c), wanted, rtol=1e-11, atol=1e-13), (m, k, n)
    finally:
        ad.set_num_threads(0)


def test_sums_as_long_as_the_row_says():
    """Rows made at once have as many terms each; where they have not they are made one by one."""
    f = ad.compile_source("fn f(A: f64[n, n], B: f64[n, m]) -> f64[n, m] =\n"
                          "  [sum(A[i, k] * B[k, j] for k in 0..i) for i in 0..n, j in 0..m]").f  # fmt: skip
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(37, 37)), rng.normal(size=(37, 70))
    assert np.allclose(f(a, b), np.tril(a, -1) @ b, rtol=1e-12, atol=1e-12)


BATCH = """
fn nn(A: real[b, m, k], B: real[b, k, n]) -> real[b, m, n] =
    [sum(A[s, i, l] * B[s, l, j] for l in 0..k) for s in 0..b, i in 0..m, j in 0..n]
fn nt(A: real[b, m, k], B: real[b, n, k]) -> real[b, m, n] =
    [sum(A[s, i, l] * B[s, j, l] for l in 0..k) for s in 0..b, i in 0..m, j in 0..n]
fn tn(A: real[b, k, m], B: real[b, k, n]) -> real[b, m, n] =
    [sum(A[s, l, i] * B[s, l, j] for l in 0..k) for s in 0..b, i in 0..m, j in 0..n]
fn one(A: real[b, m, k], B: real[b, n, k], s: i64) -> real[m, n] =
    [sum(A[s, i, l] * B[s, j, l] for l in 0..k) for i in 0..m, j in 0..n]
"""


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("sizes", [(3, 2, 3), (4, 60, 5), (19, 61, 43), (20, 530, 70), (17, 70, 300)])
def test_batches(sizes, dtype):
    """Products of the matrices of two arrays, in each layout; of one matrix of each."""
    module = ad.compile_source(BATCH)
    m, k, n = sizes
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(3, m, k)).astype(dtype), rng.normal(size=(3, k, n)).astype(dtype)
    turned_a, turned_b = (np.ascontiguousarray(x.transpose(0, 2, 1)) for x in (a, b))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    found = [module.nn(a, b), module.nt(a, turned_b), module.tn(turned_a, b)]
    for each, right in [*((f, wanted) for f in found), (module.one(a, turned_b, 1), wanted[1])]:
        assert np.abs(each - right).max() <= 400 * np.finfo(dtype).eps * np.sqrt(k)


def test_gradient_of_large_product(module):
    rng = np.random.default_rng(2)
    a, b, ct = rng.normal(size=(300, 280)), rng.normal(size=(280, 530)), rng.normal(size=(300, 530))
    slope_a, slope_b = module.nn.vjp(wrt=("A", "B"))(a, b, ct)
    assert np.allclose(slope_a, ct @ b.T, rtol=1e-10, atol=1e-10)
    assert np.allclose(slope_b, a.T @ ct, rtol=1e-10, atol=1e-10)


def test_products_of_a_kind_share_their_code():
    """But for where an error is reported, and which sizes are the same."""
    text = "fn f(A: f64[m, k], B: f64[k, n]) -> f64[m, n] =\n  A @ B\n"
    three = "fn f(A: f64[m, k], B: f64[k, n], C: f64[n, n]) -> f64[m, n] =\n  A @ B @\n  C @\n  C\n"
    kernels = []
    for source in (text, three):
        f = ad.compile_source(source, threads=0).f
        compiler, root, places = f.recipe()
        graph, name = compiler.optimized(root, places, "f64")
        kernels.append(compiler.llvm_text(graph, name, None)[0].count("define internal i32 @aot.r."))
    assert kernels == [1, 1]
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=s) for s in ((9, 5), (5, 7), (7, 7)))
    assert np.allclose(f(a, b, c), a @ b @ c @ c, rtol=1e-13)


@pytest.mark.parametrize(("sums", "vectors"), [(1, 4), (2, 2), (3, 1)])
def test_sums_of_a_strip_have_registers(sums, vectors):
    """Four rows of the vectors of all sums are at most sixteen."""

    def body(b, a, c):
        def product(b, i, j):
            def term(b, k):
                return [b.mul(b.read(a, i, k), b.mul(b.read(c, k, j), b.const(2.0 + s))) for s in range(sums)]

            return b.par([b.dim(a, 1)], ["sum"] * sums, term)

        return b.par([b.dim(a, 0), b.dim(c, 1)], ["map"] * sums, product)

    matrix = Array(F64, (None, None))
    func = new_func("f", [("a", matrix), ("c", matrix)], body)
    plan = lanes.plan_of(next(op for op in func.body.ops if op.name == "par"), 8)
    assert plan is not None and plan.several == vectors
