"""The checker against every case: no false errors, the promised errors, and a whole annotation of the tree."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from aotdiff.frontend import ast
from aotdiff.frontend.check import check
from aotdiff.frontend.diagnostics import CompileError
from aotdiff.frontend.program import Program, load, load_source
from aotdiff.frontend.scope import Binding
from aotdiff.frontend.tree import walk
from aotdiff.frontend.types import Array, ErrorType, Function, Tuple, Type, Variable

CASES = Path(__file__).parents[1] / "cases"
SAMPLES = Path(__file__).parents[2] / "samples"
PROGRAMS = sorted(CASES.glob("*.grad"))


def wanted_errors(path: Path) -> list[dict]:
    spec = path.with_suffix(".json")
    return json.loads(spec.read_text()).get("compile_errors", []) if spec.exists() else []


GOOD = [path for path in PROGRAMS if not wanted_errors(path)] + sorted(SAMPLES.glob("*.grad"))
BAD = [path for path in PROGRAMS if wanted_errors(path)]


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_right_programs_have_no_errors_and_get_types_everywhere(path: Path) -> None:
    program = check(load(path))
    assert_annotated(program)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_wrong_programs_have_the_promised_errors_and_no_others(path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        check(load(path))
    found = caught.value.diagnostics
    for wanted in wanted_errors(path):
        said = [" ".join([d.message, *map(str, d.notes)]) for d in found if d.line == wanted["line"]]
        assert any(all(word in message for word in wanted.get("has", [])) for message in said), said
    assert {d.line for d in found} == {wanted["line"] for wanted in wanted_errors(path)}


def assert_annotated(program: Program) -> None:
    """Every expression that runs has a final type, every name a binding."""
    roots: list[ast.Node] = [f for unit in program.units.values() for f in unit.file.functions]
    roots += [export.value for export in program.exports if export.value is not None]
    for root in roots:
        for node in walk(root):
            if isinstance(node, ast.Name):
                assert isinstance(node.binding, Binding), node
                assert_final(node.binding.type, node)
            if isinstance(node, ast.Expr) and not isinstance(node, ast.Tuple):
                assert isinstance(node.type, Type), node
                assert_final(node.type, node)
            if isinstance(node, (ast.Parameter, ast.LambdaParameter, ast.For, ast.GeneratorClause)):
                assert isinstance(node.binding, Binding), node
    for export in program.exports:
        assert isinstance(export.type, Function)


def assert_final(type_: Type, node: ast.Node) -> None:
    assert not isinstance(type_, Variable), node
    if isinstance(node, ast.Name) and node.binding.kind.startswith("builtin"):
        return
    assert not isinstance(type_, ErrorType), node
    if isinstance(type_, Array):
        assert_final(type_.element, node)
    elif isinstance(type_, Tuple):
        for element in type_.elements:
            assert_final(element, node)


TOKENS = re.compile(r"\s+|#[^\n]*|\w+|\*\*|//|==|!=|<=|>=|->|\.\.|.", re.DOTALL)


def mutant(source: str, chance: random.Random) -> str:
    """A program with some of its tokens removed, exchanged or replaced."""
    tokens = TOKENS.findall(source)
    places = [i for i, token in enumerate(tokens) if token.strip() and not token.startswith("#")]
    for _ in range(chance.choice([1, 1, 2, 3])):
        i, j = chance.choice(places), chance.choice(places)
        action = chance.random()
        if action < 0.2:
            tokens[i] = ""
        elif action < 0.8:
            tokens[i] = tokens[j]
        else:
            tokens[i], tokens[j] = tokens[j], tokens[i]
    return "".join(tokens)


@pytest.mark.parametrize("seed", range(8))
def test_no_program_makes_the_checker_fail(seed: int) -> None:
    chance = random.Random(seed)
    sources = [path.read_text(encoding="utf-8") for path in PROGRAMS]
    for _ in range(150):
        text = mutant(chance.choice(sources), chance)
        try:
            check(load_source(text, CASES))
        except CompileError as error:
            assert str(error)
