"""k-means by Newton's method: one step moves each centroid to the mean of its points."""

from pathlib import Path

import numpy as np

import aotdiff as ad

m = ad.compile(Path(__file__).with_suffix(".grad"))
rng = np.random.default_rng(1)
points = np.concatenate([rng.normal(c, 0.1, (50, 2)) for c in ([0, 0], [1, 1], [0, 1])])
centroids = np.array([[0.2, 0.1], [0.8, 0.9], [0.1, 0.8]])
for _ in range(3):
    centroids = centroids - m.newton_direction(centroids, points)
print(f"cost {m.cost(centroids, points):.4f} at\n{np.round(centroids, 3)}")
assert np.allclose(centroids, [points[:50].mean(0), points[50:100].mean(0), points[100:].mean(0)])
