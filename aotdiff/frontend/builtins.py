"""The built-in functions and constants of the language: one table for the checker and the lowering.

`kind` names the type rule (`check_builtins.py`) and groups the lowerings. `parameters` are the positional
parameters by name, as `wrt` and messages use them; the last `optional` of them may be left out; `variadic` lets
the last one repeat. `keywords` are given by name only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Builtin:
    name: str
    kind: str
    parameters: tuple[str, ...] = ("x",)
    optional: int = 0
    variadic: bool = False
    keywords: tuple[str, ...] = ()

    @property
    def least(self) -> int:
        return len(self.parameters) - self.optional

    @property
    def most(self) -> int | None:
        return None if self.variadic else len(self.parameters)


_FLOAT_MATHS = (
    "exp expm1 log log1p log2 log10 sqrt cbrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc lgamma digamma sigmoid softplus sinc relu"
)
XY = ("x", "y")


def _table() -> dict[str, Builtin]:
    entries = [Builtin(name, "maths") for name in _FLOAT_MATHS.split()]
    entries += [Builtin(name, "keeping") for name in ["abs", "sign", "floor", "ceil", "round"]]
    entries += [Builtin(name, "predicate") for name in ["isnan", "isinf", "isfinite"]]
    entries += [Builtin(name, "maths2", XY) for name in ["atan2", "hypot", "logaddexp", "xlogy"]]
    entries += [Builtin(name, "keeping2", XY) for name in ["minimum", "maximum"]]
    entries += [
        Builtin("pow", "power", XY),
        Builtin("clamp", "clamp", ("x", "lo", "hi")),
        Builtin("where", "where", ("c", "x", "y")),
    ]
    plain = ("sum", "prod", "max", "min", "mean", "any", "all")
    entries += [Builtin(name, "reduction", keywords=("axis", "keepdims")) for name in plain]
    entries += [Builtin(name, "arg_reduction", keywords=("axis", "keepdims")) for name in ("argmax", "argmin")]
    entries += [Builtin("logsumexp", "logsumexp", keywords=("axis", "keepdims"))]
    entries += [Builtin(name, "softmax", keywords=("axis",)) for name in ("softmax", "log_softmax")]
    entries += [Builtin(name, "scan", keywords=("axis",)) for name in ["cumsum", "cumprod", "sort", "flip"]]
    entries += [Builtin(name, "filled", ("n",), variadic=True) for name in ("zeros", "ones")]
    entries += [
        Builtin("full", "full", ("x", "n"), variadic=True),
        Builtin("eye", "eye", ("n",)),
        Builtin("reshape", "reshape", ("x", "n"), variadic=True),
        Builtin("concat", "concat", variadic=True, keywords=("axis",)),
        Builtin("stack", "stack", variadic=True, keywords=("axis",)),
        Builtin("len", "len"),
        Builtin("shape", "shape", ("x", "axis")),
        Builtin("diag", "diag"),
        Builtin("outer", "outer", XY),
        Builtin("dot", "dot", XY),
        Builtin("norm", "norm"),
        Builtin("trace", "trace"),
        Builtin("cholesky", "square"),
        Builtin("inv", "square"),
        Builtin("det", "determinant"),
        Builtin("logdet", "determinant"),
        Builtin("solve", "solve", XY),
        Builtin("solve_triangular", "solve", XY, keywords=("lower",)),
        Builtin("stop_gradient", "stop_gradient"),
    ]
    entries += [Builtin(name, "conversion") for name in ["f64", "f32", "real", "i64", "bool"]]
    return {entry.name: entry for entry in entries}


BUILTINS: dict[str, Builtin] = _table()
# The types of the parameters where nothing tells them, for built-ins that are exported; by name, else by kind.
EXPORTED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("maths", "keeping"), ("",)),
    **dict.fromkeys(("maths2", "keeping2", "power"), ("", "")),
    "clamp": ("", "", ""),
    **dict.fromkeys(("sum", "prod", "max", "min", "mean", "scan", "logsumexp", "softmax", "norm", "diag"), ("n",)),
    "dot": ("n", "n"),
    "outer": ("n", "m"),
    **dict.fromkeys(("square", "determinant", "trace"), ("n n",)),
    "solve": ("n n", "n"),
}

CONSTANTS: tuple[str, ...] = ("pi", "inf", "nan")
FORMS: tuple[str, ...] = (
    "grad",
    "value_and_grad",
    "vjp",
    "jvp",
    "value_and_vjp",
    "value_and_jvp",
    "jacobian",
    "hessian",
    "hvp",
)
REDUCTIONS: frozenset[str] = frozenset(["sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin"])
