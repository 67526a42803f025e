"""Libraries from C: the samples under sanitizers, workspaces of the caller, what a library needs."""

import os
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from aotdiff.cli import main

from .conftest import SAMPLES

SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")

PROGRAM = """\
fn grow(x: f64[n], depth: i64) -> f64 {
    if depth == 0 { sum(x) } else { sum(x) + grow(sin(x), depth - 1) }
}

fn steps(x: f64[n], count: i64) -> (f64[n], i64) {
    assert count < 100, "too many"
    var y = x
    for i in 0..count { y = [y[n - 1 - j] * 0.5 for j in 0..n] }
    (y, count)
}

fn at(x: f64[n], i: i64) -> f64 = x[i]

fn at_into(x: f64) -> f64 = 2.0 * x

fn pair(x: f64) -> (f64, bool) = (x, x > 0.0)
"""


def linked(folder, name):
    return ["-I", folder, folder / f"{name}.so", f"-Wl,-rpath,{folder}"]


@pytest.mark.parametrize(("name", "file"), [("rosenbrock", "rosenbrock.c"), ("gmm", "gmm.cpp")])
def test_sample(built, c_program, name, file):
    done = c_program(SAMPLES / "c" / file, *SANITIZED, *linked(built(name), name))
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = {
        "rosenbrock": ["value 201, gradient -400 1002 -200", "4 of 4 threads", "code 2: rosenbrock: size n is"],
        "gmm": ["best of 4: -77", "below 1e-6", "refused: gmm_objective: size k is negative"],
    }[name]
    assert all(text in done.stdout for text in wanted), done.stdout


WORKSPACE = """\
#include "model.h"
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
static int allocations, counting;
void *malloc(size_t n) { allocations += counting; return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { allocations += counting; return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { allocations += counting; return __libc_realloc(p, n); }

enum { N = 1000 };
static double x[N], y[N], z[N];
static unsigned char memory[1 << 20];

int main(void) {
    int64_t k = 0, need = steps_workspace(x, 20, N, y, &k);
    for (int i = 0; i < N; i++) x[i] = i;
    assert(need > 0 && need < 100000 && k == 20);
    assert(steps(x, 20, N, y, &k) == 0);
    for (int shift = 0; shift < 64; shift += 21) {
        memset(memory, 0xA5, sizeof memory);
        memset(z, 0, sizeof z);
        counting = 1;
        assert(steps_into(x, 20, N, z, &k, memory + shift, need) == 0);
        counting = 0;
        assert(memory[shift + need] == 0xA5 && memcmp(y, z, sizeof z) == 0);
    }
    assert(steps_into(x, 20, N, z, &k, memory, need - 128) == 6);
    puts(aotdiff_last_error());
    assert(steps_into(x, 20, N, z, &k, NULL, 0) == 6 && steps_into(x, 20, N, z, &k, memory, -1) == 6);
    assert(steps_workspace(x, 100, N, z, &k) == -4);
    puts(aotdiff_last_error());

    double value, gradient[N];
    need = grow_vjp_workspace(x, 5, N, 1.0, gradient);
    counting = 1;
    assert(need > 0 && grow_into(x, 5, N, &value, memory, sizeof memory) == 0);
    assert(grow_vjp_into(x, 5, N, 1.0, gradient, memory, need) == 0);
    assert(grow_vjp_into(x, 5, N, 1.0, NULL, memory, need + 16 * N) == 0);
    counting = 0;
    assert(grow_into(x, 100000000, 1, &value, memory, sizeof memory) != 0);

    assert(at_2(x, 3, N, &value) == 0 && value == 3.0 && at_into(2.0, &value) == 0 && value == 4.0);
    uint8_t positive;
    assert(pair(2.0, NULL, &positive) == 0 && positive == 1);
    printf("%d allocations\\n", allocations);
    return 0;
}
"""


def test_workspace_of_the_caller(built, c_program):
    folder = built("model", PROGRAM)
    done = c_program(WORKSPACE, *linked(folder, "model"))
    assert done.returncode == 0, done.stderr
    small, failed, counted = done.stdout.splitlines()
    assert small == "steps_into: the workspace is too small; steps_workspace says how large"
    assert "model.grad:6" in failed and "too many" in failed
    assert counted == "0 allocations"


THREADS = """\
#include "model.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void *run(void *number) {
    int64_t k = (int64_t)number;
    double x[64] = {0}, y[64];
    char wanted[32];
    snprintf(wanted, sizeof wanted, "index %d", (int)k + 64);
    for (int i = 0; i < 64; i++) x[i] = (double)k;
    for (int round = 0; round < 2000; round++) {
        int64_t count;
        double value;
        if (steps(x, round % 7, 64, y, &count) || y[0] * (1 << round % 7) != (double)k) return "wrong value";
        if (at_2(x, k + 64, 64, &value) != 1) return "no error";
        if (!strstr(aotdiff_last_error(), wanted)) return "error of another thread";
    }
    return NULL;
}

int main(void) {
    pthread_t threads[16];
    int bad = 0;
    for (int64_t k = 0; k < 16; k++) bad += pthread_create(&threads[k], NULL, run, (void *)k);
    for (int k = 0; k < 16; k++) {
        void *text = NULL;
        pthread_join(threads[k], &text);
        if (text) bad++, puts(text);
    }
    return bad + (aotdiff_last_error()[0] != 0);
}
"""


def test_many_threads(built, c_program):
    folder = built("model", PROGRAM)
    done = c_program(THREADS, *SANITIZED, *linked(folder, "model"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_needs_libc_and_libm_only(built):
    if not (shutil.which("ldd") and shutil.which("nm")):
        pytest.skip("no ldd or nm")
    for name in ("gmm", "rosenbrock"):
        library = built(name) / f"{name}.so"
        needed = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
        names = {line.split()[0].rpartition("/")[2] for line in needed.splitlines()}
        allowed = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libmvec.so")
        assert all(n.startswith(allowed) for n in names), names
        symbols = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        foreign = [s for s in symbols.stdout.split("\n") if " U " in s and "@GLIBC_" not in s]
        assert not foreign and "Py" not in symbols.stdout


def test_two_libraries_in_one_program(built, c_program, tmp_path):
    """As objects, whose symbols must not collide, and as libraries."""
    one, two = "fn one(x: f64) -> f64 = exp(x)", "fn two(x: f64[n], i: i64) -> f64 = x[i]"
    folders = [built("one", one, "--emit", "obj,so,header"), built("two", two, "--emit", "obj,so,header")]
    text = """
#include "one.h"
#include "two.h"
#include <string.h>
int main(void) {
    double x[] = {1.0}, v;
    if (one(0.0, &v) || v != 1.0 || two(x, 0, 1, &v) || v != 1.0) return 1;
    return !(two(x, 7, 1, &v) == 1 && strstr(aotdiff_last_error(), "two.grad:1"));
}
"""
    for parts in (["one.o", "two.o"], ["one.so", "two.so"]):
        files = [folder / part for folder, part in zip(folders, parts, strict=True)]
        paths = [f"-I{folder}" for folder in folders] + [f"-Wl,-rpath,{folder}" for folder in folders]
        libraries = ["-lmvec"] if b"_ZGV" in files[0].read_bytes() else []
        assert c_program(text, *files, *paths, *libraries).returncode == 0


def test_header_says_what_each_function_takes_and_gives(built):
    text = (built("model", PROGRAM) / "model.h").read_text()
    for line in (
        "int64_t steps_workspace(const double *x, int64_t count, int64_t n, double *out0, int64_t *out1);",
        "in: x[n], count",
        "out: out0[n], out1",
        "errors: AssertionFailed (line 6), MemoryError, ValueError",
        "model.grad:5",
        "row-major",
        'extern "C"',
    ):
        assert line in text
    assert max(map(len, text.splitlines())) <= 120
    assert not re.search(r"(const|double|int64_t|void)$", text, re.M)  # lines end between parameters


ERRORS = """\
fn deep(x: f64, n: i64) -> f64 = if n <= 0 { x } else { sin(deep(x, n - 1)) }

fn solved(a: f64[n, n], b: f64[n]) -> f64[n] = solve(a, b)

fn double(x: f64) -> f64 = 2.0 * x
"""


def test_header_says_which_errors_can_come(built, c_program):
    """Recursion too; lines are those of the program, not of the library functions it calls."""
    folder = built("errors", ERRORS)
    text = (folder / "errors.h").read_text()
    said = {name: errors for errors, name in re.findall(r"errors: (.*)\n(?:   .*\n)*?int (\w+)\(", text)}
    assert said["deep"] == said["deep_vjp"] == "MemoryError, RecursionError"
    assert said["double_"] == said["double__jvp"] == "MemoryError"
    assert set(re.findall(r"line (\d+)", "".join(said.values()))) <= {"3"}
    program = """
#include "errors.h"
#include <stdio.h>
int main(void) {
    double g;
    int code = deep_vjp(0.5, 100000000, 1.0, &g);
    printf("%d %s", code, aotdiff_last_error());
    return 0;
}
"""
    done = c_program(program, *linked(folder, "errors"))
    assert done.stdout == "5 errors.grad:1: recursion too deep in `deep`"


def test_names_that_variants_would_take(built, capsys):
    text = (built("model", PROGRAM) / "model.h").read_text()
    names = re.findall(r"^int(?:64_t)? (\w+)\(", text, re.M)
    assert len(names) == len(set(names)) and "at_into" in names
    folder = built("words", "fn from(double: f64) -> f64 = double\n", "--emit", "header")
    assert "int from_(double double_, double *out);" in (folder / "words.h").read_text()
    assert "note: from is called from_ in C and Python" in capsys.readouterr().err


HOSTILE = """\
fn aotdiff_last_error(x: f64) -> f64 = x
fn pthread_self(x: f64) -> f64 = 2.0 * x
fn dlsym(aotdiff_thread: f64) -> f64 = 3.0 * aotdiff_thread
fn f(int64_t: f64, workspace: f64, bytes: f64, out: f64, uint8_t: f64[size_t]) -> f64 = 4.0 * int64_t + sum(uint8_t)
fn f_vjp(x: f64) -> f64 = 5.0 * x
"""


def test_names_that_the_library_itself_needs(built, c_program, capsys):
    folder = built("hostile", HOSTILE)
    notes = capsys.readouterr().err
    assert "note: aotdiff_last_error is called aotdiff_last_error_ in C" in notes
    assert "note: the vjp of f is called f_vjp_2 in C" in notes
    program = """
#include "hostile.h"
#include <stdio.h>
int main(void) {
    double a[2] = {1.0, 2.0}, v[5], g;
    char memory[4096];
    int code = aotdiff_last_error_(1.0, v) + pthread_self_(1.0, v + 1) + dlsym_(1.0, v + 2) + f_vjp(1.0, v + 4)
        + f_into(1.0, 0.0, 0.0, 0.0, a, 2, v + 3, memory, sizeof memory)
        + f_vjp_2(1.0, 0.0, 0.0, 0.0, a, 2, 1.0, &g, 0, 0, 0, 0);
    printf("%d %g %g %g %g %g %g", code, v[0], v[1], v[2], v[3], v[4], g);
    return 0;
}
"""
    assert c_program(program, *linked(folder, "hostile")).stdout == "0 1 2 3 7 5 4"


def test_wrong_processor_is_refused(built, compiler, c_program, tmp_path, monkeypatch, capsys):
    """A feature that no processor has: entries give code 9 and say what is missing."""
    from aotdiff.codegen import driver, processor

    import aotdiff as ad

    if not processor.host_features().get("avx"):
        pytest.skip("needs x86-64 with AVX")
    odd = tuple(replace(f, place=(1, 0, 31)) if f.name == "avx" else f for f in processor._X86)  # a reserved bit
    monkeypatch.setattr(processor, "_X86", odd)
    (tmp_path / "odd.grad").write_text("fn odd(x: f64[n]) -> f64 = sum(x * x)")
    assert main(["build", str(tmp_path / "odd.grad"), "-o", str(tmp_path)]) == 0
    text = """
#include "odd.h"
#include <stdio.h>
int main(void) {
    double x[] = {3.0}, out = 0.0;
    char memory[4096];
    int code = odd(x, 1, &out), other = odd_into(x, 1, &out, memory, sizeof memory);
    printf("%d %d %d %s", code, other, (int)odd_workspace(x, 1, &out), aotdiff_last_error());
    return 0;
}
"""
    done = c_program(text, *linked(tmp_path, "odd"))
    assert done.stdout.startswith("9 9 -9 this library needs a processor with ") and ", avx, " in done.stdout
    monkeypatch.setattr(driver, "required_features", lambda cpu, triple: [])
    monkeypatch.setattr("aotdiff.runtime.build.required_features", lambda cpu, triple: ["avx1024"])
    assert main(["build", str(tmp_path / "odd.grad"), "-o", str(tmp_path / "load")]) == 0
    with pytest.raises(OSError, match="needs a processor with avx1024: rebuild here, or with --cpu generic"):
        ad.load(tmp_path / "load" / "odd.so")


SPLIT = """\
fn big(x: f64[n]) -> f64 = sum(exp(sin(x[i]) * x[i]) for i in 0..n)
fn each(x: f64[n], limit: f64) -> f64[n] {
    [checked(x[i], limit) for i in 0..n]
}
fn checked(x: f64, limit: f64) -> f64 {
    assert x < limit, "too large"
    exp(sin(x))
}
"""

HELPED = """\
#include "model.h"
#include <assert.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 300000 };
static double x[N], wanted, slope[N];

static int tasks(void) {
    int count = -2;
    DIR *folder = opendir("/proc/self/task");
    if (!folder) return 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static void *run(void *text) {
    double value, *y = malloc(sizeof x);
    for (int round = 0; round < 20; round++) {
        if (big(x, N, &value) || value != wanted) return "another value";
        if (big_vjp(x, N, 1.0, y) || memcmp(y, slope, sizeof x)) return "another gradient";
        if (each(x, 2.5, N, y) != 4 || !strstr(aotdiff_last_error(), "too large")) return "no error";
    }
    free(y);
    return text;
}

int main(void) {
    for (int i = 0; i < N; i++) x[i] = 3.0 * i / N;
    assert(big(x, N, &wanted) == 0 && big_vjp(x, N, 1.0, slope) == 0);
    int alone = tasks();
    static unsigned char memory[1 << 16];
    double value;
    assert(big_into(x, N, &value, memory, sizeof memory) == 0 && value > 0.0);
    assert(tasks() == alone);

    pthread_t threads[4];
    int bad = 0;
    for (int k = 0; k < 4; k++) bad += pthread_create(&threads[k], NULL, run, NULL);
    for (int k = 0; k < 4; k++) {
        void *text = NULL;
        pthread_join(threads[k], &text);
        if (text) bad++, puts(text);
    }
    for (int wait = 0; tasks() > alone && wait < 100; wait++) usleep(20000);
    printf("%d helpers, %d left\\n", alone - 1, tasks() - alone);
    fflush(stdout);
#ifndef __SANITIZE_THREAD__ /* which ends children that start threads */
    pid_t child = fork();
    if (child == 0) _exit(run(NULL) != NULL);
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
#endif
    return bad;
}
"""


@pytest.mark.parametrize("sanitizers", [SANITIZED, ("-fsanitize=thread",)], ids=["address", "thread"])
def test_calls_that_use_several_threads(built, c_program, sanitizers):
    folder = built("model", SPLIT, "--threads", "3")
    done = c_program(HELPED, *sanitizers, *linked(folder, "model"))
    assert done.returncode == 0, done.stdout + done.stderr
    helpers, left = (int(word) for word in re.findall(r"\d+", done.stdout))
    assert left == 0 and (helpers >= 1 or len(os.sched_getaffinity(0)) == 1)


TWICE = """\
#include "model.h"
#include <assert.h>
#include <stddef.h>
#include <stdio.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
static int allocations;
void *malloc(size_t n) { __atomic_add_fetch(&allocations, 1, __ATOMIC_SEQ_CST); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { __atomic_add_fetch(&allocations, 1, __ATOMIC_SEQ_CST); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) {
    __atomic_add_fetch(&allocations, 1, __ATOMIC_SEQ_CST);
    return __libc_realloc(p, n);
}

enum { N = 200000 };
static double x[N], y[N];

int main(void) {
    int64_t k;
    double value;
    for (int i = 0; i < N; i++) x[i] = i * 1e-6;
    for (int round = 0; round < 3; round++) {
        int before = allocations;
        assert(steps_vjp(x, 9, N, x, y) == 0 && steps(x, 9, N, y, &k) == 0);
        assert(grow_vjp(x, 7, N, 1.0, y) == 0 && grow(x, 7, N, &value) == 0);
        printf("%d ", round ? allocations - before : allocations > before);
    }
    return 0;
}
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_second_call_allocates_nothing(built, c_program, threads):
    folder = built("model", PROGRAM, "--threads", threads)
    done = c_program(TWICE, *linked(folder, "model"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 0 0 "
