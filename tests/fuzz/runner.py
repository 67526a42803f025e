"""Programs by seed and number: running them in processes of their own, so that a crash is a finding too."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from aotdiff.passes.pipeline import PIPELINES
from tests.fuzz.generator import Program, program
from tests.fuzz.oracle import Fault, Plan, Report, examine, plan_forms
from tests.fuzz.shrink import shrink
from tests.fuzz.tree import layout

PASSES = list(dict.fromkeys(PIPELINES[3]))
RESTART = 400  # programs per process: native code is never unloaded altogether
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Settings:
    """`without` names a pass that is left out, or is "each": another one in every program.

    With `threads` the optimised code runs in that many.
    """

    seed: str = "1"
    without: str | None = None
    llvm: int | None = None
    limit: float = 120.0
    verify: bool = False
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind` is the same for all programs that fail alike."""

    number: int
    kind: str
    detail: str


@dataclass(slots=True)
class Summary:
    programs: int = 0
    compared: int = 0
    optimised: int = 0
    forms: int = 0
    slowest: tuple[float, int] = (0.0, 0)  # processor time, number
    skipped: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


def plan_of(settings: Settings, number: int, made: Program) -> Plan:
    """Which forms a program is run with: the dear ones now and then."""
    rng = random.Random(f"{settings.seed}:{number}:plan")
    second, full = rng.random() < 0.35, rng.random() < 0.12
    forms = plan_forms(made.result, second or full, full)
    interpreted = forms if rng.random() < 0.15 else forms[:1]
    sizes = (rng.randint(1, 4), rng.randint(1, 4)) if rng.random() < 0.3 else None
    drawn_llvm = rng.choice([0, 3] if sizes else [0, 0, 0, 0, 1, 3])
    llvm = drawn_llvm if settings.llvm is None else settings.llvm
    drawn = rng.choice(PASSES)
    without = drawn if settings.without == "each" else settings.without
    return Plan(forms, interpreted, llvm, without, settings.verify, settings.threads, sizes)


def name_of(settings: Settings, number: int) -> str:
    return f"{settings.seed}:{number}"


def run_one(settings: Settings, number: int) -> tuple[Report, Plan, Program]:
    """One program; raises what goes wrong."""
    made = program(name_of(settings, number))
    plan = plan_of(settings, number, made)
    return attempt(settings, number, made, made.text(), plan), plan, made


def attempt(settings: Settings, number: int, made: Program, text: str, plan: Plan) -> Report:
    return examine(layout(text), made.element, made.result, name_of(settings, number), plan)


def kind_of(error: BaseException) -> str:
    """What two failures have in common when they are the same fault."""
    if isinstance(error, Fault):
        return error.kind
    first = str(error).partition("\n")[0]
    words = [word for word in first.split() if not any(c.isdigit() or c in "`'" for c in word)]
    return f"{type(error).__name__}: {' '.join(words)[:80]}"


# Processes -------------------------------------------------------------------------------------------------------


def _work(settings: Settings, first: int, step: int, count: int, end: Connection) -> None:
    for number in range(first, first + step * count, step):
        start = time.process_time()
        try:
            report, plan, made = run_one(settings, number)
            end.send(("ok", number, report, plan.llvm, made.forms, time.process_time() - start))
        except Exception as error:
            end.send(("failed", number, kind_of(error), str(error)[:2000]))
    end.send(("done", 0))


def results(settings: Settings, first: int, step: int, count: int) -> Iterator[tuple[Any, ...]]:
    """What each program gave; a program that kills its process, or never ends, is a failure of its own."""
    number = first
    last = first + step * count
    while number < last:
        mine, theirs = _FORK.Pipe(duplex=False)
        batch = min(RESTART, (last - number + step - 1) // step)
        process = _FORK.Process(target=_work, args=(settings, number, step, batch, theirs))
        process.start()
        theirs.close()
        try:
            while True:
                if not mine.poll(settings.limit):
                    yield "failed", number, "hang", f"no answer in {settings.limit} s"
                    number += step
                    break
                try:
                    message = mine.recv()
                except EOFError:
                    process.join()
                    yield "failed", number, "crash", f"the process ended with {process.exitcode}"
                    number += step
                    break
                if message[0] == "done":
                    break
                number += step
                yield message
        finally:
            process.kill()
            process.join()
            mine.close()


def collect(summary: Summary, message: tuple[Any, ...]) -> Failure | None:
    """Adds one program to the summary."""
    summary.programs += 1
    if message[0] == "failed":
        failure = Failure(*message[1:])
        summary.failures.append(failure)
        return failure
    _, number, report, llvm, forms, seconds = message
    summary.slowest = max(summary.slowest, (seconds, number))
    summary.compared += report.compared
    summary.optimised += llvm == 3
    summary.forms += bool(forms)
    summary.skipped.update(report.skipped)
    return None


# Shrinking -------------------------------------------------------------------------------------------------------


def minimal(settings: Settings, failure: Failure, seconds: float = 60.0) -> tuple[str, Plan]:
    """The smallest program found that fails in the same way, and the plan it fails with."""
    made = program(name_of(settings, failure.number))
    plan = plan_of(settings, failure.number, made)

    def fails(text: str) -> bool:
        return outcome(settings, failure, made, text, plan) == failure.kind

    for forms in smaller_forms(plan):
        trial = replace(plan, forms=forms, interpret=forms)
        if outcome(settings, failure, made, made.text(), trial) == failure.kind:
            plan = trial
            break
    return layout(shrink(made.tree, fails, seconds)), plan


def smaller_forms(plan: Plan) -> list[tuple[str, ...]]:
    return [plan.forms[:2]] if len(plan.forms) > 2 else []


def outcome(settings: Settings, failure: Failure, made: Program, text: str, plan: Plan) -> str:
    """The kind of failure of a program, "" if there is none; a process of its own where it may crash."""
    if failure.kind in ("hang", "crash"):
        return _apart(settings, failure, made, text, plan)
    try:
        attempt(settings, failure.number, made, text, plan)
    except Exception as error:
        return kind_of(error)
    return ""


def _apart(settings: Settings, failure: Failure, made: Program, text: str, plan: Plan) -> str:
    process = _FORK.Process(target=_quiet, args=(settings, failure.number, made, text, plan))
    process.start()
    process.join(10.0)
    alive = process.is_alive()
    process.kill()
    process.join()
    return "hang" if alive else "crash" if process.exitcode and process.exitcode < 0 else ""


def _quiet(settings: Settings, number: int, made: Program, text: str, plan: Plan) -> None:
    try:
        attempt(settings, number, made, text, plan)
    except Exception:
        return


def run_for(
    settings: Settings, seconds: float, count: int, first: int = 0, step: int = 1
) -> Iterator[tuple[Summary, Failure | None]]:
    """Programs until the time is over or `count` were run; the summary so far after each."""
    summary = Summary()
    end = time.monotonic() + seconds
    for message in results(settings, first, step, count):
        yield summary, collect(summary, message)
        if time.monotonic() > end:
            return
