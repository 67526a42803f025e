"""A compiled gradient inside a kernel of one's own, written with Numba CUDA. Needs a GPU."""

from pathlib import Path

import numpy as np
from numba import cuda

import aotdiff as ad

m = ad.compile(Path(__file__).parents[1] / "black_scholes.grad")
greeks = m.price.value_and_grad(wrt=("spot", "vol")).device_function()


@cuda.jit
def hedge(spot, strike, vol, out):
    i = cuda.grid(1)
    if i < spot.shape[0]:
        price, delta, vega = greeks(spot[i], strike[i], 0.03, vol[i], 1.0)
        out[i] = price - delta * spot[i]


if __name__ == "__main__":
    n = 100_000
    spot, strike = cuda.to_device(np.linspace(90.0, 110.0, n)), cuda.to_device(np.full(n, 100.0))
    vol, out = cuda.to_device(np.linspace(0.1, 0.4, n)), cuda.device_array(n)
    hedge[(n + 255) // 256, 256](spot, strike, vol, out)
    print("cash leg", out.copy_to_host().mean())
