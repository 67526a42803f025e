"""The build command: libraries, headers, Python modules and the texts between, ahead of time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotdiff.cli.common import UsageError, names_of, progress, unreadable, write

if TYPE_CHECKING:
    from aotdiff.codegen.driver import Options as CodeOptions
    from aotdiff.runtime.build import Plan

GPU_PRODUCTS = ("ptx", "json", "cuda-py", "ssa", "adjoint")
PRODUCTS = ("so", "obj", "header", "py", "llvm", "asm", "ssa", "adjoint", "json", "ptx", "cuda-py")


def add_commands(commands: Any) -> None:
    """Put the command of this file on the command line."""
    about = "Compile a program into NAME.so, NAME.h and NAME.py."
    p = commands.add_parser("build", help="compile ahead of time", description=about)
    p.add_argument("file", metavar="FILE.grad")
    p.add_argument("-o", dest="folder", default=".", metavar="DIR", help="where the products go (default: here)")
    p.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--cpu", default="native", metavar="NAME", help="native (default), generic, or a processor's name")
    p.add_argument("--triple", metavar="T", help="another machine, such as aarch64-linux-gnu or arm64-apple-macosx11")
    p.add_argument("--order", type=int, default=1, metavar="K", help="order of the derivatives built: 0, 1 or 2")
    p.add_argument("--real", default="f64", metavar="f32,f64", help="what real stands for (default f64)")
    p.add_argument("--arch", default="sm_80", help="GPU architecture, for --target cuda")
    emit = f"products: {', '.join(PRODUCTS)} (default so,header,py; obj,header for a --triple that is not Linux)"
    p.add_argument("--emit", metavar="so,obj,...", help=emit)
    p.add_argument("-O", dest="opt", type=int, choices=range(4), default=3, help="optimisation level (default 3)")
    p.add_argument("--fast-math", action="store_true", help="assume no NaN and no inf, reassociate freely")
    threads = "threads a call may use at most (default 1; 0: as many as there are processors)"
    p.add_argument("--threads", type=int, default=1, metavar="N", help=threads)
    p.add_argument("--json", action="store_true", help="diagnostics as JSON")
    p.set_defaults(action=build)


def build(options: argparse.Namespace) -> int:
    """Write the products; all of them are made before the first is written."""
    from aotdiff.codegen import LinkError
    from aotdiff.codegen.driver import Options as CodeOptions
    from aotdiff.runtime.build import plan
    from aotdiff.runtime.errors import DeviceError

    products, reals = _checked(options)
    stem = Path(options.file).stem
    code = CodeOptions(options.opt, options.fast_math, options.cpu, options.triple, threads=options.threads)
    _check_machine(code)
    made = plan(_compiler(options), options.order, reals)
    _make_folder(Path(options.folder))
    for name, spelt in made.renamed:
        print(f"note: {name} is called {spelt} in C and Python", file=sys.stderr)
    if "py" in products and (stem in sys.stdlib_module_names or stem == "numpy"):
        print(f"note: {stem}.py hides Python's own {stem} from programs in its folder", file=sys.stderr)
    try:
        with progress(f"building {stem}"):
            if options.target == "cuda":
                contents = _gpu_contents(made, products, stem, options)
            else:
                contents = _contents(made, products, stem, code)
            for name, content in contents:
                write(Path(options.folder, name), content)
    except (LinkError, DeviceError) as error:
        print(f"aotdiff build: {error}", file=sys.stderr)
        return 1
    return 0


def _checked(options: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    from aotdiff.codegen.link import links
    from aotdiff.codegen.team import has_threads

    linked = links(options.triple)
    usual = "so,header,py" if linked else "obj,header"
    if options.target == "cuda":
        usual = "ptx,json,cuda-py"
    products, reals = names_of(usual if options.emit is None else options.emit), names_of(options.real)
    wrong = [p for p in products if p not in PRODUCTS]
    if wrong or not products:
        raise UsageError(f"--emit takes {', '.join(PRODUCTS)}, not {options.emit!r}")
    if not reals or set(reals) - {"f64", "f32"}:
        raise UsageError(f"--real takes f64, f32 or both, not {options.real!r}")
    if options.threads < 0:
        raise UsageError("--threads is a number of threads, or 0 for as many as there are processors")
    if options.threads != 1 and options.triple is not None and not has_threads(options.triple):
        raise UsageError(f"{options.triple} has no POSIX threads: leave --threads out")
    if options.order not in (0, 1, 2):
        raise UsageError("--order is 0, 1 or 2; export derivatives of higher order by name")
    if not linked and {"so", "py"} & set(products):
        raise UsageError("libraries are for Linux; for another system --emit obj,header, and link the object there")
    _check_target(options, products)
    return tuple(dict.fromkeys(products)), tuple(dict.fromkeys(reals))


def _check_target(options: argparse.Namespace, products: list[str] | tuple[str, ...]) -> None:
    """Products fit the target, and the GPU's architecture is known."""
    from aotdiff.codegen.gpu.nvptx import checked_arch

    if options.target == "cpu":
        if {"ptx", "cuda-py"} & set(products):
            raise UsageError("ptx and cuda-py are for GPUs: add --target cuda")
        return
    wrong = [p for p in products if p not in GPU_PRODUCTS]
    if wrong:
        raise UsageError(f"--target cuda makes {', '.join(GPU_PRODUCTS)}, not {', '.join(wrong)}")
    try:
        checked_arch(options.arch)
    except ValueError as error:
        raise UsageError(f"--arch: {error}") from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"-o takes a folder, and {folder} is a file") from None
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}") from None


def _check_machine(code: CodeOptions) -> None:
    """LLVM must know the triple and the processor."""
    from aotdiff.codegen import CodegenError, driver
    from aotdiff.codegen.processor import required_features

    try:
        required_features(code.cpu, code.triple)
        driver.target_machine(code)
    except CodegenError as error:
        raise UsageError(str(error)) from None


def _compiler(options: argparse.Namespace) -> Any:
    from aotdiff.runtime.compiler import Compiler, Options, read_source

    try:
        source = read_source(options.file)
    except OSError as error:
        raise unreadable(options.file, error) from None
    return Compiler(source, Options(options.target, options.opt, options.fast_math, threads=options.threads))


def _gpu_contents(
    made: Plan, products: tuple[str, ...], stem: str, options: argparse.Namespace
) -> list[tuple[str, bytes | str]]:
    """Name and content of each product for GPUs."""
    from aotdiff.codegen.gpu.nvptx import NvptxTarget
    from aotdiff.ir.printer import print_module
    from aotdiff.runtime import build as library
    from aotdiff.runtime.gpu import build as gpu
    from aotdiff.runtime.gpu.standalone import module_text

    arch = options.arch
    whole = gpu.gpu_build(made, NvptxTarget)
    for name, reason in whole.refused():
        print(f"note: {name} does not run on a GPU: {reason}", file=sys.stderr)
    text = gpu.ptx(whole, arch, options.opt) if {"ptx", "cuda-py"} & set(products) else ""

    def module() -> str:
        return module_text(made, whole, gpu.device_build(made, arch, options.opt), text, arch)

    makers: dict[str, tuple[str, Callable[[], bytes | str]]] = {
        "ptx": (f"{stem}.ptx", lambda: text),
        "json": (f"{stem}.json", lambda: gpu.json_text(whole, arch)),
        "cuda-py": (f"{stem}_cuda.py", module),
        "ssa": (f"{stem}.ssa", lambda: print_module(library.graph_of(made, "lowered"))),
        "adjoint": (f"{stem}.adjoint.ssa", lambda: print_module(library.graph_of(made, "expanded"))),
    }
    return [(makers[product][0], makers[product][1]()) for product in products]


def _contents(made: Plan, products: tuple[str, ...], stem: str, code: CodeOptions) -> list[tuple[str, bytes | str]]:
    """Name and content of each product."""
    from aotdiff.codegen import driver
    from aotdiff.ir.printer import print_module
    from aotdiff.runtime import build as writers
    from aotdiff.runtime.standalone import module_text

    graph: dict[str, Any] = {}

    def stage(name: str) -> Any:
        if name not in graph:
            graph[name] = writers.graph_of(made, name)
        return graph[name]

    def text() -> str:
        library = stem if code.triple is None or "so" in products else None
        return writers.llvm_text(made, code, stage("optimized"), library)

    def binary() -> bytes:
        if "object" not in graph:
            graph["object"] = driver.object_from(text(), code)
        return graph["object"]

    makers: dict[str, tuple[str, Callable[[], bytes | str]]] = {
        "so": (f"{stem}.so", lambda: _linked(binary(), stem, code.triple)),
        "obj": (f"{stem}.o", binary),
        "header": (f"{stem}.h", lambda: writers.header_text(made, stem, stage("optimized"))),
        "py": (f"{stem}.py", lambda: module_text(made, stem)),
        "llvm": (f"{stem}.ll", lambda: str(driver.optimise(text(), code))),
        "asm": (f"{stem}.s", lambda: driver.target_machine(code).emit_assembly(driver.optimise(text(), code))),
        "ssa": (f"{stem}.ssa", lambda: print_module(stage("lowered"))),
        "adjoint": (f"{stem}.adjoint.ssa", lambda: print_module(stage("expanded"))),
        "json": (f"{stem}.json", lambda: json.dumps(writers.metadata(made, code), indent=1) + "\n"),
    }
    return [(makers[product][0], makers[product][1]()) for product in products]


def _linked(data: bytes, stem: str, triple: str | None) -> bytes:
    """The shared library of object code."""
    import tempfile

    from aotdiff.codegen import shared_library

    with tempfile.TemporaryDirectory(prefix="aotdiff-") as place:
        shared_library(data, Path(place, f"{stem}.so"), triple)
        return Path(place, f"{stem}.so").read_bytes()
