"""Ctrl-C during a native call.

Python's own handler only notes a signal until bytecode runs again, which an endless native loop prevents. So a small
native handler stands before it: it sets a flag that native loops poll, then calls Python's. When the call has stopped,
Python raises `KeyboardInterrupt` as it would anywhere else.

There is one handler in a process, whichever compiled library brought it: two that know nothing of each other could
end up calling each other for ever.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

# The handler, and where its flag and Python's handler are kept.
HANDLER_TEXT = """
@aotdiff.interrupted = internal global i32 0
@aotdiff.previous = internal global ptr null
define weak ptr @aotdiff.interrupt_flag() { ret ptr @aotdiff.interrupted }
define weak ptr @aotdiff.interrupt_previous() { ret ptr @aotdiff.previous }
define weak void @aotdiff.interrupt(i32 %signal) {
  store atomic i32 1, ptr @aotdiff.interrupted monotonic, align 4
  %previous = load ptr, ptr @aotdiff.previous
  %known = icmp ne ptr %previous, null
  br i1 %known, label %pass, label %done
pass:
  call void %previous(i32 %signal)
  br label %done
done:
  ret void
}
"""


class _Action(ctypes.Structure):
    """`struct sigaction` of 64-bit Linux and macOS begins so; the rest is only carried along."""

    _fields_ = [("handler", ctypes.c_void_p), ("rest", ctypes.c_char * 256)]


class Handler:
    """The handler of this process: `find` gives the address of one of its native functions by name."""

    def __init__(self, find: Callable[[str], int]) -> None:
        self.address = find("aotdiff.interrupt")
        get = ctypes.CFUNCTYPE(ctypes.c_void_p)
        self.flag_address = int(get(find("aotdiff.interrupt_flag"))() or 0)
        self.flag = ctypes.c_int32.from_address(self.flag_address)
        self.previous = ctypes.c_void_p.from_address(int(get(find("aotdiff.interrupt_previous"))() or 0))
        self.action = getattr(ctypes.CDLL(None), "sigaction", None)
        self.find = find  # keeps the code

    def install(self) -> None:
        """Stand before Python's handler, unless the program wants none or a native one of its own."""
        found = _Action()
        if self.action is None or self.action(int(signal.SIGINT), None, ctypes.byref(found)):
            return
        if found.handler in (None, 0, 1, self.address) or not callable(signal.getsignal(signal.SIGINT)):
            return
        self.previous.value = found.handler
        found.handler = self.address
        self.action(int(signal.SIGINT), ctypes.byref(found), None)


def handler() -> Handler | None:
    """The handler, if one is there."""
    return getattr(sys, "_aotdiff_interrupt_handler", None)


def provide(make: Callable[[], Callable[[str], int]]) -> None:
    """Make the handler from native code, unless there is one already."""
    if handler() is None:
        made = Handler(make())
        # One in a process, so it is kept there; before it is installed, as Ctrl-C may come between: its code must stay.
        sys._aotdiff_interrupt_handler = made  # type: ignore[attr-defined]
        made.install()


def arm() -> int | None:
    """Before a call: what it is to poll. Only calls of the main thread can be interrupted."""
    found: Any = handler()
    if found is None or threading.current_thread() is not threading.main_thread():
        return None
    found.flag.value = 0
    found.install()
    return found.flag_address


def settle() -> None:
    """After a call that was interrupted: let Python's handler run; it normally raises."""
    found = handler()
    if found is not None:
        found.flag.value = 0
    for _ in range(1000):
        pass


def main_thread_state() -> int:
    """CPython's state of the main thread: the oldest of the main interpreter."""
    api = ctypes.pythonapi
    for function in (api.PyInterpreterState_Main, api.PyInterpreterState_ThreadHead, api.PyThreadState_Next):
        function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    api.PyInterpreterState_Main.argtypes = []
    state = api.PyInterpreterState_ThreadHead(api.PyInterpreterState_Main())
    while following := api.PyThreadState_Next(state):
        state = following
    return state
