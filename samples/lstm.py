"""The gradient of ADBench's LSTM, against values computed elsewhere."""

from pathlib import Path

import numpy as np

import aotdiff as ad

here = Path(__file__).parent
objective = ad.compile(here / "lstm.grad").lstm_objective
inputs = np.load(here / "data" / "lstm_l2_c1024.npz")
expected = np.load(here / "data" / "lstm_l2_c1024.expected.npz")

wrt = ("main_params", "extra_params")
value, gradients = objective.value_and_grad(wrt=wrt)(**inputs)
print(f"loss {value:.10g}")
assert np.isclose(value, expected["objective"], rtol=1e-10)
for name, gradient in zip(wrt, gradients):
    assert np.allclose(gradient, expected[f"grad_{name}"], rtol=1e-10, atol=1e-13), name
