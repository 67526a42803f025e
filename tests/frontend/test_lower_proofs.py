"""Checks that are left out must not be missed: random index arithmetic against Python, and numbers near 2**63."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aotdiff.frontend.check import check
from aotdiff.frontend.lower import lower
from aotdiff.frontend.program import load_source
from aotdiff.ir.interpreter import ExecutionError, run
from tests.frontend.lowering import call, checks, fails


class Writer:
    """A random function in `.grad` and the same in Python."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.grad: list[str] = []
        self.python: list[str] = []
        self.names = ["n", "k", "m"]

    def emit(self, depth: int, grad: str, python: str | None = None) -> None:
        self.grad.append("    " * depth + grad)
        self.python.append("    " * depth + (python if python is not None else grad))

    def number(self, level: int = 2) -> str:
        r = self.random
        kind = r.randrange(6) if level else r.randrange(2)
        if kind == 0:
            return r.choice(["(0 - 2)", "(1 - 2)", "0", "1", "2", "3"])  # a literal -1 counts from the end
        if kind == 1:
            return r.choice(self.names)
        if kind in (2, 3):
            return f"({self.number(level - 1)} {r.choice('+-')} {self.number(level - 1)})"
        if kind == 4:
            return f"({r.choice(self.names)} {r.choice(['//', '%'])} {r.randrange(1, 4)})"
        return f"{r.randrange(1, 3)} * {r.choice(self.names)}"

    def condition(self) -> str:
        r = self.random
        text = f"{self.number(1)} {r.choice(['<', '<=', '>', '>=', '==', '!='])} {self.number(1)}"
        return text if r.randrange(3) else f"{text} {r.choice(['and', 'or'])} {self.condition()}"

    def index(self) -> tuple[str, str]:
        if self.random.randrange(4):
            text = self.number(2)
            return text, text
        cond, a, b = self.condition(), self.number(1), self.number(1)
        return f"if {cond} {{ {a} }} else {{ {b} }}", f"({a} if {cond} else {b})"

    def block(self, depth: int, size: int) -> None:
        for _ in range(size):
            self.statement(depth)

    def statement(self, depth: int) -> None:
        r = self.random
        kind = r.randrange(7) if depth < 4 else r.randrange(3)
        if kind <= 1:
            grad, python = self.index()
            weight = f"{r.randrange(1, 9)}.0"
            self.emit(depth, f"s += x[({grad})] * {weight}", f"s += read(x, {python}) * {weight}")
        elif kind == 2:
            low, high = self.number(1), self.number(1)
            self.emit(depth, f"s += sum(x[{low}..({high})])", f"s += part(x, {low}, {high})")
        elif kind <= 4:
            name = f"i{depth}{len(self.grad)}"
            low, high, step = self.number(1), self.number(1), r.choice([1, 1, 1, 2, -1, -2])
            word = "" if step == 1 else f" step {step}"
            self.emit(depth, f"for {name} in {low}..{high}{word} {{", f"for {name} in range({low}, {high}, {step}):")
            self.inside(depth, [name])
        elif kind == 5:
            self.branch(depth)
        else:
            name = f"v{depth}{len(self.grad)}"
            grad, python = self.index()
            self.emit(depth, f"let {name} = {grad}", f"{name} = {python}")
            self.names.append(name)
            self.block(depth, 1)
            self.names.remove(name)

    def branch(self, depth: int) -> None:
        cond = self.condition()
        self.emit(depth, f"if {cond} {{", f"if {cond}:")
        self.inside(depth, [])
        if self.random.randrange(2):
            self.grad[-1] += " else {"
            self.python.append("    " * depth + "else:")
            self.inside(depth, [])

    def inside(self, depth: int, names: list[str]) -> None:
        self.names += names
        self.block(depth + 1, self.random.randrange(1, 3))
        del self.names[len(self.names) - len(names) :]
        self.grad.append("    " * depth + "}")


def read(x, i):
    if not 0 <= i < len(x):
        raise IndexError
    return float(x[i])


def part(x, low, high):
    if not 0 <= low <= high <= len(x):
        raise IndexError
    return float(x[low:high].sum())


@pytest.mark.parametrize("seed", range(150))
def test_random_index_arithmetic(seed):
    writer = Writer(seed)
    writer.block(1, 3)
    source = "\n".join(["fn f(x: f64[n], k: i64, m: i64) -> f64 {", "    var s = 0.0", *writer.grad, "    s", "}"])
    text = "\n".join(["def f(x, k, m):", "    n, s = len(x), 0.0", *writer.python, "    return s"])
    space = {"read": read, "part": part}
    exec(text, space)
    module = lower(check(load_source(source)))
    for _ in range(12):
        n, k, m = writer.random.randrange(6), writer.random.randrange(-2, 6), writer.random.randrange(-2, 6)
        x = np.arange(1.0, n + 1.0)
        try:
            wanted = space["f"](x, k, m)
        except IndexError:
            with pytest.raises(ExecutionError) as caught:
                run(module, "f", [x, k, m])
            assert caught.value.kind == "IndexError"
            continue
        assert run(module, "f", [x, k, m])[0] == pytest.approx(wanted), (source, n, k, m)


X = np.array([1.0, 2.0, 3.0])
MOST = 2**63 - 1


def test_wrapping_indices_are_still_checked():
    source = """
fn after(x: f64[n], k: i64) -> f64 = if k >= 0 and k + 1 <= n { x[k] } else { 0.0 }
fn quarter(x: f64[n], k: i64) -> f64 = if k >= 0 and 4 * k < n { x[k] } else { 0.0 }
fn range(x: f64[n], k: i64) -> f64 { var s = 0.0; if k <= n { for i in 5..k { s += x[i]; break } }; s }
fn back(x: f64[n], k: i64) -> f64 { var s = 0.0; if k - 1 <= n { for i in 0..k - 1 { s += x[i]; break } }; s }
fn part(x: f64[n], a: i64, b: i64) -> f64 = sum(x[a..a + b])
fn huge(k: i64) -> f64 = sum(zeros(k + 1))
"""
    fails(source, "after", X, MOST, kind="IndexError", line=2)
    assert call(source, "after", X, 2) == 3.0
    fails(source, "quarter", X, 2**61, kind="IndexError", line=3)
    assert call(source, "range", X, -(2**63) + 2) == 0.0
    assert call(source, "back", X, -(2**63)) == 0.0
    for a, b in ((MOST, 2), (-1, MOST), (2, MOST), (1, -1), (0, 4)):
        fails(source, "part", X, a, b, kind="IndexError", line=6)
    assert call(source, "part", X, 1, 2) == 5.0
    fails(source, "huge", MOST, kind="ValueError", line=7)
    fails(source, "huge", 2**60, kind="MemoryError", line=7)


def test_checked_numbers_are_not_checked_again():
    source = """
fn again(x: f64[n], k: i64) -> f64 = x[k] + x[k] * x[k]
fn shifted(x: f64[n], k: i64) -> f64 = if k > 0 { x[k] + x[k - 1] } else { 0.0 }
fn sized(k: i64) -> f64 { var v = zeros(k + 1); for i in 0..k { v[i + 1] = v[i] + 1.0 }; v[k] }
fn window(x: f64[n], a: i64, b: i64) -> f64 { let y = x[a..b]; sum(y[i] * x[a + i] for i in 0..b - a) }
"""
    assert len(checks(source, "again")) == 1
    assert len(checks(source, "shifted")) == 1
    assert len(checks(source, "sized")) == 3  # v[k]: k may be -1
    assert len(checks(source, "window")) == 2
    assert call(source, "sized", 5) == 5.0
