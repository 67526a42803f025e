"""Functions as jax functions: see `aotdiff.interop.jax`.

A call is one jax primitive; its parameters are the function and the values of the arguments that are static. The rules:
jvp is the primitive of `f.jvp`, which is linear in its tangents, so its transpose is the primitive of `f.vjp`; a batch
is a `lax.map`; lowering is a call of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax as untyped_jax  # pyright: ignore[reportMissingImports]
import numpy as np
from jax.extend.core import Primitive  # pyright: ignore[reportMissingImports]
from jax.interpreters import ad, batching, mlir  # pyright: ignore[reportMissingImports]

from aotdiff.runtime.binding import arrange
from aotdiff.runtime.convert import DTYPES
from aotdiff.runtime.interface import leaves
from aotdiff.runtime.sizes import result_shapes
from aotdiff.runtime.structure import Shape, flattened, nested, unnested
from aotdiff.runtime.wrapped import Wrapped

if TYPE_CHECKING:
    from aotdiff.runtime.function import Function

jax: Any = untyped_jax  # what it makes at run time (its configuration) is not in its types
call_p = Primitive("aotdiff_call")
call_p.multiple_results = True
Static = tuple[Any, ...]  # per leaf: (value,) where it is static, None where it is an operand


def wrap(f: Function) -> Wrapped:
    """The jax function of `f`."""
    shape = Shape(f.interface)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = flattened(f.interface, arrange(f.interface, args, kwargs))
        real = _real(f, shape, given)
        static, operands = [], []
        for leaf, value in zip(shape.inputs, given, strict=True):
            if leaf.sizes or leaf.is_float:
                static.append(None)
                operands.append(_operand(f, value, real if leaf.element == "real" else leaf.element))
            else:
                static.append((_static(f, value),))
        return nested([f.interface.result], _bind(f, real, tuple(static), operands))[0]

    return Wrapped(f, call, wrap)


def _bind(f: Function, real: str, static: Static, operands: Sequence[Any], linear: int = 0) -> list[Any]:
    return call_p.bind(*operands, function=f, real=real, static=static, linear=linear)


# Arguments -----------------------------------------------------------------------------------------------------------


def _real(f: Function, shape: Shape, given: Sequence[Any]) -> str:
    """What `real` is: the type of the first array given for it."""
    for leaf, value in zip(shape.inputs, given, strict=True):
        if leaf.element == "real" and hasattr(value, "dtype"):
            return "f32" if value.dtype == np.float32 else "f64"
    return f.module._default_real if jax.config.jax_enable_x64 else "f32"


def _operand(f: Function, value: Any, element: str) -> Any:
    dtype = DTYPES[element]
    if dtype.itemsize == 8 and not jax.config.jax_enable_x64:
        raise TypeError(
            f"{f.name} takes {element}, which jax has switched off: jax.config.update('jax_enable_x64', True)"
        )
    array = jax.numpy.asarray(value)
    if array.dtype.kind == "f" and dtype.kind == "f" and array.dtype != dtype and hasattr(value, "dtype"):
        raise TypeError(f"{f.name} takes {element}, got {array.dtype}: convert it with .astype({dtype})")
    return array.astype(dtype)


def _static(f: Function, value: Any) -> Any:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{f.name}: i64 and bool scalars must be static in jax: use static_argnums")
    return value.item() if hasattr(value, "item") else value


# The primitive -------------------------------------------------------------------------------------------------------


def _all(static: Static, operands: Sequence[Any]) -> list[Any]:
    rest = iter(operands)
    return [next(rest) if known is None else known[0] for known in static]


def _run(f: Function, real: str, static: Static, operands: Sequence[Any]) -> list[np.ndarray]:
    """On the host; numbers are arrays of the function's type, which a Python float does not tell."""
    values = _all(static, [np.asarray(operand) for operand in operands])
    results = f(*nested([p.kind for p in f.interface.parameters], values))
    result = f.interface.instance(real).result
    pairs = zip(unnested(result, results), leaves(result), strict=True)
    return [np.asarray(value, DTYPES[leaf.element]) for value, leaf in pairs]


def _abstract(*operands: Any, function: Function, real: str, static: Static, linear: int) -> list[Any]:
    instance = function.interface.instance(real)
    shapes = result_shapes(instance)(_all(static, operands))
    pairs = zip(shapes, leaves(instance.result), strict=True)
    return [jax.core.ShapedArray(shape, DTYPES[leaf.element]) for shape, leaf in pairs]


def _on_host(*operands: Any, function: Function, real: str, static: Static, linear: int) -> list[Any]:
    avals = _abstract(*operands, function=function, real=real, static=static, linear=linear)
    kinds = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]

    def run(*arrays: Any) -> list[np.ndarray]:
        return _run(function, real, static, arrays)

    return jax.pure_callback(run, kinds, *operands, vmap_method="sequential")


def _jvp(primals: Any, tangents: Any, *, function: Function, real: str, static: Static, linear: int) -> Any:
    results = _bind(function, real, static, primals)
    f, shape = function, Shape(function.interface)
    at = [k for k, known in enumerate(static) if known is None]
    moved = {k: t for k, t in zip(at, tangents, strict=True) if type(t) is not ad.Zero and k in shape.float_inputs}
    found: list[Any] = []
    if moved:
        names = shape.names(list(moved))
        places = shape.places(names)
        given = dict(zip(at, primals, strict=True))
        extra = [moved[k] if k in moved else jax.numpy.zeros_like(given[k]) for k in places]
        more = (*static, *[None] * len(extra))
        found = _bind(f.jvp(wrt=names), real, more, [*primals, *extra], linear=len(extra))
    parts = iter(found)
    out = []
    for result, leaf in zip(results, shape.outputs, strict=True):
        zero = ad.Zero(jax.core.ShapedArray(result.shape, result.dtype).to_tangent_aval())
        out.append(next(parts) if leaf.is_float and moved else zero)
    return results, out


def _transpose(
    cotangents: Any, *operands: Any, function: Function, real: str, static: Static, linear: int
) -> list[Any]:
    """Of a jvp, in its tangents: the vjp of what it is the jvp of."""
    primals, tangents = operands[: len(operands) - linear], operands[len(operands) - linear :]
    _, names, _ = function._chain[-1]
    base = _without_last(function)
    shape = Shape(base.interface.instance(real))
    own = static[: len(static) - linear]
    values = _all(own, primals)
    avals = result_shapes(shape.interface)(values)
    extra = []
    for k, cotangent in zip(shape.float_outputs, cotangents, strict=True):
        zero = jax.numpy.zeros(avals[k], DTYPES[shape.outputs[k].element])
        extra.append(zero if type(cotangent) is ad.Zero else cotangent)
    found = _bind(base.vjp(wrt=names), real, (*own, *[None] * len(extra)), [*primals, *extra])
    assert len(found) == len(tangents)
    wanted = [g if ad.is_undefined_primal(t) else None for g, t in zip(found, tangents, strict=True)]
    return [*[None] * len(primals), *wanted]


def _without_last(f: Function) -> Function:
    """What the function is a derivative of."""
    found = f.module[f._root]
    for form, names, tupled in f._chain[:-1]:
        found = found._derivative(form, names if tupled else names[0])
    return found


def _batched(
    operands: Sequence[Any], dims: Sequence[Any], *, function: Function, real: str, static: Static, linear: int
) -> Any:
    moved = [k for k, d in enumerate(dims) if d is not None]
    rows = [jax.numpy.moveaxis(operands[k], dims[k], 0) for k in moved]

    def one(row: Sequence[Any]) -> list[Any]:
        given = list(operands)
        for k, value in zip(moved, row, strict=True):
            given[k] = value
        return _bind(function, real, static, given, linear)

    results = jax.lax.map(one, rows)
    return results, [0] * len(results)


def _immediate(*operands: Any, function: Function, real: str, static: Static, linear: int) -> list[Any]:
    return [jax.numpy.asarray(result) for result in _run(function, real, static, operands)]


call_p.def_impl(_immediate)
call_p.def_abstract_eval(_abstract)
ad.primitive_jvps[call_p] = _jvp
ad.primitive_transposes[call_p] = _transpose
batching.primitive_batchers[call_p] = _batched
mlir.register_lowering(call_p, mlir.lower_fun(_on_host, multiple_results=True))
