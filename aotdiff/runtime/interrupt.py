"""Ctrl-C during a native call.

Python's own handler only notes a signal until bytecode runs again, which an endless native loop prevents. So a
small native handler stands before it while a call of the main thread runs: it sets a flag that native loops poll,
then calls Python's. When the call has stopped, Python raises `KeyboardInterrupt` as it would anywhere else.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from typing import Any

_flag = ctypes.c_int32(0)
_previous = ctypes.c_void_p(None)  # Python's handler
_handler: Any = None
_action: Any = None

_IR = """
define void @aotdiff.interrupt(i32 %signal) {{
  store atomic i32 1, ptr inttoptr (i64 {flag} to ptr) monotonic, align 4
  %previous = load ptr, ptr inttoptr (i64 {previous} to ptr)
  %known = icmp ne ptr %previous, null
  br i1 %known, label %pass, label %done
pass:
  call void %previous(i32 %signal)
  br label %done
done:
  ret void
}}
"""


class _Action(ctypes.Structure):
    """`struct sigaction` of glibc and musl on 64-bit Linux; the size leaves room for others."""

    _fields_ = [("handler", ctypes.c_void_p), ("rest", ctypes.c_char * 256)]


def flag_address() -> int:
    """Where native code looks."""
    return ctypes.addressof(_flag)


def arm() -> int | None:
    """Before a call: what it is to poll. Only calls of the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        return None
    _flag.value = 0
    _install()
    return flag_address()


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


def settle() -> None:
    """After a call that was interrupted: let Python's handler run; it normally raises."""
    _flag.value = 0
    for _ in range(1000):
        pass


def _install() -> None:
    """Put our handler before Python's, unless the program wants no handler or a native one of its own."""
    global _handler, _action
    if _handler is None:
        from aotdiff.codegen.driver import Options, load, object_from

        _action = ctypes.CDLL(None).sigaction
        text = _IR.format(flag=ctypes.addressof(_flag), previous=ctypes.addressof(_previous))
        _handler = load(object_from(text, Options(opt=0)))
    ours = _handler.address("interrupt")
    found = _Action()
    if _action(int(signal.SIGINT), None, ctypes.byref(found)) or found.handler == ours:
        return
    if found.handler in (None, 0, 1) or not callable(signal.getsignal(signal.SIGINT)):
        return
    _previous.value = found.handler
    found.handler = ours
    _action(int(signal.SIGINT), ctypes.byref(found), None)
