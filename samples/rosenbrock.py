"""Newton's method on the Rosenbrock function with a compiled gradient and Hessian."""

from pathlib import Path

import numpy as np

import aotdiff as ad

f = ad.compile(Path(__file__).with_suffix(".grad")).rosenbrock
slope, curvature = f.value_and_grad(), f.hessian()

x = np.array([0.8, 0.9, 0.7, 0.8])
for _ in range(20):
    value, g = slope(x)
    if np.linalg.norm(g) < 1e-10:
        break
    x = x - np.linalg.solve(curvature(x), g)
print(f"minimum {value:.3e} at {np.round(x, 6)}")
assert np.allclose(x, 1.0)
