"""Each pass from text to text.

A file of `golden/` is cases between lines of `=`: comments that begin with `#` say what is shown, the first line which
passes run (`# run: fuse, dce`), then come the input, a line of `-` and the output. AOTDIFF_UPDATE_GOLDEN=1 writes the
outputs anew, for review. Input and output are also run on some arguments, and must agree.
"""

import os
import pathlib
import re

import numpy as np
import pytest

from aotdiff.ir.parser import parse_module
from aotdiff.ir.printer import print_module
from aotdiff.ir.types import Array, Scalar
from aotdiff.ir.verifier import verify
from aotdiff.passes import pipeline

from .test_random import agree, outcome

FOLDER = pathlib.Path(__file__).parent / "golden"
FILES = sorted(path.name for path in FOLDER.glob("*.ssa"))
UPDATE = bool(os.environ.get("AOTDIFF_UPDATE_GOLDEN"))


def cases(text: str) -> list[str]:
    return [part.strip("\n") for part in re.split(r"(?m)^=+$", text) if part.strip()]


def split(case: str) -> tuple[list[str], str, str]:
    """Passes to run, input with its comments, output."""
    before, _, after = (case + "\n").partition("\n----\n")
    names = re.match(r"# run: (.*)", before)
    assert names, f"a case begins with '# run: PASS, ...':\n{case}"
    return [name.strip() for name in names[1].split(",")], before, after.strip("\n")


def arguments(func, seed: int) -> list:
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(0, 4, 4)] if seed else [2, 2, 2, 2]
    values = []
    for p in func.params:
        if isinstance(p.type, Array):
            shape = [d if d is not None else sizes[k] for k, d in enumerate(p.type.dims)]
            values.append(rng.integers(0, 2, shape) if p.type.element == Scalar("i64") else rng.uniform(-2, 2, shape))
        elif p.type.is_float:
            values.append(float(rng.uniform(-2, 2)))
        else:
            values.append(int(rng.integers(0, 3)) if p.type == Scalar("i64") else bool(rng.integers(0, 2)))
    return values


@pytest.mark.parametrize("name", FILES)
def test_golden(name):
    path = FOLDER / name
    written = []
    for case in cases(path.read_text()):
        names, before, expected = split(case)
        module = parse_module(before)
        verify(module)
        pipeline.run(module, names, verify_each=True)
        found = print_module(module).strip("\n")
        if UPDATE:
            written.append(f"{before}\n----\n{found}\n")
            continue
        assert found == expected, f"{name}:\n{before}"
        original = parse_module(before)
        for seed in range(4):
            args = arguments(original.funcs["f"], seed)
            rtol = 1e-5 if "f32" in before else 1e-8
            assert agree(outcome(original, args), outcome(module, args), exact=False, rtol=rtol), f"{before}\n{args}"
    if UPDATE:
        path.write_text(f"{'=' * 40}\n".join(written))


def test_every_pass_has_a_golden_file():
    covered = {name.strip() for file in FILES for line in (FOLDER / file).read_text().splitlines()
               if line.startswith("# run: ") for name in line[7:].split(",")}  # fmt: skip
    assert covered >= pipeline.PASSES.keys() - {"sink-arms", "induction", "drop-unused-functions", "inline-small"}
