"""Memory of a gradient beyond its arguments, against the adjoint written by hand in C.

    python tests/benchmarks/memory.py [--evals gmm,lstm] [--sizes L]

Each figure is from a process of its own that has compiled nothing: how much more memory it held at the most while the
gradient was called a few times, results included. The limit is what the hand-written adjoint takes plus a tenth (and
64 KiB, below which pages cannot be told apart). The last column is what the third call allocates besides results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
EVALS = ("llsq", "lse", "ode", "gmm", "lstm", "kmeans", "rosenbrock", "heat", "blackscholes")
SLACK = 64  # KiB


def status(name: str) -> int:
    """A figure of this process in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def child(peer: str, name: str, size: str) -> dict[str, int]:
    import importlib

    import workloads

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    data = workloads.make(name, size)
    small = workloads.make(name, "S")
    module = importlib.import_module(peer + "_peers")
    if peer == "handc":
        module.build(name, small)["grad"]()  # compiled, loaded
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        grad = module.build(name, data)["grad"]
    else:
        grad = module.build(name, data)["grad"]
        module.build(name, small)["grad"]()  # every page of the program
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
    for _ in range(2):
        grad()  # its results are gone before the next
    held = spaces()
    grad()
    return {"kib": status("VmHWM") - before, "again": spaces() != held}


def spaces() -> list[tuple[int, int]]:
    """The workspaces of calls: where each begins and how large it is."""
    from aotdiff.runtime import native

    return [(space.data.chunks, space.data.total) for space in [native.shared.workspace, *native._free]]


def measure(peer: str, name: str, size: str, env: dict[str, str]) -> dict[str, int]:
    command = [sys.executable, __file__, "--child", peer, "--evals", name, "--sizes", size]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evals", default=",".join(EVALS))
    parser.add_argument("--sizes", default="L")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.evals, options.sizes)))
        return 0
    print("| gradient | size | aotdiff, KiB | by hand, KiB | ratio | allocated again |\n|---|---|--:|--:|--:|--:|")
    over = []
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "AOTDIFF_CACHE": cache}
        for name in options.evals.split(","):
            for size in options.sizes.split(","):
                measure("aotdiff", name, size, env)  # compiles
                ours, hand = measure("aotdiff", name, size, env), measure("handc", name, size, env)
                limit = 1.1 * hand["kib"] + SLACK
                over += [f"{name} {size}"] if ours["kib"] > limit or ours["again"] else []
                ratio = ours["kib"] / max(hand["kib"], 1)
                again = "yes" if ours["again"] else "nothing"
                print(f"| {name} | {size} | {ours['kib']} | {hand['kib']} | {ratio:.2f} | {again} |", flush=True)
    print(f"# over the limit: {', '.join(over) or 'none'}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
