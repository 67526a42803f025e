"""Files that import files."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotdiff.frontend.check import check
from aotdiff.frontend.diagnostics import CompileError
from aotdiff.frontend.program import Program, load, load_source


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.grad").write_text(text, encoding="utf-8")


def errors(folder: Path, name: str = "main") -> list[str]:
    with pytest.raises(CompileError) as caught:
        check(load(folder / f"{name}.grad"))
    return [f"{Path(d.path).name}:{d.line}:{d.column}: {d.message}" for d in caught.value.diagnostics]


def loaded(folder: Path) -> Program:
    return check(load(folder / "main.grad"))


def test_an_import_brings_functions_types_constants_and_rules(tmp_path: Path) -> None:
    write(
        tmp_path,
        main='import "lib.grad"\nfn f(x: Vector) -> f64 = half * twice(x[0])',
        lib="type Vector = f64[3]\nlet half = 0.5\nfn twice(x: f64) -> f64 = x + x\n"
        "derivative vjp twice = |x, ct| 2.0 * ct",
    )
    program = loaded(tmp_path)
    assert set(program.functions) == {"f", "twice"}
    assert list(program.rules["twice"]) == ["vjp"]
    assert [export.name for export in program.exports] == ["f"]
    assert {Path(path).name for path in program.sources} == {"main.grad", "lib.grad"}


def test_a_file_reached_twice_counts_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        main='import "a.grad"\nimport "b.grad"\nfn f(x: f64) -> f64 = a(x) + b(x) + base(x)',
        a='import "base.grad"\nfn a(x: f64) -> f64 = base(x)',
        b='import "base.grad"\nfn b(x: f64) -> f64 = base(x)',
        base="fn base(x: f64) -> f64 = x",
    )
    assert len(loaded(tmp_path).units) == 4


def test_paths_are_relative_to_the_importing_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path, main='import "deep/a.grad"\nfn f(x: f64) -> f64 = b(x)', c="fn c(x: f64) -> f64 = x")
    write(tmp_path / "deep", a='import "b.grad"\nimport "../c.grad"', b="fn b(x: f64) -> f64 = x")
    assert set(loaded(tmp_path).functions) == {"f", "b", "c"}


def test_a_cycle(tmp_path: Path) -> None:
    write(tmp_path, main='import "a.grad"\nfn f(x: f64) -> f64 = x', a='import "main.grad"\nfn a(x: f64) -> f64 = x')
    assert errors(tmp_path) == [
        'a.grad:1:8: a cycle of imports: "main.grad" leads back here (main.grad -> a.grad -> main.grad)'
    ]


def test_a_file_that_imports_itself(tmp_path: Path) -> None:
    write(tmp_path, main='import "main.grad"\nfn f(x: f64) -> f64 = x')
    assert errors(tmp_path) == [
        'main.grad:1:8: a cycle of imports: "main.grad" leads back here (main.grad -> main.grad)'
    ]


def test_one_name_for_two_things(tmp_path: Path) -> None:
    write(
        tmp_path,
        main='import "a.grad"\nimport "b.grad"\nfn a(x: f64) -> f64 = x',
        a="fn a(x: f64) -> f64 = x\nfn h(x: f64) -> f64 = x",
        b="let h = 1.0",
    )
    assert errors(tmp_path) == [
        "main.grad:2:8: this import makes `h` a name for two things",
        "main.grad:3:4: `a` is already the name of a function that an import brings",
    ]


def test_a_missing_file_hides_nothing_else(tmp_path: Path) -> None:
    write(
        tmp_path,
        main='import "no.grad"\nfn f(x: f64) -> f64 = helper(x) + velocty\nfn g(velocity: f64) -> f64 = velocty',
    )
    assert errors(tmp_path) == [
        'main.grad:1:8: cannot import "no.grad": there is no such file',
        'main.grad:3:30: unknown name "velocty"; did you mean "velocity"?',
    ]


def test_errors_of_an_imported_file_are_reported_there(tmp_path: Path) -> None:
    write(
        tmp_path,
        main='import "a.grad"\nfn f(x: f64) -> f64 = a(x)',
        a="fn a(x: f64) -> f64 = x +\nfn b(x: f64) -> f64 = y",
    )
    found = errors(tmp_path)
    assert [message.split(":")[:2] for message in found] == [["a.grad", "1"], ["a.grad", "2"]]


def test_an_imported_file_does_not_see_the_importing_one(tmp_path: Path) -> None:
    write(tmp_path, main='import "a.grad"\nfn f(x: f64) -> f64 = x', a="fn a(x: f64) -> f64 = f(x)")
    assert errors(tmp_path) == ['a.grad:1:23: unknown name "f"']


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "main.grad").write_bytes(b"fn f(x: f64) -> f64 = x\n# \xff\n")
    assert errors(tmp_path) == ["main.grad:2:3: the file is not UTF-8 text"]


def test_a_folder_and_an_absent_main_file(tmp_path: Path) -> None:
    write(tmp_path, main='import "."\nfn f(x: f64) -> f64 = x')
    assert errors(tmp_path)[0].startswith('main.grad:1:8: cannot import ".": ')
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.grad")


def test_a_text_imports_relative_to_its_base(tmp_path: Path) -> None:
    write(tmp_path, lib="fn h(x: f64) -> f64 = x")
    program = check(load_source('import "lib.grad"\nfn f(x: f64) -> f64 = h(x)', tmp_path))
    assert set(program.functions) == {"f", "h"}


def test_two_rules_for_one_function(tmp_path: Path) -> None:
    write(
        tmp_path,
        main='import "a.grad"\nderivative vjp a = |x, ct| ct',
        a="fn a(x: f64) -> f64 = x\nderivative vjp a = |x, ct| ct",
    )
    assert errors(tmp_path) == ["main.grad:2:16: `a` already has a vjp rule"]
