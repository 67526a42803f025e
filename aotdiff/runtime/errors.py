"""Errors that a call of a compiled function can raise.

Native code reports a kind and a text (which names the `.grad` file and line); `KINDS` maps the kind to the Python
exception. The numbers are part of the contract with `aotdiff.codegen`.
"""

from __future__ import annotations


class AssertionFailed(AssertionError):
    """An `assert` of the program does not hold."""


class DeviceError(RuntimeError):
    """A GPU is missing, or refused to do what was asked."""


KINDS: dict[int, type[BaseException]] = {
    1: IndexError,
    2: ValueError,
    3: ZeroDivisionError,
    4: AssertionFailed,
    5: RecursionError,
    6: MemoryError,
    7: KeyboardInterrupt,
    8: DeviceError,
}


def exception_for(kind: int, message: str) -> BaseException:
    """The exception for an error that native code reported."""
    return KINDS.get(kind, RuntimeError)(message)
