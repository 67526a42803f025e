"""Gradients of a library's scalar functions as native entries of their own, so that calls of them cost no Python.

Each is a small adapter around the built vjp (and the function, where the value is wanted too): the cotangent is 1,
cotangents that are not asked for go into workspace.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotdiff.codegen.context import KIND_NUMBERS
from aotdiff.codegen.text import symbol
from aotdiff.codegen.values import MEMORY_TYPES, SIZES
from aotdiff.runtime.function import Chain
from aotdiff.runtime.interface import Interface, Leaf, float_part, float_results

_MOST = 6  # float parameters up to which each has a gradient of its own


def chains(f: Interface) -> Iterator[tuple[str, Chain]]:
    """Which gradients are built, by the end of their native names: by each float parameter, and by all."""
    results = float_results(f.result)
    if len(results) != 1 or not isinstance(f.result, Leaf) or f.result.sizes:
        return
    if not all(isinstance(p.kind, Leaf) for p in f.parameters):
        return
    names = [p.name for p in f.parameters if float_part(p.kind) is not None]
    single = names if len(names) <= _MOST else names[:1]
    for form in ("grad", "value_and_grad"):
        for name in single:
            yield f"{form}.{name}", ((form, (name,), False),)
        if names:
            yield f"{form}", ((form, tuple(names), True),)


def adapter_text(f: Interface, name: str, chain: Chain, value: str, vjp: str) -> str:
    """LLVM text of the entry `name`; `value` and `vjp` are the native entries of f (its interface, without `real`)."""
    ((form, names, _),) = chain
    assert isinstance(f.result, Leaf)
    params, passed, floats = [], [], []
    for k, parameter in enumerate(f.parameters):
        leaf = parameter.kind
        assert isinstance(leaf, Leaf)
        dims = [f"%p{k}.{axis}" for axis in range(len(leaf.sizes))]
        typed = [f"{'ptr' if leaf.sizes else MEMORY_TYPES[leaf.element]} %p{k}", *(f"i64 {d}" for d in dims)]
        params += typed
        passed += typed
        if leaf.is_float:
            floats.append((k, parameter.name, leaf, dims))
    lines: list[str] = []
    if form == "value_and_grad":
        params.append("ptr %value")
        lines += _checked("v", f"call i32 {symbol(value)}({', '.join([*passed, 'ptr %value', 'ptr %ctx'])})")
    results = []
    for k, own, leaf, dims in floats:
        if own in names:
            params += [f"ptr %r{k}", *(f"i64 %r{k}.{axis}" for axis in range(len(dims)))]
            results += [f"ptr %r{k}", *(f"i64 %r{k}.{axis}" for axis in range(len(dims)))]
        else:
            lines += _scratch(k, leaf, dims)
            results += [f"ptr %r{k}", *(f"i64 {d}" for d in dims)]
    one = f"{MEMORY_TYPES[f.result.element]} 1.0"
    call = f"call i32 {symbol(vjp)}({', '.join([*passed, one, *results, 'ptr %ctx'])})"
    head = f"define i32 {symbol(name)}({', '.join([*params, 'ptr %ctx'])}) nounwind {{"
    return "\n".join([head, *lines, f"  %code = {call}", "  ret i32 %code", "}", ""])


def _checked(stem: str, call: str) -> list[str]:
    return [
        f"  %{stem}.code = {call}",
        f"  %{stem}.bad = icmp ne i32 %{stem}.code, 0",
        f"  br i1 %{stem}.bad, label %{stem}.failed, label %{stem}.fine",
        f"{stem}.failed:",
        f"  ret i32 %{stem}.code",
        f"{stem}.fine:",
    ]


def _scratch(k: int, leaf: Leaf, dims: list[str]) -> list[str]:
    """Memory for a cotangent that nobody wants."""
    if not dims:
        return [f"  %r{k} = alloca {MEMORY_TYPES[leaf.element]}"]
    lines, size = [], str(SIZES[leaf.element])
    for axis, d in enumerate(dims):
        lines.append(f"  %size{k}.{axis} = mul i64 {size}, {d}")
        size = f"%size{k}.{axis}"
    number = KIND_NUMBERS["MemoryError"]
    return [
        *lines,
        f"  %r{k} = call ptr @aot.alloc(ptr %ctx, i64 {size})",
        f"  %r{k}.none = icmp eq ptr %r{k}, null",
        f"  br i1 %r{k}.none, label %r{k}.lost, label %r{k}.got",
        f"r{k}.lost:",
        f"  %r{k}.code = call i32 @aotdiff.refused(ptr %ctx, i32 {number}, ptr @aotdiff.nomemory)",
        f"  ret i32 %r{k}.code",
        f"r{k}.got:",
    ]
