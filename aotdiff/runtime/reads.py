"""Which parameters' values a compiled function looks at.

A derivative often needs only the shape of an argument, or nothing of it: the gradient of a sum, of a product by the
other factor. What is not read need not be kept for it and may change without harm. The answer comes from the
optimised graph, so it is as sharp as what is compiled; a scalar parameter has no shape, any use of it counts.
"""

from __future__ import annotations

from aotdiff.ir.graph import Func, Module, Op, Value


def values_read(graph: Module, name: str) -> tuple[int, ...]:
    """Positions of the parameters (leaves) of this function whose values it may read."""
    return _Reads(graph).of(name)


class _Reads:
    def __init__(self, graph: Module) -> None:
        self.graph = graph
        self.known: dict[str, tuple[int, ...]] = {}

    def of(self, name: str) -> tuple[int, ...]:
        if name not in self.known:
            func = self.graph.funcs[name]
            self.known[name] = tuple(range(len(func.params)))  # what a recursive call assumes
            read = self._values(func)
            self.known[name] = tuple(k for k, p in enumerate(func.params) if p in read)
        return self.known[name]

    def _values(self, func: Func) -> set[Value]:
        """Values of the function whose elements something uses; views of one array are followed backwards."""
        read: set[Value] = set()
        for op in reversed(list(func.body.walk())):  # uses come after definitions, in inner regions too
            read.update(self._operands(op, read))
        return read

    def _operands(self, op: Op, read: set[Value]) -> list[Value]:
        if op.name == "dim":
            return []
        if op.name == "shaped":
            array, *sizes = op.operands
            return [*([array] if op.result in read else []), *sizes]
        if op.name == "call":
            return [op.operands[k] for k in self.of(op.attrs["callee"])]
        return op.operands
