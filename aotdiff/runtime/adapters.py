"""Derivatives of a library's functions as native entries of their own, so that calls of them cost no Python.

Each is a small adapter around what is built (the function, its vjp, jvp and hvp by all float parameters): cotangents of
a gradient are 1, tangents that are not given are 0, results that are not asked for go into workspace, and a Hessian is
one hvp a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aotdiff.codegen.context import KIND_NUMBERS
from aotdiff.codegen.text import symbol
from aotdiff.codegen.values import MEMORY_TYPES, SIZES
from aotdiff.runtime import gradients
from aotdiff.runtime.function import Chain
from aotdiff.runtime.interface import Interface, Leaf, Refused, default_wrt, derive, float_results, leaves

_FORMS = ("vjp", "value_and_vjp", "jvp", "hvp", "hessian")
_NEEDS = {"grad": "_vjp", "vjp": "_vjp", "jvp": "_jvp", "hvp": "_hvp", "hessian": "_hvp"}


def base_of(form: str) -> str:
    return form.removeprefix("value_and_")


def chains(f: Interface, built: Mapping[str, str]) -> Iterator[tuple[str, Chain]]:
    """The derivatives that have an adapter, by the end of their native names; `built` has the ends that are there.

    Gradients by each float parameter and by all; the other forms by the first, which is what they are about when
    nothing is said.
    """
    yield from gradients.chains(f)
    if not all(isinstance(p.kind, Leaf) for p in f.parameters):
        return
    (name,) = default_wrt(f)
    for form in _FORMS:
        chain = ((form, (name,), False),)
        if _NEEDS[base_of(form)] in built and _is_plain(f, chain):
            yield f"{form}.{name}", chain


def _is_plain(f: Interface, chain: Chain) -> bool:
    """Whether the form exists, and takes numbers and arrays besides."""
    try:
        derived = derive(f, *chain[0])
    except Refused:
        return False
    return all(isinstance(p.kind, Leaf) for p in derived.parameters)


@dataclass(frozen=True, slots=True)
class _Value:
    """A number or an array in LLVM: its name, its type, its sizes."""

    name: str
    leaf: Leaf
    dims: tuple[str, ...]

    def given(self) -> list[str]:
        """As an argument."""
        return [f"{'ptr' if self.leaf.sizes else MEMORY_TYPES[self.leaf.element]} {self.name}", *self._sizes()]

    def result(self) -> list[str]:
        """As the place of a result."""
        return [f"ptr {self.name}", *self._sizes()]

    def _sizes(self) -> list[str]:
        return [f"i64 {d}" for d in self.dims]


def _value(name: str, leaf: Leaf) -> _Value:
    return _Value(name, leaf, tuple(f"{name}.{axis}" for axis in range(len(leaf.sizes))))


def adapter_text(f: Interface, name: str, chain: Chain, built: Mapping[str, str]) -> str:
    """LLVM text of the entry `name`; `built` has the native entries of f (which does not say `real`) by their ends."""
    return _Adapter(f, chain, built).text(name)


class _Adapter:
    def __init__(self, f: Interface, chain: Chain, built: Mapping[str, str]) -> None:
        ((self.form, self.names, _),) = chain
        self.built = built
        derived = derive(f, *chain[0])
        count = len(f.parameters)
        own = [p.kind for p in f.parameters]
        self.own = [_value(f"%p{k}", kind) for k, kind in enumerate(own) if isinstance(kind, Leaf)]
        self.floats = [(p.name, self.own[k]) for k, p in enumerate(f.parameters) if self.own[k].leaf.is_float]
        extra = [p.kind for p in derived.parameters[count:]]
        self.extra = [_value(f"%e{k}", kind) for k, kind in enumerate(extra) if isinstance(kind, Leaf)]
        values = list(leaves(f.result)) if self.form.startswith("value_and_") else []
        self.values = [_value(f"%v{k}", leaf) for k, leaf in enumerate(values)]
        self.results = [_value(f"%r{k}", leaf) for k, leaf in enumerate(list(leaves(derived.result))[len(values) :])]
        self.number = float_results(f.result)[0]
        self.lines: list[str] = []

    def text(self, name: str) -> str:
        if self.values:
            self._checked("v", self._call("", [], [x.result() for x in self.values]))
        base = base_of(self.form)
        if base == "hessian":
            self._hessian()
        else:
            call = self._call(_NEEDS[base], self._directions(base), self._places(base))
            self.lines += [f"  %code = {call}", "  ret i32 %code"]
        params = [x for value in (*self.own, *self.extra) for x in value.given()]
        params += [x for value in (*self.values, *self.results) for x in value.result()]
        head = f"define i32 {symbol(name)}({', '.join([*params, 'ptr %ctx'])}) nounwind {{"
        return "\n".join([head, *self.lines, "}", ""])

    def _call(self, end: str, directions: list[list[str]], places: list[list[str]]) -> str:
        own = [value.given() for value in self.own]
        passed = [x for part in (*own, *directions, *places) for x in part]
        return f"call i32 {symbol(self.built[end])}({', '.join([*passed, 'ptr %ctx'])}) noinline"  # one copy is enough

    def _directions(self, base: str) -> list[list[str]]:
        """What the entry takes besides: cotangents, or a tangent for each float parameter."""
        if base == "grad":
            assert isinstance(self.number, Leaf)
            return [[f"{MEMORY_TYPES[self.number.element]} 1.0"]]
        if base == "vjp":
            return [value.given() for value in self.extra]
        given = iter(self.extra)
        return [(next(given) if name in self.names else self._zero(value)).given() for name, value in self.floats]

    def _places(self, base: str) -> list[list[str]]:
        """Where the results of the entry go."""
        if base == "jvp":
            return [value.result() for value in self.results]
        wanted = dict(zip(self.names, self.results, strict=True))
        return [(wanted[name] if name in wanted else self._scratch(value)).result() for name, value in self.floats]

    # Memory ------------------------------------------------------------------------------------------------------

    def _scratch(self, of: _Value) -> _Value:
        """Memory for a result that nobody wants."""
        place = _Value(f"{of.name}.rest", of.leaf, of.dims)
        if not of.dims:
            self.lines.append(f"  {place.name} = alloca {MEMORY_TYPES[of.leaf.element]}")
        else:
            self._allocate(place.name, self._bytes(place.name, of))
        return place

    def _zero(self, of: _Value) -> _Value:
        """A tangent that is 0."""
        if not of.dims:
            return _Value("0.0", of.leaf, ())
        place = _Value(f"{of.name}.zero", of.leaf, of.dims)
        size = self._bytes(place.name, of)
        self._allocate(place.name, size)
        self.lines.append(f"  call void @llvm.memset.p0.i64(ptr {place.name}, i8 0, i64 {size}, i1 false)")
        return place

    def _bytes(self, stem: str, of: _Value) -> str:
        size = str(SIZES[of.leaf.element])
        for axis, d in enumerate(of.dims):
            self.lines.append(f"  {stem}.size{axis} = mul i64 {size}, {d}")
            size = f"{stem}.size{axis}"
        return size

    def _allocate(self, name: str, size: str) -> None:
        self.lines.append(f"  {name} = call ptr @aot.alloc(ptr %ctx, i64 {size})")
        self._found(name)

    def _found(self, name: str) -> None:
        """Refuse the call where there is no memory."""
        stem, number = name[1:], KIND_NUMBERS["MemoryError"]
        self.lines += [
            f"  {name}.none = icmp eq ptr {name}, null",
            f"  br i1 {name}.none, label %{stem}.lost, label %{stem}.got",
            f"{stem}.lost:",
            f"  {name}.code = call i32 @aotdiff.refused(ptr %ctx, i32 {number}, ptr @aotdiff.nomemory)",
            f"  ret i32 {name}.code",
            f"{stem}.got:",
        ]

    def _checked(self, stem: str, call: str) -> None:
        self.lines += [
            f"  %{stem}.code = {call}",
            f"  %{stem}.bad = icmp ne i32 %{stem}.code, 0",
            f"  br i1 %{stem}.bad, label %{stem}.failed, label %{stem}.fine",
            f"{stem}.failed:",
            f"  ret i32 %{stem}.code",
            f"{stem}.fine:",
        ]

    # Hessians ----------------------------------------------------------------------------------------------------

    def _hessian(self) -> None:
        """A row for each element of the parameter: the hvp with a one there.

        A call gives the workspace back, so what lasts over the rows is memory of our own: the direction, and for each
        other array a zero direction and a place for its results.
        """
        ((_, x),) = [(n, value) for n, value in self.floats if n in self.names]
        (h,) = self.results
        if not x.dims:
            one = _Value("1.0", x.leaf, ())
            directions = [(one if value is x else self._zero(value)).given() for _, value in self.floats]
            places = [(h if value is x else self._scratch(value)).result() for _, value in self.floats]
            self.lines += [f"  %code = {self._call('_hvp', directions, places)}", "  ret i32 %code"]
            return
        others = [value for _, value in self.floats if value is not x and value.dims]
        row = self._bytes("%unit", x)
        offsets, total = self._room(row, others)
        self.lines += [f"  %room.all = add i64 {total}, 1", "  %unit = call ptr @malloc(i64 %room.all)"]
        self._found("%unit")
        self.lines.append(f"  call void @llvm.memset.p0.i64(ptr %unit, i8 0, i64 {total}, i1 false)")
        for name, offset in offsets.items():
            self.lines.append(f"  {name} = getelementptr i8, ptr %unit, i64 {offset}")
        element, size = MEMORY_TYPES[x.leaf.element], SIZES[x.leaf.element]
        call = self._call(
            "_hvp", self._hessian_directions(x, "%unit", offsets), self._hessian_places(x, "%row", offsets)
        )
        self.lines += [
            "  br label %next",
            "next:",
            "  %at = phi i64 [ 0, %unit.got ], [ %at.next, %done ]",
            f"  %row = phi ptr [ {h.name}, %unit.got ], [ %row.next, %done ]",
            f"  %more = icmp ult i64 %at, {row}",
            "  br i1 %more, label %one, label %end",
            "one:",
            "  %here = getelementptr i8, ptr %unit, i64 %at",
            f"  store {element} 1.0, ptr %here",
            f"  %code = {call}",
            f"  store {element} 0.0, ptr %here",
            "  %bad = icmp ne i32 %code, 0",
            "  br i1 %bad, label %end, label %done",
            "done:",
            f"  %at.next = add i64 %at, {size}",
            f"  %row.next = getelementptr i8, ptr %row, i64 {row}",
            "  br label %next",
            "end:",
            "  %last = phi i32 [ 0, %next ], [ %code, %one ]",
            "  call void @free(ptr %unit)",
            "  ret i32 %last",
        ]

    def _room(self, row: str, others: list[_Value]) -> tuple[dict[str, str], str]:
        """Where in our memory the directions and results of other arrays are, and how much it is."""
        offsets, total = {}, row
        for value in others:
            for what in ("zero", "rest"):
                name = f"{value.name}.{what}"
                offsets[name] = total
                size = self._bytes(name, value)
                self.lines.append(f"  {name}.end = add i64 {total}, {size}")
                total = f"{name}.end"
        return offsets, total

    def _hessian_directions(self, x: _Value, unit: str, offsets: Mapping[str, str]) -> list[list[str]]:
        found = []
        for _, value in self.floats:
            name = f"{value.name}.zero" if f"{value.name}.zero" in offsets else "0.0"
            found.append(_Value(unit if value is x else name, value.leaf, value.dims).given())
        return found

    def _hessian_places(self, x: _Value, row: str, offsets: Mapping[str, str]) -> list[list[str]]:
        found = []
        for _, value in self.floats:
            name = f"{value.name}.rest"
            if value is not x and name not in offsets:
                self.lines.append(f"  {name} = alloca {MEMORY_TYPES[value.leaf.element]}")
            found.append(_Value(row if value is x else name, value.leaf, value.dims).result())
        return found
