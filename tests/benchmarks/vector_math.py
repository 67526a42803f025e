"""Errors of the vector mathematics that generated code calls, in units in the last place.

    python tests/benchmarks/vector_math.py [exp sin ...]

Every version of every function of libmvec that code for this machine may call, on arguments over the whole range:
random bit patterns, ordinary numbers, what is near special points, subnormal, huge and non-finite ones. The reference
is long double (double for f32). A line is marked where the error exceeds 4 ulp, or where a special value (NaN, an
infinity, a zero and its sign) is not what the scalar function gives.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from aotdiff.codegen import driver
from aotdiff.codegen import target as targets
from aotdiff.codegen.loader import Options, load
from aotdiff.codegen.processor import host_features

LIMIT = 4.0
LLVM = {"f64": "double", "f32": "float"}
REAL = {"f64": np.float64, "f32": np.float32}
BITS = {"f64": np.uint64, "f32": np.uint32}
WIDE = {"f64": np.longdouble, "f32": np.float64}
NUMPY = {
    "pow": "power", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
    "atanh": "arctanh", "atan2": "arctan2",
}  # fmt: skip
# Fractions of these powers of ten are taken, of either sign.
SCALES = (
    1e-300,
    1e-200,
    1e-38,
    1e-20,
    1e-8,
    1e-3,
    0.5,
    1.0,
    3.0,
    10.0,
    90.0,
    800.0,
    1e4,
    1e8,
    1e18,
    1e38,
    1e200,
    1e308,
)
POINTS = (0.0, 0.5, 1.0, 2.0, math.pi / 4, math.pi / 2, math.pi, 10 * math.pi, 88.0, 104.0, 709.78, 745.13, 1e5, 26.0)


@dataclass(frozen=True, slots=True)
class Version:
    """A vector version: its symbol, and what it takes."""

    name: str
    kind: str
    lanes: int
    arity: int
    symbol: str


@dataclass(frozen=True, slots=True)
class Found:
    """The largest error, where, and how many special values differ (with one of them)."""

    ulp: float
    at: tuple[float, ...]
    special: int
    example: tuple[float, ...]

    @property
    def fine(self) -> bool:
        return self.ulp <= LIMIT and not self.special


def versions() -> list[Version]:
    """What generated code may call on this machine."""
    target = targets.CpuTarget(driver.llvm.get_process_triple(), host_features(), True)
    found = []
    for name, arity in targets.VECTOR_MATH.items():
        for kind, bits in (("f64", 64), ("f32", 32)):
            for c in target.vectors:
                lanes = c.bits // bits
                symbol = target.vector_name(name, kind, arity, lanes)
                if symbol:
                    found.append(Version(name, kind, lanes, arity, symbol))
    return found


def _text(version: Version) -> str:
    """A function that applies the version to arrays."""
    v = f"<{version.lanes} x {LLVM[version.kind]}>"
    names = "xy"[: version.arity]
    loads = "".join(
        f"  %{n}at = getelementptr {LLVM[version.kind]}, ptr %{n}, i64 %i\n  %{n}v = load {v}, ptr %{n}at, align 4\n"
        for n in names
    )
    given = ", ".join(f"{v} %{n}v" for n in names)
    return f"""
declare {v} @{version.symbol}({", ".join([v] * version.arity)})
define i32 @aotdiff.apply({", ".join(f"ptr %{n}" for n in names)}, ptr %r, i64 %n) {{
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
{loads}  %value = call {v} @{version.symbol}({given})
  %rat = getelementptr {LLVM[version.kind]}, ptr %r, i64 %i
  store {v} %value, ptr %rat, align 4
  %next = add i64 %i, {version.lanes}
  br label %head
done:
  ret i32 0
}}
define weak void @aotdiff.release(ptr %ctx) {{
  ret void
}}
"""


def apply(version: Version, *args: np.ndarray) -> np.ndarray:
    """The version on all elements."""
    count = len(args[0])
    padded = [np.concatenate([a, np.ones(-count % version.lanes, a.dtype)]) for a in args]
    out = np.empty_like(padded[0])
    options = Options()
    native = load(driver.loadable(_text(version), options), options)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*padded, out)]
    types = [ctypes.c_void_p] * len(pointers)
    ctypes.CFUNCTYPE(ctypes.c_int32, *types, ctypes.c_int64)(native.address("apply"))(*pointers, len(out))
    return out[:count]


def arguments(version: Version, count: int, seed: int = 1) -> list[np.ndarray]:
    """Arguments over the whole range, for every operand."""
    rng = np.random.default_rng(seed)
    real, top = REAL[version.kind], np.finfo(REAL[version.kind]).max
    operands = []
    with np.errstate(all="ignore"):
        for _ in range(version.arity):
            parts = [rng.integers(0, np.iinfo(BITS[version.kind]).max, count, BITS[version.kind]).view(real)]
            for scale in SCALES:
                if scale <= top:
                    parts.append((rng.uniform(-1.0, 1.0, count // 4) * scale).astype(real))
            for point in POINTS:
                near = point * (1.0 + rng.normal(size=64) * 10.0 ** rng.uniform(-15, -1, 64))
                parts += [near.astype(real), -near.astype(real), np.array([point, -point], real)]
            tiny = np.finfo(real).smallest_subnormal * rng.integers(1, 1 << 22, 256).astype(real)
            ends = np.array([top, np.finfo(real).tiny, np.finfo(real).smallest_subnormal, np.inf], real)
            parts += [tiny, -tiny, ends, -ends, np.array([np.nan, 0.0, -0.0], real)]
            operand = np.concatenate(parts)
            operands.append(operand if not operands else rng.permutation(operand))
    return operands


def _long_double(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """A function of the C library for which numpy has no long double."""
    function = getattr(ctypes.CDLL("libm.so.6"), name + "l")
    function.restype, function.argtypes = ctypes.c_longdouble, [ctypes.c_longdouble]
    # ctypes rounds the results to double, which may hide half a unit.
    return lambda x: np.array([function(v) for v in x.astype(np.float64)], np.float64).astype(np.longdouble)


def reference(version: Version, args: list[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        wide = [a.astype(WIDE[version.kind]) for a in args]
        if version.name in ("erf", "erfc"):
            return _long_double(version.name)(wide[0])
        return getattr(np, NUMPY.get(version.name, version.name))(*wide)


def compare(version: Version, args: list[np.ndarray]) -> Found:
    got, exact = apply(version, *args), reference(version, args)
    real = REAL[version.kind]
    with np.errstate(all="ignore"):
        rounded = exact.astype(real)
        special = ~np.isfinite(rounded) | (rounded == 0.0) | ~np.isfinite(got)
        edge = np.isinf(got) != np.isinf(rounded)
        edge &= np.abs(exact) > np.finfo(real).max / 2  # the last number before infinity, or infinity
        same = (np.isnan(got) & np.isnan(rounded)) | ((got == rounded) & (np.signbit(got) == np.signbit(rounded)))
        tiny = np.abs(got) <= 4 * np.finfo(real).smallest_subnormal
        wrong = special & ~same & ~edge & ~((rounded == 0.0) & (exact != 0.0) & tiny)
        unit = np.maximum(np.spacing(np.abs(rounded)), np.finfo(real).smallest_subnormal)
        error = np.abs(got.astype(exact.dtype) - exact) / unit.astype(exact.dtype)
        error = np.where(special, 0.0, error).astype(np.float64)
    worst = int(np.argmax(error))
    bad = np.flatnonzero(wrong)
    example = tuple(float(a[bad[0]]) for a in args) if len(bad) else ()
    return Found(float(error[worst]), tuple(float(a[worst]) for a in args), len(bad), example)


def main() -> None:
    wanted = sys.argv[1:]
    print("| function | kind | lanes | largest error, ulp | at | special values that differ | |")
    print("|---|---|--:|--:|---|--:|---|")
    for version in versions():
        if wanted and version.name not in wanted:
            continue
        found = compare(version, arguments(version, 40_000))
        at = ", ".join(f"{x:.9g}" for x in found.at)
        note = "" if found.fine else "**bad** " + ", ".join(f"{x:.9g}" for x in found.example)
        cells = (version.name, version.kind, version.lanes, f"{found.ulp:.2f}", at, found.special, note)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
