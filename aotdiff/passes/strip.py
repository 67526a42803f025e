"""strip: marks that only matter to differentiation are removed, after it."""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op
from aotdiff.ir.rewrite import map_ops, substitute
from aotdiff.passes.registry import register_local


@register_local("strip", "Remove `stop_gradient` and derivative rules, which mean nothing once these are expanded.")
def strip(module: Module, func: Func) -> None:
    for rule in ("vjp", "jvp"):
        func.attrs.pop(rule, None)
    env = {}

    def visit(op: Op) -> bool:
        if op.name != "stop_gradient":
            return True
        env[op.result] = op.operands[0]
        return False

    map_ops(func.body, visit)
    substitute(func.body, env)
