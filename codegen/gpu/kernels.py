"""Kernel text: what a thread does, written by the emitter that CPUs have too.

A kernel is a graph function (`Spec`). Either one thread runs all of it, or its only operation is a `par` whose
iterations the threads of the grid share: thread t of T takes the iterations t, t + T, and so on. Map results are
stored at the iteration index. Threads add to accumulators atomically, to a copy in shared memory where that is small.
Reductions end in one value per block: each thread has its own, a tree in shared memory joins them; a kernel of `Fold`
joins those of the blocks, in an order that depends on nothing but their number.

Parameters, in order: those of the function, its results, the error word, scratch memory (see `plan.Kernel`). Arrays and
accumulators are a pointer and the sizes their type does not know; scalars come by value or, as "cell", from memory.
Results are pointers; those of reductions have one element per block (two pointers for argmax and argmin: the values,
the indices). A result in the buffer of a parameter has no pointer of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aotdiff.codegen.bufferize import Flow, analyse
from aotdiff.codegen.function import FunctionEmitter
from aotdiff.codegen.gpu import joins
from aotdiff.codegen.gpu.order import order
from aotdiff.codegen.gpu.plan import Kernel, Site
from aotdiff.codegen.gpu.target import GpuTarget
from aotdiff.codegen.loader import Options
from aotdiff.codegen.module import ModuleText
from aotdiff.codegen.par import Level, Map, Nest, Reduction, hint_slots, inner_sizes
from aotdiff.codegen.values import Buffer, Handle, Ref, element_size, llvm_type, memory_type

from aotdiff.ir.graph import Func, Loc, Module, Region, Value
from aotdiff.ir.types import Acc, Array, Scalar, dims_of

BLOCK = 256  # threads per block of a grid
PRIVATE_BLOCK = 32  # where each thread has memory of its own
COPY_ROOM = 1024  # elements of an accumulator that a block has a copy of
MOST_COPIES = 4
_STACK = 8192  # bytes of small arrays a thread keeps on its stack


@dataclass(slots=True)
class Spec:
    """A kernel as a graph function. passing: "value", "cell" or "array" (also accumulators) per parameter.

    grid: the body is one `par` and its `yield`. homes: results that are in the buffer of a parameter, which is written.
    private: accumulators of which each thread has a copy of its own, one after the other. replaced: accumulators each
    of whose elements at most one thread sets.
    """

    name: str
    func: Func
    passing: tuple[str, ...]
    grid: bool
    homes: dict[int, int] = field(default_factory=dict)
    writes: frozenset[int] = frozenset()
    private: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()

    @property
    def block(self) -> int:
        return PRIVATE_BLOCK if self.private else BLOCK if self.grid else 1


@dataclass(frozen=True, slots=True)
class Fold:
    """A kernel that joins one value per block: (kind, element) per reduction."""

    name: str
    reductions: tuple[tuple[str, str], ...]

    @property
    def block(self) -> int:
        return BLOCK


Known = dict[str, Kernel]  # kernels that are there, by their text without their name


class KernelModule(ModuleText):
    """Collects the kernels of one plan, whose names begin with `prefix`, and the error sites of their checks.

    A kernel is written once: `known` has those of other plans too, whose text is in the same module in the end.
    """

    target: GpuTarget

    def __init__(
        self, graph: Module, target: GpuTarget, options: Options, prefix: str = "", known: Known | None = None
    ):
        super().__init__(graph, target, options)
        self.prefix = prefix
        self.known: Known = {} if known is None else known
        self._used: set[str] = set()
        self.strips = False
        self.sites: dict[Site, int] = {}
        self.kernels: dict[str, Kernel] = {}

    def site(self, kind: str, loc: Loc | None, message: str, types: tuple[str, ...]) -> int:
        """Number of an error site."""
        where = loc or Loc("", 0, 0)
        return self.sites.setdefault(Site(kind, where.path, where.line, message, types), len(self.sites))

    def add(self, spec: Spec) -> Kernel:
        """Write a kernel; the name is made unique."""
        spec.name = self._free(self.prefix + spec.name)
        order(spec.func.body)
        flow = analyse(spec.func, self.summaries)
        return self._write(KernelEmitter(self, spec, flow))

    def fold(self, reductions: tuple[tuple[str, str], ...]) -> Kernel:
        """The kernel that joins the values of blocks."""
        name = self._free(f"{self.prefix}fold_" + "_".join(f"{kind}_{element}" for kind, element in reductions))
        return self._write(KernelEmitter(self, Fold(name, reductions), Flow({}, set(), {}, {})))

    def _free(self, stem: str) -> str:
        """A name that no kernel has had, written or not."""
        name, k = stem, 1
        while name in self._used:
            k += 1
            name = f"{stem}_{k}"
        self._used.add(name)
        return name

    def _write(self, emitter: KernelEmitter) -> Kernel:
        text = emitter.emit()
        made = emitter.kernel
        kernel = self.known.setdefault(text.replace(made.name, "@"), made)
        if kernel is made:
            self._functions.append(text)
        self.kernels[kernel.name] = kernel
        return kernel

    def text(self) -> str:
        """The whole module."""
        return self._assemble()


class KernelEmitter(FunctionEmitter):
    """Emits one kernel; `kernel` describes it afterwards."""

    module: KernelModule

    def __init__(self, module: KernelModule, spec: Spec | Fold, flow: Flow):
        func = spec.func if isinstance(spec, Spec) else Func(spec.name, Region(), [])
        super().__init__(module, func, flow, recursive=False)
        self.spec = spec
        self.target = module.target
        self.stack_room = _STACK
        self.params: list[str] = []
        self.kinds: list[str] = []
        self.shared = 0
        self.barriers = False
        self.scratch = False
        self.failed = False
        self.copies: list[tuple[str, Handle, str]] = []  # where a block has it, what it is a copy of, its size or 0
        self.kernel: Kernel

    def emit(self) -> str:
        self.fail_return = self._fail
        if isinstance(self.spec, Fold):
            self._fold(self.spec)
        elif self.spec.grid:
            self._grid(self.spec)
        else:
            self._single(self.spec)
        if self.failed:
            self.cold += ["stop:", "  br label %end"]
        self.scratch = any("%ctx" in line for part in (self.lines, self.cold) for line in part)
        if self.scratch:
            self._open_arena()
        params = [*self.params, "ptr %errors", *(["ptr %scratch", "i64 %arena"] if self.scratch else [])]
        spec, kinds = self.spec, tuple(self.kinds)
        exact = self.barriers or (isinstance(spec, Spec) and bool(spec.private))
        self.kernel = Kernel(spec.name, kinds, spec.block, self.shared, self.scratch, self.barriers, exact)
        return self.target.kernel(self, params)

    # Threads --------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        self.barriers = True
        self.target.barrier(self)

    def in_block(self, type_: str, count: int, size: int) -> str:
        """Memory that the threads of a block share."""
        ptr = self.target.shared(self, type_, count)
        self.shared += count * size
        return ptr

    def number(self) -> str:
        """Number of the thread in the grid."""
        thread = self.target.thread(self)
        first = self.op(f"mul nuw nsw i64 {self.target.block(self)}, {self.spec.block}")
        return self.op(f"add nuw nsw i64 {first}, {thread}")

    def _fail(self, code: str) -> list[str]:
        self.failed = True
        return ["br label %stop"]

    def _stop_if_failed(self) -> None:
        """Nothing to do where an earlier kernel, or another thread, has reported an error."""
        word = self.op("load atomic i64, ptr %errors monotonic, align 8")
        self.failed = True
        self.unless(self.op(f"icmp ne i64 {word}, 0"), "stop")

    def _open_arena(self) -> None:
        """The first step of a thread that allocates; `%ctx` is its arena."""
        self.module.need("aot.open")
        lines, self.lines = self.lines, []
        offset = self.op(f"mul i64 {self.number()}, %arena")
        self.do(f"%ctx = getelementptr i8, ptr %scratch, i64 {offset}")
        number = len(self.module.kernels)
        self.do(f"call void @aot.open(ptr %ctx, ptr %errors, i64 %arena, i64 {number})")
        self.lines += lines

    # Parameters -----------------------------------------------------------------------------------------------

    def _pass(self, text: str, kind: str) -> None:
        self.params.append(text)
        self.kinds.append(kind)

    def _parameters(self, spec: Spec) -> None:
        for i, (p, way) in enumerate(zip(spec.func.params, spec.passing, strict=True)):
            if isinstance(p.type, Scalar):
                self._scalar_parameter(i, p, p.type, way)
                continue
            assert isinstance(p.type, (Array, Acc)) and isinstance(p.type.element, Scalar)
            written = i in spec.writes or isinstance(p.type, Acc)
            self._pass(f"ptr {'noalias ' if written else 'noalias readonly '}%p{i}", "ptr")
            dims = self._sizes(f"%p{i}", dims_of(p.type))
            if isinstance(p.type, Acc):
                ptr, private = f"%p{i}", i in spec.private
                if private:
                    ptr = self.slot(ptr, p.type.element, self.mul(self.number(), self.count(dims)))
                replaced = i in spec.replaced
                shared = spec.grid and not private and not replaced
                self.bind(p, Handle(ptr, dims, p.type.element, shared=shared, replaced=replaced))
                continue
            buffer = self.own(Buffer(f"%p{i}", pinned=True)) if written else None
            self.bind(p, Ref(f"%p{i}", dims, p.type.element, buffer))

    def _scalar_parameter(self, i: int, param: Value, type_: Scalar, way: str) -> None:
        if way == "cell":
            self._pass(f"ptr noalias readonly %p{i}", "ptr")
            self.bind(param, self.load_element(type_, f"%p{i}"))
            return
        self._pass(f"{memory_type(type_)} %p{i}", type_.kind)
        self.bind(param, self.op(f"icmp ne i8 %p{i}, 0") if type_.kind == "bool" else f"%p{i}")

    def _sizes(self, name: str, known: Sequence[int | None]) -> tuple[str, ...]:
        dims = []
        for axis, size in enumerate(known):
            dims.append(str(size) if size is not None else f"{name}_{axis}")
            if size is None:
                self._pass(f"i64 {name}_{axis}", "i64")
        self.nonneg.update(dims)
        return tuple(dims)

    # One thread -----------------------------------------------------------------------------------------------

    def _single(self, spec: Spec) -> None:
        scope = self.enter(spec.func.body)
        self._stop_if_failed()
        self._parameters(spec)
        slots: list[tuple[Value, str, tuple[str, ...], int]] = []
        sizes: dict[int, tuple[str, ...]] = {}
        for j, value in enumerate(spec.func.body.yielded):
            if j in spec.homes:
                continue
            self._pass(f"ptr noalias %r{j}", "ptr")
            if isinstance(value.type, Array):
                sizes[j] = self._sizes(f"%r{j}", dims_of(spec.func.result_types[j]))
                slots.append((value, f"%r{j}", sizes[j], 1))
        hinted = hint_slots(self, spec.func.body, slots)
        self.run(scope)
        self._store(spec, sizes, hinted)
        self.jump("end")
        self.start("end")
        self.target.leave(self)

    def _store(self, spec: Spec, sizes: dict[int, tuple[str, ...]], hinted: set[str]) -> None:
        """Results into their places; what was built in place last, as others may still show it."""
        yielded = spec.func.body.yielded
        for j, value in sorted(enumerate(yielded), key=lambda pair: f"%r{pair[0]}" in hinted or pair[0] in spec.homes):
            found = self.env[value]
            if isinstance(found, str):
                assert isinstance(value.type, Scalar)
                self.store_element(value.type, found, f"%r{j}")
                continue
            assert isinstance(found, Ref)
            to = f"%p{spec.homes[j]}" if j in spec.homes else f"%r{j}"
            if found.ptr == "null":
                continue
            if j in sizes:
                self.check_same_dims(found.dims, sizes[j], unless_null=found.ptr)
            if found.ptr != to:
                self.copy_array(to, found)

    # Accumulators of a block ----------------------------------------------------------------------------------

    def _block_copies(self, spec: Spec) -> None:
        """Accumulators with few elements get a copy that the block shares, which starts as zeros."""
        for param in spec.func.params:
            handle = self.env[param]
            if not isinstance(handle, Handle) or not handle.shared or len(self.copies) == MOST_COPIES:
                continue
            size, thread = self.count(handle.dims), self.target.thread(self)
            room = self.in_block(memory_type(handle.element), COPY_ROOM, element_size(handle.element))
            fits = self.op(f"icmp ule i64 {size}, {COPY_ROOM}")
            limit = self.op(f"select i1 {fits}, i64 {size}, i64 0")
            level = Level(self, limit, [], self.spec.block, thread)
            zero = self.zero(handle.element.kind)
            self.store_element(handle.element, zero, self.slot(room, handle.element, level.index))
            level.close(self, [])
            ptr = self.op(f"select i1 {fits}, ptr {room}, ptr {handle.ptr}")
            self.bind(param, Handle(ptr, handle.dims, handle.element, shared=True))
            self.copies.append((room, handle, limit))
        if self.copies:
            self.barrier()

    def _add_copies(self) -> None:
        """What the block has added up goes where it belongs."""
        if self.copies:
            self.barrier()
        for room, handle, limit in self.copies:
            level = Level(self, limit, [], self.spec.block, self.target.thread(self))
            value = self.load_element(handle.element, self.slot(room, handle.element, level.index))
            at = self.slot(handle.ptr, handle.element, level.index)
            self.target.atomic_add(self, llvm_type(handle.element), at, value)
            level.close(self, [])

    # A grid -----------------------------------------------------------------------------------------------------

    def _grid(self, spec: Spec) -> None:
        *before, op, _ = spec.func.body.ops
        scope = self.enter(spec.func.body)
        self._parameters(spec)
        self._block_copies(spec)
        self._stop_if_failed()
        for k, each in enumerate(before):
            scope.index = k
            self.simple(each)
        scope.index = len(before)
        rank, region = op.attrs["rank"], op.regions[0]
        extents = [self.val(v) for v in op.operands[:rank]]
        lead = [self.clamp(e) for e in extents]
        mapped = [v for kind, v in zip(op.attrs["kinds"], region.yielded, strict=True) if kind == "map"]
        inner = inner_sizes(self, mapped, op.operands[rank:])
        maps, reductions = [], []
        sizes = iter(inner)
        places: list[str] = []
        for j, (kind, value, result) in enumerate(zip(op.attrs["kinds"], region.yielded, op.results, strict=True)):
            self._pass(f"ptr noalias %r{j}", "ptr")
            if kind == "map":
                assert isinstance(result.type, Array)
                slot = next(sizes)
                maps.append(Map(value, Ref(f"%r{j}", (*lead, *slot), result.type.element), slot))
                continue
            assert isinstance(value.type, Scalar)
            reductions.append((Reduction(kind, value.type), value))
            places.append(f"%r{j}")
            if kind.startswith("arg"):
                self._pass(f"ptr noalias %r{j}_at", "ptr")
                places.append(f"%r{j}_at")
        nest = Nest(op, region, extents, lead, maps, reductions)
        starts = [s for r, _ in reductions for s in r.starts(self)]
        state = self._spread(nest, starts)
        self._finish([r for r, _ in reductions], starts, state, places, self.target.block)

    def _spread(self, nest: Nest, starts: list[tuple[str, str]]) -> list[str]:
        """The iterations of this thread; gives its accumulators."""
        total = self.count(nest.lead)
        first = self.number()
        step = self.op(f"mul nuw nsw i64 {self.target.blocks(self)}, {self.spec.block}")
        level = Level(self, total, starts, step, first)
        at = self.target.opaque(self, level.index)
        self.nonneg.add(at)
        rest, indices = at, [""] * len(nest.lead)
        for r in range(len(nest.lead) - 1, 0, -1):
            indices[r] = self.op(f"urem i64 {rest}, {nest.lead[r]}")
            rest = self.op(f"udiv i64 {rest}, {nest.lead[r]}")
        if indices:
            indices[0] = rest
        for arg, index in zip(nest.region.args, indices, strict=True):
            self.env[arg] = index
            self.nonneg.add(index)
        level.close(self, nest.body(self, level.accumulators, at))
        return level.accumulators

    # Reductions -------------------------------------------------------------------------------------------------

    def _finish(
        self,
        reductions: list[Reduction],
        starts: list[tuple[str, str]],
        state: list[str],
        places: list[str],
        where: Callable[[KernelEmitter], str],
    ) -> None:
        """Join the accumulators of the threads and store those of the block; threads that failed take part."""
        before = self.block_name
        self.jump("end")
        self.start("end")
        merged = []
        for (type_, start), value in zip(starts, state, strict=True):
            incoming = f"[ {value}, %{before} ]" + (f", [ {start}, %stop ]" if self.failed else "")
            merged.append(self.op(f"phi {type_} {incoming}"))
        self._add_copies()
        if reductions:
            elements = [e for r in reductions for e in joins.elements(r)]
            joined = self._tree(reductions, merged)
            store, done = self.label("store"), self.label("stored")
            self.branch(self.op(f"icmp eq i64 {self.target.thread(self)}, 0"), store, done)
            self.start(store)
            at = where(self)
            for element, value, place in zip(elements, joined, places, strict=True):
                self.store_element(element, value, self.slot(place, element, at))
            self.jump(done)
            self.start(done)
        self.target.leave(self)

    def _tree(self, reductions: list[Reduction], state: list[str]) -> list[str]:
        """The accumulators of all threads of the block joined, in thread 0."""
        groups = joins.groups(reductions)
        first = [e for r in groups[0] for e in joins.elements(r)]
        types = [memory_type(e) for e in first] if len(groups) == 1 else ["i64"] * joins.ROOMS
        rooms = [self.in_block(t, self.spec.block, 8) for t in types]
        found: list[str] = []
        for group in groups:
            if found:
                self.barrier()  # all have read what the group before left
            width = sum(r.width for r in group)
            found += self._join_threads(group, rooms[:width], state[len(found) : len(found) + width])
        return found

    def _join_threads(self, reductions: list[Reduction], rooms: list[str], state: list[str]) -> list[str]:
        """A tree in shared memory, in which each accumulator has a room."""
        thread = self.target.thread(self)
        elements = [e for r in reductions for e in joins.elements(r)]
        own = [self.slot(room, e, thread) for room, e in zip(rooms, elements, strict=True)]
        for e, value, at in zip(elements, state, own, strict=True):
            self.store_element(e, value, at)
        width = self.spec.block // 2
        while width:
            self.barrier()
            lower, on = self.label("join"), self.label("joined")
            self.branch(self.op(f"icmp ult i64 {thread}, {width}"), lower, on)
            self.start(lower)
            other = self.op(f"add nuw nsw i64 {thread}, {width}")
            mine = [self.load_element(e, at) for e, at in zip(elements, own, strict=True)]
            there = [self.slot(room, e, other) for room, e in zip(rooms, elements, strict=True)]
            theirs = [self.load_element(e, at) for e, at in zip(elements, there, strict=True)]
            for e, value, at in zip(elements, joins.join(self, reductions, mine, theirs), own, strict=True):
                self.store_element(e, value, at)
            self.jump(on)
            self.start(on)
            width //= 2
        return [self.load_element(e, at) for e, at in zip(elements, own, strict=True)]

    def _fold(self, spec: Fold) -> None:
        """One block joins the values of `%n` blocks."""
        reductions = [Reduction(kind, Scalar(element)) for kind, element in spec.reductions]
        elements = [e for r in reductions for e in joins.elements(r)]
        self._pass("i64 %n", "i64")
        for which in ("p", "r"):
            for k in range(len(elements)):
                self._pass(f"ptr noalias {'readonly ' if which == 'p' else ''}%{which}{k}", "ptr")
        self._stop_if_failed()
        starts = [s for r in reductions for s in r.starts(self)]
        level = Level(self, "%n", starts, self.spec.block, self.target.thread(self))
        theirs = [self.load_element(e, self.slot(f"%p{k}", e, level.index)) for k, e in enumerate(elements)]
        level.close(self, joins.join(self, reductions, level.accumulators, theirs))
        self._finish(reductions, starts, level.accumulators, [f"%r{k}" for k in range(len(elements))], lambda _: "0")
