"""The prover of linear inequalities over sizes, loop indices and known conditions."""

import pytest

from aotdiff.ir.parser import parse_module
from aotdiff.passes.affine import Form, Prover
from aotdiff.passes.facts import ArgOwners

TEXT = """
func @f(%x: f64[?], %k: i64) -> () {
  %n = dim %x {axis = 0} : i64
  %zero = const 0 : i64
  %one = const 1 : i64
  %two = const 2 : i64
  %three = const 3 : i64
  %less = sub %n, %one : i64
  %m = maximum %less, %zero : i64
  %half = floordiv %n, %two : i64
  %some = minimum %k, %n : i64
  %wrapping = add %k, %one : i64
  par %m {kinds = []} (%i: i64) {
    %next = add %i, %one : i64
    %twice = mul %i, %two : i64
    %back = sub %less, %i : i64
    %cycle = mod %next, %three : i64
    for %i {kinds = []} (%j: i64) {
      %sum = add %i, %j : i64
      yield
    }
    yield
  }
  yield
}
"""


@pytest.fixture(scope="module")
def graph():
    func = parse_module(TEXT).funcs["f"]
    prover = Prover(ArgOwners.of(func.body))
    names = {}
    for value in func.params:
        names[value.name] = value
    for op in func.body.walk():
        for value in [*op.results, *(arg for region in op.regions for arg in region.args)]:
            names[value.name] = value
    for value in names.values():
        prover.order[value] = len(prover.order)
    return prover, names


def at_least(graph, text: str) -> bool:
    """Whether `a - b + c >= 0` is proven for text like "n - i - 1"."""
    prover, names = graph
    form, sign = Form(), 1
    for word in text.split():
        if word in "+-":
            sign = 1 if word == "+" else -1
        else:
            form = form.plus(Form(int(word)) if word.isdigit() else prover.form(names[word]), sign)
    return prover.nonnegative(form)


@pytest.mark.parametrize("text", [
    "n", "i", "m", "n - i - 1", "n - i - 2", "n - next - 1", "m - i - 1", "twice", "twice - i", "back", "n - back - 1",
    "back - 1", "cycle", "2 - cycle", "i - j - 1", "n - j - 2", "sum", "n + n - sum - 3", "half", "n - half",
    "n - some",
])  # fmt: skip
def test_proven(graph, text):
    assert at_least(graph, text)


@pytest.mark.parametrize("text", [
    "n - 1", "i - 1", "n - i - 3", "n - next - 2", "m - i - 2", "i - twice", "k", "some", "1 - cycle", "back - 2",
    "wrapping", "wrapping - k", "n - sum - 1", "half - 1",
])  # fmt: skip
def test_not_proven(graph, text):
    """Some of these are false; `wrapping - k` is k + 1 - k, which wraps for the largest k."""
    assert not at_least(graph, text)


def test_conditions_come_and_go(graph):
    prover, names = graph
    k = prover.form(names["k"])
    known = prover.know(k)
    assert prover.nonnegative(k) and not prover.nonnegative(k.shifted(-1))
    prover.forget(known)
    assert not prover.nonnegative(k)
