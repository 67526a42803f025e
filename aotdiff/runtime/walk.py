"""The walk over recorded calls.

It starts with gradients for some results, runs each call once, after all gradients of its results have arrived, and
ends with what reached the leaves (or the tensors asked for). What can be wrong (a freed call, a changed argument) is
looked for before it starts. Gradients are numbers and arrays; with `create` they are tensors and everything is
recorded. There is no recursion anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from aotdiff.runtime import recorded
from aotdiff.runtime.gradmode import switch
from aotdiff.runtime.graph_nodes import Edge, Node, Slot, Watch, watch_of
from aotdiff.runtime.tensor import Tensor, wrap


class Walk:
    """One walk. `targets` maps edges to the tensors asked for; None for every leaf that is reached.

    Afterwards `sums` has what arrived at leaves and targets, `own` the edges where the array is nobody else's, `kept`
    what `retain_grad` asked for: tensor, gradient, whether it is the tensor's own.
    """

    def __init__(self, create: bool, keep: bool, targets: dict[Edge, Tensor] | None) -> None:
        self.create = create
        self.keep = keep
        self.targets = targets
        self.every_target = False  # whether a target that is not reached is an error
        self.sums: dict[Edge, Any] = {}
        self.own: set[Edge] = set()
        self.kept: list[tuple[Tensor, Any, bool]] = []
        self.pending: dict[Node, Any] = {}
        self.waiting: dict[Node, int] = {}

    def run(self, roots: list[Edge], starts: list[Any], chain: Sequence[Node] = ()) -> None:
        """The walk; `chain` are calls already looked at that lead to the only root, and have to be gone back first."""
        before = switch(True) if self.create else None  # without, nothing but hooks sees tensors that require grad
        try:
            self._prepare(roots)
            if chain:
                assert recorded.paths is not None
                starts = [recorded.paths.run(chain, starts[0], self.keep)]
            for edge, start in zip(roots, starts, strict=True):
                self._arrive(edge, start, bool(chain))
            ready = [node for node in dict.fromkeys(map(_node_of, roots)) if node in self.waiting]
            self._walk([node for node in ready if not self.waiting[node]])
            self._finish()
        finally:
            if before is not None:
                switch(before)

    # Before ----------------------------------------------------------------------------------------------

    def _prepare(self, roots: list[Edge]) -> None:
        """Count how many gradients each call waits for; look for what is wrong."""
        waiting, stack = self.waiting, []
        needed = None if self.targets is None else self._leading(roots, self.targets)
        for edge in roots:
            node = _node_of(edge)
            if node is not None and node not in waiting and (needed is None or node in needed):
                waiting[node] = 0
                stack.append(node)
        while stack:
            node = stack.pop()
            if node.rule.saves:
                check(node)
            for edge in node.edges:
                if type(edge) is Slot:
                    edge = edge.node
                elif type(edge) is Tensor:
                    continue
                if edge in waiting:
                    waiting[edge] += 1
                elif needed is None or edge in needed:
                    waiting[edge] = 1
                    stack.append(edge)

    def _leading(self, roots: list[Edge], targets: dict[Edge, Tensor]) -> set[Node]:
        """The calls on a way from the roots to a target."""
        users: dict[Edge, list[Node]] = {}
        seen: set[Node] = set()
        stack = [node for node in map(_node_of, roots) if node is not None]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            for edge in node.edges:
                users.setdefault(edge, []).append(node)
                if type(edge) is not Tensor:
                    stack.append(edge.node if type(edge) is Slot else edge)
        if self.every_target:
            reached = {*users, *roots}
            if any(edge not in reached for edge in targets):
                raise RuntimeError(
                    "one of the inputs was not used for the outputs: allow_unused=True gives None for it"
                )
        slots: dict[Node, list[Slot]] = {}
        for edge in users:
            if type(edge) is Slot:
                slots.setdefault(edge.node, []).append(edge)
        needed: set[Node] = set()
        stack = [node for edge in targets for node in users.get(edge, ())]
        while stack:
            node = stack.pop()
            if node in needed:
                continue
            needed.add(node)
            for edge in [node, *slots.get(node, ())]:
                stack += users.get(edge, ())
        return needed

    # During ----------------------------------------------------------------------------------------------

    def _walk(self, ready: list[Node]) -> None:
        waiting, pending, create, keep = self.waiting, self.pending, self.create, self.keep
        targets, hooked = self.targets, False
        while ready:
            node = ready.pop()
            ct = pending.pop(node)
            rule = node.rule
            if node.watch is not None or targets is not None:
                ct = self._seen(node, ct)
                hooked = hooked or node.watch is not None
            if hooked and rule.saves:
                check(node)
            gradients = rule.recorded(node, ct) if create else rule.raw(node, ct)
            if not keep and rule.saves:
                node.saved = None
            for edge, g in zip(node.edges, gradients):
                if type(edge) is Node:
                    if edge in pending:
                        self._arrive(edge, g, False)
                    elif edge in waiting:
                        pending[edge] = g
                    elif targets is not None and edge in targets:
                        self._arrive(edge, g, rule.fresh)
                        continue
                    else:
                        continue
                else:
                    self._arrive(edge, g, rule.fresh)
                    if type(edge) is Tensor:
                        continue
                    edge = edge.node
                    if edge not in waiting:
                        continue
                left = waiting[edge] = waiting[edge] - 1
                if not left:
                    ready.append(edge)

    def _arrive(self, edge: Edge, g: Any, fresh: bool) -> None:
        """Add a gradient to what has arrived at an edge; `fresh` says that nobody else has the array."""
        sums: dict[Any, Any] = self.sums
        key: Any = edge
        if type(edge) is Tensor:
            if not edge._needs or (self.targets is not None and edge not in self.targets):
                return
        else:
            node = edge.node if type(edge) is Slot else edge
            if node in self.waiting:
                sums, key = (self.pending, edge) if node is edge else (self._results(node), edge.index)
            elif self.targets is None or edge not in self.targets:
                return
        old = sums.get(key)
        if old is not None:
            sums[key] = self._sum(edge, old, g)
        else:
            sums[key] = g
            if fresh:
                self.own.add(edge)

    def _results(self, node: Node) -> dict[int, Any]:
        """What has arrived at each of several results."""
        found = self.pending.get(node)
        if found is None:
            found = self.pending[node] = {}
        return found

    def _sum(self, edge: Edge, old: Any, g: Any) -> Any:
        """Two gradients added, into the old one where that is this walk's."""
        if type(old) is np.ndarray and edge in self.own:
            old += g
            return old
        self.own.add(edge)
        return old + g

    def _seen(self, node: Node, ct: Any) -> Any:
        """The gradients of a node's results after their hooks; kept where somebody asked for it."""
        if node.rule.outputs == 1:
            return self._noted(node, node.watch, ct)
        watches = node.watch or {}
        asked = {} if self.targets is None else {e.index: e for e in self.targets if type(e) is Slot and e.node is node}
        return {k: self._noted(asked.get(k), watches.get(k), g) for k, g in ct.items()}

    def _noted(self, edge: Edge, watch: Watch | None, g: Any) -> Any:
        if watch is not None:
            g = self._hooks(watch.hooks, g, watch.dtype)
            tensor = None if watch.tensor is None else watch.tensor()
            if watch.retains and tensor is not None and not (self.targets and edge in self.targets):
                self.kept.append((tensor, g, False))
        if self.targets is not None and edge is not None and edge in self.targets:
            self.sums[edge] = g
        return g

    def _hooks(self, hooks: dict[int, Any], g: Any, dtype: np.dtype) -> Any:
        before = switch(self.create)
        try:
            return self._hooked(list(hooks.values()), g, dtype)
        finally:
            switch(before)

    def _hooked(self, hooks: list[Any], g: Any, dtype: np.dtype) -> Any:
        for hook in hooks:
            seen = g if type(g) is Tensor else wrap(g if _on_device(g) else np.asarray(g, dtype))
            made = hook(seen)
            if made is None:
                continue
            if type(made) is not Tensor:
                raise TypeError(f"a hook gives a Tensor or None, not a {type(made).__name__}")
            if made.shape != seen.shape:
                raise RuntimeError(f"a hook changed the shape of a gradient from {seen.shape} to shape {made.shape}")
            g = made if self.create else made._data
        return g

    # After -----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Hooks of leaves, and of targets whose calls were not run."""
        for edge, g in list(self.sums.items()):
            if type(edge) is Tensor:
                if edge._hooks:
                    self._replace(edge, self._hooks(edge._hooks, g, edge.dtype))
            elif _node_of(edge) not in self.waiting:
                watch = watch_of(edge)
                if watch is not None and watch.hooks:
                    self._replace(edge, self._hooks(watch.hooks, g, watch.dtype))

    def _replace(self, edge: Edge, g: Any) -> None:
        if g is not self.sums[edge]:
            self.own.discard(edge)
        self.sums[edge] = g

    def arrivals(self) -> Iterable[tuple[Tensor, Any, bool]]:
        """What is to be added to which tensor's `.grad`, and whether the array may become it."""
        for edge, g in self.sums.items():
            tensor = edge if self.targets is None else self.targets[edge]
            yield tensor, g, edge in self.own and type(edge) is Tensor
        yield from self.kept

    def result(self, edge: Edge, tensor: Tensor) -> Tensor | None:
        """The gradient for one input of `grad`."""
        g = self.sums.get(edge)
        if g is None or self.create:
            if g is not None and g.on_device:
                g._data.settle()
            return g
        if _on_device(g):
            return wrap((g if edge in self.own else g.copy()).settle())
        if edge in self.own and type(g) is np.ndarray and g.dtype == tensor.dtype:
            return wrap(g)
        return wrap(np.array(g, tensor.dtype, order="C"))


def _on_device(g: Any) -> bool:
    return type(g) is not np.ndarray and getattr(g, "on_device", False)


def _node_of(edge: Edge) -> Node | None:
    if type(edge) is Slot:
        return edge.node
    return edge if type(edge) is Node else None


def check(node: Node) -> None:
    """Raise if the call was freed, or if a value that its derivative reads has been changed since."""
    saved, versions = node.saved, node.versions
    if saved is None:
        raise recorded.freed(node)
    for k, t in enumerate(saved):
        if type(t) is Tensor and t._cell is not None:
            expected = 0 if versions is None else versions[k]
            if t._cell.version != expected:
                raise RuntimeError(
                    f"a tensor of shape {t.shape} that the gradient of {node.rule.name} reads was changed by an "
                    f"inplace operation: it is at version {t._cell.version}, expected version {expected}; change a "
                    "copy (clone()) instead, or change it after backward()"
                )
