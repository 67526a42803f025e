"""Type rules of the built-in functions, one for each kind in the table of `builtins.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aotdiff.frontend import ast
from aotdiff.frontend.builtins import Builtin
from aotdiff.frontend.check_body import Body, Notes, fits_nothing
from aotdiff.frontend.check_functions import APPLIERS, Argument, BuiltinFunction, counted, is_function
from aotdiff.frontend.check_operators import mixing_error
from aotdiff.frontend.check_unify import BroadcastProblem, broadcast, describe, join_elements, unify_scalars
from aotdiff.frontend.check_values import is_literal, literal_integer
from aotdiff.frontend.sizes import ONE, Size
from aotdiff.frontend.types import (
    BOOL,
    ERROR,
    F32,
    F64,
    I64,
    Array,
    Type,
    Variable,
    element_of,
    is_bool,
    is_float,
    is_integer,
    is_numeric_shape,
    resolve,
    shaped,
    sizes_of,
)


@dataclass(slots=True)
class BuiltinUse:
    """A call of a built-in, as the lowering needs it: `axes` are sorted, counted from 0; None means all."""

    builtin: Builtin
    axes: tuple[int, ...] | None = None
    keepdims: bool = False
    lower: bool = True


@dataclass(slots=True)
class Use:
    """What a rule sees. A rule reports errors and gives ERROR, or the type of the result."""

    body: Body
    node: ast.Node
    arguments: list[Argument]
    keywords: dict[str, ast.Keyword]
    resolved: BuiltinUse

    @property
    def name(self) -> str:
        return f"`{self.resolved.builtin.name}`"

    def type(self, position: int) -> Type:
        return resolve(self.arguments[position].type)

    def place(self, position: int) -> ast.Node:
        node = self.arguments[position].node
        return node if node is not None else self.node

    def fail(self, message: str, notes: Notes | None = None, position: int | None = None) -> Type:
        place = self.node if position is None else self.place(position)
        self.body.error(place.span, message, notes)
        return ERROR


Rule = Callable[[Use], Type]
RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for kind in kinds:
            RULES[kind] = function
        return function

    return register


def use_builtin(
    body: Body, builtin: Builtin, arguments: list[Argument], keywords: dict[str, ast.Keyword], node: ast.Node
) -> tuple[Type, BuiltinUse]:
    """Check a call of a built-in: the number of its arguments, then its own rule."""
    use = Use(body, node, arguments, keywords, BuiltinUse(builtin))
    count = len(arguments)
    if count < builtin.least or (builtin.most is not None and count > builtin.most):
        if builtin.variadic:
            wanted = f"at least {counted(builtin.least, 'argument')}"
        else:
            wanted = counted(builtin.least, "argument")
        body.error(node.span, f"{use.name} takes {wanted}, found {count}", _count_hints(builtin, count))
        return ERROR, use.resolved
    if fits_nothing(*(argument.type for argument in arguments)):
        return _hopeless(use), use.resolved
    for position in range(count):
        if not is_numeric_shape(use.type(position)) and builtin.kind != "stop_gradient":
            found = "a function" if is_function(use.type(position)) else describe(use.type(position))
            sizes = builtin.kind in ("filled", "full", "reshape", "eye")
            hint: Notes = ["sizes are arguments of their own: `zeros(n, m)`"] if sizes else []
            use.fail(f"{use.name} wants a number or an array, found {found}", hint, position)
            return ERROR, use.resolved
    return RULES[builtin.kind](use), use.resolved


def _count_hints(builtin: Builtin, count: int) -> Notes:
    if builtin.name in ("max", "min") and count == 2:
        return [f"the larger or smaller of two values is `{builtin.name}imum(x, y)`"]
    if builtin.name == "sum" and count == 2:
        return ["the axis is named: `sum(a, axis = 1)`"]
    return []


def _hopeless(use: Use) -> Type:
    """The type after an error in an argument: known where it does not depend on it."""
    return BOOL if use.resolved.builtin.kind == "predicate" and not use.arguments else ERROR


def _apply_builtin(body: Body, callee: BuiltinFunction, arguments: list[Argument], node: ast.Node, name: str) -> Type:
    return use_builtin(body, callee.builtin, arguments, {}, node)[0]


APPLIERS[BuiltinFunction] = _apply_builtin


# Element by element ---------------------------------------------------------------------------------------


def float_element(type_: Type) -> Type | None:
    """The float type that maths on it gives: i64 takes that of its context; None for bool."""
    element = element_of(type_)
    if is_float(element):
        return element
    return Variable(floating=True) if is_integer(element) else None


def not_bool(use: Use, position: int) -> Type:
    type_ = use.type(position)
    argument = use.arguments[position].node
    hint: Notes = [f"write `i64({use.body.text(argument)})`"] if argument is not None else []
    return use.fail(f"{use.name} wants numbers, found {describe(type_)}", hint, position)


@rule("maths")
def _maths(use: Use) -> Type:
    element = float_element(use.type(0))
    return not_bool(use, 0) if element is None else shaped(element, sizes_of(use.type(0)))


@rule("keeping")
def _keeping(use: Use) -> Type:
    return not_bool(use, 0) if is_bool(element_of(use.type(0))) else use.type(0)


@rule("predicate")
def _predicate(use: Use) -> Type:
    return not_bool(use, 0) if is_bool(element_of(use.type(0))) else shaped(BOOL, sizes_of(use.type(0)))


@rule("stop_gradient")
def _stop_gradient(use: Use) -> Type:
    if is_function(use.type(0)):
        return use.fail("`stop_gradient` wants a value, found a function", position=0)
    return use.type(0)


@rule("conversion")
def _conversion(use: Use) -> Type:
    target = {"f64": F64, "f32": F32, "i64": I64, "bool": BOOL, "real": use.body.real}[use.resolved.builtin.name]
    return shaped(target, sizes_of(use.type(0)))


def joined(use: Use, positions: list[int]) -> Type | None:
    """The common scalar type of some arguments, literals adopting it; None after a message."""
    element: Type | None = element_of(use.type(positions[0]))
    for position in positions[1:]:
        assert element is not None
        element = join_elements(element, element_of(use.type(position)))
        if element is None:
            mixing_error(use.body, use.node, use.name, [(use.arguments[p].node, use.type(p)) for p in positions])
            return None
    assert element is not None
    for position in positions:
        node = use.arguments[position].node
        if node is not None and is_literal(node) and is_float(element) and is_integer(element_of(use.type(position))):
            unify_scalars(element_of(use.type(position)), element)
    return element


def broadcast_all(use: Use, positions: list[int]) -> tuple[Size, ...] | None:
    sizes: tuple[Size, ...] = ()
    for position in positions:
        merged = broadcast(sizes, sizes_of(use.type(position)))
        if isinstance(merged, BroadcastProblem):
            shapes = " and ".join(repr(use.type(p)) for p in positions)
            a, b = sizes[merged.left], sizes_of(use.type(position))[merged.right]
            notes: Notes = [f"argument {p + 1}: {use.type(p)!r}" for p in positions]
            notes.append(f"dimension {merged.right} of argument {position + 1} differs: {a!r} and {b!r}")
            use.fail(f"the shapes of {use.name} do not fit: {shapes}", notes)
            return None
        sizes = merged
    return sizes


def elementwise(use: Use, positions: list[int], bools: bool = False) -> tuple[Type, tuple[Size, ...]] | None:
    if not bools:
        for position in positions:
            if is_bool(element_of(use.type(position))):
                not_bool(use, position)
                return None
    element = joined(use, positions)
    sizes = broadcast_all(use, positions)
    return None if element is None or sizes is None else (element, sizes)


@rule("maths2")
def _maths2(use: Use) -> Type:
    found = elementwise(use, [0, 1])
    if found is None:
        return ERROR
    element = float_element(found[0])
    return ERROR if element is None else shaped(element, found[1])


@rule("keeping2", "power")
def _keeping2(use: Use) -> Type:
    found = elementwise(use, [0, 1])
    return ERROR if found is None else shaped(*found)


@rule("clamp")
def _clamp(use: Use) -> Type:
    found = elementwise(use, [0, 1, 2])
    return ERROR if found is None else shaped(*found)


@rule("where")
def _where(use: Use) -> Type:
    if not is_bool(element_of(use.type(0))):
        return use.fail(f"the condition of `where` must be bool, found {describe(use.type(0))}", position=0)
    found = elementwise(use, [1, 2], bools=True)
    if found is None:
        return ERROR
    sizes = broadcast_all(use, [0, 1, 2])
    return ERROR if sizes is None else shaped(found[0], sizes)


# Axes -----------------------------------------------------------------------------------------------------


def axis_numbers(use: Use, rank: int, several: bool) -> tuple[int, ...] | None:
    """The axes that `axis = ...` names; None after a message."""
    keyword = use.keywords["axis"]
    value = keyword.value
    parts = value.elements if isinstance(value, ast.Tuple) else [value]
    if isinstance(value, ast.Tuple) and not several:
        use.body.error(value.span, f"{use.name} takes one axis")
        return None
    axes: list[int] = []
    for part in parts:
        literal = literal_integer(part)
        if literal is None:
            use.body.error(part.span, "an axis is a number as written, such as `axis = 1`")
            return None
        if not -rank <= literal < rank:
            have = f"axes 0 to {rank - 1}" if rank else "no axes"
            use.body.error(part.span, f"there is no axis {literal}: the argument has {have}")
            return None
        axis = literal % rank
        if axis in axes:
            use.body.error(part.span, f"the axis {axis} is named twice")
            return None
        axes.append(axis)
    if not axes:
        use.body.error(value.span, "no axis is named")
        return None
    return tuple(sorted(axes))


def flag(use: Use, name: str, default: bool) -> bool | None:
    """A keyword that is `true` or `false` as written."""
    keyword = use.keywords.get(name)
    if keyword is None:
        return default
    if isinstance(keyword.value, ast.Bool):
        return keyword.value.value
    use.body.error(keyword.value.span, f"`{name}` is `true` or `false` as written")
    return None


def needs_array(use: Use, position: int = 0) -> bool:
    if isinstance(use.type(position), Array):
        return True
    hint: Notes = []
    if use.resolved.builtin.name in ("max", "min"):
        hint.append(f"the larger or smaller of two values is `{use.resolved.builtin.name}imum(x, y)`")
    use.fail(f"{use.name} wants an array, found {describe(use.type(position))}", hint, position)
    return False


def reduced(use: Use, several: bool = True) -> tuple[Size, ...] | None:
    """The sizes a reduction along `axis` leaves; notes the axes for the lowering."""
    sizes = sizes_of(use.type(0))
    keep = flag(use, "keepdims", False)
    if keep is None:
        return None
    use.resolved.keepdims = keep
    if "axis" not in use.keywords:
        return (ONE,) * len(sizes) if keep else ()
    axes = axis_numbers(use, len(sizes), several)
    if axes is None:
        return None
    use.resolved.axes = axes
    return tuple(
        ONE if position in axes else size for position, size in enumerate(sizes) if keep or position not in axes
    )


@rule("reduction")
def _reduction(use: Use) -> Type:
    if not needs_array(use):
        return ERROR
    element = reduced_element(use, element_of(use.type(0)))
    sizes = reduced(use)
    return ERROR if element is None or sizes is None else shaped(element, sizes)


def reduced_element(use: Use, element: Type) -> Type | None:
    """The scalar type a reduction gives; None after a message."""
    name = use.resolved.builtin.name
    if name in ("any", "all"):
        if is_bool(element):
            return BOOL
        found = describe(use.type(0)) if use.arguments else describe(element)
        use.fail(f"{use.name} wants bools, found {found}", ["write a comparison, such as `x > 0.0`"])
        return None
    if name == "mean":
        return Variable(floating=True) if is_integer(element) or is_bool(element) else element
    if is_bool(element) and name in ("sum", "prod"):
        return I64
    if is_bool(element):
        use.fail(f"{use.name} wants numbers, found bools", [f"write `{'any' if name == 'max' else 'all'}`"])
        return None
    return element


@rule("arg_reduction")
def _arg_reduction(use: Use) -> Type:
    if not needs_array(use):
        return ERROR
    sizes = reduced(use, several="axis" not in use.keywords)
    return ERROR if sizes is None else shaped(I64, sizes)


@rule("logsumexp")
def _logsumexp(use: Use) -> Type:
    if not needs_array(use) or not axis_or_vector(use):
        return ERROR
    element = float_element(use.type(0))
    sizes = reduced(use)
    if element is None:
        return not_bool(use, 0)
    return ERROR if sizes is None else shaped(element, sizes)


def axis_or_vector(use: Use) -> bool:
    """Functions along one axis say which, for more than one dimension."""
    if "axis" in use.keywords or len(sizes_of(use.type(0))) <= 1:
        return True
    use.fail(f"{use.name} of {use.type(0)!r} needs an axis", ["write `axis = 0`, `axis = 1`, ..."])
    return False


def along_axis(use: Use) -> bool:
    if not needs_array(use) or not axis_or_vector(use):
        return False
    use.resolved.axes = (0,)
    if "axis" in use.keywords:
        axes = axis_numbers(use, len(sizes_of(use.type(0))), several=False)
        if axes is None:
            return False
        use.resolved.axes = axes
    return True


@rule("softmax")
def _softmax(use: Use) -> Type:
    if not along_axis(use):
        return ERROR
    element = float_element(use.type(0))
    return not_bool(use, 0) if element is None else shaped(element, sizes_of(use.type(0)))


@rule("scan")
def _scan(use: Use) -> Type:
    if not along_axis(use):
        return ERROR
    if is_bool(element_of(use.type(0))) and use.resolved.builtin.name in ("cumsum", "cumprod"):
        return shaped(I64, sizes_of(use.type(0)))
    return use.type(0)
