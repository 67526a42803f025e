"""Right programs that the checker must let pass."""

from __future__ import annotations

import pytest

from aotdiff.frontend.check import check
from aotdiff.frontend.program import load_source

PROGRAMS = [
    "fn f(x: f64) -> f64 = 2 * x + 1",
    "fn f(x: f32[n]) -> f32 { var s = 0.0; for i in 0..n { s += x[i] }; s / n }",
    "fn f(x: f32[n]) -> f32[n] { var z = zeros(n); for i in 0..n { z[i] = x[i] }; z }",
    "fn f(x: f32, n: i64) -> f32 = (n - 1)/n * x",
    "fn f(n: i64, x: f32) -> f32 = sqrt(n) * x + pi",
    """\
let g = 9.81
let table = [1.0, 2.0, 3.0]
fn a(x: f32) -> f32 = g * x + table[0]
fn b(x: f64) -> f64 = g * x
""",
    """\
let k = 3
let m = k * 2
fn f(x: f64[n]) -> f64[k] = [x[i] for i in 0..k]
fn h(x: f64[n]) -> f64[m] = zeros(m)
""",
    "fn f(x: f64) -> f64 { let a: f64 = 1; a * x }",
    "fn f(n: i64) -> i64 { var k = 0; for i in 0..n { k += 1 }; k }",
    "fn d(f: fn(f64) -> f64, n: i64, x: f64) -> f64 = if n == 0 { f(x) } else { d(f, n - 1, x + 1.0) }",
    """\
fn apply(f: fn(f64[n]) -> f64[n], x: f64[n]) -> f64[n] = f(x)
fn g(x: f64[n]) -> f64[n] = apply(|v| v * 2.0, x) + apply(sort, x)
""",
    """\
type Force = fn(f64[2]) -> f64[2]
fn pull(x: f64[2]) -> f64[2] = -x
fn step(f: Force, x: f64[2], h: f64) -> f64[2] = x + h * f(x)
fn go(x: f64[2]) -> f64[2] = step(pull, x, 0.1)
""",
    """\
fn newton(f: fn(f64) -> f64, x0: f64) -> f64 { var x = x0; while abs(f(x)) > 1e-9 { x -= f(x) / grad(f)(x) }; x }
fn r(x: f64) -> f64 = newton(sin, 3.0) + newton(|t| t**2 - x, 1.0)
""",
    "fn f(x: f64) -> f64 = grad(sin)(x) + grad(grad(sin))(x) + grad(|t| t * t)(x) + grad(pow, wrt = y)(x, 2.0)",
    "fn f(x: f64) -> f64 = grad(|t| t * t)(2)",
    "fn f(x: f64) -> f64 { let (v, g) = value_and_grad(|t| t * sin(t))(x); v + g }",
    """\
fn f(x: f64[n], y: f64[n]) -> (f64, f64[n]) = (dot(x, y), x * y)
fn g(x: f64[n], y: f64[n]) -> f64[n] = vjp(f, wrt = x)(x, y, 1.0, y)
fn h(x: f64[n], y: f64[n]) -> f64 { let (a, b) = jvp(f, wrt = x)(x, y, y); a + sum(b) }
fn j(x: f64[n], y: f64[n]) -> (f64[n], f64[n, n]) = jacobian(f, wrt = x)(x, y)
fn jj(x: f64[n], y: f64[n]) -> ((f64[n], f64[n]), (f64[n, n], f64[n, n])) = jacobian(f, wrt = (x, y))(x, y)
""",
    """\
fn f(x: f64[n], y: f64) -> f64 = y * sum(x)
fn h(x: f64[n], y: f64) -> ((f64[n, n], f64[n]), (f64[n], f64)) = hessian(f, wrt = (x, y))(x, y)
fn h1(x: f64[n], y: f64) -> (f64[n],) = grad(f, wrt = (x,))(x, y)
fn v(x: f64[n], y: f64) -> (f64[n], f64) = hvp(f, wrt = (x, y))(x, y, x, 1.0)
""",
    """\
fn f(x: real[n], k: i64) -> (real, i64) = (sum(x) * k, k)
fn g(x: f32[n]) -> f32[n] = grad(f)(x, 2)
fn h(x: f64[n]) -> ((f64, i64), f64[n]) = value_and_grad(f)(x, 2)
""",
    "fn pick(a: bool[n], b: bool[n]) -> bool[n] = a and not b or b",
    'fn f(x: f64[n]) -> f64 { assert n > 0, "no"; x[0] }',
    "fn f(x: f64[n]) -> f64 { var t = (0.0, x); t = (1.0, x * 2.0); t.0 + sum(t.1) }",
    "fn f(a: f64, b: f64) -> f64 { var p = a; var q = b; (p, q) = (q, p + q); p * q }",
    "fn f(x: f64[n]) -> f64 { var y = x; while len(y) > 1 { y = y[1..] }; y[0] }",
    "fn f(x: f64[n]) -> f64[n] { var y = [1.0]; y = x; y }",
    """\
fn f(x: f64[2*n+1]) -> f64[n] = [x[2*i] for i in 0..n]
fn g(x: f64[7]) -> f64[3] = f(x)
""",
    """\
fn f(x: f64[n], y: f64[n+m]) -> f64[m] = y[n..]
fn g(x: f64[2], y: f64[5]) -> f64[3] = f(x, y)
""",
    "fn f(x: f64) -> f64 { return x }",
    "fn f(x: f64) -> f64 { if x > 0.0 { return x } else { return -x } }",
    "fn f(x: f64) -> f64 { while true { if x > 0.0 { return x } } }",
    "fn f(x: f64) -> f64 { let y = if x > 0.0 { return 1.0 } else { x }; y }",
    "fn f(x: f64[n], m: i64) -> f64 = if m == 0 { sum(x) } else { f(x[1..], m - 1) }",
    "fn f(x: f64[n, m]) -> f64 { var s = 0.0; for row in x { s += sum(row) }; for v in x[0] { s += v }; s }",
    "fn f(x: f64[n]) -> f64 = sum(v * v for v in x) + sum([v + 1.0 for v in x])",
    "fn f(a: f64[n, m]) -> f64 = sum(a, axis = (0, 1)) + sum(sum(a, axis = -1, keepdims = true))",
    "fn f(x: f64) -> f64 = where(x > 0.0, x, 0)",
    "fn f(x: f64, n: i64) -> f64 = maximum(x, n) + minimum(x, 0) + clamp(x, 0, 1)",
    "fn f(n: i64) -> i64 = maximum(n, 0) + abs(n) + sum(i for i in 0..n) + max(i * i for i in 0..n) + n**2",
    "fn f(n: i64) -> f64 = n / 2",
    "fn f(x: f64) -> f64 { let f2 = |t: f64| t * x; let g = grad(f2); g(x) }",
    """\
fn twice(f: fn(f64) -> f64, x: f64) -> f64 = f(f(x))
fn g(x: f64) -> f64 = twice(|t| twice(|u| u * t, t), x)
""",
    "fn f(x: f64[n]) -> f64[n] = stop_gradient(x) + exp(x)",
    """\
export h = |x: f64[n], y: f64[n]| x * y
export k = grad(|x: f64[n]| sum(x * x))
""",
    """\
fn f(x: real[n]) -> real = sum(x)
export g = grad(f)
export h = |x: real[n]| f(x) + f(x)
""",
    """\
fn r(x: f64, n: i64) = if n == 0 { 1.0 } else { x }
fn s(x: f64) -> f64 = r(x, 2)
""",
    "fn f(x: f64[n]) -> f64 { let half = n // 2; let a = x[0..half]; let b = x[half..2*half]; dot(a, b) }",
    "fn f(x: f64[n]) -> f64[n-1] = [x[i+1] - x[i] for i in 0..n-1]",
    "fn f(x: f64[n]) -> f64[n] { let s = concat([0.0], x[1..]); s }",
    """\
fn f(a: f64[n, n], b: f64[n]) -> f64 = sum(solve(a, b)) + logdet(a) + trace(inv(a)) + norm(cholesky(a)) + det(eye(3))
""",
    """\
fn grad(x: f64) -> f64 = x * x
fn f(x: f64) -> f64 = grad(x)
""",
    """\
fn sum(x: f64) -> f64 = x
fn f(x: f64) -> f64 = sum(x)
""",
    "fn f(x: f64) -> f64 { let sum = 2.0; sum * x }",
    """\
fn f(x: real) -> real = real(2) * x + exp(1)
fn g(x: f32) -> f32 = f(x) + f(1.0)
""",
    """\
fn f() -> f64 = 1.0
fn g() -> i64 = 2 + 3
""",
    """\
fn f(p: (f64, f64[n]), x: f64) -> f64 { let (a, b) = p; a + sum(b) * x }
fn g(x: f64) -> f64 = f((1.0, [x, x]), x)
""",
    "fn f(x: f64) -> f64 = { let t = x * x; t + 1.0 } * 2.0",
    """\
fn f(x: f64, y: f64) -> f64 = x * y
fn fp(x: f64, y: f64, ct: f64) -> (f64, f64) = (y * ct, x * ct)
derivative vjp f = fp
derivative jvp f = |x, y, dx, dy| y * dx + x * dy
""",
    """\
fn f(x: f64[n], k: i64) -> f64[k] = [sum(x) * i for i in 0..k]
fn fp(x: f64[n], k: i64, ct: f64[k]) -> f64[n] = [dot(ct, [f64(i) for i in 0..k]) for j in 0..n]
derivative vjp f = fp
""",
    "fn f(x: f64[n], s: f64) -> f64 { let g = |v| sum(v) * s; g(x) + g(x[1..]) + g([1.0, 2.0]) }",
    "fn f(x: f64[n]) -> f64 { var best = 0; for i in 0..n { if x[i] > x[best] { best = i } }; x[best] }",
    "fn f(x: f64[n]) -> f64 { let k = 0; let y = [k, k]; x[y[0]] }",
    "fn f(x: f64) -> f64 { var s = 0; s += x; s }",
    "fn f(x: f64[3]) -> f64[3, 3] = jacobian(|u| u * u)(x)",
    "fn f(x: f64[n]) -> f64 = logsumexp(x) + sum(softmax(x)) + sum(log_softmax(x))",
    "fn f(x: f64) -> bool = x > 1 and x < 2 or not (x == 3)",
    "fn f(n: i64, m: i64) -> f64[n, m] = reshape([f64(i) for i in 0..n*m], n, m)",
    """\
fn outer2(f: fn(fn(f64) -> f64, f64) -> f64, x: f64) -> f64 = f(sin, x)
fn ap(g: fn(f64) -> f64, x: f64) -> f64 = g(x)
fn h(x: f64) -> f64 = outer2(ap, x)
""",
    """\
fn g(f: fn(f64, f64) -> f64, a: f64, b: f64) -> f64 = grad(f, wrt = y)(a, b)
fn h(x: f64) -> f64 = g(|x, y| x * y, x, 2.0) + g(atan2, x, 1.0)
""",
    "fn f(x: f64) -> i64 { var k = 10; k = k // 2; k -= 1; k *= 3; k }",
    "fn f(x: f64[n]) -> f64[n] { var a = x; a += 1; a *= 2.0; a /= n; a[0] = 1; a }",
    "fn f(x: f64[n, m]) -> f64[m, n] = x.T",
    "fn f(k: i64[n]) -> f64 = sum(k) / n + mean(k) + sqrt(k[0]) + sum(k / 2)",
    "fn f(x: f64[n], y: f64[m]) -> f64 = sum(x * y)",
    "fn f(x: f64) -> f64 { let a = [1, 2.5, x]; let b = [[1, 2], [3, 4]]; sum(a) + sum(b) * x }",
    "fn f(x: f64[n]) -> f64[n, 2] = stack(x, x, axis = 1)",
    "fn f(x: f64) -> f64 { let _ = x; x }",
    "fn f(x: f64[n]) -> f64 = if any(x > 0.0) and all(isfinite(x)) { 1.0 } else { 0.0 }",
    "fn f(x: f64) -> f64 = inf * x + nan",
    "fn f(x: f64, i: i64) -> f64 { let y = (x, i, [x]); y.0 + y.1 + y.2[0] }",
    "fn fib(n: i64) -> i64 = if n < 2 { n } else { fib(n - 1) + fib(n - 2) }",
    """\
let h = |x: f64| x * x
fn f(x: f64) -> f64 = h(x)
""",
    """\
let d = grad(|x: f64| x * x)
fn f(x: f64) -> f64 = d(x)
""",
    "fn f(x: f64[n]) -> f64 { let a = { let k = n - 1; x[0..k] }; sum(a * x[1..]) }",
    "fn f(x: f64[n], idx: i64[m]) -> f64[m] { var out = zeros(m); for k in 0..m { out[k] = x[idx[k]] }; out }",
    "fn f(x: f64[n]) -> f64 { let y: f64[n] = x * 2.0; sum(y) }",
    "fn f(x: f64[n]) -> f64 { var m: f64 = 0; m = 3; m }",
    """\
fn g(f: fn(f64, f64) -> f64, a: f64, b: f64) -> f64 = grad(f, wrt = y)(a, b)
fn g2(h: fn(f64, f64) -> f64, a: f64) -> f64 = g(h, a, a)
fn h(x: f64) -> f64 = g2(|x, y| x * y, x) + g2(atan2, x)
""",
    "fn f(x: f64) -> f64 { let g = { let a = x * 2.0; |t: f64| t * a }; g(x) + grad(g)(x) }",
    """\
fn ap(f: fn(f64) -> f64, x: f64) -> f64 = f(x)
fn f(x: f64) -> f64 { let h = ap; h(sin, x) + h(|t| h(cos, t), x) }
""",
    """\
let poly = |t: f64| t**3
let dpoly = grad(poly)
fn f(x: f64) -> f64 = poly(x) + dpoly(x)
""",
    """\
let s = sin
fn f(x: f64) -> f64 = s(x)
""",
    """\
let k = 4
let w = [f64(i) for i in 0..k]
fn f(x: f64[4]) -> f64 = dot(w, x)
""",
    """\
let m = 2 + 3
fn f(x: f64) -> f64[m] = [x * i for i in 0..m]
export f
""",
    """\
let eps = 1e-6
fn f(x: real) -> real = x + eps
fn g(x: f32) -> f32 = f(x) * eps
""",
    """\
type Pair = (f64, f64[n])
fn f(p: Pair) -> Pair = (p.0 * 2.0, p.1)
fn g(x: f64[n]) -> f64 { let (a, b) = f((1.0, x)); a + sum(b) }
""",
    """\
type State = (f64[n], f64[n])
fn step(s: State, h: f64) -> State { let (x, v) = s; (x + h * v, v - h * x) }
fn run(x: f64[n], v: f64[n], steps: i64) -> f64 { var s = (x, v); for k in 0..steps { s = step(s, 0.1) }; sum(s.0) }
""",
    """\
fn integrate(f: fn(f64, f64[n]) -> f64[n], y: f64[n], h: f64, steps: i64) -> f64[n] {
    var u = y
    for k in 0..steps { let k1 = f(h * k, u); let k2 = f(h * k + h / 2, u + h / 2 * k1); u += h * k2 }
    u
}
fn osc(y: f64[2], w: f64) -> f64[2] = integrate(|t, u| [u[1], -w * u[0]], y, 0.1, 10)
export g = jacobian(osc, wrt = w)
""",
    "fn f(x: f64[n]) -> f64 { var best = -inf; for v in x { if v > best { best = v } }; best }",
    """\
fn f(x: f64[n]) -> f64 { var best = inf
var where_ = -1
for i in 0..n { if x[i] < best { best = x[i]
where_ = i } }
best + where_ }
""",
    "fn f(x: f64[n], k: i64) -> f64 = sum(if i == k { x[i] } else { 0 } for i in 0..n)",
    "fn f(x: f32[n], k: i64) -> f32 = sum(if i == k { x[i] } else { 0.0 } for i in 0..n)",
    "fn f(x: f64) -> f64 { let (a, b) = (1, 2.0); a * x + b }",
    "fn mat(a: f64[n, n]) -> f64 { let b = a @ a - 2 * a + eye(n); trace(b.T @ b) / n }",
    "fn f(x: f64[n, 3]) -> f64[n] = [norm(x[i]) for i in 0..n]",
    """\
fn f(x: f64[n]) -> f64[n] { var y = x; for i in 1..n { y[i] = y[i] + 0.5 * y[i-1] }; y }
export jac = jacobian(f)
""",
    "fn f(x: f64) -> f64 { var y = x; while true { y = y / 2; if y < 1 { break } }; y }",
    "fn f(x: f64[n]) -> bool[n] = x > 0 and x < 1",
    "fn f(n: i64) -> i64[n] = [i * i for i in 0..n]",
    "fn f(n: i64) -> i64 { var a = full(0, n); a[0] = 1; for i in 1..n { a[i] = a[i - 1] * 2 }; sum(a) }",
    "fn f(x: f64, y: f64) -> (f64, f64) { if x > y { return (x, y) }; (y, x) }",
    "fn f(x: f64[n]) -> f64 = sum(x[i] * x[j] for i in 0..n, j in 0..i if i != j)",
    "fn f(x: f64[n]) -> f64 = max(abs(x)) + min(x) + mean(x[i] for i in 0..n if x[i] > 0)",
    "fn f(x: f64[n]) -> f64 { let y = [x, 2.0 * x]; sum(y[0] * y[1]) }",
    "fn f(a: f64[n, m], i: i64) -> f64[m] = a[i] + a[i, :] + a[-1]",
    "fn f(x: f64) -> f64 = { let y = x; { let y = y * y; y + 1.0 } }",
    "fn f(x: f64[n]) -> f64[n] = if n > 2 { x } else { zeros(n) }",
    "fn f(x: f64[n]) -> f64 { let g = |u: f64[k]| sum(u) / k; g(x) + g(x[1..]) }",
    "fn f(x: f64[n]) -> f64 { let g = value_and_grad(|u| sum(u * u)); let (v, d) = g(x); v + sum(d) }",
    "fn f(x: f64) -> f64 = jvp(|a, b| a * b, wrt = (a, b))(x, 2.0, 1.0, x)",
    "fn f(x: f64) -> f64 = vjp(|a| (a, a * a))(x, 1.0, 2.0)",
    "fn f(x: f64[n]) -> f64[n, n] = jacobian(|u| u * sum(u))(x)",
    "fn f(x: f64) -> f64[2] = jacobian(|u| [u, u * u])(x)",
    "fn f(x: f64) -> f64 = hessian(|u| u**3)(x)",
    "fn f(x: f64[n], v: f64[n]) -> f64[n] = hvp(|u| sum(u**3))(x, v)",
    "fn f(x: f64) -> f64 = grad(|u| u * grad(|w| w * u)(u))(x)",
    """\
fn f(x: f64) -> f64 = grad(f2, wrt = s)(x, 1.0)
fn f2(a: f64, s: f64) -> f64 = a * s
""",
    """\
fn loss(w: f64[n], k: i64) -> (f64, i64) = (sum(w * w) * k, k)
fn f(w: f64[n]) -> f64 { let ((v, k), g) = value_and_grad(loss)(w, 3); v + k + sum(g) }
""",
    "fn f(x: real[n]) -> real { let c: real = 2; var s: real = 0; for v in x { s += c * v }; s }",
    "fn f(x: f64) -> f64 = f64(f32(x)) + f64(i64(x)) + f64(x > 0.0)",
    "fn f(x: f64[n]) -> i64[n] = i64(x)",
    "fn f(x: f64[n]) -> f64 { let (lo, hi) = (min(x), max(x)); (hi - lo) / 2 }",
    """\
fn even(n: i64) -> bool = if n == 0 { true } else { odd(n - 1) }
fn odd(n: i64) -> bool = if n == 0 { false } else { even(n - 1) }
""",
    "fn f(x: f64[n], y: f64[m]) -> f64[n, m] = reshape(x, n, 1) * y",
    "fn f(x: f64[n], y: f64[m]) -> f64[n, m] = outer(x, y) + [x[i] * y[j] for i in 0..n, j in 0..m]",
    """\
export a = |x: f64[n], k: i64| [x[0] * i for i in 0..k]
export b = |x: f64[n]| concat(x, x)
export c = |x: f64[n, m]| x[:, 0]
""",
    "fn f(x: f64[n]) -> f64 { let half = len(x) // 2; sum(x[..half] * x[half..2*half]) }",
    "fn f(x: f64[n], p: f64) -> f64 = sum(abs(x)**p)**(1/p)",
    "fn f(x: f64) -> f64 { var s = 0.0; for i in 10..0 step -2 { s += x**i / i }; s }",
    "fn f(x: f64[n]) -> f64 { var acc = zeros(3); for i in 0..n { acc[i % 3] += x[i] }; acc[0] * acc[1] * acc[2] }",
    "fn f(x: f64[n], t: f64[n]) -> f64 { let e = x - t; e @ e }",
    "fn f(c: bool, x: f64) -> f64 { var y = x; if c { y = 2 * y } else if x > 1 { y = y - 1 }; y }",
    "fn f(x: f64) -> f64 { let y = if x > 0 { 1 } else { 2.5 }; y * x }",
    "fn f(x: f64[n]) -> f64[n] = where(x > 0, x, 0) + where(x > 0, 1, x)",
    "fn f(x: f64[n], m: bool[n]) -> f64 = sum(where(m, x, 0.0)) / sum(m)",
    """\
fn root(f: fn(f64) -> f64, df: fn(f64) -> f64, x: f64) -> f64 = x - f(x) / df(x)
fn g(x: f64) -> f64 { let h = |t| t * t - 2.0; root(h, grad(h), x) }
""",
    """\
fn mapper(f: fn(f64) -> f64, x: f64[n]) -> f64[n] = [f(v) for v in x]
fn g(x: f64[n]) -> f64[n] = mapper(tanh, mapper(|v| v * 2, x))
""",
    """\
fn fold(f: fn(f64, f64) -> f64, x: f64[n]) -> f64 { var a = x[0]; for v in x[1..] { a = f(a, v) }; a }
fn g(x: f64[n]) -> f64 = fold(maximum, x) + fold(|a, b| a * b, x) + fold(atan2, x)
""",
    "fn f(x: f64) -> f64 { let a = [[x, 1.0], [0.0, x]]; let b = [[1, 2], [3, 4]]; trace(a @ b) + det(a) }",
    """\
fn f(x: f64[n]) -> (f64[n], i64) { let k = argmax(x); (x / x[k], k) }
export g = value_and_vjp(f)
export h = jvp(f)
""",
    """\
fn f(x: f64[2*n]) -> f64[n] = x[0..n] + x[n..]
export f
export fj = jacobian(f)
""",
    """\
fn f(z: f64[n], w: f64[k, n]) -> f64[k] = tanh(w @ z)
fn g(z: f64[n], w: f64[3, n], v: f64[m, 3]) -> f64[m] = f(f(z, w), v)
""",
]


@pytest.mark.parametrize("source", PROGRAMS, ids=[str(i) for i in range(len(PROGRAMS))])
def test_right_program(source: str) -> None:
    check(load_source(source))
