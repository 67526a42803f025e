"""What a second thread gives: gradients in one thread and in two, on processors that nobody else uses, if possible.

    python tests/benchmarks/threads.py [--evals gmm,lse] [--sizes S,L] [--threads 2] [--seconds 2]

Calls in one and in several threads take turns in one process, each first every other time; calls that are short are
timed several at once. Times are microseconds, the least of what `--seconds` allow; the ratios are that of these and the
median over the pairs of turns, which are side by side in time, so that load (it is printed) meets both. Work in small
pieces stays in one thread: there both are the same but for noise. The last columns tell why a ratio is what it is:
processor time of the thread that calls, one thread against several (what the helpers took off it), and of all threads,
several against one (what sharing costs).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import aotdiff as ad

EVALS = ("llsq", "lse", "ode", "gmm", "lstm", "kmeans", "rosenbrock", "heat", "blackscholes", "ba", "mlp")
_TURN, _LEAST = 1e-3, 5  # seconds that a turn takes at least, and turns
Times = tuple[float, float, float]  # wall, processor time of this thread, of all threads; in seconds


def once(call: Callable[[], Any], repeats: int) -> Times:
    """The times of one call, as the mean of several one after the other."""
    start = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(repeats):
        call()
    found = time.perf_counter() - start[0], time.thread_time() - start[1], time.process_time() - start[2]
    return found[0] / repeats, found[1] / repeats, found[2] / repeats


def measure(call: Callable[[], Any], counts: tuple[int, int], seconds: float) -> dict[int, list[Times]]:
    """Turns of each number of threads; the first call of a turn warms up."""
    found: dict[int, list[Times]] = {count: [] for count in counts}
    call()
    repeats = max(1, round(_TURN / max(min(once(call, 1)[0] for _ in range(3)), 1e-7)))
    end = time.monotonic() + seconds
    order = counts
    while time.monotonic() < end or len(found[counts[0]]) < _LEAST:
        for count in order:
            ad.set_num_threads(count)
            call()
            found[count].append(once(call, repeats))
        order = order[::-1]
    return found


def ratio(over: list[Times], under: list[Times], which: int) -> float:
    """The median over the pairs of turns."""
    return statistics.median(a[which] / max(b[which], 1e-9) for a, b in zip(over, under, strict=True))


def row(name: str, size: str, times: dict[int, list[Times]]) -> str:
    one, several = times.values()
    least, least_several = min(t[0] for t in one), min(t[0] for t in several)
    return (
        f"| {name} | {size} | {1e6 * least:.1f} | {1e6 * least_several:.1f} | {least / least_several:.2f} | "
        f"{ratio(one, several, 0):.2f} | {ratio(one, several, 1):.2f} | {ratio(several, one, 2):.2f} |"
    )


def main() -> int:
    import aotdiff_peers
    import workloads

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evals", default=",".join(EVALS))
    parser.add_argument("--sizes", default="S,L")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each gradient")
    options = parser.parse_args()
    print(f"# {len(os.sched_getaffinity(0))} processors, load {os.getloadavg()[0]:.1f}, {options.threads} threads")
    print("| gradient | size | one thread | several | ratio, least | ratio, median | caller | all |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for name in options.evals.split(","):
        for size in options.sizes.split(","):
            call = aotdiff_peers.build(name, workloads.make(name, size))["grad"]
            print(row(name, size, measure(call, (1, options.threads), options.seconds)), flush=True)
    print(f"# load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
