"""Which passes run, in which order.

`run(module, names)` runs passes by name; `optimize(module, level)` a whole pipeline. With the environment variable
AOTDIFF_VERIFY set (or `verify=True`) the graph is verified after each pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from aotdiff.ir.graph import Func, Module
from aotdiff.ir.verifier import VerificationError, verify
from aotdiff.passes import (  # noqa: F401  (registers)
    acc_to_map,
    blocks,
    bounds,
    branch_sums,
    canonicalize,
    cse,
    dce,
    drop_unused,
    forward_accumulators,
    fuse,
    fuse_loops,
    hoist,
    hoist_checks,
    induction,
    inline,
    lift_accumulators,
    map_loops,
    maths_apart,
    merge_accumulators,
    merge_branches,
    merge_sweeps,
    parallel_loops,
    precompute,
    reciprocals,
    rows,
    short_axes,
    sink,
    specialize,
    split_loops,
    strip,
    unroll,
    widen_handles,
    widen_long_sums,
    widen_sums,
    wraps,
)
from aotdiff.passes.registry import PASSES, Pass, register, register_local

__all__ = ["CLEANUP", "PASSES", "PIPELINES", "PREPARE", "Pass", "optimize", "register", "register_local", "run"]

# Before differentiation: small ordinary code, derivative rules and `stop_gradient` still in place.
PREPARE = (
    *("inline", "canonicalize", "cse", "induction", "canonicalize", "cse", "dce"),
    *("specialize-sizes", "sink-arms", "short-axes", "rows", "map-loops", "split-loops"),
)

# After each round of differentiation.
CLEANUP = ("canonicalize", "cse", "dce")

_SCALAR = (
    *("strip", "drop-unused-functions", "widen-sums", "inline-small", *CLEANUP, "drop-unused-functions"),
    "widen-handles",
)
_LOOPS = (
    *("specialize-sizes", "drop-unused-functions"),
    *("induction", "bounds", *CLEANUP, "short-axes", "rows", "map-loops", "free-loops", "hoist-checks", "hoist"),
    *("fuse", *CLEANUP, "fuse-loops", *CLEANUP),
    *("precompute", *CLEANUP),
    *("merge-accumulators", "lift-accumulators", "forward-accumulators", "acc-to-map", "blocks", *CLEANUP),
    *("fuse", "bounds", *CLEANUP, "fuse-loops", "cse", "merge-branches", *CLEANUP),
    *("unroll", *CLEANUP, "fuse", "lift-accumulators", "forward-accumulators", "acc-to-map", *CLEANUP),
    *("adjoint-loops", "branch-sums", "widen-sums-but-contractions", "canonicalize", "hoist"),
    *("merge-sweeps", "precompute", *CLEANUP, "fuse", *CLEANUP, "hoist", "reciprocals", "split-wraps"),
)

# After differentiation, by optimisation level.
PIPELINES: dict[int, tuple[str, ...]] = {
    0: ("strip", "drop-unused-functions", "widen-sums", "widen-handles", "widen-long-sums"),
    1: (*_SCALAR, "widen-long-sums", *CLEANUP),
    2: (*_SCALAR, *_LOOPS),
    3: (*_SCALAR, *_LOOPS),
}


def run(module: Module, names: Sequence[str], verify_each: bool = False, only: Iterable[Func] | None = None) -> None:
    """Run passes in order, in place; `only` limits passes that look at one function at a time to these functions."""
    checking = verify_each or bool(os.environ.get("AOTDIFF_VERIFY"))
    functions = None if only is None else list(only)
    for name in names:
        if name not in PASSES:
            raise ValueError(f"no pass is called {name!r}; there are {', '.join(sorted(PASSES))}")
        PASSES[name].run(module, functions)
        if checking:
            _verify_after(module, name, functions)


def _verify_after(module: Module, name: str, functions: list[Func] | None) -> None:
    try:
        verify(module, functions)
    except VerificationError as error:
        error.add_note(f"after pass {name}")
        raise


def optimize(module: Module, level: int = 3, verify_each: bool = False) -> None:
    """The whole pipeline of an optimisation level (0 to 3) on a module without derivative operations."""
    run(module, PIPELINES[max(0, min(3, level))], verify_each)
