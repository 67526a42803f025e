"""How the end of a pendulum's swing depends on its start: the volume in phase space shrinks as exp(-damping * time)."""

import math
from pathlib import Path

import numpy as np

import aotdiff as ad

m = ad.compile(Path(__file__).with_suffix(".grad"))
start, damping, time = np.array([1.0, 0.0]), 0.1, 5.0
s = m.sensitivity(start, damping, time, 500)
print(f"end {m.rk4(start, damping, time, 500)}, sensitivity\n{s}")
assert math.isclose(np.linalg.det(s), math.exp(-damping * time), rel_tol=1e-9)
