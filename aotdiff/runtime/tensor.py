"""`Tensor`: an array with a gradient, and a place in the graph of recorded calls.

Data: `_data` is a numpy array; or a Python float, for a float64 number of no dimensions that nobody shares (it is put
in memory when somebody asks for its buffer). `_cell` holds the version of the buffer, None as long as it is 0 and the
tensor is alone. History: `_node` is None for a leaf, else the edge (see `graph_nodes`) that this tensor came from.
Operators and the like come from `tensor_methods`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from aotdiff.runtime.graph_nodes import Cell, Hook, Node, watch_of
from aotdiff.runtime.tensor_methods import Later, Methods

_F64 = np.dtype(np.float64)
_LANGUAGE = {"f64": "float64", "f32": "float32", "i64": "int64"}  # the language's names of dtypes
Shape = tuple[int, ...]
_engine: Any = Later("engine")


class Tensor(Methods):
    """Made by `ad.tensor`, `ad.from_numpy`, operators, and compiled functions called with tensors."""

    __slots__ = ("__weakref__", "_cell", "_data", "_grad", "_hooks", "_needs", "_node")
    __array_priority__ = 1000.0
    _data: Any

    def __init__(self, data: Any, node: Any = None, cell: Cell | None = None) -> None:
        self._data = data
        self._cell = cell
        self._node: Any = node
        self._needs = node is not None
        self._grad: Tensor | None = None
        self._hooks: dict[int, Callable[[Any], Any]] | None = None

    # What it holds -------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        return _F64 if type(self._data) is float else self._data.dtype

    @property
    def shape(self) -> Shape:
        return () if type(self._data) is float else self._data.shape

    @property
    def ndim(self) -> int:
        return 0 if type(self._data) is float else self._data.ndim

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return 1 if type(self._data) is float else self._data.size

    def stride(self, dim: int | None = None) -> Any:
        """Strides in elements, or the one of one dimension."""
        strides = self.strides
        return strides if dim is None else strides[dim]

    @property
    def strides(self) -> Shape:
        """In elements."""
        if type(self._data) is float:
            return ()
        return tuple([s // self._data.itemsize for s in self._data.strides])

    @property
    def on_device(self) -> bool:
        return getattr(self._data, "on_device", False)

    @property
    def device(self) -> str:
        """Where the numbers are: "cpu", or the name of a device."""
        return self._data.device.kind if self.on_device else "cpu"

    def is_contiguous(self) -> bool:
        return type(self._data) is float or self._data.flags.c_contiguous

    def is_floating_point(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def _version(self) -> int:
        return 0 if self._cell is None else self._cell.version

    def item(self) -> Any:
        """The number in a tensor with one element."""
        if type(self._data) is float:
            return self._data
        if self._data.size != 1:
            raise RuntimeError(f"item() needs a tensor with one element, this one has shape {self.shape}")
        return self._data.item()

    def tolist(self) -> Any:
        return self._data if type(self._data) is float else self._data.tolist()

    def numpy(self) -> np.ndarray:
        """The buffer itself as a numpy array; writing into it is not seen by the check of versions."""
        if self._needs:
            raise RuntimeError("numpy() of a tensor that requires grad would lose its history: use detach().numpy()")
        if self.on_device:
            raise TypeError(f"numpy() shows host memory, this tensor is on {self.device}: use cpu().numpy()")
        return buffer(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        wanted = array if dtype is None else array.astype(dtype, copy=False)
        return wanted.copy() if copy and wanted is array else wanted

    def __dlpack__(self, **options: Any) -> Any:
        """The buffer itself, for `from_dlpack` of other libraries."""
        if self.on_device:
            return self._exported().__dlpack__(**options)
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._data.__dlpack_device__() if self.on_device else (1, 0)  # CPU memory

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For numba, cupy and others; only tensors on a GPU have it."""
        if not self.on_device:
            raise AttributeError("a tensor in host memory has no __cuda_array_interface__")
        return self._exported().__cuda_array_interface__

    def _exported(self) -> Any:
        if self._needs:
            raise RuntimeError("another library would lose the history of a tensor that requires grad: use detach()")
        return self._data

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"only integer tensors are indices, this one is {self.dtype}")
        return int(self.item())

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise RuntimeError(f"a tensor of shape {self.shape} is neither true nor false: use any() or all()")
        return bool(self.item())

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("a tensor of no dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return iter([self[k] for k in range(len(self))])

    __hash__ = object.__hash__  # type: ignore[assignment]  # `==` gives tensors, yet they are keys

    def __repr__(self) -> str:
        array = self._data.numpy() if self.on_device else np.asarray(self._data)
        text = np.array2string(array, separator=", ", prefix="tensor(")
        dtype = "" if self.dtype.name in ("float64", "int64", "bool") else f", dtype={self.dtype}"
        history = f", grad_fn={self.grad_fn!r}" if self._node is not None else ", requires_grad=True"
        device = f", device={self.device!r}" if self.on_device else ""
        return f"tensor({text}{dtype}{device}{history if self._needs else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._node is not None:
            raise RuntimeError("only leaf tensors can be pickled: use detach()")
        array = self._data.numpy() if self.on_device else np.array(self._data)
        return _rebuild, (array, self._needs, self._grad, self.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        make, args = self.__reduce__()
        return memo.setdefault(id(self), make(*args))

    # Gradients -----------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        return self._needs

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        value = bool(value)
        if value == self._needs:
            return
        if self._node is not None:
            raise RuntimeError("requires_grad can be switched off only on leaf tensors: use detach() for one without")
        if value and self.dtype.kind != "f":
            raise RuntimeError(f"only floating point tensors can require grad, this one is {self.dtype}")
        self._needs = value

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        self.requires_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        return self._node is None

    @property
    def grad_fn(self) -> Node | None:
        """The recorded call that this tensor is a result of."""
        edge = self._node
        return edge if edge is None or type(edge) is Node else edge.node

    @property
    def grad(self) -> Tensor | None:
        if self._grad is None and self._node is not None and not self.retains_grad:
            warnings.warn(
                "reading .grad of a tensor that is not a leaf: only leaves get one, unless retain_grad() asked for it",
                UserWarning,
                stacklevel=2,
            )
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            self._check_grad(value)
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self._grad = None

    def _check_grad(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f".grad takes a Tensor or None, not a {type_name(value)}")
        if value is self:
            raise RuntimeError("a tensor cannot be its own .grad")
        if value.shape != self.shape:
            raise RuntimeError(f".grad needs the shape of its tensor, {self.shape}; got shape {value.shape}")
        if value.dtype != self.dtype:
            raise RuntimeError(f".grad needs the dtype of its tensor, {self.dtype}; got dtype {value.dtype}")

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf tensor too."""
        if not self._needs:
            raise RuntimeError("retain_grad() on a tensor whose requires_grad is False")
        if self._node is not None:
            self._watch().retains = True

    @property
    def retains_grad(self) -> bool:
        watch = None if self._node is None else watch_of(self._node)
        return watch is not None and watch.retains and watch.tensor is not None and watch.tensor() is self

    def _watch(self) -> Any:
        """The watch of this result, which then knows this tensor."""
        watch: Any = watch_of(self._node, make=True)
        if watch.tensor is None or watch.tensor() is None:
            watch.tensor, watch.dtype = weakref.ref(self), self.dtype
        return watch

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Hook:
        """Call `hook` with the gradient in every walk; what it returns, if not None, takes its place."""
        if not self._needs:
            raise RuntimeError("a hook needs a tensor that requires grad: this one has requires_grad False")
        if self._node is not None:
            return Hook(self._watch().hooks, hook)
        if self._hooks is None:
            self._hooks = {}
        return Hook(self._hooks, hook)

    def backward(
        self, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False,
        inputs: Any = None,
    ) -> None:  # fmt: skip
        """Add the gradient of this tensor to the `.grad` of the leaves it was computed from, or of `inputs`.

        `gradient` weights the elements (needed for more than one); the graph is freed unless `retain_graph`;
        with `create_graph` the gradients can be differentiated themselves.
        """
        _engine.backward(self, gradient, retain_graph, create_graph, inputs)

    def detach(self) -> Tensor:
        """A leaf without history that shares the buffer and its version."""
        return Tensor(buffer(self), None, cell_of(self))

    def detach_(self) -> Tensor:
        """Forget the history."""
        self._node, self._needs = None, False
        return self


# Making tensors ------------------------------------------------------------------------------------------------


def wrap(value: Any, node: Any = None) -> Tensor:
    """A tensor over an array or number nobody else has; a float64 of no dimensions is kept as a Python float."""
    if type(value) is not float:
        if type(value) is not np.ndarray:
            if getattr(value, "on_device", False):
                return Tensor(value, node)
            value = np.asarray(value)
        if not value.ndim and value.dtype is _F64:
            value = value.item()
    return Tensor(value, node)


def buffer(t: Tensor) -> np.ndarray:
    """The tensor's memory as an array: made now, if it is a number without one."""
    if type(t._data) is float:
        t._data = np.array(t._data)
    return t._data


def cell_of(t: Tensor) -> Cell:
    """The tensor's version cell, made now if it has none."""
    if t._cell is None:
        t._cell = Cell()
    return t._cell


def _array(data: Any, dtype: Any) -> np.ndarray:
    if isinstance(data, Tensor):
        data = data._data
    elif isinstance(data, (list, tuple)):
        data = _unwrapped(data)
    array = np.array(data, None if dtype is None else np.dtype(dtype), order="C")
    if array.dtype.kind not in "fiubc":
        raise TypeError(f"a tensor holds numbers; {type(data).__name__} became an array of {array.dtype}")
    return array


def _placed(data: Any, dtype: Any, device: str | None) -> Tensor:
    """A copy on a device, or of something that is on one."""
    from aotdiff.runtime.gpu.tensors import moved

    found = data._data if isinstance(data, Tensor) else data
    if not getattr(found, "on_device", False):
        found = _array(data, dtype)
    else:
        device = device or found.device.kind
        found = found.astype(found.dtype if dtype is None else dtype)
    place = moved(found, device or "cpu")
    return wrap(place) if device in (None, "cpu") else Tensor(place)


def type_name(value: Any) -> str:
    """The type of a value in a message: `list`, `torch.Tensor`."""
    kind = type(value)
    return kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__name__}"


def _unwrapped(data: Any) -> Any:
    """Nested lists with the tensors in them replaced by their values."""
    if isinstance(data, (list, tuple)):
        return [_unwrapped(item) for item in data]
    return np.asarray(data._data) if isinstance(data, Tensor) else data


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False, device: str | None = None) -> Tensor:
    """A new leaf with a copy of numbers, (nested) lists or an array; floats are float64 where nothing else says so.

    `dtype` is numpy's, or a name of the language ("f32"). It is where the data is, or on `device`: "cpu" or "cuda".
    """
    if isinstance(dtype, str):
        dtype = _LANGUAGE.get(dtype, dtype)
    if device is None and not getattr(data, "on_device", False):
        made = wrap(_array(data, dtype))
    else:
        made = _placed(data, dtype, device)
    if requires_grad:
        made.requires_grad = True
    return made


def from_numpy(array: np.ndarray) -> Tensor:
    """A leaf that shows the array's own memory, with its strides."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy takes a numpy array, not a {type(array).__name__}")
    if array.dtype.kind not in "fiubc":
        raise TypeError(f"a tensor holds numbers; this array is of {array.dtype}")
    return Tensor(array)


def _rebuild(array: np.ndarray, needs: bool, grad: Tensor | None, device: str = "cpu") -> Tensor:
    made = tensor(array, requires_grad=needs, device=device)
    made._grad = grad
    return made
