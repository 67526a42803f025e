"""What the tests of the lowering share: programs as text, run by the graph's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotdiff.ad.expand import expand_derivatives
from aotdiff.frontend.check import check
from aotdiff.frontend.lower import lower
from aotdiff.frontend.program import load_source
from aotdiff.ir.graph import Module
from aotdiff.ir.interpreter import ExecutionError, run
from aotdiff.ir.verifier import verify


def lowered(source: str, real: str = "f64") -> Module:
    """The verified graph of a program."""
    module = lower(check(load_source(source)), real)
    verify(module)
    return module


def call(source: str, name: str, *args: Any, real: str = "f64") -> Any:
    """The result of a function; a list of several."""
    module = lowered(source, real)
    expand_derivatives(module)
    verify(module)
    results = run(module, name, [np.asarray(a) if isinstance(a, list) else a for a in args])
    return results[0] if len(results) == 1 else results


def fails(source: str, name: str, *args: Any, kind: str, line: int, has: str = "") -> None:
    """The call stops with this kind of error, at this line of the source (from 1), saying `has`."""
    with pytest.raises(ExecutionError) as caught:
        call(source, name, *args)
    assert caught.value.kind == kind, caught.value
    assert caught.value.loc is not None
    assert caught.value.loc.line == line, caught.value
    assert has in caught.value.message, caught.value


def checks(source: str, name: str) -> list[str]:
    """The messages of the run-time checks left in a function."""
    module = lowered(source)
    return [op.attrs["message"] for op in module.funcs[name].body.walk() if op.name == "check"]


def close(found: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    """Equal shapes and values."""
    assert np.shape(found) == np.shape(wanted), (found, wanted)
    floats = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    np.testing.assert_allclose(*floats, rtol=tolerance, atol=tolerance)
