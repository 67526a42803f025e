"""Logistic regression by gradient descent on two overlapping clouds of points."""

from pathlib import Path

import numpy as np

import aotdiff as ad

m = ad.compile(Path(__file__).with_suffix(".grad"))
rng = np.random.default_rng(0)
x = np.concatenate([rng.normal(-1.0, 1.0, (200, 2)), rng.normal(1.0, 1.0, (200, 2))])
label = np.repeat([0.0, 1.0], 200)

slope = m.loss.value_and_grad(wrt=("w", "b"))
w, b = np.zeros(2), 0.0
for _ in range(200):
    value, (gw, gb) = slope(w, b, x, label, 1e-3)
    w, b = w - gw, b - gb
print(f"loss {value:.4f}, accuracy {m.accuracy(w, b, x, label):.3f}")
assert m.accuracy(w, b, x, label) > 0.89
