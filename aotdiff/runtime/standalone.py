"""The Python module of a built library: it needs numpy, and nothing of aotdiff.

It carries the part of the runtime that calls libraries as text, which becomes a package of its own name in
`sys.modules`, shared by all modules built by one version.
"""

from __future__ import annotations

import hashlib
import keyword
from pathlib import Path

from aotdiff.codegen import context
from aotdiff.runtime.build import Plan

# In the order of their imports.
PARTS = (
    "context", "errors", "interface", "convert", "sizes", "interrupt", "native", "binding", "fastcall", "prototype",
    "opening", "function", "collection", "loaded",
)  # fmt: skip

_TEMPLATE = '''\
"""Functions of {source}, compiled by aotdiff. Needs {stem}.so beside it, and numpy.

{functions}

Each function has its derivatives as methods: `f.grad(wrt="x")`, `f.value_and_grad()`, `f.vjp()` and so on.
"""

import os as _os
import sys as _sys
import types as _types

_PACKAGE = "{package}"

_PARTS = {{
{parts}
}}


def _runtime():
    """The package of the parts above, made once in a process."""
    if _PACKAGE in _sys.modules:
        return _sys.modules[_PACKAGE]
    package = _types.ModuleType(_PACKAGE)
    package.__path__ = []
    _sys.modules[_PACKAGE] = package
    for name, text in _PARTS.items():
        module = _types.ModuleType(_PACKAGE + "." + name)
        module.__package__ = _PACKAGE
        _sys.modules[module.__name__] = module
        setattr(package, name, module)
        exec(compile(text, "<" + module.__name__ + ">", "exec"), module.__dict__)
    return package


def _restore(root=None, chain=()):
    """What a pickle of the library or of one of its functions becomes."""
    return _library if root is None else _runtime().function.rebuild(_library, root, chain)


_folder = _os.path.dirname(_os.path.abspath(__file__))
_library = _runtime().loaded.Library(_os.path.join(_folder, "{stem}.so"), _restore)
AssertionFailed = _runtime().errors.AssertionFailed
Function = _runtime().function.Function

{names}

__all__ = {listed}
'''


def module_text(made: Plan, stem: str) -> str:
    """Text of `stem.py`."""
    texts = {name: _text(name) for name in PARTS}
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:12]
    package = f"_aotdiff_runtime_{digest}"
    parts = []
    for name, text in texts.items():
        own = text.replace("from aotdiff.codegen.context", f"from {package}.context")
        own = own.replace("from aotdiff.runtime import", f"from {package} import")
        own = own.replace("from aotdiff.runtime.", f"from {package}.")
        parts.append(f"    {name!r}: {literal(own)},")
    names, listed = exported_names(made, set())
    functions = "\n".join(f"    {f.name}{str(f)[2:]}" for f in made.interfaces)
    return _TEMPLATE.format(
        source=Path(made.compiler.source.path).name, stem=stem, functions=functions, package=package,
        parts="\n".join(parts), names="\n".join(names), listed=sorted(listed),
    )  # fmt: skip


def exported_names(made: Plan, taken: set[str]) -> tuple[list[str], list[str]]:
    """Lines that give the functions their names in the module, but for names it uses itself; and these names."""
    plain = [entry for entry in made.entries if not entry.end]
    c_names = {entry.root: entry.c_name for entry in sorted(plain, key=lambda e: e.real == "f64")}  # without _f32
    names, listed = [], []
    for f in made.interfaces:
        for name in dict.fromkeys([c_names.get(f.name, f.name), f.name]):
            if not keyword.iskeyword(name) and name not in taken:
                names.append(f"{name} = _library[{f.name!r}]")
                listed.append(name)
    return names, listed


def _text(name: str) -> str:
    here = Path(__file__).resolve().parent
    if name == "context":
        return Path(context.__file__ or "").read_text(encoding="utf-8")
    return (here / f"{name}.py").read_text(encoding="utf-8")


def literal(text: str) -> str:
    """A string literal that stays readable."""
    if "'''" in text or text.endswith("'"):
        return repr(text)
    return "r'''" + text + "'''" if "\\" in text else "'''" + text + "'''"
