"""Tensors against PyTorch, paired in one process: seconds per forward plus backward, and their ratio.

    python tensors.py [--json]          # in an environment that has torch 2.13 too

Each pair is timed in turns, so that both see the same machine; the best of the rounds counts. Threads: one each.
"""

from __future__ import annotations

import json
import os
import sys
import time

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402

import aotdiff as ad  # noqa: E402

SOURCE = """
fn sine(x: f64) -> f64 = sin(x)

fn ten(w: f64[n]) -> f64 = sum(sin(v) * exp(-v) + sqrt(v) * log(v + 1.0) / (v * v + 2.0) for v in w)
"""
LIMITS = {"one call": 1 / 5, "chain of 1000 calls": 1 / 5, "ten operations on 1e6 numbers": 1 / 3}


def pair(ours, theirs, inner, rounds=9):
    """Best times of both, in turns."""
    best = [float("inf"), float("inf")]
    for f in (ours, theirs):
        f()
    for _ in range(rounds):
        for k, f in enumerate((ours, theirs)):
            start = time.perf_counter()
            for _ in range(inner):
                f()
            best[k] = min(best[k], (time.perf_counter() - start) / inner)
    return best


def clear_and_backward(x, y):
    x.grad = None
    y.backward()


def workloads(torch):
    """Name, our function, torch's, calls per round."""
    m = ad.compile_source(SOURCE)
    x = ad.tensor(0.7, requires_grad=True)
    tx = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    w = np.linspace(0.1, 1.0, 10**6)
    v, tv = ad.tensor(w, requires_grad=True), torch.tensor(w, requires_grad=True)

    def chain(f, leaf):
        y = leaf
        for _ in range(1000):
            y = f(y)
        clear_and_backward(leaf, y)

    def theirs(t):
        return (torch.sin(t) * torch.exp(-t) + torch.sqrt(t) * torch.log(t + 1.0) / (t * t + 2.0)).sum()

    return [
        ("one call", lambda: clear_and_backward(x, m.sine(x)), lambda: clear_and_backward(tx, torch.sin(tx)), 3000),
        ("chain of 1000 calls", lambda: chain(m.sine, x), lambda: chain(torch.sin, tx), 3),
        ("ten operations on 1e6 numbers", lambda: clear_and_backward(v, m.ten(v)),
         lambda: clear_and_backward(tv, theirs(tv)), 1),
        ("operator x * x", lambda: clear_and_backward(x, x * x), lambda: clear_and_backward(tx, tx * tx), 2000),
        ("sum(w * w), 1e6 numbers", lambda: clear_and_backward(v, (v * v).sum()),
         lambda: clear_and_backward(tv, (tv * tv).sum()), 1),
    ]  # fmt: skip


def main() -> int:
    import torch

    torch.set_num_threads(1)
    rows = []
    for name, ours, theirs, inner in workloads(torch):
        a, b = pair(ours, theirs, inner)
        rows.append({"name": name, "aotdiff": a, "torch": b, "ratio": a / b, "limit": LIMITS.get(name)})
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=1))
        return 0
    print(f"{'forward + backward':32} {'aotdiff us':>12} {'torch us':>12} {'ratio':>7} {'limit':>7}")
    for row in rows:
        limit = "" if row["limit"] is None else f"{row['limit']:.2f}"
        print(
            f"{row['name']:32} {row['aotdiff'] * 1e6:12.2f} {row['torch'] * 1e6:12.2f} {row['ratio']:7.3f} {limit:>7}"
        )
    return int(any(row["limit"] is not None and row["ratio"] > row["limit"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
