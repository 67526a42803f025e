"""Built GPU libraries: kernels and launch plans made by `aotdiff build --target cuda`, with nothing of the compiler.

    m = ad.load("build/model.json")        # with model.ptx beside it; or: import model_cuda
    m.loss.grad("w")(w, x)                 # numpy arrays are copied; arrays on the GPU are used where they are
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from aotdiff.codegen.gpu.plan import from_json as plan_from
from aotdiff.runtime.binding import Binder
from aotdiff.runtime.collection import Collection
from aotdiff.runtime.function import Chain
from aotdiff.runtime.gpu import devices
from aotdiff.runtime.gpu.array import DeviceArray, put
from aotdiff.runtime.gpu.binding import DeviceBinder, Given
from aotdiff.runtime.gpu.native import GpuNative
from aotdiff.runtime.interface import Interface, from_json
from aotdiff.runtime.loaded import Composed, Library, NotBuilt

FORMAT = 1
_WHOLE = ("jacobian", "hessian", "value_and_jacobian", "value_and_hessian")


class GpuLibrary(Library):
    """The functions of a built GPU library: `data` is the contents of its JSON, `code` its PTX.

    `restore` as in `Library`; `wrap` as in `GpuNative`.
    """

    def __init__(
        self, path: str, data: dict[str, Any], code: bytes, restore: Callable[..., Any] | None = None,
        wrap: Callable[[DeviceArray], Any] | None = None,
    ) -> None:  # fmt: skip
        if data.get("format") != FORMAT:
            raise OSError(f"{path} was built by another version of aotdiff: build it again")
        self._restore, self._wrap = restore, wrap
        self._file, self._data, self._code = path, data, code
        Collection.__init__(self, path, [from_json(item["interface"]) for item in data["functions"]])
        self._entries = {item["interface"]["name"]: item["entries"] for item in data["functions"]}
        self._gradients = {item["interface"]["name"]: item["gradients"] for item in data["functions"]}

    def __reduce__(self) -> tuple[Any, ...]:
        return (self._restore, ()) if self._restore is not None else (load, (self._file,))

    @property
    def device(self) -> Any:
        """The GPU; a `DeviceError` where there is none."""
        return devices.device(self._data["target"])

    def _native(self, root: str, chain: Chain, interface: Interface, real: str) -> tuple[Binder, Any]:
        binder, native = super()._native(root, chain, interface, real)
        if isinstance(native, Composed) and any(form in _WHOLE for form, _, _ in chain):
            native = _ByHost(native.call, self._wrap)
        return binder, native

    def _binder(self, interface: Interface) -> Binder:
        return DeviceBinder(interface, lambda: self.device)

    def _at(self, entry: dict[str, Any], interface: Interface) -> GpuNative:
        if "refused" in entry:
            raise NotBuilt(f"{interface.name} does not run on a GPU: {entry['refused']}")
        reads = None if entry["reads"] is None else tuple(entry["reads"])
        plan = plan_from(entry["plan"])
        return GpuNative(plan, lambda: self.device, self._code, interface, reads, self._wrap)

    def _c_entry(self, root: str, chain: Chain, interface: Interface, real: str) -> Any:
        raise NotBuilt(f"{self._path} is for GPUs: build it for the cpu too, for C")


class _ByHost(Composed):
    """Jacobians and hessians that were not built, put together on the host from what was; `wrap` as in `GpuNative`."""

    def __init__(self, call: Callable[..., Any], wrap: Callable[[DeviceArray], Any] | None) -> None:
        super().__init__(call)
        self.wrap = wrap

    def __call__(self, values: Any, buffers: Any) -> list[Any]:
        arrays = [v.array if type(v) is Given else v for v in (*values, *buffers)]
        arrays = [v for v in arrays if type(v) is DeviceArray]
        if not arrays:
            return super().__call__(values, buffers)
        found = self.call([v.numpy() if type(v) is DeviceArray else v for v in values])
        made = [self._there(arrays[0].device, r, any(v.foreign for v in arrays)) for r in found]
        return [b.receive(r) if type(b) is Given else r for r, b in zip(made, buffers, strict=True)]

    def _there(self, device: Any, result: Any, foreign: bool) -> Any:
        if not isinstance(result, np.ndarray) or not result.ndim:
            return result
        array = put(device, result)
        return array if self.wrap is None or not foreign else self.wrap(array)


def load(path: str) -> GpuLibrary:
    """A library from its JSON file and the PTX beside it."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    if not isinstance(data, dict) or data.get("target") != "cuda":
        raise OSError(f"{path} describes no GPU library; build --target cuda --emit ptx,json writes one")
    with open(os.path.splitext(path)[0] + ".ptx", "rb") as file:
        code = file.read()
    from aotdiff.runtime.tensors import Tensor

    return GpuLibrary(os.path.abspath(path), data, code, wrap=Tensor)
