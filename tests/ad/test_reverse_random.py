"""Random nests of every construct, differentiated three times, against differences."""

from __future__ import annotations

import numpy as np
import pytest

from aotdiff.ad.reverse import use_records, vjp_func
from aotdiff.ir.graph import Module
from aotdiff.ir.interpreter import run
from aotdiff.ir.verifier import verify
from tests.ad.programs import Generator
from tests.ad.reference import check_orders, float_params, random_cts


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


@pytest.mark.parametrize("seed", range(25))
def test_calls(seed: int) -> None:
    """With calls that stay calls, among them recursive ones; twice, and the first with records."""
    rng = np.random.default_rng(seed)
    args = [0.4, rng.normal(size=3) * 0.7, rng.normal(size=(2, 3)) * 0.7]
    module = Generator(seed, depth=1, length=3).module()
    check_orders(module, module.funcs["f"], args, 2, seed)
    module = Generator(seed, depth=1, length=3).module()
    func = module.funcs["f"]
    args += random_cts(rng, module, func, args)
    reverse = vjp_func(module, func, float_params(func), True)
    expected = run(module, reverse.name, args)
    use_records(module)
    verify(module)
    for a, b in zip(run(module, reverse.name, args), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
