"""What the tests of the rows share: leaves, constants, and the compiled functions the rows name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import aotdiff as ad

module = ad.compile(Path(__file__).with_name("functions.grad"))


def T(value: Any, dtype: Any = np.float64) -> ad.Tensor:
    """A leaf that requires grad."""
    return ad.tensor(value, dtype=dtype, requires_grad=True)


def C(value: Any, dtype: Any = np.float64) -> ad.Tensor:
    """A tensor that does not require grad."""
    return ad.tensor(value, dtype=dtype)


def _by_rank(name: str) -> Any:
    def call(x: ad.Tensor, *rest: Any) -> Any:
        return module[f"{name}{x.ndim}"](x, *rest)

    call.__name__ = name
    return call


square, cube, triple, mul, add, sum_, sumsq, exp, sqrt, relu, sincos = map(
    _by_rank, ["square", "cube", "triple", "mul", "add", "sum", "sumsq", "exp", "sqrt", "relu", "sincos"]
)
matvec, weighted, top, pair = module["matvec"], module["weighted1"], module["top1"], module["pair"]


def values(t: Any) -> Any:
    """Numbers of a tensor as nested lists."""
    return t.detach().numpy().tolist()
