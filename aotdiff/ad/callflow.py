"""Activity through calls that were not inlined: a fixpoint over the functions they reach.

For each set of varied arguments, which results (and handles) vary; for each set of wanted results (and live handles),
which arguments matter. Recursive functions start from "nothing" and grow.
"""

from __future__ import annotations

from collections.abc import Callable

from aotdiff.ad.activity import Activity
from aotdiff.ad.dependence import Dependence
from aotdiff.ad.requests import Flags, has_rule, request_of
from aotdiff.ir.graph import Func, Module, Op
from aotdiff.ir.types import Acc

_Key = tuple[str, str, Flags, Flags]


class CallFlow:
    """What `Activity` asks about calls, with a memory."""

    __slots__ = ("module", "_whole", "_known", "_pending", "_askers", "_current")

    def __init__(self, module: Module):
        self.module = module
        self._whole = Dependence(module, inside=True)
        self._known: dict[_Key, Flags] = {}
        self._pending: list[_Key] = []
        self._askers: dict[_Key, set[_Key]] = {}
        self._current: _Key | None = None

    def activity(self, func: Func, varied: Flags, seeded: Flags, live: Flags) -> Activity:
        """Activity of a function; flags are per parameter, per result, and per parameter that is a handle."""
        wrt = [p for p, on in zip(func.params, varied, strict=True) if on]
        handles = [p for p, on in zip(func.params, live, strict=True) if on]
        return Activity(func, wrt, seeded, handles, self)

    def varied(self, op: Op, flags: list[bool]) -> list[bool]:
        """Which results, then which handle operands, vary when these operands do."""
        func = self.module.funcs[op.attrs["callee"]]
        if has_rule(func):
            return [any(flags)] * len(op.results)
        plain = tuple(f and not isinstance(p.type, Acc) for f, p in zip(flags, func.params, strict=True))
        if request_of(self.module, func) is not None:
            summary = self._whole.whole(func.name, plain)
            handles = [on for on, p in zip(summary.handles, func.params, strict=True) if isinstance(p.type, Acc)]
            return [*summary.results, *handles]
        return list(self._solve(("varied", func.name, plain, ())))

    def useful(self, op: Op, varied: list[bool], flags: list[bool]) -> list[bool]:
        """Which operands matter when these results, then these handle operands, do."""
        return self.useful_params(self.module.funcs[op.attrs["callee"]], varied, flags)

    def useful_params(self, func: Func, varied: list[bool], flags: list[bool]) -> list[bool]:
        """The same for any call of `func`."""
        if has_rule(func):
            return [any(flags)] * len(func.params)
        plain = tuple(f and not isinstance(p.type, Acc) for f, p in zip(varied, func.params, strict=True))
        return list(self._solve(("useful", func.name, plain, tuple(flags))))

    def _solve(self, key: _Key) -> Flags:
        """The answer; inside the computation of another one, the answer so far."""
        if key not in self._known:
            func = self.module.funcs[key[1]]
            count = len(func.result_types) + sum(isinstance(p.type, Acc) for p in func.params)
            self._known[key] = (False,) * (count if key[0] == "varied" else len(func.params))
            self._pending.append(key)
        if self._current is not None:
            self._askers.setdefault(key, set()).add(self._current)
            return self._known[key]
        while self._pending:
            self._improve(self._pending.pop())
        return self._known[key]

    def _improve(self, key: _Key) -> None:
        """Compute an answer from the answers so far; whoever asked for it is computed again if it grew."""
        self._current = key
        compute: Callable[[Func, _Key], Flags] = self._varied if key[0] == "varied" else self._useful
        found, before = compute(self.module.funcs[key[1]], key), self._known[key]
        self._current = None
        # A question asked with more flags may have been answered less so far: what was found stays found.
        grown = tuple(a or b for a, b in zip(found, before, strict=True))
        if grown != before:
            self._known[key] = grown
            self._pending += sorted(k for k in self._askers.get(key, ()) if k not in self._pending)

    def _varied(self, func: Func, key: _Key) -> Flags:
        none = (False,) * len(func.params)
        varied = self.activity(func, key[2], (False,) * len(func.result_types), none).varied
        handles = [p for p in func.params if isinstance(p.type, Acc)]
        return tuple(v in varied for v in [*func.body.yielded, *handles])

    def _useful(self, func: Func, key: _Key) -> Flags:
        results = len(func.result_types)
        handle_flags = iter(key[3][results:])
        live = tuple(isinstance(p.type, Acc) and next(handle_flags) for p in func.params)
        active = self.activity(func, key[2], key[3][:results], live).active
        return tuple(p in active and not isinstance(p.type, Acc) for p in func.params)
