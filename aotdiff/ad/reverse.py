"""Reverse mode on the graph: a function and its reverse sweep become one function.

The result runs the forward operations, then the sweep. The sweep refers to forward values directly, also to those
inside loops and branches, where it is not allowed to; `ad.residuals` then decides for each what is kept and what is
computed again. What comes out uses ordinary operations only, so the same pass differentiates it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.ad.activity import Activity
from aotdiff.ad.callflow import CallFlow, Flags, has_rule
from aotdiff.ad.cleanup import drop_handles, prune, simplify
from aotdiff.ad.prepare import prepare
from aotdiff.ad.readonly import ReadOnly
from aotdiff.ad.residuals import legalise
from aotdiff.ad.reverse_sweep import Scope, Sweep
from aotdiff.ad.sizes import Sizes
from aotdiff.ad.structure import Structure
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Region, Value
from aotdiff.ir.types import Acc, Scalar, Type, array_type, dims_of, element_of
from aotdiff.passes.inline import call_order
from aotdiff.passes.pipeline import run


def vjp_func(module: Module, func: Func, wrt: tuple[int, ...], value: bool) -> Func:
    """The function of `func`'s parameters and one cotangent per float result that gives the cotangents of the
    parameters `wrt`, after the results themselves with `value`. Made once; added to the module."""
    if any(op.name == "call" for op in func.body.walk()):
        run(module, ("inline",))
    seeded = tuple(is_float(t) for t in func.result_types)
    nothing = (False,) * len(func.params)
    request = Request(func.name, tuple(wrt), seeded, nothing, nothing, value)
    return Pullbacks(module).function(request)


def is_float(type_: Type) -> bool:
    element = element_of(type_)
    return isinstance(element, Scalar) and element.is_float


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of a function: cotangents of the parameters `wrt`, given those of the `seeded` results and, for
    the parameters that are `live` handles, of what is accumulated. Cotangents of the parameters in `by_handle` are
    accumulated into handles; the others are results, after the function's own results with `value`.

    The function made takes the parameters (without handles), the seeds, the adjoints for live handles, the handles.
    """

    func: str
    wrt: tuple[int, ...]
    seeded: Flags
    live: Flags
    by_handle: Flags
    value: bool

    @property
    def key(self) -> tuple:
        return ("vjp", self.func, self.wrt, self.seeded, self.live, self.by_handle, self.value)


class Pullbacks:
    """Makes reverse functions; each once for what is asked of it."""

    __slots__ = ("module", "flow", "read_only", "_made", "_recursive")

    def __init__(self, module: Module):
        self.module = module
        self.flow = CallFlow(module)
        self.read_only = ReadOnly(module)
        self._made = {f.attrs["derived"]: f for f in module.funcs.values() if "derived" in f.attrs}
        self._recursive = call_order(module)[1]

    def function(self, request: Request) -> Func:
        """The function is in the module before its body is written: it may call itself."""
        made = self._made.get(request.key)
        if made is not None:
            return made
        func = self.module.funcs[request.func]
        name = self.module.fresh_name(f"{func.name}.vjp_{'_'.join(map(str, request.wrt))}" + "_v" * request.value)
        attrs = {"derived": request.key} | {k: func.attrs[k] for k in ("recursive", "inline") if k in func.attrs}
        given = [func.params[k].type for k in request.wrt if not request.by_handle[k]]
        new = Func(name, Region(), [*(func.result_types if request.value else []), *given], attrs, func.loc)
        self.module.add(new)
        self._made[request.key] = new
        new.body = _Body(self, func, request).write()
        simplify(self.module, new, ("canonicalize", "cse"))
        return new

    def recursive(self, func: Func) -> bool:
        return func.name in self._recursive


class _Body:
    """Writes the body of one reverse function."""

    def __init__(self, pullbacks: Pullbacks, func: Func, request: Request):
        self.pullbacks = pullbacks
        self.request = request
        module = pullbacks.module
        source = _calling(func) if has_rule(func) else func
        self.func = prepare(module, source, self._activity)
        self.activity = self._activity(self.func)
        self.params = list(self.func.params)

    def _activity(self, func: Func) -> Activity:
        request = self.request
        varied = tuple(k in request.wrt for k in range(len(func.params)))
        return self.pullbacks.flow.activity(func, varied, request.seeded, request.live)

    def write(self) -> Region:
        pullbacks, request = self.pullbacks, self.request
        body = self.func.body
        structure = Structure(self.func)
        sizes = Sizes(structure)
        sweep_region = Region()
        sw = Sweep(pullbacks, structure, sizes, self.activity, Builder(sweep_region, self.func.loc))
        self._open(sw)
        sw.sweep(body)
        sw.b.loc = self.func.loc
        primal = body.terminator.operands if request.value else []
        sw.b.ret([*primal, *(sw.take_or_zeros(self.params[k]) for k in request.wrt if not request.by_handle[k])])
        sizes.flush()
        prune(sweep_region, {v for pairing in sw.pairs.values() for v in pairing.index})
        recursive = pullbacks.recursive(self.pullbacks.module.funcs[request.func])
        legalise(pullbacks.module, structure, sizes, sw.pairs, sweep_region, recursive)
        self._close(sweep_region)
        return body

    def _open(self, sw: Sweep) -> None:
        """New parameters: seeds, adjoints for live handles, handles."""
        body, request = self.func.body, self.request
        sw.enter(body)
        seeds = [(v, self._param(v, "ct")) for v, on in zip(body.yielded, request.seeded, strict=True) if on]
        for param, on in zip(self.params, request.live, strict=True):
            if on:
                assert isinstance(param.type, Acc)
                type_ = array_type(param.type.element, param.type.dims)
                sw.handle_adjoints[param] = body.add_arg(type_, f"{param.name}_ct" if param.name else "ct")
        outer = sw.scope
        sw.scope = Scope("loop", outer)
        sw.enter(body)
        for k, param in enumerate(self.params):
            if request.by_handle[k]:
                element = element_of(param.type)
                assert isinstance(element, Scalar)
                name = f"{param.name}_acc" if param.name else "acc"
                sw.scope.handles[param] = body.add_arg(Acc(element, dims_of(param.type)), name)
                sw.level[param] = outer
        for value, seed in seeds:
            sw.add(value, seed)

    def _param(self, value: Value, suffix: str) -> Value:
        return self.func.body.add_arg(value.type, f"{value.name}_{suffix}" if value.name else suffix)

    def _close(self, sweep: Region) -> None:
        """Put the sweep after the forward operations, which no longer accumulate into the function's own handles."""
        body = self.func.body
        handles = {p for p in self.params if isinstance(p.type, Acc)}
        if handles:
            drop_handles(self.pullbacks.module, body, handles)
            body.args = [arg for arg in body.args if arg not in handles]
            for k, arg in enumerate(body.args):
                arg.index = k
        body.ops[-1:] = sweep.ops
        prune(body)


def _calling(func: Func) -> Func:
    """A function that only calls `func`, so that the rule for calls applies."""
    region = Region()
    args = [region.add_arg(p.type, p.name) for p in func.params]
    b = Builder(region, func.loc)
    b.ret(b.call(func, args))
    return Func(func.name, region, list(func.result_types), {}, func.loc)
