"""Reverse of calls that were not inlined: a user's rule, or a callee with a residual record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotdiff.ir.graph import Op

if TYPE_CHECKING:
    from aotdiff.ad.reverse import Sweep


def sweep_call(sw: Sweep, op: Op) -> None:
    raise NotImplementedError(f"reverse of a call of @{op.attrs['callee']}")


def sweep_record_make(sw: Sweep, op: Op) -> None:
    raise NotImplementedError


def sweep_record_unpack(sw: Sweep, op: Op) -> None:
    raise NotImplementedError
