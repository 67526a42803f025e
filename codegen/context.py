"""The context every native function takes last: error report, interrupt flag, workspace.

One context serves one call at a time; a thread keeps one (or several, for calls within calls). All zero is a
valid start. `aotdiff.release` (exported by every module) gives its memory back. The layout, in bytes:

    0     i32   kind           error kind of the last failed call, a key of KINDS
    4     i32   line           its line
    8     char  message[1000]  "path.grad:line: text", zero-terminated
    1008  ptr   interrupt      null or an i32 that is polled: not 0 stops the call with kind 7
    1016  i64   stack_limit    recursion stops below this address
    1024  i64   stack_thread   the thread `stack_limit` is for, where there is no stack of our own
    1032  ptr   chunks         list of malloc'ed chunks, kept between calls
    1040  ptr   bump           next free byte of the current chunk
    1048  ptr   bump_end
    1056  i64   total          bytes in chunks
    1064  i64   want           size of the next chunk, at least
    1072  i64   keep           workspace kept between calls at most (0: KEEP_DEFAULT; -1: the caller's, no more of it)
    1080  i64   dirty          not 0 if anything was allocated since the last reset
    1088  ptr   free[192]      free lists by size class
    2624  ptr   stack          a stack of its own for functions that recurse, kept between calls
    2632  ptr   threads        null, or the table of functions that share work between threads (see `codegen.team`)
    2640  ptr   team           the threads that help, kept between calls
    2648  i64   most           threads a call may use at most; 0 for as many as there are processors
    2656  i32   stop           not 0 stops what this thread does for another's call
    2664  i32   processors     that there were when last asked for
    2668  i32   fresh          how often that is still to be believed
"""

from __future__ import annotations

import ctypes

KIND, LINE, MESSAGE, INTERRUPT, STACK_LIMIT, STACK_THREAD = 0, 4, 8, 1008, 1016, 1024
CHUNKS, BUMP, BUMP_END, TOTAL, WANT, KEEP, DIRTY, FREE = 1032, 1040, 1048, 1056, 1064, 1072, 1080, 1088
FREE_LISTS = 192
MESSAGE_SIZE = 1000
STACK = FREE + 8 * FREE_LISTS
THREADS, TEAM, MOST, STOP, PROCESSORS, FRESH = (STACK + n for n in (8, 16, 24, 32, 40, 44))
SIZE = STACK + 48
STACK_SIZE = 256 << 20
KEEP_DEFAULT = 1 << 30

KINDS = {
    1: "IndexError",
    2: "ValueError",
    3: "ZeroDivisionError",
    4: "AssertionFailed",
    5: "RecursionError",
    6: "MemoryError",
    7: "KeyboardInterrupt",
}
KIND_NUMBERS = {name: number for number, name in KINDS.items()}


class Context(ctypes.Structure):
    """The same for ctypes."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("message", ctypes.c_char * MESSAGE_SIZE),
        ("interrupt", ctypes.c_void_p),
        ("stack_limit", ctypes.c_int64),
        ("stack_thread", ctypes.c_int64),
        ("chunks", ctypes.c_void_p),
        ("bump", ctypes.c_void_p),
        ("bump_end", ctypes.c_void_p),
        ("total", ctypes.c_int64),
        ("want", ctypes.c_int64),
        ("keep", ctypes.c_int64),
        ("dirty", ctypes.c_int64),
        ("free", ctypes.c_void_p * FREE_LISTS),
        ("stack", ctypes.c_void_p),
        ("threads", ctypes.c_void_p),
        ("team", ctypes.c_void_p),
        ("most", ctypes.c_int64),
        ("stop", ctypes.c_int64),
        ("processors", ctypes.c_int32),
        ("fresh", ctypes.c_int32),
    ]


assert ctypes.sizeof(Context) == SIZE
