"""Native paths of tensors: recording plain calls, and walking back along a chain of them.

Both do what `recorded.call` and `engine.Walk` do in Python, for the common case, with the objects' slots read and
written directly; whatever is not plain is left to Python.

- `aotdiff.tensor.call` takes the place of a function's fast call once it has been called with tensors. It passes the
  tensors' data to the wrapper and makes the result's tensor and node. Beyond it: more than four parameters, a changed
  argument, a rule that keeps shapes, recording switched off in some thread.
- `scan` follows calls with one tracked argument from a node to where somebody else uses what comes next: a node whose
  only references are the edge it was reached by and tensors that the same call keeps has no other user.
- `run` goes back along the calls that `scan` found.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from aotdiff.runtime import cache, fastcall, gradmode
from aotdiff.runtime.graph_nodes import Node
from aotdiff.runtime.tensor import Tensor

LIMIT = 4  # parameters of a plain call
_ITEMS = tuple.__basicsize__  # where a tuple has its items
_LIST_ITEMS = 24  # where a list has the pointer to them
_TABLE = (
    "Tensor", "Node", "CallRule", "Hole", "None", "True", "zero", "float", "ndarray", "f64", "off", "finish", "freed",
    "Py_IncRef", "Py_DecRef", "PyTuple_New", "PyList_New", "PyList_Append", "PyType_GenericAlloc",
    "PyObject_Vectorcall",
)  # fmt: skip

_CALL = """
define ptr @"aotdiff.tensor.call"(ptr %self, ptr %arguments, i64 %flags, ptr %keywords) {
start:
  %raw = alloca [6 x ptr]
  %all = alloca [6 x ptr]
  %rules.at = getelementptr i8, ptr %self, i64 [RULES]
  %rules = load ptr, ptr %rules.at
  %generic = load i64, ptr %rules
  %wrapper.at = getelementptr i8, ptr %self, i64 [WRAPPER]
  %wrapper = load ptr, ptr %wrapper.at
  %count = and i64 %flags, 9223372036854775807
  %few = icmp ule i64 %count, [LIMIT]
  %positional = icmp eq ptr %keywords, null
  %plain = and i1 %few, %positional
  br i1 %plain, label %scan, label %whole

scan:
  %k = phi i64 [ 0, %start ], [ %k.next, %scan.next ]
  %mask = phi i64 [ 0, %start ], [ %mask.next, %scan.next ]
  %tensors = phi i1 [ false, %start ], [ %tensors.next, %scan.next ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %argument, label %scanned
argument:
  %a.at = getelementptr ptr, ptr %arguments, i64 %k
  %a = load ptr, ptr %a.at
  %a.is = call i1 @is(ptr %a, i64 [Tensor])
  %place = getelementptr ptr, ptr %raw, i64 %k
  br i1 %a.is, label %tensor, label %other
other:
  store ptr %a, ptr %place
  br label %scan.next
tensor:
  %data = call ptr @slot(ptr %a, i64 [_data])
  store ptr %data, ptr %place
  %needs = call ptr @slot(ptr %a, i64 [_needs])
  %true = call ptr @entry(i64 [True])
  %tracked = icmp eq ptr %needs, %true
  %bit = shl i64 1, %k
  %add = select i1 %tracked, i64 %bit, i64 0
  %mask.more = or i64 %mask, %add
  %data.float = call i1 @is(ptr %data, i64 [float])
  %specific = icmp eq i64 %generic, 0
  %typed = or i1 %data.float, %specific
  br i1 %typed, label %scan.next, label %array
array:
  %data.array = call i1 @is(ptr %data, i64 [ndarray])
  br i1 %data.array, label %described, label %whole
described:
  %dtype = call ptr @slot(ptr %data, i64 56)
  %f64 = call ptr @entry(i64 [f64])
  %right = icmp eq ptr %dtype, %f64
  br i1 %right, label %scan.next, label %whole
scan.next:
  %mask.next = phi i64 [ %mask, %other ], [ %mask.more, %tensor ], [ %mask.more, %described ]
  %tensors.next = phi i1 [ %tensors, %other ], [ true, %tensor ], [ true, %described ]
  %k.next = add i64 %k, 1
  br label %scan
scanned:
  br i1 %tensors, label %compute, label %whole
whole:
  %result = call ptr %wrapper(ptr %self, ptr %arguments, i64 %flags, ptr %keywords)
  ret ptr %result

compute:
  %made = call ptr %wrapper(ptr %self, ptr %raw, i64 %count, ptr null)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %nothing, label %computed
nothing:
  ret ptr null
computed:
  %made.float = call i1 @is(ptr %made, i64 [float])
  %made.array = call i1 @is(ptr %made, i64 [ndarray])
  %known = or i1 %made.float, %made.array
  br i1 %known, label %simple, label %finish
simple:
  %untracked = icmp eq i64 %mask, 0
  br i1 %untracked, label %bare, label %switched
bare:
  %none = call ptr @entry(i64 [None])
  %alone = call ptr @tensor(ptr %made, ptr %none)
  ret ptr %alone
switched:
  %off.at = call ptr @entry(i64 [off])
  %off = load i64, ptr %off.at
  %on = icmp eq i64 %off, 0
  br i1 %on, label %ruled, label %finish
ruled:
  %rule.index = mul i64 %mask, 2
  %rule.at = getelementptr i64, ptr %rules, i64 %rule.index
  %rule = load ptr, ptr %rule.at
  %kept.at = getelementptr i64, ptr %rule.at, i64 1
  %kept = load i64, ptr %kept.at
  %missing = icmp eq ptr %rule, null
  br i1 %missing, label %finish, label %record

record:
  %saved = call ptr @new_tuple(i64 %count)
  %tracked.count = call i64 @llvm.ctpop.i64(i64 %mask)
  %edges = call ptr @new_tuple(i64 %tracked.count)
  %saved.lost = icmp eq ptr %saved, null
  %edges.lost = icmp eq ptr %edges, null
  %lost = or i1 %saved.lost, %edges.lost
  br i1 %lost, label %nothing, label %fill
fill:
  %i = phi i64 [ 0, %record ], [ %i.next, %fill.next ]
  %e = phi i64 [ 0, %record ], [ %e.next, %fill.next ]
  %filling = icmp ult i64 %i, %count
  br i1 %filling, label %item, label %filled
item:
  %b.at = getelementptr ptr, ptr %arguments, i64 %i
  %b = load ptr, ptr %b.at
  %kept.shifted = lshr i64 %kept, %i
  %kept.bit = and i64 %kept.shifted, 1
  %is.kept = icmp ne i64 %kept.bit, 0
  br i1 %is.kept, label %keep, label %drop
drop:
  %zero = call ptr @entry(i64 [zero])
  br label %save
keep:
  %b.tensor = call i1 @is(ptr %b, i64 [Tensor])
  br i1 %b.tensor, label %versioned, label %constant
versioned:
  %cell = call ptr @slot(ptr %b, i64 [_cell])
  %no.cell = call ptr @entry(i64 [None])
  %unchanged = icmp eq ptr %cell, %no.cell
  br i1 %unchanged, label %save, label %unfit
constant:
  %b.float = call i1 @is(ptr %b, i64 [float])
  br i1 %b.float, label %save, label %unfit
save:
  %item.new = phi ptr [ %zero, %drop ], [ %b, %versioned ], [ %b, %constant ]
  call void @put(ptr %saved, i64 %i, ptr %item.new)
  %mask.shifted = lshr i64 %mask, %i
  %mask.bit = and i64 %mask.shifted, 1
  %is.tracked = icmp ne i64 %mask.bit, 0
  br i1 %is.tracked, label %link, label %fill.next
link:
  %came = call ptr @slot(ptr %b, i64 [_node])
  %leaf.mark = call ptr @entry(i64 [None])
  %is.leaf = icmp eq ptr %came, %leaf.mark
  %edge = select i1 %is.leaf, ptr %b, ptr %came
  call void @put(ptr %edges, i64 %e, ptr %edge)
  %e.more = add i64 %e, 1
  br label %fill.next
fill.next:
  %e.next = phi i64 [ %e, %save ], [ %e.more, %link ]
  %i.next = add i64 %i, 1
  br label %fill
unfit:
  call void @release(ptr %saved)
  call void @release(ptr %edges)
  br label %finish
filled:
  %node = call ptr @new_object(i64 [Node])
  %node.lost = icmp eq ptr %node, null
  br i1 %node.lost, label %nothing, label %noded
noded:
  call void @set_slot(ptr %node, i64 [rule], ptr %rule)
  call void @give_slot(ptr %node, i64 [saved], ptr %saved)
  call void @give_slot(ptr %node, i64 [edges], ptr %edges)
  %unset = call ptr @entry(i64 [None])
  call void @set_slot(ptr %node, i64 [versions], ptr %unset)
  call void @set_slot(ptr %node, i64 [shapes], ptr %unset)
  call void @set_slot(ptr %node, i64 [likes], ptr %unset)
  call void @set_slot(ptr %node, i64 [watch], ptr %unset)
  %recorded = call ptr @tensor(ptr %made, ptr %node)
  call void @release(ptr %node)
  ret ptr %recorded

finish:
  store ptr %self, ptr %all
  %all.made = getelementptr ptr, ptr %all, i64 1
  store ptr %made, ptr %all.made
  %all.rest = getelementptr ptr, ptr %all, i64 2
  %bytes = mul i64 %count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %all.rest, ptr %arguments, i64 %bytes, i1 false)
  %total = add i64 %count, 2
  %finisher = call ptr @entry(i64 [finish])
  %vectorcall = call ptr @entry(i64 [PyObject_Vectorcall])
  %finished = call ptr %vectorcall(ptr %finisher, ptr %all, i64 %total, ptr null)
  call void @release(ptr %made)
  ret ptr %finished
}
"""

_PARTS = """
@table = internal global ptr null

define void @"aotdiff.tensor.bind"(ptr %entries) {
  store ptr %entries, ptr @table
  ret void
}

define internal ptr @entry(i64 %offset) alwaysinline {
  %base = load ptr, ptr @table
  %at = getelementptr i8, ptr %base, i64 %offset
  %value = load ptr, ptr %at
  ret ptr %value
}

define internal i1 @is(ptr %object, i64 %type) alwaysinline {
  %at = getelementptr i8, ptr %object, i64 8
  %have = load ptr, ptr %at
  %want = call ptr @entry(i64 %type)
  %same = icmp eq ptr %have, %want
  ret i1 %same
}

define internal ptr @slot(ptr %object, i64 %offset) alwaysinline {
  %at = getelementptr i8, ptr %object, i64 %offset
  %value = load ptr, ptr %at
  ret ptr %value
}

define internal void @hold(ptr %object) alwaysinline {
  %f = call ptr @entry(i64 [Py_IncRef])
  call void %f(ptr %object)
  ret void
}

define internal void @release(ptr %object) alwaysinline {
  %f = call ptr @entry(i64 [Py_DecRef])
  call void %f(ptr %object)
  ret void
}

define internal void @give_slot(ptr %object, i64 %offset, ptr %value) alwaysinline {
  %at = getelementptr i8, ptr %object, i64 %offset
  store ptr %value, ptr %at
  ret void
}

define internal void @set_slot(ptr %object, i64 %offset, ptr %value) alwaysinline {
  call void @hold(ptr %value)
  call void @give_slot(ptr %object, i64 %offset, ptr %value)
  ret void
}

define internal void @put(ptr %tuple, i64 %k, ptr %value) alwaysinline {
  %shift = mul i64 %k, 8
  %offset = add i64 %shift, [ITEMS]
  call void @set_slot(ptr %tuple, i64 %offset, ptr %value)
  ret void
}

define internal ptr @new_tuple(i64 %count) alwaysinline {
  %f = call ptr @entry(i64 [PyTuple_New])
  %made = call ptr %f(i64 %count)
  ret ptr %made
}

define internal ptr @new_object(i64 %type) alwaysinline {
  %f = call ptr @entry(i64 [PyType_GenericAlloc])
  %t = call ptr @entry(i64 %type)
  %made = call ptr %f(ptr %t, i64 0)
  ret ptr %made
}

define internal ptr @tensor(ptr %data, ptr %node) {
  %made = call ptr @new_object(i64 [Tensor])
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %out, label %fill
fill:
  %none = call ptr @entry(i64 [None])
  %leaf = icmp eq ptr %node, %none
  %true = call ptr @entry(i64 [True])
  %false = call ptr @entry(i64 [False])
  %needs = select i1 %leaf, ptr %false, ptr %true
  call void @give_slot(ptr %made, i64 [_data], ptr %data)
  call void @set_slot(ptr %made, i64 [_node], ptr %node)
  call void @set_slot(ptr %made, i64 [_needs], ptr %needs)
  call void @set_slot(ptr %made, i64 [_cell], ptr %none)
  call void @set_slot(ptr %made, i64 [_grad], ptr %none)
  call void @set_slot(ptr %made, i64 [_hooks], ptr %none)
  br label %out
out:
  ret ptr %made
}

declare i64 @llvm.ctpop.i64(i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

_SCAN = """
define ptr @"aotdiff.tensor.scan"(ptr %self, ptr %arguments, i64 %count) {
start:
  %root = load ptr, ptr %arguments
  %new_list = call ptr @entry(i64 [PyList_New])
  %list = call ptr %new_list(i64 0)
  %none = call ptr @entry(i64 [None])
  %true = call ptr @entry(i64 [True])
  %lost = icmp eq ptr %list, null
  br i1 %lost, label %nothing, label %look
nothing:
  ret ptr null

look:
  %node = phi ptr [ %root, %start ], [ %edge, %alone ]
  %is.node = call i1 @is(ptr %node, i64 [Node])
  br i1 %is.node, label %noded, label %stop
noded:
  %rule = call ptr @slot(ptr %node, i64 [rule])
  %is.call = call i1 @is(ptr %rule, i64 [CallRule])
  br i1 %is.call, label %called, label %stop
called:
  %chained = call ptr @slot(ptr %rule, i64 [chained])
  %is.chained = icmp eq ptr %chained, %true
  %watch = call ptr @slot(ptr %node, i64 [watch])
  %unwatched = icmp eq ptr %watch, %none
  %shapes = call ptr @slot(ptr %node, i64 [shapes])
  %shapeless = icmp eq ptr %shapes, %none
  %versions = call ptr @slot(ptr %node, i64 [versions])
  %unversioned = icmp eq ptr %versions, %none
  %saved = call ptr @slot(ptr %node, i64 [saved])
  %unfreed = icmp ne ptr %saved, %none
  %c1 = and i1 %is.chained, %unwatched
  %c2 = and i1 %shapeless, %unversioned
  %c3 = and i1 %c1, %c2
  %c4 = and i1 %c3, %unfreed
  br i1 %c4, label %kept, label %stop
kept:
  %edges = call ptr @slot(ptr %node, i64 [edges])
  %edge = call ptr @slot(ptr %edges, i64 [ITEMS])
  %size.at = getelementptr i8, ptr %saved, i64 16
  %size = load i64, ptr %size.at
  br label %items
items:
  %k = phi i64 [ 0, %kept ], [ %k.next, %items.next ]
  %refs = phi i32 [ 1, %kept ], [ %refs.next, %items.next ]
  %more = icmp ult i64 %k, %size
  br i1 %more, label %item, label %whole
item:
  %shift = mul i64 %k, 8
  %offset = add i64 %shift, [ITEMS]
  %s = call ptr @slot(ptr %saved, i64 %offset)
  %is.tensor = call i1 @is(ptr %s, i64 [Tensor])
  br i1 %is.tensor, label %tensor, label %constant
constant:
  %is.hole = call i1 @is(ptr %s, i64 [Hole])
  br i1 %is.hole, label %stop, label %items.next
tensor:
  %cell = call ptr @slot(ptr %s, i64 [_cell])
  %unchanged = icmp eq ptr %cell, %none
  br i1 %unchanged, label %fit, label %stop
fit:
  %came = call ptr @slot(ptr %s, i64 [_node])
  %from.edge = icmp eq ptr %came, %edge
  br i1 %from.edge, label %twice, label %items.next
twice:
  %j = phi i64 [ 0, %fit ], [ %j.next, %differs ]
  %earlier = icmp ult i64 %j, %k
  br i1 %earlier, label %compare, label %once
compare:
  %j.shift = mul i64 %j, 8
  %j.offset = add i64 %j.shift, [ITEMS]
  %p = call ptr @slot(ptr %saved, i64 %j.offset)
  %same = icmp eq ptr %p, %s
  br i1 %same, label %items.next, label %differs
differs:
  %j.next = add i64 %j, 1
  br label %twice
once:
  %refs.more = add i32 %refs, 1
  br label %items.next
items.next:
  %refs.next = phi i32 [ %refs, %constant ], [ %refs, %fit ], [ %refs, %compare ], [ %refs.more, %once ]
  %k.next = add i64 %k, 1
  br label %items
whole:
  %append = call ptr @entry(i64 [PyList_Append])
  %status = call i32 %append(ptr %list, ptr %node)
  %is.next = call i1 @is(ptr %edge, i64 [Node])
  br i1 %is.next, label %counted, label %stop.edge
counted:
  %have = load i32, ptr %edge
  %sole = icmp eq i32 %have, %refs
  br i1 %sole, label %alone, label %stop.edge
alone:
  br label %look
stop:
  br label %result
stop.edge:
  br label %result
result:
  %end = phi ptr [ %node, %stop ], [ %edge, %stop.edge ]
  %pair = call ptr @new_tuple(i64 2)
  %pair.lost = icmp eq ptr %pair, null
  br i1 %pair.lost, label %nothing, label %paired
paired:
  call void @give_slot(ptr %pair, i64 [ITEMS], ptr %list)
  call void @put(ptr %pair, i64 1, ptr %end)
  ret ptr %pair
}
"""

_RUN = """
define ptr @"aotdiff.tensor.run"(ptr %self, ptr %arguments, i64 %count) {
start:
  %raw = alloca [6 x ptr]
  %list = load ptr, ptr %arguments
  %first.at = getelementptr ptr, ptr %arguments, i64 1
  %first = load ptr, ptr %first.at
  %keep.at = getelementptr ptr, ptr %arguments, i64 2
  %keep = load ptr, ptr %keep.at
  %none = call ptr @entry(i64 [None])
  %true = call ptr @entry(i64 [True])
  %keeps = icmp eq ptr %keep, %true
  %length.at = getelementptr i8, ptr %list, i64 16
  %length = load i64, ptr %length.at
  %nodes = call ptr @slot(ptr %list, i64 [LIST_ITEMS])
  %vectorcall = call ptr @entry(i64 [PyObject_Vectorcall])
  call void @hold(ptr %first)
  br label %walk
walk:
  %n = phi i64 [ 0, %start ], [ %n.next, %next ]
  %ct = phi ptr [ %first, %start ], [ %g, %next ]
  %more = icmp ult i64 %n, %length
  br i1 %more, label %step, label %end
end:
  ret ptr %ct
step:
  %node.at = getelementptr ptr, ptr %nodes, i64 %n
  %node = load ptr, ptr %node.at
  %saved = call ptr @slot(ptr %node, i64 [saved])
  %gone = icmp eq ptr %saved, %none
  br i1 %gone, label %freed, label %alive
freed:
  call void @release(ptr %ct)
  %complain = call ptr @entry(i64 [freed])
  store ptr %node, ptr %raw
  %nothing = call ptr %vectorcall(ptr %complain, ptr %raw, i64 1, ptr null)
  ret ptr %nothing
alive:
  call void @hold(ptr %saved)
  %size.at = getelementptr i8, ptr %saved, i64 16
  %size = load i64, ptr %size.at
  br label %fill
fill:
  %k = phi i64 [ 0, %alive ], [ %k.next, %filled ]
  %filling = icmp ult i64 %k, %size
  br i1 %filling, label %item, label %call
item:
  %shift = mul i64 %k, 8
  %offset = add i64 %shift, [ITEMS]
  %s = call ptr @slot(ptr %saved, i64 %offset)
  %is.tensor = call i1 @is(ptr %s, i64 [Tensor])
  br i1 %is.tensor, label %tensor, label %filled
tensor:
  %data = call ptr @slot(ptr %s, i64 [_data])
  br label %filled
filled:
  %value = phi ptr [ %s, %item ], [ %data, %tensor ]
  %place = getelementptr ptr, ptr %raw, i64 %k
  store ptr %value, ptr %place
  %k.next = add i64 %k, 1
  br label %fill
call:
  %last = getelementptr ptr, ptr %raw, i64 %size
  store ptr %ct, ptr %last
  %rule = call ptr @slot(ptr %node, i64 [rule])
  %f = call ptr @slot(ptr %rule, i64 [run])
  %total = add i64 %size, 1
  %g = call ptr %vectorcall(ptr %f, ptr %raw, i64 %total, ptr null)
  call void @release(ptr %ct)
  %saves = call ptr @slot(ptr %rule, i64 [saves])
  %something = icmp eq ptr %saves, %true
  %keeps.not = xor i1 %keeps, true
  %free = and i1 %something, %keeps.not
  %old = call ptr @slot(ptr %node, i64 [saved])
  %still = icmp eq ptr %old, %saved
  %drop = and i1 %free, %still
  br i1 %drop, label %dropped, label %done
dropped:
  call void @set_slot(ptr %node, i64 [saved], ptr %none)
  call void @release(ptr %saved)
  br label %done
done:
  call void @release(ptr %saved)
  %failed = icmp eq ptr %g, null
  br i1 %failed, label %stop, label %next
stop:
  ret ptr null
next:
  %n.next = add i64 %n, 1
  br label %walk
}
"""


class _Method(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


def _slot_offset(type_: type, name: str) -> int:
    """Where instances have a slot: in the descriptor, after its head and its name comes the member, with the offset."""
    descriptor = type_.__dict__[name]
    member = ctypes.c_void_p.from_address(id(descriptor) + 40).value
    assert member is not None
    return ctypes.c_ssize_t.from_address(member + 16).value


def _text(rule_type: type) -> str:
    """The LLVM text, with offsets for the names in brackets."""
    places: dict[str, int] = {name: 8 * k for k, name in enumerate((*_TABLE, "False"))}
    for type_, names in (
        (Tensor, ("_data", "_cell", "_node", "_needs", "_grad", "_hooks")),
        (Node, ("rule", "saved", "versions", "edges", "shapes", "likes", "watch")),
        (rule_type, ("chained", "run", "saves")),
    ):
        places |= {name: _slot_offset(type_, name) for name in names}
    places |= {"ITEMS": _ITEMS, "LIST_ITEMS": _LIST_ITEMS, "LIMIT": LIMIT}
    places |= {"RULES": fastcall.RULES, "WRAPPER": fastcall.WRAPPER}
    text = _PARTS + _CALL + _SCAN + _RUN
    for name, value in places.items():
        text = text.replace(f"i64 [{name}]", f"i64 {value}").replace(f", [{name}]", f", {value}")
    return text


class Paths:
    """The native paths of this process: `scan(node)`, `run(nodes, gradient, keep)`, and `attach` for calls."""

    def __init__(self, rule_type: type, hole_type: type, finish: Any, freed: Any) -> None:
        from aotdiff.codegen.driver import load

        self._loaded = load(_object(_text(rule_type)))
        self._objects = {
            "Tensor": Tensor, "Node": Node, "CallRule": rule_type, "Hole": hole_type, "None": None, "True": True,
            "False": False, "zero": 0.0, "float": float, "ndarray": np.ndarray, "f64": np.dtype("f8"),
            "finish": finish, "freed": freed,
        }  # fmt: skip
        values = {name: id(item) for name, item in self._objects.items()}
        values["off"] = gradmode.off_address()
        for name in _TABLE:
            if name not in values:
                values[name] = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        self._table = (ctypes.c_int64 * (len(_TABLE) + 1))(*[values[name] for name in (*_TABLE, "False")])
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address("bind"))(ctypes.addressof(self._table))
        self._call = self._address("call")
        self._methods: list[_Method] = []
        self.scan = self._function(b"scan")
        self.run = self._function(b"run")

    def _address(self, name: str) -> int:
        return self._loaded.address(f"tensor.{name}")

    def _function(self, name: bytes) -> Any:
        method = _Method(name, self._address(name.decode()), 0x80, None)  # METH_FASTCALL
        self._methods.append(method)
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        return make(ctypes.addressof(method), None, None)

    def attach(self, function: Any, wrapper: int, rules: Any) -> None:
        """Let calls of this function come here; `rules` are its cells (see `cells`), which the caller keeps."""
        at = id(function)
        ctypes.c_void_p.from_address(at + fastcall.RULES).value = ctypes.addressof(rules)
        ctypes.c_void_p.from_address(at + fastcall.WRAPPER).value = wrapper
        ctypes.c_void_p.from_address(at + fastcall.VECTORCALL).value = self._call


def cells(generic: bool) -> Any:
    """Room for a rule and the mask of what it keeps, for each set of tracked arguments; the first says `generic`."""
    made = (ctypes.c_int64 * (2 << LIMIT))()
    made[0] = int(generic)
    return made


def _object(text: str) -> bytes:
    from aotdiff.codegen.driver import loadable

    key = cache.key("tensor paths", cache.compiler_version(), cache.machine(), text)
    found = cache.get(key)
    if found is None:
        found = loadable(text)
        cache.put(key, found)
    return found
