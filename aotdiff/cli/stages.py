"""Commands for looking inside the compiler: emit, opt, ops."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotdiff.cli.common import UsageError, function_of, names_of, open_program, progress

if TYPE_CHECKING:
    from aotdiff.ir.graph import Module as Graph
    from aotdiff.ir.graph import Op, Value
    from aotdiff.runtime.function import Function

STAGES = ("ast", "ssa", "adjoint", "residuals", "after:PASS", "llvm", "asm", "ptx")


def add_commands(commands: Any) -> None:
    """Put the commands of this file on the command line."""
    p = commands.add_parser("emit", help="print a stage", description="Print a stage of the compilation of a function.")
    p.add_argument("file", metavar="FILE.grad")
    p.add_argument("function", metavar="FN")
    p.add_argument("--stage", required=True, metavar="STAGE", help=" | ".join(STAGES))
    p.add_argument("--order", type=int, default=None, metavar="K", help="order of the derivative (0: the function)")
    p.add_argument("--wrt", metavar="x,y", help="parameters to differentiate by (default: the first of a float type)")
    p.add_argument("--real", choices=("f64", "f32"), default="f64", help="what real stands for")
    p.add_argument("--arch", default="sm_80", help="GPU architecture, for ptx")
    p.add_argument("-O", dest="opt", type=int, choices=range(4), default=3, help="optimisation level (default 3)")
    p.add_argument("--fast-math", action="store_true")
    p.add_argument("--json", action="store_true", help="diagnostics as JSON")
    p.set_defaults(action=emit)
    p = commands.add_parser(
        "opt", help="run passes on graph text", description="Read graph text, run passes, print it."
    )
    p.add_argument("file", nargs="?", metavar="FILE.ssa", help="- for the standard input")
    p.add_argument("--passes", default="", metavar="p1,p2", help="passes in order; see --list")
    p.add_argument("--print-after-all", action="store_true", help="print the graph after each pass")
    p.add_argument("--list", action="store_true", help="list the passes")
    p.set_defaults(action=opt)
    p = commands.add_parser("ops", help="show graph operations", description="Every graph operation, or all about one.")
    p.add_argument("name", nargs="?", metavar="NAME")
    p.set_defaults(action=ops)


# emit ------------------------------------------------------------------------------------------------------------


def emit(options: argparse.Namespace) -> int:
    """Print one stage of one function."""
    from aotdiff.runtime.errors import DeviceError

    stage = options.stage
    if stage not in STAGES and not (stage.startswith("after:") and len(stage) > 6):
        raise UsageError(f"--stage is one of {', '.join(STAGES)}, not {stage!r}")
    if stage == "ast":
        return _emit_ast(options)
    module = open_program(options.file, opt=options.opt, fast_math=options.fast_math)
    f = _derived(function_of(module, options.function), options)
    try:
        with progress(f"compiling {f.name}"):
            text = _stage_text(f, options)
    except DeviceError as error:
        print(f"aotdiff emit: {error}", file=sys.stderr)
        return 1
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return 0


def _derived(f: Function, options: argparse.Namespace) -> Function:
    """The vjp of the function, `--order` times; once by default for the stages that are about derivatives."""
    order = options.order
    if order is None:
        order = 1 if options.stage in ("adjoint", "residuals") else 0
    if order < 0:
        raise UsageError("--order is 0 or more")
    wrt = names_of(options.wrt) or None
    try:
        for _ in range(order):
            f = f.vjp(wrt=wrt)
    except TypeError as error:
        raise UsageError(str(error)) from None
    return f


def _stage_text(f: Function, options: argparse.Namespace) -> str:
    from aotdiff.ir.printer import print_module

    compiler, root, places = f.recipe()
    stage, real = options.stage, options.real
    if stage == "ssa":
        return print_module(compiler.derivative(root, places, real)[0])
    if stage == "adjoint":
        return print_module(compiler.expanded(root, places, real)[0])
    if stage == "residuals":
        return _residuals(compiler.expanded(root, places, real)[0])
    if stage.startswith("after:"):
        return _after(compiler.expanded(root, places, real)[0], stage[6:], options.opt)
    if stage == "ptx":
        return _ptx(f, options)
    return compiler.code_text(root, places, real, stage)


def _ptx(f: Function, options: argparse.Namespace) -> str:
    """The launch plan as a comment, and the kernels."""
    from aotdiff.codegen.gpu import nvptx
    from aotdiff.codegen.gpu.libdevice import MissingLibdevice
    from aotdiff.runtime.errors import DeviceError
    from aotdiff.runtime.gpu.stages import plan_text

    compiler, root, places = f.recipe()
    plan, text, _ = plan_text(compiler, root, places, options.real, nvptx.NvptxTarget())
    shown = "\n".join(f"// {line}" for line in str(plan).splitlines())
    try:
        return f"{shown}\n{nvptx.emit_ptx(text, None, options.arch, options.opt) if plan.kernels else ''}"
    except MissingLibdevice as error:
        raise DeviceError(str(error)) from None
    except ValueError as error:
        raise UsageError(f"--arch: {error}") from None


def _after(graph: Graph, name: str, level: int) -> str:
    from aotdiff.ir.printer import print_module
    from aotdiff.passes import pipeline

    names = pipeline.PIPELINES[level]
    if name not in names:
        raise UsageError(f"no pass {name!r} at -O{level}; they run in this order: {', '.join(names)}")
    last = len(names) - 1 - names[::-1].index(name)
    pipeline.run(graph, names[: last + 1])
    return print_module(graph)


def _residuals(graph: Graph) -> str:
    """What the reverse sweep keeps of the forward one, by function and source line."""
    lines = []
    for func in graph.funcs.values():
        found = [entry for op in func.body.walk() for entry in _kept(op)]
        if found:
            lines.append(f"@{func.name}")
            lines += [f"  {where}: %{name}: {type_}{how}" for where, name, type_, how in sorted(found)]
    return "\n".join(lines) if lines else "nothing is kept"


def _kept(op: Op) -> list[tuple[str, str, str, str]]:
    """Place, name, type of each value that an operation keeps, and where it is kept."""
    if op.name == "record_make":
        pairs = [(value, value, f", in record {op.attrs['record']}") for value in op.operands]
    elif op.regions:
        saved = [r for r in op.results if r.name == "saved" or r.name.endswith("_saved")]
        pairs = [(r, _yielded_for(op, r), f", by {op.name}") for r in saved]
    else:
        pairs = []
    found = []
    for result, source, how in pairs:
        loc = source.op.loc if source.op is not None and source.op.loc is not None else op.loc
        where = f"{loc.path}:{loc.line}" if loc is not None else "?"
        found.append((where, source.name.removesuffix("_saved") or "_", str(result.type), how))
    return found


def _yielded_for(op: Op, result: Value) -> Value:
    """What the region of an operation yields for one of its map results (or results of an `if`)."""
    from aotdiff.ad.structure import map_slots

    if op.name not in ("par", "for", "while"):
        return op.regions[-1].yielded[result.index]
    home = op.regions[-1].yielded
    return next((home[k] for _, k, r, _ in map_slots(op) if r == result.index), result)


def _emit_ast(options: argparse.Namespace) -> int:
    from aotdiff.frontend.diagnostics import Diagnostics
    from aotdiff.frontend.parse import parse

    try:
        text = Path(options.file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {options.file}: {error.strerror}") from None
    found = Diagnostics()
    found.add_source(options.file, text)
    file = parse(text, options.file, found)
    found.raise_if_errors()
    named = [f for f in file.functions if f.name == options.function]
    nodes = named or [e for e in file.exports if e.name == options.function]
    if not nodes:
        raise UsageError(f"the file defines no {options.function!r}")
    for node in nodes:
        print(_tree(node))
    return 0


def _tree(node: Any, indent: str = "") -> str:
    """A node of the syntax tree and what is below it, one a line."""
    here = f"{type(node).__name__}"
    plain, nested = [], []
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if field.name == "type" or type(value).__name__ == "Span" or value is None or value == []:
            continue
        below = value if isinstance(value, list) else [value]
        if all(dataclasses.is_dataclass(item) for item in below):
            nested.append((field.name, below))
        else:
            plain.append(f"{field.name}={value!r}")
    lines = [f"{indent}{here} {' '.join(plain)}".rstrip() + f"  @{node.span.line}:{node.span.column}"]
    for name, below in nested:
        lines.append(f"{indent}  {name}:")
        lines += [_tree(item, indent + "    ") for item in below]
    return "\n".join(lines)


# opt -------------------------------------------------------------------------------------------------------------


def opt(options: argparse.Namespace) -> int:
    """Text in, passes, text out."""
    from aotdiff.ir.parser import ParseError, parse_module
    from aotdiff.ir.printer import print_module
    from aotdiff.ir.verifier import VerificationError, verify
    from aotdiff.passes import pipeline

    known = pipeline.PASSES
    if options.list:
        width = max(map(len, known), default=0)
        print("\n".join(f"{name:{width}}  {p.sentence}" for name, p in known.items()))
        return 0
    if options.file is None:
        raise UsageError("name a file of graph text, - for the standard input, or --list")
    names = names_of(options.passes)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"no pass {unknown[0]!r}; the passes are {', '.join(known)}")
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {options.file}: {error.strerror}") from None
    try:
        graph = parse_module(text)
        verify(graph)
    except (ParseError, VerificationError) as error:
        print(f"{options.file}:{error}", file=sys.stderr)
        return 1
    for name in names:
        pipeline.run(graph, [name])
        if options.print_after_all:
            print(f"# after {name}\n{print_module(graph)}")
    if not (options.print_after_all and names):
        print(print_module(graph), end="")
    return 0


# ops -------------------------------------------------------------------------------------------------------------


def ops(options: argparse.Namespace) -> int:
    """The operation table, or one operation with the places where it is written."""
    from aotdiff.frontend.diagnostics import suggest
    from aotdiff.ir.ops import OPS

    if options.name is None:
        width = max(map(len, OPS))
        print("\n".join(f"{name:{width}}  {spec.doc}" for name, spec in OPS.items()))
        return 0
    spec = OPS.get(options.name)
    if spec is None:
        hint = suggest(options.name, OPS)
        raise UsageError(f"no operation {options.name!r}" + (f": {hint}" if hint else ""))
    arity = "any number of" if spec.arity is None else spec.arity
    result = {"same": "the operands' type", "": "see the declaration"}.get(spec.result, spec.result)
    rows = [("operation", f"{spec.name}: {spec.doc}"), ("operands", f"{arity}, {spec.operands}"), ("result", result)]
    if spec.attrs:
        rows.append(("attributes", ", ".join(spec.attrs)))
    rows += [("effects", "none" if spec.pure else "yes"), *_derivative_rows(spec.name), *_places(spec.name)]
    print("\n".join(f"{label:12} {text}" for label, text in rows))
    return 0


def _derivative_rows(name: str) -> list[tuple[str, str]]:
    from aotdiff.ad import rules
    from aotdiff.ir.ops import SCALAR_OPS

    if name not in SCALAR_OPS:
        return []
    if name in rules.NON_DIFFERENTIABLE:
        return [("derivative", "zero")]
    written = rules.formulas(name)
    return [("derivative" if n == 0 else "", f"operand {k}: {text}") for n, (k, text) in enumerate(written.items())]


def _places(name: str) -> list[tuple[str, str]]:
    """Files and lines that mention the operation by name, a file each: declaration, rule, lowering, meaning."""
    import aotdiff.codegen
    from aotdiff.ad import rules
    from aotdiff.ir import interpreter
    from aotdiff.ir import ops as table

    rows = [("declared", _mention(Path(inspect.getfile(table)), name))]
    rows += [("derivative", _mention(path, name)) for path in _sources(Path(inspect.getfile(rules)).parent)]
    rows += [("lowered", _mention(path, name)) for path in _sources(Path(inspect.getfile(aotdiff.codegen)).parent)]
    rows.append(("interpreted", _mention(Path(inspect.getfile(interpreter)), name)))
    return [(label, place) for label, place in rows if place]


def _sources(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.py"))


def _mention(path: Path, name: str) -> str:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if f'"{name}"' in line and not line.lstrip().startswith("#"):
            return f"{path}:{number}"
    return ""
