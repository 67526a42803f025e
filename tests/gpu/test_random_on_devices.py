"""Random programs on the emulated device against the CPU; `tests/gpu/agreement.py` runs more of them."""

from __future__ import annotations

import pytest

from tests.gpu.agreement import compare


@pytest.mark.parametrize("group", range(6))
def test_agreement(group: int) -> None:
    for number in range(5 * group, 5 * group + 5):
        assert compare(f"emulated:{number}") in ("", "recursion"), number
