"""Arrays on the emulated device: the project's own, and as another library would hand them over."""

from __future__ import annotations

from typing import Any

import aotdiff as ad
from aotdiff.runtime.gpu.devices import device as device_of


def there(x: Any, requires_grad: bool = False, dtype: Any = None) -> ad.Tensor:
    return ad.tensor(x, dtype, requires_grad, device="emulated")


class Foreign:
    """Another library's array on the device, as `__cuda_array_interface__` describes it."""

    def __init__(self, t: ad.Tensor, stream: Any = None, **changes: Any) -> None:
        self.kept = t
        said = dict(t.__cuda_array_interface__, **changes)
        said["stream"] = device_of("emulated").handle(stream) if stream is not None else None
        self.__cuda_array_interface__ = said
