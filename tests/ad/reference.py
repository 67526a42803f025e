"""Comparing derivatives with differences of the interpreter's values."""

from __future__ import annotations

import math

import numpy as np

from aotdiff.ad.reverse import vjp_func
from aotdiff.ir.graph import Func, Module
from aotdiff.ir.interpreter import run
from aotdiff.ir.types import element_of
from aotdiff.ir.verifier import verify


def is_float(value_type) -> bool:
    return getattr(element_of(value_type), "is_float", False)


def perturbed(args: list, direction: dict[int, object], h: float) -> list:
    return [a + h * direction[k] if k in direction else a for k, a in enumerate(args)]


def random_like(rng: np.random.Generator, value):
    return rng.normal(size=value.shape) if isinstance(value, np.ndarray) else float(rng.normal())


def pairing(xs, ys) -> float:
    return float(sum(np.sum(np.asarray(x) * np.asarray(y)) for x, y in zip(xs, ys, strict=True)))


def slope(module: Module, func: Func, args: list, cts: list, direction: dict[int, object]) -> tuple[float, float]:
    """Central difference of <cts, float results> along `direction`, and an estimate of its error."""

    def at(h: float) -> float:
        results = run(module, func.name, perturbed(args, direction, h))
        return pairing([r for r, t in zip(results, func.result_types, strict=True) if is_float(t)], cts)

    coarse, fine = ((at(h) - at(-h)) / (2 * h) for h in (2e-5, 1e-5))
    best = (4 * fine - coarse) / 3
    return best, abs(fine - coarse) + 1e-6 * (1 + abs(best))


def random_cts(rng: np.random.Generator, module: Module, func: Func, args: list) -> list:
    results = run(module, func.name, args)
    return [random_like(rng, r) for r, t in zip(results, func.result_types, strict=True) if is_float(t)]


def float_params(func: Func) -> tuple[int, ...]:
    return tuple(k for k, p in enumerate(func.params) if is_float(p.type))




def check_orders(module: Module, func: Func, args: list, orders: int, seed: int = 0) -> Func:
    """The vjp, the vjp of the vjp ... each against differences of the one before; the last one is returned."""
    rng = np.random.default_rng(seed)
    verify(module)
    for order in range(1, orders + 1):
        cts = random_cts(rng, module, func, args)
        wrt = float_params(func)
        reverse = vjp_func(module, func, wrt, False)
        verify(module)
        gradient = run(module, reverse.name, [*args, *cts])
        direction = {k: random_like(rng, args[k]) for k in wrt}
        expected, error = slope(module, func, args, cts, direction)
        found = pairing(gradient, [direction[k] for k in wrt])
        sizes = [abs(np.asarray(d)) for d in direction.values()]
        scale = 1 + max(abs(expected), pairing([abs(np.asarray(g)) for g in gradient], sizes))
        if error < 1e-2 * scale and math.isfinite(expected):
            assert abs(found - expected) < 20 * error + 1e-5 * scale, f"order {order}: {found} is not {expected}"
        func, args = reverse, [*args, *cts]
    return func
