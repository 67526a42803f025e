"""LLVM text of the entries that take Python objects: see `runtime.fastcall`, which says what they are."""

from __future__ import annotations

from typing import Any

from aotdiff.codegen import context as layout
from aotdiff.codegen.text import symbol
from aotdiff.runtime.fastcall import OFFSETS, SLOW, TABLE
from aotdiff.runtime.interface import Group, Interface, Kind, Leaf, Size, leaves

_ARRAY_DATA, _ARRAY_NDIM, _ARRAY_DIMS, _ARRAY_DESCR, _ARRAY_FLAGS = 16, 24, 32, 56, 64  # of a numpy array
_CONTIGUOUS_ALIGNED, _WRITABLE = 0x101, 0x400
_SIZES = {"f64": 8, "f32": 4, "i64": 8, "bool": 1}
_TYPE_NUMBERS = {"f64": 12, "f32": 11, "i64": 7, "bool": 0}  # numpy's, where long has 64 bits
_STORED = {"f64": "double", "f32": "float", "i64": "i64", "bool": "i8"}

# What is asked of every array, once: LLVM takes its time for each line.
# is_array: whether an object is a numpy array of these axes, this element and these flags. is_apart: whether memory
# overlaps none of some places, each a first address and one behind the last.
HELPERS = f"""
define internal i1 @aotdiff.is_array(ptr %object, ptr %type, i32 %rank, ptr %descr, i32 %wanted) noinline nounwind {{
  %typeat = getelementptr i8, ptr %object, i64 8
  %its = load ptr, ptr %typeat
  %array = icmp eq ptr %its, %type
  br i1 %array, label %look, label %no
look:
  %rankat = getelementptr i8, ptr %object, i64 {_ARRAY_NDIM}
  %axes = load i32, ptr %rankat
  %ranked = icmp eq i32 %axes, %rank
  %descrat = getelementptr i8, ptr %object, i64 {_ARRAY_DESCR}
  %element = load ptr, ptr %descrat
  %typed = icmp eq ptr %element, %descr
  %flagsat = getelementptr i8, ptr %object, i64 {_ARRAY_FLAGS}
  %flags = load i32, ptr %flagsat
  %set = and i32 %flags, %wanted
  %plain = icmp eq i32 %set, %wanted
  %both = and i1 %ranked, %typed
  %all = and i1 %both, %plain
  ret i1 %all
no:
  ret i1 false
}}
define internal i1 @aotdiff.is_apart(ptr %places, i64 %count, ptr %data, ptr %end) noinline nounwind {{
start:
  br label %loop
loop:
  %k = phi i64 [ 0, %start ], [ %next, %go ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %look, label %yes
look:
  %twice = shl i64 %k, 1
  %firstat = getelementptr ptr, ptr %places, i64 %twice
  %first = load ptr, ptr %firstat
  %lastat = getelementptr i8, ptr %firstat, i64 8
  %last = load ptr, ptr %lastat
  %before = icmp ule ptr %end, %first
  %behind = icmp uge ptr %data, %last
  %fine = or i1 %before, %behind
  br i1 %fine, label %go, label %no
go:
  %next = add i64 %k, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


def with_helpers(texts: list[str]) -> str:
    """The wrappers of a module, and what they call."""
    text = "\n".join(texts)
    return text + HELPERS if "@aotdiff.is_array" in text else text


def wrapper_text(f: Interface, entry: str, name: str, loops: bool) -> str | None:
    """LLVM text of the wrapper `name` around the native entry; None where it takes Python (tuples, solved sizes).

    `loops` says that the function may run for long: the GIL is released and Ctrl-C is looked for.
    """
    if any(isinstance(p.kind, Group) for p in f.parameters):
        return None
    try:
        return _Writer(f, entry, name, loops).text()
    except _NotPlain:
        return None


class _NotPlain(Exception):
    """A size that this wrapper does not compute."""


class _Writer:
    def __init__(self, f: Interface, entry: str, name: str, loops: bool) -> None:
        self.f = f
        self.entry = entry
        self.name = name
        self.loops = loops
        self.lines: list[str] = []
        self.count = 0
        self.sizes: dict[str, str] = {}
        self.passed: list[str] = []  # typed arguments of the entry
        self.block = "start"
        self.memory: list[tuple[str, str]] = []  # first and last address of each array, argument or output

    # Pieces -------------------------------------------------------------------------------------------------

    def put(self, line: str) -> None:
        self.lines.append("  " + line)

    def new(self, text: str) -> str:
        self.count += 1
        self.put(f"%v{self.count} = {text}")
        return f"%v{self.count}"

    def label(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def need(self, condition: str) -> None:
        """Go on only if the condition holds, else to Python."""
        go_on = self.label("ok")
        self.put(f"br i1 {condition}, label %{go_on}, label %slow")
        self.start(go_on)

    def at(self, pointer: str, offset: int) -> str:
        return self.new(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def load(self, type_: str, pointer: str, offset: int) -> str:
        return self.new(f"load {type_}, ptr {self.at(pointer, offset)}")

    def entry_of(self, name: str) -> str:
        return self.load("ptr", "%table", OFFSETS[name])

    def item_at(self, tuple_: str, k: int) -> str:
        """Where a tuple has an item: that depends on the version of Python."""
        first = self.load("i64", "%table", OFFSETS["tuple_items"])
        return self.at(self.new(f"getelementptr i8, ptr {tuple_}, i64 {first}"), 8 * k)

    def item(self, tuple_: str, k: int) -> str:
        return self.new(f"load ptr, ptr {self.item_at(tuple_, k)}")

    def api(self, name: str, result: str, *arguments: str) -> str:
        call = f"call {result} {self.entry_of(name)}({', '.join(arguments)})"
        if result == "void":
            self.put(call)
            return ""
        return self.new(call)

    # Parts --------------------------------------------------------------------------------------------------

    def text(self) -> str:
        count = len(self.f.parameters)
        self.put(f"%table = load ptr, ptr {self.at('%self', TABLE)}")
        given = self.new(f"and i64 %flags, {(1 << 63) - 1}")
        self.need(self.new(f"icmp eq i64 {given}, {count}"))
        outputs = self.outputs(count)
        for k, parameter in enumerate(self.f.parameters):
            assert isinstance(parameter.kind, Leaf)
            object_ = self.load("ptr", "%arguments", 8 * k)
            if parameter.kind.sizes:
                self.array(object_, parameter.kind, extra=k >= count - self.f.extra)
            else:
                self.scalar(object_, parameter.kind, parameter.name)
        self.call(outputs)
        self.start("slow")
        vectorcall = self.entry_of("PyObject_Vectorcall")
        target = self.load("ptr", "%self", SLOW)
        result = self.new(f"call ptr {vectorcall}(ptr {target}, ptr %arguments, i64 %flags, ptr %keywords)")
        self.put(f"ret ptr {result}")
        head = f"define ptr {symbol(self.name)}(ptr %self, ptr %arguments, i64 %flags, ptr %keywords) {{"
        return "\n".join([head, "start:", *self.lines, "}", ""])

    def outputs(self, count: int) -> list[str]:
        """The arrays given as `out`, one per result leaf (null where there is no `out`, the one keyword taken here)."""
        named, begin = self.label("named"), self.label("begin")
        plain = self.new("icmp eq ptr %keywords, null")
        before = self.block
        self.put(f"br i1 {plain}, label %{begin}, label %{named}")
        self.start(named)
        self.need(self.new(f"icmp eq i64 {self.load('i64', '%keywords', 16)}, 1"))
        self.need(self.new(f"icmp eq ptr {self.item('%keywords', 0)}, {self.entry_of('out')}"))
        found: list[str] = []
        self.nested(self.load("ptr", "%arguments", 8 * count), self.f.result, found)
        after = self.block
        self.put(f"br label %{begin}")
        self.start(begin)
        phis = [self.new(f"phi ptr [ null, %{before} ], [ {item}, %{after} ]") for item in found]
        self.put(f"%given = icmp eq i1 {plain}, false")
        return phis

    def nested(self, object_: str, kind: Kind, found: list[str]) -> None:
        """Take the tuples of `out` apart; scalars have None there."""
        if isinstance(kind, Leaf):
            if not kind.sizes:
                self.need(self.new(f"icmp eq ptr {object_}, {self.entry_of('none')}"))
            found.append(object_)
            return
        self.need(self.new(f"icmp eq ptr {self.load('ptr', object_, 8)}, {self.entry_of('PyTuple_Type')}"))
        self.need(self.new(f"icmp eq i64 {self.load('i64', object_, 16)}, {len(kind.items)}"))
        for k, item in enumerate(kind.items):
            self.nested(self.item(object_, k), item, found)

    def array(self, object_: str, leaf: Leaf, extra: bool) -> None:
        """Take an array apart: its data and sizes; those of an `extra` one are given by what it belongs to."""
        data, dims = self.plain_array(object_, leaf, _CONTIGUOUS_ALIGNED)
        self.passed.append(f"ptr {data}")
        values = [self.load("i64", dims, 8 * axis) for axis in range(len(leaf.sizes))]
        self.memory.append((data, self.end_of(data, leaf, values)))
        for size, value in zip(leaf.sizes, values, strict=True):
            self.passed.append(f"i64 {value}")
            if extra:
                self.need(self.new(f"icmp eq i64 {value}, {self.clamped(self.size(size))}"))
            elif isinstance(size, str):
                self.sizes.setdefault(size, value)

    def end_of(self, data: str, leaf: Leaf, sizes: list[str]) -> str:
        """The address behind an array."""
        total = str(_SIZES[leaf.element])
        for size in sizes:
            total = self.new(f"mul i64 {total}, {size}")
        return self.new(f"getelementptr i8, ptr {data}, i64 {total}")

    def plain_array(self, object_: str, leaf: Leaf, wanted: int) -> tuple[str, str]:
        """Data and dimensions of a numpy array of the right type with these flags."""
        kind = f"ptr {self.entry_of('PyArray_Type')}, i32 {len(leaf.sizes)}, ptr {self.entry_of(leaf.element)}"
        self.need(self.new(f"call i1 @aotdiff.is_array(ptr {object_}, {kind}, i32 {wanted})"))
        return self.load("ptr", object_, _ARRAY_DATA), self.load("ptr", object_, _ARRAY_DIMS)

    def scalar(self, object_: str, leaf: Leaf, name: str) -> None:
        type_ = self.load("ptr", object_, 8)
        if leaf.element == "bool":
            yes = self.new(f"icmp eq ptr {object_}, {self.entry_of('true')}")
            no = self.new(f"icmp eq ptr {object_}, {self.entry_of('false')}")
            self.need(self.new(f"or i1 {yes}, {no}"))
            self.passed.append(f"i8 {self.new(f'zext i1 {yes} to i8')}")
        elif leaf.element == "i64":
            self.need(self.new(f"icmp eq ptr {type_}, {self.entry_of('PyLong_Type')}"))
            value = self.api("PyLong_AsLongLong", "i64", f"ptr {object_}")
            self.no_error(self.new(f"icmp eq i64 {value}, -1"))
            self.passed.append(f"i64 {value}")
            self.sizes[name] = value
        else:
            self.floating(object_, type_, leaf.element)

    def floating(self, object_: str, type_: str, element: str) -> None:
        """An exact float (or, for f64, a numpy scalar, which is laid out alike), or an exact int."""
        is_float, is_int, join = self.label("float"), self.label("int"), self.label("number")
        exact = self.new(f"icmp eq ptr {type_}, {self.entry_of('PyFloat_Type')}")
        if element == "f64":
            scalar = self.new(f"icmp eq ptr {type_}, {self.entry_of('Float64_Type')}")
            exact = self.new(f"or i1 {exact}, {scalar}")
        self.put(f"br i1 {exact}, label %{is_float}, label %{is_int}")
        self.start(is_float)
        direct = self.load("double", object_, 16)
        self.put(f"br label %{join}")
        self.start(is_int)
        self.need(self.new(f"icmp eq ptr {type_}, {self.entry_of('PyLong_Type')}"))
        value = self.api("PyLong_AsDouble", "double", f"ptr {object_}")
        self.no_error(self.new(f"fcmp oeq double {value}, -1.0"))
        last = self.lines[-1].rstrip(":")
        self.put(f"br label %{join}")
        self.start(join)
        number = self.new(f"phi double [ {direct}, %{is_float} ], [ {value}, %{last} ]")
        if element == "f32":
            number = self.new(f"fptrunc double {number} to float")
        self.passed.append(f"{_STORED[element]} {number}")

    def no_error(self, suspicious: str) -> None:
        """A conversion that failed is Python's to report."""
        ask, clear, fine = self.label("ask"), self.label("clear"), self.label("fine")
        self.put(f"br i1 {suspicious}, label %{ask}, label %{fine}")
        self.start(ask)
        failed = self.new(f"icmp ne ptr {self.api('PyErr_Occurred', 'ptr')}, null")
        self.put(f"br i1 {failed}, label %{clear}, label %{fine}")
        self.start(clear)
        self.api("PyErr_Clear", "void")
        self.put("br label %slow")
        self.start(fine)

    def call(self, outputs: list[str]) -> None:
        """Make the results or take those given, call the entry, build what is returned."""
        results = list(leaves(self.f.result))
        shapes = [[self.clamped(self.size(s)) for s in leaf.sizes] for leaf in results]
        slot = self.entry_of("slot")
        context = self.new(f"load ptr, ptr {slot}")
        self.need(self.new(f"icmp ne ptr {context}, null"))
        made = self.storage(results, shapes, outputs)
        self.put(f"store ptr null, ptr {slot}")
        failed = self.run(context)
        bad, good = self.label("bad"), self.label("good")
        self.put(f"br i1 {failed}, label %{bad}, label %{good}")
        self.start(bad)
        for leaf, place in zip(results, made, strict=True):
            if leaf.sizes:
                self.api("Py_DecRef", "void", f"ptr {place}")
        self.api("PyObject_CallNoArgs", "ptr", f"ptr {self.entry_of('fail')}")
        self.put("ret ptr null")
        self.start(good)
        self.put(f"store ptr {context}, ptr {slot}")
        self.put(f"ret ptr {self.build(self.f.result, iter(zip(results, made, strict=True)))}")

    def run(self, context: str) -> str:
        """The call itself; gives an i1: whether it failed."""
        arguments = ", ".join([*self.passed, f"ptr {context}"])
        place = self.at(context, layout.INTERRUPT)
        if not self.loops:
            self.put(f"store ptr null, ptr {place}")
            status = self.new(f"call i32 {symbol(self.entry)}({arguments})")
            return self.new(f"icmp ne i32 {status}, 0")
        here = self.api("PyThreadState_Get", "ptr")
        main = self.new(f"icmp eq ptr {here}, {self.entry_of('main')}")
        self.put(f"%unused = select i1 {main}, ptr {self.entry_of('flag')}, ptr %nobody")
        self.put("store i32 0, ptr %unused")
        polled = self.new(f"select i1 {main}, ptr {self.entry_of('flag')}, ptr null")
        self.put(f"store ptr {polled}, ptr {place}")
        saved = self.api("PyEval_SaveThread", "ptr")
        status = self.new(f"call i32 {symbol(self.entry)}({arguments})")
        self.api("PyEval_RestoreThread", "void", f"ptr {saved}")
        self.lines.insert(0, "  %nobody = alloca i32")
        return self.new(f"icmp ne i32 {status}, 0")

    def storage(self, results: list[Leaf], shapes: list[list[str]], outputs: list[str]) -> list[str]:
        """Where each result goes, passed to the entry: a place for a scalar, an array (a reference of ours)."""
        arrays = [k for k, leaf in enumerate(results) if leaf.sizes]
        taken, made = {}, {}
        if arrays:
            take, make, join = self.label("take"), self.label("make"), self.label("join")
            self.put(f"br i1 %given, label %{take}, label %{make}")
            self.start(take)
            taken = self.take(arrays, results, shapes, outputs)
            after_take = self.block
            self.put(f"br label %{join}")
            self.start(make)
            for k in arrays:
                made[k] = self.fresh(results[k], shapes[k], list(made.values()))
            after_make = self.block
            self.put(f"br label %{join}")
            self.start(join)
            for k in arrays:
                made[k] = self.new(f"phi ptr [ {taken[k]}, %{after_take} ], [ {made[k]}, %{after_make} ]")
        for k, leaf in enumerate(results):
            if leaf.sizes:
                data = self.load("ptr", made[k], _ARRAY_DATA)
                self.passed += [f"ptr {data}", *(f"i64 {size}" for size in shapes[k])]
            else:
                made[k] = self.place(_STORED[leaf.element])
                self.passed.append(f"ptr {made[k]}")
        return [made[k] for k in range(len(results))]

    def place(self, type_: str) -> str:
        """Memory of the call's own."""
        self.count += 1
        self.lines.insert(0, f"  %place{self.count} = alloca {type_}")
        return f"%place{self.count}"

    def note(self, places: str, n: int, first: str, last: str) -> None:
        """Add to the memory that outputs may not overlap."""
        self.put(f"store ptr {first}, ptr {self.at(places, 16 * n)}")
        self.put(f"store ptr {last}, ptr {self.at(places, 16 * n + 8)}")

    def take(
        self, arrays: list[int], results: list[Leaf], shapes: list[list[str]], outputs: list[str]
    ) -> dict[int, str]:
        """Check the arrays given: their type, their sizes, that they overlap nothing."""
        places = self.place(f"[{2 * (len(self.memory) + len(arrays))} x ptr]")
        for n, (first, last) in enumerate(self.memory):
            self.note(places, n, first, last)
        for n, k in enumerate(arrays, len(self.memory)):
            data, dims = self.plain_array(outputs[k], results[k], _CONTIGUOUS_ALIGNED | _WRITABLE)
            for axis, size in enumerate(shapes[k]):
                self.need(self.new(f"icmp eq i64 {self.load('i64', dims, 8 * axis)}, {size}"))
            end = self.end_of(data, results[k], shapes[k])
            self.need(self.new(f"call i1 @aotdiff.is_apart(ptr {places}, i64 {n}, ptr {data}, ptr {end})"))
            self.note(places, n, data, end)
        for k in arrays:
            self.api("Py_IncRef", "void", f"ptr {outputs[k]}")
        return {k: outputs[k] for k in arrays}

    def fresh(self, leaf: Leaf, shape: list[str], earlier: list[str]) -> str:
        """A new array; without memory for it, Python says so."""
        dims = self.place(f"[{len(shape)} x i64]")
        for axis, size in enumerate(shape):
            self.put(f"store i64 {size}, ptr {self.at(dims, 8 * axis)}")
        kind = f"ptr {self.entry_of('PyArray_Type')}, i32 {len(shape)}, ptr {dims}, i32 {_TYPE_NUMBERS[leaf.element]}"
        array = self.api("PyArray_New", "ptr", kind, "ptr null, ptr null, i32 0, i32 0, ptr null")
        lost, fine = self.label("lost"), self.label("fine")
        self.put(f"br i1 {self.new(f'icmp eq ptr {array}, null')}, label %{lost}, label %{fine}")
        self.start(lost)
        self.api("PyErr_Clear", "void")
        for other in earlier:
            self.api("Py_DecRef", "void", f"ptr {other}")
        self.put("br label %slow")
        self.start(fine)
        return array

    def build(self, kind: Kind, results: Any) -> str:
        """The Python object of a result (no memory for it: whatever was made is lost with it)."""
        if isinstance(kind, Group):
            items = [self.build(item, results) for item in kind.items]
            made = self.api("PyTuple_New", "ptr", f"i64 {len(items)}")
            for k, item in enumerate(items):
                self.put(f"store ptr {item}, ptr {self.item_at(made, k)}")
            return made
        leaf, place = next(results)
        if leaf.sizes:
            return place
        value = self.new(f"load {_STORED[leaf.element]}, ptr {place}")
        if leaf.element == "i64":
            return self.api("PyLong_FromLongLong", "ptr", f"i64 {value}")
        if leaf.element == "bool":
            true, false = self.entry_of("true"), self.entry_of("false")
            chosen = self.new(f"select i1 {self.new(f'icmp ne i8 {value}, 0')}, ptr {true}, ptr {false}")
            self.api("Py_IncRef", "void", f"ptr {chosen}")
            return chosen
        if leaf.element == "f32":
            value = self.new(f"fpext float {value} to double")
        return self.api("PyFloat_FromDouble", "ptr", f"double {value}")

    # Sizes --------------------------------------------------------------------------------------------------

    def size(self, size: Size) -> str:
        if isinstance(size, int):
            return str(size)
        if isinstance(size, str):
            if size not in self.sizes:
                raise _NotPlain
            return self.sizes[size]
        op, left, right = size
        if op not in "+-*" and not isinstance(right, int):
            raise _NotPlain
        a, b = self.size(left), self.size(right)
        if op in "+-*":
            return self.new(f"{ {'+': 'add', '-': 'sub', '*': 'mul'}[op] } i64 {a}, {b}")
        if int(b) <= 0:
            raise _NotPlain
        rest = self.new(f"srem i64 {a}, {b}")
        below = self.new(f"icmp slt i64 {rest}, 0")
        rest = self.new(f"select i1 {below}, i64 {self.new(f'add i64 {rest}, {b}')}, i64 {rest}")
        if op == "%":
            return rest
        return self.new(f"sdiv i64 {self.new(f'sub i64 {a}, {rest}')}, {b}")

    def clamped(self, size: str) -> str:
        """Sizes below 0 are native code's to refuse."""
        return self.new(f"call i64 @llvm.smax.i64(i64 {size}, i64 0)")
