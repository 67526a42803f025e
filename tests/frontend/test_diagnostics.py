"""The shape of diagnostics, their collection, and suggestions."""

from __future__ import annotations

import pickle

import pytest

from aotdiff.frontend.ast import Span
from aotdiff.frontend.diagnostics import CompileError, Diagnostic, Diagnostics, Note, closest, suggest

SOURCE = "fn f(x: f64) -> f64 {\n\tlet 名前 = x *\t* 2.0\n    y\n}\n"


@pytest.fixture
def diagnostics() -> Diagnostics:
    made = Diagnostics()
    made.add_source("a.grad", SOURCE)
    return made


def span(line: int, column: int, end_column: int, end_line: int | None = None) -> Span:
    return Span("a.grad", line, column, end_line or line, end_column)


def test_render(diagnostics: Diagnostics) -> None:
    diagnostics.error(span(1, 9, 12), "bad type", ["a remark", Note("defined here", span(3, 5, 6))])
    assert diagnostics.render().split("\n") == [
        "a.grad:1:9: error: bad type",
        "  fn f(x: f64) -> f64 {",
        "          ^^^",
        "note: a remark",
        "a.grad:3:5: note: defined here",
        "      y",
        "      ^",
    ]


def test_tabs_and_wide_characters(diagnostics: Diagnostics) -> None:
    diagnostics.error(span(2, 6, 8), "wide")
    diagnostics.error(span(2, 13, 15), "behind")
    lines = diagnostics.render().split("\n")
    assert lines[1] == "      let 名前 = x *  * 2.0"
    assert lines[2] == "          ^^^^"  # two columns for each of the two characters
    assert lines[6] == "                   ^^^"  # a tab of two columns, then the star


def test_a_span_over_lines_is_marked_to_the_end_of_its_first(diagnostics: Diagnostics) -> None:
    diagnostics.error(span(1, 21, 2, 4), "block")
    assert diagnostics.render().split("\n")[2] == "  " + " " * 20 + "^"


def test_a_place_behind_the_line(diagnostics: Diagnostics) -> None:
    diagnostics.error(span(3, 6, 7), "missing")
    assert diagnostics.render().split("\n")[1:] == ["      y", "       ^"]


def test_long_lines_are_cut_around_the_place() -> None:
    made = Diagnostics()
    made.add_source("a.grad", "x + " * 500 + "wrong" + " + y" * 500)
    made.error(Span("a.grad", 1, 2001, 1, 2006), "here")
    _, shown, carets = made.render().split("\n")
    assert len(shown) < 180 and shown.startswith("  ...") and shown.endswith("...")
    assert shown[carets.index("^") : carets.rindex("^") + 1] == "wrong"


def test_unknown_source_has_no_excerpt() -> None:
    made = Diagnostics()
    made.error(Span("b.grad", 7, 3, 7, 4), "there")
    assert made.render() == "b.grad:7:3: error: there"


def test_sorted_and_once_each(diagnostics: Diagnostics) -> None:
    diagnostics.add_source("b.grad", "x\n")
    diagnostics.error(Span("b.grad", 1, 1, 1, 2), "other file")
    diagnostics.error(span(3, 5, 6), "second")
    diagnostics.error(span(1, 4, 5), "first")
    diagnostics.error(span(3, 5, 6), "second")
    assert [d.message for d in diagnostics] == ["first", "second", "other file"]
    assert len(diagnostics) == 3


def test_raise_if_errors(diagnostics: Diagnostics) -> None:
    diagnostics.warning(span(1, 4, 5), "careful")
    diagnostics.raise_if_errors()
    diagnostics.error(span(3, 5, 6), "wrong", ["why"])
    with pytest.raises(CompileError) as caught:
        diagnostics.raise_if_errors()
    error = caught.value
    assert [d.severity for d in error.diagnostics] == ["warning", "error"]
    assert "a.grad:3:5: error: wrong" in str(error) and "note: why" in str(error)
    found = error.diagnostics[1]
    assert (found.path, found.line, found.column, found.end) == ("a.grad", 3, 5, (3, 6))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_json(diagnostics: Diagnostics) -> None:
    found = diagnostics.error(span(3, 5, 6), "wrong", ["why", Note("there", span(1, 4, 5))])
    assert found.to_json() == {
        "path": "a.grad",
        "line": 3,
        "column": 5,
        "end": [3, 6],
        "severity": "error",
        "message": "wrong",
        "notes": [{"message": "why"}, {"message": "there", "path": "a.grad", "line": 1, "column": 4, "end": [1, 5]}],
        "source_line": "    y",
    }
    assert [str(note) for note in found.notes] == ["why", "there"]
    assert Diagnostic("a", 1, 2, (1, 3), "m").render() == "a:1:2: error: m"


@pytest.mark.parametrize(
    ("name", "candidates", "wanted"),
    [
        ("velocty", ["velocity", "mass"], ["velocity"]),
        ("doubld", ["doubled", "x"], ["doubled"]),
        ("summ", ["sum", "sin", "sqrt"], ["sum"]),
        ("weights", ["weight", "x"], ["weight"]),
        ("lenght", ["length", "len"], ["length"]),
        ("softMax", ["softmax", "max"], ["softmax"]),
        ("log_sd", ["logsd", "log"], ["logsd"]),
        ("x", ["y", "z"], []),
        ("qqqq", ["sum", "prod"], []),
        ("same", ["same"], []),
    ],
)
def test_closest(name: str, candidates: list[str], wanted: list[str]) -> None:
    assert closest(name, candidates) == wanted


def test_suggest() -> None:
    assert suggest("velocty", ["velocity"]) == 'did you mean "velocity"?'
    assert suggest("x1", ["sum"]) == ""
