"""What can be asked of reverse mode, and which of its answers are functions that are never differentiated as they are
written (`ad.transpose`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Func, Module, Region
from aotdiff.ir.types import Acc

Flags = tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of a function: cotangents of the parameters `wrt`, given those of the `seeded` results and, for
    the parameters that are `live` handles, of what is accumulated. Cotangents of the parameters in `by_handle` are
    accumulated into handles; the others are results, after the function's own results with `value`.

    The function made takes the parameters (without handles), the seeds, the adjoints for live handles, the handles.
    """

    func: str
    wrt: tuple[int, ...]
    seeded: Flags
    live: Flags
    by_handle: Flags
    value: bool

    @property
    def key(self) -> tuple:
        return ("vjp", self.func, self.wrt, self.seeded, self.live, self.by_handle, self.value)

    def returned(self) -> list[int]:
        """Parameters whose cotangents are results."""
        return [k for k in self.wrt if not self.by_handle[k]]

    def accumulated(self) -> list[int]:
        """Parameters whose cotangents are accumulated into handles."""
        return [k for k in self.wrt if self.by_handle[k]]


def has_rule(func: Func) -> bool:
    """Whether the user gave this function a derivative."""
    return "vjp" in func.attrs or "jvp" in func.attrs


def calling(func: Func) -> Func:
    """A function that only calls `func`, so that the rule for calls applies. It is not in the module."""
    region = Region()
    args = [region.add_arg(p.type, p.name) for p in func.params]
    b = Builder(region, func.loc)
    b.ret(b.call(func, args))
    return Func(func.name, region, list(func.result_types), {}, func.loc)


def reverses_recursion(func: Func) -> bool:
    """Whether the reverse function of `func`, which is recursive, is written with records and transposed as a whole."""
    return not has_rule(func) and not any(isinstance(p.type, Acc) for p in func.params)


def request_of(module: Module, func: Func) -> Request | None:
    """What `func` answers if it is the reverse function of a recursive function; see `ad.transpose`."""
    key = func.attrs.get("derived", ("",))
    if key[0] == "vjp":
        return Request(*key[1:]) if func.attrs.get("whole") else None
    if key[0] != "without" or key[1] not in module.funcs:
        return None
    base = request_of(module, module.funcs[key[1]])
    if base is None:
        return None
    handles = base.accumulated()
    dropped = {k for k, drop in zip(handles, key[2][-len(handles) :], strict=True) if drop}
    return replace(base, wrt=tuple(k for k in base.wrt if k not in dropped))
