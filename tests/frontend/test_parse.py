"""Text to tree: each construct of the language by the shape of its tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from tree_shape import body, expression, parsed, shape

from aotdiff.frontend import ast
from aotdiff.frontend.diagnostics import Diagnostics
from aotdiff.frontend.parse import parse

CASES = Path(__file__).parents[1] / "cases"

EXPRESSIONS = [
    # literals
    ("1", "1"),
    ("1_000", "1000"),
    ("0.5", "0.5"),
    ("1_000.5", "1000.5"),
    ("1e-3", "0.001"),
    ("2.5e2", "250.0"),
    ("true", "true"),
    ("false", "false"),
    ("-9223372036854775808", "-9223372036854775808"),
    # precedence, tightest first
    ("-x**2", "(- (** x 2))"),
    ("2**3**2", "(** 2 (** 3 2))"),
    ("x**-y", "(** x (- y))"),
    ("x**-y**2", "(** x (- (** y 2)))"),
    ("a.T**2", "(** (attribute a T) 2)"),
    ("-x * -y", "(* (- x) (- y))"),
    ("a - -b", "(- a (- b))"),
    ("a * b / c // d % e @ f", "(@ (% (// (/ (* a b) c) d) e) f)"),
    ("a + b * c - d", "(- (+ a (* b c)) d)"),
    ("a + b < c * d", "(< (+ a b) (* c d))"),
    ("a == b", "(== a b)"),
    ("a != b", "(!= a b)"),
    ("a >= b", "(>= a b)"),
    ("not a == b", "(not (== a b))"),
    ("not not a", "(not (not a))"),
    ("p or q and not r", "(or p (and q (not r)))"),
    ("(a < b) == c", "(== (< a b) c)"),
    ("(a + b) * c", "(* (+ a b) c)"),
    # postfix
    ("f(x)(y)[0].T.1", "(item (attribute (index (call (call f x) y) 0) T) 1)"),
    ("t.0.1", "(item (item t 0) 1)"),
    ("t.0.1.2", "(item (item (item t 0) 1) 2)"),
    ("f()", "(call f)"),
    ("f(a, b, axis = 1,)", "(call f a b axis=1)"),
    ("f(axis = (0, 1), keepdims = true)", "(call f axis=(tuple 0 1) keepdims=true)"),
    ("a[i, j]", "(index a i j)"),
    ("a[i][j]", "(index (index a i) j)"),
    ("a[i, :]", "(index a i ..)"),
    ("a[:, 1..n]", "(index a .. 1..n)"),
    ("a[1..]", "(index a 1..)"),
    ("a[..k+1]", "(index a ..(+ k 1))"),
    ("a[1..-1]", "(index a 1..(- 1))"),
    ("a[-1]", "(index a (- 1))"),
    ("a[0..2*h,]", "(index a 0..(* 2 h))"),
    # tuples, arrays
    ("(a)", "a"),
    ("(a,)", "(tuple a)"),
    ("(a, b)", "(tuple a b)"),
    ("(a, (b, c),)", "(tuple a (tuple b c))"),
    ("[1.0, 2.0]", "[1.0 2.0]"),
    ("[[1.0, 0.0], [0.0, 1.0],]", "[[1.0 0.0] [0.0 1.0]]"),
    ("[]", "[]"),
    # generators
    ("[x[i] * y[j] for i in 0..n, j in 0..m]", "(build (* (index x i) (index y j)) for i in 0..n for j in 0..m)"),
    ("[v * v for v in x]", "(build (* v v) for v in x)"),
    ("sum(x[i] for i in 0..n-1)", "(call sum (each (index x i) for i in 0..(- n 1)))"),
    ("sum(i for i in 0..n, j in 0..i if j > 0)", "(call sum (each i for i in 0..n for j in 0..i if (> j 0)))"),
    ("sum(100.0 * x for v in rows,)", "(call sum (each (* 100.0 x) for v in rows))"),
    ("sum(if a { b } else { c } for v in x)", "(call sum (each (if a {b} {c}) for v in x))"),
    # if, blocks, lambdas
    ("if c { a } else { b }", "(if c {a} {b})"),
    ("if c { a } else { b } + 1.0", "(+ (if c {a} {b}) 1.0)"),
    ("if a { 1 } else if b { 2 } else { 3 }", "(if a {1} (if b {2} {3}))"),
    ("1.0 + if c { a } else { b }", "(+ 1.0 (if c {a} {b}))"),
    ("{ let t = x*x; t + 1.0 }", "{let t = (* x x); (+ t 1.0)}"),
    ("{ let half = x / 2.0; half }**3", "(** {let half = (/ x 2.0); half} 3)"),
    ("|x| x + 1.0", "(|x| (+ x 1.0))"),
    ("|x, y: f64[n],| x * y", "(|x y:f64[n]| (* x y))"),
    ("|| 1.0", "(|| 1.0)"),
    ("|x| |y| x + y", "(|x| (|y| (+ x y)))"),
    ("f(|x| { let y = x; y }, 1)", "(call f (|x| {let y = x; y}) 1)"),
    # derivative forms
    ("grad(f)", "(grad! f)"),
    ("grad(f)(x)", "(call (grad! f) x)"),
    ("grad(f, wrt = x)", "(grad! f wrt=x)"),
    ("value_and_grad(f, wrt = (x, y))", "(value_and_grad! f wrt=(x,y))"),
    ("vjp(f, wrt = (x,),)", "(vjp! f wrt=(x))"),
    ("grad(|x| sum(grad(f)(x)))", "(grad! (|x| (call sum (call (grad! f) x))))"),
    ("hessian(loss, wrt = w)(w, x)", "(call (hessian! loss wrt=w) w x)"),
    ("jvp(grad(f))(x, v)", "(call (jvp! (grad! f)) x v)"),
    ("value_and_vjp(f)", "(value_and_vjp! f)"),
    ("value_and_jvp(f)", "(value_and_jvp! f)"),
    ("jacobian(f)", "(jacobian! f)"),
    ("hvp(f)", "(hvp! f)"),
    ("stop_gradient(x)", "(call stop_gradient x)"),
    # words that mean something only in their place
    ("step + wrt + vjp + axis + segments + checkpoint", "(+ (+ (+ (+ (+ step wrt) vjp) axis) segments) checkpoint)"),
    # names in any script, NFKC
    ("α * 角度 + ﬁ", "(+ (* α 角度) fi)"),
    ("e\u0301", "é"),
]


@pytest.mark.parametrize(("text", "wanted"), EXPRESSIONS, ids=[text for text, _ in EXPRESSIONS])
def test_expression(text: str, wanted: str) -> None:
    assert expression(text) == wanted


STATEMENTS = [
    ("let y = x", "let y = x;"),
    ("let (a, (b, c)) = f(x)", "let (a (b c)) = (call f x);"),
    ("let (a, b,) = f(x)", "let (a b) = (call f x);"),
    ("let y: f64[n, 2*m] = x", "let y:f64[n (* 2 m)] = x;"),
    ("let p: (f64, i64) = x", "let p:(f64 i64) = x;"),
    ("var s = 0.0", "var s = 0.0;"),
    ("s = s + 1.0", "s = (+ s 1.0);"),
    ("s += 1; s -= 2; s *= 3; s /= 4", "s += 1; s -= 2; s *= 3; s /= 4;"),
    ("(s, state) = f(state)", "(tuple s state) = (call f state);"),
    ("(a[0], (b, c)) = f(x)", "(tuple (index a 0) (tuple b c)) = (call f x);"),
    ("a[i, j] = v", "(index a i j) = v;"),
    ("a[i][j] = v", "(index (index a i) j) = v;"),
    ("a[i, :] += row", "(index a i ..) += row;"),
    ("a[0..k] = b", "(index a 0..k) = b;"),
    ("for i in 0..n { }", "for i in 0..n {};"),
    ("for i in 0..n step 2 { s += i }", "for i in 0..n step 2 {s += i;};"),
    ("for i in n-1..-1 step -1 { }", "for i in (- n 1)..(- 1) step (- 1) {};"),
    ("for v in x { s += v }", "for v in x {s += v;};"),
    ("while a < b { break }", "while (< a b) {break;};"),
    ("while true { continue; }", "while true {continue;};"),
    ("if c { s = 1 }", "do (if c {s = 1;});"),
    ("if c { s = 1 } else if d { s = 2 } else { }", "do (if c {s = 1;} (if d {s = 2;} {}));"),
    ("if c { return 1.0 }\nx", "do (if c {return 1.0;}); x"),
    ("if c { return 1.0 } else { x }", "(if c {return 1.0;} {x})"),
    ("if c { 1.0 }", "(if c {1.0})"),
    ('assert c, "message"', "assert c 'message';"),
    ("assert c", "assert c None;"),
    (r'assert c, "a \"b\" \\ c"', r"""assert c 'a "b" \\ c';"""),
    ("@checkpoint(segments = 32) for t in 0..n { }", "@32 for t in 0..n {};"),
    ("@checkpoint(segments = k)\nfor t in 0..n { }", "@k for t in 0..n {};"),
    ("return x", "return x;"),
    ("{ s = 1 }", "do {s = 1;};"),
    ("{ let y = x; y }", "{let y = x; y}"),
    ("f(x)\ng(x)", "do (call f x); (call g x)"),
    ("(if c { a } else { b }) + 1.0", "(+ (if c {a} {b}) 1.0)"),
    ("if c { a } else { b }\n-1.0", "do (if c {a} {b}); (- 1.0)"),
]


@pytest.mark.parametrize(("text", "wanted"), STATEMENTS, ids=[text for text, _ in STATEMENTS])
def test_statement(text: str, wanted: str) -> None:
    assert body(text) == wanted


LINES = [
    ("let y = x\nlet z = y", "let y = x; let z = y;"),
    ("let y = x;; let z = y;\n;x", "let y = x; let z = y; x"),
    ("let y = x +\n  1.0\ny", "let y = (+ x 1.0); y"),
    ("let y = x # comment\n  + 1.0 # more\n\n  * 2.0", "let y = (+ x (* 1.0 2.0));"),
    ("let y = x\n  - 1.0", "let y = x; (- 1.0)"),
    ("let y = a\n  and b\n or c", "let y = (or (and a b) c);"),
    ("let y = a\n  == b", "let y = (== a b);"),
    ("let y = a\n  // b\n % c", "let y = (% (// a b) c);"),
    ("let y = (x\n  - 1.0\n  @ b)", "let y = (- x (@ 1.0 b));"),
    ("let y = f(\n  x\n  ,\n  y,\n)", "let y = (call f x y);"),
    ("let y = [\n 1.0,\n\n 2.0\n]", "let y = [1.0 2.0];"),
    ("let y =\n  x", "let y = x;"),
    ("let y = a @\n  b", "let y = (@ a b);"),
    ("(a,\n b) = c", "(tuple a b) = c;"),
    ("a[i, j] *\n    a[i, j + 1]", "(* (index a i j) (index a i (+ j 1)))"),
    ("if c {\n a\n}\nelse if d {\n b\n}\nelse\n{\n e\n}", "(if c {a} (if d {b} {e}))"),
    ("f(|y| {\n  let z = y\n  z\n}, x)", "(call f (|y| {let z = y; z}) x)"),
    ("[{\n  s += x\n  s\n} for i in 0..n]", "(build {s += x; s} for i in 0..n)"),
    ("\r\nlet y = x\r\ny\r\n", "let y = x; y"),
    ("\tlet y = x\n\n\n\ty", "let y = x; y"),
    ("f(x)\n(y)", "do (call f x); y"),
    ("x\n[0]", "do x; [0]"),
    ("let f = |a,\n  b| a", "let f = (|a b| a);"),
]


@pytest.mark.parametrize(("text", "wanted"), LINES, ids=[text for text, _ in LINES])
def test_statement_ends(text: str, wanted: str) -> None:
    assert body(text) == wanted


ITEMS = [
    ("fn f(x: f64) -> f64 { x }", "(fn f (x:f64) -> f64 {x})"),
    ("fn f(x: f64, y: i64,) -> (f64, f64) = (x, x)", "(fn f (x:f64 y:i64) -> (f64 f64) (tuple x x))"),
    ("fn f() -> f64 = 1.0", "(fn f () -> f64 1.0)"),
    ("fn f(\n  x: f64,\n  y: f64,\n) -> f64 {\n  x\n}", "(fn f (x:f64 y:f64) -> f64 {x})"),
    ("fn f(x: f64) -> f64 =\n  x\n  * x", "(fn f (x:f64) -> f64 (* x x))"),
    ("fn f(x: f64) { x }", "(fn f (x:f64) {x})"),
    (
        "fn f(l: f64[k, d*(d-1)//2]) -> real[n-w+1] = l",
        "(fn f (l:f64[k (// (* d (- d 1)) 2)]) -> real[(+ (- n w) 1)] l)",
    ),
    (
        "fn newton(f: fn(f64) -> f64, x0: f64) -> f64 = f(x0)",
        "(fn newton (f:fn(f64)->f64 x0:f64) -> f64 (call f x0))",
    ),
    ("fn f(g: fn() -> fn(f64, i64) -> (f64, f64)) -> f64 = 1", "(fn f (g:fn()->fn(f64 i64)->(f64 f64)) -> f64 1)"),
    ("fn f(x: (f64)) -> f64 = x", "(fn f (x:f64) -> f64 x)"),
    ("fn step(wrt: f64) -> f64 = wrt", "(fn step (wrt:f64) -> f64 wrt)"),
    ("type Force = fn(f64[2]) -> f64[2]", "(type Force fn(f64[2])->f64[2])"),
    ("let g = 9.81", "(let g 9.81)"),
    ("let g: f32 = 9.81", "(let g:f32 9.81)"),
    ("derivative vjp f = f_pullback", "(derivative vjp f f_pullback)"),
    ("derivative jvp f = |x, t| t", "(derivative jvp f (|x t| t))"),
    ('import "linalg.grad"', "(import 'linalg.grad')"),
    ("export f", "(export f none)"),
    ("export g = value_and_grad(f, wrt = (w, b))", "(export g (value_and_grad! f wrt=(w,b)))"),
    ("export h = |x: f64[n]| f(x, 2.0)", "(export h (|x:f64[n]| (call f x 2.0)))"),
    ("export f; export g", "(export f none)\n(export g none)"),
    ("# only a comment", ""),
    ("", ""),
    ("\n\n;\n", ""),
    ("\ufeffexport f", "(export f none)"),
]


@pytest.mark.parametrize(("text", "wanted"), ITEMS, ids=[text for text, _ in ITEMS])
def test_item(text: str, wanted: str) -> None:
    assert shape(parsed(text)) == wanted
    assert shape(parsed(text + "\n")) == wanted


def test_items_keep_the_order_of_the_file() -> None:
    file = parsed("export b\nfn b() -> f64 = 1\nlet z = 1\nfn a() -> f64 = 2\nexport a\n")
    assert [f.name for f in file.functions] == ["b", "a"]
    assert [e.name for e in file.exports] == ["b", "a"]
    assert file.broken_names == set()


# Names of derivative forms that a file gives to something else ------------------------------------------------


def test_own_function_named_like_a_form() -> None:
    file = parsed("fn grad(f: f64) -> f64 = f\nfn g(x: f64) -> f64 = grad(x) + hvp(g)(x, x)\n")
    assert shape(file.functions[1].body) == "(+ (call grad x) (call (hvp! g) x x))"


def test_local_named_like_a_form_hides_it_from_there_on() -> None:
    text = "let hessian = hessian(f)(x)\nlet g = hessian(3)\nlet k = |grad| grad(f)\ngrad(f)"
    wanted = "let hessian = (call (hessian! f) x); let g = (call hessian 3); let k = (|grad| (call grad f)); (grad! f)"
    assert body(text) == wanted


def test_parameter_named_like_a_form() -> None:
    file = parsed("fn f(grad: fn(f64) -> f64) -> f64 = grad(2.0)\nfn g(x: f64) -> f64 = grad(f)(x)\n")
    assert [shape(f.body) for f in file.functions] == ["(call grad 2.0)", "(call (grad! f) x)"]


# Places -----------------------------------------------------------------------------------------------------


def place(node: ast.Node) -> tuple[int, int, int, int]:
    span = node.span
    return span.line, span.column, span.end_line, span.end_column


def test_spans() -> None:
    file = parsed("fn f(x: f64[n]) -> f64 {\n    let y = (x[0] + 1.0) *\n        sin(x[1])\n    y\n}\n")
    function = file.functions[0]
    assert place(function) == (1, 1, 5, 2)
    assert function.name_span == ast.Span("test.grad", 1, 4, 1, 5)
    assert place(function.parameters[0]) == (1, 6, 1, 15)
    assert isinstance(function.body, ast.Block)
    let = function.body.statements[0]
    assert isinstance(let, ast.Let)
    product = let.value
    assert isinstance(product, ast.Binary) and isinstance(product.left, ast.Binary)
    assert place(product) == (2, 13, 3, 18)  # from the parenthesis
    assert place(product.left) == (2, 14, 2, 24)  # inside it
    assert (product.op_span.line, product.op_span.column) == (2, 26)
    assert place(product.right) == (3, 9, 3, 18)


def test_columns_count_characters() -> None:
    file = parsed("fn 角度(αβ: f64) -> f64 = αβ + x\n")
    assert isinstance(file.functions[0].body, ast.Binary)
    assert place(file.functions[0].body.right) == (1, 30, 1, 31)


# Whole files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(CASES.glob("*.grad")), ids=lambda p: p.stem)
def test_case_files(path: Path) -> None:
    diagnostics = Diagnostics()
    file = parse(path.read_text(encoding="utf-8"), str(path), diagnostics)
    if path.stem == "err_bracket":
        assert [(d.line, d.column, d.end) for d in diagnostics] == [(3, 42, (3, 43))]
        assert "`(`" in diagnostics.items()[0].message
        assert file.broken_names == {"sum_of_squares"} and [f.name for f in file.functions] == ["next"]
    elif path.stem == "err_mixed":
        assert [(d.line, d.column) for d in diagnostics] == [(4, 17)]
        assert file.broken_names == {"broken"} and [f.name for f in file.functions] == ["unknown"]
    else:
        assert len(diagnostics) == 0, diagnostics.render()
        assert file.broken_names == set()


def test_long_sums_and_deep_brackets() -> None:
    file = parsed("fn f(x: f64) -> f64 = " + " + ".join(["x"] * 900) + "\n")
    node, depth = file.functions[0].body, 0
    while isinstance(node, ast.Binary):
        node, depth = node.left, depth + 1
    assert depth == 899
    assert expression("(" * 150 + "x" + ")" * 150) == "x"
