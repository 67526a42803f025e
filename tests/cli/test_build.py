"""Libraries ahead of time: what `build` leaves, and its use from aotdiff, from Python alone and from C."""

import json
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from aotdiff.codegen import find_compiler

import aotdiff as ad
from aotdiff.cli import main

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler to link with")

PROGRAM = """\
fn loss(w: f64[k], b: f64, x: f64[n, k], count: i64) -> f64 {
    assert count > 0, "nothing to count"
    sum(sin(sum(x[i, j] * w[j] for j in 0..k) + b) ** 2 for i in 0..n) / count
}

fn layer(w: f64[k], x: f64[n, k]) -> (f64[n], i64) = ([sum(x[i, j] * w[j] ** 2 for j in 0..k) for i in 0..n], k)

fn scaled(x: real[n], s: real) -> real[n] = s * x ** 2

fn gamma(x: f64) -> f64 = x ** 3

fn δ(x: f64[n]) -> f64[n-1] = [x[i + 1] - x[i] for i in 0..n-1]

fn pick(x: f64[n], i: i64) -> f64 = x[i]

fn counting(n: i64) -> i64 = n * n
"""

W, B, X, N = np.array([0.5, -1.0]), 0.25, np.array([[1.0, 2.0], [0.5, -0.5], [3.0, 1.0]]), 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("built")
    (place / "model.grad").write_text(PROGRAM)
    assert main(["build", str(place / "model.grad"), "-o", str(place), "--order", "2", "--real", "f64,f32"]) == 0
    return place


@pytest.fixture(scope="module")
def pair(folder):
    return ad.compile(folder / "model.grad"), ad.load(folder / "model.so")


def flat(result):
    if isinstance(result, tuple):
        return [leaf for item in result for leaf in flat(item)]
    return [np.asarray(result)]


def same(made, wanted):
    assert type(made) is type(wanted)
    for a, b in zip(flat(made), flat(wanted), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_products(folder):
    assert {p.name for p in folder.iterdir() if p.name[0] not in "._"} == {
        "model.grad",
        "model.so",
        "model.h",
        "model.py",
    }


WRTS = [None, "w", "b", ("w", "b"), ("b",), ("x", "w")]
FORMS = ["grad", "value_and_grad", "jacobian", "hessian"]


@pytest.mark.parametrize("form", FORMS)
def test_loaded_scalar_forms(pair, form):
    compiled, loaded = pair
    for wrt in WRTS:
        made, wanted = (getattr(m.loss, form)(wrt=wrt) for m in (loaded, compiled))
        assert made.signature == wanted.signature
        same(made(W, B, X, N), wanted(W, B, X, N))


def test_loaded_vector_forms(pair):
    compiled, loaded = pair
    same(loaded.layer(W, X), compiled.layer(W, X))
    for wrt in (None, "w", "x", ("x", "w")):
        same(loaded.layer.jacobian(wrt=wrt)(W, X), compiled.layer.jacobian(wrt=wrt)(W, X))
        for form in ("vjp", "value_and_vjp"):
            made, wanted = (getattr(m.layer, form)(wrt=wrt)(W, X, np.arange(3.0)) for m in (loaded, compiled))
            same(made, wanted)
    for form in ("jvp", "value_and_jvp"):
        made, wanted = (getattr(m.layer, form)(wrt=("x", "w"))(W, X, X, W) for m in (loaded, compiled))
        same(made, wanted)


def test_loaded_second_order(pair):
    compiled, loaded = pair
    same(loaded.loss.hvp(wrt=("b", "w"))(W, B, X, N, 1.0, W), compiled.loss.hvp(wrt=("b", "w"))(W, B, X, N, 1.0, W))
    same(loaded.loss.grad().jacobian()(W, B, X, N), compiled.loss.hessian()(W, B, X, N))
    same(loaded.loss.grad().vjp(wrt="b")(W, B, X, N, W), compiled.loss.grad().vjp(wrt="b")(W, B, X, N, W))
    made, wanted = (m.layer.vjp().vjp(wrt=("x", "ct"))(W, X, np.arange(3.0), W) for m in (loaded, compiled))
    same(made, wanted)


def test_loaded_real(pair):
    compiled, loaded = pair
    single = np.array([1.0, 2.0], np.float32)
    for x, s in ((single, 2.0), (W, 2.0), ([1.0], 1.0)):
        same(loaded.scaled(x, s), compiled.scaled(x, s))
        same(loaded.scaled.jacobian(wrt=("x", "s"))(x, s), compiled.scaled.jacobian(wrt=("x", "s"))(x, s))


def test_loaded_out_and_errors(pair, folder):
    _, loaded = pair
    out = np.empty(2)
    assert loaded.loss.grad()(W, B, X, N, out=out) is out
    same(out, loaded.loss.grad()(W, B, X, N))
    rows = np.empty((2, 2))
    assert loaded.loss.hessian()(W, B, X, N, out=rows) is rows
    for call, error, words in [
        (lambda: loaded.pick(W, 2), IndexError, r"model\.grad:14"),
        (lambda: loaded.loss(W, B, X, 0), ad.AssertionFailed, r"model\.grad:2: .*nothing to count"),
        (lambda: loaded.loss(X, B, X, 0), ValueError, "parameter w wants f64"),
        (lambda: loaded.loss.hessian().jacobian()(W, B, X, N), TypeError, "export it in .*model.grad and rebuild"),
    ]:
        with pytest.raises(error, match=words):
            call()
    assert pickle.loads(pickle.dumps(loaded.gamma.grad()))(2.0) == 12.0
    assert "model.so" in repr(loaded) and loaded["δ"](W)[0] == -1.5


def test_lower_orders_name_the_option(folder, tmp_path):
    assert main(["build", str(folder / "model.grad"), "-o", str(tmp_path)]) == 0
    loaded = ad.load(tmp_path / "model.so")
    same(
        loaded.loss.jacobian(wrt=("b", "x"))(W, B, X, N),
        ad.compile(folder / "model.grad").loss.grad(wrt=("b", "x"))(W, B, X, N),
    )
    with pytest.raises(TypeError, match="--order 2"):
        loaded.loss.hessian()(W, B, X, N)
    with pytest.raises(TypeError, match="--order 2"):
        loaded.loss.grad().vjp()(W, B, X, N, W)
    with pytest.raises(TypeError, match="--real f64,f32"):
        loaded.scaled(np.ones(1, np.float32), 1.0)


ALONE = """
import sys
sys.modules["aotdiff"] = None
import numpy as np, pickle
import model
w, x = np.array([0.5, -1.0]), np.array([[1.0, 2.0], [0.5, -0.5], [3.0, 1.0]])
print(model.loss.value_and_grad(wrt=("w", "b"))(w, 0.25, x, 3))
print(model.gamma_.hessian()(2.0), model.gamma is model.gamma_, sorted(model.__all__))
print(pickle.loads(pickle.dumps(model.loss.grad()))(w, 0.25, x, count=3))
try:
    model.loss(w, 0.25, x, 0)
except model.AssertionFailed as error:
    print(error)
print("llvmlite" in sys.modules)
"""


def test_python_module_alone(folder, pair):
    run = subprocess.run([sys.executable, "-c", ALONE], cwd=folder, capture_output=True, text=True)
    first, second, third, fourth, fifth = run.stdout.splitlines() or pytest.fail(run.stderr)
    value, (gw, gb) = pair[0].loss.value_and_grad(wrt=("w", "b"))(W, B, X, N)
    assert first == str((value, (gw, gb))) and third == str(gw)
    assert second.startswith("12.0 True ['counting', 'delta', 'gamma', 'gamma_', 'layer'")
    assert "nothing to count" in fourth and fifth == "False"


def test_c_program(folder, tmp_path):
    (tmp_path / "main.c").write_text(
        """
#include "model.h"
#include <stdio.h>
int main(void) {
    double w[] = {0.5, -1.0}, x[] = {1.0, 2.0, 0.5, -0.5, 3.0, 1.0}, value, ct_w[2], ct_b;
    if (loss(w, 0.25, x, 3, 2, 3, &value)) return 1;
    if (loss_vjp(w, 0.25, x, 3, 2, 3, 1.0, ct_w, &ct_b, 0)) return 2;
    printf("%.17g %.17g %.17g %.17g\\n", value, ct_w[0], ct_w[1], ct_b);
    if (loss(w, 0.25, x, 0, 2, 3, &value) != 4) return 3;
    puts(aotdiff_last_error());
    float single[] = {3.0f}, out[1];
    if (scaled_f32(single, 2.0f, 1, out) || out[0] != 18.0f) return 4;
    return gamma_(2.0, &value) || value != 8.0;
}
"""
    )
    command = [
        *find_compiler(),
        "-Wall",
        "-Werror",
        "-I",
        folder,
        tmp_path / "main.c",
        folder / "model.so",
        "-o",
        tmp_path / "main",
    ]
    subprocess.run([*map(str, command), f"-Wl,-rpath,{folder}"], check=True)
    run = subprocess.run([tmp_path / "main"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    numbers, text = run.stdout.splitlines()
    value, (gw, gb) = ad.compile(folder / "model.grad").loss.value_and_grad(wrt=("w", "b"))(W, B, X, N)
    np.testing.assert_allclose([float(n) for n in numbers.split()], [value, *gw, gb], rtol=1e-13)
    assert "model.grad:2" in text and "nothing to count" in text


def test_every_product(cli, tmp_path):
    everything = "so,obj,header,py,llvm,asm,ssa,adjoint,json"
    assert cli("build", "ok.grad", "-o", "out", "--emit", everything).status == 0
    made = {p.name for p in (tmp_path / "out").iterdir()}
    assert made == {"ok.so", "ok.o", "ok.h", "ok.py", "ok.ll", "ok.s", "ok.ssa", "ok.adjoint.ssa", "ok.json"}
    assert json.loads((tmp_path / "out" / "ok.json").read_text())["order"] == 1
    assert re.search(r"define .*i32 @total_vjp\(", (tmp_path / "out" / "ok.ll").read_text())
    assert "func @total.vjp.f64" in (tmp_path / "out" / "ok.ssa").read_text()


def test_builds_are_reproducible(cli, tmp_path):
    for place in ("one", "two"):
        assert cli("build", "ok.grad", "-o", place).status == 0
    for name in ("ok.so", "ok.h", "ok.py"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


ONE_AFTER_ANOTHER = """\
fn f(a: f64[n, n], b: f64[n], k: i64) -> f64 {
    var x = solve(a, b)
    for i in 0..k { if i % 2 == 0 { x = a @ x + b } else { x[i % n] = sum(x * b) } }
    sum(x @ a) + logdet(a)
}
"""


def test_builds_do_not_depend_on_hashes(cli, tmp_path):
    """Objects of the compiler have other addresses, strings other hashes, in another process."""
    (tmp_path / "f.grad").write_text(ONE_AFTER_ANOTHER)
    made = set()
    for seed in "123":
        command = [sys.executable, "-m", "aotdiff", "build", "f.grad", "-o", seed, "--emit", "llvm"]
        subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONHASHSEED": seed}, check=True)
        made.add((tmp_path / seed / "f.ll").read_bytes())
    assert len(made) == 1


def test_products_do_not_say_where_they_were_made(cli, tmp_path):
    """The same bytes from any folder, by any spelling of the path; files are named as seen from the program."""
    made = []
    for place in ("here", "there"):
        (tmp_path / place / "parts").mkdir(parents=True)
        (tmp_path / place / "parts" / "lib.grad").write_text("fn at(x: f64[n], i: i64) -> f64 = x[i]\n")
        program = tmp_path / place / "main.grad"
        text = 'import "parts/lib.grad"\nfn f(x: f64[n, n], i: i64) -> f64 = at(solve(x, x[0, :]), i)\n'
        program.write_text(text + "export f\n")
        given = program if place == "here" else f"{place}/../{place}/main.grad"
        assert cli("build", given, "-o", place, "--emit", "so,header,py").status == 0
        made.append([(tmp_path / place / f"main.{end}").read_bytes() for end in ("so", "h", "py")])
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0][0] and b"aotdiff/std" not in made[0][0]
    with pytest.raises(IndexError, match=r"^parts/lib.grad:1: index 7"):
        ad.load(tmp_path / "here" / "main.so").f(np.eye(2), 7)


def test_failed_build_keeps_the_old_files(cli, tmp_path):
    assert cli("build", "ok.grad", "-o", "out").status == 0
    before = (tmp_path / "out" / "ok.so").read_bytes()
    (tmp_path / "ok.grad").write_text("fn f(x: f64) -> f64 = y")
    assert cli("build", "ok.grad", "-o", "out").status == 1
    assert (tmp_path / "out" / "ok.so").read_bytes() == before


def test_other_machines(cli, tmp_path):
    for triple in ("aarch64-linux-gnu", "arm64-apple-macos", "x86_64-pc-windows-msvc", "wasm32-unknown-unknown"):
        result = cli("build", "ok.grad", "-o", triple, "--triple", triple, "--emit", "obj,header")
        assert result.status == 0, result.err
        assert (tmp_path / triple / "ok.o").stat().st_size > 500


def test_renamed_is_said(cli, tmp_path):
    (tmp_path / "ok.grad").write_text("fn gamma(x: f64) -> f64 = x\n")
    assert "note: gamma is called gamma_ in C and Python" in cli("build", "ok.grad").err
    (tmp_path / "random.grad").write_text("fn f(x: f64) -> f64 = x\n")
    assert "hides Python's own random" in cli("build", "random.grad", "-o", "out").err


@pytest.mark.parametrize("triple", ["aarch64-linux-gnu", "x86_64-linux-musl", "arm64-apple-macosx11"])
def test_threads_elsewhere(cli, tmp_path, triple):
    (tmp_path / "big.grad").write_text("fn f(x: f64[n]) -> f64 = sum(exp(x[i]) for i in 0..n)\n")
    assert cli("build", "big.grad", "--threads", "4", "--triple", triple, "--emit", "obj,header").status == 0
    assert b"pthread_create" in (tmp_path / "big.o").read_bytes()
    assert "shares large loops between up to 4 threads" in (tmp_path / "big.h").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["build", "missing.grad"],
        ["build", "ok.grad", "--emit", "exe"],
        ["build", "ok.grad", "--real", "f16"],
        ["build", "ok.grad", "--order", "3"],
        ["build", "ok.grad", "--triple", "nonsense"],
        ["build", "ok.grad", "--triple", "avr"],
        ["build", "ok.grad", "--triple", "avr", "--cpu", "atmega8"],
        ["build", "ok.grad", "--triple", "arm-nonsense", "--cpu", "nonsense"],
        ["build", "ok.grad", "--triple", "arm64-apple-macosx11", "--emit", "so"],
        ["build", "ok.grad", "--cpu", "nonsense"],
        ["build", "ok.grad", "--threads", "-1"],
        ["build", "ok.grad", "--threads", "2", "--triple", "wasm32-unknown-unknown"],
        ["build", "ok.grad", "--triple", "aarch64-linux-gnu", "--cpu", "haswell"],
        ["build", "ok.grad", "-o", "ok.grad"],
        ["build", "ok.grad", "-o", "/proc/none"],
        ["build", "ok"],
    ],
)
def test_wrong_command_lines(cli, words):
    result = cli(*words)
    assert result.status == 2 and result.err and "Traceback" not in result.err
