"""Python's cyclic garbage collector while something is compiled.

Graphs are many objects that live long: at its usual thresholds the collector looks at all of them over and over, which
took a seventh of the time of the passes, and finds nothing.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 100_000  # new objects between two looks at the youngest

_lock = threading.Lock()
_compiling = 0
_usual = _ours = gc.get_threshold()


@contextmanager
def seldom() -> Iterator[None]:
    """Fewer collections in here, in all threads; afterwards as before, unless somebody else has changed them."""
    _begin()
    try:
        yield
    finally:
        _end()


def _begin() -> None:
    global _compiling, _usual, _ours
    with _lock:
        _compiling += 1
        if _compiling > 1:
            return
        _usual = _ours = gc.get_threshold()
        if 0 < _usual[0] < SELDOM:
            _ours = (SELDOM, *_usual[1:])
            gc.set_threshold(*_ours)


def _end() -> None:
    global _compiling
    with _lock:
        _compiling = max(_compiling - 1, 0)
        if _compiling == 0 and gc.get_threshold() == _ours:
            gc.set_threshold(*_usual)


def _after_fork() -> None:
    """In a new process no other thread goes on compiling."""
    global _lock, _compiling
    _lock = threading.Lock()
    if _compiling:
        _compiling = 0
        if gc.get_threshold() == _ours:
            gc.set_threshold(*_usual)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
