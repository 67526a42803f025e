"""Random programs as device functions with a workspace, executed on the CPU against the functions themselves."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from aotdiff.codegen.gpu.device import Refused

import aotdiff as ad
from tests.fuzz.generator import program
from tests.fuzz.oracle import TOLERANCE, arguments, distance, hash_text, wild
from tests.fuzz.tree import layout
from tests.gpu.agreement import forms, leaves, outcome, tangents
from tests.gpu.test_device_functions import OnCpu

ERRORS = {IndexError: 1, ValueError: 2, ZeroDivisionError: 3, ad.AssertionFailed: 4}


@pytest.mark.parametrize("number", range(8))
def test_values_gradients_and_errors(number: int) -> None:
    name = f"device:{number}"
    made = program(name)
    if made.element == "f32":
        pytest.skip("the harness calls f64 functions")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = ad.compile_source(layout(made.text()) + "\nexport f\n")
        for f in forms(name, made, module):
            args = arguments(made.element, np.random.default_rng(abs(hash_text(name))), False)
            given = [*args, *(tangents(args, np.random.default_rng(5)) if "vp(" in f.name else [])]
            compare(f, given, outcome(f, given), TOLERANCE.get(made.element, 2e-9))


def compare(f: ad.Function, given: list, wanted: list | Exception, tolerance: float) -> None:
    try:
        made = OnCpu(f, workspace=1 << 20)
    except Refused as refused:
        assert "calls itself" in refused.message
        return
    failed = isinstance(wanted, Exception)
    shapes = [(1,) * r.rank for r in made.code.results] if failed else [np.shape(w) for w in wanted]
    status, found = made([leaf for a in given for leaf in leaves(a)], shapes)
    if failed:
        assert status == ERRORS[type(wanted)], (f.name, wanted)
        return
    assert status == 0, f.name
    assert wild(wanted) or distance(wanted, found) <= 10 * tolerance, f.name
