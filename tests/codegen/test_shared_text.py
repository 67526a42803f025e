"""What is written once in a module and called, and which loops LLVM unrolls: LLVM has less to compile."""

from __future__ import annotations

from pathlib import Path

import pytest
from aotdiff.codegen import driver

import aotdiff as ad

GMM = Path(__file__).parents[1] / "benchmarks" / "programs" / "gmm.grad"


def text_of(module: ad.Module, root: str, places: list[tuple[str, tuple[int, ...]]] | None = None) -> str:
    compiler = module._compiler
    graph, name = compiler.optimized(root, places or [], "f64")
    return driver.emit_llvm(graph, [name], compiler.codegen_options())


def test_an_error_is_written_by_one_function() -> None:
    module = ad.compile_source("fn f(x: f64[n], i: i64, j: i64) -> f64 = x[i] * x[j] + x[i + j]", threads=1)
    text = text_of(module, "f")
    assert text.count("call i32 (ptr, i64, ptr, ...) @snprintf(") == 1
    assert text.count("call void @aot.fail.i64.i64(") == 3


@pytest.mark.parametrize("kind", ["turn.f64", "turn_back.f64"])
def test_rows_are_turned_by_one_function_for_each_width(kind: str) -> None:
    text = text_of(ad.compile(GMM, threads=1), "gmm", [("vjp", (0, 1, 2, 3))])
    names = [line.split("@")[1].split("(")[0] for line in text.splitlines() if f"call void @aot.{kind}." in line]
    assert names or " x double>" not in text
    for name in names:
        assert text.count(f"define internal void @{name}(") == 1


def test_what_pieces_have_accumulated_is_added_by_one_function() -> None:
    module = ad.compile_source(
        "fn g(x: f64[n], k: i64[n], y: f64[n]) -> f64 = sum(exp(x[k[i]]) * y[k[i]] for i in 0..n)\n"
        "fn f(x: f64[n], k: i64[n], y: f64[n]) -> (f64[n], f64[n]) = grad(g, wrt = (x, y))(x, k, y)",
        threads=0,
    )
    text = text_of(module, "f")
    assert text.count("define internal void @aot.add.f64(") == 1
    assert text.count("call void @aot.add.f64(") == 2


@pytest.mark.parametrize(("columns", "unrolled"), [(3, 1), (20, 1), (300, 0)])
def test_short_loops_of_known_length_are_unrolled(columns: int, unrolled: int) -> None:
    module = ad.compile_source(f"fn f(x: f64[n, {columns}]) -> f64[n, {columns}] = 2.0 * x", threads=1)
    assert text_of(module, "f").count("!llvm.loop !5") == unrolled


PRODUCTS = """
fn f(x: f64[n, m], y: f64[n, m], t: i64) -> (f64[m, m], f64[m, m]) {
    var z = [sum(x[k, i] * y[k, j] for k in 0..n) for i in 0..m, j in 0..m]
    for s in 0..t { z = [sum(x[k, j] * y[k, i] for k in 0..n) for i in 0..m, j in 0..m] @ z }
    (z, [sum(y[k, j] * x[k, i] for k in 0..n) for i in 0..m, j in 0..m])
}
"""


def test_products_of_matrices_share_code_in_loops_and_in_either_order() -> None:
    text = text_of(ad.compile_source(PRODUCTS, threads=0), "f")
    products = [line for line in text.splitlines() if "define internal i32 @aot.r." in line and "%low1" in line]
    assert not products or len(products) == 2  # of columns by columns, and `@`
