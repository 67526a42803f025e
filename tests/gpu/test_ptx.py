"""Fragments of PTX: what small programs become on NVIDIA's GPUs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aotdiff.codegen.gpu import nvptx

import aotdiff as ad
from aotdiff.cli import main
from aotdiff.runtime.gpu.stages import plan_text

PROGRAM = """
fn scaled(x: f64[n], k: f64) -> f64[n] = [k * a * a for a in x]
fn total(x: f64[n]) -> f64 = sum(x)
fn gathered(x: f64[n], at: i64[m]) -> f64 = sum(x[j] * x[j] for j in at)
fn narrow(x: f32[n]) -> f32[n] = [sqrt(a) / (a + f32(1.0)) for a in x]
fn rest(x: f64[n]) -> f64[n] = [a % 3.0 for a in x]
fn least(x: f64[n]) -> f64 = min(x)
"""


@pytest.fixture(scope="module")
def m() -> Any:
    return ad.compile_source(PROGRAM, target="cuda", name="ptx.grad")


def ptx(f: Any, arch: str = "sm_80") -> str:
    compiler, root, places = f.recipe()
    _, text, _ = plan_text(compiler, root, places, "f64", nvptx.NvptxTarget())
    return nvptx.emit_ptx(text, None, arch)


def test_a_map_is_a_grid_stride_loop_over_global_memory(m: Any) -> None:
    text = ptx(m.scaled)
    assert re.search(r"\.visible \.entry map_\w+\(", text) and ".maxntid 256\n" in text
    for register in ("%tid.x", "%ctaid.x", "%nctaid.x"):
        assert register in text
    assert "ld.global.nc.b64" in text and "st.global.b64" in text
    assert not re.search(r"\bst\.b64|\bld\.b64|bar\.sync|\.shared|\.local|\btrap\b|call", text)
    assert len(re.findall(r"mul(\.rn)?\.f64", text)) == 2


def test_a_sum_is_a_tree_in_shared_memory_and_a_second_kernel(m: Any) -> None:
    text = ptx(m.total)
    assert len(re.findall(r"\.visible \.entry", text)) == 2
    assert text.count("bar.sync") == 16  # 8 rounds in each
    assert len(re.findall(r"^\s*\.shared \.align 16 \.b8 \S+\[2048\];", text, re.MULTILINE)) == 2
    assert "atom" not in text.replace("atom.relaxed", "")


def test_scattered_sums_are_native_atomics(m: Any) -> None:
    text = ptx(m.gathered.grad("x"))
    assert "atom.global.add.f64" in text
    assert re.search(r"atom\.\S*cas", text)  # the error word, once


def test_f32_stays_f32(m: Any) -> None:
    text = ptx(m.narrow)
    assert "sqrt.rn.f32" in text and "div.rn.f32" in text and "f64" not in text.replace(".reg .f64", "")


def test_remainders_are_exact(m: Any) -> None:
    """The instruction LLVM has for it is x - trunc(x / y) y, which is not."""
    pytest.importorskip("cuda.pathfinder", reason="pip install nvidia-nvvm")
    assert not re.search(r"div\.rn\.f64[^;]*;\n[^;]*cvt\.rzi\.f64\.f64", ptx(m.rest))


def test_versions_are_the_lowest_for_an_architecture(m: Any) -> None:
    for arch, version in {"sm_75": "6.3", "sm_80": "7.0", "sm_86": "7.1", "sm_90": "7.8", "sm_100": "8.6"}.items():
        assert f".version {version}\n.target {arch}\n" in ptx(m.scaled, arch)


def test_the_stage_on_the_command_line(tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "p.grad"
    file.write_text(PROGRAM)
    assert main(["emit", str(file), "scaled", "--stage", "ptx", "--arch", "sm_90"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("// plan scaled(%x") and "//   launch map_" in printed and ".target sm_90" in printed
    assert main(["emit", str(file), "scaled", "--stage", "ptx", "--arch", "sm_20"]) == 2
    assert "GPU architectures are sm_75" in capsys.readouterr().err
