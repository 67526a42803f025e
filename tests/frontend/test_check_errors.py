"""Wrong programs and what the checker says about them: place, text, and what to write instead."""

from __future__ import annotations

import pytest

from aotdiff.frontend.check import check
from aotdiff.frontend.diagnostics import CompileError, Note
from aotdiff.frontend.program import load_source

# A program, its errors as `line:column: message`, and the hints below them (notes without a place), all in order.
ERRORS: list[tuple[str, list[str], list[str]]] = [
    (
        "fn f(x: f64) -> f64 = f32(x) + x",
        [
            "1:23: `+` mixes f32 with f64; convert one of them",
        ],
        [
            "write `f64(f32(x))`",
        ],
    ),
    (
        "fn f(x: f64, n: i64) -> f64 = n",
        [
            "1:31: the result of `f` must be f64, found i64",
        ],
        [
            "write `f64(n)`",
        ],
    ),
    (
        """\
fn g(x: f64) -> f64 = x
fn f(n: i64) -> f64 = g(n)
""",
        [
            "2:25: argument 1 (`x`) of `g` must be f64, found i64",
        ],
        [
            "write `f64(n)`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = x",
        [
            "1:26: the result of `f` must be f64, found f64[n]",
        ],
        [],
    ),
    (
        """\
fn f(x: f64[n]) -> f64 { x[0]
 -x[1] }
""",
        [
            "1:26: the value of this expression is dropped",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 { var s = 0.0; for i in 0..n { x[i] }; s }",
        [
            "1:55: the value of this expression is dropped",
        ],
        [
            "bind it (`let y = ...`), or remove it",
        ],
    ),
    (
        "fn f(x: f64[n], idx: i64[m]) -> f64 = sum(x[idx])",
        [
            "1:45: an index must be i64, found i64[m]",
        ],
        [
            "write `[x[idx[k]] for k in 0..len(idx)]`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = sum(x[x > 0.0])",
        [
            "1:32: an index must be i64, found bool[n]: a mask does not select",
        ],
        [
            "for one value write `sum(x[i] for i in 0..len(x) if (x > 0.0)[i])`; or use `where`",
        ],
    ),
    (
        "fn f(x: f64[n], y: f64) -> f64 = x[y]",
        [
            "1:36: an index must be i64, found f64",
        ],
        [
            "write `i64(y)` to cut off the fraction",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = x[0, 1]",
        [
            "1:26: 2 indices for f64[n], which has 1 dimension",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 = x[0]",
        [
            "1:23: only arrays have elements; `x` is f64",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { let t = (x, x); t.2 }",
        [
            "1:39: the tuple (f64, f64) has elements 0 to 1, not 2",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { let (a, b) = x; a }",
        [
            "1:27: this takes a tuple of 2 apart, found f64",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { x = 2.0; x }",
        [
            "1:23: `x` is a parameter and cannot be assigned; copy it: `var x = x`",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 { n = 2; x[0] }",
        [
            "1:26: `n` is a size and cannot be assigned; copy it: `var m = n`",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 { for i in 0..n { i = 2 }; x[0] }",
        [
            "1:42: `i` is the index of a loop and cannot be assigned",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { y = 2.0; x }",
        [
            '1:23: unknown name "y"; declare it: `var y = ...`',
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { var s = 1.0; let g = |t: f64| { s = t; t }; g(x) }",
        [
            "1:55: `s` is declared outside a lambda, which cannot write it: a lambda cannot write what is around it",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 { sum({ if i > 2 { return 1.0 }; x[i] } for i in 0..n) }",
        [
            "1:43: `return` cannot leave `sum(...)`",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 { for i in 0..n { let y = [{ break; 1.0 } for j in 0..n] }; 1.0 }",
        [
            "1:53: `break` cannot leave a comprehension",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { break; x }",
        [
            "1:23: `break` outside a loop",
        ],
        [],
    ),
    (
        "fn f(x: f64, c: bool) -> f64 { let g = if c { sin } else { cos }; g(x) }",
        [
            "1:40: a function cannot be chosen by a run-time condition",
        ],
        [
            "functions are compile-time values; call one in each branch instead",
        ],
    ),
    (
        "fn f(x: f64) -> f64 { var g = sin; g(x) }",
        [
            "1:23: a `var` cannot hold a function: functions are compile-time values; use `let`",
        ],
        [],
    ),
    (
        "fn d(f: fn(f64) -> f64, n: i64, x: f64) -> f64 = if n == 0 { f(x) } else { d(grad(f), n - 1, x) }",
        [
            "1:78: this recursion never ends at compile time: each call passes a function built from the last",
        ],
        [
            "it is built from the parameter `f`; functions are compile-time values",
        ],
    ),
    (
        """\
fn d(f: fn(f64) -> f64, n: i64, x: f64) -> f64 { let g = grad(f); if n == 0 { f(x) } else { d(g, n - 1, x) } }
""",
        [
            "1:95: this recursion never ends at compile time: each call passes a function built from the last",
        ],
        [
            "it is built from the parameter `f`; functions are compile-time values",
        ],
    ),
    (
        "fn d(f: fn(f64) -> f64, n: i64, x: f64) -> f64 = if n == 0 { f(x) } else { d(|t| f(f(t)), n - 1, x) }",
        [
            "1:78: this recursion never ends at compile time: each call passes a function built from the last",
        ],
        [
            "it is built from the parameter `f`; functions are compile-time values",
        ],
    ),
    (
        "fn f(x: f64, n: i64) -> f64 = if n == 0 { x } else { grad(f)(x, n - 1) }",
        [
            "1:54: `f` is differentiated inside itself, which never ends at compile time",
        ],
        [
            "each level of the recursion would need a derivative of one order more",
        ],
    ),
    (
        """\
fn newton(f: fn(f64) -> f64, x: f64) -> f64 = f(x)
export newton
""",
        [
            "2:8: `newton` cannot be exported: its parameter `f` is a function",
        ],
        [
            "export a lambda that passes the function",
        ],
    ),
    (
        """\
fn newton(f: fn(f64) -> f64, x: f64) -> f64 = f(x)
fn g(x: f64[n]) -> f64[n] = x
fn h(x: f64) -> f64 = newton(g, x) + newton(x, x) + newton(pow, x) + newton(|a, b| a, x)
""",
        [
            "3:30: argument 1 (`f`) of `newton` must be fn(f64) -> f64, found fn(f64[n]) -> f64[n]",
            "3:45: argument 1 (`f`) of `newton` must be a function fn(f64) -> f64, found f64",
            "3:60: argument 1 (`f`) of `newton` must be fn(f64) -> f64: a function of 1 argument, found one of 2",
            "3:77: argument 1 (`f`) of `newton` must be fn(f64) -> f64: a function of 1 argument, found one of 2",
        ],
        [
            "argument 1 (`x`) of the function must be f64[n], found f64",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = grad(f)(x)",
        [
            "1:26: the result of `f` must be f64, found f64[n]",
        ],
        [],
    ),
    (
        """\
fn g(n: i64, x: f64) -> f64 = x
fn f(x: f64) -> f64 = grad(g, wrt = n)(1, x)
""",
        [
            "2:37: the parameter `n` of `g` is i64: only floats have derivatives",
        ],
        [],
    ),
    (
        """\
fn g(x: f64) -> i64 = i64(x)
fn f(x: f64) -> f64 = grad(g)(x)
""",
        [
            "2:23: `grad` wants a function with a float result; `g` gives i64",
        ],
        [],
    ),
    (
        """\
fn g(x: f64[n]) -> f64 = sum(x)
fn f(x: f64[n]) -> f64[n] = hvp(g)(x)
""",
        [
            "2:29: `hvp(g)` takes 2 arguments, found 1",
        ],
        [
            "it takes (x: f64[n], v: f64[n])",
            "missing: `v`",
        ],
    ),
    (
        """\
fn g(x: f64[n]) -> f64 = sum(x)
fn f(x: f64[n]) -> f64[n] = vjp(g)(x, x)
""",
        [
            "2:39: argument 2 (`ct`) of `vjp(g)` must be f64, found f64[n]",
        ],
        [],
    ),
    (
        """\
fn g(x: f64[n]) -> f64 = sum(x)
fn f(x: f64[n]) -> f64[n] = grad(g(x))
""",
        [
            "2:34: `grad` wants a function, found f64",
        ],
        [
            "it takes the function, and its result the arguments: `grad(g)(...)`",
        ],
    ),
    (
        """\
fn g(x: f64[n]) -> f64 = sum(x)
fn f(x: f64[n]) -> f64[n] = grad(g, x)
""",
        [
            "2:29: `grad` takes one function and, if wanted, `wrt = ...`",
        ],
        [
            "it gives a function; that one takes the arguments: `grad(g)(x)`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = x @ 2.0",
        [
            "1:26: `@` wants matrices or vectors, found f64[n] and f64",
        ],
        [
            "numbers are multiplied by `*`",
        ],
    ),
    (
        "fn f(a: f64[2, 3], b: f64[4, 2]) -> f64 = sum(a @ b)",
        [
            "1:47: the shapes of `@` do not fit: f64[2, 3] and f64[4, 2]",
        ],
        [
            "left  f64[2, 3]",
            "right f64[4, 2]",
            "the last dimension of the left is 3, the first of the right 4",
        ],
    ),
    (
        "fn f(a: f64[n, 3], b: f64[4]) -> f64 = sum(a * b)",
        [
            "1:44: the shapes of `*` do not fit: f64[n, 3] and f64[4]",
        ],
        [
            "left  f64[n, 3]",
            "right f64[4]",
            "dimension 1 of the left and 0 of the right differs: 3 and 4",
        ],
    ),
    (
        """\
fn g(a: f64[3]) -> f64 = a[0]
fn f(x: f64[4]) -> f64 = g(x)
""",
        [
            "2:28: argument 1 (`a`) of `g` must be f64[3], found f64[4]",
        ],
        [
            "found  f64[4]",
            "wanted f64[3]",
            "dimension 0 differs: 4 and 3",
        ],
    ),
    (
        """\
fn g(a: f64[n], b: f64[n]) -> f64 = dot(a, b)
fn f(x: f64[4], y: f64[5]) -> f64 = g(x, y)
""",
        [
            "2:42: argument 2 (`b`) of `g` must be f64[4], found f64[5]",
        ],
        [
            "found  f64[5]",
            "wanted f64[4]",
            "dimension 0 differs: 5 and 4",
        ],
    ),
    (
        """\
fn g(a: f64[2*n+1]) -> f64 = a[0]
fn f(x: f64[4]) -> f64 = g(x)
""",
        [
            "2:26: a size of `g` must be of the form 2*n+1, found 4",
        ],
        [],
    ),
    (
        """\
fn g(a: f64[n]) -> f64[n] = [a[0], a[1]]
fn f(x: f64[n]) -> f64[n] = x[1..]
""",
        [
            "2:29: the result of `f` must be f64[n], found f64[n-1]",
        ],
        [
            "found  f64[n-1]",
            "wanted f64[n]",
            "dimension 0 differs: n-1 and n",
        ],
    ),
    (
        "fn f(x: f64[n*n]) -> f64 = x[0]",
        [
            "1:13: nothing gives the size `n`: it occurs only inside expressions that it does not follow from",
        ],
        [
            "use `n` alone as a dimension, or in the form `2*n + 1`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64[m] = x",
        [
            "1:24: no parameter gives the size `m`",
        ],
        [
            "a size name is bound by a dimension of a parameter's array type",
        ],
    ),
    (
        "fn f(x: f64[n], n: f64) -> f64 = n",
        [
            "1:13: `n` is a size here and a parameter of type f64; a size is an i64",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 = sum(x, axis = 1)",
        [
            "1:40: there is no axis 1: the argument has axes 0 to 0",
        ],
        [],
    ),
    (
        "fn f(x: f64[n], k: i64) -> f64 = sum(x, axis = k)",
        [
            "1:48: an axis is a number as written, such as `axis = 1`",
        ],
        [],
    ),
    (
        "fn f(x: f64[n, m]) -> f64 = sum(x, axes = 1)",
        [
            '1:36: `sum` has no argument named `axes`; did you mean "axis"?',
        ],
        [],
    ),
    (
        "fn f(x: f64[n, m]) -> f64 = sum(x, axis = 1)",
        [
            "1:29: the result of `f` must be f64, found f64[n]",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> i64 = argmax(x[i] * x[j] for i in 0..n, j in 0..n)",
        [
            "1:60: `argmax` gives the index of one range, such as `argmax(f(i) for i in 0..n)`",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64[n] = [x[i] for i in 0..n if x[i] > 0.0]",
        [
            "1:52: a comprehension has no `if`: its size must be known before it runs",
        ],
        [
            "count the elements first, or use `if ... { } else { }` in the body",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64[n, n] = [x[i] for i in 0..n, j in 0..i]",
        [
            "1:61: a range of a comprehension cannot use its index `i`",
        ],
        [
            "an array has the same size in each row; only reductions may use earlier indices",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64[n, n] = [x[0..i] for i in 0..n]",
        [
            "1:33: the body of a comprehension must have the same sizes at each index",
        ],
        [
            "dimension 0 is i, which changes with `i`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = exp(x[i] for i in 0..n)",
        [
            "1:26: `exp` does not take a generator; these do: all, any, argmax, argmin, max, mean, min, prod, sum",
        ],
        [
            "put the values into an array: `exp([...])`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = max(x, 2.0)",
        [
            "1:23: `max` takes 1 argument, found 2",
        ],
        [
            "the larger or smaller of two values is `maximum(x, y)`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = foo(x) + sinn(x) + np.exp(x)",
        [
            '1:23: unknown name "foo"',
            '1:32: unknown name "sinn"; did you mean "sinh" or "sinc"?',
            '1:42: unknown name "np"; built-in functions have no prefix: "exp(x)", not "np.exp(x)"',
        ],
        [],
    ),
    (
        "fn f(x: f64[n], maps: f64) -> f64 = torch.sum(x) + map(sin, x) + gammaln(x) + x.append(1.0)",
        [
            '1:37: unknown name "torch"; built-in functions have no prefix: "exp(x)", not "torch.exp(x)"',
            '1:52: unknown name "map"; did you mean "max" or "maps"?',
            '1:66: unknown name "gammaln"; the logarithm of the gamma function is "lgamma"',
            "1:79: no value has an attribute `append`; there is only `.T`",
        ],
        ["an array does not grow in place: `a = concat(x, [v])`"],
    ),
    (
        "fn f(r: fn(f64[d]) -> f64[n], x: f64[d]) -> f64 = sum(r(x))",
        ["1:27: no parameter gives the size `n`"],
        ["a function type binds no sizes: a parameter `n: i64` gives this one"],
    ),
    (
        "fn f(x: f64[n]) -> f64[n] = map(sin, x)",
        ['1:29: unknown name "map"; write "[f(v) for v in x]"'],
        [],
    ),
    (
        "fn f(x: f64) -> bool { print(x); True }",
        [
            '1:24: unknown name "print"; functions give values and print nothing',
            '1:34: unknown name "True"; write "true"',
        ],
        [],
    ),
    (
        "fn f(x: float) -> f64 = x",
        [
            '1:9: unknown type `float`; did you mean "f64"?',
        ],
        [
            "the scalar types are f64, f32, i64, bool and real",
        ],
    ),
    (
        """\
type A = B
type B = A
fn f(x: A) -> f64 = 1.0
""",
        [
            "1:6: the type `A` is defined by itself",
            "2:6: the type `B` is defined by itself",
        ],
        [],
    ),
    (
        """\
let a = b
let b = a
fn f(x: f64) -> f64 = a * x
""",
        [
            "1:5: the constant `a` is defined by itself",
        ],
        [],
    ),
    (
        """\
fn f(x: f64) -> f64 = x
fn f(x: f64) -> f64 = x
""",
        [
            "2:4: `f` is already the name of a function",
        ],
        [],
    ),
    (
        """\
fn f(x: f64) -> f64 = x
let f = 2.0
""",
        [
            "1:4: `f` is already the name of a constant",
        ],
        [],
    ),
    (
        "fn f(x: f64, x: f64) -> f64 = x",
        [
            "1:14: two parameters are called `x`",
        ],
        [],
    ),
    (
        """\
fn f(x: f64) -> f64 = x
export f
export f
export g
""",
        [
            "3:8: `f` is exported twice",
            "4:8: there is no function `g`",
        ],
        [],
    ),
    (
        """\
fn f(x: f64) -> f64 = x
fn fp(x: f64) -> f64 = x
derivative vjp f = fp
derivative vjp g = fp
derivative jvp f = |x, dx| (x, dx)
""",
        [
            "3:20: `fp` takes 1 argument, found 2",
            "4:16: there is no function `g`",
            "5:20: the result of `|x, dx| (x, dx)` must be f64, found the tuple (f64, f64)",
        ],
        [
            "it takes (x: f64)",
            "a vjp rule of `f` takes its arguments, then the cotangents: fn(f64, f64) -> f64",
            "it gives the tangent of the result",
        ],
    ),
    (
        """\
fn f(x: f64) -> f64 = x
derivative vjp f = |x, ct| ct
derivative vjp f = |x, ct| ct
""",
        [
            "3:16: `f` already has a vjp rule",
        ],
        [],
    ),
    (
        "export h = |x: f64[n], y: f64[m]| x * y",
        [
            "1:8: `h` cannot be exported: a size of its result f64[?] does not follow from its parameters",
        ],
        [
            "write a function whose result type says the size: `fn f(x: f64[n]) -> f64[n]`",
        ],
    ),
    (
        "export h = |x| x",
        [
            "1:13: nothing tells the type of the parameter `x`",
        ],
        [
            "write its type: `|x: f64| ...`",
        ],
    ),
    (
        "export h = stack",
        [
            "1:12: nothing tells the types of the parameters of this function",
        ],
        [
            "write the types: `|x: f64[n]| stack(x)`",
        ],
    ),
    (
        "export h = 2.0",
        [
            "1:12: only functions are exported; this is f64",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 = if x { 1.0 } else { 2.0 }",
        [
            "1:26: the condition of `if` must be bool, found f64",
        ],
        [
            "write a comparison, such as `x > 0.0`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = if x > 0.0 { 1.0 } else { 2.0 }",
        [
            "1:29: the condition of `if` must be bool, found bool[n]",
        ],
        [
            "write `any(x > 0.0)` or `all(x > 0.0)`",
        ],
    ),
    (
        "fn f(x: f64, n: i64) -> f64 = if n > 0 { x } else { n }",
        [
            "1:31: the branches differ: f64 and i64",
        ],
        [
            "the first gives f64",
            "the other gives i64",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = if x > 0.0 { x }",
        [
            "1:23: an `if` without `else` has no value",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { if x > 0.0 { x } else { } }",
        [
            "1:45: this block must have a value: its last line has to be an expression",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { if x > 0.0 { return x } }",
        [
            "1:4: `f` must give f64, but it ends without a value",
        ],
        [],
    ),
    (
        "fn f(x: bool) -> bool = x and 1 or x < x",
        [
            "1:31: `and` wants bool on both sides, found i64",
            "1:36: `<` compares numbers; bools are compared by `==` and `!=`",
        ],
        [
            "write `1 != 0`",
        ],
    ),
    (
        "fn f(n: i64) -> f64 { var s = 0.0; s = true; s += true; s }",
        [
            "1:40: the value of `s` must be f64, found bool",
            "1:46: `+=` wants numbers, found bool",
        ],
        [
            "write `f64(true)`",
            "write `i64(true)`",
        ],
    ),
    (
        "fn f(n: i64) -> i64 { var s = n; s /= 2; s += 1.5; s }",
        [
            "1:34: `/=` gives f64 here, but `s` is i64",
            "1:42: `+=` gives f64 here, but `s` is i64",
        ],
        [
            "floor division keeps i64: `s = s // 2`",
            "write `i64(1.5)`, or declare `s` as a float",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 { var a = x; a[0] = x; a[0..2] = [1.0, 2.0, 3.0]; a += 1; a = 2.0; a[0] }",
        [
            "1:44: the value of `a[0]` must fit into f64, found f64[n]",
            "1:57: the value of `a[0..2]` must fit into f64[2], found f64[3]",
            "1:86: the value of `a` must be f64[n], found f64",
        ],
        [
            "found  f64[3]",
            "wanted f64[2]",
            "dimension 0 differs: 3 and 2",
        ],
    ),
    (
        'fn f(x: f64) -> f64 { assert x, "m"; x }',
        [
            "1:30: the condition of `assert` must be bool, found f64",
        ],
        [
            "write a comparison, such as `x > 0.0`",
        ],
    ),
    (
        "fn f(x: f64, k: f64) -> f64 { @checkpoint(segments = k) for i in 0..3 { } ; x }",
        [
            "1:54: the number of segments must be i64, found f64",
        ],
        [
            "write `i64(k)` to cut off the fraction",
        ],
    ),
    (
        "fn f(x: f64) -> f64 { for i in 0.0..3.0 { }; for j in x { }; x }",
        [
            "1:32: a bound of a range must be i64, found f64",
            "1:37: a bound of a range must be i64, found f64",
            "1:55: a loop runs over a range or an array, found f64",
        ],
        [
            "write `i64(0.0)` to cut off the fraction",
            "write `i64(3.0)` to cut off the fraction",
            "a range is written `0..x`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = [1.0, true][0] + [[1.0], [1.0, 2.0]][0][0]",
        [
            "1:29: the elements of an array must agree: the first is f64, this one bool",
            "1:48: the elements of an array must agree: the first is f64[1], this one f64[2]",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 = [][0]",
        [
            "1:23: an empty array literal has no type",
        ],
        [
            "write `zeros(0)`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = x.shape[0] + x.t[0] + x.sum",
        [
            "1:26: no value has an attribute `shape`; there is only `.T`",
            "1:39: no value has an attribute `t`; there is only `.T`",
            "1:48: no value has an attribute `sum`; there is only `.T`",
        ],
        [
            "write `shape(x, 0)` for one dimension",
            "the transpose is `x.T`",
            "write `sum(x)`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = x(2.0)",
        [
            "1:23: `x` is f64, not a function",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 = sin(x, x) + sin() + atan2(x)",
        [
            "1:23: `sin` takes 1 argument, found 2",
            "1:35: `sin` takes 1 argument, found 0",
            "1:43: `atan2` takes 2 arguments, found 1",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { let f = |t| t; x }",
        [
            "1:32: nothing tells the type of the parameter `t`",
        ],
        [
            "write its type: `|t: f64| ...`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = 99999999999999999999",
        [
            "1:23: this number does not fit into i64",
        ],
        [
            "a float has a point: `1.0e20`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = reshape(x, 2, 3)[0, 0] + reshape([1.0, 2.0], 3)[0]",
        [
            "1:51: f64[2] cannot take the shape [3]",
        ],
        [
            "it has 2 elements, the shape [3] has 3",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = sum(zeros(1.5)) + zeros(-1)[0]",
        [
            "1:36: a size in `zeros` must be i64, found f64",
            "1:50: a size cannot be negative (this is -1)",
        ],
        [
            "write `i64(1.5)` to cut off the fraction",
        ],
    ),
    (
        "fn r(n: i64) = if n == 0 { 1.0 } else { r(n - 1) }",
        [
            "1:4: `r` calls itself, so its result type has to be written",
        ],
        [
            "write `fn r(...) -> T`",
        ],
    ),
    (
        "fn f(x: f64) -> fn(f64) -> f64 = sin",
        [
            "1:17: a function cannot be the result of a function",
            "1:34: `f` cannot give a function: functions are compile-time values",
        ],
        [],
    ),
    (
        "fn g(f: fn(f64[m]) -> f64, x: f64[n]) -> f64 = f(x)",
        [
            "1:16: no parameter gives the size `m`",
        ],
        [
            "a function type binds no sizes: a parameter `m: i64` gives this one",
        ],
    ),
    (
        "fn f(x: real, y: f64) -> real = x * y",
        [
            "1:33: `*` mixes f64 with real; convert one of them",
        ],
        [
            "write `real(y)`",
        ],
    ),
    (
        """\
fn g(x: real, y: real) -> real = x * y
fn f(x: f32, y: f64) -> f64 = g(x, y)
""",
        [
            "2:36: argument 2 (`y`) of `g` must be f32, found f64",
        ],
        [
            "write `f32(y)`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = sin",
        [
            "1:23: `f` cannot give a function: functions are compile-time values",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { let t = (sin, x); t.1 }",
        [
            "1:32: a function cannot be an element of a tuple; bind it by `let`",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { var t = (x, x); t.0 = 1.0; t.0 }",
        [
            "1:39: an element of a tuple cannot be assigned",
        ],
        [
            "take the tuple apart with `let (a, b) = ...`, or assign all of it: `t = (a, b)`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 { var y: f64[3] = [1.0, 2.0, 3.0]; y = [1.0, 2.0]; y[0] }",
        [
            "1:63: the value of `y` must be f64[3], found f64[2]",
        ],
        [
            "found  f64[2]",
            "wanted f64[3]",
            "dimension 0 differs: 2 and 3",
        ],
    ),
    (
        "fn f(a: f64[3, 4]) -> f64 = det(a) + trace(a) + dot(a, a)",
        [
            "1:33: `det` wants a square matrix, found f64[3, 4]",
            "1:44: `trace` wants a square matrix, found f64[3, 4]",
            "1:53: `dot` wants a vector, found f64[3, 4]",
        ],
        [
            "the product with a matrix is `a @ b`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 { (x, y) = (1.0, 2.0); x }",
        [
            "1:24: `x` is a parameter and cannot be assigned; copy it: `var x = x`",
            '1:27: unknown name "y"; declare it: `var y = ...`',
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { var a = 1.0; (a, a) = (x, x); a }",
        [
            "1:40: `a` is assigned twice in one statement",
        ],
        [],
    ),
    (
        """\
fn f(x: f64) -> f64 {
    let y = 2.0 * x
    y + 1.0
    -x
}
""",
        [
            "3:5: the value of this expression is dropped",
        ],
        [],
    ),
    (
        "fn f(x: f32[n], y: f64[n]) -> f64 = dot(x, y)",
        [
            "1:37: `dot` mixes f32 with f64; convert one of them",
        ],
        [
            "write `f64(x)`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 { let y: f32[n] = x; 0.0 }",
        [
            "1:42: `y` must be f32[n], found f64[n]",
        ],
        [
            "write `f32(x)`",
        ],
    ),
    (
        "fn f(x: f64[n], y: f64[m]) -> f64[n] { let z: f64[q] = x; z }",
        [
            "1:51: no parameter gives the size `q`",
        ],
        [
            "a size name is bound by a dimension of a parameter's array type",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = where(x, 1.0, 2.0)",
        [
            "1:29: the condition of `where` must be bool, found f64",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 = where(x > 0.0, 1.0, true)",
        [
            "1:23: `where` wants numbers, found bool",
        ],
        [
            "write `i64(true)`",
        ],
    ),
    (
        "fn f(x: f64[3], y: f64[4]) -> f64 = sum(concat(x, y)) + sum(stack(x, y))",
        [
            "1:61: the shapes of `stack` do not fit",
        ],
        [
            "argument 1: f64[3]",
            "argument 2: f64[4]",
            "dimension 0 differs: 3 and 4",
        ],
    ),
    (
        "fn f(x: f64[2, 3], y: f64[2, 4]) -> f64 = sum(concat(x, y)) + sum(concat(x, y, axis = 1))",
        [
            "1:47: the shapes of `concat` do not fit",
        ],
        [
            "argument 1: f64[2, 3]",
            "argument 2: f64[2, 4]",
            "dimension 1 differs: 3 and 4",
        ],
    ),
    (
        "fn f(a: f64[3, 3], b: f64[4]) -> f64 = sum(solve(a, b))",
        [
            "1:44: the shapes of `solve` do not fit: f64[3, 3] and f64[4]",
        ],
        [
            "argument 1: f64[3, 3]",
            "argument 2: f64[4]",
            "the numbers of rows differ: 3 and 4",
        ],
    ),
    (
        "fn f(x: f64[n, m]) -> f64 = sum(cumsum(x)) + sum(softmax(x)) + argmax(x)",
        [
            "1:33: `cumsum` of f64[n, m] needs an axis",
            "1:50: `softmax` of f64[n, m] needs an axis",
        ],
        [
            "write `axis = 0`, `axis = 1`, ...",
            "write `axis = 0`, `axis = 1`, ...",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = shape(x, 1) + shape(x, n) + len(2.0)",
        [
            "1:35: there is no dimension 1: f64[n] has dimensions 0 to 0",
            "1:49: the dimension in `shape` is a number as written, such as `shape(a, 0)`",
            "1:58: `len` wants an array, found f64",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 = sum(x, keepdims = n)",
        [
            "1:44: `keepdims` is `true` or `false` as written",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 = any(x)",
        [
            "1:26: `any` wants bools, found f64[n]",
        ],
        [
            "write a comparison, such as `x > 0.0`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = sum((x[i], 1.0) for i in 0..n)",
        [
            "1:30: `sum` wants numbers or arrays, found the tuple (f64, f64)",
        ],
        [
            "write one `sum` for each element",
        ],
    ),
    (
        """\
fn g(x: f64, y: f64) -> f64 = x * y
fn f(x: f64) -> f64 = grad(g, wrt = (x, x))(x, x) + grad(g, wrt = z)(x, x)
""",
        [
            "2:37: `wrt` names `x` twice",
            "2:67: `g` has no parameter `z`",
        ],
        [
            "its parameters are `x`, `y`",
        ],
    ),
    (
        """\
fn g(x: f64, y: f64) -> f64 = x * y
fn f(x: f64) -> f64 { let (a, b) = grad(g, wrt = (x, y))(x); a }
""",
        [
            "2:36: `grad(g, wrt = (x, y))` takes 2 arguments, found 1",
        ],
        [
            "it takes (x: f64, y: f64)",
            "missing: `y`",
        ],
    ),
    (
        """\
fn g(x: f64, y: f64) -> (f64, f64) = (x, y)
fn f(x: f64) -> f64 = grad(g)(x, x)
""",
        [
            "2:23: `grad` wants a function with one number as its result; `g` gives the tuple (f64, f64)",
        ],
        [
            "differentiate a number, such as the sum of the result, or use `vjp`, `jvp` or `jacobian`",
        ],
    ),
    (
        """\
fn g(n: i64) -> f64 = 1.0
fn f(x: f64) -> f64 = grad(g)(1)
""",
        [
            "2:23: `grad` has nothing to differentiate: no parameter of `g` is a float",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 = grad(x)(x)",
        [
            "1:28: `grad` wants a function, found f64",
        ],
        [],
    ),
    (
        """\
fn g(f: fn(f64) -> f64, x: f64) -> f64 = if x > 0.0 { h(|t| f(t) + 1.0, x - 1.0) } else { f(x) }
fn h(f: fn(f64) -> f64, x: f64) -> f64 = g(f, x)
""",
        [
            "1:57: this recursion never ends at compile time: each call passes a function built from the last",
        ],
        [
            "it is built from the parameter `f`; functions are compile-time values",
        ],
    ),
    (
        """\
fn s(f: fn(f64) -> f64, x: f64) -> f64 = grad(f)(x)
fn g(x: f64, n: i64) -> f64 = if n == 0 { x } else { s(|t| g(t, n - 1), x) }
""",
        [
            "2:54: `g` is differentiated inside itself, which never ends at compile time",
        ],
        [
            "each level of the recursion would need a derivative of one order more",
        ],
    ),
    (
        """\
type F = fn(f64) -> f64
type G = H
type f64 = i64
""",
        [
            "2:10: unknown type `H`",
            "3:6: `f64` is a built-in type",
        ],
        [
            "the scalar types are f64, f32, i64, bool and real",
        ],
    ),
    (
        "fn f(x: Force) -> f64 = 1.0",
        [
            "1:9: unknown type `Force`",
        ],
        [
            "the scalar types are f64, f32, i64, bool and real",
        ],
    ),
    (
        "fn f(x: fn(f64) -> f64) -> f64 = x + 1.0",
        [
            "1:34: `+` wants numbers or arrays, found a function",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { let g = sin; g == g }",
        [
            "1:36: `==` wants numbers or arrays, found a function",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 { var y = x; y[0, 0] = 1.0; y[0][0] = 2.0; y[0.5] = 1.0; y[0] }",
        [
            "1:37: 2 indices for f64[n], which has 1 dimension",
            "1:52: only arrays have elements; `y[0]` is f64",
            "1:69: an index must be i64, found f64",
        ],
        [
            "write `i64(0.5)` to cut off the fraction",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 { let y = x; y[0] = 1.0; y[0] }",
        [
            "1:37: `y` is a `let` and cannot be assigned; declare it as `var y = ...`",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 { x[0] = 1.0; x[0] }",
        [
            "1:26: `x` is a parameter and cannot be assigned; copy it: `var x = x`",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { var s = 0.0; s += sin; s = sin; s }",
        [
            "1:41: a variable cannot hold a function: functions are compile-time values",
            "1:50: a variable cannot hold a function: functions are compile-time values",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { continue; return x }",
        [
            "1:23: `continue` outside a loop",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { let g = |t: f64| { return t }; g(x) }",
        [
            "1:42: `return` cannot leave a lambda",
        ],
        [
            "the value of a lambda is its last expression",
        ],
    ),
    (
        "fn f(x: f64) -> f64 { f = 2.0; x }",
        [
            "1:23: `f` is defined at the top level and cannot be assigned",
        ],
        [],
    ),
    (
        """\
let c = 2.0
fn f(x: f64) -> f64 { c = 3.0; x }
""",
        [
            "2:23: `c` is defined at the top level and cannot be assigned",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 = sum(x)",
        [
            "1:27: `sum` wants an array, found f64",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 = sum(x, x)",
        [
            "1:26: `sum` takes 1 argument, found 2",
        ],
        [
            "the axis is named: `sum(a, axis = 1)`",
        ],
    ),
    (
        """\
fn g(x: f64) -> f64 = x
fn f(x: f64) -> f64 = g(x = x)
""",
        [
            "2:25: arguments are given by position; only built-in functions name some",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 = x.T",
        [
            "1:23: `.T` wants an array, found f64",
        ],
        [],
    ),
    (
        "fn f(n: i64) -> i64 = n + 0.5",
        [
            "1:23: the result of `f` must be i64, found f64",
        ],
        [
            "write `i64(n + 0.5)` to cut off the fraction",
        ],
    ),
    (
        "fn f(x: f64) -> i64 = i64(x) / 2",
        [
            "1:23: the result of `f` must be i64, found f64",
        ],
        [
            "write `i64(i64(x) / 2)` to cut off the fraction",
        ],
    ),
    (
        "fn f(b: bool) -> bool = b + b == b * 2",
        [
            "1:25: `+` wants numbers, found bool",
            "1:34: `*` wants numbers, found bool",
        ],
        [
            "write `i64(b)`",
            "write `i64(b)`",
        ],
    ),
    (
        "fn f(x: f64, y: bool) -> f64 = x * y",
        [
            "1:32: `*` wants numbers, found bool",
        ],
        [
            "write `i64(y)`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = if true { x } else { (x, x) }",
        [
            "1:23: the branches differ: f64 and the tuple (f64, f64)",
        ],
        [
            "the first gives f64",
            "the other gives the tuple (f64, f64)",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = if true { x } else { [x] }",
        [
            "1:23: the branches differ: f64 and f64[1]",
        ],
        [
            "the first gives f64",
            "the other gives f64[1]",
        ],
    ),
    (
        "fn f(x: f64[n], y: f64[n-1]) -> f64 = dot(x, y)",
        [
            "1:39: the shapes of `dot` do not fit: f64[n] and f64[n-1]",
        ],
        [
            "argument 1: f64[n]",
            "argument 2: f64[n-1]",
            "the sizes differ: n and n-1",
        ],
    ),
    (
        "fn f(x: f64[n+2], y: f64[n+3]) -> f64 = sum(x * y) + n",
        [
            "1:45: the shapes of `*` do not fit: f64[n+2] and f64[n+3]",
        ],
        [
            "left  f64[n+2]",
            "right f64[n+3]",
            "dimension 0 differs: n+2 and n+3",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64[n+1] = x",
        [
            "1:31: the result of `f` must be f64[n+1], found f64[n]",
        ],
        [
            "found  f64[n]",
            "wanted f64[n+1]",
            "dimension 0 differs: n and n+1",
        ],
    ),
    (
        "fn f(x: f64[-1]) -> f64 = 0.0",
        [
            "1:13: a size cannot be negative (this is -1)",
        ],
        [],
    ),
    (
        "fn f(x: f64[n // 2]) -> f64 = 0.0",
        [
            "1:13: nothing gives the size `n`: it occurs only inside expressions that it does not follow from",
        ],
        [
            "use `n` alone as a dimension, or in the form `2*n + 1`",
        ],
    ),
    (
        "export h = |x: f64[n]| { let k = i64(x[0]); zeros(k) }",
        [
            "1:8: `h` cannot be exported: a size of its result f64[?] does not follow from its parameters",
        ],
        [
            "write a function whose result type says the size: `fn f(x: f64[n]) -> f64[n]`",
        ],
    ),
    (
        "export h = |f: fn(f64) -> f64, x: f64| f(x)",
        [
            "1:8: `h` cannot be exported: its parameter `f` is a function",
        ],
        [
            "export a lambda that passes the function",
        ],
    ),
    (
        """\
let t = 1.0
export t
""",
        [
            "2:8: `t` is not a function; only functions are exported",
        ],
        [],
    ),
    (
        """\
fn kinetic(x: f64) -> f64 = x
export kinetc
""",
        [
            '2:8: there is no function `kinetc`; did you mean "kinetic"?',
        ],
        [],
    ),
    (
        "fn f(x: f64) -> (f64, f64) = x",
        [
            "1:30: the result of `f` must be the tuple (f64, f64), found f64",
        ],
        [],
    ),
    (
        """\
fn f(x: f64, y: f64) -> f64 = x
derivative vjp f = |x, y, ct| ct
""",
        [
            "2:20: the result of `|x, y, ct| ct` must be the tuple (f64, f64), found f64",
        ],
        [
            "it gives one cotangent for each float parameter",
        ],
    ),
    (
        """\
fn f(n: i64) -> f64 = 1.0
derivative jvp f = |n| 1.0
""",
        [
            "2:16: `f` has no derivative: it needs a float parameter and a float result",
        ],
        [],
    ),
    (
        """\
fn f(x: f64) -> f64 = x
derivative vjp f = 2.0
""",
        [
            "2:20: a derivative rule is a function; `2.0` is f64",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 { var i = 0; let y = [{ i += 1; x[j] } for j in 0..n]; y[0] }",
        [
            "1:48: `i` is declared outside a comprehension, which cannot write it: its iterations are independent",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { while x { }; x }",
        [
            "1:29: the condition of `while` must be bool, found f64",
        ],
        [
            "write a comparison, such as `x > 0.0`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = sum(x[i] for i in 0..n if x[i])",
        [
            "1:52: the condition of a reduction must be bool, found f64",
        ],
        [
            "write a comparison, such as `x[i] > 0.0`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 { let (a, a) = (x, x); a }",
        [
            "1:31: `a` occurs twice in this pattern",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { let (a, (b, c)) = (x, x); a }",
        [
            "1:31: this takes a tuple of 2 apart, found f64",
        ],
        [],
    ),
    (
        """\
fn f(x: f64) -> f64 { x
}
fn g(x: f64) -> f64 { let y = x }
""",
        [
            "3:4: `g` must give f64, but it ends without a value",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { for i in 0..3 { x } ; if x > 0.0 { 1.0 } else { 2.0 }; x == 1.0; x }",
        [
            "1:39: the value of this expression is dropped",
            "1:58: the value of this expression is dropped",
            "1:71: the value of this expression is dropped",
            "1:78: the value of this expression is dropped",
        ],
        [
            "bind it (`let y = ...`), or remove it",
            "bind it (`let y = ...`), or remove it",
            "bind it (`let y = ...`), or remove it",
            "an assignment is written `x = 1.0`",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64[n] = clamp(x, [1.0, 2.0], [1.0, 2.0, 3.0])",
        [
            "1:29: the shapes of `clamp` do not fit: f64[n] and f64[2] and f64[3]",
        ],
        [
            "argument 1: f64[n]",
            "argument 2: f64[2]",
            "argument 3: f64[3]",
            "dimension 0 of argument 3 differs: 2 and 3",
        ],
    ),
    (
        "fn f(x: f64[n, m]) -> f64 = trace(x[0]) + norm(1.0) + outer(x, x)[0, 0]",
        [
            "1:35: `trace` wants a matrix, found f64[m]",
            "1:48: `norm` wants an array, found f64",
            "1:61: `outer` wants a vector, found f64[n, m]",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 = zeros()[0] + full([1.0], 3)[0] + eye(2.0)[0, 0]",
        [
            "1:23: `zeros` takes at least 1 argument, found 0",
            "1:41: the value of `full` must be a scalar, found f64[1]",
            "1:60: a size in `eye` must be i64, found f64",
        ],
        [
            "write `i64(2.0)` to cut off the fraction",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 = x[1.0..2]  [0]",
        [
            "1:28: a bound of a slice must be i64, found f64",
        ],
        [
            "write `i64(1.0)` to cut off the fraction",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 { let g = |v| sum(v); g(x) + g(2.0) }",
        [
            "1:55: argument 1 (`v`) of `g` must be f64[n], found f64",
        ],
        [
            "a lambda without written types has those of its first use; write another one for these",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 { let g = |v, w| sum(v); g(x) }",
        [
            "1:49: `g` takes 2 arguments, found 1",
        ],
        [],
    ),
    (
        "fn f(x: real[n]) -> real { let y: f64 = x[0]; y }",
        [
            "1:41: `y` must be f64, found real",
            "1:47: the result of `f` must be real, found f64",
        ],
        [
            "write `f64(x[0])`",
            "write `real(y)`",
        ],
    ),
    (
        "fn f(x: real[n]) -> f64 = x[0]",
        [
            "1:27: the result of `f` must be f64, found real",
        ],
        [
            "write `f64(x[0])`",
        ],
    ),
    (
        """\
fn g(f: fn(f64, f64) -> f64, a: f64, b: f64) -> f64 = grad(f, wrt = y)(a, b)
fn g2(h: fn(f64, f64) -> f64, a: f64) -> f64 = g(h, a, a)
fn h(x: f64) -> f64 = g2(|x, z| x * z, x) + g2(atan2, x)
""",
        [
            "3:26: a derivative is taken with respect to `y`, which is no float parameter of this function",
        ],
        [
            "its parameters are `x`, `z`",
        ],
    ),
    (
        "fn f(x: bool[n]) -> f64 = max(x) + zeros((2, 3))[0, 0]",
        [
            "1:27: `max` wants numbers, found bools",
            "1:42: `zeros` wants a number or an array, found the tuple (i64, i64)",
        ],
        [
            "write `any`",
            "sizes are arguments of their own: `zeros(n, m)`",
        ],
    ),
    (
        "export g = vjp(|x: f64[n], y: f64[m]| x * y)",
        [
            "1:8: `g` cannot be exported: a size of its parameters does not follow from the others: "
            "fn(f64[n], f64[m], f64[?]) -> f64[n]",
        ],
        [
            "write a function whose result type says its sizes",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64[k] { let k = 2; x[0..k] }",
        [
            "1:24: no parameter gives the size `k`",
        ],
        [
            "a size name is bound by a dimension of a parameter's array type",
        ],
    ),
    (
        """\
let k = f(1.0)
fn f(x: f64) -> f64[k] = zeros(k)
""",
        [
            "2:4: a size in the signature of `f` is defined by `f` itself",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 { let g = |v| v; let h = |f, x| f(x); h(g, x[0]) + g(x)[0] }",
        [
            "1:77: argument 1 (`v`) of `g` must be f64, found f64[n]",
        ],
        [
            "a lambda without written types has those of its first use; write another one for these",
        ],
    ),
    (
        "fn f(x: f64[n], i: i64) -> f64 = x[i, ..]",
        [
            "1:34: 2 indices for f64[n], which has 1 dimension",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64 = x[0..2, 1]",
        [
            "1:26: 2 indices for f64[n], which has 1 dimension",
        ],
        [],
    ),
    (
        "fn f(x: f64[3]) -> f64[4] = [x[i] for i in 0..3]",
        [
            "1:29: the result of `f` must be f64[4], found f64[3]",
        ],
        [
            "found  f64[3]",
            "wanted f64[4]",
            "dimension 0 differs: 3 and 4",
        ],
    ),
    (
        "fn f(x: f64) -> f64 { let y: f64[2] = [1.0, 2.0, 3.0]; y[0] }",
        [
            "1:39: `y` must be f64[2], found f64[3]",
        ],
        [
            "found  f64[3]",
            "wanted f64[2]",
            "dimension 0 differs: 3 and 2",
        ],
    ),
    (
        "fn f(x: f64[2, 2]) -> f64 { var a = x; a[0] = [1.0, 2.0, 3.0]; a[0, 0] }",
        [
            "1:47: the value of `a[0]` must fit into f64[2], found f64[3]",
        ],
        [
            "found  f64[3]",
            "wanted f64[2]",
            "dimension 0 differs: 3 and 2",
        ],
    ),
    (
        "fn f(x: f64[n]) -> f64 { var a = x; a += [[1.0]]; a[0] }",
        [
            "1:42: the value of `a` must fit into f64[n], found f64[1, 1]",
        ],
        [],
    ),
    (
        "fn f(g: fn(f64) -> f64, x: f64) -> f64 { var h = g(x); h = g; h }",
        [
            "1:60: a variable cannot hold a function: functions are compile-time values",
        ],
        [],
    ),
    (
        "fn f(g: fn(f64) -> (f64, f64), x: f64) -> f64 = grad(g)(x)",
        [
            "1:49: `grad` wants a function with one number as its result; `g` gives the tuple (f64, f64)",
        ],
        [
            "differentiate a number, such as the sum of the result, or use `vjp`, `jvp` or `jacobian`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = hessian(|t| [t, t])(x)",
        [
            "1:23: `hessian` wants a function with one number as its result; `|t| [t, t]` gives f64[2]",
        ],
        [
            "differentiate a number, such as the sum of the result, or use `vjp`, `jvp` or `jacobian`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = jvp(sin)(x)",
        [
            "1:23: `jvp(sin)` takes 2 arguments, found 1",
        ],
        [
            "it takes (x: f64, d_x: f64)",
            "missing: `d_x`",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = grad(sin)(x, x)",
        [
            "1:23: `grad(sin)` takes 1 argument, found 2",
        ],
        [
            "it takes (x: f64)",
        ],
    ),
    (
        "fn f(x: f64) -> f64 = grad(|t: f64| t, wrt = u)(x)",
        [
            "1:46: `|t: f64| t` has no parameter `u`",
        ],
        [
            "its parameters are `t`",
        ],
    ),
    (
        """\
fn f(p: (f64, i64)) -> f64 = p.0
fn g(x: f64) -> f64 = f((x, x)) + f(x)
""",
        [
            "2:25: argument 1 (`p`) of `f` must be the tuple (f64, i64), found the tuple (f64, f64)",
            "2:37: argument 1 (`p`) of `f` must be the tuple (f64, i64), found f64",
        ],
        [],
    ),
    (
        'fn f(x: f64) -> f64 { for i in 0..3 { return "a" } }',
        [
            '1:46: a text is no value; it stands in `import "file.grad"` and `assert condition, "text"`',
        ],
        [],
    ),
    (
        """\
fn a(x: f64) -> f64 = b(x)
fn b(x: f64) -> f64 = c(x, x)
fn c(x: f64) -> f64 = d
""",
        [
            "2:23: `c` takes 1 argument, found 2",
            '3:23: unknown name "d"',
        ],
        [
            "it takes (x: f64)",
        ],
    ),
    (
        """\
import "missing.grad"
import "missing.grad"
fn f(x: f64) -> f64 = x
""",
        [
            '1:8: cannot import "missing.grad": there is no such file',
            '2:8: cannot import "missing.grad": there is no such file',
        ],
        [
            "looked for missing.grad (paths are relative to the importing file)",
            "looked for missing.grad (paths are relative to the importing file)",
        ],
    ),
    (
        'fn f(x: f64) -> f64 { assert x > 0.0, "x"; }',
        [
            "1:4: `f` must give f64, but it ends without a value",
        ],
        [],
    ),
    (
        "fn f(x: f64) -> f64 { }",
        [
            "1:4: `f` must give f64, but it ends without a value",
        ],
        [],
    ),
    (
        "fn f(x: f64[n]) -> f64[n] { [s for s in x, t in 0..s] }",
        [
            "1:29: the result of `f` must be f64[n], found f64[n, ?]",
            "1:52: a bound of a range must be i64, found f64",
            "1:52: a range of a comprehension cannot use its index `s`",
        ],
        [
            "write `i64(s)` to cut off the fraction",
            "an array has the same size in each row; only reductions may use earlier indices",
        ],
    ),
    (
        "fn f(x: f64[n]) -> i64 = argmin(v for v in x)",
        [
            "1:39: `argmin` gives the index of one range, such as `argmin(f(i) for i in 0..n)`",
        ],
        [],
    ),
    (
        "fn f(x: f64[n], y: f64[n]) -> f64 = dot(x[1..], y)",
        [
            "1:37: the shapes of `dot` do not fit: f64[n-1] and f64[n]",
        ],
        [
            "argument 1: f64[n-1]",
            "argument 2: f64[n]",
            "the sizes differ: n-1 and n",
        ],
    ),
]


@pytest.mark.parametrize("source, errors, hints", ERRORS, ids=[str(i) for i in range(len(ERRORS))])
def test_wrong_program(source: str, errors: list[str], hints: list[str]) -> None:
    with pytest.raises(CompileError) as caught:
        check(load_source(source))
    found = caught.value.diagnostics
    assert [f"{d.line}:{d.column}: {d.message}" for d in found] == errors
    assert [str(n) for d in found for n in d.notes if not (isinstance(n, Note) and n.span is not None)] == hints
