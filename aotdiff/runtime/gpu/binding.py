"""Arguments and results of a function on a device: its own arrays, other libraries', or host arrays, never mixed.

Numbers are for either. Another library's array is used where it is, without a copy, once the stream of the call has
waited for the stream it was made on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotdiff.runtime.binding import Binder, check_out, check_overlap, flatten_out
from aotdiff.runtime.convert import DTYPES, Place, describe, flatten
from aotdiff.runtime.gpu.array import DeviceArray, Storage, here
from aotdiff.runtime.interface import Group, Interface, Kind, Leaf

_DLPACK_DEVICES = (2, 13)  # CUDA, CUDA managed


class Wanted:
    """Room for an array result on the device: the shape that the arguments say it has."""

    __slots__ = ("shape",)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


class Given:
    """An array on the device that a result is written into: `original` is the caller's object for it."""

    __slots__ = ("array", "original")

    def __init__(self, array: DeviceArray, original: Any) -> None:
        self.array = array
        self.original = original

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def __setitem__(self, everywhere: Any, value: Any) -> None:
        """Another array of this shape, or a number, into all of it."""
        self.array.assign(getattr(value, "_data", value))

    def receive(self, result: Any) -> Any:
        """The result as the caller gets it: an array is now in the caller's own."""
        if not self.array.shape:
            return result
        self[...] = result
        return self.original


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
        return self.checked(out)

    def buffers(self, values: list[Any]) -> list[Any]:
        if not any(type(v) is DeviceArray for v in values):
            return super().buffers(values)
        shapes = self.shapes(values)
        return [Wanted(s) if leaf.sizes else None for leaf, s in zip(self.result_leaves, shapes, strict=True)]

    def outputs(self, values: list[Any], out: Any) -> list[Any]:
        given: list[Any] = []
        flatten_out(self._place(), self.interface.result, out, given)
        there = [type(v) is DeviceArray for v in values]
        if not any(there) and not any(map(is_elsewhere, given)):
            return super().outputs(values, out)
        made: list[Any] = []
        for array, leaf, shape in zip(given, self.result_leaves, self.shapes(values), strict=True):
            if array is None:
                made.append(Wanted(shape) if leaf.sizes else None)
            else:
                made.append(self._given(leaf, array, shape, any(isinstance(v, np.ndarray) for v in values)))
        arrays = [v for v in values if type(v) is DeviceArray]
        for each in made:
            if type(each) is Given:
                check_overlap(self._place(), any(_touch(each.array, other) for other in arrays))
                arrays.append(each.array)
        return made

    def _given(self, leaf: Leaf, array: Any, shape: tuple[int, ...], on_host: bool) -> Any:
        """Room that the caller gives for a result, checked; `on_host`: the arguments are there."""
        place, device = self._place(), self.device()
        if not is_elsewhere(array):
            if leaf.sizes:
                raise place.refuse(TypeError, f"{describe(array)} in host memory", f"results are on {device.kind}")
            check_out(place, leaf, array, shape)
            return array
        found = array if type(array) is DeviceArray else seen(device, place, array, write=True)
        if found.device is not device:
            raise place.refuse(TypeError, _shown(found), f"the function runs on {device.kind}")
        if on_host:
            raise place.refuse(TypeError, _shown(found), "the arguments are in host memory")
        if found.dtype != DTYPES[leaf.element]:
            raise place.refuse(TypeError, _shown(found), f"outputs are arrays of {np.dtype(DTYPES[leaf.element])}")
        if found.shape != shape:
            raise place.refuse(ValueError, _shown(found), f"the result has shape {shape}")
        return Given(found, array)

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


def _touch(a: DeviceArray, b: DeviceArray) -> bool:
    """Whether memory belongs to both."""
    first, second = a.storage.buffer.pointer, b.storage.buffer.pointer
    return bool(a.size and b.size) and first < second + b.nbytes and second < first + a.nbytes


def _shown(array: DeviceArray) -> str:
    return f"a {array.dtype} array of shape {array.shape} on {array.device.kind}"


# Other libraries' arrays ---------------------------------------------------------------------------------------


def seen(device: Any, place: Place, value: Any, write: bool = False) -> DeviceArray:
    """Another library's array as ours, ordered after what its library has put on its stream; `write`: it may change."""
    stream = here(device)
    if hasattr(value, "__dlpack__") and hasattr(device, "view"):
        pointer, shape, strides, dtype, owner, fixed = device.view(value, stream)
    else:
        pointer, shape, strides, dtype, owner, fixed = _interface(device, value, stream)
    array = DeviceArray(_foreign(device, pointer, shape, dtype, stream, owner), shape, dtype, foreign=True)
    if strides is not None and array.size and not _row_major(shape, strides, dtype.itemsize):
        raise place.refuse(ValueError, f"{_shown(array)} with strides {strides}", "make it C-contiguous first")
    if write and fixed:
        raise place.refuse(ValueError, f"{_shown(array)} that is not writable")
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
    pointer, fixed = said["data"]
    return pointer, shape, None if strides is None else tuple(strides), np.dtype(said["typestr"]), value, fixed


def _foreign(device: Any, pointer: int, shape: tuple[int, ...], dtype: np.dtype, stream: Any, owner: Any) -> Storage:
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return Storage(device, device.foreign(pointer, nbytes, owner), stream, owner)


def _row_major(shape: tuple[int, ...], strides: tuple[int, ...], step: int) -> bool:
    """Strides in bytes."""
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != step:
            return False
        step *= n
    return True
