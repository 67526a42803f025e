"""Forward against reverse on random nests of every construct, to third order and in every mix of the two modes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aotdiff.ad.forward import jvp_func
from aotdiff.ad.reverse import vjp_func
from aotdiff.ir.graph import Module
from aotdiff.ir.interpreter import run
from aotdiff.ir.verifier import verify
from tests.ad.programs import Generator
from tests.ad.reference import float_params, pairing, random_cts, random_like


def check_mixes(seed: int, orders: int, **options: int) -> None:
    """For each way to reach a derivative of a lower order: its jvp and its vjp are transposes of each other."""
    for modes in itertools.chain(*(itertools.product("fr", repeat=k) for k in range(orders))):
        module = Module()
        func = module.add(Generator(seed, **options).func())
        rng = np.random.default_rng(seed)
        args = [0.4, rng.normal(size=3) * 0.7, rng.normal(size=(2, 3)) * 0.7]
        for mode in modes:
            wrt = float_params(func)
            if mode == "f":
                args = [*args, *(random_like(rng, args[k]) for k in wrt)]
                func = jvp_func(module, func, wrt, False)
            else:
                args = [*args, *random_cts(rng, module, func, args)]
                func = vjp_func(module, func, wrt, False)
        wrt = float_params(func)
        cts = random_cts(rng, module, func, args)
        direction = [random_like(rng, args[k]) for k in wrt]
        forward, reverse = jvp_func(module, func, wrt, False), vjp_func(module, func, wrt, False)
        verify(module)
        tangents = run(module, forward.name, [*args, *direction])
        gradients = run(module, reverse.name, [*args, *cts])
        left, right = pairing(tangents, cts), pairing(gradients, direction)
        size = 1 + pairing([abs(np.asarray(g)) for g in gradients], [abs(np.asarray(d)) for d in direction])
        assert left == pytest.approx(right, abs=1e-9 * size), f"after {modes}: {left} is not {right}"


@pytest.mark.parametrize("seed", range(25))
def test_flat(seed: int) -> None:
    check_mixes(seed, 3, depth=1, length=3)


@pytest.mark.parametrize("seed", range(20))
def test_nested(seed: int) -> None:
    check_mixes(1000 + seed, 2, depth=2, length=3)
