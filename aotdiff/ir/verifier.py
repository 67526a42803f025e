"""Checks that a module is a well-formed graph.

`verify(module)` raises VerificationError with the text of the function and a mark under the guilty operation.
Sizes are compared only where both are known when compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import OPS, REDUCTIONS, OpSpec, map_result, reduction_result, same_kind, scalar_result
from aotdiff.ir.printer import print_func
from aotdiff.ir.types import BOOL, I64, Acc, Array, Record, Scalar, Type, array_type, dims_of, element_of

_CHECK_KINDS = ("IndexError", "ValueError", "ZeroDivisionError", "AssertionFailed", "RecursionError", "MemoryError")
_KIND_SETS = {
    "float": ("f64", "f32"),
    "number": ("f64", "f32", "i64"),
    "bool": ("bool",),
    "any": ("f64", "f32", "i64", "bool"),
}
_HANDLE_USERS = ("accum", "call", "vjp", "jvp")


class VerificationError(Exception):
    """The graph is malformed; the message shows where."""

    def __init__(self, message: str, func: Func, op: Op | None):
        marks = {op: message} if op is not None else {}
        super().__init__(f"@{func.name}: {message}\n{print_func(func, marks=marks)}")
        self.reason = message
        self.func = func
        self.op = op


def verify(module: Module, only: Iterable[Func] | None = None) -> None:
    """Raises VerificationError for the first fault found.

    `only` are the functions to look at while others may still be declared but not written: those have no operations,
    and nothing is asked of calls of them.
    """
    for func in module.funcs.values() if only is None else only:
        _Verifier(module, func, only is not None).run()


class _Fault(Exception):
    pass


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise _Fault(message)


def _all_same(found: Sequence[Type], wanted: Sequence[Type], what: str) -> None:
    _require(len(found) == len(wanted), f"{what}: {len(found)} values, expected {len(wanted)}")
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        _require(same_kind(f, w), f"{what} {k} is {f}, expected {w}")


def _types(values: Sequence[Value]) -> list[Type]:
    return [v.type for v in values]


def _results(op: Op, wanted: Sequence[Type]) -> None:
    _all_same(_types(op.results), wanted, "result")


def _indices(values: Sequence[Value], count: int, what: str) -> None:
    _require(len(values) == count, f"{len(values)} {what}, expected {count}")
    for v in values:
        _require(v.type == I64, f"{what} must be i64, found {v.type}")


def _array(value: Value) -> Array:
    _require(isinstance(value.type, Array), f"expected an array, found {value.type}")
    assert isinstance(value.type, Array)
    return value.type


def _arity(op: Op, least: int) -> None:
    _require(len(op.operands) >= least, f"`{op.name}` takes at least {least} operands, found {len(op.operands)}")


class _Verifier:
    def __init__(self, module: Module, func: Func, partly: bool = False):
        self.module = module
        self.func = func
        self.partly = partly
        self.visible: set[Value] = set()
        self.seen: set[int] = set()
        self.current: Op | None = None

    def run(self) -> None:
        try:
            self.region(self.func.body)
            _all_same(_types(self.func.body.yielded), self.func.result_types, "function result")
            for key in ("vjp", "jvp"):
                callee = self.func.attrs.get(key)
                _require(callee is None or callee in self.module.funcs, f"{key} rule @{callee} does not exist")
        except _Fault as fault:
            raise VerificationError(str(fault), self.func, self.current) from None

    def region(self, region: Region) -> None:
        defined = list(region.args)
        for k, arg in enumerate(region.args):
            _require(arg.owner is region and arg.index == k, f"region argument {k} is owned elsewhere")
        self.visible.update(defined)
        for op in region.ops:
            self.current = op
            self.op(op, last=op is region.ops[-1])
            self.visible.update(op.results)
            defined += op.results
        _require(bool(region.ops) and region.ops[-1].name == "yield", "a region must end with `yield`")
        self.visible.difference_update(defined)

    def op(self, op: Op, last: bool) -> None:
        _require(op.name in OPS, f"unknown operation `{op.name}`")
        _require(id(op) not in self.seen, "the same operation object stands in two places")
        self.seen.add(id(op))
        spec = OPS[op.name]
        _require((op.name == "yield") == last, "`yield` ends a region, and nothing else does")
        self.uses(op)
        for k, result in enumerate(op.results):
            _require(result.owner is op and result.index == k, f"result {k} is owned elsewhere")
        missing = [a for a in spec.attrs if a not in op.attrs]
        _require(not missing, f"`{op.name}` lacks attribute {missing}")
        count = len(op.operands)
        _require(spec.arity in (None, count), f"`{op.name}` takes {spec.arity} operands, found {count}")
        _require(len(op.regions) == spec.regions, f"`{op.name}` has {spec.regions} regions, found {len(op.regions)}")
        for region in op.regions:
            self.region(region)
        self.current = op
        if spec.is_scalar:
            _check_scalar(op, spec)
        else:
            _CHECKS[op.name](self, op)

    def uses(self, op: Op) -> None:
        for k, v in enumerate(op.operands):
            _require(v in self.visible, f"operand {k} (%{v.name or '?'}: {v.type}) is not defined here")
            if isinstance(v.type, Acc):
                allowed = op.name in _HANDLE_USERS and (op.name != "accum" or k == 0)
                _require(allowed, f"a handle is used by accum and call only, not by `{op.name}`")

    def callee(self, op: Op) -> Func:
        name = op.attrs["callee"]
        _require(name in self.module.funcs, f"function @{name} does not exist")
        return self.module.funcs[name]

    def record(self, name: str) -> tuple[Type, ...]:
        _require(name in self.module.records, f"record {name} does not exist")
        return self.module.records[name]


def _check_scalar(op: Op, spec: OpSpec) -> None:
    operands = _types(op.operands)
    for t in operands:
        _require(isinstance(t, Scalar), f"`{op.name}` works on scalars, found {t}")
    compared = operands
    if op.name == "select":
        _require(operands[0] == BOOL, f"the condition of `select` is {operands[0]}")
        compared = operands[1:]
    elif op.name == "ipow":
        _require(operands[1] == I64, f"the exponent of `ipow` is {operands[1]}")
        compared = operands[:1]
    for t in compared:
        _require(t == compared[0], f"operands of different types: {', '.join(map(str, operands))}")
        _require(str(t) in _KIND_SETS[spec.operands], f"`{op.name}` does not take {t}")
    if op.name == "const":
        _check_const(op)
    _results(op, [scalar_result(op.name, operands, op.attrs)])


def _check_const(op: Op) -> None:
    value, type_ = op.attrs["value"], op.attrs["type"]
    _require(isinstance(type_, Scalar), f"a constant of type {type_}")
    python = {"i64": int, "bool": bool}.get(type_.kind, float)
    _require(type(value) is python, f"value {value!r} of a constant of type {type_}")


def _check_same(v: _Verifier, op: Op) -> None:
    _results(op, _types(op.operands))


def _check_undef(v: _Verifier, op: Op) -> None:
    _results(op, [op.attrs["type"]])


def _check_dim(v: _Verifier, op: Op) -> None:
    rank = _array(op.operands[0]).rank
    _require(0 <= op.attrs["axis"] < rank, f"axis {op.attrs['axis']} of an array of rank {rank}")
    _results(op, [I64])


def _check_read(v: _Verifier, op: Op) -> None:
    _arity(op, 2)
    array = _array(op.operands[0])
    _indices(op.operands[1:], array.rank, "indices")
    _results(op, [array.element])


def _check_update(v: _Verifier, op: Op) -> None:
    _arity(op, 3)
    array = _array(op.operands[0])
    _require(op.operands[1].type == array.element, f"a value of type {op.operands[1].type} for {array}")
    _indices(op.operands[2:], array.rank, "indices")
    _results(op, [array])


def _check_insert(v: _Verifier, op: Op) -> None:
    _arity(op, 3)
    array, block = _array(op.operands[0]), _array(op.operands[1])
    _require((array.element, array.rank) == (block.element, block.rank), f"a block of type {block} for {array}")
    _indices(op.operands[2:], array.rank, "offsets")
    _results(op, [array])


def _check_sizes(v: _Verifier, op: Op) -> None:
    _arity(op, 2)
    array = _array(op.operands[0])
    count = len(op.operands) - 1
    _require(op.name == "reshape" or count == array.rank, f"{count} sizes for {array}")
    _indices(op.operands[1:], count, "sizes")
    _results(op, [array_type(array.element, (None,) * count)])


def _check_argsort(v: _Verifier, op: Op) -> None:
    array = _array(op.operands[0])
    _require(array.rank == 1, f"`argsort` takes rank 1, found {array}")
    _results(op, [array_type(I64, array.dims)])


def _inner_sizes(op: Op, values: Sequence[Value], types: Sequence[Type], kinds: Sequence[str]) -> None:
    needed = sum(len(dims_of(t)) for t, kind in zip(types, kinds, strict=True) if kind == "map")
    _indices(values, needed, "inner sizes")


def _check_par(v: _Verifier, op: Op) -> None:
    rank, kinds, region = op.attrs["rank"], op.attrs["kinds"], op.regions[0]
    yielded = _types(region.yielded)
    _arity(op, rank)
    _require(rank >= 1, "a `par` has at least one extent")
    _indices(op.operands[:rank], rank, "extents")
    _all_same(_types(region.args), [I64] * rank, "index")
    _require(len(yielded) == len(kinds), f"{len(yielded)} values yielded for {len(kinds)} kinds")
    _inner_sizes(op, op.operands[rank:], yielded, kinds)
    wanted = []
    for kind, t in zip(kinds, yielded, strict=True):
        _require(not isinstance(t, Acc), "a handle is yielded")
        wanted.append(map_result(t, (None,) * rank) if kind == "map" else _reduction(kind, t))
    _results(op, wanted)


def _reduction(kind: str, type_: Type) -> Type:
    _require(kind in REDUCTIONS, f"unknown kind {kind!r}")
    _require(isinstance(type_, Scalar), f"a reduction of {type_}")
    boolean = kind in ("any", "all")
    _require((type_ == BOOL) == boolean, f"reduction {kind!r} of {type_}")
    return reduction_result(kind, type_)


def _check_loop(v: _Verifier, op: Op) -> None:
    carries, kinds, region = op.attrs["carries"], op.attrs["kinds"], op.regions[-1]
    first = 1 if op.name == "for" else 0
    _arity(op, first + carries)
    inits = _types(op.operands[first : first + carries])
    if first:
        _indices(op.operands[:1], 1, "trip count")
    for each in op.regions:
        _all_same(_types(each.args), [I64, *inits], "loop argument")
    if op.name == "while":
        _all_same(_types(op.regions[0].yielded), [BOOL], "condition")
    yielded = _types(region.yielded)
    _require(len(yielded) == carries + len(kinds), f"{len(yielded)} values yielded, expected {carries + len(kinds)}")
    _all_same(yielded[:carries], inits, "carried value")
    _no_more_known(region.args[1:], region.yielded[:carries])
    _no_more_known(op.results[:carries], region.yielded[:carries])
    mapped = yielded[carries:]
    _inner_sizes(op, op.operands[first + carries :], mapped, kinds)
    trips: list[Type] = [] if first else [I64]
    _results(op, inits + trips + [t for kind, m in zip(kinds, mapped, strict=True) for t in _loop_map(kind, m)])


def _no_more_known(merged: Sequence[Value], parts: Sequence[Value]) -> None:
    """A value that comes from several places has a known size only where each of them has it."""
    for to, part in zip(merged, parts, strict=False):
        for known, size in zip(dims_of(to.type), dims_of(part.type), strict=True):
            _require(known in (None, size), f"{to.type} where a {part.type} may come")


def _loop_map(kind: str, type_: Type) -> list[Type]:
    _require(kind in ("map", "cat"), f"unknown kind {kind!r}")
    if kind == "map":
        return [map_result(type_, (None,))]
    _require(isinstance(type_, Array) and type_.rank == 1, f"`cat` of {type_}")
    return [Array(element_of(type_), (None,)), Array(I64, (None,))]


def _check_if(v: _Verifier, op: Op) -> None:
    _require(op.operands[0].type == BOOL, f"the condition is {op.operands[0].type}")
    for region in op.regions:
        _require(not region.args, "the sides of `if` take no arguments")
        _all_same(_types(region.yielded), _types(op.results), "value of a side")
        _no_more_known(op.results, region.yielded)


def _check_withacc(v: _Verifier, op: Op) -> None:
    inits = _types(op.operands)
    elements = [e for t in inits if isinstance(e := element_of(t), Scalar)]
    _require(len(elements) == len(inits), "accumulators hold numbers")
    handles: list[Type] = [Acc(e, dims_of(t)) for e, t in zip(elements, inits, strict=True)]
    _all_same(_types(op.regions[0].args), handles, "handle")
    _results(op, inits + _types(op.regions[0].yielded))


def _check_accum(v: _Verifier, op: Op) -> None:
    _arity(op, 2)
    handle = op.operands[0].type
    _require(isinstance(handle, Acc), f"expected a handle, found {handle}")
    assert isinstance(handle, Acc)
    _require(op.operands[1].type == handle.element, f"a value of type {op.operands[1].type} for {handle}")
    _indices(op.operands[2:], handle.rank, "indices")
    _results(op, [])


def _check_check(v: _Verifier, op: Op) -> None:
    _arity(op, 1)
    _require(op.operands[0].type == BOOL, f"the condition is {op.operands[0].type}")
    _require(op.attrs["kind"] in _CHECK_KINDS, f"unknown kind of error {op.attrs['kind']!r}")
    _require(all(isinstance(x.type, Scalar) for x in op.operands), "the values of a message are scalars")
    _results(op, [])


def _check_call(v: _Verifier, op: Op) -> None:
    callee = v.callee(op)
    if callee.body.ops or not v.partly:
        _all_same(_types(op.operands), _types(callee.params), "argument")
    _results(op, callee.result_types)


def _check_yield(v: _Verifier, op: Op) -> None:
    _results(op, [])


def _float_results(callee: Func) -> list[Type]:
    return [t for t in callee.result_types if isinstance(e := element_of(t), Scalar) and e.is_float]


def _check_derivative(v: _Verifier, op: Op) -> None:
    callee, wrt = v.callee(op), op.attrs["wrt"]
    params = _types(callee.params)
    _require(all(0 <= k < len(params) for k in wrt), f"wrt {wrt} of {len(params)} parameters")
    active = [params[k] for k in wrt]
    seeds, gives = (_float_results(callee), active) if op.name == "vjp" else (active, _float_results(callee))
    _all_same(_types(op.operands), params + seeds, "argument")
    _results(op, (callee.result_types if op.attrs["value"] else []) + gives)


def _check_record_make(v: _Verifier, op: Op) -> None:
    _all_same(_types(op.operands), v.record(op.attrs["record"]), "field")
    _results(op, [Record(op.attrs["record"])])


def _check_record_unpack(v: _Verifier, op: Op) -> None:
    record = op.operands[0].type
    _require(isinstance(record, Record), f"expected a record, found {record}")
    assert isinstance(record, Record)
    _results(op, v.record(record.name))


_CHECKS: dict[str, Callable[[_Verifier, Op], None]] = {
    "stop_gradient": _check_same,
    "undef": _check_undef,
    "dim": _check_dim,
    "read": _check_read,
    "update": _check_update,
    "insert": _check_insert,
    "reshape": _check_sizes,
    "shaped": _check_sizes,
    "argsort": _check_argsort,
    "par": _check_par,
    "for": _check_loop,
    "while": _check_loop,
    "if": _check_if,
    "withacc": _check_withacc,
    "accum": _check_accum,
    "check": _check_check,
    "call": _check_call,
    "yield": _check_yield,
    "vjp": _check_derivative,
    "jvp": _check_derivative,
    "record_make": _check_record_make,
    "record_unpack": _check_record_unpack,
}
