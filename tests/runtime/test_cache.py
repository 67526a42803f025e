"""The cache on disk: what it survives."""

import os
import subprocess
import sys

import pytest

from aotdiff.runtime import cache


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AOTDIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_put_get():
    name = cache.key("a", "b")
    assert cache.get(name) is None
    cache.put(name, b"content")
    assert cache.get(name) == b"content"
    assert cache.info().entries == 1
    assert cache.clear() == 1 and cache.get(name) is None


def test_keys_tell_parts_apart():
    assert cache.key("ab", "c") != cache.key("a", "bc")


@pytest.mark.parametrize("damage", [b"", b"aotdiff1", b"garbage" * 20])
def test_damaged_entry_is_ignored_and_rewritten(folder, damage):
    name = cache.key("x")
    cache.put(name, b"content")
    (folder / name[:2] / name).write_bytes(damage)
    assert cache.get(name) is None
    cache.put(name, b"content")
    assert cache.get(name) == b"content"


def test_truncated_entry_is_ignored(folder):
    name = cache.key("x")
    cache.put(name, b"content" * 100)
    path = folder / name[:2] / name
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.get(name) is None


def test_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AOTDIFF_CACHE", str(tmp_path / "file" / "below"))
    cache.put(cache.key("x"), b"content")
    assert cache.get(cache.key("x")) is None
    assert cache.info().entries == 0


def test_switched_off(monkeypatch):
    monkeypatch.setenv("AOTDIFF_CACHE", "off")
    cache.put(cache.key("x"), b"content")
    assert cache.get(cache.key("x")) is None and cache.info().folder is None


def test_least_recently_used_go_first(folder, monkeypatch):
    names = [cache.key(str(k)) for k in range(4)]
    for age, name in enumerate(names):
        cache.put(name, os.urandom(400_000))
        os.utime(folder / name[:2] / name, (1000 + age, 1000 + age))
    assert cache.get(names[0])  # used again
    stale = folder / names[0][:2] / ".tmp-killed"
    stale.write_bytes(b"x")
    os.utime(stale, (1000, 1000))
    monkeypatch.setenv("AOTDIFF_CACHE_SIZE", "1")
    cache.trim()
    assert [cache.get(name) is not None for name in names] == [True, False, False, True]
    assert not stale.exists()


def test_many_processes(folder):
    code = """
import os, sys
from aotdiff.runtime import cache
name = cache.key("shared")
for k in range(50):
    cache.put(name, b"x" * 100000)
    found = cache.get(name)
    assert found is None or found == b"x" * 100000
    if k % 10 == 0: cache.clear()
"""
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [p.wait() for p in running] == [0] * 4
