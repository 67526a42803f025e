"""Calls at the speed of a C extension: a native entry that takes Python objects.

For each function with plain arguments a wrapper is generated beside its native entry (`runtime.fastcall_text`). It
takes exact floats and C-contiguous numpy arrays apart itself, makes the result arrays, calls the entry and builds the
result. Whatever else comes (keywords, lists, other dtypes, a second call at the same time) goes to
`Function.__call__` in Python.

A `Function` is a vectorcall object: its instances hold a pointer to their wrapper, null until there is one, in which
case CPython calls `__call__` (two more belong to `runtime.tensor_native`). The wrapper reaches the C API through a
table of pointers, so that its code is position-independent and can be cached with the rest.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, TypeVar

import numpy as np

from aotdiff.runtime import interrupt

_T = TypeVar("_T")
VECTORCALL, TABLE, SLOW, WRAPPER, RULES, _BASIC_SIZE = 16, 24, 32, 40, 48, 56  # offsets in an instance
_ARRAY_NEW = 93  # index of PyArray_New in numpy's C API

_ENTRIES = (
    "PyFloat_Type", "Float64_Type", "PyLong_Type", "PyArray_Type", "true", "false", "f64", "f32", "i64", "bool",
    "PyObject_Vectorcall", "PyLong_AsDouble", "PyLong_AsLongLong", "PyErr_Occurred", "PyErr_Clear",
    "PyFloat_FromDouble", "PyLong_FromLongLong", "PyTuple_New", "Py_DecRef", "Py_IncRef", "PyEval_SaveThread",
    "PyEval_RestoreThread", "PyThreadState_Get", "PyArray_New", "slot", "main", "flag", "fail", "PyObject_CallNoArgs",
    "PyTuple_Type", "none", "out", "tuple_items",
)  # fmt: skip
OFFSETS = {name: 8 * k for k, name in enumerate(_ENTRIES)}


# The instances --------------------------------------------------------------------------------------------------


class _Member(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _Slot(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("function", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    ]


_kept: list[Any] = []  # what native memory points into
_BASETYPE, _DEFAULT, _HAVE_VECTORCALL = 1 << 10, 1 << 18, 1 << 11
_FLAGS_OFFSET = 168  # of tp_flags in a type object


def supported() -> bool:
    """Whether this interpreter's objects are laid out as assumed here."""
    return (
        sys.implementation.name == "cpython"
        and sys.version_info >= (3, 11)  # modules that were built run on older ones too
        and sys.maxsize > 1 << 32
        and getattr(sys, "_is_gil_enabled", lambda: True)()
        and not hasattr(sys, "getobjects")  # a tracing debug build
    )


def base_type() -> type:
    """A type whose instances have room for the pointers; `object` where that is not possible."""
    if not supported():
        return object
    members = (_Member * 2)((b"__vectorcalloffset__", 19, VECTORCALL, 1, None))
    slots = (_Slot * 2)((72, ctypes.addressof(members)))  # Py_tp_members
    spec = _Spec(b"aotdiff.runtime.fastcall.Callable", _BASIC_SIZE, 0, _BASETYPE | _DEFAULT, slots)
    _kept.extend([members, slots, spec])
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype = ctypes.py_object
    return make(ctypes.byref(spec))


def enable(type_: type[_T]) -> type[_T]:
    """Let CPython use the vectorcall pointer of instances of this subclass (a decorator)."""
    if type_.__mro__[1] is not object:
        flags = ctypes.c_ulong.from_address(id(type_) + _FLAGS_OFFSET)
        assert flags.value == type_.__flags__
        flags.value |= _HAVE_VECTORCALL
    return type_


def install(function: Any, address: int) -> None:
    """Make calls of this function go to the wrapper at `address`, where instances have room for it."""
    if not supported():
        return
    slow = function.__call__
    function.__dict__["_slow"] = slow  # owned there, so that the collector sees it
    at = id(function)
    ctypes.c_void_p.from_address(at + SLOW).value = id(slow)
    ctypes.c_void_p.from_address(at + TABLE).value = _table()
    ctypes.c_void_p.from_address(at + VECTORCALL).value = address


_table_cells: Any = None


def _table() -> int:
    """Address of the table of pointers, made once."""
    global _table_cells
    if _table_cells is None:
        from aotdiff.runtime.native import shared

        api = ctypes.pythonapi
        numpy_api = _numpy_api()
        found = interrupt.handler()
        assert found is not None
        objects = {
            "PyFloat_Type": float, "Float64_Type": np.float64, "PyLong_Type": int, "PyArray_Type": np.ndarray,
            "true": True, "false": False, "f64": np.dtype("f8"), "f32": np.dtype("f4"), "i64": np.dtype("i8"),
            "bool": np.dtype("?"), "fail": shared.fail, "PyTuple_Type": tuple, "none": None, "out": sys.intern("out"),
        }  # fmt: skip
        _kept.extend(objects.values())
        values = {name: id(item) for name, item in objects.items()}
        values |= {
            "slot": shared.slot_address,
            "main": interrupt.main_thread_state(),
            "flag": found.flag_address,
            "PyArray_New": numpy_api[_ARRAY_NEW],
            "tuple_items": tuple.__basicsize__,  # where they begin
        }
        for name in _ENTRIES:
            if name not in values:
                values[name] = ctypes.cast(getattr(api, name), ctypes.c_void_p).value or 0
        _table_cells = (ctypes.c_int64 * len(_ENTRIES))(*[values[name] for name in _ENTRIES])
    return ctypes.addressof(_table_cells)


def _numpy_api() -> Any:
    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.cast(pointer(core._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
