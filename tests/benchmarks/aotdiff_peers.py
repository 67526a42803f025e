"""aotdiff on every eval: one `.grad` program each (`programs/`), written as a user would write it."""

from pathlib import Path

from workloads import DIFF

import aotdiff as ad

PROGRAMS = Path(__file__).parent / "programs"
VERSION = f"aotdiff {ad.__version__}"

# Parameters after the differentiated ones, in the order of the program.
REST = {
    "llsq": ["t", "s"],
    "lse": [],
    "ode": ["s"],
    "gmm": ["x", "m", "gamma", "wishart_const"],
    "lstm": ["state", "seq"],
    "kmeans": ["points"],
    "ba": ["feats", "obs"],
    "det": [],
    "rosenbrock": [],
    "mlp": ["X", "Y"],
    "heat": ["target", "steps"],
    "blackscholes": ["strike", "T"],
}


def _arguments(base, data):
    return [data[key] for key in DIFF[base] + REST[base]]


def _tuple(result):
    return list(result) if isinstance(result, tuple) else [result]


def build(name, data):
    """{'primal': thunk -> value, 'grad': thunk -> list of arrays}, in the order of DIFF."""
    base = name.removesuffix("_hvp")
    module = ad.compile(PROGRAMS / f"{base}.grad")
    args = _arguments(base, data)
    if base == "ba":
        return {"primal": lambda: module.ba_value(*args), "grad": lambda: list(module.ba(*args))}
    f = getattr(module, "det_minors" if base == "det" else base)
    wrt = tuple(key if base != "det" else "A" for key in DIFF[base])
    if name.endswith("_hvp"):
        directions = [data["dir_" + key] for key in DIFF[base]]
        h, g = f.hvp(wrt=wrt), f.grad(wrt=wrt)
        return {"primal": lambda: g(*args), "grad": lambda: _tuple(h(*args, *directions)), "primal_value": lambda: 0.0}
    if base == "kmeans":
        return {"primal": lambda: f(*args), "grad": lambda: list(module.kmeans_both(*args))}
    g = f.value_and_grad(wrt=wrt)
    return {"primal": lambda: f(*args), "grad": lambda: _tuple(g(*args)[1])}
