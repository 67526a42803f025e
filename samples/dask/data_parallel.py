"""Logistic regression over a cluster: each worker has a part of the data, gradients of the parts are added.

    pip install distributed
    python samples/dask/data_parallel.py            # a cluster on this machine; give an address for another

A compiled function pickles by its source, so workers compile it once (or find it in their cache) and keep it.
"""

import sys
from pathlib import Path

import numpy as np

import aotdiff as ad

HERE = Path(__file__).parent
WRT = ("w", "b")
RIDGE = 1e-3


def total(client, gradient, w, b, parts):
    """Loss and gradients over all parts, which live on the workers. Both are means: each part counts by its rows."""
    found = client.gather([client.submit(on_part, gradient, w, b, part, pure=False) for part in parts])
    rows = sum(count for count, _, _ in found)
    value = sum(count / rows * v for count, v, _ in found)
    gradients = tuple(sum(count / rows * g[k] for count, _, g in found) for k in range(len(WRT)))
    return value, gradients


def on_part(gradient, w, b, part):
    """What a worker does."""
    x, label = part
    value, gradients = gradient(w, b, x, label, RIDGE)
    return len(label), value, gradients


def data(n=4000, d=20):
    random = np.random.default_rng(0)
    x = random.normal(size=(n, d))
    label = (x @ np.linspace(-1.0, 1.0, d) + 0.5 > 0.0).astype(float)
    return x, label


def main(address=None, steps=30):
    from distributed import Client

    loss = ad.compile(HERE.parent / "logistic.grad").loss
    gradient = loss.value_and_grad(wrt=WRT)
    x, label = data()
    w, b = np.zeros(x.shape[1]), 0.0
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with Client(address, **({} if address else options)) as client:
        pieces = list(zip(np.array_split(x, 8), np.array_split(label, 8)))
        parts = client.scatter(pieces)
        value, (gw, gb) = total(client, gradient, w, b, parts)
        whole, (ww, wb) = gradient(w, b, x, label, RIDGE)
        assert np.isclose(value, whole, rtol=1e-12) and np.allclose(gw, ww, rtol=1e-10) and np.isclose(gb, wb)
        for _ in range(steps):
            value, (gw, gb) = total(client, gradient, w, b, parts)
            w, b = w - 2.0 * gw, b - 2.0 * gb
    print(f"loss {whole:.4f}, after {steps} steps {value:.4f}")
    assert value < 0.5 * whole
    return value


if __name__ == "__main__":
    main(*sys.argv[1:])
