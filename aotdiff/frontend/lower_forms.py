"""Derivative forms applied to arguments: what they are called with and how their results are nested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aotdiff.frontend.lower_arrays import cast
from aotdiff.frontend.lower_context import Context
from aotdiff.frontend.lower_functions import Lifted, Struct, count_of_parameters, lift
from aotdiff.frontend.lower_sizes import item_leaves
from aotdiff.frontend.lower_values import Form, Item
from aotdiff.ir.graph import Value
from aotdiff.ir.types import is_differentiable

Shape = list[Value] | None


def lift_form(cx: Context, f: Form, items: list[Item]) -> Lifted:
    """A derivative form as a function of the graph: its function's parameters, then the form's own."""
    from aotdiff.ad.forms import make_form

    count = count_of_parameters(f.function, len(items))
    own, extra = _float_arguments(cx, f, items[:count]), items[count:]
    base = lift(cx, f.function, own, None)
    chosen = [_float_part(base.parameters[k], base.operands) for k in f.wrt]
    wrt = [place for part in chosen for place in _leaves(part)]
    func = make_form(cx.lowering.module, base.func.name, f.form, wrt)
    shapes = [cx.shape(base.operands[place]) for place in wrt]
    floats = [k for k, t in enumerate(base.func.result_types) if is_differentiable(t)]
    results = [base.shapes[k] for k in floats]
    seeds = _seeds(cx, f, base, extra, wrt, shapes, floats, results)
    known, struct = _results(f, base, chosen, shapes, results, floats)
    numbers = iter(range(len(base.operands), 10**6))
    parameters = [*base.parameters, *(_struct_of(item, numbers) for item in extra)]
    return Lifted(func, [*base.operands, *seeds], parameters, struct, known)


def _float_arguments(cx: Context, f: Form, items: list[Item]) -> list[Item]:
    """Arguments, those to differentiate by as floats (a lambda's parameter takes the type of what it is given)."""
    found = list(items)
    for k in f.wrt:
        item = found[k]
        if isinstance(item, Value) and not cx.kind(item).is_float:
            found[k] = cast(cx, item, cx.scalar_of_real())
    return found


def _float_part(struct: Struct, operands: Sequence[Value]) -> Struct:
    """A struct with the positions of floats only; a tuple left with one part of several is that part."""
    if not isinstance(struct, tuple):
        return struct if struct is not None and is_differentiable(operands[struct].type) else None
    parts = tuple(p for p in (_float_part(s, operands) for s in struct) if p is not None)
    if len(parts) == len(struct) or len(parts) > 1:
        return parts
    return parts[0] if parts else None


def _leaves(struct: Struct) -> Iterator[int]:
    if isinstance(struct, tuple):
        for part in struct:
            yield from _leaves(part)
    elif struct is not None:
        yield struct


def _struct_of(item: Item, numbers: Iterator[int]) -> Struct:
    return tuple(_struct_of(part, numbers) for part in item) if isinstance(item, tuple) else next(numbers)


# Cotangents, tangents, directions ---------------------------------------------------------------------------------


def _seeds(
    cx: Context, f: Form, base: Lifted, extra: list[Item], wrt: list[int], shapes: list[list[Value]],
    floats: list[int], results: list[Shape],
) -> list[Value]:  # fmt: skip
    """The form's own arguments, checked to have the shapes of what they belong to."""
    leaves = [leaf for item in extra for leaf in item_leaves(item)]
    if not leaves:
        return []
    if f.form.endswith("vjp"):
        kinds = [cx.kind_of(base.func.result_types[k]) for k in floats]
        wanted = results
        if any(shape is None for shape in results):
            wanted = _measured(cx, base, floats)
    else:
        kinds = [cx.kind(base.operands[place]) for place in wrt]
        wanted = list(shapes)
    word = "cotangent" if f.form.endswith("vjp") else "direction" if f.form == "hvp" else "tangent"
    seeds = []
    for leaf, kind, shape in zip(leaves, kinds, wanted, strict=True):
        value = cx.force(cast(cx, leaf, kind))
        assert shape is not None
        for axis, (a, b) in enumerate(zip(cx.shape(value), shape, strict=True)):
            cx.check_equal(a, b, f"the {word} has size {{0}} for a value of size {{1}} (axis {axis})")
        seeds.append(cx.known_shape(value, shape) if shape else value)
    return seeds


def _measured(cx: Context, base: Lifted, floats: list[int]) -> list[Shape]:
    """The shapes of a function's results, found by calling it."""
    op = cx.b.emit("call", base.operands, base.func.result_types, {"callee": base.func.name})
    return [cx.shape(op.results[k]) for k in floats]


# Results ----------------------------------------------------------------------------------------------------------


def _results(
    f: Form, base: Lifted, chosen: list[Struct], shapes: list[list[Value]], results: list[Shape], floats: list[int]
) -> tuple[list[Shape], Struct]:
    """Shapes of the flat results, and how they are nested."""
    valued = f.form.startswith("value_and_")
    form = f.form.removeprefix("value_and_")
    start = len(base.func.result_types) if valued else 0
    known: list[Shape] = list(base.shapes) if valued else []
    width = len(shapes)
    if form in ("grad", "vjp", "hvp"):
        known += shapes
        struct = _packed(f, chosen, start)
    elif form == "jvp":
        known += results
        struct = _renumbered(_float_results(base, floats), start)
    elif form == "jacobian":
        known += [None if r is None else [*r, *s] for r in results for s in shapes]
        rows = [_packed(f, chosen, start + width * k) for k in range(len(results))]
        struct = tuple(rows) if _tuple_result(base, floats) else rows[0]
    else:
        known += [[*a, *b] for a in shapes for b in shapes]
        rows = [_packed(f, chosen, start + width * k) for k in range(width)]
        struct = tuple(rows) if f.tupled else rows[0]
    return known, (base.result, struct) if valued else struct


def _packed(f: Form, chosen: list[Struct], start: int) -> Struct:
    """One result per `wrt`: a tuple where `wrt` is one."""
    numbers = iter(range(start, 10**6))
    parts = [_numbered(part, numbers) for part in chosen]
    return tuple(parts) if f.tupled else parts[0]


def _numbered(struct: Struct, numbers: Iterator[int]) -> Struct:
    return tuple(_numbered(part, numbers) for part in struct) if isinstance(struct, tuple) else next(numbers)


def _float_results(base: Lifted, floats: list[int]) -> Struct:
    """The struct of the float results, numbered among themselves."""
    order = {k: n for n, k in enumerate(floats)}

    def part(struct: Struct) -> Any:
        if not isinstance(struct, tuple):
            return order.get(struct)
        parts = tuple(p for p in map(part, struct) if p is not None)
        if len(parts) == len(struct) or len(parts) > 1:
            return parts
        return parts[0] if parts else None

    return part(base.result)


def _renumbered(struct: Struct, start: int) -> Struct:
    return tuple(_renumbered(part, start) for part in struct) if isinstance(struct, tuple) else struct + start


def _tuple_result(base: Lifted, floats: list[int]) -> bool:
    """Whether the derivatives of a function's results are a tuple."""
    return isinstance(base.result, tuple) and (len(floats) > 1 or len(floats) == len(base.result))
