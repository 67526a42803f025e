"""Objects for other machines: linked, and run where an emulator is there."""

import contextlib
import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from aotdiff.codegen import find_compiler

from aotdiff.cli import main

PROGRAM = """\
fn grow(x: f64[n], depth: i64) -> f64 {
    if depth == 0 { sum(x) } else { sum(x) + grow(sin(x), depth - 1) }
}

fn special(x: f64[n]) -> f64 = sum(lgamma(x[i]) + exp(x[i]) * erf(x[i]) for i in 0..n)

fn at(x: f64[n], i: i64) -> f64 = x[i]
"""

CALLER = """\
#include "cross.h"
#include <stdio.h>
int main(void) {
    double x[3] = {1.0, 2.0, 3.0}, v, g[3];
    char memory[8192];
    if (special(x, 3, &v)) return 1;
    printf("%.10g\\n", v);
    if (special_vjp(x, 3, 1.0, g)) return 2;
    printf("%.10g %.10g %.10g\\n", g[0], g[1], g[2]);
    if (grow_into(x, 3, 3, &v, memory, sizeof memory)) return 3;
    printf("%.10g %d\\n", v, (int)(grow_vjp_workspace(x, 3, 3, 1.0, g) > 0));
    int code = at(x, 7, 3, &v);
    printf("%d %s\\n", code, aotdiff_last_error());
    code = grow(x, 100000000, 3, &v);
    printf("%d %s\\n", code, aotdiff_last_error());
    return 0;
}
"""
# The sums and derivatives by mpmath: lgamma, exp and erf at 1, 2, 3.
PRINTED = """\
30.42343071
2.841861754 7.929985902 21.01067453
11.09555628 1
1 cross.grad:7: index 7 is out of range for size 3 (axis 0)
5 cross.grad:1: recursion too deep in `grow`
"""

# triple, how its object file begins, name of the target for zig
TARGETS = [
    ("x86_64-unknown-linux-gnu", b"\x7fELF\x02", "x86_64-linux-gnu"),
    ("aarch64-unknown-linux-gnu", b"\x7fELF\x02", "aarch64-linux-gnu"),
    ("aarch64-unknown-linux-musl", b"\x7fELF\x02", "aarch64-linux-musl"),
    ("arm64-apple-macosx11", b"\xcf\xfa\xed\xfe", "aarch64-macos"),
    ("x86_64-pc-windows-gnu", b"\x64\x86", "x86_64-windows-gnu"),
    ("wasm32-unknown-unknown", b"\0asm", "wasm32-wasi"),
]
IDS = [triple for triple, _, _ in TARGETS]


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """A folder per triple with `cross.o` and `cross.h`."""
    place = tmp_path_factory.mktemp("cross")
    (place / "cross.grad").write_text(PROGRAM)
    (place / "main.c").write_text(CALLER)

    def build(triple: str, cpu: str = "native") -> Path:
        folder = place / f"{triple}-{cpu}"
        if not folder.exists():
            words = ["build", "cross.grad", "-o", folder.name, "--triple", triple, "--cpu", cpu, "--emit", "obj,header"]
            with contextlib.chdir(place):
                assert main(words) == 0
        return folder

    return build


@pytest.mark.parametrize(("triple", "magic", "_zig"), TARGETS, ids=IDS)
def test_object(objects, triple, magic, _zig):
    assert (objects(triple) / "cross.o").read_bytes().startswith(magic)


def link(folder: Path, zig: str, program: Path) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed: it links for every target")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", zig, f"-I{folder}", folder.parent / "main.c"]
    done = subprocess.run(
        [*map(str, command), str(folder / "cross.o"), "-o", str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_x86_64_runs(objects, compiler, tmp_path):
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("needs x86-64 Linux")
    folder = objects("x86_64-unknown-linux-gnu")
    command = [*compiler, f"-I{folder}", folder.parent / "main.c", folder / "cross.o", "-o", tmp_path / "main"]
    subprocess.run([*command, "-lmvec", "-lm"], check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (PRINTED, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("triple", "_magic", "zig"), TARGETS[1:], ids=IDS[1:])
def test_object_links(objects, tmp_path, triple, _magic, zig):
    """Everything it needs is in the target's C library."""
    link(objects(triple), zig, tmp_path / "main.exe")


@pytest.mark.slow
def test_aarch64_runs(objects, tmp_path):
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("qemu-user is not installed")
    link(objects("aarch64-unknown-linux-musl"), "aarch64-linux-musl", tmp_path / "main")
    done = subprocess.run([emulator, tmp_path / "main"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (PRINTED, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("processor", "printed"), [("max", PRINTED), ("cortex-a72", "")])
def test_aarch64_processor_is_checked(objects, tmp_path, processor, printed):
    """Code for vectors of any length gives code 9 where there are none."""
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("qemu-user is not installed")
    folder = objects("aarch64-unknown-linux-musl", "neoverse-v1")
    link(folder, "aarch64-linux-musl", tmp_path / "main")
    command = [emulator, "-cpu", processor, tmp_path / "main"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (printed, 0 if printed else 1)


@pytest.mark.slow
def test_library_for_another_linux(tmp_path):
    """With a linker for it: the library, its header and its module; a program links with them."""
    if find_compiler("aarch64-linux-musl") is None:
        pytest.skip("no linker for aarch64")
    (tmp_path / "cross.grad").write_text(PROGRAM)
    words = ["build", str(tmp_path / "cross.grad"), "-o", str(tmp_path), "--triple", "aarch64-linux-musl"]
    assert main(words) == 0
    data = (tmp_path / "cross.so").read_bytes()
    assert data[:5] == b"\x7fELF\x02" and int.from_bytes(data[16:20], "little") == 183 << 16 | 3  # a library, aarch64
    assert b"aotdiff_metadata" in data and (tmp_path / "cross.py").exists()
    (tmp_path / "main.c").write_text(CALLER)
    command = [*find_compiler("aarch64-linux-musl"), "main.c", "cross.so", "-o", "main"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_triples_other_than_linux_make_objects(tmp_path):
    (tmp_path / "m.grad").write_text("fn f(x: f64) -> f64 = x * x")
    words = ["build", str(tmp_path / "m.grad"), "-o", str(tmp_path / "out"), "--triple", "x86_64-pc-windows-gnu"]
    assert main(words) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["m.h", "m.o"]


WASI = """\
import { WASI } from "node:wasi"; import { readFile } from "node:fs/promises";
const wasi = new WASI({ version: "preview1", args: ["main"], env: {} });
const program = await WebAssembly.compile(await readFile(process.argv[2]));
process.exit(wasi.start(await WebAssembly.instantiate(program, wasi.getImportObject())));
"""


@pytest.mark.slow
def test_wasm_runs(objects, tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    link(objects("wasm32-unknown-unknown"), "wasm32-wasi", tmp_path / "main.wasm")
    (tmp_path / "run.mjs").write_text(WASI)
    command = [node, tmp_path / "run.mjs", tmp_path / "main.wasm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "ERR_UNKNOWN_BUILTIN_MODULE" in done.stderr:
        pytest.skip("this node has no WASI")
    assert (done.stdout, done.returncode) == (PRINTED, 0)


def test_generic_uses_no_feature_beyond_the_baseline(objects, tmp_path):
    """x86-64 code for any processor: SSE2 registers and no check at the entries."""
    (tmp_path / "m.grad").write_text("fn f(x: f64[n]) -> f64 = sum(exp(x) * x)")
    assert main(["build", str(tmp_path / "m.grad"), "-o", str(tmp_path), "--cpu", "generic", "--emit", "asm,json"]) == 0
    text = (tmp_path / "m.s").read_text()
    assert "ymm" not in text and "zmm" not in text and "cpuid" not in text
    assert '"features": []' in (tmp_path / "m.json").read_text()
