"""Random nests of every construct, differentiated three times, against differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aotdiff.ad.reverse import vjp_func
from aotdiff.ir.graph import Module
from aotdiff.ir.interpreter import run
from aotdiff.ir.verifier import verify
from tests.ad.programs import Generator
from tests.ad.reference import float_params, pairing, random_cts, random_like, slope


def check_orders(seed: int, orders: int, **options: int) -> None:
    """The vjp, the vjp of the vjp ... each against differences of the one before."""
    module = Module()
    func = module.add(Generator(seed, **options).func())
    verify(module)
    rng = np.random.default_rng(seed)
    args = [0.4, rng.normal(size=3) * 0.7, rng.normal(size=(2, 3)) * 0.7]
    for order in range(1, orders + 1):
        cts = random_cts(rng, module, func, args)
        wrt = float_params(func)
        reverse = vjp_func(module, func, wrt, False)
        verify(module)
        gradient = run(module, reverse.name, [*args, *cts])
        direction = {k: random_like(rng, args[k]) for k in wrt}
        expected, error = slope(module, func, args, cts, direction)
        found = pairing(gradient, [direction[k] for k in wrt])
        scale = 1 + max(abs(expected), pairing([abs(np.asarray(g)) for g in gradient], [abs(np.asarray(d)) for d in direction.values()]))
        if error < 1e-2 * scale and math.isfinite(expected):
            assert abs(found - expected) < 20 * error + 1e-5 * scale, f"order {order}: {found} is not {expected}"
        func, args = reverse, [*args, *cts]


@pytest.mark.parametrize("seed", range(40))
def test_flat(seed: int) -> None:
    check_orders(seed, 3, depth=1, length=3)


@pytest.mark.parametrize("seed", range(40))
def test_nested(seed: int) -> None:
    check_orders(1000 + seed, 2, depth=2, length=3)
