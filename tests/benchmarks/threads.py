"""What a second thread gives: gradients in one thread and in two, on processors that nobody else uses, if possible.

    python tests/benchmarks/threads.py [--evals gmm,lse] [--sizes S,L] [--threads 2] [--seconds 2]

Calls in one and in several threads take turns in one process. Times are microseconds, the least and the median of what
`--seconds` allow; on a loaded machine (the load is printed) the least says more. Work in small pieces stays in one
thread: there both columns are the same but for noise. The last columns tell why a ratio is what it is: processor time
of the thread that calls, one thread against several (what the helpers took off it), and of all threads, several against
one (what sharing costs).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import aotdiff as ad

EVALS = ("llsq", "lse", "ode", "gmm", "lstm", "kmeans", "rosenbrock", "heat", "blackscholes", "ba", "mlp")
Times = tuple[float, float, float]  # wall, processor time of this thread, of all threads; in seconds


def once(call: Callable[[], Any]) -> Times:
    start = time.perf_counter(), time.thread_time(), time.process_time()
    call()
    return time.perf_counter() - start[0], time.thread_time() - start[1], time.process_time() - start[2]


def measure(call: Callable[[], Any], counts: tuple[int, int], seconds: float) -> dict[int, list[Times]]:
    """Turns of each number of threads; the first call of a turn warms up."""
    found: dict[int, list[Times]] = {count: [] for count in counts}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(found[counts[0]]) < 5:
        for count in counts:
            ad.set_num_threads(count)
            call()
            found[count].append(once(call))
    return found


def median(times: list[Times], which: int) -> float:
    return sorted(t[which] for t in times)[len(times) // 2]


def row(name: str, size: str, times: dict[int, list[Times]]) -> str:
    one, several = times.values()
    least, least_several = min(t[0] for t in one), min(t[0] for t in several)
    wall, wall_several = median(one, 0), median(several, 0)
    caller = median(one, 1) / max(median(several, 1), 1e-9)
    return (
        f"| {name} | {size} | {1e6 * least:.1f} | {1e6 * least_several:.1f} | {least / least_several:.2f} | "
        f"{wall / wall_several:.2f} | {caller:.2f} | {median(several, 2) / median(one, 2):.2f} |"
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
