"""Device functions as Numba CUDA calls them: a declaration, and a thin function around it that takes arrays.

    y = f(x, 2.0)                # one number that cannot fail; several come as a tuple
    status = f(x, out)           # arrays, or a call that can fail: results go into arrays, 0 or an error's number back

Arrays are C-contiguous, of the declared element type and number of dimensions: that is checked when the kernel is
compiled. A number is written into the first element of its array. With a workspace a uint8 array comes last, memory
for this thread alone; status 6 says that it is too small.

This text goes, as it is, into modules that `aotdiff build --emit cuda-py` writes: it imports nothing of aotdiff.
"""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from typing import Any

NUMBA = {"f64": "float64", "f32": "float32", "i64": "int64", "bool": "uint8", "bytes": "uint8"}


def c_signature(code: Any) -> str:
    """The C ABI as a Numba signature."""
    parts = []
    for p in code.parameters:
        parts += [f"CPointer({NUMBA[p.element]})", *["int64"] * p.rank] if p.rank else [NUMBA[p.element]]
    if code.returns is None:
        for r in code.results:
            parts += [f"CPointer({NUMBA[r.element]})", *["int64"] * r.rank]
    if code.workspace:
        parts += ["CPointer(uint8)", "int64"]
    return f"{'int32' if code.returns is None else NUMBA[code.returns]}({', '.join(parts)})"


def wrapper(code: Any, names: Sequence[str]) -> str:
    """Python text of the function around the declaration `_aot_call`, which uses `_aot_pointer_K` for arrays."""
    args: list[str] = []
    params = python_names(names)
    for p, name in zip(code.parameters, params):
        if p.rank:
            args += [f"_aot_pointer_{p.element}_{p.rank}({name})", *(f"{name}.shape[{k}]" for k in range(p.rank))]
        else:
            args.append(f"_aot_byte({name})" if p.element == "bool" else name)
    if code.returns is not None:
        value = f"_aot_call({', '.join(args)})"
        body = [f"return {value} != 0" if code.returns == "bool" else f"return {value}"]
        return _def(code.name, params, body)
    scalars = not code.fallible and not any(r.rank for r in code.results)
    body: list[str] = []
    outs: list[str] = []
    for k, r in enumerate(code.results):
        out = free_name(f"out{k}" if len(code.results) > 1 else "out", params)
        outs.append(out)
        if scalars:
            body.append(f"{out} = _aot_cuda.local.array(1, {NUMBA[r.element]})")
        else:
            params.append(out)
        args += [f"_aot_pointer_{r.element}_{r.rank or 1}({out})", *(f"{out}.shape[{d}]" for d in range(r.rank))]
    if code.workspace:
        work = free_name("work", params)
        params.append(work)
        args += [f"_aot_pointer_bytes_1({work})", f"{work}.shape[0]"]
    if not scalars:
        return _def(code.name, params, [*body, f"return _aot_call({', '.join(args)})"])
    found = ", ".join(f"{out}[0]" for out in outs)
    return _def(code.name, params, [*body, f"_aot_call({', '.join(args)})", f"return {found}"])


def python_names(names: Sequence[str]) -> list[str]:
    """The parameters' names, those that Python does not allow with `_` behind."""
    found: list[str] = []
    for name in names:
        found.append(free_name(f"{name}_" if keyword.iskeyword(name) else name, found))
    return found


def free_name(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _def(name: str, params: list[str], body: list[str]) -> str:
    return f"def {name}({', '.join(params)}):\n" + "".join(f"    {line}\n" for line in body)


def declared(code: Any, names: Sequence[str], doc: str, sources: dict[str, Any] | None = None) -> Any:
    """The function, to be called in `@cuda.jit` kernels.

    `sources` has what was made of PTX before: functions that are in one PTX must share it in a kernel that calls both.
    """
    import numba.cuda as numba_cuda  # pyright: ignore[reportMissingImports]
    from numba import types  # pyright: ignore[reportMissingImports]

    cuda: Any = numba_cuda  # of numba-cuda; numba itself has a smaller one, whose types would be taken
    space: dict[str, Any] = {name: getattr(types, name) for name in (*NUMBA.values(), "int32", "CPointer")}
    signature = eval(c_signature(code), dict(space))
    sources = {} if sources is None else sources
    source = sources.setdefault(code.ptx, None) or cuda.PTXSource(code.ptx.encode())
    sources[code.ptx] = source
    space["_aot_call"] = cuda.declare_device(code.name, signature, link=[source], abi="c")
    space["_aot_byte"], space["_aot_cuda"] = types.uint8, cuda
    arguments = [*code.parameters, *code.results]
    for element, rank in {(a.element, max(a.rank, 1)) for a in arguments}:
        space[f"_aot_pointer_{element}_{rank}"] = pointer(element, rank)
    if code.workspace:
        space["_aot_pointer_bytes_1"] = pointer("bytes", 1)
    exec(compile(wrapper(code, names), f"<aotdiff {code.name}>", "exec"), space)
    space[code.name].__doc__ = doc
    return cuda.jit(device=True, inline="always")(space[code.name])


def pointer(element: str, rank: int) -> Any:
    """Address of an array's data in a kernel; the kernel does not compile with another kind of array."""
    from numba import types  # pyright: ignore[reportMissingImports]
    from numba.cuda.core.errors import TypingError  # pyright: ignore[reportMissingImports]
    from numba.cuda.extending import intrinsic  # pyright: ignore[reportMissingImports]

    wanted = types.boolean if element == "bool" else getattr(types, NUMBA[element])
    passed = getattr(types, NUMBA[element])

    def data(typingctx: Any, array: Any) -> Any:
        fits = isinstance(array, types.Array) and array.layout == "C"
        if not fits or array.dtype != wanted or array.ndim != rank:
            raise TypingError(f"a C-contiguous array of {wanted} with {rank} dimensions is wanted, got {array}")

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return context.make_array(signature.args[0])(context, builder, args[0]).data

        return types.CPointer(passed)(array), generate

    return intrinsic(data)
