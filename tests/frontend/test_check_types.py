"""What the checker writes on the tree: types after inference, bindings, and what calls resolve to."""

from __future__ import annotations

import pytest

from aotdiff.frontend import ast
from aotdiff.frontend.check import check, std_program  # noqa: F401
from aotdiff.frontend.check_builtins import BuiltinUse
from aotdiff.frontend.check_types import SizeSource
from aotdiff.frontend.program import Program, load_source
from aotdiff.frontend.tree import walk


def checked(source: str) -> Program:
    return check(load_source(source))


def type_of(source: str, text: str) -> str:
    """The type of the first expression that is written like this."""
    program = checked(source)
    lines = source.split("\n")
    roots: list[ast.Node] = [*program.functions.values(), *program.constants.values()]
    roots += [export.value for export in program.exports if export.value is not None]
    for root in roots:
        for node in walk(root):
            s = node.span
            if isinstance(node, ast.Expr) and s.line == s.end_line:
                if lines[s.line - 1][s.column - 1 : s.end_column - 1] == text:
                    return repr(node.type)
    raise AssertionError(f"{text} is not in the program")


@pytest.mark.parametrize(
    "source, text, wanted",
    [
        ("fn f(x: f32) -> f32 = 2 * x", "2", "f32"),
        ("fn f(x: f64) -> f64 = x**2", "2", "i64"),
        ("fn f(x: f32) -> f32 { var s = 0.0; s += x; s }", "0.0", "f32"),
        ("fn f(x: f32[n]) -> f32[n] { var z = zeros(n); z[0] = x[0]; z }", "zeros(n)", "f32[n]"),
        ("fn f(x: f64) -> f64 { let k = 1.0; x }", "1.0", "f64"),
        ("fn f(n: i64, x: f32) -> f32 = (n - 1)/n * x", "(n - 1)/n", "f32"),
        ("fn f(n: i64) -> f64 = n / 2", "n / 2", "f64"),
        ("fn f(n: i64) -> i64 = n**2", "n**2", "i64"),
        ("fn f(n: i64, x: f32) -> f32 = sqrt(n) + x", "sqrt(n)", "f32"),
        ("fn f(x: f32) -> f32 = pi * x", "pi", "f32"),
        ("fn f(x: real) -> real = pi * x", "pi", "real"),
        ("let g = 9.81\nfn f(x: f32) -> f32 = g * x", "9.81", "real"),
        ("let g = 9.81\nfn f(x: f32) -> f32 = g * x", "g", "f32"),
        ("let g: f64 = 9.81\nfn f(x: f64) -> f64 = g * x", "g", "f64"),
        ("fn f(x: f64) -> f64 { var s = 0; s += x; s }", "0", "f64"),
        ("fn f(n: i64) -> i64 { var s = 0; s += n; s }", "0", "i64"),
        ("fn f(x: bool[n]) -> i64 = sum(x)", "sum(x)", "i64"),
        ("fn f(k: i64[n]) -> f64 = mean(k)", "mean(k)", "f64"),
        ("fn f(k: i64[n]) -> f32[n] { let y: f32[n] = k / 2; y }", "k / 2", "f32[n]"),
        ("fn f(x: f64[n]) -> f64[n] = clamp(x, 0, 1)", "0", "f64"),
        ("fn f(a: f64[n, k], b: f64[k, m]) -> f64[n, m] = a @ b", "a @ b", "f64[n, m]"),
        ("fn f(a: f64[n, k], v: f64[k]) -> f64[n] = a @ v", "a @ v", "f64[n]"),
        ("fn f(v: f64[k]) -> f64 = v @ v", "v @ v", "f64"),
        ("fn f(a: f64[n, k]) -> f64[k, n] = a.T", "a.T", "f64[k, n]"),
        ("fn f(x: f64[n]) -> f64 = x[1..n-1][0]", "x[1..n-1]", "f64[n-2]"),
        ("fn f(x: f64[n]) -> f64 = x[1..-1][0]", "x[1..-1]", "f64[n-2]"),
        ("fn f(x: f64[n]) -> f64 = x[n//2..][0]", "x[n//2..]", "f64[n-(n//2)]"),
        ("fn f(a: f64[n, m]) -> f64 = a[:, 1][0]", "a[:, 1]", "f64[n]"),
        ("fn f(a: f64[n, m]) -> f64 = a[0][0]", "a[0]", "f64[m]"),
        ("fn f(a: f64[n, m]) -> f64 = sum(a, axis = 0)[0]", "sum(a, axis = 0)", "f64[m]"),
        (
            "fn f(a: f64[n, m]) -> f64 = sum(a, axis = 0, keepdims = true)[0, 0]",
            "sum(a, axis = 0, keepdims = true)",
            "f64[1, m]",
        ),
        ("fn f(a: f64[n], b: f64[n, 1]) -> f64 = (a * b)[0, 0]", "a * b", "f64[n, n]"),
        ("fn f(a: f64[n], b: f64[m]) -> f64 = sum(a * b)", "a * b", "f64[?]"),
        ("fn f(a: f64[n]) -> f64 = concat(a, [1.0], a)[0]", "concat(a, [1.0], a)", "f64[2*n+1]"),
        ("fn f(a: f64[n]) -> f64 = stack(a, a, axis = 1)[0, 0]", "stack(a, a, axis = 1)", "f64[n, 2]"),
        ("fn f(a: f64[n], m: i64) -> f64[n, m, n] = [a * (i + j) for i in 0..n, j in 0..m]", "a * (i + j)", "f64[n]"),
        ("fn f(x: f64[n]) -> f64 { var y = x; while len(y) > 1 { y = y[1..] }; y[0] }", "y", "f64[?]"),
        ("fn f(x: f64[n]) -> f64 { var y = x; for k in 0..3 { y = 2.0 * y }; y[0] }", "y", "f64[n]"),
        ("fn f(x: f64, c: bool) -> f64 = sum(if c { [x] } else { [x, x] })", "if c { [x] } else { [x, x] }", "f64[?]"),
        ("fn f(x: f64[n]) -> f64[n, n] = hessian(g)(x)\nfn g(x: f64[n]) -> f64 = sum(x)", "hessian(g)(x)", "f64[n, n]"),
        ("fn f(x: f64) -> f64 = grad(|t| t * x)(2)", "2", "f64"),
        ("fn f(x: f64) -> f64 { let g = |t| t * x; g(x) }", "|t| t * x", "fn(f64) -> f64"),
        ("fn f(x: f64) -> f64 = g(sin, x)\nfn g(h: fn(f64) -> f64, x: f64) -> f64 = h(x)", "sin", "fn(f64) -> f64"),
        ("fn g(x: real) -> real = x\nfn f(x: f32) -> f32 = g(x)", "g", "fn(f32) -> f32"),
        ("fn g(x: real) -> real = x\nfn f(x: f32) -> f64 = g(1.0)", "g", "fn(f64) -> f64"),
        ("fn g(x: real) -> real = x\nfn f(x: real) -> real = g(x)", "g", "fn(real) -> real"),
        ("fn g(x: real[n]) -> real = sum(x)\nexport h = grad(g)", "grad(g)", "fn(real[n]) -> real[n]"),
        ("fn f(x: f64[n]) -> f64[2] = g(x[0..4])[0..2]\nfn g(y: f64[2*k]) -> f64[k] = y[0..k]", "g(x[0..4])", "f64[2]"),
    ],
)
def test_types(source: str, text: str, wanted: str) -> None:
    assert type_of(source, text) == wanted


@pytest.mark.parametrize(
    "form, wanted",
    [
        ("grad(s)", "fn(f64[n], f64, i64) -> f64[n]"),
        ("grad(s, wrt = y)", "fn(f64[n], f64, i64) -> f64"),
        ("grad(s, wrt = (y, x))", "fn(f64[n], f64, i64) -> (f64, f64[n])"),
        ("grad(s, wrt = (x,))", "fn(f64[n], f64, i64) -> (f64[n],)"),
        ("value_and_grad(s)", "fn(f64[n], f64, i64) -> (f64, f64[n])"),
        ("vjp(v)", "fn(f64[n], f64, f64[n], f64) -> f64[n]"),
        ("value_and_vjp(v, wrt = (x, y))", "fn(f64[n], f64, f64[n], f64) -> ((f64[n], i64, f64), (f64[n], f64))"),
        ("jvp(v, wrt = (x, y))", "fn(f64[n], f64, f64[n], f64) -> (f64[n], f64)"),
        ("value_and_jvp(v, wrt = y)", "fn(f64[n], f64, f64) -> ((f64[n], i64, f64), (f64[n], f64))"),
        ("jacobian(v)", "fn(f64[n], f64) -> (f64[n, n], f64[n])"),
        ("jacobian(v, wrt = (x, y))", "fn(f64[n], f64) -> ((f64[n, n], f64[n]), (f64[n], f64))"),
        ("hessian(s)", "fn(f64[n], f64, i64) -> f64[n, n]"),
        ("hessian(s, wrt = (x, y))", "fn(f64[n], f64, i64) -> ((f64[n, n], f64[n]), (f64[n], f64))"),
        ("hvp(s)", "fn(f64[n], f64, i64, f64[n]) -> f64[n]"),
        ("hvp(s, wrt = (x, y))", "fn(f64[n], f64, i64, f64[n], f64) -> (f64[n], f64)"),
        ("grad(c)", "fn(f64) -> f64"),
        ("value_and_grad(c)", "fn(f64) -> ((f64, i64), f64)"),
        ("jvp(c)", "fn(f64, f64) -> f64"),
        ("jvp(grad(s))", "fn(f64[n], f64, i64, f64[n]) -> f64[n]"),
        ("grad(grad(c))", "fn(f64) -> f64"),
    ],
)
def test_derivative_forms(form: str, wanted: str) -> None:
    program = checked(f"""
fn s(x: f64[n], y: f64, k: i64) -> f64 = y * sum(x)
fn v(x: f64[n], y: f64) -> (f64[n], i64, f64) = (x, 2, y)
fn c(x: f64) -> (f64, i64) = (x, 1)
export e = {form}
""")
    assert repr(program.exports[0].type) == wanted


def test_names_of_derivative_parameters() -> None:
    program = checked("""
fn s(x: f64[n], y: f64) -> f64 = y * sum(x)
fn v(x: f64[n], y: f64) -> (f64[n], f64) = (x, y)
export a = vjp(s)
export b = vjp(v)
export c = jvp(s, wrt = (x, y))
export d = hvp(s)
export e = hvp(s, wrt = (x, y))
""")
    names = [export.type.names[2:] for export in program.exports]
    assert names == [("ct",), ("ct0", "ct1"), ("d_x", "d_y"), ("v",), ("v_x", "v_y")]


def test_positions_of_wrt() -> None:
    program = checked(
        "fn s(k: i64, x: f64, y: f64) -> f64 = x * y\nexport a = grad(s)\nexport b = grad(s, wrt = (y, x))"
    )
    forms = [export.value for export in program.exports]
    assert [form.positions for form in forms if isinstance(form, ast.DerivativeForm)] == [[1], [2, 1]]


def test_what_binds_the_sizes() -> None:
    program = checked("fn f(a: f64[2*m+k, n], b: (i64, f64[m]), c: f64[3*k - 1, n]) -> f64 = 0.0")
    sources = {size.name: size.node for size in program.functions["f"].sizes}
    assert list(sources) == ["m", "k", "n"]
    assert sources["m"] == SizeSource(1, (1,), 0)
    assert sources["n"] == SizeSource(0, (), 1)
    assert (sources["k"].parameter, sources["k"].dimension) == (0, 0)
    assert (repr(sources["k"].coefficient), repr(sources["k"].rest)) == ("1", "2*m")


def test_built_in_calls_resolve() -> None:
    program = checked("fn f(a: f64[n, m]) -> f64[n] = sum(a, axis = -1) + sum(sum(a, axis = (1, 0), keepdims = true))")
    calls = [node for node in walk(program.functions["f"]) if isinstance(node, ast.Call)]
    uses = [call.resolution for call in calls]
    assert all(isinstance(use, BuiltinUse) for use in uses)
    assert [(use.axes, use.keepdims) for use in uses] == [((1,), False), (None, False), ((0, 1), True)]


def test_bindings_are_shared_by_all_uses() -> None:
    program = checked("fn f(x: f64) -> f64 { let x = x * x; x + 1.0 }")
    names = [node for node in walk(program.functions["f"].body) if isinstance(node, ast.Name)]
    assert [name.binding.kind for name in names] == ["parameter", "parameter", "let"]
    assert names[0].binding is names[1].binding is program.functions["f"].parameters[0].binding


def test_instances_of_real_functions() -> None:
    program = checked("fn g(x: real) -> real = x\nfn f(x: f32, y: f64) -> f64 = f64(g(x)) + g(y)")
    names = [node for node in walk(program.functions["f"]) if isinstance(node, ast.Name) and node.name == "g"]
    assert [repr(name.instance) for name in names] == ["f32", "f64"]


def test_functions_without_export_are_exported_but_for_those_that_take_functions() -> None:
    program = checked("fn a(x: f64) -> f64 = x\nfn b(f: fn(f64) -> f64) -> f64 = f(1.0)\nfn c() -> i64 = 1")
    assert [export.name for export in program.exports] == ["a", "c"]


def test_result_types_may_be_left_out() -> None:
    program = checked("fn f(x: f64[n]) = [x[i] for i in 0..n-1]\nfn g(x: f64[n]) = f(x) * 2.0")
    assert repr(program.signatures["g"]) == "fn(f64[n]) -> f64[n-1]"
