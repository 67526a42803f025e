"""Functions as torch functions: see `aotdiff.interop.torch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from aotdiff.runtime.binding import arrange
from aotdiff.runtime.gpu.streams import stream
from aotdiff.runtime.structure import Shape, flattened, nested, unnested
from aotdiff.runtime.wrapped import Wrapped

if TYPE_CHECKING:
    from aotdiff.runtime.function import Function


def wrap(f: Function) -> Wrapped:
    """The torch function of `f`, made once."""
    made = f.__dict__.get("_torch")
    if made is None:
        made = f.__dict__["_torch"] = _made(f)
    return made


def _made(f: Function) -> Wrapped:
    operation = _operation(f, Shape(f.interface))

    def call(*args: Any, **kwargs: Any) -> Any:
        given = flattened(f.interface, arrange(f.interface, args, kwargs))
        results = operation.apply(*given)
        return nested([f.interface.result], results)[0]

    return Wrapped(f, call, wrap)


def _operation(f: Function, shape: Shape) -> Any:
    """The autograd operation on flat leaves; always gives a tuple."""
    interface = f.interface
    parameters = [p.kind for p in interface.parameters]

    def on_arrays(args: Sequence[Any]) -> list[Any]:
        values = [_array(f, arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        place = next((a.device for a in args if isinstance(a, torch.Tensor) and a.is_cuda), None)
        if place is not None:
            return _on_gpu(f, shape, nested(parameters, values), args, place)
        results = unnested(interface.result, f(*nested(parameters, values)))
        like = next((a.dtype for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()), torch.float64)
        return [_tensor(result, leaf.element, like) for result, leaf in zip(results, shape.outputs, strict=True)]

    class Operation(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            return tuple(on_arrays(args))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
            tensors = [a for a in inputs if isinstance(a, torch.Tensor)]
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)
            ctx.plain = [None if isinstance(a, torch.Tensor) else (a,) for a in inputs]
            ctx.mark_non_differentiable(*[o for k, o in enumerate(output) if k not in shape.float_outputs])

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            inputs = _inputs(ctx)
            wanted = [k for k in shape.float_inputs if ctx.needs_input_grad[k]]
            given: list[Any] = [None] * len(inputs)
            if wanted:
                names = shape.names(wanted)
                pullback = wrap(f.vjp(wrt=names))
                own = [cotangents[k] for k in shape.float_outputs]
                extra = [p.kind for p in pullback_parameters(f, names)]
                found = pullback(*nested(parameters, inputs), *nested(extra, own))
                parts = unnested(f.vjp(wrt=names).interface.result, found)
                for place, part in zip(shape.places(names), parts, strict=True):
                    given[place] = part if place in wanted else None
            return tuple(given)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            inputs = _inputs(ctx)
            moved = [k for k in shape.float_inputs if tangents[k] is not None]
            names = shape.names(moved)
            places = shape.places(names)
            zero = [torch.zeros_like(inputs[k]) if tangents[k] is None else tangents[k] for k in places]
            pushforward = f.jvp(wrt=names)
            extra = [p.kind for p in pushforward.interface.parameters[len(parameters) :]]
            found = wrap(pushforward)(*nested(parameters, inputs), *nested(extra, zero))
            parts = iter(unnested(pushforward.interface.result, found))
            return tuple(next(parts) if leaf.is_float else None for leaf in shape.outputs)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
            rows = []
            for k in range(info.batch_size):
                pairs = zip(args, in_dims, strict=True)
                rows.append(Operation.apply(*[a if d is None else a.select(d, k) for a, d in pairs]))
            return tuple(torch.stack(column) for column in zip(*rows, strict=True)), (0,) * len(shape.outputs)

    Operation.__name__ = Operation.__qualname__ = f.name
    return Operation


def _on_gpu(f: Function, shape: Shape, given: Sequence[Any], args: Sequence[Any], place: Any) -> list[Any]:
    """The call with tensors on a GPU, on torch's present stream; results are there too, without copies."""
    with stream(torch.cuda.current_stream(place)):
        results = unnested(f.interface.result, f(*given))
        like = next((a.dtype for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()), torch.float64)
        return [
            torch.from_dlpack(r) if leaf.sizes else _tensor(r, leaf.element, like).to(place)
            for r, leaf in zip(results, shape.outputs, strict=True)
        ]


def pullback_parameters(f: Function, names: tuple[str, ...]) -> Any:
    """The cotangents that `f.vjp` takes after the parameters of `f`."""
    return f.vjp(wrt=names).interface.parameters[len(f.interface.parameters) :]


def _inputs(ctx: Any) -> list[Any]:
    tensors = iter(ctx.saved_tensors)
    return [next(tensors) if plain is None else plain[0] for plain in ctx.plain]


def _array(f: Function, tensor: torch.Tensor) -> Any:
    """The tensor's memory as an array; a tensor on the GPU itself, for a function that runs there."""
    if tensor.is_cuda and f.module.device is not None:
        return tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.device.type != "cpu":
        hint = 'move them with .cpu(), or compile with target="cuda"'
        raise TypeError(f"{f.name} takes tensors in CPU memory, not on {tensor.device}: {hint}")
    return tensor.detach().resolve_conj().resolve_neg().numpy()


def _tensor(result: Any, element: str, like: torch.dtype) -> torch.Tensor:
    if isinstance(result, np.ndarray):
        return torch.from_numpy(result)
    kinds = {"f64": torch.float64, "f32": torch.float32, "i64": torch.int64, "bool": torch.bool}
    return torch.tensor(result, dtype=kinds.get(element, like))
