"""Replaces `vjp` and `jvp` operations by calls of generated functions, innermost first."""

from __future__ import annotations

from aotdiff.ad.forward import jvp_func
from aotdiff.ad.reverse import use_records, vjp_func
from aotdiff.ir.graph import Func, Module, Op
from aotdiff.passes.facts import callees
from aotdiff.passes.pipeline import PREPARE, run


def expand_derivatives(module: Module) -> None:
    """Afterwards the module has no `vjp` and no `jvp` operation. A callee is expanded before it is differentiated.

    A module without such operations is left as it is; others are prepared first (`passes.pipeline.PREPARE`).
    """
    if not any(map(_derivative, module.funcs.values())):
        return
    run(module, PREPARE)
    done: set[str] = set()
    for name in list(module.funcs):
        _expand(module, name, done)
    use_records(module)


def _derivative(func: Func) -> Op | None:
    """A derivative operation of the function that is still to be replaced."""
    return next((op for op in func.body.walk() if op.name in ("vjp", "jvp")), None)


def _expand(module: Module, name: str, done: set[str]) -> None:
    if name in done:
        return
    done.add(name)
    func = module.funcs[name]
    for callee in list(callees(func)):
        _expand(module, callee, done)
    # One at a time: what is generated may be inlined here before the next.
    while (op := _derivative(func)) is not None:
        _expand(module, op.attrs["callee"], done)
        _replace(module, op)
        done.add(op.attrs["callee"])


def _replace(module: Module, op: Op) -> None:
    callee, wrt, value = module.funcs[op.attrs["callee"]], tuple(op.attrs["wrt"]), bool(op.attrs["value"])
    make = vjp_func if op.name == "vjp" else jvp_func
    func = make(module, callee, wrt, value)
    op.name, op.attrs = "call", {"callee": func.name}
