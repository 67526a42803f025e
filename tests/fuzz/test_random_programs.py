"""A few hundred random programs; `python -m tests.fuzz --seconds 600` runs more of them."""

from __future__ import annotations

import pytest

from tests.fuzz.generator import program
from tests.fuzz.oracle import Fault, Plan, examine
from tests.fuzz.runner import PASSES, Settings, run_one
from tests.fuzz.shrink import shrink
from tests.fuzz.tree import layout

GROUP = 10

WRONG = """
fn twice(a: f64, b: f64) -> f64 = a * b
fn twice_rule(a: f64, b: f64, ct: f64) -> (f64, f64) = (ct * b, ct * b)
derivative vjp twice = twice_rule
fn f(x: f64[n], s: f64, a: f64[n, m], k: i64, idx: i64[m]) -> f64 = twice(s, 3.0 + s) + sum(x)
"""


def run_group(settings: Settings, group: int) -> None:
    for number in range(group * GROUP, (group + 1) * GROUP):
        try:
            run_one(settings, number)
        except Exception as error:
            error.add_note(f"python -m tests.fuzz --seed {settings.seed} --only {number}")
            raise


@pytest.mark.parametrize("group", range(20))
def test_agreement(group: int) -> None:
    run_group(Settings("suite"), group)


@pytest.mark.parametrize("group", range(5))
def test_without_one_pass(group: int) -> None:
    """Each program is optimised with some pass left out: no pass relies on another for what is right."""
    run_group(Settings("apart", without="each", verify=True), group)


def test_names_of_passes() -> None:
    assert "fuse" in PASSES and "cse" in PASSES


def test_a_wrong_derivative_is_found() -> None:
    with pytest.raises(Fault, match="differences and f_value_and_jvp"):
        examine(WRONG, "f64", "f", "wrong", Plan(("value_and_grad", "value_and_jvp")))


def test_programs_are_the_same_each_time() -> None:
    assert program("same:1").text() == program("same:1").text()
    assert program("same:1").text() != program("same:2").text()


def test_shrinking() -> None:
    tree = program("suite:3").tree
    text = shrink(tree, lambda text: text.count("sin(") > 0, 20.0)
    assert text.count("sin(") == 1
    assert len(layout(text).splitlines()) <= 4
