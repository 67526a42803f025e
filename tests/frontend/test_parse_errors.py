"""Syntax errors by line, column and text; the parser goes on after each."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from tree_shape import messages, shape

from aotdiff.frontend.diagnostics import Diagnostics
from aotdiff.frontend.parse import parse

CASES = Path(__file__).parents[1] / "cases"


def in_function(text: str) -> list[tuple[int, int, str]]:
    """The messages of statements in a function; their first line is line 1."""
    found = messages("fn f(x: f64[n], y: f64) -> f64 {\n" + text + "\n}\n\nfn g(x: f64) -> f64 = x\n")
    return [(line - 1, column, message) for line, column, message in found]


# One mistake in the statements of a function: (text, line, column, words of the message).
MISTAKES = [
    ("let y = x * * 2.0", 1, 13, "found `*`, expected an expression"),
    ("let y = x ^ 2", 1, 11, "`**`, not `^`"),
    ("y && x", 1, 3, "`&&` is written `and`"),
    ("y || x", 1, 3, "`||` is written `or`"),
    ("!y", 1, 1, "`!` is written `not`"),
    ("y & x", 1, 3, "`&` has no meaning"),
    ("y | x", 1, 3, "`|` begins a function"),
    ("if x = 1.0 { y }", 1, 6, "compared with `==`"),
    ("while x = 1.0 { }", 1, 9, "compared with `==`"),
    ("assert x = 1.0", 1, 10, "compared with `==`"),
    ("let z = y = 2", 1, 11, "`=` stands in the middle of an expression"),
    ("let z = y += 2", 1, 11, "`+=` is a statement of its own"),
    ("f(y += 2)", 1, 5, "`+=` is a statement of its own"),
    ("y **= 2", 1, 5, "there is no `**=`; write `a = a ** ...`"),
    ("y++", 1, 3, "`++` is no operator; to add one write `k += 1`"),
    ("let z = y if y > 0.0 else 1.0", 1, 11, "a choice is written `if c { a } else { b }`"),
    ("let z = +y", 1, 9, "a number has no `+` before it"),
    ("0.0 < y < 1.0", 1, 9, "comparisons do not chain; write `0.0 < y and y < 1.0`"),
    ("let z = 1.", 1, 10, "digits on both sides"),
    ("let z = 1. + y", 1, 10, "digits on both sides"),
    ("let z = .5", 1, 9, "digits on both sides"),
    ("let z = 2y", 1, 10, "multiplication is written out: `2 * y`"),
    ("let z = 0x1F", 1, 10, "decimal digits"),
    ("let z = 99999999999999999999", 1, 9, "does not fit into i64"),
    ("let z = 1e999", 1, 9, "does not fit into f64"),
    ("let type = 3", 1, 5, "`type` is a reserved word"),
    ("let z = x + in", 1, 13, "`in` is a reserved word"),
    ("for while in x { }", 1, 5, "`while` is a reserved word"),
    ("x[1:3]", 1, 4, "a slice is written with two points"),
    ("x[:3]", 1, 3, "a slice is written with two points"),
    ("x[1:]", 1, 4, "a slice is written with two points"),
    ("for i in 0...n { }", 1, 13, "a range is written with two points"),
    ("for i in 0..=n { }", 1, 13, "a range is written with two points"),
    ("for (i, v) in x { }", 1, 5, "a loop has one index"),
    ("for i = 0; i < n; i = i + 1 { }", 1, 7, "a loop runs over a range or an array"),
    ("for i in 0..n:\n  y = 1\ny", 1, 14, "a block stands in braces: found `:`, expected `{`"),
    ("for i in 0..n { } for j in 0..n { }", 1, 19, "found the reserved word `for`, expected the end of the statement"),
    ("for i in 0.. { }", 1, 14, "expected an expression between `..` and `{`"),
    ("while { y = 1 }", 1, 7, "expected an expression between `while` and `{`"),
    ("while y > 0.0\n  y = 1\n", 1, 14, "expected `{`"),
    ("if y > 0 then 1 else 2", 1, 10, "a condition is followed by `{`"),
    ("if y > 0 { 1 } + 2", 1, 16, "an `if` at the start of a statement ends at its brace"),
    ("if y > 0 { 1 }\n+ 2", 2, 1, "an `if` at the start of a statement ends at its brace"),
    ("else { 1 }", 1, 1, "this `else` has no `if` before it"),
    ("if y > 0 { 1 } elif y > 1 { 2 } else { 3 }", 1, 16, "`elif` is written `else if`"),
    ("return", 1, 7, "`return` needs a value"),
    ("let z", 1, 6, "this needs a value"),
    ("var z: f64", 1, 11, "this needs a value"),
    ("let mut z = 3", 1, 5, "declared with `var`"),
    ("let z = y *", 1, 12, "found `}`"),
    ("let z = y *\nlet w = z", 1, 12, "expected an expression after `*`, found the end of the line"),
    ("z = 3 +\nw = 2", 1, 8, "expected an expression after `+`, found the end of the line"),
    ("f(y + )", 1, 6, "expected an expression after `+`, found `)`"),
    ("x[]", 1, 3, "found `]`, expected an expression"),
    ("let a, b = (y, y)", 1, 6, "several names stand in parentheses: `let (a, b) = ...`"),
    ("var a, b = (y, y)", 1, 6, "several names stand in parentheses: `var (a, b) = ...`"),
    ("a, b = y, y", 1, 2, "several variables are assigned in parentheses: `(a, b) = ...`"),
    ("return y, y", 1, 9, "several values are a tuple and stand in parentheses"),
    ("if y > 0.0 { y, y } else { y }", 1, 15, "several values are a tuple and stand in parentheses"),
    ("for i, j in 0..n { }", 1, 6, "a loop has one index"),
    ("for i in 0..n, j in 0..n { }", 1, 14, "a loop has one index"),
    ("let z: f64[] = x", 1, 12, "an array type has a size for each axis: `f64[n]`"),
    ("let z = 1.e5", 1, 9, "digits on both sides"),
    ("let z = y x", 1, 11, "found `x`, expected an operator or the end of the statement"),
    ("f(x y)", 1, 5, "found `y`, expected an operator, `)`"),
    ("(1, 2; 3)", 1, 6, "found `;`, expected `)`"),
    ("y == not x", 1, 6, "put parentheses around `not ...`"),
    ("y + |a| a", 1, 5, "put parentheses around a function"),
    ("lambda z: z", 1, 1, "`|x| expression`"),
    ("sum((v for v in x))", 1, 8, "a generator is the only argument of a reduction"),
    ("sum(v for v in x, 3)", 1, 19, "expected a name"),
    ("sum(i for i in 0..n for j in 0..n)", 1, 21, "separated by commas"),
    ("sum(i for i in 0..n if a if b)", 1, 26, "a generator has one condition"),
    ("sum(x[i] if c for i in 0..n)", 1, 10, "stands at its end"),
    ("[i for i in 0..n step 2]", 1, 18, "`step` is for `for` statements"),
    ("[for i in 0..n: i]", 1, 2, "the expression stands first"),
    ("t.0 = 3", 1, 1, "an element of a tuple cannot be assigned"),
    ("x.T = 3", 1, 1, "`x.T` is a value, not a place"),
    ("f(x) = 3", 1, 1, "only variables and their elements can be assigned"),
    ("(a, 1) = y", 1, 5, "only variables and their elements can be assigned"),
    ("(a, b) += y", 1, 8, "a tuple is assigned with `=`"),
    ("f(axis = 1, y)", 1, 13, "an argument without a name stands before `axis = ...`"),
    ("grad(f, x)(y)", 1, 1, "`grad` takes one function"),
    ("grad(f, along = x)(y)", 1, 9, "`grad` has no argument `along`"),
    ("grad(f, wrt = 3)(y)", 1, 15, "`wrt` takes names of parameters"),
    ("@checkpoint for i in 0..n { }", 1, 2, "checkpoint takes the number of segments"),
    ("@checkpoint() for i in 0..n { }", 1, 2, "checkpoint takes the number of segments"),
    ("@unroll(4) for i in 0..n { }", 1, 2, "the only annotation is `@checkpoint"),
    ("@checkpoint(segments = 3) while y > 0.0 { }", 1, 27, "stands before a `for` loop"),
    ("let z: f64[n/2] = x", 1, 12, "a size is made of names and whole numbers"),
    ("let z: [n] = x", 1, 8, "found `[`, expected a type"),
    ('assert y > 0.0, "no\n1', 1, 17, 'never closed: `"` is missing'),
    ('assert y > 0.0, "a \\n b"', 1, 17, "the escapes are"),
    ('let z = "text"', 1, 9, "a text is no value"),
    ("let z = 'text'", 1, 9, "`'` has no meaning here"),
    ("let z = y ? 1 : 2", 1, 11, "`?` has no meaning here"),
    ("y² + y", 1, 2, "the square of x is written `x**2`"),
    ("y × y", 1, 3, "multiplication is written `*`"),
    ("y ≤ 1", 1, 3, "`≤` is written `<=`"),
    ("√y", 1, 1, "`√` has no meaning here"),
    ("y − 1", 1, 3, "minus is written `-`"),
    ("// remark\ny", 1, 1, "a comment begins with `#`"),
    ("let z = y // the height\nz", 1, 11, "a comment begins with `#`"),
    ("/* remark */ y", 1, 1, "a comment begins with `#`"),
    ("    fn h(z: f64) -> f64 { z }\n    h(y)", 1, 5, "a function cannot be defined inside another one"),
    ("    export f", 1, 5, "`export` belongs at the top level"),
    ("f(y", 1, 2, "`(` is never closed"),
    ("let z = f(x[0]\nlet w = z", 1, 10, "`(` is never closed"),
    ("let z = f(x[0\nw = z", 1, 10, "`(` is never closed"),
    ("f(x[0)", 1, 4, "`[` is never closed"),
    ("f(x])", 1, 4, "`]` closes nothing"),
    ("x[f(0])", 1, 4, "`(` is never closed"),
    ("y)", 1, 2, "`)` closes nothing"),
]


@pytest.mark.parametrize(("text", "line", "column", "words"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_mistake(text: str, line: int, column: int, words: str) -> None:
    found = in_function(text)
    assert (found[0][:2], words in found[0][2]) == ((line, column), True), found


ONE_MESSAGE = [m for m in MISTAKES if m[0] not in ("let z = f(x[0\nw = z",)]


@pytest.mark.parametrize("text", [m[0] for m in ONE_MESSAGE])
def test_a_mistake_gives_one_message(text: str) -> None:
    assert len(in_function(text)) == 1


ITEM_MISTAKES = [
    ("def f(x):\n    return x\n", 1, 1, "a function is written `fn name"),
    ("f(x: f64) -> f64 { x }\n", 1, 1, "a function begins with `fn`"),
    ("// a comment\nfn g(x: f64) -> f64 = x\n", 1, 1, "a comment begins with `#`"),
    ("x = 3\nprint(x)\n", 1, 1, "found `x` outside a function"),
    ("var x = 3\n", 1, 1, "a constant is written `let name = value`"),
    ("let mut x = 3\n", 1, 5, "declared with `var`"),
    ("fn f(x, y: f64) -> f64 { x }\n", 1, 6, "parameter `x` needs its type"),
    ("fn f(x: f64): f64 { x }\n", 1, 13, "the type of the result stands behind `->`"),
    ("fn f(f64 x) -> f64 { x }\n", 1, 10, "a parameter is its name, then its type: `x: f64`"),
    ("fn f(x: f64[]) -> f64 { x }\n", 1, 13, "an array type has a size for each axis: `f64[n]`"),
    ("fn f(x: f64) -> f64, f64 { (x, x) }\n", 1, 20, "several types are a tuple"),
    ("fn f(x: f64) -> f64 = x, x\n", 1, 24, "several values are a tuple"),
    ("fn f(x: f64 = 2) -> f64 { x }\n", 1, 13, "a parameter has no default value"),
    ("fn f(x: f64) -> f64\n", 1, 20, "this function has no body"),
    ("fn f(x: f64) -> f64\n{\n  x\n}\n", 2, 1, "`{` of a definition stays on the line"),
    ("fn f(x: f64) -> f64 =\n", 1, 22, "expected an expression after `=`"),
    ("fn f<T>(x: f64) -> f64 { x }\n", 1, 5, "a function has no type parameters"),
    ("fn f(x: fn(f64)) -> f64 { x }\n", 1, 16, "a function type names its result"),
    ("fn (x: f64) -> f64 { x }\n", 1, 4, "found `(`, expected a name"),
    ("fn in(x: f64) -> f64 { x }\n", 1, 4, "`in` is a reserved word"),
    ("fn f(x: f64[n/2]) -> f64 { x }\n", 1, 13, "a size is made of"),
    ("fn f(x: f64) -> f64 { x } fn h(x: f64) -> f64 { x }\n", 1, 27, "expected a new line"),
    ("export fn f(x: f64) -> f64 { x }\n", 1, 1, "`fn f` without `export` here, and `export f` on a line of its own"),
    ("fn f(x: f64) -> f64 { x }\n}\n", 2, 1, "`}` closes nothing"),
    ("fn f(x: f64 -> f64 { x }\n", 1, 5, "`(` is never closed"),
    ("fn f(x: f64) -> f64 {\n    x\n", 1, 21, "`{` is never closed"),
    ("fn f(x: f64) -> f64 {\n    if x > 0.0 {\n        x\n    x\n}\n", 2, 16, "`{` is never closed"),
    ("import linalg\n", 1, 8, "an import names a file"),
    ('import "linalg\n', 1, 8, "never closed"),
    ("export f =\n", 1, 11, "expected an expression after `=`"),
    ("export f, g\n", 1, 9, "an `export` names one function"),
    ("let a, b = 3\n", 1, 6, "several names stand in parentheses"),
    ("type T = f64, f64\n", 1, 13, "several types are a tuple"),
    ("export\n", 1, 7, "expected a name"),
    ("derivative foo f = f\n", 1, 12, "`vjp` or `jvp`, not `foo`"),
    ("derivative vjp f\n", 1, 17, "expected `=`"),
    ("type T\n", 1, 7, "expected `=`"),
    ("type T = f64[\n", 1, 13, "`[` is never closed"),
    ("let c\n", 1, 6, "this needs a value"),
    ("struct P { x: f64 }\n", 1, 1, "a tuple"),
    ("$\n", 1, 1, "`$` has no meaning here"),
]


@pytest.mark.parametrize(("text", "line", "column", "words"), ITEM_MISTAKES, ids=[m[0] for m in ITEM_MISTAKES])
def test_mistake_in_an_item(text: str, line: int, column: int, words: str) -> None:
    """One message, and the next function is whole."""
    diagnostics = Diagnostics()
    file = parse(text + "\nfn last(x: f64) -> f64 = x\n", "test.grad", diagnostics)
    found = [(d.line, d.column, d.message) for d in diagnostics]
    assert len(found) == 1 and found[0][:2] == (line, column) and words in found[0][2], found
    assert [f.name for f in file.functions if f.name == "last"] == ["last"]


# Going on ------------------------------------------------------------------------------------------------------


def test_every_statement_is_reported() -> None:
    text = """fn f(x: f64[n]) -> f64 {
    let a = x x
    for i in 0..n {
        let b = 1 +
        while i = 3 {
            s + * 2
        }
        s += f(|y| {
            let z = y y
            z
        })
    }
    if x ? { let c = 3 3 } else { let d = 4 4 }
    a b
}
fn g(x: f64, y) -> f64 {
    let e = 5 5
    e
}
export h = grad(f
let k = 3 3
"""
    places = [(line, column) for line, column, _ in messages(text)]
    assert places == [
        (2, 15), (4, 20), (5, 17), (6, 17), (9, 23), (13, 10), (13, 24), (13, 45), (14, 7),
        (16, 14), (17, 15), (20, 16), (21, 11),
    ]  # fmt: skip


def test_what_is_repaired_is_kept() -> None:
    """A sign of another language costs a message, not the function."""
    diagnostics = Diagnostics()
    file = parse("fn f(x: f64) -> f64 = if x = 1.0 && !(x ≤ 2.0) { x² } else { x ^ 3 }\n", "a", diagnostics)
    assert len(diagnostics) == 6
    assert shape(file.functions[0].body) == "(if (and (== x 1.0) (not (<= x 2.0))) {(** x 2)} {(** x 3)})"
    assert file.broken_names == set()


def test_names_of_what_is_left_out() -> None:
    source = """import linalg
type T = f64[
let c = 3 3
fn f(x: f64) -> f64 = x x
export g = 3 3
def h(x):
    return x
fn whole(x: f64) -> f64 = x
"""
    file = parse(source, "a", Diagnostics())
    assert file.broken_names == {"*", "T", "c", "f", "g", "h"}
    assert [f.name for f in file.functions] == ["whole"]


def test_what_a_broken_function_leaves_behind_is_not_reported() -> None:
    source = """fn f(x: f64) -> f64
    let y = x
    if y > 0.0 {
        y = 2.0
    }
    y
}

fn g(x: f64) -> f64 = x
"""
    diagnostics = Diagnostics()
    file = parse(source, "a", diagnostics)
    assert [(d.line, d.column) for d in diagnostics] == [(1, 20)]
    assert [f.name for f in file.functions] == ["g"] and file.constants == []


@pytest.mark.parametrize(
    "text",
    [
        "(" * 20000 + "x" + ")" * 20000,
        "(" * 20000,
        "{" * 5000,
        "-" * 20000 + "x",
        "x**" * 20000 + "x",
        "x + " * 5000 + "x",
        "not " * 20000 + "x",
        "|x| " * 20000 + "x",
        "if c { x } " + "else if c { x } " * 5000 + "else { x }",
        "x" + "[0]" * 5000,
        "f" + "(x)" * 5000,
        "t" + ".0" * 5000,
        "1" * 10000,
        "a < " * 5000 + "a",
        ")" * 5000,
        "$" * 5000,
    ],
    ids=lambda text: text[:12],
)
def test_depth_and_length_are_errors(text: str) -> None:
    diagnostics = Diagnostics()
    file = parse(f"fn f(x: f64) -> f64 = {text}\nfn g(x: f64) -> f64 = x\n", "a", diagnostics)
    assert 1 <= len(diagnostics) <= 20
    assert [f.name for f in file.functions] == ["g"] and file.broken_names == {"f"}


@pytest.mark.parametrize("text", ["\0", "\x1b[0m", "\ud800", "a\u2028b", "\U0001f600", "é\u0300\u0300", "\r", "\\"])
def test_strange_characters(text: str) -> None:
    diagnostics = Diagnostics()
    parse(f"fn f(x: f64) -> f64 = {text}\n", "a", diagnostics)
    diagnostics.render().encode("utf-8", "surrogatepass")


# Any text ------------------------------------------------------------------------------------------------------

TOKEN = re.compile(r"#[^\n]*|\w+|[ \t]+|\n|\*\*|\.\.|.")
WORDS = "( ) [ ] { } fn let if else for in ; = == | || . .. 1.0 x @ ^ && step return def elif # ² , :"
PIECES = [*WORDS.split(), '"', "\n"]


def mutated(source: str, rng: random.Random) -> str:
    if rng.random() < 0.2:
        return source[: rng.randrange(len(source))]
    parts = TOKEN.findall(source)
    for _ in range(rng.choice([1, 1, 2, 4])):
        i = rng.randrange(len(parts))
        if rng.random() < 0.6:
            del parts[i]
        elif rng.random() < 0.5:
            parts.insert(i, rng.choice(PIECES))
        else:
            j = rng.randrange(len(parts))
            parts[i], parts[j] = parts[j], parts[i]
    return "".join(parts)


@pytest.mark.parametrize("path", sorted(CASES.glob("*.grad")), ids=lambda p: p.stem)
def test_any_text_gives_diagnostics(path: Path) -> None:
    """Never an exception; what is left out has been reported."""
    source = path.read_text(encoding="utf-8")
    rng = random.Random(path.stem)
    for _ in range(12):
        text = mutated(source, rng)
        diagnostics = Diagnostics()
        file = parse(text, "a", diagnostics)
        assert len(diagnostics) > 0 or not file.broken_names, text
        diagnostics.render()
