"""Whether calls with tensors are recorded: a setting of the thread, on unless a block switches it off."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any


class _Mode(threading.local):
    enabled = True


mode = _Mode()  # `mode.enabled` is the setting of the current thread


def is_grad_enabled() -> bool:
    """Whether calls are recorded in this thread now."""
    return mode.enabled


class set_grad_enabled:
    """Context manager and decorator: recording is on or off inside, and as before on every exit."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = bool(enabled)
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(mode.enabled)
        mode.enabled = self.enabled

    def __exit__(self, *error: Any) -> None:
        mode.enabled = self._before.pop()

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
