"""`backward` and `grad`: what users call, its arguments checked before a walk starts.

Nothing is written to any `.grad` before the walk is over (`runtime.walk`).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from aotdiff.runtime import accumulate, recorded
from aotdiff.runtime.gradmode import switch
from aotdiff.runtime.graph_nodes import Edge, Node
from aotdiff.runtime.tensor import Tensor, type_name, wrap
from aotdiff.runtime.tensor_methods import Later
from aotdiff.runtime.walk import Walk, check

device_tensors: Any = Later("gpu.tensors")
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
    allow_unused: bool | None = None, materialize_grads: bool = False, is_grads_batched: bool = False,
) -> Any:  # fmt: skip
    """Gradients of the outputs' (weighted) sum by each input: a tuple, or a dict for a dict of inputs.

    No `.grad` is written. An input that the outputs do not depend on is an error unless `allow_unused` (then None)
    or `materialize_grads` (then zeros). With `is_grads_batched` the first axis of each entry of `grad_outputs` runs
    over walks, and so does the first axis of each result.
    """
    if is_grads_batched:
        return _batched(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused, materialize_grads)
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
        found = [_zeros(t) if g is None else g for g, t in zip(found, wanted, strict=True)]
    return dict(zip(inputs, found, strict=True)) if isinstance(inputs, dict) else tuple(found)


def _zeros(t: Tensor) -> Tensor:
    zeros = np.zeros(t.shape, t.dtype)
    return wrap(device_tensors.put(t._data.device, zeros) if t.on_device else zeros)


def _batched(outputs: Any, inputs: Any, given: Any, retain: bool | None, create: bool, *options: Any) -> Any:
    """One walk per entry along the first axis of `given`, the results stacked."""
    batches = [given] if isinstance(given, Tensor) else list(given)
    counts = {len(t) for t in batches if isinstance(t, Tensor)}
    if len(counts) != 1 or not all(isinstance(t, Tensor) for t in batches):
        raise RuntimeError("is_grads_batched needs tensors with one common first axis as grad_outputs")
    (count,) = counts
    wanted = _inputs(inputs)
    last = bool(create if retain is None else retain)
    rows = [
        grad(outputs, wanted, [t[k] for t in batches], True if k + 1 < count else last, create, *options)
        for k in range(count)
    ]
    found = [_stacked([row[place] for row in rows], t) for place, t in enumerate(wanted)]
    return dict(zip(inputs, found, strict=True)) if isinstance(inputs, dict) else tuple(found)


def _stacked(rows: list[Tensor | None], like: Tensor) -> Tensor | None:
    if rows and rows[0] is None:
        return None
    if like.on_device:
        if any(row is None or row._needs for row in rows):
            raise TypeError("is_grads_batched with create_graph is for tensors in host memory: write the loop out")
        return wrap(device_tensors.stack([row._data for row in rows if row is not None]))
    made = wrap(np.zeros((len(rows), *like.shape), like.dtype))
    before = switch(True)
    try:
        for k, row in enumerate(rows):
            made[k] = row
    finally:
        switch(before)
    return made


# Arguments -------------------------------------------------------------------------------------------------------


def _edge(t: Tensor) -> Edge:
    return t if t._node is None else t._node


def _sequence(value: Any, name: str) -> list[Tensor]:
    items = [value] if isinstance(value, Tensor) else list(value)
    if not items:
        raise RuntimeError(f"{name} cannot be empty")
    for item in items:
        if not isinstance(item, Tensor):
            raise NotATensor(f"{name} takes tensors, not a {type_name(item)}")
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
            raise NotATensor(f"inputs takes tensors, not a {type_name(item)}")
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
        one: Any = np.ones(data.shape, data.dtype)
        if root.on_device:
            one = device_tensors.put(data.device, one)
        return wrap(one) if create else one
    if type(gradient) is not Tensor:
        raise TypeError(f"{names[1]} is a Tensor or None, not a {type_name(gradient)}")
    return _given(root, gradient, create, names[1])


def _given(root: Tensor, gradient: Tensor, create: bool, name: str) -> Any:
    if gradient.dtype.kind == "c":
        raise RuntimeError(f"{name} of dtype {gradient.dtype} for a result of dtype {root.dtype}: a real one is needed")
    if gradient.shape != root.shape:
        raise RuntimeError(f"{name} has shape {gradient.shape}, but the result has shape {root.shape}")
    if gradient.device != root.device:
        raise RuntimeError(f"{name} is on {gradient.device}, but the result is on {root.device}: move it with to()")
    if gradient.dtype != root.dtype:
        if create:
            before = switch(True)
            try:
                return gradient.to(root.dtype)
            finally:
                switch(before)
        return (gradient._data if gradient.on_device else np.asarray(gradient._data)).astype(root.dtype)
    return gradient if create else gradient._data
