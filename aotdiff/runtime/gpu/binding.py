"""Arguments and results of a function on a device: its own arrays, other libraries', or host arrays, never mixed.

Numbers are for either. Another library's array is used where it is, without a copy, once the stream of the call has
waited for the stream it was made on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotdiff.runtime.binding import Binder
from aotdiff.runtime.convert import DTYPES, Place, describe, flatten
from aotdiff.runtime.gpu.array import DeviceArray, Storage, here
from aotdiff.runtime.interface import Group, Interface, Kind, Leaf

_DLPACK_DEVICES = (2, 13)  # CUDA, CUDA managed


class Wanted:
    """Room for an array result on the device: the shape that the arguments say it has."""

    __slots__ = ("shape",)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def is_elsewhere(value: Any) -> bool:
    """Whether this is an array on a device, of ours or of another library."""
    kind = type(value)
    if kind in (float, int, bool, np.ndarray, list, tuple):
        return False
    if kind is DeviceArray or hasattr(value, "__cuda_array_interface__"):
        return True
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and device()[0] in _DLPACK_DEVICES


class DeviceBinder(Binder):
    """A `Binder` whose values are `DeviceArray`s where an argument is on the device.

    `device()` gives the device, when it is needed.
    """

    __slots__ = ("device",)

    def __init__(self, interface: Interface, device: Callable[[], Any]) -> None:
        super().__init__(interface)
        self.device = device

    def values(self, args: Sequence[Any]) -> list[Any]:
        if not any(_any_elsewhere(arg) for arg in args):
            return super().values(args)
        out: list[Any] = []
        for (_, place, kind), arg in zip(self._convert, args, strict=True):
            self._flatten(place, kind, arg, out)
        return out

    def buffers(self, values: list[Any]) -> list[Any]:
        if not any(type(v) is DeviceArray for v in values):
            return super().buffers(values)
        shapes = self.shapes(values)
        return [Wanted(s) if leaf.sizes else None for leaf, s in zip(self.result_leaves, shapes, strict=True)]

    def outputs(self, values: list[Any], out: Any) -> list[Any]:
        if any(type(v) is DeviceArray for v in values):
            raise TypeError(f"{self.interface.place}: out= is for host arrays; results on the device are new arrays")
        return super().outputs(values, out)

    def _flatten(self, place: Place, kind: Kind, value: Any, out: list[Any]) -> None:
        if isinstance(kind, Group) and isinstance(value, (tuple, list)) and len(value) == len(kind.items):
            for position, (item, part) in enumerate(zip(value, kind.items, strict=True)):
                self._flatten(place.within(position, part), part, item, out)
        elif isinstance(kind, Leaf) and is_elsewhere(value):
            out.append(self._array(place, kind, value))
        elif isinstance(kind, Leaf) and kind.sizes:
            where = self.device().kind
            raise place.refuse(TypeError, f"{describe(value)} in host memory", f"the other arrays are on {where}")
        else:
            flatten(place, kind, value, out)

    def _array(self, place: Place, leaf: Leaf, value: Any) -> Any:
        """An array on the device, checked; the number in it where a number is wanted."""
        device = self.device()
        found = value if type(value) is DeviceArray else seen(device, place, value)
        if found.device is not device:
            raise place.refuse(TypeError, f"an array on {found.device.kind}", f"the function runs on {device.kind}")
        if found.ndim != len(leaf.sizes):
            raise place.refuse(ValueError, _shown(found), f"it has {len(leaf.sizes)} dimensions")
        if found.dtype != DTYPES[leaf.element]:
            raise place.refuse(TypeError, _shown(found), "convert it: arrays on a device are used as they are")
        return found if leaf.sizes else found.item()


def _any_elsewhere(value: Any) -> bool:
    if type(value) in (tuple, list):
        return any(_any_elsewhere(item) for item in value)
    return is_elsewhere(value)


def _shown(array: DeviceArray) -> str:
    return f"a {array.dtype} array of shape {array.shape} on {array.device.kind}"


# Other libraries' arrays ---------------------------------------------------------------------------------------


def seen(device: Any, place: Place, value: Any) -> DeviceArray:
    """Another library's array as ours, ordered after what its library has put on its stream."""
    stream = here(device)
    if hasattr(value, "__dlpack__") and hasattr(device, "view"):
        pointer, shape, strides, dtype, owner = device.view(value, stream)
    else:
        pointer, shape, strides, dtype, owner = _interface(device, value, stream)
    array = DeviceArray(_foreign(device, pointer, shape, dtype, stream, owner), shape, dtype, foreign=True)
    if strides is not None and array.size and not _row_major(shape, strides, dtype.itemsize):
        raise place.refuse(ValueError, f"{_shown(array)} with strides {strides}", "make it C-contiguous first")
    return array


def _interface(device: Any, value: Any, stream: Any) -> tuple[Any, ...]:
    """What `__cuda_array_interface__` says; version 3 names the stream to wait for."""
    said = value.__cuda_array_interface__
    producer = said.get("stream")
    if producer is not None:
        source = device.stream(producer)
        if source != stream:
            device.wait(stream, device.record(source))
    strides = said.get("strides")
    shape = tuple(said["shape"])
    return said["data"][0], shape, None if strides is None else tuple(strides), np.dtype(said["typestr"]), value


def _foreign(device: Any, pointer: int, shape: tuple[int, ...], dtype: np.dtype, stream: Any, owner: Any) -> Storage:
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    storage = Storage(device, device.foreign(pointer, nbytes, owner), stream, owner)
    storage.readers[stream] = 0  # it is held until what this call puts on the stream is done
    return storage


def _row_major(shape: tuple[int, ...], strides: tuple[int, ...], step: int) -> bool:
    """Strides in bytes."""
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != step:
            return False
        step *= n
    return True
