"""Runs one program in every way and compares.

The interpreter, native code from the graph as it is and from the optimised graph; reverse against forward mode;
second derivatives against their transpose and against differences of the gradient; first derivatives against
differences. Where two differ, runs with noise in the last digits tell a fault from a program that rounding upsets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from aotdiff.codegen import driver

from aotdiff.ir import interpreter
from aotdiff.ir.graph import Module, Op
from aotdiff.passes.pipeline import PIPELINES, run
from aotdiff.runtime.binding import Binder
from aotdiff.runtime.compiler import Compiler, Options, Source, subset
from aotdiff.runtime.exports import exported
from aotdiff.runtime.native import Native
from tests.threads import always

WRT = "(x, s, a)"
DTYPES = {"f64": np.float64, "f32": np.float32, "real": np.float64}
TOLERANCE = {"f64": 2e-9, "f32": 2e-3}
LIMIT = 1e7  # larger values say nothing about digits


class Fault(Exception):
    """Two ways of computing the same differ: `kind` says which ways."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `forms` are the exported derivatives; `llvm` is LLVM's own level for the optimised graph.

    `threads` that the optimised code is split between, all of its outermost loops. `sizes` are n and m where the
    types of the parameters say them: then small loops are written out.
    """

    forms: tuple[str, ...] = ("value_and_grad", "value_and_jvp", "hvp")
    interpret: tuple[str, ...] = ("value_and_grad",)
    llvm: int = 3
    without: str | None = None
    verify: bool = False
    threads: int = 1
    sizes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """`skipped` counts comparisons that were given up, by reason."""

    compared: int
    skipped: dict[str, int]


def source_of(text: str, element: str, result: str, plan: Plan) -> str:
    """The program with its exports."""
    lines = [text, "export f"]
    if plan.sizes is not None:
        n, m = plan.sizes
        gives = result.replace("f", element).replace("n", str(n)).replace("m", str(m))
        parameters = f"x: {element}[{n}], s: {element}, a: {element}[{n}, {m}], k: i64, idx: i64[{m}]"
        lines[0] = text.replace("fn f(", "fn any_size(")
        lines.insert(1, f"fn f({parameters}) -> {gives} = any_size(x, s, a, k, idx)")
    for form in plan.forms:
        wrt = "x" if form in ("jacobian", "hessian") else WRT
        lines.append(f"export f_{form} = {form}(f, wrt = {wrt})")
    return "\n".join(lines) + "\n"


def plan_forms(result: str, second: bool, full: bool) -> tuple[str, ...]:
    """Derivative forms for a result type: of first order, of second, and the matrix."""
    if result == "f":
        return ("value_and_grad", "value_and_jvp", *(("hvp",) if second else ()), *(("hessian",) if full else ()))
    return ("value_and_vjp", "value_and_jvp", *(("jacobian",) if full else ()))


class Runs:
    """One program's functions: interpreted and as native code."""

    def __init__(self, source: str, plan: Plan) -> None:
        self.plan = plan
        self.stops = "stop_gradient" in source
        compiler = Compiler(Source("p.grad", source, "."), Options())
        self.interfaces = {interface.name: interface for interface in exported(compiler.program())}
        names = list(self.interfaces)
        self.plain = compiler.graph("f64")  # `real` is f64 here; the graph is this object's own
        compiler.expand(self.plain)
        self.unordered = unordered(self.plain)
        best = subset(self.plain, names)
        run(best, [name for name in PIPELINES[3] if name != plan.without], plan.verify)
        run(self.plain, PIPELINES[0])
        self.o0 = self.native(self.plain, 0, 0)
        self.o3 = self.native(best, 3, plan.llvm, plan.threads)

    def native(self, graph: Module, level: int, llvm: int, threads: int = 1) -> dict[str, tuple[Binder, Native]]:
        text = driver.emit_llvm(graph, list(self.interfaces), driver.Options(opt=level, threads=threads))
        loaded = driver.load(driver.loadable(text, driver.Options(opt=llvm)))
        found = {}
        for name, interface in self.interfaces.items():
            instance = interface.instance("f64") if interface.is_generic else interface
            found[name] = Binder(instance), Native(loaded.address(name), 0, instance, loaded)
        return found


def unordered(graph: Module) -> list[set[str]]:
    """The kinds of errors of which any may be reported, per outermost loop of independent iterations."""
    of_function: dict[str, set[str]] = {}

    def kinds(op: Op) -> set[str]:
        if op.name == "check":
            return {str(op.attrs["kind"])}
        if "callee" in op.attrs:
            name = str(op.attrs["callee"])
            if name not in of_function:
                of_function[name] = set()  # met again in a recursion, it adds nothing
                of_function[name] = set().union(*map(kinds, graph.funcs[name].body.ops))
            return of_function[name]
        return set().union(*(kinds(inner) for region in op.regions for inner in region.ops))

    return [kinds(op) for func in graph.funcs.values() for op in func.body.walk() if op.name == "par"]


def call(entry: tuple[Binder, Native], args: Sequence[Any]) -> list[Any] | Exception:
    """Result leaves of native code, or the error it reported."""
    binder, native = entry
    values = binder.values(args)
    try:
        return native(values, binder.buffers(values))
    except (ArithmeticError, LookupError, ValueError, AssertionError, RecursionError) as error:
        return error


def interpret(graph: Module, name: str, args: Sequence[Any]) -> list[Any] | Exception:
    try:
        with np.errstate(all="ignore"):
            return interpreter.run(graph, name, args)
    except interpreter.ExecutionError as error:
        return error


@contextmanager
def noise(scale: float, seed: int) -> Iterator[None]:
    """Every float that the interpreter computes is off by a random part of `scale`."""
    before, rng = interpreter.evaluate, random.Random(seed)

    def noisy(op: Any, operands: Sequence[Any]) -> Any:
        value = before(op, operands)
        exact = not isinstance(value, float) or op.name in ("const", "neg", "select", "floor", "sign", "cast")
        return value if exact else value * (1.0 + scale * rng.uniform(-1.0, 1.0))

    interpreter.evaluate = noisy
    try:
        yield
    finally:
        interpreter.evaluate = before


def distance(a: Any, b: Any) -> float:
    """The largest difference of two results relative to their size (at least 1); inf where one is not finite."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        if x.shape != y.shape:
            return float("inf")
        with np.errstate(all="ignore"):
            different = ~((x == y) | (np.isnan(x) & np.isnan(y)))
            scale = max(1.0, np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))
            gap = np.where(different, np.abs(x - y) / scale, 0.0)
        if np.isnan(gap).any():
            return float("inf")
        worst = max(worst, float(np.max(gap, initial=0.0)))
    return worst


def wild(results: Any) -> bool:
    with np.errstate(all="ignore"):
        return any(bool(np.any(~(np.abs(np.asarray(v, dtype=float)) < LIMIT))) for v in results)


class Check:
    """All comparisons for one program and one set of arguments."""

    def __init__(self, runs: Runs, element: str, args: Sequence[Any], rng: np.random.Generator) -> None:
        self.runs = runs
        self.args = list(args)
        self.rng = rng
        self.dtype = DTYPES[element]
        self.real = "f32" if element == "f32" else "f64"
        self.tolerance = TOLERANCE[self.real]
        self.compared = 0
        self.skipped: dict[str, int] = {}
        self.sensitivity: dict[str, float] = {}

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def arguments(self, name: str) -> list[Any]:
        """The arguments of `f` and, for a form, cotangents, tangents or directions: random, the same each time."""
        return [*self.args, *self.extra(name)]

    def extra(self, name: str) -> list[Any]:
        form = name.removeprefix("f_")
        if form in ("value_and_jvp", "hvp"):
            return self.direction
        return [self.cotangent] if form == "value_and_vjp" else []

    def draw(self, like: Any) -> Any:
        if np.ndim(like) == 0:
            return self.dtype(self.rng.normal())
        return self.rng.normal(size=np.shape(like)).astype(self.dtype)

    def run(self) -> Report:
        with np.errstate(all="ignore"):
            return self._run()

    def _run(self) -> Report:
        x, s, a = self.args[:3]
        self.direction = [self.draw(x), self.draw(s), self.draw(a)]
        self.cotangent = self.draw(x)
        self.agreement()
        if not self.failed:
            self.derivatives()
        return Report(self.compared, self.skipped)

    # The same function run in several ways ---------------------------------------------------------------------

    def agreement(self) -> None:
        """Interpreter, plain and optimised native code."""
        runs = self.runs
        self.found: dict[str, list[Any]] = {}
        self.failed = False
        for name in runs.interfaces:
            args = self.arguments(name)
            got = call(runs.o0[name], args)
            if name == "f" or name.removeprefix("f_") in runs.plan.interpret:
                self.same(f"interpreter and O0 of {name}", interpret(runs.plain, name, args), got, name)
            self.optimised(name, got, call(runs.o3[name], args))
            if isinstance(got, Exception):
                self.failed = True
            else:
                self.found[name] = got
        matrices = {"f_jacobian", "f_hessian"}  # without a column nothing is run
        if self.failed and self.found.keys() - (set() if self.args[0].size else matrices):
            raise Fault("some forms report an error", f"not {', '.join(sorted(self.found))}")

    def optimised(self, name: str, plain: Any, fast: Any) -> None:
        """Of two errors in independent iterations, optimised code may report the other."""
        kinds = {error_kind(plain), error_kind(fast)}
        if len(kinds) == 2 and "" not in kinds and any(kinds <= found for found in self.runs.unordered):
            self.skip("another error")
        else:
            self.same(f"O0 and O3 of {name}", plain, fast, name)

    def same(self, kind: str, a: Any, b: Any, name: str) -> None:
        self.compared += 1
        if isinstance(a, Exception) or isinstance(b, Exception):
            if error_kind(a) != error_kind(b):
                self.judge(kind, float("inf"), name, f"{describe(a)} and {describe(b)}")
            return
        gap = distance(a, b)
        if gap > self.tolerance:
            self.judge(kind, gap, name, f"{describe(a)} and {describe(b)}")

    def judge(self, kind: str, gap: float, name: str, detail: str) -> None:
        """A difference: a fault, unless noise in the last digits moves the result as much."""
        if gap <= 2.0 * self.sensitive(name):
            self.skip("sensitive")
            return
        raise Fault(kind, detail)

    def sensitive(self, name: str) -> float:
        """How far noise moves a result, relative to its size; inf for values that digits say nothing about."""
        if name not in self.sensitivity:
            args = self.arguments(name)
            exact = interpret(self.runs.plain, name, args)
            worst = 0.0 if isinstance(exact, Exception) or not wild(exact) else float("inf")
            for seed in range(3):
                with noise(1e-12 if self.real == "f64" else 1e-6, seed):
                    moved = interpret(self.runs.plain, name, args)
                if error_kind(moved) != error_kind(exact):
                    worst = float("inf")
                elif not isinstance(exact, Exception):
                    worst = max(worst, distance(exact, moved))
            self.sensitivity[name] = worst
        return self.sensitivity[name]

    # Derivatives against each other ----------------------------------------------------------------------------

    def derivatives(self) -> None:
        found = self.found
        scalar = "f_value_and_grad" in found
        if scalar:
            value, *gradient = found["f_value_and_grad"]
            tangent = found["f_value_and_jvp"][1:]
            self.equal("forward and reverse", dot(gradient, self.direction), tangent, "f_value_and_grad")
        else:
            value, *gradient = found["f_value_and_vjp"]
            tangent = found["f_value_and_jvp"][1]
            forward = dot([tangent], [self.cotangent])
            self.equal("forward and reverse", dot(gradient, self.direction), [forward], "f_value_and_vjp")
        self.equal("value and value with derivative", value, found["f"], "f")
        self.equal("value and value with tangent", found["f_value_and_jvp"][0], found["f"], "f")
        if "f_jacobian" in found:
            self.jacobian()
        if "f_hvp" in found:
            self.second()
        if self.real == "f64":
            self.differences("f", found["f_value_and_jvp"][1:], self.direction, "f_value_and_jvp")

    def equal(self, kind: str, a: Any, b: Any, name: str) -> None:
        self.same(kind, [a], b, name)

    def jacobian(self) -> None:
        """Jacobian by x against a vjp with the same cotangent."""
        found = self.found
        expected = np.tensordot(np.asarray(self.cotangent), np.asarray(found["f_jacobian"][0]), 1)
        self.equal("jacobian and vjp", expected, [found["f_value_and_vjp"][1]], "f_value_and_vjp")

    def second(self) -> None:
        """Symmetric; hessian against hvp; against differences of the gradient."""
        found, runs = self.found, self.runs
        other = [self.draw(v) for v in self.direction]
        flipped = call(runs.o0["f_hvp"], [*self.args, *other])
        if isinstance(flipped, Exception):
            raise Fault("hvp reports an error", str(flipped))
        self.equal("hvp symmetric", dot(found["f_hvp"], other), [dot(flipped, self.direction)], "f_hvp")
        if "f_hessian" in found:
            matrix = np.asarray(found["f_hessian"][0], dtype=float)
            self.equal("hessian symmetric", matrix, [matrix.T], "f_hessian")
            x = self.direction[0]
            zero = [np.zeros_like(v) for v in self.direction[1:]]
            column = call(runs.o0["f_hvp"], [*self.args, x, self.dtype(0), zero[1]])
            # A second derivative by s that is infinite is NaN times the zero direction of s.
            if not isinstance(column, Exception) and np.all(np.isfinite(column[0])):
                self.equal("hessian and hvp", matrix @ np.asarray(x, dtype=float), [column[0]], "f_hessian")
        if self.real == "f64":
            gradient = [np.array(v) for v in found["f_hvp"]]
            self.differences("f_value_and_grad", gradient, self.direction, "f_hvp", first=1)

    def differences(self, name: str, derivative: list, direction: list, source: str, first: int = 0) -> None:
        """Central differences, where two steps agree on what they are and nothing is held constant."""
        if self.runs.stops:
            return
        steps = [3e-5, 1e-5, 3e-6]
        slopes = [self.slope(name, direction, h, first) for h in steps]
        if any(slope is None for slope in slopes):
            self.skip("differences fail")
            return
        self.compared += 1
        spread = max(distance(slopes[0], slopes[1]), distance(slopes[1], slopes[2]))
        if not spread < 1e-4:
            self.skip("not smooth here")
            return
        gap = distance(derivative, slopes[1])
        if gap > 1e-5 + 3.0 * spread and gap > 2.0 * self.sensitive(source):
            raise Fault(f"differences and {source}", f"{describe(slopes[1])} and {describe(derivative)}")

    def slope(self, name: str, direction: list, h: float, first: int) -> list[Any] | None:
        ends = []
        for sign in (1.0, -1.0):
            moved = [v + sign * h * d for v, d in zip(self.args, direction, strict=False)]
            end = call(self.runs.o0[name], [*moved, *self.args[3:]])
            if isinstance(end, Exception):
                return None
            ends.append([np.asarray(v, dtype=float) for v in end[first:]])
        slopes = [(p - q) / (2.0 * h) for p, q in zip(*ends, strict=True)]
        return slopes if all(np.isfinite(v).all() for v in slopes) else None


def dot(a: Any, b: Any) -> float:
    pairs = [(np.asarray(x, dtype=float), np.asarray(y, dtype=float)) for x, y in zip(a, b, strict=True)]
    return float(sum(np.sum(x * y) for x, y in pairs))


def error_kind(result: Any) -> str:
    if not isinstance(result, Exception):
        return ""
    kind = result.kind if isinstance(result, interpreter.ExecutionError) else type(result).__name__
    return str(kind)


def describe(results: Any) -> str:
    text = str(results) if isinstance(results, Exception) else str([np.asarray(v).tolist() for v in results])
    return text[:500]


def arguments(
    element: str, rng: np.random.Generator, empty: bool, sizes: tuple[int, int] | None = None
) -> list[Any]:
    """Arguments of `f`: sizes from 1 (0 now and then) if they are not given, indices in range, with repeats."""
    n, m = (int(v) for v in rng.integers(0 if empty else 1, 5, size=2))
    n, m = sizes or (n, m)
    dtype = DTYPES[element]
    index = rng.integers(0, n, size=m) if n else np.zeros(m if empty else 0, np.int64)
    x, s, a = rng.normal(size=n), rng.normal(), rng.normal(size=(n, m))
    return [x.astype(dtype), dtype(s), a.astype(dtype), int(rng.integers(0, 4)), index.astype(np.int64)]


def examine(text: str, element: str, result: str, seed: str, plan: Plan, points: int = 2) -> Report:
    """Everything about one program; raises Fault, or whatever the compiler raises."""
    with always(plan.threads) if plan.threads > 1 else nullcontext():
        return _examine(text, element, result, seed, plan, points)


def _examine(text: str, element: str, result: str, seed: str, plan: Plan, points: int) -> Report:
    runs = Runs(source_of(text, element, result, plan), plan)
    compared, skipped = 0, dict[str, int]()
    for point in range(points):
        rng = np.random.default_rng(abs(hash_text(f"{seed} {point}")))
        empty = point == points - 1 and hash_text(seed) % 6 == 0
        report = Check(runs, element, arguments(element, rng, empty, plan.sizes), rng).run()
        compared += report.compared
        for reason, count in report.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    return Report(compared, skipped)


def hash_text(text: str) -> int:
    """The same number in every process, unlike `hash`."""
    return random.Random(text).getrandbits(60)
