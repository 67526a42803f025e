"""The gradients of scalar functions that a library has as native entries of their own."""

from __future__ import annotations

from collections.abc import Iterator

from aotdiff.runtime.function import Chain
from aotdiff.runtime.interface import Interface, Leaf, float_part, float_results

_MOST = 6  # float parameters up to which each has a gradient of its own


def chains(f: Interface) -> Iterator[tuple[str, Chain]]:
    """Which gradients are built, by the end of their native names: by each float parameter, and by all."""
    results = float_results(f.result)
    if len(results) != 1 or not isinstance(f.result, Leaf) or f.result.sizes:
        return
    if not all(isinstance(p.kind, Leaf) for p in f.parameters):
        return
    names = [p.name for p in f.parameters if float_part(p.kind) is not None]
    single = names if len(names) <= _MOST else names[:1]
    for form in ("grad", "value_and_grad"):
        for name in single:
            yield f"{form}.{name}", ((form, (name,), False),)
        if names:
            yield f"{form}", ((form, tuple(names), True),)
