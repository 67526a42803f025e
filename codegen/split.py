"""Outermost `par`s between threads: the loops become a function of a range of iterations.

The function is there once. A call alone (little work, one thread) runs it for the whole range; else an estimate made of
the extents decides into how many pieces the range is cut, which depends on the work and on the number of threads asked
for and on nothing else, so results are repeatable. Maps are written to their places; reductions of the pieces are
joined in order; accumulators are the pieces' own, added in order, except where each iteration adds to elements of its
own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aotdiff.codegen import context, strip
from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.lanes import is_contraction, put_row_first
from aotdiff.codegen.par import Level, Map, Nest, Reduction
from aotdiff.codegen.pieces import HEAD, PIECES, SCRATCH, SIZE, N, limits
from aotdiff.codegen.scalartext import ScalarText
from aotdiff.codegen.text import float_literal, is_literal
from aotdiff.codegen.values import Handle, Ref, Scope, element_size, llvm_type, memory_type
from aotdiff.codegen.valuetext import Row
from aotdiff.codegen.work import Estimate

from aotdiff.ir.graph import Op, Region, Value
from aotdiff.ir.types import Acc, Record, Scalar

if TYPE_CHECKING:
    from aotdiff.codegen.module import ModuleText

_ADDED = 0.4  # nanoseconds for one element of a piece's own accumulator
_LINE = 64
_WIDE = 4  # strips of columns that are many


def wanted(fe: FunctionEmitter, op: Op) -> Estimate | None:
    """The work of a `par` that may be split, or None."""
    module = fe.module
    if module.threads == 1 or fe.inside or fe.strip is not None or not op.attrs["rank"]:
        return None
    if any(scope.region.ops[scope.index].attrs.get("rare") for scope in fe.scopes[:-1]):
        return None
    if any(isinstance(v.type, Record) for v in op.regions[0].yielded):
        return None
    if any(isinstance(getattr(v.type, "element", None), Record) for v in op.regions[0].yielded):
        return None
    first = op.operands[0].op
    if first is not None and first.name == "const" and first.attrs["value"] < 2:
        return None
    estimate = Estimate(module.graph, op)
    known = estimate.constant()
    return None if known is not None and known < limits.least else estimate


# The function of a range ---------------------------------------------------------------------------------------


class _Range(FunctionEmitter):
    """Emits `i32 f(ctx, low, high, out, captured...)`; for a contraction, `low` and `high` of rows and of columns."""

    def __init__(self, outer: FunctionEmitter, name: str, columns: bool):
        super().__init__(outer.module, outer.func, outer.flow, outer.recursive)
        self.outer = outer
        self.symbol = name
        self.columns = columns
        self.inside = True
        self.taken: dict[tuple[str, str], tuple[str, str]] = {}  # (outer name, use): (type with attributes, name here)
        around = outer.scope
        self.scopes = [Scope(around.region, around.last_use, index=around.index)]
        self.fail_return = lambda code: [f"ret i32 {code}"]

    def take(self, name: str, type_: str, attributes: str = "", use: str = "") -> str:
        """The name here of something of the function around; a name for each use in a contraction."""
        if not name.startswith("%"):
            return name
        return self._taken(name, type_, attributes, use if self.columns else "")

    def _taken(self, name: str, type_: str, attributes: str = "", use: str = "") -> str:
        found = self.taken.setdefault((name, use), (f"{type_} {attributes}".strip(), f"%c{len(self.taken)}"))
        if name in self.outer.nonneg:
            self.nonneg.add(found[1])
        return found[1]

    def sizes(self, names: tuple[str, ...] | list[str], use: str) -> tuple[str, ...]:
        return tuple(self.take(n, "i64", "", f"{use}.{axis}") for axis, n in enumerate(names))

    def located(self, line: int, text: str) -> tuple[str, str]:
        """One contraction is like another but for where it is written: that is given to it, so that they are one."""
        found = super().located(line, text)
        return (self._taken(found[0], "i32", "", found[1]), self._taken(found[1], "ptr")) if self.columns else found

    def capture(self, value: Value, use: str) -> None:
        found = self.outer.env[value]
        if isinstance(found, str):
            assert isinstance(value.type, Scalar)
            self.env[value] = self.take(found, llvm_type(value.type))
        elif isinstance(found, Handle):
            there = "" if found.dims else f" writable dereferenceable({element_size(found.element)})"
            ptr = self.take(found.ptr, "ptr", f"noalias{there}")
            self.env[value] = Handle(ptr, self.sizes(found.dims, use), found.element)
        else:
            attributes = "" if isinstance(found.element, Record) else "noalias readonly"
            ptr = self.take(found.ptr, "ptr", attributes)
            self.env[value] = Ref(ptr, self.sizes(found.dims, use), found.element, part=found.part)

    def map(self, m: Map, use: str) -> Map:
        ptr = self.take(m.array.ptr, "ptr")
        self.taken[m.array.ptr, ""] = ("ptr noalias", ptr)  # also where it takes the place of an array that is read
        return Map(m.value, Ref(ptr, self.sizes(m.array.dims, use), m.array.element), self.sizes(m.inner, f"{use}.in"))

    def write(self, nest: Nest) -> str:
        """The text; `nest` is the `par` with names of the function around."""
        for n, value in enumerate(_captured(nest.op)):
            self.capture(value, f"value{n}")
        lead, extents = list(self.sizes(nest.lead, "lead")), list(self.sizes(nest.extents, "extent"))
        maps = [self.map(m, f"map{n}") for n, m in enumerate(nest.maps)]
        for read, (array, indices) in self.outer.moved.items():
            there = self.taken.get((array.ptr, ""))
            if there is not None:
                self.moved[read] = (Ref(there[1], self.sizes(array.dims, "moved"), array.element), indices)
        parts = {0: ("%low", "%high"), **({1: ("%low1", "%high1")} if self.columns else {})}
        # A contraction looks at the flag also in a loop, so that it is the same there and elsewhere.
        outermost = self.columns or not repeated(self.outer)
        own = Nest(nest.op, nest.region, extents, lead, maps, nest.reductions, parts, outermost)
        state = own.emit(self)
        types = [t for r, _ in nest.reductions for t, _ in r.starts(self)]
        for n, (type_, name) in enumerate(zip(types, state, strict=True)):
            self.store(type_, name, self.bytes_at("%out", 8 * n))
        self.do("ret i32 0")
        params = ["ptr noalias %ctx", "i64 %low", "i64 %high", "ptr noalias %out"]
        if self.columns:
            params[3:3] = ["i64 %low1", "i64 %high1"]
        params += [f"{type_} {name}" for type_, name in self.taken.values()]
        return f"define internal i32 {self.symbol}({', '.join(params)}) #6 {{\n{self.body()}\n}}"


def _captured(op: Op) -> list[Value]:
    """What the body uses from outside, in order."""
    inside: set[Value] = set()
    found: dict[Value, None] = {}

    def look(region: Region) -> None:
        inside.update(region.args)
        for inner in region.ops:
            for value in inner.operands:
                if value not in inside:
                    found[value] = None
            for r in inner.regions:
                look(r)
            inside.update(inner.results)

    look(op.regions[0])
    return list(found)


def repeated(fe: FunctionEmitter) -> bool:
    """Whether what is being emitted is in a sequential loop."""
    return any(scope.region.ops[scope.index].name in ("for", "while") for scope in fe.scopes[:-1])


# Accumulators --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Own:
    """An accumulator that pieces need of their own: its elements, its bytes in whole lines, what is before it."""

    handle: Handle
    count: str
    bytes_: str
    before: str


def _apart(op: Op, handle: Value) -> bool:
    """Whether iterations of the first index add to different elements: it is always the same index of the element."""
    first = op.regions[0].args[0]
    places: set[int] = set(range(8))
    for inner in op.regions[0].walk():
        if inner.name == "accum" and inner.operands[0] is handle:
            places &= {k for k, v in enumerate(inner.operands[2:]) if v is first}
        elif handle in inner.operands:
            return False
    return bool(places)


# The par -------------------------------------------------------------------------------------------------------


def emit(fe: FunctionEmitter, nest: Nest, estimate: Estimate) -> list[str]:
    """All loops; gives the accumulators of the reductions."""
    return _Split(fe, nest, estimate).emit()


class _Split:
    def __init__(self, fe: FunctionEmitter, nest: Nest, estimate: Estimate):
        self.fe, self.nest, self.estimate = fe, nest, estimate
        self.name = fe.module.new_symbol("@aot.r.")
        plan = strip.plan(fe, nest.op) if is_contraction(nest.op) and len(nest.lead) == 2 else None
        self.columns = 0 if plan is None else plan.lanes * plan.several  # those of one strip, in a contraction
        if self.columns:
            put_row_first(nest.op)
        self.range = _Range(fe, self.name, self.columns > 0)
        self.name = fe.module.share(self.name, self.range.write(nest))
        self.reductions = [r for r, _ in nest.reductions]
        self.types = [t for r in self.reductions for t, _ in r.starts(fe)]
        self.stride = (8 * len(self.types) + _LINE - 1) & -_LINE
        self.handles = [v for v in _captured(nest.op) if isinstance(v.type, Acc) and not _apart(nest.op, v)]
        self.arguments = [(type_.split()[0], name) for (name, _), (type_, _) in self.range.taken.items()]

    def emit(self) -> list[str]:
        fe = self.fe
        split, check, joined, whole, end = (fe.label(n) for n in ("split", "cut", "join", "whole", "done"))
        work = self._work()
        table = fe.load("ptr", fe.bytes_at("%ctx", context.THREADS))
        there = fe.op(f"icmp ne ptr {table}, null")
        much = fe.op(f"fcmp ogt double {work}, {float_literal(limits.least)}")
        fe.lines.append(f"  br i1 {fe.op(f'and i1 {there}, {much}')}, label %{split}, label %{whole}, !prof !1")
        fe.start(split)
        owns, own_bytes = self._owns()
        if self.columns:
            # Columns if there are many: what is read of them is then prepared once.
            self.across = fe.op(f"icmp sge i64 {self.nest.lead[1]}, {_WIDE * (limits.grain or self.columns)}")
        env = self._env(owns)
        code = self._run(owns, own_bytes, table, env, work)
        fe.branch(fe.op(f"icmp slt i32 {code}, 0"), whole, check)
        fe.start(check)
        self._stop_if(code)
        fe.jump(joined)
        fe.start(joined)
        shared = self._shared(owns, own_bytes, env)
        after = fe.block_name
        fe.jump(end)
        fe.start(whole)
        alone = self._whole()
        before = fe.block_name
        fe.jump(end)
        fe.start(end)
        return [fe.phi(t, (a, after), (b, before)) for t, a, b in zip(self.types, shared, alone, strict=True)]

    def _grain(self) -> int:
        """Pieces are whole strips or tiles, or at least lines of memory."""
        if limits.grain:
            return limits.grain
        if len(self.nest.extents) > 1:
            return 4
        return 64 if not any(op.regions for op in self.nest.region.ops) else 16

    def _work(self) -> str:
        fe = self.fe
        total = ""
        for term, time in self.estimate.work.items():
            product = float_literal(time)
            for extent in term:
                product = fe.op(f"fmul double {product}, {fe.op(f'sitofp i64 {fe.val(extent)} to double')}")
            total = fe.op(f"fadd double {total}, {product}") if total else product
        return total or float_literal(0.0)

    def _owns(self) -> tuple[list[_Own], str]:
        """Accumulators that pieces need of their own, and the bytes of all."""
        fe, found, total = self.fe, [], "0"
        for value in self.handles:
            handle = fe.handle(value)
            count = fe.count(handle.dims)
            bytes_ = fe.mul(count, str(element_size(handle.element)))
            if is_literal(bytes_):
                rounded = str((int(bytes_) + _LINE - 1) & -_LINE)
            else:
                rounded = fe.op(f"and i64 {fe.add(bytes_, str(_LINE - 1))}, {-_LINE}")
            found.append(_Own(handle, count, rounded, total))
            total = fe.add(total, rounded)
        return found, total

    def _whole(self) -> list[str]:
        """One call for all iterations."""
        fe = self.fe
        out = fe.alloca(f"[{len(self.types)} x i64]") if self.types else "null"
        ranges = [x for n in self.nest.lead[: 2 if self.columns else 1] for x in ("i64 0", f"i64 {n}")]
        args = ["ptr %ctx", *ranges, f"ptr {out}", *(f"{t} {n}" for t, n in self.arguments)]
        self._stop_if(fe.op(f"call i32 {self.name}({', '.join(args)})"))
        return [fe.load(t, fe.bytes_at(out, 8 * n)) for n, t in enumerate(self.types)]

    def _stop_if(self, code: str) -> None:
        fe = self.fe
        label = fe.label("failed")
        fe.cold.append(f"{label}:")
        fe.cold += ["  " + line for line in fe.fail_return(code)]
        fe.unless(fe.op(f"icmp ne i32 {code}, 0"), label)

    # Pieces --------------------------------------------------------------------------------------------------

    def _env(self, owns: list[_Own]) -> str:
        """What pieces are given, but for the head."""
        fe = self.fe
        passed = [*(("i64", own.bytes_) for own in owns), *self.arguments]
        if self.columns:
            passed = [("i1", self.across), *(("i64", n) for n in self.nest.lead), *passed]
        env = fe.alloca(f"[{HEAD // 8 + len(passed)} x i64]", 16)
        for k, (type_, name) in enumerate(passed):
            fe.store(type_, name, fe.bytes_at(env, HEAD + 8 * k))
        return env

    def _run(self, owns: list[_Own], own_bytes: str, table: str, env: str, work: str) -> str:
        """The call in pieces; its code, below 0 where there is but one piece."""
        fe = self.fe
        elements = "0"
        for own in owns:
            elements = fe.add(elements, own.count)
        cost = float_literal(0.0)
        if elements != "0":
            cost = fe.op(f"fmul double {fe.op(f'uitofp i64 {elements} to double')}, {float_literal(_ADDED)}")
        fe.module.need("aot.split")
        thunk = self.range.symbol.replace("@aot.r.", "@aot.p.")
        thunk = fe.module.share(thunk, self._thunk(thunk, len(owns), [o.handle.ptr for o in owns]))
        n, grain = self.nest.lead[0], str(self._grain())
        if self.columns:
            n = fe.op(f"select i1 {self.across}, i64 {self.nest.lead[1]}, i64 {n}")
            grain = fe.op(f"select i1 {self.across}, i64 {limits.grain or self.columns}, i64 {grain}")
        numbers = [n, grain, str(fe.module.threads), str(self.stride), own_bytes]
        args = ", ".join([f"ptr {table}", f"ptr {thunk}", f"ptr {env}", *(f"i64 {n}" for n in numbers)])
        return fe.op(f"call i32 @aot.split(ptr %ctx, {args}, double {work}, double {cost})")

    def _thunk(self, name: str, owns: int, own_names: list[str]) -> str:
        """`i32 f(ctx, env, piece)`: one piece."""
        lines = []
        for n, at in (("n", N), ("size", SIZE), ("pieces", PIECES), ("scratch", SCRATCH)):
            type_ = "ptr" if n == "scratch" else "i64"
            lines += [f"%{n}at = getelementptr i8, ptr %env, i64 {at}", f"%{n} = load {type_}, ptr %{n}at"]
        lines += [
            "%low = mul i64 %piece, %size", "%end = add i64 %low, %size",
            "%high = call i64 @llvm.smin.i64(i64 %end, i64 %n)", f"%outat = mul i64 %piece, {self.stride}",
            "%out = getelementptr i8, ptr %scratch, i64 %outat",
        ]  # fmt: skip
        self.fe.module.declare("declare i64 @llvm.smin.i64(i64, i64)")
        more = 3 if self.columns else 0
        types = ["i1", "i64", "i64"][:more] + ["i64"] * owns + [t for t, _ in self.arguments]
        for k, type_ in enumerate(types):
            lines += [
                f"%a{k} = getelementptr i8, ptr %env, i64 {HEAD + 8 * k}", f"%e{k} = load {type_}, ptr %a{k}",
            ]  # fmt: skip
        if owns:
            places = [more + owns + [name for _, name in self.arguments].index(own) for own in own_names]
            self.fe.module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
            lines += _own_lines(self.stride, places)
        passed = [f"%u{own_names.index(n)}" if n in own_names else f"%e{more + owns + k}" for k, (_, n) in
                  enumerate(self.arguments)]  # fmt: skip
        args = ["ptr %ctx", "i64 %low", "i64 %high", "ptr %out"]
        if self.columns:
            lines += [
                "%low0 = select i1 %e0, i64 0, i64 %low", "%high0 = select i1 %e0, i64 %e1, i64 %high",
                "%low1 = select i1 %e0, i64 %low, i64 0", "%high1 = select i1 %e0, i64 %high, i64 %e2",
            ]  # fmt: skip
            args[1:3] = ["i64 %low0", "i64 %high0", "i64 %low1", "i64 %high1"]
        args += [f"{t} {p}" for (t, _), p in zip(self.arguments, passed, strict=True)]
        lines += [f"%code = call i32 {self.name}({', '.join(args)})", "ret i32 %code"]
        body = "\n".join(line if line.endswith(":") else "  " + line for line in lines)
        return f"define internal i32 {name}(ptr %ctx, ptr %env, i64 %piece) #7 {{\nentry:\n{body}\n}}"

    def _shared(self, owns: list[_Own], own_bytes: str, env: str) -> list[str]:
        """What the pieces give, joined."""
        fe = self.fe
        if not owns and not self.types:
            return []
        scratch, pieces = fe.load("ptr", fe.bytes_at(env, SCRATCH)), fe.load("i64", fe.bytes_at(env, PIECES))
        first = fe.bytes_at(scratch, fe.mul(pieces, str(self.stride)))
        for own in owns:
            self._add(own, own_bytes, fe.bytes_at(first, own.before), fe.op(f"sub i64 {pieces}, 1"))
        joined = self._join(scratch, pieces) if self.types else []
        fe.module.need("aot.free")
        fe.do(f"call void @aot.free(ptr %ctx, ptr {scratch})")
        return joined

    def _add(self, own: _Own, own_bytes: str, at: str, more: str) -> None:
        """Add what the pieces behind the first have accumulated."""
        module, element = self.fe.module, own.handle.element
        symbol = f"@aot.add.{element.kind}"
        module.define(symbol, lambda: _adder(module, symbol, element))
        numbers = f"i64 {own.count}, i64 {own_bytes}, i64 {more}"
        self.fe.do(f"call void {symbol}(ptr {own.handle.ptr}, ptr {at}, {numbers})")

    def _join(self, scratch: str, pieces: str) -> list[str]:
        """The reductions of all pieces, in order."""
        fe = self.fe
        level = Level(fe, pieces, [s for r in self.reductions for s in r.starts(fe)])
        at = fe.bytes_at(scratch, fe.mul(level.index, str(self.stride)))
        found = [fe.load(t, fe.bytes_at(at, 8 * n)) for n, t in enumerate(self.types)]
        following: list[str] = []
        for r in self.reductions:
            here = slice(len(following), len(following) + r.width)
            following += _joined(fe, r, level.accumulators[here], found[here])
        level.close(fe, following, rolled=True)
        return level.accumulators


def _adder(module: ModuleText, symbol: str, element: Scalar) -> str:
    """`f(to, from, count, apart, more)`: add `count` elements of `more` arrays, each `apart` bytes behind the last."""
    text, t = ScalarText(module), memory_type(element)
    each = Row(text, "%more")
    part = text.bytes_at("%from", text.mul(each.index, "%apart"))
    row = Row(text, "%count")
    to, value = (text.op(f"getelementptr inbounds {t}, ptr {p}, i64 {row.index}") for p in ("%to", part))
    add = f"fadd {module.reduction_flags}{t}" if element.is_float else f"add {t}"
    text.store(t, text.op(f"{add} {text.load(t, to)}, {text.load(t, value)}"), to)
    row.close(text)
    each.close(text)
    params = "ptr noalias %to, ptr noalias readonly %from, i64 %count, i64 %apart, i64 %more"
    return f"define internal void {symbol}({params}) #6 {{\n{text.body()}\n  ret void\n}}"


def _own_lines(stride: int, places: list[int]) -> list[str]:
    """The accumulators of a piece: the real ones (`places` in what is given) for the first, else zeroed memory."""
    lines = ["%first = icmp eq i64 %piece, 0", "%behind = sub i64 %piece, 1", f"%ownat = mul i64 %pieces, {stride}"]
    total = "0"
    for k in range(len(places)):
        lines.append(f"%t{k} = add i64 {total}, %e{k}")
        total = f"%t{k}"
    lines += [f"%mineat = mul i64 %behind, {total}", "%off = add i64 %ownat, %mineat"]
    lines += ["%m0 = getelementptr i8, ptr %scratch, i64 %off"]
    lines += [f"%m{k} = getelementptr i8, ptr %m0, i64 %t{k - 1}" for k in range(1, len(places))]
    lines += [f"%u{k} = select i1 %first, ptr %e{place}, ptr %m{k}" for k, place in enumerate(places)]
    return [
        *lines, "br i1 %first, label %go, label %clear", "clear:",
        f"call void @llvm.memset.p0.i64(ptr align 64 %m0, i8 0, i64 {total}, i1 false)", "br label %go", "go:",
    ]  # fmt: skip


def _joined(fe: FunctionEmitter, r: Reduction, state: list[str], found: list[str]) -> list[str]:
    """Accumulators with those of later iterations."""
    return r.join(fe, state, found[0], found[1] if r.width == 2 else "0")
