"""Printing and parsing: every operation goes through text and back unchanged."""

import pytest

from aotdiff.ir.builder import Builder, new_func
from aotdiff.ir.graph import Func, Loc, Module, Op, Region, Value
from aotdiff.ir.ops import OPS, SCALAR_OPS
from aotdiff.ir.parser import ParseError, parse_module
from aotdiff.ir.printer import print_module
from aotdiff.ir.types import BOOL, F32, F64, I64, Acc, Array, Record
from aotdiff.ir.verifier import verify

ATTRS = {"const": {"value": 1.5, "type": F64}, "polygamma": {"order": 2}, "sinc": {"order": 0}, "cast": {"to": F32}}


PROGRAM = """record @res = (f64, i64[?, 3])

func @"g'(x)"(%x: f64[?], %h: acc<f64[?]>) -> (f64) attributes {export = true, inline = "never"} loc("a b.grad":2:1) {
  %i = const 0 : i64
  %0 = read %x, %i : f64 loc("a b.grad":3:7)
  accum %h, %0, %i
  yield %0
}

func @α.f(%x: f64[?], %m: i64[?, 3], %c: bool, %r: record<res>) -> (f64, f64[?]) {
  %n = dim %x {axis = 0} : i64
  %y = withacc %x : f64[?] (%x_acc: acc<f64[?]>) {
    %0 = call @"g'(x)" %x, %x_acc : f64
    yield
  }
  %k = const 2 : i64
  %z = const -1.5e-07 : f64
  %big = const 1e+16 : f64
  %inf = const inf : f64
  %ninf = const -inf : f64
  %nan = const nan : f64
  %true = const true : bool
  check %c, %n, %z {kind = "ValueError", message = "size {0}: \\"{1}\\""}
  %a, %b, %1 = par %n, %k, %k {kinds = ["map", "argmax", "map"]} : f64[?, 2], i64, f64[?, 2, 2] (%i: i64, %j: i64) {
    %2 = read %x, %i : f64
    %3 = par %k {kinds = ["map"]} : f64[2] (%i_1: i64) {
      yield %2
    }
    yield %2, %2, %3
  }
  %s, %t = for %n, %x {kinds = ["cat"]} : f64[?], f64[?], i64[?] (%k_1: i64, %u: f64[?]) {
    %v = update %u, %z, %k_1 : f64[?]
    yield %v, %v
  }
  %w, %trips, %4 = while %x {kinds = ["map"]} : f64[?], i64, f64[?] (%k_2: i64, %5: f64[?]) {
    %6 = lt %k_2, %n : bool
    yield %6
  } do (%k_3: i64, %7: f64[?]) {
    %8 = cast %k_3 : f64
    yield %7, %8
  }
  %9 = if %c : f64[?] {
    yield %x
  } else {
    %10 = undef : f64[?]
    yield %10
  }
  %11 = insert %x, %9, %k : f64[?]
  %12 = reshape %m, %n : i64[?]
  %13 = shaped %12, %k : i64[2]
  %14 = argsort %x : i64[?]
  %15 = stop_gradient %x : f64[?]
  %16, %17 = record_unpack %r : f64, i64[?, 3]
  %18 = record_make %16, %17 {record = "res"} : record<res>
  %19 = vjp @h %x, %c, %z {value = false, wrt = [0]} : f64[?]
  %20, %21 = jvp @h %x, %c, %x {value = true, wrt = [0]} : f64, f64
  yield %16, %y
}

func @h(%x: f64[?], %c: bool) -> (f64) {
  %0 = const 1.0 : f64
  yield %0
}
""".replace("%s, %t = for", "%s, %t, %t_1 = for")


def scalar_module(name: str) -> Module:
    spec = SCALAR_OPS[name]
    kind = {"float": F64, "number": F64, "bool": BOOL, "any": F64}[spec.operands]
    types = [kind] * (spec.arity or 0)
    if name == "select":
        types[0] = BOOL
    if name == "ipow":
        types[1] = I64
    module = Module()
    names = [(f"x{i}", t) for i, t in enumerate(types)]
    module.add(new_func("f", names, lambda b, *xs: [b.scalar(name, *xs, **ATTRS.get(name, {}))]))
    return module


@pytest.mark.parametrize("name", SCALAR_OPS)
def test_scalar_op_round_trips(name):
    module = scalar_module(name)
    verify(module)
    text = print_module(module)
    parsed = parse_module(text)
    verify(parsed)
    assert print_module(parsed) == text
    assert parsed.funcs["f"].body.ops[0].attrs == module.funcs["f"].body.ops[0].attrs


def test_every_structured_op_round_trips():
    module = parse_module(PROGRAM)
    verify(module)
    assert print_module(module) == PROGRAM
    used = {op.name for func in module.funcs.values() for op in func.body.walk()}
    assert used >= OPS.keys() - SCALAR_OPS.keys()


def test_implied_attributes_come_back():
    module = parse_module(PROGRAM)
    by_name = {op.name: op.attrs for op in module.funcs["α.f"].body.walk()}
    assert by_name["par"]["rank"] == 1 and by_name["for"]["carries"] == 1 and by_name["while"]["carries"] == 1
    assert by_name["cast"] == {"to": F64} and by_name["undef"] == {"type": Array(F64, (None,))}
    assert by_name["vjp"] == {"callee": "h", "value": False, "wrt": (0,)}
    assert module.records["res"] == (F64, Array(I64, (None, 3)))
    assert module.funcs["g'(x)"].params[1].type == Acc(F64, (None,))
    assert module.funcs["α.f"].params[3].type == Record("res")
    assert module.funcs["g'(x)"].loc == Loc("a b.grad", 2, 1)


def test_without_locations():
    assert "loc(" not in print_module(parse_module(PROGRAM), locs=False)


def test_names_are_made_unique_and_stable():
    region = Region([Value(F64, "x"), Value(F64, "x_1"), Value(F64, "x"), Value(F64, "a b"), Value(F64, "7")])
    b = Builder(region)
    b.ret([b.add(region.args[0], region.args[2])])
    text = "\n".join(line for line in print_module(_module(region)).splitlines())
    assert text.startswith("func @f(%x: f64, %x_1: f64, %x_2: f64, %a_b: f64, %0: f64) -> (f64) {\n  %1 = add %x, %x_2")
    assert print_module(parse_module(text)).strip() == text


def _module(region: Region) -> Module:
    module = Module()
    module.add(Func("f", region, [F64]))
    return module


def test_attributes_without_special_form_are_printed():
    op = Op("stop_gradient", [], [], {"note": ("a", 1, 2.5, True, None, F64)})
    region = Region([], [op, Op("yield", [], [])])
    module = Module()
    module.add(Func("f", region, []))
    text = print_module(module)
    assert '{note = ["a", 1, 2.5, true, none, f64]}' in text
    assert parse_module(text).funcs["f"].body.ops[0].attrs == op.attrs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func @f() -> () { yield %a }", "1:25: %a is not defined"),
        ("func @f(%a: f64, %a: f64) -> () { yield }", "1:18: %a defined twice"),
        ("func @f(%a: f16) -> () { yield }", "1:13: expected a type, found 'f16'"),
        ("func @f(%a: f64) -> () {\n  %b = neg %a : f64, f64\n}", "2:3: 1 results and 2 types"),
        ("func @f() -> () { yield ", "1:25: expected a word, found ''"),
        ("func @f() -> () { ~ }", "1:19: unexpected '~'"),
    ],
)
def test_errors_have_a_place(text, message):
    with pytest.raises(ParseError) as error:
        parse_module(text)
    assert str(error.value) == message
