"""Commands that run programs: check, run, gradcheck, bench."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from typing import Any

from aotdiff.cli.common import UsageError, function_of, names_of, open_module, progress, report, unreadable


def add_commands(commands: Any) -> None:
    """Put the commands of this file on the command line."""
    _add_check(commands)
    _add_run(commands)
    _add_gradcheck(commands)
    _add_bench(commands)


ARGUMENT_HELP = (
    "a number, true or false, JSON, @file.npy, @file.npz:key, NAME=ARG; one @file.npz or @file.json alone "
    "gives every parameter by name"
)


def _add_check(commands: Any) -> None:
    p = commands.add_parser("check", help="parse and type-check only", description="Parse and type-check programs.")
    p.add_argument("files", nargs="+", metavar="FILE")
    p.add_argument("--json", action="store_true", help="diagnostics as one JSON array")
    p.set_defaults(action=check)


def check(options: argparse.Namespace) -> int:
    """Report every error of every file."""
    from aotdiff.frontend.check import check as check_program
    from aotdiff.frontend.diagnostics import CompileError
    from aotdiff.frontend.program import load

    found = []
    for path in options.files:
        try:
            program = load(path)
        except OSError as error:
            raise unreadable(path, error) from None
        with contextlib.suppress(CompileError):
            check_program(program)
        found += program.diagnostics.items()
    report(found, options.json)
    return 1 if any(d.severity == "error" for d in found) else 0


def _add_run(commands: Any) -> None:
    p = commands.add_parser("run", help="call a function", description="Call a function and print its result.")
    _add_call(p)
    p.add_argument("--grad", metavar="x,y", help="also print the gradient with respect to these parameters")
    p.set_defaults(action=run)


def _add_call(p: argparse.ArgumentParser) -> None:
    p.add_argument("file", metavar="FILE.grad")
    p.add_argument("function", metavar="FN")
    p.add_argument("arguments", nargs="*", default=[], metavar="ARG", help=ARGUMENT_HELP)
    p.add_argument("-O", dest="opt", type=int, choices=range(4), default=3, help="optimisation level (default 3)")
    p.add_argument("--fast-math", action="store_true", help="assume no NaN and no inf, reassociate freely")
    p.add_argument("--json", action="store_true", help="results and diagnostics as JSON")


def _add_random(p: argparse.ArgumentParser) -> None:
    p.add_argument("--random", metavar="n=100,k=5", help="random arguments of these sizes")
    p.add_argument("--seed", type=int, default=0)


def _given_or_random(f: Any, options: argparse.Namespace, *, draw: bool) -> list[Any]:
    """The arguments as written; random ones with `--random`, or if they are to be drawn without it."""
    from aotdiff.cli.values import arguments, random_arguments, sizes_from

    if options.random is None and not draw:
        return arguments(f.interface, options.arguments)
    sizes = sizes_from(options.random) if options.random else {}
    return random_arguments(f.interface, sizes, options.seed)


def _opened(options: argparse.Namespace) -> Any:
    module = open_module(options.file, opt=options.opt, fast_math=options.fast_math)
    return function_of(module, options.function)


def run(options: argparse.Namespace) -> int:
    """Print a function's result, and its gradient on request."""
    from aotdiff.cli.values import arguments, jsonable, text_of

    f = _opened(options)
    args = arguments(f.interface, options.arguments)
    wrt = names_of(options.grad)
    with progress(f"running {f.name}"):
        value, gradients = _called(f, args, wrt)
    if options.json:
        shown: dict[str, Any] = {"value": jsonable(value)}
        if wrt:
            shown["grad"] = {name: jsonable(g) for name, g in zip(wrt, gradients, strict=True)}
        print(json.dumps(shown))
        return 0
    print(text_of(value))
    for name, gradient in zip(wrt, gradients, strict=True):
        between = "\n" if getattr(gradient, "ndim", 0) else " "
        print(f"grad {name}:{between}{text_of(gradient)}")
    return 0


def _called(f: Any, args: list[Any], wrt: tuple[str, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Value and gradients; what is wrong with the arguments is the command line's fault."""
    try:
        return f.value_and_grad(wrt=wrt)(*args) if wrt else (f(*args), ())
    except TypeError as error:
        raise UsageError(str(error)) from None


def _add_gradcheck(commands: Any) -> None:
    about = "Compare reverse mode, forward mode and finite differences, entry by entry."
    p = commands.add_parser("gradcheck", help="check derivatives", description=about)
    _add_call(p)
    p.add_argument("--wrt", metavar="x,y", help="parameters to check (default: all of a float type)")
    _add_random(p)
    p.add_argument("--order", type=int, default=2, help="highest order checked (default 2)")
    p.set_defaults(action=gradcheck)


def gradcheck(options: argparse.Namespace) -> int:
    """Check derivatives; a table of what does not agree."""
    from aotdiff.runtime.gradcheck import GradcheckError
    from aotdiff.runtime.gradcheck import gradcheck as run_check

    if options.order < 1:
        raise UsageError("--order is 1 or more")
    f = _opened(options)
    args = _given_or_random(f, options, draw=bool(f.parameters) and not options.arguments)
    try:
        with progress(f"checking {f.name}"):
            count = run_check(f, args, names_of(options.wrt) or None, options.order, seed=options.seed)
    except GradcheckError as error:
        wrong = [dataclasses.asdict(entry) for entry in error.entries]
        shown = {"function": f.name, "order": options.order, "wrong": wrong}
        print(json.dumps(shown) if options.json else error, file=sys.stderr)
        return 1
    except TypeError as error:
        raise UsageError(str(error)) from None
    if options.json:
        print(json.dumps({"function": f.name, "order": options.order, "entries": count}))
    else:
        agree = "entry agrees" if count == 1 else "entries agree"
        print(f"{f.name}: {count} {agree}, up to order {options.order}")
    return 0


def _add_bench(commands: Any) -> None:
    p = commands.add_parser("bench", help="time a function", description="Time a function and its gradient.")
    _add_call(p)
    p.add_argument("--grad", metavar="x,y", help="parameters of the gradient (default: the first of a float type)")
    _add_random(p)
    p.add_argument("--seconds", type=float, default=1.0, help="how long to measure each (default 1)")
    p.set_defaults(action=bench)


def bench(options: argparse.Namespace) -> int:
    """Time value and gradient."""
    from aotdiff.cli.values import is_scalar_float

    if not options.seconds > 0:
        raise UsageError(f"--seconds takes a time above 0, not {options.seconds:g}")
    f = _opened(options)
    args = _given_or_random(f, options, draw=False)
    timed = {"value": f}
    if is_scalar_float(f.interface.result):
        timed["value_and_grad"] = f.value_and_grad(wrt=names_of(options.grad) or None)
    rows = {}
    for label, function in timed.items():
        start = time.perf_counter()
        function.prepare(_real_of(function, args))
        rows[label] = {"compile": time.perf_counter() - start, **_timed(function, args, options.seconds)}
    if options.json:
        print(json.dumps({"function": f.name, "seconds": rows}))
        return 0
    for label, row in rows.items():
        best, median, compiled = (_seconds(row[part]) for part in ("best", "median", "compile"))
        print(f"{label:15} best {best}  median {median}  compile {compiled}")
    return 0


def _real_of(f: Any, args: list[Any]) -> str:
    from aotdiff.runtime.binding import choose_real

    return choose_real(f.interface, args, "f64") if f.interface.is_generic else "f64"


def _timed(f: Any, args: list[Any], seconds: float) -> dict[str, float]:
    """Best and median time of a call; calls are grouped so that a group takes about a millisecond."""
    f(*args)
    start = time.perf_counter()
    f(*args)
    once = time.perf_counter() - start
    group = max(1, min(10000, int(1e-3 / max(once, 1e-7))))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(group):
            f(*args)
        times.append((time.perf_counter() - start) / group)
    times.sort()
    return {"best": times[0], "median": times[len(times) // 2]}


def _seconds(x: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if x >= scale:
            return f"{x / scale:.3g} {unit}"
    return f"{x / 1e-9:.3g} ns"
