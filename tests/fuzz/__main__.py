"""Random programs for as long as told: `python -m tests.fuzz --seconds 600 --seed 1`.

Prints each failing program, made as small as it can be, and a summary. `--only N` runs one program again.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.runner import PASSES, Failure, Settings, Summary, minimal, run_for


def main() -> int:
    arguments = parse()
    settings = Settings(
        arguments.seed, arguments.without, arguments.llvm, arguments.limit, arguments.verify, arguments.threads
    )
    start = time.monotonic()
    summary, kinds, shown = Summary(), set[str](), 0.0
    count = 1 if arguments.only is not None else arguments.count
    first = arguments.only if arguments.only is not None else arguments.first
    for summary, failure in run_for(settings, arguments.seconds, count, first, arguments.step):
        if failure is not None:
            show(settings, failure, failure.kind in kinds, arguments.shrink)
            kinds.add(failure.kind)
        if time.monotonic() - shown > 60.0:
            shown = time.monotonic()
            print(tally(settings, summary, start), flush=True)
    print(tally(settings, summary, start))
    return 1 if summary.failures else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--count", type=int, default=10**9, help="programs at most")
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--step", type=int, default=1, help="every how many: several commands can share the numbers")
    parser.add_argument("--only", type=int, help="one program, by number")
    parser.add_argument("--without", metavar="PASS", choices=["each", *PASSES], help="leave a pass out of the pipeline")
    parser.add_argument("--llvm", type=int, choices=[0, 1, 2, 3], help="LLVM's level for the optimised graph; mixed")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that one program may take")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds to make a failing program small")
    parser.add_argument("--verify", action="store_true", help="verify the graph after each pass")
    parser.add_argument("--threads", type=int, default=1, help="that the optimised code is split between, everywhere")
    return parser.parse_args()


def show(settings: Settings, failure: Failure, known: bool, seconds: float) -> None:
    """A failure; the first of its kind with its program."""
    print(f"program {settings.seed}:{failure.number}: {failure.kind}: {failure.detail[:600]}", flush=True)
    if not known and seconds > 0:
        text, plan = minimal(settings, failure, seconds)
        print(f"# {plan}\n{text}", flush=True)


def tally(settings: Settings, summary: Summary, start: float) -> str:
    seconds = time.monotonic() - start
    skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(summary.skipped.items())) or "none"
    left_out = f", without {settings.without}" if settings.without else ""
    return (
        f"seed {settings.seed}{left_out}: {summary.programs} programs ({summary.optimised} through all of LLVM, "
        f"{summary.forms} with derivatives inside), {summary.compared} comparisons, {len(summary.failures)} failed; "
        f"given up: {skipped}; {seconds:.0f} s; slowest {summary.slowest[1]} ({summary.slowest[0]:.1f} s)"
    )


if __name__ == "__main__":
    sys.exit(main())
