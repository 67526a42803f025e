"""What a gradient costs, counted, and the rows S21 to S24 of the derivative conventions with figures.

    python tests/benchmarks/cost.py [--only WORD] [--no-limits]

First table: floating-point arithmetic of each sample's function and of its value with gradient, as the interpreter
executes the optimised graph. A multiplication whose only use is an addition counts as one with it, the first
contribution to a sum is free, a division or root counts 4, an elementary function 10. Under the cheap-gradient
principle the ratio is at most 4. Second table: memory, accumulation in a narrow type, and compile time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import aotdiff as ad
from aotdiff.ir import interpreter
from aotdiff.ir.graph import Module, Op, Value
from aotdiff.ir.rewrite import use_counts
from aotdiff.runtime.function import Function

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
STATUS = Path("/proc/self/status")
LIMIT = 4.0
FREE = frozenset(["const", "neg", "abs", "select", "cast", "copysign"])
PLAIN = frozenset(
    ["add", "sub", "mul", "minimum", "maximum", "relu", "sign", "floor", "ceil", "round", "clamp",
     "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite"]
)  # fmt: skip
SLOW = frozenset(["div", "ratio", "sqrt", "mod", "floordiv"])
WHY: dict[str, str] = {}  # why a function needs more than the limit


# Counting --------------------------------------------------------------------------------------------------------


def weight(name: str) -> int:
    """How much arithmetic one operation is."""
    return 0 if name in FREE else 1 if name in PLAIN else 4 if name in SLOW else 10


class Arithmetic:
    """Counts what the interpreter computes in floating point."""

    def __init__(self, graph: Module) -> None:
        self.counts: Counter[str] = Counter()
        self.total = 0.0
        self.fused: set[Op] = set()
        for func in graph.funcs.values():
            self._find_fused(func.body)

    def _find_fused(self, body: Any) -> None:
        """Products that are only added to something, one for each addition."""
        uses = use_counts(body)
        for op in body.walk():
            for v in _added(op):
                if v.op is not None and v.op.name == "mul" and uses[v] == 1:
                    self.fused.add(v.op)
                    if op.name != "par":
                        break

    def scalar(self, op: Op, operands: Any) -> None:
        if op not in self.fused and any(isinstance(v, float) for v in operands):
            self.add(op.name, weight(op.name))

    def add(self, name: str, cost: float) -> None:
        self.counts[name] += 1
        self.total += cost

    def reduction(self, op: Op, args: Any) -> None:
        """Additions of a `par` that sums: one less than there are terms."""
        terms = int(np.prod(args[: op.attrs["rank"]], dtype=np.int64))
        for kind, result in zip(op.attrs["kinds"], op.results, strict=False):
            if kind in ("sum", "prod", "max", "min", "argmax", "argmin") and result.type.is_float:
                self.add(kind, max(terms - 1, 0))


def _added(op: Op) -> list[Value]:
    """Operands that are added to something."""
    if op.name == "par":
        kinds = op.attrs["kinds"]
        return [v for kind, v in zip(kinds, op.regions[0].yielded, strict=False) if kind == "sum"]
    return op.operands[1:2] if op.name == "accum" else op.operands if op.name in ("add", "sub") else []


def count(function: Function, args: list[Any]) -> tuple[float, Counter[str]]:
    """Arithmetic of one call, on the graph that code is made from."""
    compiler, root, places = function.recipe()
    graph, name = compiler.optimized(root, places, "f64")
    tally = Arithmetic(graph)
    evaluate, par, accum = interpreter.evaluate, interpreter.EXECUTE["par"], interpreter.EXECUTE["accum"]
    touched: dict[tuple, Any] = {}  # the handle is kept, so that no other has its identity

    def counted(op: Op, operands: Any) -> Any:
        tally.scalar(op, operands)
        return evaluate(op, operands)

    def counted_par(frame: Any, op: Op, values: list) -> list:
        tally.reduction(op, values)
        return par(frame, op, values)

    def counted_accum(frame: Any, op: Op, values: list) -> list:
        place = (id(values[0]), *values[2:])
        if place in touched:
            tally.add("accum", 1)
        touched[place] = values[0]
        return accum(frame, op, values)

    interpreter.evaluate = counted
    interpreter.EXECUTE |= {"par": counted_par, "accum": counted_accum}
    try:
        leaves = [leaf for arg in args for leaf in (arg if isinstance(arg, tuple) else (arg,))]
        interpreter.run(graph, name, leaves)
    finally:
        interpreter.evaluate = evaluate
        interpreter.EXECUTE |= {"par": par, "accum": accum}
    return tally.total, tally.counts


# Samples ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A function of a sample, the parameters to differentiate by, and arguments."""

    sample: str
    name: str
    wrt: tuple[str, ...]
    args: list[Any]


def cases() -> list[Case]:
    rng = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    gmm = np.load(SAMPLES / "data" / "gmm_d10_K25.npz")
    lstm = np.load(SAMPLES / "data" / "lstm_l2_c1024.npz")
    mlp = [random(6, 8), random(8), random(8, 3), random(3), random(10, 6)]
    parts = ("alpha", "mu", "q", "l")
    points = [*(gmm[name] for name in parts), gmm["x"][:8], int(gmm["m"]), float(gmm["gamma"])]
    memory = [lstm["main_params"], lstm["extra_params"], lstm["state"], lstm["sequence"][:12]]
    return [
        Case("rosenbrock", "rosenbrock", ("x",), [random(30)]),
        Case("llsq", "objective", ("x",), [random(6), 40]),
        Case("logistic", "loss", ("w", "b"), [random(8), 0.3, random(20, 8), rng.integers(0, 2, 20) * 1.0, 0.1]),
        Case("mlp", "loss", ("w1", "b1", "w2", "b2"), [*mlp, rng.integers(0, 3, 10)]),
        Case("mlp", "scores", ("w1", "b1", "w2", "b2"), mlp),
        Case("kmeans", "cost", ("centroids",), [random(5, 3), random(40, 3)]),
        Case("gmm", "gmm_objective", parts, points),
        Case("lstm", "lstm_objective", ("main_params", "extra_params"), memory),
        Case("heat", "misfit", ("conductivity", "source"), [0.4, random(20), random(20), 15]),
        Case("heat", "simulate", ("conductivity", "source"), [0.4, random(20), 15]),
        Case("ode_rk4", "rk4", ("start", "damping"), [random(2), 0.2, 2.0, 20]),
        Case("black_scholes", "price", ("spot", "strike", "rate", "vol", "time"), [1.1, 1.0, 0.03, 0.3, 0.8]),
    ]


def print_costs(only: str) -> bool:
    """The table; whether every ratio is within the limit."""
    print(f"{'function':30} {'function':>10} {'gradient':>10} {'ratio':>6}   most of the gradient")
    within = True
    for case in cases():
        label = f"{case.sample}.{case.name}"
        if only not in label:
            continue
        f = getattr(ad.compile(SAMPLES / f"{case.sample}.grad"), case.name)
        value = f(*case.args)
        scalar = np.ndim(value) == 0
        g = f.value_and_grad(wrt=case.wrt) if scalar else f.value_and_vjp(wrt=case.wrt)
        plain, _ = count(f, case.args)
        full, counts = count(g, case.args if scalar else [*case.args, np.ones_like(value)])
        ratio = full / plain
        within = within and ratio <= LIMIT
        note = f"   over {LIMIT:g}: {WHY.get(label, 'look into this')}" if ratio > LIMIT else ""
        most = ", ".join(f"{n} {name}" for name, n in counts.most_common(40) if weight(name) * n > 0.12 * full)
        print(f"{label:30} {plain:10.0f} {full:10.0f} {ratio:6.2f}   {most}{note}")
    return within


# S21 to S24 ------------------------------------------------------------------------------------------------------

LONG = """
fn kept(p: f64, n: i64) -> f64 { var x = 1.0; @checkpoint(segments = 1000) for t in 0..n { x = cos(x + p) }; x }
fn full(p: f64, n: i64) -> f64 { var x = 1.0; for t in 0..n { x = cos(x + p) }; x }
"""
NARROW = """
fn looped(w: f32, x: f32[n]) -> f32 { var s = w - w; for i in 0..n { s += w * x[i] }; s }
fn summed(w: f32, x: f32[n]) -> f32 = sum(w * x[i] for i in 0..n)
fn product(w: f32[1], x: f32[n]) -> f32 = sum(reshape(x, n, 1) @ w)
fn rows(w: f32[1], x: f32[n]) -> f32 = sum(w[0] * x[i] for i in 0..n)
fn scattered(w: f32[1], x: f32[n]) -> f32 = sum(w[i64(x[i]) - 1] * x[i] for i in 0..n)
"""
PAIRS = """
fn energy(x: f64[n], y: f64[n], cell: i64[n]) -> f64 {
    var e = 0.0
    for i in 0..n {
        for j in 0..i {
            if cell[i] == cell[j] {
                let r2 = (x[i] - x[j])**2 + (y[i] - y[j])**2 + 0.01
                e += 1.0 / r2 + exp(-r2)
            }
        }
    }
    e
}
"""
STEPS = """
fn f(p: f64[m]) -> f64 {{
    var x = p
    for t in 0..{n} {{ x = cos(x + p * x[0]); if x[0] > 2.0 {{ break }} }}
    sum(x)
}}
"""


def peak() -> float:
    """The most memory this process had since `forget_peak`, in MB."""
    for line in STATUS.read_text().splitlines() if STATUS.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def forget_peak() -> None:
    """The compiler needed more memory than what it made will; where the system cannot forget, figures are too low."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def measured(f: Function, small: list[Any], args: list[Any]) -> tuple[Any, float, float]:
    """Result, seconds, and memory beyond what a small call needs."""
    f(*small)
    forget_peak()
    before, start = peak(), time.perf_counter()
    result = f(*args)
    return result, time.perf_counter() - start, peak() - before


def long_loop(name: str) -> str:
    value, seconds, memory = measured(getattr(ad.compile_source(LONG), name).grad(), [0.0, 10], [0.0, 1_000_000])
    assert abs(value + 0.402489954324697) < 1e-12, value
    return f"dx/dp {value:.15f}, {memory:.2f} MB more, {seconds:.2f} s"


def narrow(name: str) -> str:
    g = getattr(ad.compile_source(NARROW), name).grad()
    w = np.ones(1, np.float32) if name in ("rows", "product", "scattered") else np.float32(1.0)
    x = np.ones(20_000_000, np.float32)
    value, seconds, memory = measured(g, [w, x[:3]], [w, x])
    value = float(np.ravel(value)[0])
    assert abs(value - 2e7) <= 2e7 * 1e-6, value
    return f"dw {value:.0f} of 20000000, {memory:.2f} MB more, {seconds:.2f} s"


def pairs(name: str) -> str:
    rng, n = np.random.default_rng(0), 20_000
    args = [rng.normal(size=n), rng.normal(size=n), rng.integers(0, 400, n)]
    g = ad.compile_source(PAIRS).energy.grad(wrt=("x", "y"))
    _, seconds, memory = measured(g, [v[:5] for v in args], args)
    return f"{n} points, {memory:.2f} MB more (a number per pair: {n * n * 8 / 2e6:.0f} MB), {seconds:.2f} s"


def trips(name: str) -> str:
    g = ad.compile_source(STEPS.format(n=name)).f.grad()
    compiler, root, places = g.recipe()
    compiler.program()
    start = time.perf_counter()
    code = compiler._object(root, places, g.interface, "f64")
    return f"{time.perf_counter() - start:.2f} s, {len(code.data)} bytes of object code"


ROWS = [
    ("S21", "1000 segments", long_loop, "kept"),
    ("S21", "full storage", long_loop, "full"),
    ("S22", "f32, added in a loop", narrow, "looped"),
    ("S22", "f32, sum", narrow, "summed"),
    ("S22", "f32, element of an array", narrow, "rows"),
    ("S22", "f32, element found by data", narrow, "scattered"),
    ("S22", "f32, matrix product", narrow, "product"),
    ("S23", "pair loop", pairs, "pairs"),
    ("S24", "compile, 10 steps", trips, "10"),
    ("S24", "compile, 1000000 steps", trips, "1000000"),
]


def print_limits(only: str) -> None:
    """Each row in a process of its own, so that memory is its own."""
    print()
    for position, (row, what, _, _) in enumerate(ROWS):
        if only in f"{row} {what}":
            command = [sys.executable, __file__, "--row", str(position)]
            found = subprocess.run(command, capture_output=True, text=True)
            print(f"{row} {what:26} {found.stdout.strip() or found.stderr.strip()[-400:]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows with this word in their name")
    parser.add_argument("--no-limits", action="store_true", help="only the table of arithmetic")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row is not None:
        _, _, run, name = ROWS[arguments.row]
        print(run(name))
        return 0
    within = print_costs(arguments.only)
    if not arguments.no_limits:
        print_limits(arguments.only)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
