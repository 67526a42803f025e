"""What `ad.interop` gives: a callable that knows the function it was made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aotdiff.runtime.function import Function


class Wrapped:
    """The function `f` on another library's arrays; pickles as `wrap(f)`."""

    def __init__(self, f: Function, call: Callable[..., Any], wrap: Callable[[Function], Wrapped]) -> None:
        self.function = f
        self._call = call
        self._wrap = wrap
        self.__name__ = self.__qualname__ = f.name
        self.__doc__ = f.__doc__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        library = self._wrap.__module__.rpartition("_")[2]
        return f"<aotdiff.interop.{library} of {self.function.name}: {self.function.signature}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._wrap, (self.function,)
