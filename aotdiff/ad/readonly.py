"""Which array parameters a function only reads.

The adjoint of one that is only read travels as a handle: a call adds to it and costs what it touches. One that is
updated, carried or returned has its adjoint passed and returned by value, and moved.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Value
from aotdiff.ir.types import Array


class ReadOnly:
    """Answers per function and parameter; recursive calls are assumed to read only until shown otherwise."""

    __slots__ = ("module", "_known")

    def __init__(self, module: Module):
        self.module = module
        self._known: dict[tuple[str, int], bool] = {}

    def param(self, func: Func, index: int) -> bool:
        """Whether parameter `index` is an array that is only read."""
        key = (func.name, index)
        if key not in self._known:
            self._known[key] = True
            value = func.params[index]
            self._known[key] = isinstance(value.type, Array) and self._reads(func, value)
        return self._known[key]

    def _reads(self, func: Func, value: Value) -> bool:
        return all(
            self._reads_in(op, k) for op in func.body.walk() for k, v in enumerate(op.operands) if v is value
        )

    def _reads_in(self, op: Op, position: int) -> bool:
        if op.name in ("read", "dim", "argsort", "stop_gradient"):
            return True
        if op.name != "call":
            return False
        callee = self.module.funcs[op.attrs["callee"]]
        return "vjp" not in callee.attrs and "jvp" not in callee.attrs and self.param(callee, position)
