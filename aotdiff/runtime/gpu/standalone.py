"""The Python module of a built GPU library: it needs numpy and `cuda.core`, and nothing of aotdiff.

It carries the PTX, the launch plans, and the part of the runtime that runs them, as text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import aotdiff
from aotdiff.codegen.gpu import plan as plans
from aotdiff.runtime.build import Plan
from aotdiff.runtime.gpu.build import DeviceBuild, GpuBuild
from aotdiff.runtime.standalone import PARTS, exported_names, literal

_RUNTIME = Path(aotdiff.__file__).resolve().parent / "runtime"
# In the order of their imports.
_PARTS = (
    *PARTS, "gpu.plan", "gpu.device", "gpu.hostops", "gpu.executor", "gpu.driver", "gpu.streams", "gpu.array",
    "gpu.binding", "gpu.cuda", "gpu.devices", "gpu.native", "gpu.built", "gpu.numba_text",
)  # fmt: skip

_TEMPLATE = '''\
"""Functions of {source} for NVIDIA GPUs, compiled by aotdiff for {arch} and newer. Needs numpy and cuda.core.

{functions}

Each function has its derivatives as methods: `f.grad(wrt="x")`, `f.value_and_grad()`, `f.vjp()` and so on. Arrays on
the GPU (of numba, cupy, torch, jax) are used where they are, and results stay there; numpy arrays are copied. Inside
`with stream(s):` the work goes to the stream `s`.

`device.NAME` is a function for kernels of Numba's own, one call per thread:
{device_functions}
"""

import sys as _sys
import types as _types

_PACKAGE = "{package}"

_PARTS = {{
{parts}
}}


def _runtime():
    """The package of the parts above, made once in a process."""
    if _PACKAGE in _sys.modules:
        return _sys.modules[_PACKAGE]
    package = _types.ModuleType(_PACKAGE)
    package.gpu = _types.ModuleType(_PACKAGE + ".gpu")
    for each in (package, package.gpu):
        each.__path__ = []
        _sys.modules[each.__name__] = each
    for name, text in _PARTS.items():
        module = _types.ModuleType(_PACKAGE + "." + name)
        module.__package__ = module.__name__.rpartition(".")[0]
        _sys.modules[module.__name__] = module
        setattr(_sys.modules[module.__package__], name.rpartition(".")[2], module)
        exec(compile(text, "<" + module.__name__ + ">", "exec"), module.__dict__)
    return package


def _restore(root=None, chain=()):
    """What a pickle of the library or of one of its functions becomes."""
    return _library if root is None else _runtime().function.rebuild(_library, root, chain)


PTX = {ptx}

DEVICE_PTX = {device_ptx}

_LIBRARY = {data}

_DEVICE = {device}


class _Device:
    """Device functions for Numba's kernels, declared when they are first asked for."""

    def __dir__(self):
        return list(_DEVICE["functions"])

    def __getattr__(self, name):
        if name in _DEVICE["refused"]:
            raise AttributeError(name + " cannot be a device function: " + _DEVICE["refused"][name])
        if name not in _DEVICE["functions"]:
            raise AttributeError(name)
        found = dict(_DEVICE["functions"][name], name=name, ptx=DEVICE_PTX, workspace=False)
        for key in ("parameters", "results"):
            found[key] = [_types.SimpleNamespace(element=element, rank=rank) for element, rank in found[key]]
        code = _types.SimpleNamespace(**found)
        made = _runtime().gpu.numba_text.declared(code, code.names, code.doc, _sources)
        setattr(self, name, made)
        return made


_sources = {{}}
device = _Device()


def _load():
    import json

    return _runtime().gpu.built.GpuLibrary({source!r}, json.loads(_LIBRARY), PTX.encode(), _restore)


_library = _load()
AssertionFailed = _runtime().errors.AssertionFailed
DeviceError = _runtime().errors.DeviceError
stream = _runtime().gpu.streams.stream

{names}

__all__ = {listed}
'''


def module_text(made: Plan, build: GpuBuild, device: DeviceBuild, ptx: str, arch: str) -> str:
    """Text of `stem_cuda.py`."""
    texts = {name: _text(name) for name in _PARTS}
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:12]
    package = f"_aotdiff_gpu_{digest}"
    parts = [f"    {name!r}: {literal(_moved(text, package))}," for name, text in texts.items()]
    names, listed = exported_names(made, {"device", "stream", "PTX", "DEVICE_PTX"})
    listed += ["AssertionFailed", "DeviceError", "device", "stream"]
    functions = "\n".join(f"    {f.name}{str(f)[2:]}" for f in made.interfaces)
    shown = "\n".join(f"    {code.name}({', '.join(names)})" for code, names, _ in device.codes) or "    (none)"
    return _TEMPLATE.format(
        source=Path(made.compiler.source.path).name, arch=arch, functions=functions, device_functions=shown,
        package=package, parts="\n".join(parts), ptx=literal(ptx), device_ptx=literal(device.ptx),
        data=literal(json.dumps({**build.data, "arch": arch})), device=_dictionary(device), names="\n".join(names),
        listed=sorted(listed),
    )  # fmt: skip


def _dictionary(device: DeviceBuild) -> str:
    functions: dict[str, Any] = {}
    for code, names, doc in device.codes:
        functions[code.name] = {
            "parameters": [dataclasses.astuple(p) for p in code.parameters],
            "results": [dataclasses.astuple(r) for r in code.results],
            "returns": code.returns, "fallible": code.fallible, "names": names, "doc": doc,
        }  # fmt: skip
    return repr({"functions": functions, "refused": device.refused})


def _text(name: str) -> str:
    if name == "context":
        from aotdiff.codegen import context

        return Path(context.__file__ or "").read_text(encoding="utf-8")
    if name == "gpu.plan":
        return Path(plans.__file__ or "").read_text(encoding="utf-8")
    return (_RUNTIME / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")


def _moved(text: str, package: str) -> str:
    """A part that imports the others from the package."""
    for old, new in (
        ("from aotdiff.codegen.context", f"from {package}.context"),
        ("from aotdiff.codegen.gpu.", f"from {package}.gpu."),
        ("from aotdiff.codegen.gpu import", f"from {package}.gpu import"),
        ("from aotdiff.runtime import", f"from {package} import"),
        ("from aotdiff.runtime.", f"from {package}."),
    ):
        text = text.replace(old, new)
    return text
