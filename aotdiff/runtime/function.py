"""`Function`: a compiled function as Python sees it, and the derivatives made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aotdiff.runtime import fastcall
from aotdiff.runtime.binding import Binder, arrange, choose_real
from aotdiff.runtime.interface import Group, Interface, Parameter, default_wrt, derive, wrt_leaves

if TYPE_CHECKING:
    from aotdiff.codegen.gpu.device import DeviceCode
    from aotdiff.runtime.collection import Collection
    from aotdiff.runtime.compiler import Compiler
    from aotdiff.runtime.native import Native
    from aotdiff.runtime.prototype import CEntry

Wrt = str | Sequence[str] | None
Chain = tuple[tuple[str, tuple[str, ...], bool], ...]  # form, names, whether wrt was a tuple: innermost first
tensor_type: Any = None  # set by `runtime.recorded`, which takes over the calls with tensors
tensor_call: Any = None


@fastcall.enable
class Function(fastcall.base_type()):
    """A function of a module or a derivative of one; native code is made on the first call.

    `module` gives native entries; `chain` says which derivative of the function `root` this is.
    """

    def __init__(self, module: Collection, root: str, interface: Interface, chain: Chain = ()) -> None:
        self._module = module
        self._root = root
        self._chain = chain
        self.interface = interface
        self._entries: dict[str, tuple[Binder, Native]] = {}
        self._generic = interface.is_generic
        self._nested = any(isinstance(p.kind, Group) for p in interface.parameters)
        self._only: tuple[Binder, Native] | None = None
        self.__name__ = self.__qualname__ = interface.name
        self.__doc__ = f"{interface.name}{str(interface)[2:]}\n\nDefined at {interface.path}:{interface.line}."

    # What it is ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """`f`, or `grad(f, wrt = x)` for a derivative."""
        return self.interface.name

    @property
    def signature(self) -> str:
        """The `.grad` type with the parameters' names: `fn(x: f64[n]) -> f64`."""
        return str(self.interface)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters: `.name` and `.kind` each."""
        return self.interface.parameters

    @property
    def module(self) -> Collection:
        return self._module

    def __repr__(self) -> str:
        return f"<aotdiff.Function {self.name}: {self.signature}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._module._pickled(self._root, self._chain)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Function):
            return NotImplemented
        return self._module == other._module and (self._root, self._chain) == (other._root, other._chain)

    def __hash__(self) -> int:
        return hash((self._root, self._chain))

    # Calls ---------------------------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is not None and "out" in self.interface.names:  # a parameter of that name
            kwargs["out"], out = out, None
        if kwargs or len(args) != len(self.interface.parameters):
            args = tuple(arrange(self.interface, args, kwargs))
        if tensor_type is not None and (_mentions(args, self._nested) or (out is not None and _mentions((out,), True))):
            return tensor_call(self, args, out)
        entry = self._only
        if entry is None:
            entry = self._entry(args)
            if entry is self._only and entry[1].fast:  # like the calls to come: their workspace is another
                return self(*args) if out is None else self(*args, out=out)
        binder, native = entry
        values = binder.values(args)
        if out is None:
            return binder.assemble(native(values, binder.buffers(values)))
        buffers = binder.outputs(values, out)
        results = native(values, buffers)
        for k, (leaf, buffer) in enumerate(zip(binder.result_leaves, buffers, strict=True)):
            if not leaf.sizes and buffer is not None:
                buffer[()] = results[k]
        return binder.assemble(results)

    def _entry(self, args: Sequence[Any]) -> tuple[Binder, Native]:
        real = choose_real(self.interface, args, self._module._default_real) if self._generic else "f64"
        entry = self._entries.get(real)
        return entry if entry is not None else self._compile(real)

    def _compile(self, real: str) -> tuple[Binder, Native]:
        with self._module._lock:  # native code that another thread may be running is never replaced
            entry = self._entries.get(real)
            if entry is not None:
                return entry
            entry = self._entries[real] = self._module._native(self._root, self._chain, self.interface, real)
            if not self._generic:
                self._only = entry
            if entry[1].fast and real == self._module._default_real:
                fastcall.install(self, entry[1].fast)
            return entry

    def prepare(self, real: str = "f64") -> Function:
        """Compile now instead of on the first call; gives the function itself."""
        if real not in self._entries:
            self._compile(real)
        return self

    @property
    def address(self) -> int:
        """Address of the function as C calls it; it gives 0 for success.

        `int f(parameters..., sizes..., cotangents..., results...)`: as in the header that `aotdiff build` writes.
        """
        return self._c_entry().address

    @property
    def cfunc(self) -> Any:
        """The same as a ctypes function, which numba can call too."""
        return self._c_entry().function

    def _c_entry(self) -> CEntry:
        real = self._module._default_real
        made = self.__dict__.get("_c")
        if made is None:
            with self._module._lock:
                made = self._module._c_entry(self._root, self._chain, self.interface.instance(real), real)
                self.__dict__["_c"] = made
        return made

    def recipe(self) -> tuple[Compiler, str, list[tuple[str, tuple[int, ...]]]]:
        """What the compiler makes this function from: the exported function and the derivative forms on it."""
        root = self._module[self._root].interface
        return self._module._compiler, self._root, chain_places(root, self._chain)

    # GPUs ----------------------------------------------------------------------------------------------------

    def device_code(
        self, name: str | None = None, arch: str | None = None, real: str | None = None, workspace: bool = False
    ) -> DeviceCode:
        """The function as a device function: PTX and its ABI, for kernels in any language (`codegen.gpu.device`)."""
        from aotdiff.runtime.gpu.device_function import code_of

        return code_of(self, name, arch, real, workspace)

    def device_function(
        self, name: str | None = None, arch: str | None = None, real: str | None = None, workspace: bool = False
    ) -> Any:
        """The function for use in `@cuda.jit` kernels of Numba, once per thread.

        Where no call can fail, one number is returned and several come as a tuple. Otherwise results go into arrays
        passed after the arguments (numbers into their first element), and 0 or the number of the kind of error
        (`aotdiff.codegen.context.KINDS`) comes back. Arrays are C-contiguous. With `workspace` a uint8 array comes
        last: the thread's own memory for arrays whose sizes only the arguments tell (see `device_workspace`).
        """
        from aotdiff.runtime.centry import c_arguments
        from aotdiff.runtime.gpu.device_function import numba_function

        code = self.device_code(name, arch, real, workspace)
        names = [a.name for p in self.interface.parameters for a in c_arguments(p.name, p.kind)]
        return numba_function(code, names, f"{self.name}: {self.signature}")

    def device_workspace(self, *args: Any, **kwargs: Any) -> int:
        """Bytes of workspace that a call of the device function (`workspace=True`) with arguments like these takes."""
        from aotdiff.runtime.gpu.device_function import workspace_of

        given = arrange(self.interface, args, kwargs)
        real = choose_real(self.interface, given, self._module._default_real) if self._generic else "f64"
        return workspace_of(self, given, real)

    # Derivatives ---------------------------------------------------------------------------------------------

    def grad(self, wrt: Wrt = None) -> Function:
        """The gradient of a scalar result."""
        return self._derivative("grad", wrt)

    def value_and_grad(self, wrt: Wrt = None) -> Function:
        """`(value, gradient)`."""
        return self._derivative("value_and_grad", wrt)

    def vjp(self, wrt: Wrt = None) -> Function:
        """Takes the arguments, then one cotangent per float result; gives the cotangent of `wrt`."""
        return self._derivative("vjp", wrt)

    def jvp(self, wrt: Wrt = None) -> Function:
        """Takes the arguments, then one tangent per `wrt`; gives the tangent of the result."""
        return self._derivative("jvp", wrt)

    def value_and_vjp(self, wrt: Wrt = None) -> Function:
        """`(value, cotangent of wrt)`."""
        return self._derivative("value_and_vjp", wrt)

    def value_and_jvp(self, wrt: Wrt = None) -> Function:
        """`(value, tangent of the result)`."""
        return self._derivative("value_and_jvp", wrt)

    def jacobian(self, wrt: Wrt = None) -> Function:
        """Shape of the result, then shape of `wrt`."""
        return self._derivative("jacobian", wrt)

    def hessian(self, wrt: Wrt = None) -> Function:
        """Second derivatives of a scalar result; a tuple of rows for several `wrt`."""
        return self._derivative("hessian", wrt)

    def hvp(self, wrt: Wrt = None) -> Function:
        """Takes the arguments, then one direction per `wrt`; gives the Hessian times it."""
        return self._derivative("hvp", wrt)

    def _derivative(self, form: str, wrt: Wrt) -> Function:
        names, tupled = _names(self.interface, wrt)
        chain = (*self._chain, (form, names, tupled))
        made = self._module._functions.get((self._root, chain))
        if made is None:
            interface = derive(self.interface, form, names, tupled)
            made = self._module._functions[self._root, chain] = Function(self._module, self._root, interface, chain)
        return made


def _mentions(args: Any, nested: bool) -> bool:
    """Whether a tensor is among the arguments, or inside the tuples that they are."""
    for arg in args:
        if type(arg) is tensor_type or (nested and isinstance(arg, (tuple, list)) and _mentions(arg, True)):
            return True
    return False


def _names(f: Interface, wrt: Wrt) -> tuple[tuple[str, ...], bool]:
    if wrt is None:
        return default_wrt(f), False
    if isinstance(wrt, str):
        return (wrt,), False
    names = tuple(wrt) if isinstance(wrt, (tuple, list)) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"wrt is a parameter's name or a tuple of names, not {wrt!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"wrt names a parameter twice: {wrt!r}")
    return names, True


def chain_places(interface: Interface, chain: Chain) -> list[tuple[str, tuple[int, ...]]]:
    """The chain with parameter positions (of leaves) for names: what the compiler needs."""
    places = []
    for form, names, tupled in chain:
        places.append((form, wrt_leaves(interface, names)))
        interface = derive(interface, form, names, tupled)
    return places


def rebuild(module: Collection, root: str, chain: Chain) -> Function:
    f = module[root]
    for form, names, tupled in chain:
        f = f._derivative(form, names if tupled else names[0])
    return f
