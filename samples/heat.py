"""Find the source that heats a rod to a wanted profile, by gradient descent through the time loop."""

from pathlib import Path

import numpy as np

import aotdiff as ad

m = ad.compile(Path(__file__).with_suffix(".grad"))
n, steps = 16, 100
target = np.sin(np.linspace(0.0, np.pi, n))
target[0], target[-1] = 1.0, -0.5
slope = m.misfit.value_and_grad(wrt="source")
source = np.zeros(n)
first = m.misfit(1.0, source, target, steps)
for _ in range(100):
    value, g = slope(1.0, source, target, steps)
    source = source - 0.1 * g
print(f"misfit {first:.4f} -> {value:.4f}")
assert value < 0.5 * first
