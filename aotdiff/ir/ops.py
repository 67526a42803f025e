"""Every operation of the graph, declared once.

A declaration says what an operation takes, what it gives and whether it has effects. Its derivative is in
`ad/rules.py` (scalar operations) or in the file of `ad/` named after the construct; its lowering is in
`codegen/`, its meaning in `ir/interpreter.py`. `aotdiff ops NAME` shows all of it.

Scalar operations work on scalars only: array arithmetic is `par` over scalars. Operands of one scalar
operation have the same type unless its signature says otherwise.

Structured operations (operands; attrs; regions; results):

- `par` (extents..., inner sizes...; rank, kinds; body(indices...)): independent iterations over `rank` extents.
  Result r has `kinds[r]`: "map" collects the yielded value at the iteration index (an array-valued map appends
  its dimensions; those sizes are the operands after the extents, per map result in order), "sum", "prod",
  "max", "min", "any", "all" reduce scalars, "argmax", "argmin" take the scalar to compare and give the linear
  index (row-major over the extents) of the first winner, -1 if there is no iteration. NaN wins max, min and the
  arg forms, as in NumPy. Empty: 0, 1, -inf, inf (the smallest / largest i64 for i64), false, true.
- `for` (count, inits..., inner sizes...; carries, kinds; body(k, carried...)): `count` sequential iterations, k from 0
  (none if count <= 0). Yields the next carried values, then one value per map. Results: final carried values, then
  per map: "map" one array with a leading dimension `count`; "cat" takes rank-1 arrays of any length and gives their
  concatenation and the offsets (i64[count + 1]).
- `while` (inits..., inner sizes...; carries, kinds; cond(k, carried...), body(k, carried...)): as `for`, while `cond`
  yields true. Results: final carried values, trip count, maps.
- `if` (cond; rare or none; then(), else()): results are what the taken side yields. `rare`: `then` hardly ever runs.
- `withacc` (inits...; ; body(handles...)): accumulators that start as the inits. Results: each init plus everything
  accumulated, then what the body yields. A handle is used by `accum` and `call` only.
- `accum` (handle, value, indices...): adds a scalar at the full index; an effect, in no particular order.
- `read` (array, indices...): the element (full index). Not checked: `check` operations come before it.
- `update` (array, value, indices...): the array with one element replaced (full index).
- `insert` (array, block, offsets...): the array with a block of the same rank replaced.
- `dim` (array; axis): a size. `reshape` (array, sizes...): same elements, row-major; the count must agree.
- `shaped` (array, sizes...): the array itself, known to have these sizes (a `check` came before).
- `argsort` (array; ): the stable sorting permutation of a rank-1 array, NaNs last.
- `check` (cond, values...; kind, message): if false, stop the function with the error `kind` and `message`, in which
  `{0}`, `{1}` ... stand for the values (i64 or float scalars).
- `call` (args...; callee). `yield` (values...) ends a region.
- `vjp` (args..., cotangents...; callee, wrt, value): cotangents of the parameters `wrt` (indices), given one cotangent
  per float result; with `value` the results come first. `jvp` (args..., tangents...; callee, wrt, value): one tangent
  per `wrt`, results likewise. The expand-derivatives pass replaces both by calls of generated functions.
- `stop_gradient` (x): x, with derivative zero. `undef`: a value nobody reads (the side not taken);
  sizes that its type does not state are 0.
- `record_make` (fields...; record) / `record_unpack` (record; ) pack residuals. Reverse functions of recursive
  functions are made of them; these have derivatives as wholes (`ad/transpose.py`), so records need no adjoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotdiff.ir.types import BOOL, I64, Acc, Array, Record, Scalar, Type, array_type, dims_of, element_of


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Declaration of one operation.

    operands: allowed scalar kinds of the operands: "float", "number" (float or i64), "bool", "any".
    result: "same" as the operands, "bool", "i64", or "" for structured operations (typed by `infer`).
    domain: for scalar float operations, an interval per operand where the function is smooth (for the tests).
    """

    name: str
    arity: int | None
    operands: str
    result: str
    pure: bool = True
    regions: int = 0
    domain: tuple[tuple[float, float], ...] = ()
    commutative: bool = False
    attrs: tuple[str, ...] = ()
    doc: str = ""

    @property
    def is_scalar(self) -> bool:
        return self.result != ""


def _unary(name: str, low: float, high: float, doc: str) -> OpSpec:
    return OpSpec(name, 1, "float", "same", domain=((low, high),), doc=doc)


_SCALAR = [
    OpSpec("const", 0, "any", "same", attrs=("value", "type"), doc="a number; `value` is int, float or bool"),
    OpSpec("add", 2, "number", "same", domain=((-2, 2), (-2, 2)), commutative=True, doc="x + y (i64 wraps)"),
    OpSpec("sub", 2, "number", "same", domain=((-2, 2), (-2, 2)), doc="x - y"),
    OpSpec("mul", 2, "number", "same", domain=((-2, 2), (-2, 2)), commutative=True, doc="x * y"),
    OpSpec("div", 2, "float", "same", domain=((-2, 2), (0.5, 2)), doc="x / y"),
    OpSpec(
        "ratio", 2, "float", "same", domain=((-2, 2), (0.5, 2)),
        doc="x / y, 0 where both are 0 (a direction at the origin)",
    ),
    OpSpec("floordiv", 2, "number", "same", domain=((2.1, 2.9), (1.9, 2.05)), doc="floor(x / y); an i64 y is not 0"),
    OpSpec(
        "mod", 2, "number", "same", domain=((4.2, 4.9), (1.9, 2.05)),
        doc="x - y * floor(x / y), sign of y; an i64 y is not 0",
    ),
    OpSpec("neg", 1, "number", "same", domain=((-2, 2),), doc="-x"),
    OpSpec("pow", 2, "float", "same", domain=((0.3, 3), (-2, 2)), doc="x ** y as C pow"),
    OpSpec(
        "ipow", 2, "number", "same", domain=((0.3, 3), (-2, 2)),
        doc="x ** n for i64 n (n >= 0 for i64 x); x ** 0 is 1",
    ),
    OpSpec(
        "minimum", 2, "number", "same", domain=((0.1, 0.9), (1.1, 1.9)), commutative=True,
        doc="NaN if either is NaN",
    ),
    OpSpec(
        "maximum", 2, "number", "same", domain=((0.1, 0.9), (1.1, 1.9)), commutative=True,
        doc="NaN if either is NaN",
    ),
    OpSpec(
        "clamp", 3, "number", "same", domain=((0.3, 0.7), (0.1, 0.2), (0.8, 0.9)),
        doc="minimum(maximum(x, lo), hi)",
    ),
    OpSpec("abs", 1, "number", "same", domain=((0.2, 2),), doc="|x|"),
    OpSpec("sign", 1, "number", "same", domain=((0.2, 2),), doc="-1, 0, 1; NaN for NaN"),
    _unary("floor", 0.1, 0.9, "largest integer not above x"),
    _unary("ceil", 0.1, 0.9, "smallest integer not below x"),
    _unary("round", 0.6, 1.4, "nearest integer, halves to even"),
    _unary("exp", -2, 2, "e ** x"),
    _unary("expm1", -2, 2, "exp(x) - 1"),
    _unary("log", 0.3, 3, "natural logarithm"),
    _unary("log1p", -0.5, 3, "log(1 + x)"),
    _unary("log2", 0.3, 3, "logarithm to base 2"),
    _unary("log10", 0.3, 3, "logarithm to base 10"),
    _unary("sqrt", 0.3, 3, "square root"),
    _unary("cbrt", 0.3, 3, "cube root"),
    _unary("sin", -2, 2, "sine"),
    _unary("cos", -2, 2, "cosine"),
    _unary("tan", -1, 1, "tangent"),
    _unary("asin", -0.8, 0.8, "arc sine"),
    _unary("acos", -0.8, 0.8, "arc cosine"),
    _unary("atan", -2, 2, "arc tangent"),
    _unary("sinh", -2, 2, "hyperbolic sine"),
    _unary("cosh", -2, 2, "hyperbolic cosine"),
    _unary("tanh", -2, 2, "hyperbolic tangent"),
    _unary("sech2", -2, 2, "1 / cosh(x) ** 2 without overflow: the slope of tanh"),
    _unary("asinh", -2, 2, "inverse hyperbolic sine"),
    _unary("acosh", 1.2, 3, "inverse hyperbolic cosine"),
    _unary("atanh", -0.8, 0.8, "inverse hyperbolic tangent"),
    _unary("erf", -2, 2, "error function"),
    _unary("erfc", -2, 2, "1 - erf(x)"),
    _unary("lgamma", 0.4, 4, "log |Gamma(x)|"),
    _unary("digamma", 0.4, 4, "derivative of lgamma"),
    OpSpec(
        "polygamma", 1, "float", "same", domain=((0.4, 4),), attrs=("order",),
        doc="order-th derivative of digamma, order >= 1",
    ),
    _unary("sigmoid", -3, 3, "1 / (1 + exp(-x))"),
    _unary("sigmoid_tail", 0.2, 3, "sigmoid(-|x|) with the sign of x: has sigmoid and its slope at full precision"),
    _unary("from_sigmoid_tail", 0.1, 0.4, "sigmoid(x) out of sigmoid_tail(x)"),
    OpSpec(
        "from_tanh_tail", 2, "float", "same", domain=((0.1, 0.2), (0.6, 1.2)),
        doc="tanh(x) out of q = sigmoid_tail(2 * x), given as (q, x): 1 - 2|q| with the sign of q",
    ),
    _unary("softplus", -3, 3, "log(1 + exp(x)) without overflow"),
    OpSpec(
        "sinc", 1, "float", "same", domain=((-2, 2),), attrs=("order",),
        doc="order-th derivative of sin(x)/x (1 at 0), order >= 0",
    ),
    _unary("relu", 0.2, 2, "x where x > 0, else 0; NaN for NaN"),
    OpSpec("atan2", 2, "float", "same", domain=((0.3, 2), (0.3, 2)), doc="angle of (y, x) given as (y, x)"),
    OpSpec(
        "hypot", 2, "float", "same", domain=((0.3, 2), (0.3, 2)), commutative=True,
        doc="sqrt(x*x + y*y) without overflow",
    ),
    OpSpec("logaddexp", 2, "float", "same", domain=((-2, 2), (-2, 2)), commutative=True, doc="log(exp(x) + exp(y))"),
    OpSpec("xlogy", 2, "float", "same", domain=((0.3, 2), (0.3, 2)), doc="x * log(y), 0 where x is 0"),
    OpSpec("eq", 2, "any", "bool", commutative=True, doc="x == y"),
    OpSpec("ne", 2, "any", "bool", commutative=True, doc="x != y"),
    OpSpec("lt", 2, "number", "bool", doc="x < y"),
    OpSpec("le", 2, "number", "bool", doc="x <= y"),
    OpSpec("gt", 2, "number", "bool", doc="x > y"),
    OpSpec("ge", 2, "number", "bool", doc="x >= y"),
    OpSpec("and", 2, "bool", "same", commutative=True, doc="both (no short circuit: that is `if`)"),
    OpSpec("or", 2, "bool", "same", commutative=True, doc="either"),
    OpSpec("not", 1, "bool", "same", doc="negation"),
    OpSpec(
        "select", 3, "any", "same",
        doc="select(c: bool, x, y): x if c else y, scalars; the other side contributes nothing",
    ),
    OpSpec(
        "cast", 1, "any", "same", attrs=("to",),
        doc="conversion; float to i64 truncates (saturating, NaN gives 0), to bool is != 0",
    ),
]

_STRUCTURED = [
    OpSpec("stop_gradient", 1, "any", "", doc="identity with derivative zero"),
    OpSpec("undef", 0, "any", "", attrs=("type",), doc="a value nobody reads"),
    OpSpec("dim", 1, "any", "", attrs=("axis",), doc="size along an axis"),
    OpSpec("read", None, "any", "", doc="element of an array"),
    OpSpec("update", None, "any", "", doc="array with one element replaced"),
    OpSpec("insert", None, "any", "", doc="array with a block replaced"),
    OpSpec("reshape", None, "any", "", doc="same elements in another shape"),
    OpSpec("shaped", None, "any", "", doc="array with its sizes named"),
    OpSpec("argsort", 1, "any", "", doc="stable sorting permutation"),
    OpSpec("par", None, "any", "", regions=1, attrs=("rank", "kinds"), doc="independent iterations"),
    OpSpec("for", None, "any", "", regions=1, attrs=("carries", "kinds"), doc="counted sequential loop"),
    OpSpec("while", None, "any", "", regions=2, attrs=("carries", "kinds"), doc="conditional sequential loop"),
    OpSpec("if", 1, "any", "", regions=2, doc="branch"),
    OpSpec("withacc", None, "any", "", regions=1, doc="accumulators"),
    OpSpec("accum", None, "any", "", pure=False, doc="add to an accumulator"),
    OpSpec("check", None, "any", "", pure=False, attrs=("kind", "message"), doc="run-time check"),
    OpSpec("call", None, "any", "", attrs=("callee",), doc="call of a function"),
    OpSpec("yield", None, "any", "", pure=False, doc="end of a region"),
    OpSpec("vjp", None, "any", "", attrs=("callee", "wrt", "value"), doc="reverse derivative, expanded by a pass"),
    OpSpec("jvp", None, "any", "", attrs=("callee", "wrt", "value"), doc="forward derivative, expanded by a pass"),
    OpSpec("record_make", None, "any", "", attrs=("record",), doc="pack residuals"),
    OpSpec("record_unpack", 1, "any", "", doc="unpack residuals"),
]

OPS: dict[str, OpSpec] = {spec.name: spec for spec in _SCALAR + _STRUCTURED}
SCALAR_OPS: dict[str, OpSpec] = {spec.name: spec for spec in _SCALAR}

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


def scalar_result(name: str, operand_types: list[Type], attrs: dict) -> Type:
    """Result type of a scalar operation."""
    spec = SCALAR_OPS[name]
    if name == "const":
        return attrs["type"]
    if name == "cast":
        return attrs["to"]
    if spec.result == "bool":
        return BOOL
    return operand_types[1] if name == "select" else operand_types[0]


def reduction_result(kind: str, value_type: Type) -> Type:
    """Result type of a `par` reduction of values of this type."""
    return I64 if kind in ("argmax", "argmin") else value_type


def map_result(value_type: Type, lead: tuple[int | None, ...]) -> Type:
    """Type of a map result: leading sizes, then those of the yielded value."""
    element = element_of(value_type)
    assert not isinstance(value_type, Acc)
    return array_type(element, lead + dims_of(value_type))


def same_kind(a: Type, b: Type) -> bool:
    """Equal up to which sizes are known statically (a known size that differs is a difference)."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (Scalar, Record)):
        return a == b
    assert isinstance(a, (Array, Acc)) and isinstance(b, (Array, Acc))
    if a.element != b.element or len(a.dims) != len(b.dims):
        return False
    return all(x is None or y is None or x == y for x, y in zip(a.dims, b.dims, strict=True))
