"""Train a small network to tell the inside of a ring from its outside."""

from pathlib import Path

import numpy as np

import aotdiff as ad

m = ad.compile(Path(__file__).with_suffix(".grad"))
rng = np.random.default_rng(2)
x = rng.uniform(-1.0, 1.0, (300, 2))
label = (np.hypot(x[:, 0], x[:, 1]) > 0.6).astype(np.int64)
weights = [rng.normal(size=(2, 16)), np.zeros(16), rng.normal(size=(16, 2)) / 4.0, np.zeros(2)]

slope = m.loss.value_and_grad(wrt=("w1", "b1", "w2", "b2"))
for _ in range(400):
    value, gradients = slope(*weights, x, label)
    weights = [w - 0.5 * g for w, g in zip(weights, gradients)]
accuracy = np.mean(m.predict(*weights, x) == label)
print(f"loss {value:.4f}, accuracy {accuracy:.3f}")
assert accuracy > 0.9
