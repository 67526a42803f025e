"""Forward mode: functions that carry tangents beside values.

`jvp_func` differentiates a function of the module; the functions it calls get a version that takes the tangents of
their active arguments and gives those of their active results. Values and tangents are computed in one sweep, see
`forward_sweep`. Functions are registered before their bodies are written, so recursion needs nothing special.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotdiff.ad.demand import demanded
from aotdiff.ad.dependence import Dependence, Summary
from aotdiff.ad.forward_sweep import Sweep
from aotdiff.ad.guards import bools
from aotdiff.ad.requests import Request, calling, has_rule, request_of
from aotdiff.ad.tangents import Tangents
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Region, Value
from aotdiff.ir.types import Array, is_differentiable

if TYPE_CHECKING:
    from aotdiff.ad.reverse import Pullbacks


def jvp_func(module: Module, func: Func, wrt: Sequence[int], value: bool) -> Func:
    """The function `func`'s parameters, then one tangent per `wrt` -> (results if `value`), tangents of float results.

    It is added to the module, or found there if it was made before. What it calls must be free of `vjp` and `jvp`
    operations, and so must be the rules used.
    """
    if request_of(module, func) is not None:
        func = calling(func)
        func.name = module.fresh_name(f"{func.name}_call")
        module.add(func)
    mask = tuple(i in wrt for i in range(len(func.params)))
    forward = Forward(module)
    if not has_rule(func):
        forward.dependence.solve(func.name, mask)
    return forward.entry(func, tuple(wrt), mask, value)


def float_indices(types: Sequence) -> list[int]:
    """Positions of the types that carry derivatives."""
    return [i for i, t in enumerate(types) if is_differentiable(t)]


class Forward:
    """Makes the tangent versions of the functions reached from one entry."""

    __slots__ = ("module", "dependence", "tangents", "_pullbacks", "_made")

    def __init__(self, module: Module, pullbacks: Pullbacks | None = None):
        self.module = module
        self._pullbacks = pullbacks
        self.dependence = Dependence(module)
        self.tangents = Tangents(module, self.dependence)
        self._made = {func.attrs["derived"]: func for func in module.funcs.values() if "derived" in func.attrs}

    @property
    def pullbacks(self) -> Pullbacks:
        """What makes the reverse functions that are tangents of reverse functions."""
        if self._pullbacks is None:
            from aotdiff.ad.reverse import Pullbacks

            self._pullbacks = Pullbacks(self.module, forward=self)
        return self._pullbacks

    def entry(self, func: Func, wrt: tuple[int, ...], mask: tuple[bool, ...], value: bool) -> Func:
        key = ("jvp", func.name, wrt, value)
        if key in self._made:
            return self._made[key]
        floats = float_indices(func.result_types)
        values = list(func.result_types) if value else []
        new = self._register(key, func, values + [func.result_types[i] for i in floats])
        params = self._params(new, func)
        given = {i: self._tangent_param(new, func.params[i]) for i in wrt}
        b = Builder(new.body, func.loc)
        if has_rule(func):
            results, tangents = self.apply_rule(b, func, params, [given.get(i) for i in range(len(params))])
        else:
            sweep = self._sweep(func, mask, params, given)
            sweep.run(func.body, b)
            results = [sweep.env[v] for v in func.body.yielded]
            tangents = [sweep.known(b, v) for v in func.body.yielded]
            _note(new, sweep)
        full = [tangents[i] or self.tangents.zero(b, results[i]) for i in floats]
        b.ret([*(results if value else []), *full])
        return new

    def version(self, name: str, mask: tuple[bool, ...]) -> tuple[Func, Summary]:
        """`inner` for a function that was not asked about before, free of derivative operations."""
        self.dependence.solve(name, mask)
        return self.inner(name, mask)

    def asks(self, name: str, mask: tuple[bool, ...], flags: tuple[bool, ...]) -> list[int]:
        """Array parameters the version for calls can use guards of, where there are elements without a tangent."""
        func = self.module.funcs[name]
        arrays = {i: p for i, p in enumerate(func.params) if mask[i] and isinstance(p.type, Array)}
        flagged = [v for v, on in zip(func.body.yielded, flags, strict=True) if on]
        _, elements = demanded(func.body, self.dependence.active[name, mask], flagged, set(arrays.values()))
        return [i for i, p in arrays.items() if p in elements]

    def inner(self, name: str, mask: tuple[bool, ...], flags: tuple[bool, ...] = (),
              guarded: tuple[int, ...] = ()) -> tuple[Func, Summary]:
        """The version for calls: parameters, tangents of those in `mask`, then of handles, guards of the parameters
        `guarded`; results, active tangents, guards of the tangents in `flags` (one per result or none at all)."""
        func = self.module.funcs[name]
        summary = self.dependence.summary(name, mask)
        key = ("tangents", name, mask, self.tangents.signature(), *([flags] if any(flags) else []), *guarded)
        if key in self._made:
            return self._made[key], summary
        active = [i for i, on in enumerate(summary.results) if on]
        flagged = [i for i, on in enumerate(flags) if on]
        types = [self.tangents.type_of(func.result_types[i]) for i in active]
        types += [bools(func.result_types[i]) for i in flagged]
        new = self._register(key, func, [*func.result_types, *types])
        params = self._params(new, func)
        given = {i: self._tangent_param(new, func.params[i]) for i, on in enumerate(mask) if on}
        given |= {i: self._tangent_param(new, func.params[i]) for i, on in enumerate(summary.handles) if on}
        b = Builder(new.body, func.loc)
        yielded = func.body.yielded
        sweep = self._sweep(func, mask, params, given, [yielded[i] for i in flagged], guarded)
        for i in guarded:
            sweep.guards[func.params[i]] = new.body.add_arg(bools(func.params[i].type), "live")
        sweep.run(func.body, b)
        tangents = [sweep.tangent(b, yielded[i]) for i in active]
        b.ret([sweep.env[v] for v in yielded] + tangents + [sweep.guard(b, yielded[i]) for i in flagged])
        _note(new, sweep)
        return new, summary

    def apply_rule(self, b: Builder, func: Func, args: list[Value],
                   tangents: Sequence[Value | None]) -> tuple[list[Value], list[Value | None]]:
        """Values and tangents of a call of a function with a user's rule."""
        results = b.call(func, args)
        given = [tangents[i] or self.tangents.zero(b, args[i]) for i in float_indices([v.type for v in args])]
        if "jvp" in func.attrs:
            found = b.call(self.module.funcs[func.attrs["jvp"]], [*args, *given])
        else:
            found = self._transpose(b, func, args, results, given)
        table: list[Value | None] = [None] * len(results)
        for i, t in zip(float_indices(func.result_types), found, strict=True):
            table[i] = t
        return results, table

    def _transpose(self, b: Builder, func: Func, args: list[Value], results: list[Value],
                   tangents: list[Value]) -> list[Value]:
        """Tangents of the results: a pullback is linear in its cotangents, so its own pullback is the pushforward."""
        pullback = self.module.funcs[func.attrs["vjp"]]
        count = len(pullback.params)
        wrt = tuple(range(len(args), count))
        none, seeded = (False,) * count, tuple(is_differentiable(t) for t in pullback.result_types)
        transpose = self.pullbacks.function(Request(pullback.name, wrt, seeded, none, none, False))
        zeros = [self.tangents.zero(b, results[i]) for i in float_indices(func.result_types)]
        return b.call(transpose, [*args, *zeros, *tangents])

    def _register(self, key: tuple, func: Func, types: list) -> Func:
        attrs = {"derived": key} | {k: func.attrs[k] for k in ("recursive", "inline") if k in func.attrs}
        new = Func(self.module.fresh_name(f"{func.name}_jvp"), Region(), types, attrs, func.loc)
        self._made[key] = new
        return self.module.add(new)

    def _params(self, new: Func, func: Func) -> list[Value]:
        return [new.body.add_arg(p.type, p.name) for p in func.params]

    def _tangent_param(self, new: Func, param: Value) -> Value:
        return new.body.add_arg(self.tangents.type_of(param.type), f"{param.name}_tan" if param.name else "tan")

    def _sweep(self, func: Func, mask: tuple[bool, ...], params: list[Value], given: dict[int, Value],
               flagged: Sequence[Value] = (), guarded: Sequence[int] = ()) -> Sweep:
        env = dict(zip(func.params, params, strict=True))
        tan = {func.params[i]: t for i, t in given.items()}
        active = self.dependence.active[func.name, mask]
        partly = {func.params[i] for i in guarded}
        return Sweep(self, active, *demanded(func.body, active, flagged, partly), env, tan)


def _note(func: Func, sweep: Sweep) -> None:
    """Selects that guards made are to become branches before they are reversed, see `passes.sink`."""
    if sweep.guarded:
        func.attrs["choices"] = True
