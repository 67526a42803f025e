"""What the derivative passes need of dead-code elimination: operations whose results nobody uses go."""

from __future__ import annotations

from collections.abc import Callable, Collection

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.rewrite import copy_region
from aotdiff.ir.types import Acc
from aotdiff.passes.dce import remove_dead
from aotdiff.passes.facts import functions_that_check
from aotdiff.passes.pipeline import run


def outer_effects(op: Op, inside: set[Value] | None = None) -> bool:
    """Whether the operation has an effect outside itself: a check, or an accumulation into a handle from around it."""
    if op.name == "check":
        return True
    if op.name in ("accum", "call"):
        return any(isinstance(v.type, Acc) and (inside is None or v not in inside) for v in op.operands)
    if not op.regions:
        return False
    inside = set() if inside is None else inside
    for region in op.regions:
        inside.update(region.args)
    return any(outer_effects(each, inside) for region in op.regions for each in region.ops)


def prune(region: Region, used: set[Value] | None = None, staying: Collection[Op] = ()) -> set[Value]:
    """Drop operations without effect and without use, here and in nested regions; calls count as without effect.

    `used` holds what is used after the region; it is extended and returned. `staying` are operations that stay, and
    with them those around them.
    """
    used = set() if used is None else used
    kept: list[Op] = []
    for op in reversed(region.ops):
        idle = op.name != "yield" and op not in staying and not any(r in used for r in op.results)
        if idle and not outer_effects(op):
            continue
        kept.append(op)
        used.update(op.operands)
        for inner in op.regions:
            prune(inner, used, staying)
    kept.reverse()
    region.ops = kept
    return used


def simplify(module: Module, func: Func, passes: tuple[str, ...]) -> None:
    """Run passes on one function, which need not be in the module, and drop what is dead in it."""
    run(module, passes, only=[func])
    calls = any("callee" in op.attrs for op in func.body.walk())
    remove_dead(func, functions_that_check(module) if calls else set())


def strip_effects(module: Module, region: Region, inside: set[Value]) -> None:
    """Remove checks and accumulations into handles that are not in `inside`; nested handles are added to it."""
    _strip(module, region, lambda v: v not in inside, inside, checks=True)


def drop_handles(module: Module, region: Region, handles: set[Value]) -> None:
    """Remove accumulations into `handles`, in callees too."""
    _strip(module, region, lambda v: v in handles, set(), checks=False)


def without_outer_handles(module: Module, op: Op, inside: set[Value]) -> Op:
    """A call without its accumulations into handles that are not in `inside`; other operations as they are."""
    return _without(module, op, lambda v: v not in inside)


def _strip(module: Module, region: Region, dropped: Callable[[Value], bool], inside: set[Value], checks: bool) -> None:
    kept = []
    for op in region.ops:
        if (checks and op.name == "check") or (op.name == "accum" and dropped(op.operands[0])):
            continue
        if op.name == "withacc":
            inside.update(op.regions[0].args)
        for inner in op.regions:
            _strip(module, inner, dropped, inside, checks)
        kept.append(_without(module, op, dropped))
    region.ops = kept


def _without(module: Module, op: Op, dropped: Callable[[Value], bool]) -> Op:
    if op.name != "call":
        return op
    flags = tuple(isinstance(v.type, Acc) and dropped(v) for v in op.operands)
    if any(flags):
        op.attrs = {**op.attrs, "callee": _variant(module, module.funcs[op.attrs["callee"]], flags).name}
        op.operands = [v for v, drop in zip(op.operands, flags, strict=True) if not drop]
    return op


def _variant(module: Module, func: Func, flags: tuple[bool, ...]) -> Func:
    """The function without the parameters that are flagged handles, and what it adds to them."""
    key = ("without", func.name, flags)
    made = next((f for f in module.funcs.values() if f.attrs.get("derived") == key), None)
    if made is not None:
        return made
    attrs = {"derived": key} | {k: v for k, v in func.attrs.items() if k in ("recursive", "inline")}
    new = Func(module.fresh_name(f"{func.name}.pure"), Region(), list(func.result_types), attrs, func.loc)
    module.add(new)
    if func.body.ops:
        _write_variant(module, new, func, flags)
    return new


def finish_variants(module: Module) -> None:
    """Write the variants of functions that were themselves not written yet when the variant was asked for."""
    for func in list(module.funcs.values()):
        key = func.attrs.get("derived", ("",))
        if key[0] == "without" and not func.body.ops:
            _write_variant(module, func, module.funcs[key[1]], key[2])


def _write_variant(module: Module, new: Func, func: Func, flags: tuple[bool, ...]) -> None:
    body = copy_region(func.body, {})
    handles = {arg for arg, drop in zip(body.args, flags, strict=True) if drop}
    drop_handles(module, body, handles)
    body.args = [arg for arg in body.args if arg not in handles]
    for k, arg in enumerate(body.args):
        arg.index = k
    prune(body)
    new.body = body
