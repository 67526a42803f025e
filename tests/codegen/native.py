"""Calls compiled functions by way of ctypes and compares them with the interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from aotdiff.codegen import KINDS, Context, Native, Options, jit

from aotdiff.ir.graph import Func, Module
from aotdiff.ir.interpreter import run as interpret
from aotdiff.ir.types import Array, Scalar
from aotdiff.ir.verifier import verify

C_TYPES = {"f64": ctypes.c_double, "f32": ctypes.c_float, "i64": ctypes.c_int64, "bool": ctypes.c_uint8}
DTYPES = {"f64": np.float64, "f32": np.float32, "i64": np.int64, "bool": np.bool_}


class NativeError(Exception):
    """A native function failed: `kind` is the Python exception's name."""

    def __init__(self, kind: str, message: str, line: int):
        super().__init__(message)
        self.kind = kind
        self.line = line


class Compiled:
    """A compiled module; keeps one context, so that calls reuse the workspace."""

    def __init__(self, module: Module, exports: Sequence[str] | None = None, options: Options | None = None):
        verify(module)
        self.module = module
        self.exports = list(exports or module.funcs)
        self.native: Native = jit(module, self.exports, options)
        self.context = Context()

    def call(self, name: str, args: Sequence, shapes: Sequence[tuple[int, ...]]) -> list:
        """Results of one call; `shapes` are the sizes of the results (() for scalars)."""
        func = self.module.funcs[name]
        keep, flat = self._arguments(func, args)
        outs = []
        for type_, shape in zip(func.result_types, shapes, strict=True):
            element = type_.element if isinstance(type_, Array) else type_
            assert isinstance(element, Scalar)
            out = np.zeros(shape, DTYPES[element.kind])
            outs.append(out)
            flat += [ctypes.c_void_p(out.ctypes.data), *(ctypes.c_int64(n) for n in out.shape)]
        function = ctypes.CFUNCTYPE(ctypes.c_int32, *(type(a) for a in flat), ctypes.c_void_p)(
            self.native.address(name)
        )
        code = function(*flat, ctypes.addressof(self.context))
        del keep
        if code:
            assert code == self.context.kind
            raise NativeError(KINDS[code], self.context.message.decode(), self.context.line)
        return [o if o.ndim else o.item() for o in outs]

    def _arguments(self, func: Func, args: Sequence) -> tuple[list, list]:
        keep, flat = [], []
        for p, a in zip(func.params, args, strict=True):
            if isinstance(p.type, Array):
                assert isinstance(p.type.element, Scalar)
                array = np.ascontiguousarray(a, DTYPES[p.type.element.kind]).reshape(np.shape(a))
                keep.append((array, array.copy()))
                flat += [ctypes.c_void_p(array.ctypes.data), *(ctypes.c_int64(n) for n in array.shape)]
            else:
                assert isinstance(p.type, Scalar)
                flat.append(C_TYPES[p.type.kind](a))
        return keep, flat

    def free(self) -> None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.native.release)(ctypes.addressof(self.context))


def shapes_of(values: Sequence) -> list[tuple[int, ...]]:
    return [np.shape(v) for v in values]


def same(actual: Sequence, expected: Sequence, rtol: float = 1e-13, atol: float = 1e-300) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(e, np.float64), rtol=rtol, atol=atol)
        if np.asarray(e).dtype.kind in "ib":
            np.testing.assert_array_equal(a, e)


def check(
    module: Module, name: str, *args, rtol: float = 1e-13, atol: float = 1e-300, levels: Sequence[int] = (0, 3)
) -> list:
    """Compiled at each level, twice with one context, and interpreted: all agree. Gives the interpreter's results."""
    expected = interpret(module, name, args)
    for level in levels:
        compiled = Compiled(module, [name], Options(opt=level))
        for _ in range(2):
            same(compiled.call(name, args, shapes_of(expected)), expected, rtol, atol)
        compiled.free()
    return expected
