"""`Module`: the exported functions of one program; `compile`, `compile_source` and `load`, which give modules."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from aotdiff.codegen.loader import load as load_object
from aotdiff.runtime import cache, interrupt
from aotdiff.runtime.binding import Binder
from aotdiff.runtime.centry import in_memory
from aotdiff.runtime.collection import Collection
from aotdiff.runtime.compiler import Compiler, Options, Source, read_source
from aotdiff.runtime.function import Chain, chain_places
from aotdiff.runtime.interface import Interface
from aotdiff.runtime.loaded import Library
from aotdiff.runtime.native import Native, threads
from aotdiff.runtime.prototype import CEntry


class Module(Collection):
    """The exported functions of a compiled program."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        super().__init__(compiler.source.path, compiler.interfaces())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Module) and self._state() == other._state()

    def __hash__(self) -> int:
        return hash(self._compiler.source.path)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._state()

    @property
    def device(self) -> Any:
        """The device its functions run on, None for this machine's processor; a `DeviceError` where it is missing."""
        if self._compiler.options.target == "cpu":
            return None
        from aotdiff.runtime.gpu.devices import device

        return device(self._compiler.options.target)

    @property
    def _default_real(self) -> str:
        return self._compiler.options.real

    def _state(self) -> tuple[Source, Options]:
        return self._compiler.portable(), self._compiler.options

    def _native(self, root: str, chain: Chain, interface: Interface, real: str) -> tuple[Binder, Native]:
        """Native code of a function of this module or of one of its derivatives."""
        compiler = self._compiler
        instance = interface.instance(real)
        with self._lock:
            places = chain_places(self._exports[root].interface, chain)
            if compiler.options.target != "cpu":
                from aotdiff.runtime.gpu import targets

                # What the checker does not know: it is called like native code.
                return targets.function(compiler, root, places, instance, real)  # type: ignore[return-value]
            code = compiler.object_code(root, places, instance, real)
        interrupt.provide(_interrupt_code)
        if compiler.threads() != 1:
            threads.provide(_threads_code)
        loaded = load_object(code.data)
        fast = loaded.address(f"fast.{code.symbol}") if code.fast else 0
        return Binder(instance), Native(loaded.address(code.symbol), fast, instance, loaded, code.reads)

    def _c_entry(self, root: str, chain: Chain, interface: Interface, real: str) -> CEntry:
        """The function as C calls it."""
        export = self._exports[root].interface
        own = len(export.parameters)
        code = self._compiler.c_entry_code(root, chain_places(export, chain), interface, real, own)
        return in_memory(load_object(code.data), interface, own)


def _interrupt_code() -> Callable[[str], int]:
    """Native code of the Ctrl-C handler, by symbol."""
    loaded = _support("interrupt", lambda: interrupt.HANDLER_TEXT)
    return lambda symbol: loaded.address(symbol.removeprefix("aotdiff."))


def _threads_code() -> tuple[int, Any]:
    """The table of native code that shares work between threads, and what keeps it in memory."""

    def text() -> str:
        from aotdiff.codegen import driver

        return driver.team_text()

    loaded = _support("threads", text)
    return int(ctypes.CFUNCTYPE(ctypes.c_void_p)(loaded.address("threads"))() or 0), loaded


def _support(name: str, text: Callable[[], str]) -> Any:
    """Native code that programs share, from the cache if it is there."""
    key = cache.key(name, cache.compiler_version(), cache.machine())
    data = cache.get(key)
    if data is None:
        from aotdiff.codegen import driver

        data = driver.loadable(text(), driver.Options(opt=1))
        cache.put(key, data)
    return load_object(data)


def compile(
    path: str | os.PathLike[str],
    *,
    target: str = "cpu",
    opt: int = 3,
    fast_math: bool = False,
    real: str = "f64",
    threads: int | None = None,
    deterministic: bool = False,
) -> Module:
    """Compile a `.grad` file in memory; raises `CompileError` with everything that is wrong with it.

    `opt` is 0 to 3; `real` is what the type `real` is where no argument decides; `threads` that a call may use at most
    (None: see `set_num_threads`; 1: code for one thread). `deterministic`: on a GPU, sums of floats repeat bit for bit.
    """
    return Module(Compiler(read_source(path), Options(target, opt, fast_math, real, threads, deterministic)))


def compile_source(
    text: str,
    base: str | os.PathLike[str] = "",
    *,
    name: str = "source.grad",
    target: str = "cpu",
    opt: int = 3,
    fast_math: bool = False,
    real: str = "f64",
    threads: int | None = None,
    deterministic: bool = False,
) -> Module:
    """Compile a program given as text; imports are relative to the folder `base`, `name` is its name in messages."""
    source = Source(name, text, os.fspath(base))
    return Module(Compiler(source, Options(target, opt, fast_math, real, threads, deterministic)))


def load(path: str | os.PathLike[str]) -> Library:
    """A library made by `aotdiff build`, with the functions and derivatives that were built.

    For GPUs that is the `.json`, with the `.ptx` beside it.
    """
    if os.fspath(path).endswith(".json"):
        from aotdiff.runtime.gpu.built import load as load_gpu

        return load_gpu(os.fspath(path))
    return Library(os.fspath(path))


_modules: dict[tuple[Source, Options], Module] = {}


def _rebuild(source: Source, options: Options) -> Module:
    """The module of a pickle; one per process for the same source and options."""
    made = _modules.get((source, options))
    if made is None:
        made = _modules[source, options] = Module(Compiler(source, options))
    return made
