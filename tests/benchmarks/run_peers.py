"""Time every peer on every eval, check that they agree, print one table.

    python run_peers.py --evals gmm,lse --sizes S,M --peers jax,torch,enzyme \
        --pythons venv1/bin/python,venv2/bin/python --json out.json

Each (peer, eval) pair runs in its own child process, under the first interpreter in
--pythons that can import the peer, with its thread pools and CPU affinity limited
to --threads.  A peer no interpreter can import is skipped.  Times are wall times of
one call from Python that returns finished arrays.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

PROBE = {
    "aotdiff": "aotdiff",
    "jax": "jax",
    "torch": "torch",
    "torchc": "torch",
    "enzyme": "enzyme_ad.jax",
    "handc": "numpy",
    "numpy": "numpy",
}
WARMUP, MIN_RUNS, MIN_SECONDS = 3, 10, 0.5


# Keep large temporaries on the heap instead of mapping and unmapping them at every call.
# A first touch of a page costs over a microsecond on a virtual machine, which otherwise
# dominates every peer that allocates its tape per call.
ARENA = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=268435456"
# lse differentiates through max: the largest element's adjoint is 1 - sum(softmax) + its own
# share, so peers that sum in a different order differ by n ulp there.
LOOSE = {"lse": 1e-7}


def child_env(threads, malloc="arena"):
    env = dict(os.environ)
    env.pop("GLIBC_TUNABLES", None)
    if malloc == "arena":
        env["GLIBC_TUNABLES"] = ARENA
    env.pop("OPENBLAS_CORETYPE", None)
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # else a first call compiles the peer's own Python each time
    for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"):
        env[k] = str(threads)
    eigen = "true" if threads > 1 else "false"
    env["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={eigen} intra_op_parallelism_threads={threads}"
    env["JAX_PLATFORMS"] = "cpu"
    env["TF_CPP_MIN_LOG_LEVEL"] = "3"
    return env


def pin(threads):
    if hasattr(os, "sched_setaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, set(cpus[-threads:]))


def measure(fn, min_runs, min_seconds, max_seconds):
    clock = time.perf_counter_ns
    t0, cpu = clock(), time.process_time()
    fn()
    first, first_cpu = clock() - t0, time.process_time() - cpu
    for _ in range(WARMUP - 1):
        fn()
        if clock() - t0 > max_seconds * 1e9:
            break
    times, start = [], clock()
    while True:
        a = clock()
        fn()
        b = clock()
        times.append(b - a)
        spent = (b - start) * 1e-9
        if (len(times) >= min_runs and spent >= min_seconds) or spent > max_seconds or len(times) >= 20000:
            break
    times.sort()
    return {
        "median_us": times[len(times) // 2] / 1e3,
        "min_us": times[0] / 1e3,
        "runs": len(times),
        "first_ms": first / 1e6,
        "first_cpu_ms": first_cpu * 1e3,
    }


def child(args):
    pin(args.threads)
    import numpy as np
    import workloads

    if args.child.startswith("torch"):
        import torch

        torch.set_num_threads(args.threads)
        torch.set_num_interop_threads(1)
    if args.child == "aotdiff":
        import aotdiff

        aotdiff.set_num_threads(args.threads)
    peer = importlib.import_module(args.child + "_peers" if args.child != "numpy" else "numpy_ref")
    name = args.evals
    out = {"version": peer.VERSION, "rows": []}
    for size in args.sizes.split(","):
        row = {"eval": name, "size": size, "peer": args.child, "threads": args.threads}
        try:
            data = workloads.make(name, size)
            fns = peer.build(name, data)
            row["primal"] = measure(fns["primal"], MIN_RUNS, args.min_seconds, args.max_seconds)
            row["grad"] = measure(fns["grad"], MIN_RUNS, args.min_seconds, args.max_seconds)
            val = fns["primal_value"]() if "primal_value" in fns else float(fns["primal"]())
            row["value"] = val
            parts = [
                np.asarray(g.detach() if hasattr(g, "detach") else g, dtype=np.float64).ravel() for g in fns["grad"]()
            ]
            np.save(os.path.join(args.scratch, f"{name}.{size}.{args.child}.npy"), np.concatenate(parts))
        except Exception as exc:  # a peer that cannot do an eval is a result, not a crash
            lines = [ln for ln in str(exc).splitlines() if ln.strip()]
            row["error"] = f"{type(exc).__name__}: {(lines or [''])[0][:200]}"
        out["rows"].append(row)
        with open(os.path.join(args.scratch, f"{name}.{args.child}.json"), "w") as fh:
            json.dump(out, fh)


def pick(peers, pythons, env):
    where = {}
    for peer in peers:
        for py in pythons:
            if subprocess.run([py, "-c", f"import {PROBE[peer]}"], env=env, capture_output=True).returncode == 0:
                where[peer] = py
                break
        else:
            print(f"# {peer}: not importable here, skipped", file=sys.stderr)
    return where


def agree(scratch, name, size, rows, np):
    """Relative error of every peer's gradient against the first peer's, in the max norm."""
    ref = None
    for row in rows:
        path = os.path.join(scratch, f"{name}.{size}.{row['peer']}.npy")
        if "error" in row or not os.path.exists(path):
            continue
        g = np.load(path)
        if ref is None:
            ref, v0, p0 = g, row["value"], row["peer"]
            row["agree"] = 0.0
            continue
        k = min(len(g), len(ref))
        if len(g) != len(ref) and name != "kmeans":  # kmeans: Enzyme gives the gradient only
            row["agree"] = float("inf")
            continue
        scale = max(float(np.max(np.abs(ref[:k]))), 1e-300)
        row["agree"] = max(
            float(np.max(np.abs(g[:k] - ref[:k]))) / scale, abs(row["value"] - v0) / max(abs(v0), 1e-300) if v0 else 0.0
        )
        row["agree_with"] = p0


def fmt(us):
    return f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def table(rows):
    lines = [
        "| eval | size | peer | primal us | gradient us | ratio | rel. diff | first grad ms |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        if "error" in r:
            lines.append(f"| {r['eval']} | {r['size']} | {r['peer']} | | | | {r['error']} | |")
            continue
        p, g = r["primal"]["median_us"], r["grad"]["median_us"]
        d = r.get("agree")
        differs = "" if d is None else "ref" if d == 0 and "agree_with" not in r else f"{d:.1e}"
        lines.append(
            f"| {r['eval']} | {r['size']} | {r['peer']} | {fmt(p)} | {fmt(g)} | {g / p:.2f} | "
            f"{differs} | {r['grad']['first_ms']:.0f} |"
        )
    return "\n".join(lines)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--evals", default="all")
    ap.add_argument("--sizes", default="S,M,L")
    ap.add_argument("--peers", default="jax,torch,enzyme")
    ap.add_argument("--pythons", default=sys.executable, help="comma-separated interpreters to try for each peer")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--min-seconds", type=float, default=MIN_SECONDS)
    ap.add_argument("--max-seconds", type=float, default=10.0)
    ap.add_argument("--timeout", type=float, default=300.0, help="seconds per child (one peer, one eval, all sizes)")
    ap.add_argument(
        "--malloc", choices=["arena", "default"], default="arena", help="allocator settings of the children"
    )
    ap.add_argument("--tolerance", type=float, default=1e-8)
    ap.add_argument("--json")
    ap.add_argument("--child", help=argparse.SUPPRESS)
    ap.add_argument("--scratch", help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.child:
        return child(args)

    import numpy as np
    import workloads

    evals = workloads.NAMES if args.evals == "all" else args.evals.split(",")
    sizes, env = args.sizes.split(","), child_env(args.threads, args.malloc)
    where = pick(args.peers.split(","), args.pythons.split(","), env)
    rows, versions, bad = [], {}, 0
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as cache:
        env["TORCHINDUCTOR_CACHE_DIR"] = cache  # compile times are cold
        for name in evals:
            mine = []
            for peer, py in where.items():
                cmd = [
                    py,
                    os.path.join(HERE, "run_peers.py"),
                    "--child",
                    peer,
                    "--scratch",
                    scratch,
                    "--evals",
                    name,
                    "--sizes",
                    args.sizes,
                    "--threads",
                    str(args.threads),
                    "--min-seconds",
                    str(args.min_seconds),
                    "--max-seconds",
                    str(args.max_seconds),
                ]
                note = ""
                try:
                    res = subprocess.run(cmd, env=env, capture_output=True, text=True, timeout=args.timeout)
                    if res.returncode:
                        tail = [ln for ln in res.stderr.splitlines() if ln.strip()]
                        note = f"exit {res.returncode}: {(tail or [''])[-1][:160]}"
                except subprocess.TimeoutExpired:
                    note = f"no answer in {args.timeout:.0f} s"
                path = os.path.join(scratch, f"{name}.{peer}.json")
                got = {"rows": []}
                if os.path.exists(path):
                    with open(path) as fh:
                        got = json.load(fh)
                    versions[peer] = got["version"]
                done = {r["size"] for r in got["rows"]}
                mine += got["rows"] + [
                    {"eval": name, "size": s, "peer": peer, "threads": args.threads, "error": note or "no result"}
                    for s in sizes
                    if s not in done
                ]
            mine.sort(key=lambda r: (sizes.index(r["size"]), list(where).index(r["peer"])))
            for s in sizes:
                agree(scratch, name, s, [r for r in mine if r["size"] == s], np)
            for f in os.listdir(scratch):
                os.unlink(os.path.join(scratch, f))
            text = table(mine)
            print(text if not rows else "\n".join(text.splitlines()[2:]), flush=True)
            rows += mine
            if args.json:
                described = {e: {s: workloads.describe(e, s) for s in sizes} for e in evals}
                with open(args.json, "w") as fh:
                    json.dump({"versions": versions, "rows": rows, "sizes": described}, fh, indent=1)
    for r in rows:
        if "error" not in r and r.get("agree", 0) > max(args.tolerance, LOOSE.get(r["eval"], 0)):
            bad += 1
            print(f"# disagree: {r['eval']} {r['size']} {r['peer']} against {r['agree_with']}: {r['agree']:.2e}")
    print("# versions: " + "; ".join(sorted(versions.values())))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
