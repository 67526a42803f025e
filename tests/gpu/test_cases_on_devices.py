"""The cases, with the values expected of them, on the emulated device. What recurses is refused there."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import pytest

import aotdiff as ad
from tests.cases import run as cases

FOLDER = Path(cases.__file__).parent
# The functions of a case that call themselves: the rest of the case runs.
RECURSIVE = {
    "cost_recursion": ("continued_fraction", "harmonic"),
    "endless_recursion": ("adding", "last", "mutual"),
    "found_call_in_condition": ("halvings",),
    "found_errors_in_gradients": ("unused_walk",),
    "found_recursion_in_jacobian": ("products",),
    "integers": ("gcd",),
    "recursion": ("power", "pairwise", "sine_next", "legendre", "horner"),
}


class Emulated:
    """What a case asks of the package, for the emulated device."""

    CompileError = ad.CompileError
    compile = staticmethod(functools.partial(ad.compile, target="emulated"))


def programs() -> list[Path]:
    found = sorted(path for path in FOLDER.glob("*.grad") if path.with_suffix(".json").exists())
    return [path for path in found if "compile_errors" not in path.with_suffix(".json").read_text()]


@pytest.mark.parametrize("path", programs(), ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    refused = RECURSIVE.get(path.stem, ())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for label, problem in cases.run_case(Emulated, path):
            name = label.split(":")[1].split(".")[0]
            if name in refused:
                assert problem is not None and "recursion does not run on a device" in problem, label
            else:
                assert problem is None or problem.startswith("took "), f"{label}: {problem}"
