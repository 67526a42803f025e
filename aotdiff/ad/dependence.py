"""Which values depend on the differentiated parameters: what forward mode gives a tangent.

The answer is a least fixpoint over loop carries, accumulators, calls and the fields of residual records. A value
outside the set has tangent zero as a kind: nothing is written for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.ad.requests import has_rule, request_of
from aotdiff.ad.rules import PARTIALS
from aotdiff.ir.graph import Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.types import Acc, Record, element_of, is_differentiable

Key = tuple[str, tuple[bool, ...]]


@dataclass(frozen=True, slots=True)
class Summary:
    """What depends on the active parameters of a function: results, and parameters that are handles added to."""

    results: tuple[bool, ...]
    handles: tuple[bool, ...]


class Dependence:
    """Fixpoint over all functions reached from one; `solve` first, then ask for what it reached.

    A function is looked at once per mask of active parameters (handles never count as active in a mask). The reverse
    functions of recursive functions are looked into by another analysis, which is `inside`: no tangents are made of
    their records.
    """

    __slots__ = ("module", "active", "summaries", "fields", "_callers", "_readers", "_queue", "_key", "_inside")

    def __init__(self, module: Module, inside: bool = False):
        self.module = module
        self._inside = self if inside else None
        self.active: dict[Key, set[Value]] = {}
        self.summaries: dict[Key, Summary] = {}
        self.fields: dict[str, set[int]] = {}
        self._callers: dict[Key, set[Key]] = {}
        self._readers: dict[str, set[Key]] = {}
        self._queue: list[Key] = []
        self._key: Key = ("", ())

    def solve(self, name: str, mask: tuple[bool, ...]) -> set[Value]:
        """Active values of function `name` when the parameters in `mask` are."""
        self._summary((name, mask))
        while self._queue:
            self._analyse(self._queue.pop())
        return self.active[name, mask]

    def summary(self, name: str, mask: tuple[bool, ...]) -> Summary:
        return self.summaries[name, mask]

    def whole(self, name: str, mask: tuple[bool, ...]) -> Summary:
        """The summary of the reverse function of a recursive function."""
        if self._inside is None:
            self._inside = Dependence(self.module, inside=True)
        self._inside.solve(name, mask)
        return self._inside.summary(name, mask)

    def record_mask(self, name: str) -> tuple[int, ...]:
        """Fields of a residual record that are active in any of its makers."""
        return tuple(sorted(self.fields.get(name, ())))

    def _summary(self, key: Key) -> Summary:
        if key not in self.summaries:
            func = self.module.funcs[key[0]]
            self.summaries[key] = Summary((False,) * len(func.result_types), (False,) * len(func.params))
            self.active[key] = {p for p, on in zip(func.params, key[1], strict=True) if on}
            self._queue.append(key)
        return self.summaries[key]

    def _analyse(self, key: Key) -> None:
        self._key = key
        func, active = self.module.funcs[key[0]], self.active[key]
        size = -1
        while size != len(active):
            size = len(active)
            self._region(func.body, active)
        results = tuple(v in active for v in func.body.yielded)
        handles = tuple(isinstance(p.type, Acc) and p in active for p in func.params)
        found = Summary(results, handles)
        if found != self.summaries[key]:
            self.summaries[key] = found
            self._enqueue(self._callers.get(key, ()))

    def _enqueue(self, keys: set[Key] | tuple) -> None:
        self._queue += sorted(k for k in keys if k not in self._queue)

    # Operations ----------------------------------------------------------------------------------------------

    def _region(self, region: Region, active: set[Value]) -> None:
        for op in region.ops:
            if op.name in SCALAR_OPS:
                self._scalar(op, active)
            elif visit := getattr(self, f"_{op.name}", None):
                visit(op, active)

    def _scalar(self, op: Op, active: set[Value]) -> None:
        partials = PARTIALS.get(op.name)
        if partials and is_differentiable(op.result.type):
            if any(v in active and i in partials for i, v in enumerate(op.operands)):
                active.add(op.result)

    def _read(self, op: Op, active: set[Value]) -> None:
        if op.operands[0] in active:
            active.add(op.result)

    _reshape = _shaped = _read

    def _update(self, op: Op, active: set[Value]) -> None:
        if op.operands[0] in active or op.operands[1] in active:
            active.add(op.result)

    _insert = _update

    def _accum(self, op: Op, active: set[Value]) -> None:
        if op.operands[1] in active:
            active.add(op.operands[0])

    def _par(self, op: Op, active: set[Value]) -> None:
        self._region(op.regions[0], active)
        for kind, value, result in zip(op.attrs["kinds"], op.regions[0].yielded, op.results, strict=True):
            if value in active and is_differentiable(result.type) and not kind.startswith("arg"):
                active.add(result)

    def _for(self, op: Op, active: set[Value]) -> None:
        self._loop(op, active, op.operands[1:])

    def _while(self, op: Op, active: set[Value]) -> None:
        self._loop(op, active, op.operands)

    def _loop(self, op: Op, active: set[Value], inits: list[Value]) -> None:
        carries, body = op.attrs["carries"], op.regions[-1]
        for init, arg in zip(inits, body.args[1 : 1 + carries], strict=False):
            if init in active:
                active.add(arg)
        self._region(body, active)
        for arg, value, result in zip(body.args[1:], body.yielded[:carries], op.results, strict=False):
            if value in active:
                active.add(arg)
            if arg in active:
                active.add(result)
        for value, result in zip(body.yielded[carries:], map_results(op), strict=True):
            if value in active:
                active.add(result)

    def _if(self, op: Op, active: set[Value]) -> None:
        for region in op.regions:
            self._region(region, active)
            active.update(r for v, r in zip(region.yielded, op.results, strict=True) if v in active)

    def _withacc(self, op: Op, active: set[Value]) -> None:
        (body,) = op.regions
        active.update(arg for init, arg in zip(op.operands, body.args, strict=True) if init in active)
        self._region(body, active)
        inner = [*body.args, *body.yielded]
        active.update(result for v, result in zip(inner, op.results, strict=True) if v in active)

    def _call(self, op: Op, active: set[Value]) -> None:
        mask = call_mask(op, active)
        if not any(mask):
            return
        func = self.module.funcs[op.attrs["callee"]]
        if has_rule(func):
            active.update(r for r in op.results if is_differentiable(r.type))
            return
        key = (func.name, mask)
        if self._inside is not self and request_of(self.module, func) is not None:
            self.summaries[key] = self.whole(*key)
        summary = self._summary(key)
        self._callers.setdefault(key, set()).add(self._key)
        active.update(r for r, on in zip(op.results, summary.results, strict=True) if on)
        active.update(v for v, on in zip(op.operands, summary.handles, strict=True) if on)

    def _record_make(self, op: Op, active: set[Value]) -> None:
        found = {i for i, v in enumerate(op.operands) if v in active}
        if not found:
            return
        active.add(op.result)
        name = op.attrs["record"]
        known = self.fields.setdefault(name, set())
        if not found <= known:
            known |= found
            self._enqueue(self._readers.get(name, ()))

    def _record_unpack(self, op: Op, active: set[Value]) -> None:
        if op.operands[0] not in active:
            return
        record = element_of(op.operands[0].type)
        assert isinstance(record, Record)
        self._readers.setdefault(record.name, set()).add(self._key)
        active.update(op.results[i] for i in self.fields.get(record.name, ()))

    def _vjp(self, op: Op, active: set[Value]) -> None:
        raise AssertionError(f"`{op.name}` of @{op.attrs['callee']} is to be expanded before the function around it")

    _jvp = _vjp


def call_mask(op: Op, active: set[Value]) -> tuple[bool, ...]:
    """Which arguments of a call are active; handles do not count."""
    return tuple(v in active and not isinstance(v.type, Acc) for v in op.operands)


def map_results(op: Op) -> list[Value]:
    """The results of a loop's maps that hold their values, one per map (the offsets of a "cat" left out)."""
    at = op.attrs["carries"] + (op.name == "while")
    results = []
    for kind in op.attrs["kinds"]:
        results.append(op.results[at])
        at += 1 if kind == "map" else 2
    return results
