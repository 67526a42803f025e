"""Random nests of every construct, differentiated three times, against differences."""

from __future__ import annotations

import numpy as np
import pytest

from aotdiff.ir.graph import Module
from tests.ad.programs import Generator
from tests.ad.reference import check_orders


def check_random(seed: int, orders: int, **options: int) -> None:
    module = Module()
    func = module.add(Generator(seed, **options).func())
    rng = np.random.default_rng(seed)
    check_orders(module, func, [0.4, rng.normal(size=3) * 0.7, rng.normal(size=(2, 3)) * 0.7], orders, seed)


@pytest.mark.parametrize("seed", range(40))
def test_flat(seed: int) -> None:
    check_random(seed, 3, depth=1, length=3)


@pytest.mark.parametrize("seed", range(40))
def test_nested(seed: int) -> None:
    check_random(1000 + seed, 2, depth=2, length=3)
