"""Random programs on the emulated device against the CPU: `python tests/gpu/agreement.py SEED FIRST COUNT`."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

import aotdiff as ad
from tests.fuzz.generator import program
from tests.fuzz.oracle import TOLERANCE, arguments, distance, hash_text, wild
from tests.fuzz.tree import layout

ERRORS = (ArithmeticError, LookupError, ValueError, AssertionError)


def outcome(f: Any, args: Sequence[Any]) -> list[Any] | Exception:
    """Result leaves, or the error raised."""
    try:
        found = f(*args)
    except ERRORS as error:
        return error
    return leaves(found)


def leaves(found: Any) -> list[Any]:
    return [leaf for part in found for leaf in leaves(part)] if isinstance(found, tuple) else [found]


def forms(name: str, made: Any, module: Any) -> list[Any]:
    """The function, its gradient, and now and then its Hessian times a direction."""
    f, wrt = module.f, ("x", "s", "a")
    first = f.value_and_grad(wrt=wrt) if made.result == "f" else f.value_and_jvp(wrt=wrt)
    return [f, first, *([f.hvp(wrt=wrt)] if made.result == "f" and hash_text(name) % 5 == 0 else [])]


def compare(name: str) -> str:
    """One program with two sets of arguments; "" if all is well, "recursion" if the device refuses it.

    Half of the programs are not optimised: more becomes kernels, and the host has more to do.
    """
    made = program(name)
    text = layout(made.text()) + "\nexport f\n"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        device_module = ad.compile_source(text, target="emulated", opt=0 if hash_text(name) % 2 else 3)
        pairs = list(zip(forms(name, made, ad.compile_source(text)), forms(name, made, device_module), strict=True))
        for point in range(2):
            rng = np.random.default_rng(abs(hash_text(f"{name} {point}")))
            args = arguments(made.element, rng, point == 1 and hash_text(name) % 6 == 0)
            for cpu, device in pairs:
                try:
                    device.prepare("f64" if made.element != "f32" else "f32")
                except ad.CompileError as error:
                    assert "recursion" in str(error), error
                    return "recursion"
                extra = tangents(args, np.random.default_rng(5)) if "vp(" in cpu.name else []
                problem = differ(outcome(cpu, [*args, *extra]), outcome(device, [*args, *extra]), made.element)
                if problem:
                    return f"{cpu.name} at point {point}: {problem}"
    return ""


def tangents(args: Sequence[Any], rng: np.random.Generator) -> list[Any]:
    return [np.asarray(rng.normal(size=np.shape(v)), np.asarray(v).dtype)[()] for v in args[:3]]


def differ(cpu: list[Any] | Exception, device: list[Any] | Exception, element: str) -> str:
    """What is wrong with the device's results, if anything."""
    if isinstance(cpu, Exception) or isinstance(device, Exception):
        same = type(cpu) is type(device)
        return "" if same else f"{cpu!r} on the CPU, {device!r} on the device"
    if wild(cpu):
        return ""
    if len(cpu) != len(device) or distance(cpu, device) > 10 * TOLERANCE.get(element, 2e-9):
        return f"{cpu} on the CPU, {device} on the device"
    return ""


def main() -> int:
    seed, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    failed, refused = 0, 0
    for number in range(first, first + count):
        try:
            problem = compare(f"{seed}:{number}")
        except Exception:
            problem = traceback.format_exc(limit=-3)
        refused += problem == "recursion"
        if problem and problem != "recursion":
            failed += 1
            print(f"{seed}:{number}: {problem}", flush=True)
    print(f"{count} programs, {failed} failed, {refused} refused for recursion")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
