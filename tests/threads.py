"""Code that is split between threads wherever it can be: for tests, on any number of processors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from aotdiff.codegen.pieces import limits

from aotdiff.runtime import cache
from aotdiff.runtime.module import _threads_code
from aotdiff.runtime.native import threads


@contextmanager
def always(count: int) -> Iterator[None]:
    """Outermost loops compiled in here are split however little they do; calls use so many threads."""
    before, most, get, put = replace(limits), threads.most.value, cache.get, cache.put
    limits.least, limits.piece, limits.grain = 0.0, 1e-3, 1
    cache.get, cache.put = lambda name: None, lambda name, content: None
    threads.provide(_threads_code)
    use(count)
    try:
        yield
    finally:
        limits.least, limits.piece, limits.grain = before.least, before.piece, before.grain
        cache.get, cache.put = get, put
        threads.most.value = most
        threads.changed()


def use(count: int) -> None:
    """Calls use so many threads, whatever the number of processors."""
    threads.most.value = -count
    threads.changed()
