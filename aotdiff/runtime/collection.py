"""Functions by name: what modules and built libraries have in common."""

from __future__ import annotations

import difflib
import keyword
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from aotdiff.runtime.function import Chain, Function, rebuild
from aotdiff.runtime.interface import Interface
from aotdiff.runtime.prototype import CEntry


class Collection:
    """Exported functions as attributes and items: `m.f`, `m["f"]`, `list(m)`."""

    def __init__(self, path: str, interfaces: Iterable[Interface]) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._functions: dict[tuple[str, Chain], Function] = {}
        self._exports = {found.name: Function(self, found.name, found) for found in interfaces}
        for name, function in self._exports.items():
            self._functions[name, ()] = function
            self.__dict__.setdefault(name, function)  # what stands there is ours: `m["_lock"]` is theirs
            if keyword.iskeyword(name):
                self.__dict__[name + "_"] = function

    device: Any = None  # where its functions run, None for this machine's processor

    @property
    def _default_real(self) -> str:
        """What `real` is where no argument decides."""
        return "f64"

    def _native(self, root: str, chain: Chain, interface: Interface, real: str) -> Any:
        """Binder and native code of a function or of one of its derivatives."""
        raise NotImplementedError

    def _c_entry(self, root: str, chain: Chain, interface: Interface, real: str) -> CEntry:
        """The function as C calls it."""
        raise NotImplementedError

    def _pickled(self, root: str, chain: Chain) -> tuple[Any, ...]:
        """How a function of this collection pickles."""
        return rebuild, (self, root, chain)

    def __repr__(self) -> str:
        return f"<aotdiff.{type(self).__name__} {self._path}: {', '.join(self._exports)}>"

    def __getitem__(self, name: str) -> Function:
        return self._exports[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._exports)

    def __len__(self) -> int:
        return len(self._exports)

    def __contains__(self, name: object) -> bool:
        return name in self._exports

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        near = difflib.get_close_matches(name, self._exports, 1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise AttributeError(f"{self._path} exports no {name!r}{hint}")

    def __dir__(self) -> list[str]:
        return list(self._exports)
