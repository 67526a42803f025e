"""One argument of a call: from what Python has to what native code takes.

Scalars become Python numbers, arrays become C-contiguous numpy arrays of the declared type: the caller's own array
where it already is one. Nothing is converted that could lose something: floats do not become ints, and the two
float widths do not mix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aotdiff.runtime.interface import Interface, Kind, Leaf

DTYPES: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}
_FLOAT_KINDS = {"float32": "f32", "float64": "f64"}
_PLAIN = (int, float, list, tuple)


class Place:
    """Where a value goes, for messages: the function, the parameter, what it wants."""

    __slots__ = ("function", "kind", "name", "part")

    def __init__(self, function: Interface, name: str, kind: Kind, part: str = "") -> None:
        self.function = function
        self.name = name
        self.kind = kind
        self.part = part

    def within(self, position: int, kind: Kind) -> Place:
        return Place(self.function, self.name, kind, f"{self.part}[{position}]")

    def refuse(self, error: type[Exception], got: str, hint: str = "") -> Exception:
        head = f"{self.function.place}: parameter {self.name}{self.part}"
        return error(f"{head} wants {self.kind}, got {got}{f'; {hint}' if hint else ''}")


Converter = Callable[[Any], Any]


def leaf_converter(place: Place, leaf: Leaf) -> Converter:
    """The conversion of one scalar or array."""
    if leaf.sizes:
        return _array_converter(place, leaf)
    return {"i64": _integer, "bool": _boolean}.get(leaf.element, _floating)(place, leaf.element)


def flatten(place: Place, kind: Kind, value: Any, out: list[Any]) -> None:
    """Convert a value of a parameter, tuples taken apart, and append its leaves."""
    if isinstance(kind, Leaf):
        out.append(leaf_converter(place, kind)(value))
        return
    if not isinstance(value, (tuple, list)):
        raise place.refuse(TypeError, describe(value))
    if len(value) != len(kind.items):
        raise place.refuse(ValueError, f"{len(value)} items")
    for position, (item, part) in enumerate(zip(value, kind.items, strict=True)):
        flatten(place.within(position, part), part, item, out)


def describe(value: Any) -> str:
    """A value in a message: its type, and its shape if it is an array."""
    if isinstance(value, np.ndarray):
        article = "an" if value.dtype.name[0] in "io" else "a"  # an int64, an object
        if value.ndim == 0:
            return f"{article} {value.dtype} array of no dimensions"
        return f"{article} {value.dtype} array of shape {value.shape}"
    if isinstance(value, (bool, int, float, np.generic)):
        return f"{type(value).__name__} {value!r}" if not isinstance(value, np.generic) else f"{value.dtype} {value}"
    if value is None:
        return "None"
    return f"a {type(value).__name__}"


def float_kind(value: Any) -> str | None:
    """The float type that a value decides: "f32", "f64", or None for Python numbers, lists and integers."""
    if type(value) in _PLAIN:
        return None
    dtype = getattr(value, "dtype", None)
    if dtype is None and not isinstance(value, (int, float)):
        try:
            dtype = np.asarray(value).dtype
        except Exception:  # what it is worth shows when it is converted
            return None
    return _FLOAT_KINDS.get(str(dtype).rpartition(".")[2])


# Scalars -------------------------------------------------------------------------------------------------------


def _floating(place: Place, element: str) -> Converter:
    dtype = DTYPES[element]

    def convert(value: Any) -> float:
        kind = type(value)
        if kind is float:
            return value
        if kind is not int:
            value = _scalar_item(place, value, dtype)
        try:
            return float(value)
        except OverflowError:
            raise place.refuse(ValueError, "an integer too large for a float") from None

    return convert


def _integer(place: Place, _: str) -> Converter:
    def convert(value: Any) -> int:
        if type(value) is not int:
            value = _scalar_item(place, value, DTYPES["i64"])
        if not -(1 << 63) <= value < 1 << 63:
            raise place.refuse(ValueError, f"{value}, which does not fit")
        return value

    return convert


def _boolean(place: Place, _: str) -> Converter:
    def convert(value: Any) -> bool:
        return value if type(value) is bool else bool(_scalar_item(place, value, DTYPES["bool"]))

    return convert


def _scalar_item(place: Place, value: Any, dtype: np.dtype) -> Any:
    """The Python number in a number, a numpy scalar or an array of no dimensions."""
    array = value
    if not isinstance(value, np.ndarray):
        if isinstance(value, (str, bytes, list, tuple)) or value is None:
            raise place.refuse(TypeError, describe(value))
        array = _as_array(place, value)
    if array.ndim:
        raise place.refuse(TypeError, describe(array))
    if isinstance(value, float) and array.dtype == np.float64 and not isinstance(value, np.generic):
        array = array.astype(dtype) if dtype.kind == "f" else array
    _check_dtype(place, array, value, dtype)
    return array.item()


# Arrays --------------------------------------------------------------------------------------------------------


def _array_converter(place: Place, leaf: Leaf) -> Converter:
    dtype, rank = DTYPES[leaf.element], len(leaf.sizes)

    def convert(value: Any) -> np.ndarray:
        array = value
        if type(value) is not np.ndarray:
            array = _as_array(place, value)
        if array.ndim != rank:
            wrong = ValueError if array.ndim and array.dtype.kind in "fiub" else TypeError
            axes = f"{rank} dimension{'' if rank == 1 else 's'}"
            raise place.refuse(wrong, describe(value if np.ndim(array) == 0 else array), f"{leaf} has {axes}")
        if array.dtype != dtype:
            array = _convert_dtype(place, array, value, dtype)
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned and array.dtype.isnative):
            array = np.require(np.ascontiguousarray(array, dtype), requirements=["C", "A"])
        return array

    return convert


def _as_array(place: Place, value: Any) -> np.ndarray:
    """Anything array-like as an array; the conversion is not a copy where it need not be."""
    if isinstance(value, np.ma.MaskedArray):
        raise place.refuse(TypeError, "a masked array", "fill it first")
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        try:
            return np.from_dlpack(value)
        except Exception as error:
            raise place.refuse(TypeError, f"{describe(value)} ({error})") from None
    try:
        array = np.asarray(value)
    except ValueError:
        raise place.refuse(ValueError, "rows of different lengths") from None
    except Exception as error:
        if getattr(value, "requires_grad", False) is True:
            what = f"{describe(value)} that requires a gradient"
            raise place.refuse(TypeError, what, "detach it, or call aotdiff.interop.torch(f)") from None
        raise place.refuse(TypeError, f"{describe(value)} ({error})") from None
    if array.dtype.kind not in "fiub":
        raise place.refuse(TypeError, describe(array if isinstance(value, np.ndarray) else value))
    return array


def _convert_dtype(place: Place, array: np.ndarray, value: Any, dtype: np.dtype) -> np.ndarray:
    if isinstance(value, (list, tuple)) and (array.size == 0 or (array.dtype == np.float64 and dtype.kind == "f")):
        return array.astype(dtype)
    _check_dtype(place, array, value, dtype)
    if dtype.kind == "i" and array.dtype.kind == "u" and array.size and int(array.max()) >= 1 << 63:
        raise place.refuse(ValueError, f"{array.max()}, which does not fit")
    return array.astype(dtype)


def _check_dtype(place: Place, array: np.ndarray, value: Any, dtype: np.dtype) -> None:
    """Refuse what would lose something, saying how to convert."""
    have = array.dtype
    if have.kind == dtype.kind and (dtype.kind != "f" or have.itemsize == dtype.itemsize):
        return
    if have.kind in "iu" and dtype.kind in "if":
        return
    got = describe(array if array.ndim or isinstance(value, np.ndarray) else value)
    hint = f"convert it with {_conversion(array, value, dtype)}" if have.kind in "fiub" else ""
    raise place.refuse(TypeError, got, hint)


def _conversion(array: np.ndarray, value: Any, dtype: np.dtype) -> str:
    name = "bool" if dtype.kind == "b" else f"np.{dtype}"
    if not array.ndim:
        return f"{name}(x)"
    return f"x.astype({name})" if isinstance(value, np.ndarray) else f"np.asarray(x, {name})"
