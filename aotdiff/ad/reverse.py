"""Reverse mode on the graph: a function and its reverse sweep become one function.

The result runs the forward operations, then the sweep. The sweep refers to forward values directly, also to those
inside loops and branches, where it is not allowed to; `ad.residuals` then decides for each what is kept and what is
computed again. What comes out uses ordinary operations only, so the same pass differentiates it again.
"""

from __future__ import annotations

from aotdiff.ad.activity import Activity
from aotdiff.ad.callflow import CallFlow
from aotdiff.ad.cleanup import drop_handles, finish_variants, prune, simplify
from aotdiff.ad.forward import Forward
from aotdiff.ad.prepare import prepare
from aotdiff.ad.readonly import ReadOnly
from aotdiff.ad.requests import Request, calling, has_rule, request_of, reverses_recursion
from aotdiff.ad.residuals import BOUNDARY, Pairing, legalise
from aotdiff.ad.reverse_sweep import Scope, Sweep
from aotdiff.ad.sizes import Sizes
from aotdiff.ad.structure import Structure
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.rewrite import substitute
from aotdiff.ir.types import Acc, Record, Scalar, Type, array_type, dims_of, element_of
from aotdiff.passes.facts import functions_that_check
from aotdiff.passes.inline import recursive_functions
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


class Pullbacks:
    """Makes reverse functions; each once for what is asked of it.

    A call of a function that is not recursive is reversed by running the function again. The reverse function of a
    recursive one runs it once: a forward function leaves a record for a function that only reverses. Its code is not
    differentiated again, see `ad.transpose`. With `records` all callers of recursive functions do the same, for when no
    more derivatives are to be taken (`use_records`).
    """

    __slots__ = ("module", "flow", "read_only", "records", "_forward", "_made", "_recursive", "_depth")

    def __init__(self, module: Module, records: bool = False, forward: Forward | None = None):
        self.module = module
        self.flow = CallFlow(module)
        self.read_only = ReadOnly(module)
        self.records = records
        self._forward = forward
        self._made = {f.attrs["derived"]: f for f in module.funcs.values() if "derived" in f.attrs}
        self._recursive = recursive_functions(module)
        self._depth = 0

    @property
    def forward(self) -> Forward:
        """What makes the tangent functions that are reversed for derivatives of reverse functions."""
        if self._forward is None:
            self._forward = Forward(self.module, self)
        return self._forward

    def function(self, request: Request) -> Func:
        """The function is in the module before its body is written: it may call itself."""
        made = self._made.get(request.key)
        if made is not None:
            return made
        new = self._declare(request, request.key, "vjp", [])
        if request.value:
            new.result_types[:0] = self.module.funcs[request.func].result_types
        self._made[request.key] = new
        self.write(new, request)
        return new

    def write(self, new: Func, request: Request) -> None:
        """Write the body of a function that does what is asked."""
        self._depth += 1
        new.body = _Body(self, request).write()
        self._finish(new)

    def pair(self, request: Request) -> tuple[Func, Func]:
        """A function that runs forward and gives a record after its results, and one that takes the record and the
        arrays that are only read, then seeds, adjoints for live handles and handles."""
        keys = ("forward", *request.key), ("reverse", *request.key)
        if keys[0] in self._made:
            return self._made[keys[0]], self._made[keys[1]]
        func = self.module.funcs[request.func]
        record = Record(self._record_name(f"{func.name}.residuals"))
        forward = self._declare(request, keys[0], "forward", [*func.result_types, record])
        reverse = self._declare(request, keys[1], "reverse", [])
        self._made |= {keys[0]: forward, keys[1]: reverse}
        self._depth += 1
        forward.body, reverse.body = _Body(self, request).write_pair(record)
        self._finish(forward, reverse)
        return forward, reverse

    def recursive(self, func: Func) -> bool:
        """Whether the function may call itself; a tangent function does if what it is the tangent of does."""
        key = func.attrs.get("derived", ("",))
        return func.name in self._recursive or (key[0] == "tangents" and self.recursive(self.module.funcs[key[1]]))

    def by_records(self, caller: Func, callee: Func) -> bool:
        """Whether, in the reverse function of `caller`, calls of `callee` leave records."""
        return self.recursive(callee) and (self.records or self.whole(caller))

    def whole(self, func: Func) -> bool:
        """Whether the reverse function of `func` is written with records at once, and transposed as a whole."""
        return self.recursive(func) and reverses_recursion(func)

    def _declare(self, request: Request, key: tuple, suffix: str, types: list[Type]) -> Func:
        """A function that has no body yet, of these results or of the cotangents asked for."""
        func = self.module.funcs[request.func]
        name = self.module.fresh_name(f"{func.name}.{suffix}_{'_'.join(map(str, request.wrt))}" + "_v" * request.value)
        attrs = {"derived": key} | {k: func.attrs[k] for k in ("recursive", "inline") if k in func.attrs}
        if key[0] == "vjp" and self.whole(func):
            attrs |= {"whole": True, "inline": "never"}
        given = [func.params[k].type for k in request.wrt if not request.by_handle[k]]
        return self.module.add(Func(name, Region(), types or given, attrs, func.loc))

    def _record_name(self, stem: str) -> str:
        """A new record, without fields so far."""
        name, k = stem, 1
        while name in self.module.records:
            k += 1
            name = f"{stem}_{k}"
        self.module.records[name] = ()
        return name

    def _finish(self, *funcs: Func) -> None:
        self._depth -= 1
        if self._depth == 0:
            finish_variants(self.module)
        for func in funcs:
            simplify(self.module, func, ("canonicalize", "cse"))
            if any(op.name in ("select", "if") for op in func.body.walk()):
                func.attrs["choices"] = True  # see `passes.sink`


def use_records(module: Module) -> None:
    """Write reverse functions that call recursive functions again, so that these run forward once.

    For when all derivatives are expanded. Those of recursive functions were written so at once.
    """
    recursive = recursive_functions(module)
    pullbacks: Pullbacks | None = None
    written: list[tuple[Func, Func]] = []
    for func in list(module.funcs.values()):
        key = func.attrs.get("derived", ("",))
        if key[0] != "vjp" or key[1] not in module.funcs or func.attrs.get("whole"):
            continue
        source = module.funcs[key[1]]
        if any(op.name == "call" and op.attrs["callee"] in recursive for op in source.body.walk()):
            pullbacks = pullbacks or Pullbacks(module, records=True)
            new = Func(func.name, Region(), func.result_types, func.attrs, func.loc)
            pullbacks.write(new, Request(*key[1:]))
            written.append((func, new))
    # Records have no adjoint: until all are written, bodies without them are what is reversed.
    for func, new in written:
        func.body = new.body


class _Body:
    """Writes the body of one reverse function."""

    def __init__(self, pullbacks: Pullbacks, request: Request):
        self.pullbacks = pullbacks
        self.request = request
        module = pullbacks.module
        func = module.funcs[request.func]
        by_call = has_rule(func) or request_of(module, func) is not None
        self.source = func
        self.func = prepare(module, calling(func) if by_call else func, self._activity)
        self.activity = self._activity(self.func)
        self.params = list(self.func.params)
        self.structure = Structure(self.func)
        self.sizes = Sizes(self.structure)
        self.sweep = Region()
        self.read_only = [pullbacks.read_only.param(func, k) for k in range(len(func.params))]
        travelling = pullbacks.recursive(func)
        self.travelling = [p for p, only in zip(self.params, self.read_only, strict=True) if travelling and not only]

    def _activity(self, func: Func) -> Activity:
        request = self.request
        varied = tuple(k in request.wrt for k in range(len(func.params)))
        return self.pullbacks.flow.activity(func, varied, request.seeded, request.live)

    def write(self) -> Region:
        """One region: forward operations, then the sweep."""
        body = self.func.body
        pairs = self._reverse(body.terminator.operands if self.request.value else [])
        staying = self._staying()
        module = self.pullbacks.module
        legalise(module, self.structure, self.sizes, pairs, self.sweep, self.travelling)
        self._drop_own_handles()
        body.ops[-1:] = self.sweep.ops
        prune(body, staying=staying)
        return body

    def write_pair(self, record: Record) -> tuple[Region, Region]:
        """Two regions: the forward operations, which end in a record, and the sweep, which begins with it."""
        module, body = self.pullbacks.module, self.func.body
        pairs = self._reverse([])
        staying = self._staying()
        reverse = Region([Value(record, "residuals")])
        given = body.args[len(self.params) :]
        passed = [p for p, only in zip(self.params, self.read_only, strict=True) if only]
        scope = {v: v for v in [*passed, *given]}
        boundary = Pairing(BOUNDARY, body, self.sweep, scope, list(reverse.args))
        fields = legalise(module, self.structure, self.sizes, pairs, self.sweep, self.travelling, boundary)
        module.records[record.name] = tuple(v.type for v in fields)
        body.args = self.params
        env = {p: reverse.add_arg(p.type, p.name) for p in passed}
        for arg in given:
            arg.owner, arg.index = reverse, len(reverse.args)
            reverse.args.append(arg)
        reverse.ops = self.sweep.ops
        substitute(reverse, env)
        results = body.terminator.operands
        body.ops.pop()
        b = Builder(body, self.func.loc)
        b.ret([*results, b.emit("record_make", fields, [record], {"record": record.name}).result])
        prune(body, staying=staying)
        return body, reverse

    def _reverse(self, primal: list[Value]) -> dict[Region, Pairing]:
        """Sweep backwards into `self.sweep`, which ends with the cotangents after `primal`."""
        request = self.request
        b = Builder(self.sweep, self.func.loc)
        sw = Sweep(self.pullbacks, self.source, self.structure, self.sizes, self.activity, b)
        self._open(sw)
        sw.sweep(self.func.body)
        sw.b.loc = self.func.loc
        cotangents = [sw.take_or_zeros(self.params[k]) for k in request.wrt if not request.by_handle[k]]
        sw.b.ret([*primal, *cotangents])
        self.sizes.flush()
        prune(self.sweep, {v for pairing in sw.pairs.values() for v in pairing.index})
        self.again, self.repeated = sw.again, sw.repeated
        return sw.pairs

    def _staying(self) -> set[Op]:
        """Forward operations that stay whatever becomes of their results, for the sake of calls that may report an
        error and are not run again by the sweep, or not every time."""
        if not any(op.name == "call" for op in self.func.body.walk()):
            return set()
        swept = set(self.sweep.walk())
        checking = functions_that_check(self.pullbacks.module)
        again = {op for op, called in self.again.items() if called in swept}
        staying: set[Op] = set()
        self._add_staying(self.func.body, checking, again, staying)
        return staying

    def _add_staying(self, region: Region, checking: set[str], again: set[Op], staying: set[Op]) -> bool:
        """Whether the region has such operations."""
        if region in self.repeated:
            again = set()
        before = len(staying)
        for op in region.ops:
            inside = [self._add_staying(inner, checking, again, staying) for inner in op.regions]
            if any(inside) or (op not in again and self._reports(op, checking)):
                staying.add(op)
        return len(staying) > before

    def _reports(self, op: Op, checking: set[str]) -> bool:
        """Whether the operation calls a function that may report an error."""
        if op.name != "call":
            return False
        key = self.pullbacks.module.funcs[op.attrs["callee"]].attrs.get("derived", ("",))
        return op.attrs["callee"] in checking or (key[0] == "forward" and key[2] in checking)

    def _open(self, sw: Sweep) -> None:
        """New parameters: seeds, adjoints for live handles, handles."""
        body, request = self.func.body, self.request
        sw.enter(body)
        seeds = [(v, self._param(v.type, v, "ct")) for v, on in zip(body.yielded, request.seeded, strict=True) if on]
        for param, on in zip(self.params, request.live, strict=True):
            if on:
                assert isinstance(param.type, Acc)
                sw.handle_adjoints[param] = self._param(array_type(param.type.element, param.type.dims), param, "ct")
        outer = sw.scope
        sw.scope = Scope("loop", outer)
        sw.enter(body)
        for k, param in enumerate(self.params):
            if request.by_handle[k]:
                element = element_of(param.type)
                assert isinstance(element, Scalar)
                sw.scope.handles[param] = self._param(Acc(element, dims_of(param.type)), param, "acc")
                sw.level[param] = outer
        for value, seed in seeds:
            sw.add(value, seed)

    def _param(self, type_: Type, value: Value, suffix: str) -> Value:
        return self.func.body.add_arg(type_, f"{value.name}_{suffix}" if value.name else suffix)

    def _drop_own_handles(self) -> None:
        """The forward operations do not accumulate into the function's own handles, which go."""
        body = self.func.body
        handles = {p for p in self.params if isinstance(p.type, Acc)}
        if handles:
            drop_handles(self.pullbacks.module, body, handles)
            body.args = [arg for arg in body.args if arg not in handles]
            for k, arg in enumerate(body.args):
                arg.index = k
