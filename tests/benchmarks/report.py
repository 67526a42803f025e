"""The table of timings, and each target with what was measured.

    python tests/benchmarks/report.py [--pythons PYTHON,PYTHON] [--evals gmm,lse] [--json out.json]

Peers are whatever the interpreters in --pythons can import (the one that runs this is always tried) and, with a C
compiler, adjoints written by hand in C. Peers that are missing leave the lines that need them open. Each figure comes
from processes of its own, pinned to one core but for the line about two threads; ratios to C and numpy are those of
calls that take turns in one process. Without peers but C it takes some minutes.
"""

import argparse
import json
import math
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

SIZES = ("S", "M", "L")
FRAMEWORKS = ("jax", "torch", "enzyme")
AGAINST_C = ("llsq", "lse", "gmm", "lstm", "kmeans", "rosenbrock", "heat", "ode")
PRODUCTS = ("gmm_hvp", "rosenbrock_hvp", "mlp_hvp")
LONG_ENOUGH = 2000.0  # us of work that two threads should share
TURN, LEAST_TURNS = 100e-6, 15  # seconds that one turn takes at least, where two peers take turns; turns
PAGES = 500_000  # bytes that no process can be asked to account for: pages of code, of Python's own
GROWTH = {
    "lse": lambda n: {"n": n},
    "rosenbrock": lambda n: {"n": n},
    "lstm": lambda n: {"layers": 1, "c": n // 100, "b": 14},
}
DECADES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
# Small enough for the interpreter, which counts operations.
TINY = {
    "llsq": {"n": 12, "m": 6}, "lse": {"n": 30}, "ode": {"n": 12, "s": 3}, "gmm": {"d": 3, "k": 3, "n": 6},
    "lstm": {"layers": 2, "c": 5, "b": 4}, "kmeans": {"n": 20, "k": 4, "d": 3}, "det": {"ell": 4},
    "rosenbrock": {"n": 20}, "mlp": {"widths": (8, 6, 5, 3), "batch": 4}, "heat": {"n": 10, "steps": 5},
    "blackscholes": {"n": 5},
}  # fmt: skip


# One process each ------------------------------------------------------------------------------------------------


def status(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes; 0 where the system does not tell."""
    path = Path("/proc/self/status")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def page_faults(call: Callable[[], object]) -> int:
    """Of one call; the system takes pages away for its own reasons now and then."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def inputs(name: str, size: str, kwargs: dict | None = None) -> dict:
    import workloads

    base = name.removesuffix("_hvp")
    data = workloads._GEN[base](workloads._rng(base, size), **(kwargs or workloads.SIZES[name][size]))
    for key in workloads.DIFF[base] if name != base else ():
        data["dir_" + key] = data[key] + 1.0
    return data


def one_process(request: dict) -> dict:
    """Milliseconds of the first gradient; for the size asked for, bytes beyond inputs, page faults, median time."""
    import run_peers

    run_peers.pin(1)
    name, peer = request["eval"], __import__(request["peer"] + "_peers")
    small = peer.build(name, inputs(name, "S"))
    start = time.perf_counter()
    small["grad"]()
    first = time.perf_counter() - start
    data = inputs(name, request["size"], request.get("kwargs"))
    forget_peak()
    before = status("VmRSS")
    functions = peer.build(name, data)
    results = functions["grad"]()
    peak = status("VmHWM") - before
    size = sum(getattr(r, "nbytes", 8) for r in results)
    del results
    functions["grad"]()
    faults = min(page_faults(functions["grad"]) for _ in range(5))
    timed = run_peers.measure(functions["grad"], 5, request.get("seconds", 0.2), 5.0)
    return {"first_ms": first * 1e3, "peak": peak, "results": size, "faults": faults, "us": timed["median_us"]}


def turn(request: dict) -> dict:
    """The time of a gradient as a multiple of a peer's, by size: calls of both take turns in this process.

    Whatever slows this machine down for a while then meets both. Of each the fastest quarter counts.
    """
    import run_peers

    run_peers.pin(1)
    found: dict[str, float] = {}
    for size in SIZES:
        data = inputs(request["eval"], size)
        modules = [__import__(m) for m in ("aotdiff_peers", request["module"])]
        calls = [m.build(request["eval"], data)["grad"] for m in modules]
        for call in calls:
            call()
        repeats = max(1, round(TURN / max(seconds(calls[1], 3), 1e-9)))
        taken: list[list[float]] = [[], []]
        end = time.monotonic() + request["seconds"]
        while time.monotonic() < end or len(taken[0]) < LEAST_TURNS:
            for which, call in enumerate(calls):
                taken[which].append(seconds(call, repeats))
        ours, theirs = (sorted(t)[len(t) // 4] for t in taken)
        found[size] = ours / theirs
    return found


def seconds(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def ask(python: str, env: dict, **request: object) -> dict:
    command = [python, str(HERE / "report.py"), "--one", json.dumps(request)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"error": (done.stderr.strip().splitlines() or ["no answer"])[-1][:160]}


# Timings ---------------------------------------------------------------------------------------------------------


def timings(arguments: argparse.Namespace, peers: list[str], threads: int, env: dict) -> dict:
    """What `run_peers.py` measured: its JSON."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, str(HERE / "run_peers.py"), "--peers", ",".join(peers), "--threads", str(threads)]
        command += ["--evals", arguments.evals, "--pythons", ",".join(pythons(arguments)), "--json", file.name]
        command += ["--min-seconds", str(arguments.seconds)]
        subprocess.run(command, env=env, check=False, stdout=None if threads == 1 else subprocess.DEVNULL)
        return json.loads(Path(file.name).read_text())


def pythons(arguments: argparse.Namespace) -> list[str]:
    return [sys.executable, *(p for p in arguments.pythons.split(",") if p)]


class Times:
    """Medians by eval, size and peer; of the fastest calls instead where others use the machine too.

    `turns` are ratios to peers that run in the process of aotdiff, by eval and peer and size (see `turn`).
    """

    def __init__(self, measured: dict, fastest: bool = False):
        self.turns: dict[tuple[str, str], dict[str, float]] = {}
        self.rows = {(r["eval"], r["size"], r["peer"]): r for r in measured["rows"] if "error" not in r}
        self.key = "min_us" if fastest else "median_us"

    def grad(self, name: str, size: str, peer: str = "aotdiff") -> float | None:
        row = self.rows.get((name, size, peer))
        return None if row is None else row["grad"][self.key]

    def primal(self, name: str, size: str, peer: str = "aotdiff") -> float | None:
        row = self.rows.get((name, size, peer))
        return None if row is None else row["primal"][self.key]

    def best(self, name: str, size: str, peers: tuple[str, ...]) -> float | None:
        found = [t for t in (self.grad(name, size, p) for p in peers) if t is not None]
        return min(found) if found else None

    def ratios(self, name: str, peers: tuple[str, ...]) -> list[float | None]:
        """aotdiff as a multiple of the best of some peers, by size."""
        return [max((r for p in peers if (r := self.ratio(name, s, p)) is not None), default=None) for s in SIZES]

    def ratio(self, name: str, size: str, peer: str) -> float | None:
        in_turn = self.turns.get((name, peer), {}).get(size)
        return over(self.grad(name, size), self.grad(name, size, peer)) if in_turn is None else in_turn


def take_turns(arguments: argparse.Namespace, evals: list[str], times: Times, env: dict) -> None:
    """Fill `times.turns`, for the peers that this interpreter has."""
    against = ("handc", "handc_peers", (*AGAINST_C, "blackscholes")), ("numpy", "numpy_ref", ("mlp",))
    for peer, module, names in against:
        for name in names if peer in arguments.peers else ():
            if name in evals:
                found = ask(sys.executable, env, turns=True, eval=name, module=module, seconds=3 * arguments.seconds)
                if "error" not in found:
                    times.turns[name, peer] = found


def over(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None or b == 0 else a / b


def summary(times: Times, evals: list[str]) -> list[str]:
    """Gradients in microseconds, as multiples of C, and how many times slower the fastest framework is."""
    lines = [
        "| gradient, microseconds | S | M | L | times C, S / M / L | fastest framework, times, S / M / L |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in evals:
        own = ["–" if (t := times.grad(name, s)) is None else f"{t:.1f}" if t < 1000 else f"{t:.0f}" for s in SIZES]
        others = [over(times.best(name, s, FRAMEWORKS), times.grad(name, s)) for s in SIZES]
        shown = [
            "" if not any(values) else " / ".join("–" if v is None else f"{v:.{digits}f}" for v in values)
            for values, digits in ((times.ratios(name, ("handc",)), 2), (others, 1))
        ]
        lines.append(f"| {name} | " + " | ".join([*own, *shown]) + " |")
    return lines


# Targets ---------------------------------------------------------------------------------------------------------


def line(what: str, wanted: str, values: list[float | None], limit: float, at_least: bool = False) -> list[str]:
    """A row of the table: what was wanted, what was measured, whether all that was measured is within the limit."""
    known = [v for v in values if v is not None]
    shown = " / ".join("–" if v is None else f"{v:.2f}" for v in values)
    met = all(v >= limit if at_least else v <= limit for v in known)
    return [what, wanted, shown, ("met" if met else "not met") if known else "not measured"]


def speed_lines(times: Times, evals: list[str]) -> list[list[str]]:
    rows = [
        line(name, "at most 1.15 of C", times.ratios(name, ("handc",)), 1.15) for name in AGAINST_C if name in evals
    ]
    others = [
        ("blackscholes", "at most 1.3 of C", ("handc",), 1.3),
        ("ba", "at most 0.25 of the best framework", FRAMEWORKS, 0.25),
        ("det", "at most the best framework", FRAMEWORKS, 1.0),
        ("mlp", "at most 1.05 of JAX and numpy", ("jax", "numpy"), 1.05),
    ]
    rows += [
        line(name, wanted, times.ratios(name, peers), limit) for name, wanted, peers, limit in others if name in evals
    ]
    for name in PRODUCTS:
        if name in evals:
            slopes = [over(times.grad(name, s), times.primal(name, s)) for s in SIZES]
            rows.append(line(name, "at most 2.5 gradients", slopes, 2.5))
            rows.append(line(name, "at most 0.5 of JAX", times.ratios(name, ("jax",)), 0.5))
    means = [mean([over(times.best(n, s, FRAMEWORKS), times.grad(n, s)) for n in evals]) for s in SIZES]
    rows.append(line("mean against the best framework", "at least 4 at S", means[:1], 4.0, at_least=True))
    rows.append(line("mean against the best framework", "at least 2.5 at M, L", means[1:], 2.5, at_least=True))
    return rows


def mean(values: list[float | None]) -> float | None:
    known = [math.log(v) for v in values if v is not None]
    return math.exp(sum(known) / len(known)) if known else None


def work_lines(evals: list[str]) -> list[list[str]]:
    """Arithmetic of value and gradient over that of the function, as `cost.py` counts it."""
    import cost
    import numpy as np
    import workloads
    from aotdiff_peers import PROGRAMS, REST

    import aotdiff as ad

    rows = []
    for name in (n for n in evals if n in TINY):
        data = workloads._GEN[name](np.random.default_rng(0), **TINY[name])
        names = ("A",) if name == "det" else tuple(workloads.DIFF[name])
        args = [data[key] for key in (*workloads.DIFF[name], *REST[name])]
        f = getattr(ad.compile(PROGRAMS / f"{name}.grad"), "det_minors" if name == "det" else name)
        g = f.value_and_grad(wrt=names) if np.ndim(f(*args)) == 0 else None
        ratio = None if g is None else cost.count(g, args)[0] / cost.count(f, args)[0]
        rows.append(line(f"{name}: arithmetic", "gradient at most 4 functions", [ratio], 4.0))
    return rows


def thread_lines(one: Times, two: Times, evals: list[str]) -> list[list[str]]:
    rows = []
    for name in evals:
        gains = [over(one.grad(name, s), two.grad(name, s)) for s in SIZES]
        long = [(one.grad(name, s) or 0.0) > LONG_ENOUGH for s in SIZES]
        rows.append(
            line(
                f"{name}: two threads",
                "1.7 where long",
                [g for g, on in zip(gains, long, strict=True) if on],
                1.7,
                True,
            )
        )
    return [row for row in rows if row[2]]


def process_lines(arguments: argparse.Namespace, evals: list[str], times: Times, env: dict) -> list[list[str]]:
    """Compile time, time from the cache, memory, allocation."""
    rows = []
    for name in evals:
        cold = times.rows.get((name, "S", "aotdiff"))
        if cold is not None:
            rows.append(line(f"{name}: compile, s", "at most 1", [cold["grad"]["first_cpu_ms"] / 1e3], 1.0))
        ours = ask(sys.executable, env, peer="aotdiff", eval=name, size="L")
        if "error" in ours:
            rows.append([name, "memory", ours["error"], "not measured"])
            continue
        rows.append(line(f"{name}: from the cache, ms", "at most 50", [ours["first_ms"]], 50.0))
        hand = ask(sys.executable, env, peer="handc", eval=name, size="L") if "handc" in arguments.peers else {}
        if "peak" in hand:
            sizes = f"{ours['peak'] / 1e6:.1f} MB, C {hand['peak'] / 1e6:.1f}"
            more = max(ours["peak"] - PAGES, 0) / max(hand["peak"], PAGES)
            rows.append(line(f"{name}: memory ({sizes})", "at most 1.1 of C", [more], 1.1))
        rows.append(line(f"{name}: page faults of a later call", "none", [ours["faults"]], 0.9))
    return rows


def growth(arguments: argparse.Namespace, env: dict) -> list[str]:
    """Time and memory of three evals over four decades; beside them the time of C, which meets the same caches."""
    lines = [
        "| eval | size | us | ns an element | MB beyond inputs | time of ten times as much | the same for C |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, sizes in GROWTH.items():
        last: dict[str, float] = {}
        for n in DECADES:
            found, steps = {}, []
            for peer in ("aotdiff", "handc") if "handc" in arguments.peers else ("aotdiff",):
                one = ask(sys.executable, env, peer=peer, eval=name, kwargs=sizes(n), size="", seconds=0.2)
                found = found or one
                steps.append(f"{one['us'] / last[peer]:.1f}" if "us" in one and peer in last else "")
                last[peer] = one.get("us", math.nan)
            if "error" in found:
                lines.append(f"| {name} | {n} | {found['error']} | | | | |")
                continue
            shown = [f"{found['us']:.1f}", f"{found['us'] / n * 1e3:.2f}", f"{found['peak'] / 1e6:.1f}", *steps]
            lines.append(f"| {name} | {n} | " + " | ".join(shown) + " |")
    return lines


def markdown(rows: list[list[str]]) -> str:
    return "\n".join(
        ["| line | wanted | measured | |", "|---|---|---|---|", *("| " + " | ".join(r) + " |" for r in rows)]
    )


def processor() -> str:
    path = Path("/proc/cpuinfo")
    names = [
        t.split(":")[1].strip() for t in (path.read_text().splitlines() if path.exists() else ()) if "model name" in t
    ]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", default="", help="further interpreters, with peers")
    parser.add_argument("--peers", default="handc,numpy,jax,torch,enzyme")
    parser.add_argument("--evals", default="all")
    parser.add_argument("--seconds", type=float, default=0.3, help="at least so long for each time")
    parser.add_argument("--fastest", action="store_true", help="the fastest call instead of the median one")
    parser.add_argument("--skip", default="", help="parts to leave out: work,threads,process,growth")
    parser.add_argument("--json", help="also leave what was measured in this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        request = json.loads(arguments.one)
        print(json.dumps(turn(request) if "turns" in request else one_process(request)))
        return 0
    import run_peers
    import workloads

    began = time.time()
    evals = workloads.NAMES if arguments.evals == "all" else arguments.evals.split(",")
    peers = [p for p in arguments.peers.split(",") if p != "handc" or shutil.which(os.environ.get("CC", "gcc"))]
    arguments.peers = peers
    with tempfile.TemporaryDirectory() as cache:
        env = {**run_peers.child_env(1), "AOTDIFF_CACHE": cache}
        measured = timings(arguments, ["aotdiff", *peers], 1, env)
        times = Times(measured, arguments.fastest)
        take_turns(arguments, evals, times, env)
        rows = speed_lines(times, evals)
        if "work" not in arguments.skip:
            rows += work_lines(evals)
        if "threads" not in arguments.skip and len(os.sched_getaffinity(0)) > 1:
            rows += thread_lines(times, Times(timings(arguments, ["aotdiff"], 2, env), arguments.fastest), evals)
        if "process" not in arguments.skip:
            rows += process_lines(arguments, evals, times, env)
        print("\n" + "\n".join(summary(times, evals)))
        print("\n" + markdown(rows), flush=True)
        if "growth" not in arguments.skip:
            print("\n" + "\n".join(growth(arguments, env)))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({**measured, "lines": rows}, indent=1))
    print(f"\n{datetime.now(UTC):%d %B %Y}; {processor()}; " + "; ".join(sorted(measured["versions"].values())))
    met, missed = (sum(r[3] == word for r in rows) for word in ("met", "not met"))
    print(f"{met} lines met, {missed} not; {time.time() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
