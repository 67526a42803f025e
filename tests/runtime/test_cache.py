"""The cache on disk: what it survives."""

import os
import subprocess
import sys

import pytest
from aotdiff.codegen import loader

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


def test_a_simulated_processor_is_another_machine(monkeypatch):
    """Under valgrind the system still names the real one, whose features it has not."""
    real = cache.machine.__wrapped__()
    monkeypatch.setattr(loader, "features_of", lambda options: "+sse2,-avx512f")
    assert cache.machine.__wrapped__() != real


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


@pytest.mark.parametrize("text", ["", "much", "nan", "inf"])
def test_sizes_that_are_none(folder, monkeypatch, text):
    monkeypatch.setenv("AOTDIFF_CACHE_SIZE", text)
    assert cache.info().limit == 1024 * 1024 * 1024
    cache.trim()


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


# Whole programs: many processes, a full or read-only disk -----------------------------------------------------------

PROGRAM = "fn f(x: f64[n], s: f64) -> f64 = sum(sin(x) * s)\n"
USE = """
import numpy as np, aotdiff as ad
m = ad.compile("program.grad")
assert abs(m.f.grad()(np.zeros(3), 2.0) - 2.0).max() < 1e-15
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.grad").write_text(PROGRAM)

    def start(code=USE, **options):
        return subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, **options)

    return start


def test_twenty_processes_compile_the_same(program, folder):
    """Forked when the compiler is loaded, so that they meet at the cache."""
    code = """
import os
import aotdiff as ad
os.environ["AOTDIFF_CACHE"], place = "off", os.environ["AOTDIFF_CACHE"]
ad.compile_source("fn g(x: f64) -> f64 = x", opt=0).g(1.0)
os.environ["AOTDIFF_CACHE"] = place
children = []
for k in range(20):
    child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = ad.compile_source("fn f(x: f64) -> f64 = 2.0 * x", opt=0).f(2.0) == 4.0
        finally:
            os._exit(0 if ok else 1)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 20
"""
    assert program(code).wait(300) == 0
    assert not list(folder.rglob(".tmp-*"))
    assert cache.info().entries == 2  # interfaces, the function


def test_killed_writer(program, folder):
    """A writer that dies between creating and renaming its file leaves nothing that anybody reads."""
    code = """
import os, signal
from aotdiff.runtime import cache
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
cache.put(cache.key("killed"), b"content")
"""
    assert program(code).wait(60) == -9
    (left,) = folder.rglob(".tmp-*")
    assert cache.get(cache.key("killed")) is None
    cache.put(cache.key("killed"), b"content")
    assert cache.get(cache.key("killed")) == b"content"
    os.utime(left, (1000, 1000))
    cache.trim()
    assert not left.exists()


@pytest.mark.parametrize("call", ["write", "mkstemp", "replace", "makedirs"])
def test_full_disk(monkeypatch, folder, call):
    """ENOSPC wherever it can come: the call works, nothing is left behind."""
    import errno
    import tempfile

    import numpy as np

    import aotdiff as ad

    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        write = full

    if call == "write":
        opened = os.fdopen
        monkeypatch.setattr(os, "fdopen", lambda *a, **k: Full(opened(*a, **k)))
    elif call == "mkstemp":
        monkeypatch.setattr(tempfile, "mkstemp", full)
    elif call == "replace":
        monkeypatch.setattr(os, "replace", full)
    else:
        monkeypatch.setattr(type(folder), "mkdir", full)
    m = ad.compile_source(f"fn f(x: f64[n]) -> f64 = sum(x) + {len(call)}.0")
    assert m.f(np.ones(3)) == 3.0 + len(call)
    assert cache.info().entries == 0 and not list(folder.rglob(".tmp-*"))


def test_read_only_folder(program, folder):
    """Entries are read, new ones are not kept, nothing fails (root may write all the same: then they are kept)."""
    assert program().wait(60) == 0
    before = cache.info().entries
    places = [folder, *(p for p in folder.iterdir() if p.is_dir())]
    for place in places:
        place.chmod(0o555)
    try:
        assert program().wait(60) == 0
        assert program(USE + "assert abs(m.f.hessian()(np.zeros(3), 2.0)).max() == 0.0").wait(60) == 0
        assert cache.info().entries == (before + 1 if os.geteuid() == 0 else before)
    finally:
        for place in places:
            place.chmod(0o755)


def test_every_entry_damaged(program, folder):
    assert program().wait(60) == 0
    paths = [p for p in folder.rglob("*") if p.is_file()]
    for number, path in enumerate(paths):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data[: len(data) - number])
    assert program().wait(60) == 0
    assert all(cache.get(p.name) is not None for p in paths)


TIMED = """
import time, numpy as np
start = time.process_time()
import aotdiff as ad
ad.compile
imported = time.process_time()
m = ad.compile("program.grad")
assert abs(m.f.grad()(np.zeros(3), 2.0) - 2.0).max() < 1e-15
print(imported - start, time.process_time() - imported)
"""


def test_second_process_starts_at_once(program):
    """Less than 50 ms from import to a result, and 150 ms for the import (of processor time: machines are shared)."""
    assert program().wait(60) == 0
    runs = []
    for _ in range(8):
        out, _ = program(TIMED, stdout=subprocess.PIPE, text=True).communicate(timeout=60)
        runs.append([float(word) for word in out.split()])
        if runs[-1][0] < 0.15 and runs[-1][1] < 0.05:
            break
    assert min(run[0] for run in runs) < 0.15, runs
    assert min(run[1] for run in runs) < 0.05, runs
    loaded = (
        "import sys\n" + TIMED + "print([n for n in sys.modules if 'frontend' in n or 'passes' in n or n == 'lark'])"
    )
    out, _ = program(loaded, stdout=subprocess.PIPE, text=True).communicate(timeout=60)
    assert out.splitlines()[-1] == "[]"


_PARSE = """
from aotdiff import compile_source
from aotdiff.frontend import reader
m = compile_source("fn f(x: f64[n]) -> f64 = sum(x * x)  # squares")
lark = reader.parser()[0]
print(bool(lark.options.cache), len(lark.terminals), m.f.signature)
"""


@pytest.mark.parametrize("damage", [None, b"", b"garbage", b"old\n"])
def test_parser_tables_are_kept(folder, damage):
    """The next process reads what Lark made of the grammar; what is damaged or of another grammar is made anew."""
    def parse() -> str:
        env = {**os.environ, "AOTDIFF_CACHE": str(folder)}
        done = subprocess.run([sys.executable, "-c", _PARSE], env=env, capture_output=True, text=True, check=True)
        assert not done.stderr
        return done.stdout

    first = parse()
    assert first.startswith("True")
    name = cache.key("parser", cache.compiler_version())
    whole = cache.get(name)
    if damage is not None:
        cache.put(name, damage)
    before = cache.get(name)
    for other in folder.glob("*/*"):
        if other.name != name:
            other.unlink()  # so that the program is read again
    assert parse() == first
    assert (cache.get(name) == before) == (damage is None)
    assert cache.get(name)[:64] == whole[:64]  # what Lark calls this grammar
