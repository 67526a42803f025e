"""Sizes of the results of a call, and of its cotangents and tangents, from the sizes of its arguments.

Whether the function's own arguments fit together is native code's to check, with the line of the function: what stands
here only has to be right when they do, and must not fail when they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from aotdiff.runtime.interface import Interface, Leaf, Size, leaves, size_names

Wrong = tuple[str, Leaf, int, int, int]  # parameter, the leaf in it, axis, its size, the size wanted
Shapes = Callable[[Sequence[Any]], list[tuple[int, ...]]]


def result_shapes(f: Interface) -> Shapes:
    """A function from the converted argument leaves to the shape of each result leaf (`()` for scalars)."""
    results = list(leaves(f.result))
    wanted = {name for leaf in results for size in leaf.sizes for name in size_names(size)}
    lines, variables = _bindings(f, wanted)
    shapes = ", ".join("(" + "".join(f"most({_code(s, variables)}), " for s in leaf.sizes) + ")" for leaf in results)
    text = "\n    ".join(["def shapes(v):", *lines, f"return [{shapes}]"])
    space: dict[str, Any] = {"solve": _solve, "floordiv": _floordiv, "mod": _mod, "most": _most}
    exec(text, space)  # made of numbers and names of our own
    return space["shapes"]


def extra_sizes(f: Interface) -> Callable[[Sequence[Any]], Wrong | None] | None:
    """What finds the first size of a cotangent or tangent that is not that of what it belongs to.

    None where nothing has such a size.
    """
    own = replace(f, parameters=f.parameters[: len(f.parameters) - f.extra])
    start = sum(len(list(leaves(p.kind))) for p in own.parameters)
    extra = [(p.name, leaf) for p in f.parameters[len(own.parameters) :] for leaf in leaves(p.kind)]
    lines, variables = _bindings(own, set())
    checks: list[str] = []
    for k, (_, leaf) in enumerate(extra):
        for axis, size in enumerate(leaf.sizes):
            if size_names(size) <= variables.keys():
                got, wanted = f"v[{start + k}].shape[{axis}]", f"most({_code(size, variables)})"
                checks.append(f"if {got} != {wanted}: return (*extra[{k}], {axis}, {got}, {wanted})")
    if not checks:
        return None
    text = "\n    ".join(["def wrong(v):", *lines, *checks])
    space: dict[str, Any] = {"solve": _solve, "floordiv": _floordiv, "mod": _mod, "most": _most, "extra": extra}
    exec(text, space)  # made of numbers and names of our own
    return space["wrong"]


def _bindings(f: Interface, wanted: set[str]) -> tuple[list[str], dict[str, str]]:
    """Lines that set one Python variable for each size name that the results need."""
    lines: list[str] = []
    variables: dict[str, str] = {}
    sized: list[tuple[str, Size]] = []
    position = 0
    for parameter in f.parameters:
        for leaf in leaves(parameter.kind):
            sized += [(f"v[{position}].shape[{axis}]", size) for axis, size in enumerate(leaf.sizes)]
            if leaf.element == "i64" and not leaf.sizes and isinstance(parameter.kind, Leaf):
                _bind(parameter.name, f"v[{position}]", lines, variables)
            position += 1
    for source, size in sized:
        if isinstance(size, str):
            _bind(size, source, lines, variables)
    for source, size in sized:
        unknown = size_names(size) - variables.keys()
        if len(unknown) == 1:
            (name,) = unknown
            code = _code(size, {**variables, name: "x"})
            _bind(name, f"solve({source}, lambda x: {code})", lines, variables)
    missing = wanted - variables.keys()
    if missing:
        raise TypeError(f"{f.name}: the result size {', '.join(sorted(missing))} does not follow from the parameters")
    return lines, variables


def _bind(name: str, source: str, lines: list[str], variables: dict[str, str]) -> None:
    if name not in variables:
        variables[name] = f"s{len(variables)}"
        lines.append(f"{variables[name]} = {source}")


def _code(size: Size, variables: dict[str, str]) -> str:
    """The size as a Python expression; names that nothing binds are 0 (reported by the caller if it matters)."""
    if isinstance(size, str):
        return variables.get(size, "0")
    if not isinstance(size, tuple):
        return repr(size)
    op, left, right = size
    a, b = _code(left, variables), _code(right, variables)
    if op in ("//", "%"):
        return f"{'floordiv' if op == '//' else 'mod'}({a}, {b})"
    return f"({a} {op} {b})"


def _solve(value: int, expression: Callable[[int], int]) -> int:
    """The x for which an affine expression has this value, if it divides."""
    rest = expression(0)
    slope = expression(1) - rest
    return (value - rest) // slope if slope else 0


def _floordiv(a: int, b: int) -> int:
    return a // b if b else 0


def _mod(a: int, b: int) -> int:
    return a % b if b else 0


def _most(size: int) -> int:
    """A size an array can have: native code refuses the rest."""
    return size if size > 0 else 0
