"""Type rules of the built-in functions that make, join and multiply arrays."""

from __future__ import annotations

from aotdiff.frontend.check_body import Notes
from aotdiff.frontend.check_builtins import Use, axis_numbers, flag, float_element, joined, needs_array, not_bool, rule
from aotdiff.frontend.check_unify import describe, unify_scalars
from aotdiff.frontend.check_values import literal_integer
from aotdiff.frontend.sizes import ONE, UNKNOWN, Size, compare, number
from aotdiff.frontend.types import ERROR, I64, Array, Type, Variable, element_of, is_bool, shaped, sizes_of

# Making and reshaping arrays ------------------------------------------------------------------------------


def size_arguments(use: Use, first: int) -> tuple[Size, ...] | None:
    """Sizes given as arguments: i64 numbers, none negative."""
    sizes: list[Size] = []
    for position in range(first, len(use.arguments)):
        argument = use.arguments[position]
        if not use.body.require(use.place(position), argument.type, I64, f"a size in {use.name}"):
            return None
        constant = argument.size.constant
        if constant is not None and constant < 0:
            use.fail(f"a size cannot be negative (this is {constant})", position=position)
            return None
        sizes.append(argument.size)
    return tuple(sizes)


@rule("filled")
def _filled(use: Use) -> Type:
    sizes = size_arguments(use, 0)
    return ERROR if sizes is None else Array(Variable(floating=True), sizes)


@rule("full")
def _full(use: Use) -> Type:
    if sizes_of(use.type(0)):
        return use.fail(f"the value of `full` must be a scalar, found {describe(use.type(0))}", position=0)
    sizes = size_arguments(use, 1)
    return ERROR if sizes is None else Array(use.type(0), sizes)


@rule("eye")
def _eye(use: Use) -> Type:
    sizes = size_arguments(use, 0)
    return ERROR if sizes is None else Array(Variable(floating=True), (sizes[0], sizes[0]))


@rule("reshape")
def _reshape(use: Use) -> Type:
    if not needs_array(use):
        return ERROR
    sizes = size_arguments(use, 1)
    if sizes is None:
        return ERROR
    before, after = ONE, ONE
    for size in sizes_of(use.type(0)):
        before = before * size
    for size in sizes:
        after = after * size
    if compare(before, after) is False:
        wanted = f"[{', '.join(map(repr, sizes))}]"
        notes: Notes = [f"it has {before!r} elements, the shape {wanted} has {after!r}"]
        return use.fail(f"{use.type(0)!r} cannot take the shape {wanted}", notes)
    return Array(element_of(use.type(0)), sizes)


def joined_arrays(use: Use) -> Type | None:
    """The common scalar type of arrays put together; they must have the same rank."""
    positions = list(range(len(use.arguments)))
    rank = len(sizes_of(use.type(0)))
    for position in positions:
        if len(sizes_of(use.type(position))) != rank:
            first, other = describe(use.type(0)), describe(use.type(position))
            use.fail(f"{use.name} wants arrays of one rank, found {first} and {other}", position=position)
            return None
    return joined(use, positions)


def same_except(use: Use, axis: int | None) -> tuple[Size, ...] | None:
    """The common sizes of the arguments; those along `axis` add up."""
    sizes = list(sizes_of(use.type(0)))
    for position in range(1, len(use.arguments)):
        for dimension, size in enumerate(sizes_of(use.type(position))):
            if dimension == axis:
                sizes[dimension] = sizes[dimension] + size
            elif compare(sizes[dimension], size) is False:
                notes: Notes = [f"argument {p + 1}: {use.type(p)!r}" for p in range(len(use.arguments))]
                notes.append(f"dimension {dimension} differs: {sizes[dimension]!r} and {size!r}")
                use.fail(f"the shapes of {use.name} do not fit", notes)
                return None
            elif not sizes[dimension].known:
                sizes[dimension] = size
    return tuple(sizes)


@rule("concat")
def _concat(use: Use) -> Type:
    for position in range(len(use.arguments)):
        if not sizes_of(use.type(position)):
            hint: Notes = [f"write `[{use.body.text(use.place(position))}]`"]
            return use.fail(f"`concat` wants arrays, found {describe(use.type(position))}", hint, position)
    element = joined_arrays(use)
    if element is None:
        return ERROR
    use.resolved.axes = (0,)
    if "axis" in use.keywords:
        axes = axis_numbers(use, len(sizes_of(use.type(0))), several=False)
        if axes is None:
            return ERROR
        use.resolved.axes = axes
    sizes = same_except(use, use.resolved.axes[0])
    return ERROR if sizes is None else shaped(element, sizes)


@rule("stack")
def _stack(use: Use) -> Type:
    element = joined_arrays(use)
    if element is None:
        return ERROR
    use.resolved.axes = (0,)
    if "axis" in use.keywords:
        axes = axis_numbers(use, len(sizes_of(use.type(0))) + 1, several=False)
        if axes is None:
            return ERROR
        use.resolved.axes = axes
    sizes = same_except(use, None)
    if sizes is None:
        return ERROR
    axis = use.resolved.axes[0]
    return Array(element, (*sizes[:axis], number(len(use.arguments)), *sizes[axis:]))


@rule("len")
def _len(use: Use) -> Type:
    return I64 if needs_array(use) else ERROR


@rule("shape")
def _shape(use: Use) -> Type:
    if not needs_array(use):
        return ERROR
    node = use.arguments[1].node
    literal = literal_integer(node) if node is not None else None
    rank = len(sizes_of(use.type(0)))
    if literal is None:
        return use.fail("the dimension in `shape` is a number as written, such as `shape(a, 0)`", position=1)
    if not -rank <= literal < rank:
        text = f"there is no dimension {literal}: {use.type(0)!r} has dimensions 0 to {rank - 1}"
        return use.fail(text, position=1)
    unify_scalars(element_of(use.type(1)), I64)
    use.resolved.axes = (literal % rank,)
    return I64


# Vectors and matrices -------------------------------------------------------------------------------------


def has_rank(use: Use, position: int, *ranks: int) -> bool:
    if len(sizes_of(use.type(position))) in ranks:
        return True
    words = {0: "a number", 1: "a vector", 2: "a matrix"}
    wanted = " or ".join(words[rank] for rank in ranks)
    hint: Notes = []
    if use.resolved.builtin.name == "dot" and len(sizes_of(use.type(position))) == 2:
        hint.append("the product with a matrix is `a @ b`")
    use.fail(f"{use.name} wants {wanted}, found {describe(use.type(position))}", hint, position)
    return False


def same_size(use: Use, left: Size, right: Size, what: str) -> bool:
    if compare(left, right) is not False:
        return True
    notes: Notes = [f"argument {p + 1}: {use.type(p)!r}" for p in range(len(use.arguments))]
    notes.append(f"{what} differ: {left!r} and {right!r}")
    shapes = " and ".join(repr(use.type(p)) for p in range(len(use.arguments)))
    use.fail(f"the shapes of {use.name} do not fit: {shapes}", notes)
    return False


def is_square(use: Use) -> bool:
    if not has_rank(use, 0, 2):
        return False
    rows, columns = sizes_of(use.type(0))
    if compare(rows, columns) is False:
        use.fail(f"{use.name} wants a square matrix, found {use.type(0)!r}", position=0)
        return False
    return True


@rule("diag")
def _diag(use: Use) -> Type:
    if not has_rank(use, 0, 1, 2):
        return ERROR
    sizes = sizes_of(use.type(0))
    if len(sizes) == 1:
        return Array(element_of(use.type(0)), (sizes[0], sizes[0]))
    a, b = sizes
    if a.constant is not None and b.constant is not None:
        return Array(element_of(use.type(0)), (number(min(a.constant, b.constant)),))
    return Array(element_of(use.type(0)), (a if compare(a, b) else UNKNOWN,))


@rule("outer")
def _outer(use: Use) -> Type:
    if not has_rank(use, 0, 1) or not has_rank(use, 1, 1):
        return ERROR
    element = _product_element(use)
    return ERROR if element is None else Array(element, sizes_of(use.type(0)) + sizes_of(use.type(1)))


@rule("dot")
def _dot(use: Use) -> Type:
    if not has_rank(use, 0, 1) or not has_rank(use, 1, 1):
        return ERROR
    if not same_size(use, sizes_of(use.type(0))[0], sizes_of(use.type(1))[0], "the sizes"):
        return ERROR
    return _product_element(use) or ERROR


def _product_element(use: Use) -> Type | None:
    for position in (0, 1):
        if is_bool(element_of(use.type(position))):
            not_bool(use, position)
            return None
    return joined(use, [0, 1])


@rule("norm")
def _norm(use: Use) -> Type:
    if not needs_array(use):
        return ERROR
    return float_element(use.type(0)) or not_bool(use, 0)


@rule("trace")
def _trace(use: Use) -> Type:
    if not is_square(use):
        return ERROR
    return not_bool(use, 0) if is_bool(element_of(use.type(0))) else element_of(use.type(0))


@rule("square")
def _square(use: Use) -> Type:
    if not is_square(use):
        return ERROR
    element = float_element(use.type(0))
    return not_bool(use, 0) if element is None else shaped(element, sizes_of(use.type(0)))


@rule("determinant")
def _determinant(use: Use) -> Type:
    if not is_square(use):
        return ERROR
    return float_element(use.type(0)) or not_bool(use, 0)


@rule("solve")
def _solve(use: Use) -> Type:
    if not is_square(use) or not has_rank(use, 1, 1, 2):
        return ERROR
    lower = flag(use, "lower", True)
    if lower is None:
        return ERROR
    use.resolved.lower = lower
    if not same_size(use, sizes_of(use.type(0))[0], sizes_of(use.type(1))[0], "the numbers of rows"):
        return ERROR
    element = _product_element(use)
    if element is None:
        return ERROR
    return shaped(float_element(element) or ERROR, sizes_of(use.type(1)))
