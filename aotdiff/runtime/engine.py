"""`backward` and `grad`: walks over recorded calls.

A walk starts with gradients for some results, runs each call once, after all gradients of its results have arrived,
and ends with what reached the leaves (or the tensors asked for). Nothing is written to any `.grad` before the walk is
over, and what can be wrong (a freed call, a changed argument) is looked for before it starts. Gradients are numbers and
arrays; with `create_graph` they are tensors and everything is recorded. There is no recursion anywhere.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from aotdiff.runtime import accumulate, recorded
from aotdiff.runtime.gradmode import switch
from aotdiff.runtime.graph_nodes import Node, Slot, Watch, watch_of
from aotdiff.runtime.tensor import Tensor, wrap

Edge = Any  # a leaf Tensor, a Node, a Slot
_lock = threading.Lock()  # held while `.grad`s are written


class NotATensor(TypeError, RuntimeError):
    """Something else where a tensor was wanted."""


# What users call -------------------------------------------------------------------------------------------------


def backward(root: Tensor, gradient: Any, retain: bool | None, create: bool, inputs: Any) -> None:
    """`Tensor.backward`."""
    if inputs is None and not create and type(root._node) is Node:
        _chain(root, _seed(root, gradient, False, ("backward()", "gradient")), bool(retain))
        return
    _backward([root], [gradient], retain, create, inputs, ("backward()", "gradient"))


def _chain(root: Tensor, start: Any, keep: bool) -> None:
    """A walk from one result to all leaves: along the chain of calls that nobody else waits for, then as usual."""
    paths: Any = recorded.paths
    nodes, edge = ((), root._node) if paths is None else paths.scan(root._node)
    if paths is not None and nodes and type(edge) is Tensor and not edge._hooks:
        g = paths.run(nodes, start, keep)
        if edge._needs:
            with _lock:
                accumulate.add(edge, g, True, False)
        return
    if not nodes and _at_leaves(edge):
        _one_call(edge, start, keep)
        return
    walk = Walk(False, keep, None)
    walk.run([edge], [start], nodes)
    with _lock:
        for tensor, value, own in walk.arrivals():
            accumulate.add(tensor, value, own, False)


def _at_leaves(node: Any) -> bool:
    """Whether a call has only leaves behind it, and nobody looks on."""
    rule = node.rule
    return (
        node.watch is None
        and rule.fresh
        and rule.outputs == 1
        and all(type(e) is Tensor and not e._hooks for e in node.edges)
    )


def _one_call(node: Any, start: Any, keep: bool) -> None:
    if node.rule.saves:
        check(node)
    gradients = node.rule.raw(node, start)
    if not keep and node.rule.saves:
        node.saved = None
    with _lock:
        for leaf, g in zip(node.edges, gradients):
            if leaf._needs:
                accumulate.add(leaf, g, True, False)


def backward_all(
    tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
    inputs: Any = None,
) -> None:  # fmt: skip
    """`ad.backward`: one walk from several results, each weighted by its entry of `grad_tensors`."""
    roots = _sequence(tensors, "tensors")
    seeds = _seeds(grad_tensors, roots, "grad_tensors")
    _backward(roots, seeds, retain_graph, create_graph, inputs, ("backward()", "grad_tensors"))


def _backward(
    roots: list[Tensor], seeds: Sequence[Any], retain: bool | None, create: bool, inputs: Any, names: tuple[str, str]
) -> None:
    create = bool(create)
    starts = [_seed(root, seed, create, names) for root, seed in zip(roots, seeds, strict=True)]
    targets = None if inputs is None else {_edge(t): t for t in _inputs(inputs)}
    if create:
        warnings.warn(
            "backward(create_graph=True) makes a cycle of each leaf and its .grad: set .grad to None when done, or "
            "use ad.grad",
            UserWarning,
            stacklevel=4,
        )
    walk = Walk(create, bool(create if retain is None else retain), targets)
    walk.run([_edge(root) for root in roots], starts)
    with _lock:
        for tensor, value, own in walk.arrivals():
            accumulate.add(tensor, value, own, create)


def grad(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
    allow_unused: bool | None = None, materialize_grads: bool = False,
) -> Any:  # fmt: skip
    """Gradients of the outputs' (weighted) sum by each input: a tuple, or a dict for a dict of inputs.

    No `.grad` is written. An input that the outputs do not depend on is an error unless `allow_unused` (then None)
    or `materialize_grads` (then zeros).
    """
    if materialize_grads and allow_unused is False:
        raise ValueError("materialize_grads=True gives zeros for unused inputs: allow_unused=False contradicts it")
    create = bool(create_graph)
    roots = _sequence(outputs, "outputs")
    seeds = _seeds(grad_outputs, roots, "grad_outputs")
    starts = [_seed(root, seed, create, ("grad()", "grad_outputs")) for root, seed in zip(roots, seeds, strict=True)]
    wanted = _inputs(inputs)
    walk = Walk(create, bool(create if retain_graph is None else retain_graph), {_edge(t): t for t in wanted})
    if not allow_unused and not materialize_grads:
        walk.every_target = True
    walk.run([_edge(root) for root in roots], starts)
    found = [walk.result(_edge(t), t) for t in wanted]
    if materialize_grads:
        found = [wrap(np.zeros(t.shape, t.dtype)) if g is None else g for g, t in zip(found, wanted, strict=True)]
    return dict(zip(inputs, found, strict=True)) if isinstance(inputs, dict) else tuple(found)


# Arguments -------------------------------------------------------------------------------------------------------


def _edge(t: Tensor) -> Edge:
    return t if t._node is None else t._node


def _sequence(value: Any, name: str) -> list[Tensor]:
    items = [value] if isinstance(value, Tensor) else list(value)
    if not items:
        raise RuntimeError(f"{name} cannot be empty")
    for item in items:
        if not isinstance(item, Tensor):
            raise NotATensor(f"{name} takes tensors, not a {type(item).__name__}")
    return items


def _inputs(inputs: Any) -> list[Tensor]:
    if isinstance(inputs, Tensor):
        items = [inputs]
    elif hasattr(inputs, "keys") and hasattr(inputs, "values"):
        items = list(inputs.values())
    elif isinstance(inputs, Iterable) and not isinstance(inputs, (str, bytes)):
        items = list(inputs)
    else:
        raise TypeError(f"inputs takes a tensor, tensors or a dict of them, not a {type(inputs).__name__}")
    if not items:
        raise RuntimeError("inputs cannot be empty: leave it out to reach all leaves")
    for item in items:
        if not isinstance(item, Tensor):
            raise NotATensor(f"inputs takes tensors, not a {type(item).__name__}")
        if not item._needs:
            raise RuntimeError("one of the inputs does not require grad: its requires_grad is False")
    return items


def _seeds(given: Any, roots: list[Tensor], name: str) -> list[Any]:
    if given is None:
        return [None] * len(roots)
    seeds = [given] if isinstance(given, Tensor) else list(given)
    if len(seeds) != len(roots):
        raise RuntimeError(f"{name} has {len(seeds)} entries for {len(roots)} results: one for each is needed")
    return seeds


def _seed(root: Tensor, gradient: Any, create: bool, names: tuple[str, str]) -> Any:
    """The gradient that the walk starts with at one result, checked."""
    if not root._needs:
        raise RuntimeError(f"{names[0]} of a tensor that does not require grad and has no history")
    data = root._data
    if gradient is None:
        if type(data) is float:
            return wrap(1.0) if create else 1.0
        if data.size != 1:
            raise RuntimeError(
                f"grad can be implicitly created only for scalar outputs; this one has shape {data.shape}: give "
                f"{names[1]}, or sum first"
            )
        one = np.ones(data.shape, data.dtype)
        return wrap(one) if create else one
    if type(gradient) is not Tensor:
        raise TypeError(f"{names[1]} is a Tensor or None, not a {type(gradient).__name__}")
    return _given(root, gradient, create, names[1])


def _given(root: Tensor, gradient: Tensor, create: bool, name: str) -> Any:
    if gradient.dtype.kind == "c":
        raise RuntimeError(f"{name} of dtype {gradient.dtype} for a result of dtype {root.dtype}: a real one is needed")
    if gradient.shape != root.shape:
        raise RuntimeError(f"{name} has shape {gradient.shape}, but the result has shape {root.shape}")
    if gradient.dtype != root.dtype:
        if create:
            before = switch(True)
            try:
                return gradient.to(root.dtype)
            finally:
                switch(before)
        return np.asarray(gradient._data).astype(root.dtype)
    return gradient if create else gradient._data


# The walk --------------------------------------------------------------------------------------------------------


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
        before = switch(self.create)
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
        for hook in list(hooks.values()):
            seen = g if type(g) is Tensor else wrap(np.asarray(g, dtype))
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
            return g
        if edge in self.own and type(g) is np.ndarray and g.dtype == tensor.dtype:
            return wrap(g)
        return wrap(np.array(g, tensor.dtype, order="C"))


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
