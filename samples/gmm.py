"""The gradient of ADBench's Gaussian mixture, against values computed elsewhere."""

from pathlib import Path

import numpy as np

import aotdiff as ad

here = Path(__file__).parent
objective = ad.compile(here / "gmm.grad").gmm_objective
inputs = np.load(here / "data" / "gmm_d10_K25.npz")
expected = np.load(here / "data" / "gmm_d10_K25.expected.npz")

wrt = ("alpha", "mu", "q", "l")
value, gradients = objective.value_and_grad(wrt=wrt)(**{k: v[()] for k, v in inputs.items()})
print(f"objective {value:.10g}")
assert np.isclose(value, expected["objective"], rtol=1e-10)
for name, gradient in zip(wrt, gradients):
    assert np.allclose(gradient, expected[f"grad_{name}"], rtol=1e-9, atol=1e-9), name
