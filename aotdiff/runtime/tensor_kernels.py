"""Compiled kernels behind the operators of tensors.

A kernel is a function of `std/tensor.grad`, or a built-in, run over arrays: a few lines of `.grad` written for the
ranks, the broadcasting and the element type at hand, then compiled, differentiated and cached like any other program.
Axes that play the same role for every operand are joined first, so that few different kernels are needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, lru_cache

from aotdiff.runtime.function import Function

Shape = tuple[int, ...]
_STD = os.path.join(os.path.dirname(os.path.dirname(__file__)), "std")


def compiled(text: str, name: str, title: str, target: str) -> Function:
    """The function `name` of a program that may use `tensor.grad`; `title` is what messages call it."""
    from aotdiff.runtime.module import compile_source

    head = 'import "tensor.grad"\n'
    return compile_source(f"{head}{text}\nexport {name}\n", base=_STD, name=f"<{title}>", target=target)[name]


_ON_ARRAYS = {
    "gather": ("x: {0}[n], at: i64[m]", "{0}[m]"),
    "scatter": ("x: {0}[n], at: i64[m], v: {0}[m]", "{0}[n]"),
    "dot_vv": ("x: {0}[k], y: {0}[k]", "{0}"),
    "dot_mv": ("x: {0}[n, k], y: {0}[k]", "{0}[n]"),
    "dot_vm": ("x: {0}[k], y: {0}[k, m]", "{0}[m]"),
    "dot_mm": ("x: {0}[n, k], y: {0}[k, m]", "{0}[n, m]"),
    "dot_batch": ("x: {0}[b, n, k], y: {0}[b, k, m]", "{0}[b, n, m]"),
}


@cache
def on_arrays(name: str, element: str, target: str = "cpu") -> Function:
    """A function of `tensor.grad` over whole arrays, for one element type."""
    parameters, result = [part.format(element) for part in _ON_ARRAYS[name]]
    given = ", ".join(part.partition(":")[0] for part in parameters.split(", ") if ":" in part)
    return compiled(f"fn tensor_{name}({parameters}) -> {result} = {name}({given})", f"tensor_{name}", name, target)


# Element by element ------------------------------------------------------------------------------------------------


@lru_cache(4096)
def joined(shapes: tuple[Shape, ...]) -> tuple[Shape, tuple[int, ...], tuple[Shape, ...]]:
    """Broadcast shapes: the result's shape, the roles of the joined axes, and each operand's shape over them.

    The role of an axis has bit p set if operand p runs along it; axes of size 1 are left out.
    """
    out = broadcast(shapes)
    roles: list[int] = []
    sizes: list[int] = []
    for axis, size in enumerate(out):
        if size == 1:
            continue
        role = 0
        for p, shape in enumerate(shapes):
            place = axis - len(out) + len(shape)
            if place >= 0 and shape[place] != 1:
                role |= 1 << p
        if roles and roles[-1] == role:
            sizes[-1] *= size
        else:
            roles.append(role)
            sizes.append(size)
    views = [tuple([n for n, role in zip(sizes, roles) if role >> p & 1]) for p in range(len(shapes))]
    return out, tuple(roles), tuple(views)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The common shape, by numpy's rules."""
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    rank = max(map(len, shapes))
    out = [1] * rank
    for shape in shapes:
        for k, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if out[k] not in (1, size):
                    raise ValueError(f"shapes {' and '.join(map(str, shapes))} do not fit together")
                out[k] = size
    return tuple(out)


@cache
def elementwise(
    name: str, roles: tuple[int, ...], elements: tuple[str, ...], result: str, target: str = "cpu"
) -> Function:
    """`name` of one element of each operand, over axes with these roles."""
    indices = [f"i{axis}" for axis in range(len(roles))]
    sizes = [f"n{axis}" for axis in range(len(roles))]
    parameters, arguments = [], []
    for p, element in enumerate(elements):
        own = [axis for axis, role in enumerate(roles) if role >> p & 1]
        parameters.append(f"x{p}: {_typed(element, [sizes[axis] for axis in own])}")
        arguments.append(f"x{p}[{', '.join(indices[axis] for axis in own)}]" if own else f"x{p}")
    body = f"{name}({', '.join(arguments)})"
    if roles:
        body = f"[{body} for {_ranges(indices, sizes)}]"
    text = f"fn tensor_{name}({', '.join(parameters)}) -> {_typed(result, sizes)} = {body}"
    return compiled(text, f"tensor_{name}", name, target)


def _typed(element: str, sizes: Sequence[str]) -> str:
    return f"{element}[{', '.join(sizes)}]" if sizes else element


def _ranges(indices: Sequence[str], sizes: Sequence[str]) -> str:
    return ", ".join(f"{i} in 0..{n}" for i, n in zip(indices, sizes))


# Reductions --------------------------------------------------------------------------------------------------------


def grouped(shape: Shape, axes: set[int]) -> tuple[Shape, str]:
    """Neighbouring axes joined into `k` (kept) and `r` (reduced) ones: their sizes, and a letter for each."""
    sizes: list[int] = []
    letters = ""
    for axis, size in enumerate(shape):
        letter = "r" if axis in axes else "k"
        if size == 1:
            continue
        if letters.endswith(letter):
            sizes[-1] *= size
        else:
            letters += letter
            sizes.append(size)
    return tuple(sizes), letters


@cache
def reduction(name: str, letters: str, element: str, result: str, target: str = "cpu") -> Function:
    """A reduction over the axes with the letter `r`."""
    indices = [f"i{axis}" for axis in range(len(letters))]
    sizes = [f"n{axis}" for axis in range(len(letters))]
    kept = [axis for axis, letter in enumerate(letters) if letter == "k"]
    gone = [axis for axis, letter in enumerate(letters) if letter == "r"]
    inner = _ranges([indices[axis] for axis in gone], [sizes[axis] for axis in gone])
    function = "sum" if name == "mean" else name
    body = f"{function}(x[{', '.join(indices)}] for {inner})"
    if name == "mean":
        body = f"{body} / {element}({' * '.join(sizes[axis] for axis in gone)})"
    outer = [sizes[axis] for axis in kept]
    if kept:
        body = f"[{body} for {_ranges([indices[axis] for axis in kept], outer)}]"
    text = f"fn tensor_{name}(x: {_typed(element, sizes)}) -> {_typed(result, outer)} = {body}"
    return compiled(text, f"tensor_{name}", name, target)


# Views -------------------------------------------------------------------------------------------------------------


@cache
def strided(rank: int, element: str, target: str = "cpu") -> Function:
    """A block read with a start and a step along each axis; views are made without it, their gradients by its vjp."""
    indices = [f"i{axis}" for axis in range(rank)]
    counts = [f"k{axis}" for axis in range(rank)]
    places = ", ".join(f"s{axis} + d{axis} * i{axis}" for axis in range(rank))
    given = ", ".join(f"s{axis}: i64, d{axis}: i64, k{axis}: i64" for axis in range(rank))
    shape = _typed(element, [f"n{axis}" for axis in range(rank)])
    body = f"[x[{places}] for {_ranges(indices, counts)}]"
    text = f"fn tensor_index(x: {shape}, {given}) -> {_typed(element, counts)} = {body}"
    return compiled(text, "tensor_index", "index", target)
