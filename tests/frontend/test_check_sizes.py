"""Symbolic sizes: normal forms, three-valued equality, solving for a name."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotdiff.frontend.sizes import (
    UNKNOWN,
    ZERO,
    Size,
    Symbol,
    affine,
    compare,
    divide_exactly,
    join,
    number,
    symbol_size,
)

N, M = Symbol("n", "size"), Symbol("m", "size")
n, m = symbol_size(N), symbol_size(M)


def two(x: int) -> Size:
    return number(x)


def test_polynomials_have_one_form() -> None:
    assert (n + m) * (n - m) == n * n - m * m
    assert n + two(1) - two(1) == n
    assert n - n == ZERO
    assert hash(n + m) == hash(m + n)


def test_two_bindings_of_a_name_are_two_sizes() -> None:
    assert symbol_size(Symbol("n", "size")) != n


def test_quotients_simplify_where_they_divide() -> None:
    assert (two(2) * n) // two(2) == n
    assert (two(2) * n + two(1)) // two(2) == n
    assert (two(2) * n - two(1)) // two(2) == n - two(1)
    assert (two(4) * n + two(3)) % two(4) == two(3)
    assert two(-7) // two(2) == two(-4)
    assert n // two(2) == n // two(2)
    assert not (n // ZERO).known


def test_printing() -> None:
    assert repr(n * (n - two(1)) // two(2)) == "(n*n-n)//2"
    assert repr(two(2) * n + two(1)) == "2*n+1"
    assert repr(two(1) - n) == "1-n"
    assert repr(UNKNOWN) == "?"
    assert repr(ZERO) == "0"
    assert repr((n * n).with_text("n * n")) == "n * n"


@pytest.mark.parametrize(
    "left, right, wanted",
    [
        (n, n, True),
        (n, n + two(1), False),
        (n, m, None),
        (two(3), two(4), False),
        (two(2) * n, two(3), False),  # even and odd
        (two(2) * n, two(4), None),
        (n * n, n, None),
        (UNKNOWN, UNKNOWN, None),
        (n // two(2), n // two(2), True),
        (n // two(2), n // two(3), None),
    ],
)
def test_comparison_has_three_answers(left: Size, right: Size, wanted: bool | None) -> None:
    assert compare(left, right) is wanted


def test_join_keeps_what_is_equal() -> None:
    assert join(n, n) == n
    assert not join(n, m).known


def test_affine_parts_and_solving() -> None:
    assert affine(two(2) * n + m, N) == (two(2), m)
    assert affine(n * n, N) is None
    assert affine(n // two(2), N) is None
    assert affine(m, N) is None
    assert divide_exactly(two(6), two(2)) == two(3)
    assert divide_exactly(two(7), two(2)) is None
    assert divide_exactly(two(2) * m + two(1), two(2)) is None
    assert divide_exactly(two(4) * m, two(2)) == two(2) * m
    unclear = divide_exactly(m, two(2))
    assert unclear is not None and not unclear.known


def test_substitution_is_simultaneous() -> None:
    assert (n + two(2) * m).substitute({N: m, M: n}) == m + two(2) * n
    assert (n // two(2)).substitute({N: two(5)}) == two(2)
    assert not (n + m).substitute({N: UNKNOWN}).known


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[Size, str]:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([(n, "n"), (m, "m")]) | st.integers(-3, 3).map(lambda k: (number(k), f"({k})")))
    a, b = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    op = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
    if op in ("//", "%"):
        k = draw(st.sampled_from([2, 3]))
        b = number(k), str(k)
    made = {"+": Size.__add__, "-": Size.__sub__, "*": Size.__mul__, "//": Size.__floordiv__, "%": Size.__mod__}[op]
    return made(a[0], b[0]), f"({a[1]} {op} {b[1]})"


@given(expressions(), expressions())
def test_sizes_agree_with_integers(left: tuple[Size, str], right: tuple[Size, str]) -> None:
    values = list(itertools.product(range(5), repeat=2))
    for i, j in values:
        size = left[0].substitute({N: number(i), M: number(j)})
        assert not left[0].known or size.constant == eval(left[1], {"n": i, "m": j})
    answers = {eval(f"{left[1]} == {right[1]}", {"n": i, "m": j}) for i, j in values}
    verdict = compare(left[0], right[0])
    assert verdict is None or answers == {verdict}
    least = left[0].lower_bound()
    assert least is None or all(eval(left[1], {"n": i, "m": j}) >= least for i, j in values)
