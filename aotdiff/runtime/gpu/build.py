"""GPU libraries ahead of time: PTX of all kernels, launch plans as JSON, a Python module, device functions.

Functions that a device cannot run are left out, with the reason in the JSON; a program none of whose functions runs
there is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aotdiff.codegen.gpu import libdevice, nvptx
from aotdiff.codegen.gpu.device import DeviceCode, Refused, device_target, device_text
from aotdiff.runtime import gradients
from aotdiff.runtime.centry import c_arguments
from aotdiff.runtime.errors import DeviceError
from aotdiff.runtime.function import Chain, chain_places
from aotdiff.runtime.gpu.built import FORMAT
from aotdiff.runtime.gpu.device_function import thread_graph
from aotdiff.runtime.gpu.stages import plan_text
from aotdiff.runtime.interface import Interface, derive

if TYPE_CHECKING:
    from aotdiff.codegen.gpu.kernels import Known
    from aotdiff.codegen.gpu.target import GpuTarget
    from aotdiff.runtime.build import Entry, Plan
    from aotdiff.runtime.compiler import Compiler


@dataclass(slots=True)
class GpuBuild:
    """What was made of a program: the JSON's contents, and the LLVM text of each function's kernels.

    Most kernels of a function are in its derivatives too: each is written once, and plans share it (`known`).
    """

    data: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    known: Known = field(default_factory=dict)

    def refused(self) -> Iterator[tuple[str, str]]:
        """Exported functions that are left out, and why."""
        for item in self.data["functions"]:
            for entries in item["entries"].values():
                if "refused" in entries[""]:
                    yield item["interface"]["name"], entries[""]["refused"]


def gpu_build(made: Plan, target: Callable[[], GpuTarget], kind: str = "cuda") -> GpuBuild:
    """Launch plans of every entry of a library."""
    from aotdiff.frontend.diagnostics import CompileError

    functions: list[dict[str, Any]] = []
    whole = GpuBuild({"format": FORMAT, "target": kind, "order": made.order, "reals": list(made.reals)})
    errors: list[CompileError] = []
    for f in made.interfaces:
        item: dict[str, Any] = {"interface": f.to_json(), "entries": {}, "gradients": {}}
        for entry in (e for e in made.entries if e.root == f.name):
            place = item["entries"].setdefault(entry.real, {})
            place[entry.end] = _planned(whole, made.compiler, f, entry.real, entry.chain, entry.c_name, target, errors)
            if entry.end == "_vjp":
                found = item["gradients"].setdefault(entry.real, {})
                for name, chain in gradients.chains(f.instance(entry.real)):
                    own = f"{entry.c_name}_{name.replace('.', '_')}"
                    found[name] = _planned(whole, made.compiler, f, entry.real, chain, own, target, errors)
        functions.append(item)
    whole.data["functions"] = functions
    if functions and len(list(whole.refused())) == sum(len(item["entries"]) for item in functions):
        raise errors[0]
    return whole


def _planned(
    whole: GpuBuild, compiler: Compiler, f: Interface, real: str, chain: Chain, name: str, target: Any,
    errors: list[Any],
) -> dict[str, Any]:  # fmt: skip
    """The JSON of one function or derivative; its text goes to `whole`."""
    from aotdiff.frontend.diagnostics import CompileError

    places = chain_places(f.instance(real), chain)
    prefix = "".join(c if c.isascii() and c.isalnum() else "_" for c in name) + "__"
    try:
        plan, text, reads = plan_text(compiler, f.name, places, real, target(), prefix, whole.known)
    except CompileError as error:
        errors.append(error)
        return {"refused": str(error).splitlines()[0]}
    if plan.kernels:
        whole.texts.append(text)
    return {"plan": plan.to_json(), "reads": list(reads)}


def ptx(build: GpuBuild, arch: str, opt: int) -> str:
    """One PTX module of all kernels."""
    if not build.texts:
        return ""
    try:
        return nvptx.emit_ptx(build.texts, None, arch, opt)
    except libdevice.MissingLibdevice as missing:
        raise DeviceError(str(missing)) from None


def json_text(build: GpuBuild, arch: str) -> str:
    """The description of the library: interfaces, launch plans, why something was left out."""
    return json.dumps({**build.data, "arch": arch}, indent=1) + "\n"


# Device functions ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DeviceBuild:
    """Device functions of a library in one PTX module, and why others are not there."""

    ptx: str
    codes: list[tuple[DeviceCode, list[str], str]]  # what it is, names of its parameters, its documentation
    refused: dict[str, str]


def device_build(made: Plan, arch: str, opt: int) -> DeviceBuild:
    """Every entry that a single thread can run, under its C name; gradients as `NAME_grad` and so on."""
    texts: list[str] = []
    codes: list[tuple[DeviceCode, list[str], str]] = []
    refused: dict[str, str] = {}
    roots = {f.name: f for f in made.interfaces}
    for entry, chain, name in _device_entries(made):
        f = roots[entry.root].instance(entry.real)
        derived = f
        for form, names, tupled in chain:
            derived = derive(derived, form, names, tupled)
        try:
            graph, symbol = thread_graph(made.compiler, f.name, chain_places(f, chain), entry.real)
            text, code = device_text(graph, symbol, name, device_target(), made.compiler.codegen_options(), False)
        except Refused as reason:
            refused[name] = str(reason)
            continue
        texts.append(text)
        parameters = [a.name for p in derived.parameters for a in c_arguments(p.name, p.kind)]
        codes.append((code, parameters, f"{derived.name}: {derived}"))
    names = [code.name for code, _, _ in codes]
    try:
        text = nvptx.emit_ptx(texts, names, arch, opt) if texts else ""
    except libdevice.MissingLibdevice as missing:
        raise DeviceError(str(missing)) from None
    return DeviceBuild(text, codes, refused)


def _device_entries(made: Plan) -> list[tuple[Entry, Chain, str]]:
    """Entries with the chains and names of their device functions."""
    found: list[tuple[Entry, Chain, str]] = []
    roots = {f.name: f for f in made.interfaces}
    for entry in made.entries:
        found.append((entry, entry.chain, entry.c_name))
        if entry.end == "_vjp":
            stem = entry.c_name.replace("_vjp", "", 1) if entry.c_name.endswith("_vjp") else entry.c_name
            for name, chain in gradients.chains(roots[entry.root].instance(entry.real)):
                found.append((entry, chain, f"{stem}_{name.replace('.', '_')}"))
    return found
