"""The garbage collector is as it was after something was compiled, also after errors and in other threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

import aotdiff as ad
from aotdiff.runtime import garbage


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_thresholds_are_restored_after_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    from aotdiff.passes import pipeline

    usual = pipeline.optimize
    monkeypatch.setattr(pipeline, "optimize", lambda *a, **k: (seen.append(gc.get_threshold()[0]), usual(*a, **k))[1])
    monkeypatch.setenv("AOTDIFF_CACHE", "off")
    assert ad.compile_source("fn f(x: f64) -> f64 = x * 3.0 + 0.125").f(1.0) == 3.125
    assert seen == [garbage.SELDOM]
    assert gc.get_threshold() == (700, 10, 10)


def test_thresholds_are_restored_after_an_error() -> None:
    with pytest.raises(ad.CompileError):
        ad.compile_source("fn f(x: f64) -> f64 = y")
    assert gc.get_threshold() == (700, 10, 10)


def test_the_last_of_several_restores_them() -> None:
    inside, go = threading.Event(), threading.Event()

    def other() -> None:
        with garbage.seldom():
            inside.set()
            go.wait()

    with garbage.seldom(), garbage.seldom():
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait()
    assert gc.get_threshold()[0] == garbage.SELDOM
    go.set()
    thread.join()
    assert gc.get_threshold() == (700, 10, 10)


def test_what_others_set_meanwhile_stays() -> None:
    with garbage.seldom():
        gc.set_threshold(5000, 20, 20)
    assert gc.get_threshold() == (5000, 20, 20)


@pytest.mark.parametrize("own", [(0, 10, 10), (2 * garbage.SELDOM, 5, 5)])
def test_who_collects_less_already_is_left_alone(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with garbage.seldom():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own
