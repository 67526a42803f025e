"""A program: the main file and everything it imports, by name.

`load` and `load_source` read and parse the files and collect what they define; `check.check` then fills in types.
Both report into `Program.diagnostics`, so that all errors come out together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aotdiff.frontend import ast
from aotdiff.frontend.diagnostics import Diagnostics, Note
from aotdiff.frontend.parse import parse

STD_FOLDER = Path(__file__).resolve().parent.parent / "std"

Definition = ast.Function | ast.Constant | ast.TypeDefinition


@dataclass(slots=True)
class ExportedFunction:
    """One exported name. `value` is the function expression, or None for a plain `export f` (then `function` is set).

    The checker fills `type` (a `types.Function`; `real` in it means one compiled version per float type).
    """

    name: str
    span: ast.Span
    value: ast.Expr | None
    function: ast.Function | None
    type: Any = None


@dataclass(slots=True)
class Unit:
    """One file of a program. `visible` maps every name that its text may use to what defines it."""

    file: ast.File
    identity: str
    visible: dict[str, Definition] = field(default_factory=dict)
    rules: list[ast.DerivativeRule] = field(default_factory=list)
    incomplete: bool = False  # an import is missing: an unknown name may be one of its
    lost: set[str] = field(default_factory=set)  # functions that syntax errors took away


@dataclass(slots=True)
class Program:
    """All that a main file reaches.

    `functions`, `constants`, `types` and `rules` (function name -> mode -> rule) are global: names are unique over
    all files. `sources` has every file's text by its path as messages show it. After checking, `signatures` has
    the `types.Function` of each function and `exports` their types.
    """

    main: Unit
    units: dict[str, Unit]  # by path as messages show it, imported files first
    diagnostics: Diagnostics
    functions: dict[str, ast.Function] = field(default_factory=dict)
    constants: dict[str, ast.Constant] = field(default_factory=dict)
    types: dict[str, ast.TypeDefinition] = field(default_factory=dict)
    rules: dict[str, dict[str, ast.DerivativeRule]] = field(default_factory=dict)
    exports: list[ExportedFunction] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    signatures: dict[str, Any] = field(default_factory=dict)
    constant_types: dict[str, Any] = field(default_factory=dict)
    checked: bool = False


def load(path: str | os.PathLike[str], diagnostics: Diagnostics | None = None) -> Program:
    """Read and parse a file and its imports. OSError where the file itself cannot be read."""
    shown = os.fspath(path)
    loader = _Loader(diagnostics or Diagnostics())
    text = loader.read(shown)
    return loader.program(loader.unit(text, shown, os.path.realpath(shown), os.path.dirname(shown)))


def load_source(
    text: str,
    base: str | os.PathLike[str] = "",
    name: str = "<source>",
    diagnostics: Diagnostics | None = None,
    files: Mapping[str, str] | None = None,
) -> Program:
    """Parse a text; its imports are relative to the folder `base`, or texts of `files` by the path shown."""
    loader = _Loader(diagnostics or Diagnostics(), files)
    return loader.program(loader.unit(text, name, name, os.fspath(base)))


class _Loader:
    """Visits files depth first; each once."""

    def __init__(self, diagnostics: Diagnostics, files: Mapping[str, str] | None = None) -> None:
        self.diagnostics = diagnostics
        self.files = files or {}
        self.units: dict[str, Unit] = {}  # by identity, finished
        self.active: list[tuple[str, str]] = []  # (identity, shown path) of the files being read
        self.sources: dict[str, str] = {}

    def read(self, shown: str) -> str:
        """The text of a file; an error, and no text, where it is not UTF-8."""
        if shown in self.files:
            return self.files[shown]
        data = Path(shown).read_bytes()
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = data[: error.start]
            line, column = before.count(b"\n") + 1, len(before.rsplit(b"\n", 1)[-1].decode("utf-8", "replace")) + 1
            span = ast.Span(shown, line, column, line, column + 1)
            self.diagnostics.error(span, "the file is not UTF-8 text")
            return ""

    def unit(self, text: str, shown: str, identity: str, folder: str) -> Unit:
        self.sources[shown] = text
        self.diagnostics.add_source(shown, text)
        file = parse(text, shown, self.diagnostics)
        unit = Unit(file, identity, incomplete="*" in file.broken_names, lost=set(file.broken_names))
        self.active.append((identity, shown))
        for node in file.imports:
            self.bring(unit, node, folder)
        self.active.pop()
        for definition in (*file.types, *file.constants, *file.functions):
            self.define(unit, definition)
        unit.rules += file.rules
        self.units[identity] = unit
        return unit

    def bring(self, unit: Unit, node: ast.Import, folder: str) -> None:
        """Import one file into a unit."""
        shown = self.located(node, folder)
        identity = os.path.realpath(shown)
        cycle = [identity for identity, _ in self.active]
        if identity in cycle:
            names = [path for _, path in self.active[cycle.index(identity) :]] + [shown]
            chain = " -> ".join(os.path.basename(name) for name in names)
            self.diagnostics.error(node.path_span, f'a cycle of imports: "{node.path}" leads back here ({chain})')
            return
        imported = self.units.get(identity)
        if imported is None:
            try:
                text = self.read(shown)
            except OSError as error:
                reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
                note = f"looked for {shown} (paths are relative to the importing file)"
                self.diagnostics.error(node.path_span, f'cannot import "{node.path}": {reason}', [note])
                unit.incomplete = True
                return
            imported = self.unit(text, shown, identity, os.path.dirname(shown))
        self.merge(unit, imported, node)

    def located(self, node: ast.Import, folder: str) -> str:
        shown = os.path.normpath(os.path.join(folder, node.path)) if folder else os.path.normpath(node.path)
        if node.path.startswith("std/") and not os.path.exists(shown):
            return os.path.normpath(STD_FOLDER / node.path.removeprefix("std/"))
        return shown

    def merge(self, unit: Unit, imported: Unit, node: ast.Import) -> None:
        unit.incomplete |= imported.incomplete
        unit.lost |= imported.lost
        for name, definition in imported.visible.items():
            known = unit.visible.setdefault(name, definition)
            if known is not definition:
                notes = [Note("one is here", known.name_span), Note("the other is here", definition.name_span)]
                self.diagnostics.error(node.path_span, f"this import makes `{name}` a name for two things", notes)
        unit.rules += [rule for rule in imported.rules if rule not in unit.rules]

    def define(self, unit: Unit, definition: Definition) -> None:
        known = unit.visible.setdefault(definition.name, definition)
        if known is not definition:
            what = _kind(known)
            where = "" if known.span.path == definition.span.path else " that an import brings"
            message = f"`{definition.name}` is already the name of a {what}{where}"
            self.diagnostics.error(definition.name_span, message, [Note("it is defined here", known.name_span)])

    def program(self, main: Unit) -> Program:
        """Put the visited files together; the main file's names are everybody's."""
        units = {unit.file.path: unit for unit in self.units.values()}
        program = Program(main, units, self.diagnostics, sources=self.sources)
        for name, definition in main.visible.items():
            if isinstance(definition, ast.Function):
                program.functions[name] = definition
            elif isinstance(definition, ast.Constant):
                program.constants[name] = definition
            else:
                program.types[name] = definition
        for rule in main.rules:
            self.add_rule(program, rule)
        return program

    def add_rule(self, program: Program, rule: ast.DerivativeRule) -> None:
        modes = program.rules.setdefault(rule.function, {})
        known = modes.setdefault(rule.mode, rule)
        if known is not rule:
            message = f"`{rule.function}` already has a {rule.mode} rule"
            self.diagnostics.error(rule.function_span, message, [Note("it is given here", known.span)])


def _kind(definition: Definition) -> str:
    if isinstance(definition, ast.Function):
        return "function"
    return "constant" if isinstance(definition, ast.Constant) else "type"
