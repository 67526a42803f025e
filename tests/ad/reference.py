"""Comparing derivatives with differences of the interpreter's values."""

from __future__ import annotations

import numpy as np

from aotdiff.ir.graph import Func, Module
from aotdiff.ir.interpreter import run
from aotdiff.ir.types import element_of


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


