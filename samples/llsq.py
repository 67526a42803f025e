"""Least squares by the normal equations: the Hessian of the objective is constant."""

from pathlib import Path

import numpy as np

import aotdiff as ad

m = ad.compile(Path(__file__).with_suffix(".grad"))
n, zero = 64, np.zeros(6)
x = np.linalg.solve(m.objective.hessian()(zero, n), -m.gradient(zero, n))
print(f"residual {m.objective(x, n):.6f}, coefficients {np.round(x, 4)}")

t = np.linspace(-1.0, 1.0, n)
basis = np.vander(t, 6, increasing=True)
assert np.allclose(x, np.linalg.lstsq(basis, np.sign(t), rcond=None)[0])
