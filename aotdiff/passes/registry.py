"""The table of passes: name, one sentence, function.

A pass works in place on a valid module and leaves a valid module with the same meaning. `register_local` is for
passes that look at one function at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aotdiff.ir.graph import Func, Module

Local = Callable[[Module, Func], None]
Some = Callable[[Module, list[Func]], None]
Whole = Callable[[Module], None]


@dataclass(frozen=True, slots=True)
class Pass:
    """`run(module, only)`: `only` limits a local pass to these functions (None: all)."""

    name: str
    sentence: str
    run: Callable[[Module, Iterable[Func] | None], None]


PASSES: dict[str, Pass] = {}


def register(name: str, sentence: str) -> Callable[[Whole], Whole]:
    """Registers a pass over a whole module."""

    def decorate(function: Whole) -> Whole:
        PASSES[name] = Pass(name, sentence, lambda module, only: function(module))
        return function

    return decorate


def register_some(name: str, sentence: str) -> Callable[[Some], Some]:
    """Registers a pass over some functions of a module, for passes that look at the whole module first."""

    def decorate(function: Some) -> Some:
        def run(module: Module, only: Iterable[Func] | None) -> None:
            function(module, list(module.funcs.values() if only is None else only))

        PASSES[name] = Pass(name, sentence, run)
        return function

    return decorate


def register_local(name: str, sentence: str) -> Callable[[Local], Local]:
    """Registers a pass over one function."""

    def decorate(function: Local) -> Local:
        def run(module: Module, only: Iterable[Func] | None) -> None:
            for func in list(module.funcs.values()) if only is None else only:
                function(module, func)

        PASSES[name] = Pass(name, sentence, run)
        return function

    return decorate
