"""The C header of a built library."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from aotdiff.codegen.cabi import CArgument, CFunction, size_text
from aotdiff.codegen.context import KIND_NUMBERS, KINDS
from aotdiff.codegen.names import ascii_spelling, unique_names
from aotdiff.codegen.processor import WRONG_PROCESSOR

_TOGETHER = "\x00"  # a space where no line may end
_C_TYPES = {"f64": "double", "f32": "float", "i64": "int64_t", "bool": "uint8_t"}


_ABOUT = """\
/* Every function gives 0, or one of these codes and a text in aotdiff_last_error():
{codes}
   {wrong} the processor lacks what the code was compiled for
   Arrays are contiguous and row-major (the last index varies fastest); an array of no elements may be null. Parameters
   are only read. Results are written, whole when the code is 0, and must not overlap anything else; a null result
   pointer means that the result is not wanted. int64_t sizes come once each, after the parameters.
   Functions may be called from several threads at once. NAME keeps its workspace and error text per thread, until the
   thread ends. NAME_into works in the `bytes` at `workspace` (any content, any alignment) and allocates nothing: code
   {memory} if they are too few. NAME_workspace makes the call and gives the bytes it took, or minus an error code; they
   depend on the sizes, and on the values where those decide what is computed.{threads} */"""
_THREADS = """
   NAME shares large loops between {count}; the helping ones belong to the thread that calls, and end with it.
   NAME_into uses one."""


def header(functions: Sequence[CFunction], stem: str, threads: int = 1) -> str:
    """Text of `stem.h`; `threads` that a call may use at most, 0 for as many as there are processors."""
    guard = "AOTDIFF_" + "".join(c if c.isalnum() else "_" for c in ascii_spelling(stem)).upper() + "_H"
    codes = "\n".join(f"   {number} {name}" for number, name in KINDS.items() if name != "KeyboardInterrupt")
    many = f"up to {threads} threads" if threads else "as many threads as there are processors"
    shared = _THREADS.format(count=many) if threads != 1 else ""
    about = _ABOUT.format(codes=codes, wrong=WRONG_PROCESSOR, memory=KIND_NUMBERS["MemoryError"], threads=shared)
    parts = [
        f"#ifndef {guard}\n#define {guard}",
        "#include <stdint.h>",
        about,
        '#ifdef __cplusplus\nextern "C" {\n#endif',
        '/* The text of this thread\'s last error; "" if there was none. */\nconst char *aotdiff_last_error(void);',
        *(_declaration(f) for f in functions),
        "#ifdef __cplusplus\n}\n#endif",
        "#endif",
    ]
    return "\n\n".join(parts) + "\n"


def _declaration(f: CFunction) -> str:
    """The function with its comment, and its variants."""
    sizes = f.size_names()
    ours = ("workspace", "bytes")
    names = unique_names([*ours, *(p.name for p in f.parameters), *sizes, *(r.name for r in f.results)])[len(ours) :]
    start, own = len(f.parameters), len(f.parameters) - f.extra
    given, results = names[:start], names[start + len(sizes) :]
    spelt = dict(zip([*(p.name for p in f.parameters), *sizes], names, strict=False))
    args = [_parameter(p, name) for p, name in zip(f.parameters, given, strict=True)]
    args[own:own] = [f"int64_t {name}" for name in names[start : start + len(sizes)]]
    args += [f"{_C_TYPES[r.element]} *{name}" for r, name in zip(f.results, results, strict=True)]
    lines = [*f.doc.split("\n"), _shapes("in", f.parameters, given, spelt), _shapes("out", f.results, results, spelt)]
    comment = "\n   ".join(line.replace("*/", "* /") for line in lines if line)
    more = [*args, "void *workspace", "int64_t bytes"]
    return (
        (f"/* {comment} */\n" if comment else "")
        + "\n".join([_wrapped(f"int {f.name}", args), _wrapped(f"int {f.into()}", more),
                     _wrapped(f"int64_t {f.workspace()}", args)])
    )  # fmt: skip


def _wrapped(head: str, args: Sequence[str]) -> str:
    """A declaration in lines of a length to read, broken between parameters."""
    together = [part.replace(" ", _TOGETHER) for part in (head, *args)]
    text = f"{together[0]}({', '.join(together[1:]) or 'void'});"
    lines = textwrap.fill(text, 110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return lines.replace(_TOGETHER, " ")


def _parameter(p: CArgument, name: str) -> str:
    return f"const {_C_TYPES[p.element]} *{name}" if p.sizes else f"{_C_TYPES[p.element]} {name}"


def _shapes(label: str, arguments: Sequence[CArgument], names: Sequence[str], spelt: dict[str, str]) -> str:
    shown = [f"{name}{_shape(a.sizes, spelt) if a.sizes else ''}" for a, name in zip(arguments, names, strict=True)]
    return f"{label}: {', '.join(shown)}" if shown else ""


def _shape(sizes: Sequence, spelt: dict[str, str]) -> str:
    return "[" + ", ".join(size_text(_renamed(s, spelt)) for s in sizes) + "]"


def _renamed(size, spelt: dict[str, str]):
    if isinstance(size, tuple):
        return (size[0], _renamed(size[1], spelt), _renamed(size[2], spelt))
    return spelt.get(size, size)
