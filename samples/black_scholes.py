"""Greeks of an option, and the deltas of a whole book in one call."""

import math
from pathlib import Path

import numpy as np

import aotdiff as ad

m = ad.compile(Path(__file__).with_suffix(".grad"))
option = (100.0, 95.0, 0.03, 0.2, 0.5)
print(f"price {m.price(*option):.4f} delta {m.delta(*option):.4f} gamma {m.gamma(*option):.5f}")

spot, strike, rate, vol, time = option
d1 = (math.log(spot / strike) + (rate + 0.5 * vol**2) * time) / (vol * math.sqrt(time))
assert math.isclose(m.delta(*option), 0.5 * math.erfc(-d1 / math.sqrt(2.0)), rel_tol=1e-12)
deltas, _ = m.book_delta_vega(np.full(3, spot), np.full(3, strike), rate, np.full(3, vol), np.full(3, time))
assert np.allclose(deltas, m.delta(*option))
