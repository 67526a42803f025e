"""The C header of a built library."""

from __future__ import annotations

from collections.abc import Sequence

from aotdiff.codegen.cabi import CFunction, size_text
from aotdiff.codegen.context import KINDS
from aotdiff.codegen.names import ascii_spelling, unique_names

_C_TYPES = {"f64": "double", "f32": "float", "i64": "int64_t", "bool": "uint8_t"}


def header(functions: Sequence[CFunction], stem: str) -> str:
    """Text of `stem.h`."""
    guard = "AOTDIFF_" + "".join(c if c.isalnum() else "_" for c in ascii_spelling(stem)).upper() + "_H"
    codes = "\n".join(f"   {number} {name}" for number, name in KINDS.items())
    parts = [
        f"#ifndef {guard}\n#define {guard}",
        "#include <stdint.h>",
        "/* Arrays are row-major. Every function gives 0, or an error code and a text in aotdiff_last_error():\n"
        f"{codes}\n   A null result pointer means that the result is not wanted. */",
        '#ifdef __cplusplus\nextern "C" {\n#endif',
        '/* The text of this thread\'s last error; "" if there was none. */\nconst char *aotdiff_last_error(void);',
        *(_declaration(f) for f in functions),
        "#ifdef __cplusplus\n}\n#endif",
        "#endif",
    ]
    return "\n\n".join(parts) + "\n"


def _declaration(f: CFunction) -> str:
    sizes = f.size_names()
    names = unique_names([*(p.name for p in f.parameters), *sizes, *(r.name for r in f.results)])
    spelt = dict(zip([*(p.name for p in f.parameters), *sizes], names, strict=False))
    args, notes = [], []
    start = len(f.parameters)
    own = start - f.extra
    for k, (p, name) in enumerate(zip(f.parameters, names, strict=False)):
        if k == own:
            args += [f"int64_t {name}" for name in names[start : start + len(sizes)]]
        args.append(f"const {_C_TYPES[p.element]} *{name}" if p.sizes else f"{_C_TYPES[p.element]} {name}")
        if p.sizes:
            notes.append(f"{name}: {_shape(p.sizes, spelt)}")
    if own == start:
        args += [f"int64_t {name}" for name in names[start : start + len(sizes)]]
    for r, name in zip(f.results, names[start + len(sizes) :], strict=True):
        args.append(f"{_C_TYPES[r.element]} *{name}")
        if r.sizes:
            notes.append(f"{name}: {_shape(r.sizes, spelt)}")
    lines = [line for line in (f.doc, ", ".join(notes)) if line]
    comment = "/* " + "\n   ".join(line.replace("*/", "* /") for line in lines) + " */\n" if lines else ""
    return f"{comment}int {f.name}({', '.join(args)});"


def _shape(sizes: Sequence, spelt: dict[str, str]) -> str:
    return "[" + ", ".join(size_text(_renamed(s, spelt)) for s in sizes) + "]"


def _renamed(size, spelt: dict[str, str]):
    if isinstance(size, tuple):
        return (size[0], _renamed(size[1], spelt), _renamed(size[2], spelt))
    return spelt.get(size, size)
