"""Malformed graphs are refused with a message that shows the place."""

import pytest

from aotdiff.ir.parser import parse_module
from aotdiff.ir.verifier import VerificationError, verify

CASES = [
    ("%y = add %x, %n : f64", "operands of different types: f64, i64"),
    ("%y = exp %n : i64", "`exp` does not take i64"),
    ("%y = neg %a : f64[?]", "`neg` works on scalars, found f64[?]"),
    ("%y = lt %x, %x : f64", "result 0 is f64, expected bool"),
    ("%y = add %x : f64", "`add` takes 2 operands, found 1"),
    ("%y = frob %x : f64", "unknown operation `frob`"),
    ("%y = select %x, %x, %x : f64", "the condition of `select` is f64"),
    ("%y = ipow %x, %x : f64", "the exponent of `ipow` is f64"),
    ("%y = const 1.0 : i64", "value 1.0 of a constant of type i64"),
    ("%y = read %a, %n, %n : f64", "2 indices, expected 1"),
    ("%y = read %a, %x : f64", "indices must be i64, found f64"),
    ("%y = update %a, %n, %n : f64[?]", "a value of type i64 for f64[?]"),
    ("%y = dim %a {axis = 1} : i64", "axis 1 of an array of rank 1"),
    ("%y = dim %a : i64", "`dim` lacks attribute ['axis']"),
    ("%y = shaped %a, %n, %n : f64[?, ?]", "2 sizes for f64[?]"),
    ("%y = insert %a, %x, %n : f64[?]", "expected an array, found f64"),
    ("check %x {kind = \"ValueError\", message = \"\"}", "the condition is f64"),
    ("check %c {kind = \"Oops\", message = \"\"}", "unknown kind of error 'Oops'"),
    ("yield", "`yield` ends a region, and nothing else does"),
    ("%y = call @g %x : f64", "function @g does not exist"),
    ("%y = call @f %x : f64", "argument: 1 values, expected 4"),
    ("accum %a, %x, %n", "expected a handle, found f64[?]"),
    ("%y = par %n {kinds = [\"sum\"]} : f64 (%i: i64) {\n yield %c\n}", "reduction 'sum' of bool"),
    ("%y = par %n {kinds = [\"map\"]} : f64[?, ?] (%i: i64) {\n yield %a\n}", "0 inner sizes, expected 1"),
    ("%y = par %n, %n {kinds = [\"map\"]} : f64[?] (%i: i64) {\n yield %a\n}",
     "result 0 is f64[?], expected f64[?, ?]"),
    ("%y = par %n {kinds = [\"median\"]} : f64 (%i: i64) {\n yield %x\n}", "unknown kind 'median'"),
    ("%y = for %n, %x {kinds = []} : f64 (%k: i64, %z: f64) {\n yield %n\n}", "carried value 0 is i64, expected f64"),
    ("%y = for %n, %x {kinds = []} : f64 (%k: i64, %z: i64) {\n yield %x\n}", "loop argument 1 is i64, expected f64"),
    ("%y = if %c : f64 {\n yield %x\n} else {\n yield %n\n}", "value of a side 0 is i64, expected f64"),
    ("%y = withacc %a : f64[?] (%h: acc<f64[?]>) {\n %z = neg %h : f64\n yield\n}",
     "a handle is used by accum and call only, not by `neg`"),
    ("%y = withacc %a : f64[?] (%h: acc<f64[?]>) {\n accum %h, %x\n yield\n}", "0 indices, expected 1"),
    ("%y, %t = while %x {kinds = []} : f64, i64 (%k: i64, %z: f64) {\n yield %z\n}"
     " do (%l: i64, %w: f64) {\n yield %w\n}",
     "condition 0 is f64, expected bool"),
    ("%y = vjp @f %a, %x, %n, %c {value = false, wrt = [1]} : f64", "argument: 4 values, expected 5"),
    ("%y = record_make %x {record = \"r\"} : record<r>", "record r does not exist"),
]


@pytest.mark.parametrize(("line", "message"), CASES)
def test_malformed(line, message):
    module = parse_module(f"func @f(%a: f64[?], %x: f64, %n: i64, %c: bool) -> (f64) {{\n{line}\nyield %x\n}}")
    with pytest.raises(VerificationError) as error:
        verify(module)
    assert error.value.reason == message
    shown = str(error.value).splitlines()
    at = next(i for i, text in enumerate(shown) if text.strip() == f"^ {message}")
    assert shown[0] == f"@f: {message}" and at > 1


def test_a_value_is_not_visible_outside_its_region():
    module = parse_module("""
        func @f(%n: i64) -> (f64) {
          %s = par %n {kinds = ["sum"]} : f64 (%i: i64) {
            %v = cast %i : f64
            yield %v
          }
          %t = neg %s : f64
          yield %t
        }""")
    par, neg, _ = module.funcs["f"].body.ops
    neg.operands = [par.regions[0].ops[0].result]
    with pytest.raises(VerificationError, match=r"operand 0 \(%v: f64\) is not defined here"):
        verify(module)


def test_a_region_without_yield_and_wrong_function_result():
    module = parse_module("func @f(%x: f64) -> (f64) {\n %y = neg %x : f64\n}")
    with pytest.raises(VerificationError, match="`yield` ends a region"):
        verify(module)
    module = parse_module("func @f(%x: f64) -> (i64) {\n yield %x\n}")
    with pytest.raises(VerificationError, match="function result 0 is f64, expected i64"):
        verify(module)


def test_one_operation_in_two_places():
    module = parse_module("func @f(%x: f64) -> (f64) {\n %y = neg %x : f64\n yield %x\n}")
    ops = module.funcs["f"].body.ops
    ops.insert(1, ops[0])
    with pytest.raises(VerificationError, match="the same operation object"):
        verify(module)


def test_unknown_sizes_agree_with_known_ones():
    verify(parse_module("""
        func @f(%x: f64[?], %n: i64) -> (f64[3]) {
          %y = shaped %x, %n : f64[3]
          yield %y
        }"""))
    with pytest.raises(VerificationError, match=r"function result 0 is f64\[4\], expected f64\[3\]"):
        verify(parse_module("func @f(%x: f64[4]) -> (f64[3]) {\n yield %x\n}"))
