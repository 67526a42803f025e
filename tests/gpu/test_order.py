"""The order of operations in threads, as text, and what the machine code gains."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aotdiff.codegen.gpu import nvptx
from aotdiff.codegen.gpu.order import order

import aotdiff as ad
from aotdiff.ir.parser import parse_module
from aotdiff.ir.printer import print_func
from aotdiff.ir.verifier import verify
from aotdiff.runtime.gpu.stages import plan_text

BEFORE = """func @f(%x: f64[?], %i: i64[?], %n: i64, %t: f64) -> (f64[?], f64) {
  %0 = const 0 : i64
  %1 = const 1 : i64
  %2 = read %i, %0 : i64
  %3 = read %x, %2 : f64
  %4 = read %x, %0 : f64
  %5 = read %x, %1 : f64
  %6 = add %t, %4 : f64
  %7 = mul %6, %5 : f64
  %8 = sin %t : f64
  %9 = cos %7 : f64
  %10 = add %7, %9 : f64
  %11 = update %x, %10, %0 : f64[?]
  %12 = mul %8, %3 : f64
  %13 = mul %12, %12 : f64
  %14 = exp %t : f64
  %15 = add %12, %14 : f64
  %16 = add %13, %t : f64
  %17 = add %16, %15 : f64
  yield %11, %17
}
"""
AFTER = """func @f(%x: f64[?], %i: i64[?], %n: i64, %t: f64) -> (f64[?], f64) {
  %0 = sin %t : f64
  %1 = const 0 : i64
  %2 = const 1 : i64
  %3 = read %x, %1 : f64
  %4 = add %t, %3 : f64
  %5 = read %x, %2 : f64
  %6 = mul %4, %5 : f64
  %7 = cos %6 : f64
  %8 = add %6, %7 : f64
  %9 = read %i, %1 : i64
  %10 = read %x, %9 : f64
  %11 = update %x, %8, %1 : f64[?]
  %12 = mul %0, %10 : f64
  %13 = mul %12, %12 : f64
  %14 = add %13, %t : f64
  %15 = exp %t : f64
  %16 = add %12, %15 : f64
  %17 = add %14, %16 : f64
  yield %11, %17
}
"""


def test_reads_late_branches_and_sums_early() -> None:
    """A read stays before the update that may take the array's place; %16 replaces %13 before %14 is there."""
    module = parse_module(BEFORE)
    order(module.funcs["f"].body)
    verify(module)
    assert print_func(module.funcs["f"]).rstrip() == AFTER.rstrip()
    order(module.funcs["f"].body)
    assert print_func(module.funcs["f"]).rstrip() == AFTER.rstrip()


def ptx(text: str, **options: Any) -> str:
    f = ad.compile_source(text, target="cuda", **options).f
    compiler, root, places = f.recipe()
    return nvptx.emit_ptx(plan_text(compiler, root, places, "f64", nvptx.NvptxTarget())[1], None, "sm_80")


@pytest.mark.parametrize("arrays", [2, 8])
def test_iterations_hand_on_no_pointers(arrays: int) -> None:
    """From one iteration to the next goes its number, however many arrays there are."""
    names = [f"x{k}" for k in range(arrays)]
    params, total = ", ".join(f"{x}: f64[n]" for x in names), " + ".join(f"{x}[i]" for x in names)
    text = ptx(f"fn f({params}) -> f64[n] = [{total} for i in 0..n]")
    loop = text[text.index("ld.global.nc.b64") : text.rindex("bra")]
    assert len(set(re.findall(r"add\.s64 \t(%rd\d+), \1,", loop))) == 1


def test_integers_are_read_whole() -> None:
    text = ptx("fn f(x: f64[n], at: i64[m]) -> f64[m] = [x[j] for j in at]")
    assert "ld.global.nc.b64" in text and "nc.b32" not in text
