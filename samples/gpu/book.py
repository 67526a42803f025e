"""Deltas and vegas of a book of options on the GPU ("emulated" as argument: where there is none)."""

import sys
from pathlib import Path

import numpy as np

import aotdiff as ad

where = sys.argv[1] if len(sys.argv) > 1 else "cuda"
m = ad.compile(Path(__file__).parents[1] / "black_scholes.grad", target=where)
ranges = [(90.0, 110.0), (80.0, 120.0), (0.1, 0.4), (0.25, 2.0)]
spot, strike, vol, time = (ad.tensor(np.linspace(*r, 100_000), device=where) for r in ranges)
deltas, vegas = m.book_delta_vega(spot, strike, 0.03, vol, time)  # arrays of cupy, torch, jax and numba work too
print("delta", deltas.mean(), "vega", vegas.mean(), deltas.device)
