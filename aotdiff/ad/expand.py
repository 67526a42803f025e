"""Replaces `vjp` and `jvp` operations by calls of generated functions, innermost first."""

from __future__ import annotations

from aotdiff.ad.reverse import vjp_func
from aotdiff.ir.graph import Func, Module, Op
from aotdiff.passes.sink import sink_arms


def expand_derivatives(module: Module) -> None:
    """Afterwards the module has no `vjp` and no `jvp` operation. A callee is expanded before it is differentiated."""
    sink_arms(module, list(module.funcs.values()))
    done: set[str] = set()
    for name in list(module.funcs):
        _expand(module, module.funcs[name], done)


def _expand(module: Module, func: Func, done: set[str]) -> None:
    if func.name in done:
        return
    done.add(func.name)
    _expand_once(module, func, done)
    while any(op.name in ("vjp", "jvp") for op in func.body.walk()):
        # Differentiating inlines, also here: copies of derivative operations can appear behind the walk.
        _expand_once(module, func, done)


def _expand_once(module: Module, func: Func, done: set[str]) -> None:
    for op in list(func.body.walk()):
        if op.name in ("call", "vjp", "jvp"):
            _expand(module, module.funcs[op.attrs["callee"]], done)
        if op.name in ("vjp", "jvp"):
            _replace(module, op)
            # What was generated transposes users' rules by `vjp` operations of its own.
            _expand(module, module.funcs[op.attrs["callee"]], done)


def _replace(module: Module, op: Op) -> None:
    callee, wrt, value = module.funcs[op.attrs["callee"]], tuple(op.attrs["wrt"]), bool(op.attrs["value"])
    if op.name == "vjp":
        func = vjp_func(module, callee, wrt, value)
    else:
        from aotdiff.ad.forward import jvp_func

        func = jvp_func(module, callee, wrt, value)
    op.name, op.attrs = "call", {"callee": func.name}
