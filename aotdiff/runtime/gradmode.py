"""Whether calls with tensors are recorded: a setting of the thread, on unless a block switches it off."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any


class _Mode(threading.local):
    enabled = True


mode = _Mode()  # `mode.enabled` is the setting of the current thread
_off = ctypes.c_int64(0)  # threads in which it is off: native code need not look further while that is 0
_lock = threading.Lock()


def switch(enabled: bool) -> bool:
    """Change the setting of this thread; gives what it was."""
    before = mode.enabled
    if enabled != before:
        with _lock:
            mode.enabled = enabled
            _off.value += -1 if enabled else 1
    return before


def off_address() -> int:
    """Where the number of threads that have it off is."""
    return ctypes.addressof(_off)


def is_grad_enabled() -> bool:
    """Whether calls are recorded in this thread now."""
    return mode.enabled


class set_grad_enabled:
    """Context manager and decorator: recording is on or off inside, and as before on every exit."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = bool(enabled)
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(switch(self.enabled))

    def __exit__(self, *error: Any) -> None:
        switch(self._before.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        enabled = self.enabled

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with set_grad_enabled(enabled):
                return function(*args, **kwargs)

        return call


class _Fixed(set_grad_enabled):
    """`with no_grad():`, `@no_grad()` and `@no_grad`."""

    _value: bool

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        if function is None:
            return made
        set_grad_enabled.__init__(made, cls._value)
        return made(function)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__(self._value)


class no_grad(_Fixed):
    """Calls inside are not recorded."""

    _value = False


class enable_grad(_Fixed):
    """Calls inside are recorded, also within `no_grad`."""

    _value = True
