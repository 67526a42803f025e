"""Functions inside a module and calls of them.

ABI of an internal function: `{ i32 error, results... } f(ptr ctx, parameters..., storage...)`. An array is its pointer
and the sizes its type does not know. Results: scalars by value; an array in a parameter's buffer (`Summary.inplace`)
is not returned; a small static array is written to storage the caller gives; other arrays come as pointer and sizes and
belong to the caller. A parameter in `Summary.writes` may be overwritten, the others are only read.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.codegen import checks, context, stack
from aotdiff.codegen.bufferize import Summary
from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.handing import hand_out
from aotdiff.codegen.par import hint_slots
from aotdiff.codegen.text import symbol
from aotdiff.codegen.values import Buffer, Handle, Ref, llvm_type, memory_type
from aotdiff.codegen.valuetext import SMALL

from aotdiff.ir.graph import Func, Loc, Op, Value
from aotdiff.ir.types import Acc, Array, Record, Scalar, Type, dims_of, element_of


@dataclass(frozen=True, slots=True)
class Result:
    """How one result travels: "value", "inplace", "storage" or "pointer"; `fields` are its LLVM types in the struct."""

    way: str
    fields: tuple[str, ...]


def static_dims(type_: Type) -> tuple[str, ...] | None:
    """The sizes if the type knows them all."""
    known = dims_of(type_)
    return tuple(str(k) for k in known) if all(k is not None for k in known) else None


def _is_small(type_: Type) -> bool:
    dims, element = static_dims(type_), element_of(type_)
    if not isinstance(type_, Array) or dims is None or isinstance(element, Record):
        return False
    total = 1
    for d in dims:
        total *= int(d)
    return total <= SMALL


def result_ways(func: Func, summary: Summary) -> list[Result]:
    found = []
    for j, type_ in enumerate(func.result_types):
        if isinstance(type_, Scalar):
            found.append(Result("value", (llvm_type(type_),)))
        elif j in summary.inplace:
            found.append(Result("inplace", ()))
        elif _is_small(type_):
            found.append(Result("storage", ()))
        else:
            unknown = sum(k is None for k in dims_of(type_))
            found.append(Result("pointer", ("ptr", *["i64"] * unknown)))
    return found


def struct_type(ways: list[Result]) -> str:
    return "{ " + ", ".join(["i32", *(f for w in ways for f in w.fields)]) + " }"


def internal_name(name: str) -> str:
    return symbol(f"aot.f.{name}")


def _unknown(type_: Type, dims: tuple[str, ...]) -> list[str]:
    return [d for k, d in zip(dims_of(type_), dims, strict=True) if k is None]


# Calls ------------------------------------------------------------------------------------------------------


def emit_call(fe: FunctionEmitter, op: Op) -> None:
    func = fe.module.graph.funcs[op.attrs["callee"]]
    summary = fe.module.summaries[func.name]
    ways = result_ways(func, summary)
    passed = [_argument(fe, i in summary.writes, v) for i, v in enumerate(op.operands)]
    args = ["ptr %ctx"]
    for param, found in zip(func.params, passed, strict=True):
        args += _flatten(param.type, found)
    storage: dict[int, Ref] = {}
    for j, (way, result) in enumerate(zip(ways, op.results, strict=True)):
        if way.way == "storage":
            assert isinstance(result.type, Array)
            storage[j] = fe.new_result(result, static_dims(func.result_types[j]) or (), result.type.element)
            args.append(f"ptr {storage[j].ptr}")
    struct = struct_type(ways)
    back = fe.op(f"call {struct} {internal_name(func.name)}({', '.join(args)})")
    _stop_on_error(fe, struct, back)
    position = 1
    for j, (way, result) in enumerate(zip(ways, op.results, strict=True)):
        fields = [fe.op(f"extractvalue {struct} {back}, {position + n}") for n in range(len(way.fields))]
        position += len(fields)
        if way.way == "value":
            fe.bind(result, fields[0])
        elif way.way == "storage":
            fe.bind(result, storage[j])
        elif way.way == "inplace":
            found = passed[summary.inplace[j]]
            assert isinstance(found, Ref)
            fe.bind(result, found)
        else:
            fe.bind(result, _returned(fe, func.result_types[j], fields))


def _argument(fe: FunctionEmitter, written: bool, value: Value) -> str | Ref | Handle:
    found = fe.env[value]
    return fe.consume(found) if written and isinstance(found, Ref) else found


def _flatten(type_: Type, found: str | Ref | Handle) -> list[str]:
    if isinstance(found, str):
        assert isinstance(type_, Scalar)
        return [f"{llvm_type(type_)} {found}"]
    return [f"ptr {found.ptr}", *(f"i64 {d}" for d in _unknown(type_, found.dims))]


def _stop_on_error(fe: FunctionEmitter, struct: str, back: str) -> None:
    code = fe.op(f"extractvalue {struct} {back}, 0")
    label = fe.label("failed")
    fe.cold.append(f"{label}:")
    fe.cold += ["  " + line for line in fe.fail_return(code)]
    fe.unless(fe.op(f"icmp ne i32 {code}, 0"), label)


def _returned(fe: FunctionEmitter, type_: Type, fields: list[str]) -> Ref:
    """An array or record that the callee gave us."""
    sizes = iter(fields[1:])
    dims = tuple(str(k) if k is not None else next(sizes) for k in dims_of(type_))
    element, buffer = element_of(type_), Buffer(fields[0])
    if isinstance(element, Record):
        buffer.record = element.name
        buffer.count = fe.count(dims) if dims else None
    return Ref(fields[0], dims, element, fe.own(buffer))


# Functions ----------------------------------------------------------------------------------------------------


class InternalEmitter(FunctionEmitter):
    """Emits one internal function."""

    def emit(self) -> str:
        func, summary = self.func, self.module.summaries[self.func.name]
        self.ways = result_ways(func, summary)
        self.struct = struct_type(self.ways)
        self.fail_return = self._fail
        scope = self.enter(func.body)
        params = self._parameters(summary)
        slots = []
        for j, (way, value) in enumerate(zip(self.ways, func.body.yielded, strict=True)):
            if way.way == "storage":
                params.append(f"ptr noalias %r{j}")
                slots.append((value, f"%r{j}", static_dims(func.result_types[j]) or (), 1))
        self.hinted = hint_slots(self, func.body, slots)
        if self.recursive:
            self._check_depth()
        self.run(scope)
        self._return(summary)
        head = f"define internal {self.struct} {internal_name(func.name)}(ptr noalias %ctx, {', '.join(params)})"
        group = "#5" if self.recursive else "#0"
        return head.replace(", )", ")") + f" {group} {{\n{self.body()}\n}}"

    def _fail(self, code: str) -> list[str]:
        name = self.name()
        return [f"{name} = insertvalue {self.struct} undef, i32 {code}, 0", f"ret {self.struct} {name}"]

    def _parameters(self, summary: Summary) -> list[str]:
        params = []
        for i, p in enumerate(self.func.params):
            if isinstance(p.type, Scalar):
                params.append(f"{llvm_type(p.type)} %p{i}")
                self.bind(p, f"%p{i}")
                continue
            written = i in summary.writes
            mode = "" if isinstance(p.type, (Acc, Record)) else "noalias " if written else "noalias readonly "
            params.append(f"ptr {mode}%p{i}")
            dims = []
            for axis, known in enumerate(dims_of(p.type)):
                dims.append(str(known) if known is not None else f"%p{i}_{axis}")
                if known is None:
                    params.append(f"i64 %p{i}_{axis}")
            element = element_of(p.type)
            if isinstance(p.type, Acc):
                self.bind(p, Handle(f"%p{i}", tuple(dims), p.type.element))
                continue
            buffer = self.own(Buffer(f"%p{i}", pinned=True)) if written else None
            self.bind(p, Ref(f"%p{i}", tuple(dims), element, buffer))
        return params

    def _check_depth(self) -> None:
        self.module.declare("declare ptr @llvm.frameaddress.p0(i32)")
        here = self.op(f"ptrtoint ptr {self.op('call ptr @llvm.frameaddress.p0(i32 0)')} to i64")
        limit = self.load("i64", self.bytes_at("%ctx", context.STACK_LIMIT))
        label = self.label("deep")
        self.cold.append(f"{label}:")
        name = self.func.name.partition(".")[0]  # the rest is ours: which derivative, for which `real`
        message = f"recursion too deep in `{name}`"
        self.cold += ["  " + t for t in self.report("RecursionError", self.func.loc, message)]
        self.unless(self.op(f"icmp ult i64 {here}, {limit}"), label)
        checks.poll(self, self.func.loc or Loc("", 0, 0))

    def _return(self, summary: Summary) -> None:
        """Results: what leaves is handed out or copied first, then parameters' buffers are overwritten."""
        scope, taken = self.scope, {}
        fields: list[tuple[str, str]] = []
        back: list[tuple[str, Ref]] = []
        for j, (way, value) in enumerate(zip(self.ways, self.func.body.yielded, strict=True)):
            found = self.env[value]
            if isinstance(found, str):
                fields.append((way.fields[0], found))
                continue
            assert isinstance(found, Ref)
            if way.way == "inplace":
                param = self.ref(self.func.params[summary.inplace[j]])
                if found.ptr not in (param.ptr, "null"):
                    back.append((param.ptr, found))
            elif way.way == "storage":
                if found.ptr != f"%r{j}" and f"%r{j}" in self.hinted:
                    back.append((f"%r{j}", found))
                elif found.ptr != f"%r{j}":
                    self.copy_array(f"%r{j}", found)
            else:
                found = self._leaving(found, taken)
                unknown = _unknown(self.func.result_types[j], found.dims)
                fields += [("ptr", found.ptr), *(("i64", d) for d in unknown)]
        for to, found in back:
            self.copy_array(to, found)
        for line in self.free_rest(scope):
            self.do(line)
        self._ret(fields)

    def _leaving(self, found: Ref, taken: dict[Buffer, None]) -> Ref:
        """An array the caller will own: ours if it can be, else a copy."""
        out = hand_out(self, self.scope, found, taken, stays=False)
        if out.flag == "true" or out.ref.ptr == "null":
            return out.ref
        if out.owner is not None:
            ref = Ref(out.ref.ptr, out.ref.dims, out.ref.element, self.own(out.owner))
            out.ref = self.unique(ref)
        else:
            out.ref = self.copy_to_heap(out.ref)
        assert out.ref.buffer is not None
        del self.scope.owned[out.ref.buffer]
        return out.ref

    def _ret(self, fields: list[tuple[str, str]]) -> None:
        value = self.op(f"insertvalue {self.struct} undef, i32 0, 0")
        for n, (type_, name) in enumerate(fields):
            value = self.op(f"insertvalue {self.struct} {value}, {type_} {name}, {n + 1}")
        self.do(f"ret {self.struct} {value}")


class EntryEmitter(FunctionEmitter):
    """Emits the native entry of an exported function: `i32 name(parameters..., results..., ptr ctx)`.

    Scalars by value (bool as i8), arrays as pointer and all sizes; results as pointers, arrays with the sizes the
    caller has room for.
    """

    def emit(self) -> str:
        func = self.func
        self.fail_return = self._fail
        scope = self.enter(func.body)
        params = self._parameters()
        slots: list[tuple[Value, str, tuple[str, ...], int]] = []
        for j, type_ in enumerate(func.result_types):
            params.append(f"ptr noalias %r{j}")
            dims = tuple(f"%r{j}_{axis}" for axis in range(len(dims_of(type_))))
            params += [f"i64 {d}" for d in dims]
            if dims:
                slots.append((func.body.yielded[j], f"%r{j}", dims, 1))
        self.hinted = hint_slots(self, func.body, slots)
        apart = self.recursive and stack.has_stack(self.module.target.triple)
        if self.recursive and not apart:
            self.module.need("aot.stack_limit")
            self.do("call void @aot.stack_limit(ptr %ctx)")
        self.run(scope)
        self._return()
        params.append("ptr noalias %ctx")
        name = entry_name(func.name)
        if not apart:
            return f"define i32 {name}({', '.join(params)}) #0 {{\n{self.body()}\n}}"
        self.module.need("aot.stack")
        inner = symbol(f"aot.e.{func.name}")
        body = f"define internal i32 {inner}({', '.join(params)}) #6 {{\n{self.body()}\n}}"
        return f"{body}\n{stack.entry(name, inner, params)}"

    def _fail(self, code: str) -> list[str]:
        return [*self._reset("aot.reset_all"), f"ret i32 {code}"]

    def _reset(self, how: str) -> list[str]:
        """Give back the memory of the call. `aot.reset` is made for calls that left little, and inlined."""
        self.module.need("aot.reset")
        return [f"call void @{how}(ptr %ctx)"]

    def _parameters(self) -> list[str]:
        params = []
        for i, p in enumerate(self.func.params):
            if isinstance(p.type, Scalar):
                params.append(f"{memory_type(p.type)} %p{i}")
                self.bind(p, self.op(f"icmp ne i8 %p{i}, 0") if p.type.kind == "bool" else f"%p{i}")
                continue
            assert isinstance(p.type, Array)
            params.append(f"ptr noalias readonly %p{i}")
            dims = [f"%p{i}_{axis}" for axis in range(p.type.rank)]
            params += [f"i64 {d}" for d in dims]
            self._check_static(p, dims)
            self.bind(p, Ref(f"%p{i}", tuple(dims), p.type.element))
        return params

    def _check_static(self, param: Value, dims: list[str]) -> None:
        """The sizes the type promises."""
        pairs = [(d, str(k)) for d, k in zip(dims, dims_of(param.type), strict=True) if k is not None]
        if pairs:
            self.check_same_dims(tuple(d for d, _ in pairs), tuple(k for _, k in pairs))

    def _return(self) -> None:
        for j, value in sorted(enumerate(self.func.body.yielded), key=lambda pair: f"%r{pair[0]}" in self.hinted):
            found = self.env[value]
            if isinstance(found, str):
                assert isinstance(value.type, Scalar)
                self.store_element(value.type, found, f"%r{j}")
                continue
            assert isinstance(found, Ref) and isinstance(value.type, Array)
            self.check_same_dims(found.dims, tuple(f"%r{j}_{axis}" for axis in range(value.type.rank)))
            if found.ptr != f"%r{j}":
                self.copy_array(f"%r{j}", found)
        for line in self._reset("aot.reset"):
            self.do(line)
        self.do("ret i32 0")


def entry_name(name: str) -> str:
    return symbol(f"aotdiff.{name}")
