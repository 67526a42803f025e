"""Symbolic array sizes: integer polynomials over size names, with three-valued equality.

A size is a normalised polynomial with integer coefficients over atoms. An atom is a `Symbol` (one binding of a
size name or of a fixed i64 value; two bindings of one name are two symbols) or an opaque `Quotient`. `UNKNOWN`
stands for a size nobody can tell at compile time; it equals nothing, not even itself.

These sizes serve to find shapes that cannot fit before anything runs. They describe what a size is wherever
the program gets that far without an error (`0..n-1` has size `n-1`, also where n is 0), so they say nothing
about which run-time checks may be dropped.
"""

from __future__ import annotations

from math import gcd


class Symbol:
    """One binding of a name that stands for an integer; compared by identity.

    `kind` is "size" (bound by a parameter's type), "parameter" (an i64 parameter), "index" (of a loop or
    generator) or "local" (a `let` in a body).
    """

    __slots__ = ("kind", "name", "serial")
    made = 0  # how many symbols there are; a later one has a higher `serial`

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.serial = Symbol.made = Symbol.made + 1

    def __repr__(self) -> str:
        return self.name


class Quotient:
    """`left // right` or `left % right`, where it does not simplify."""

    __slots__ = ("_hash", "left", "op", "right")

    def __init__(self, op: str, left: Size, right: Size) -> None:
        self.op = op
        self.left = left
        self.right = right
        self._hash = hash((op, left, right))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Quotient) or self._hash != other._hash:
            return False
        return self.op == other.op and self.left == other.left and self.right == other.right

    def __repr__(self) -> str:
        return f"{_grouped(self.left)}{self.op}{_grouped(self.right)}"


Atom = Symbol | Quotient
Monomial = frozenset  # of (atom, power)
_ONE: Monomial = frozenset()
_MOST_TERMS = 64  # a larger polynomial is given up as UNKNOWN


class Size:
    """A polynomial, or UNKNOWN where `terms` is None. `text` is how the source spelt it, for messages only."""

    __slots__ = ("_hash", "terms", "text")

    def __init__(self, terms: dict[Monomial, int] | None, text: str | None = None) -> None:
        self.terms = terms
        self.text = text
        self._hash: int | None = None

    @property
    def known(self) -> bool:
        return self.terms is not None

    @property
    def constant(self) -> int | None:
        """The value, where it is a number."""
        if self.terms is None or len(self.terms) > 1:
            return None
        if not self.terms:
            return 0
        return self.terms.get(_ONE)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms is not None and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = 0 if self.terms is None else hash(frozenset(self.terms.items()))
        return self._hash

    def __add__(self, other: Size) -> Size:
        if self.terms is None or other.terms is None:
            return UNKNOWN
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            _put(terms, monomial, coefficient)
        return _made(terms)

    def __neg__(self) -> Size:
        if self.terms is None:
            return UNKNOWN
        return Size({monomial: -coefficient for monomial, coefficient in self.terms.items()})

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __mul__(self, other: Size) -> Size:
        if self.terms is None or other.terms is None:
            return UNKNOWN
        if len(self.terms) * len(other.terms) > 4 * _MOST_TERMS:
            return UNKNOWN
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                _put(terms, _product(left, right), a * b)
        return _made(terms)

    def __floordiv__(self, other: Size) -> Size:
        return _quotient("//", self, other)

    def __mod__(self, other: Size) -> Size:
        return _quotient("%", self, other)

    def with_text(self, text: str) -> Size:
        """The same size, printed as the source spelt it."""
        return Size(self.terms, text)

    def symbols(self) -> set[Symbol]:
        """Every symbol it mentions, inside quotients too."""
        found: set[Symbol] = set()
        for monomial in self.terms or ():
            for atom, _ in monomial:
                if isinstance(atom, Symbol):
                    found.add(atom)
                else:
                    found |= atom.left.symbols() | atom.right.symbols()
        return found

    def substitute(self, values: dict[Symbol, Size]) -> Size:
        """The size with symbols replaced; UNKNOWN where a replacement is."""
        if self.terms is None or not values or not (self.symbols() & values.keys()):
            return self
        total = ZERO
        for monomial, coefficient in self.terms.items():
            term = number(coefficient)
            for atom, power in monomial:
                factor = _substituted(atom, values)
                for _ in range(power):
                    term = term * factor
            total = total + term
        return total

    def lower_bound(self) -> int | None:
        """The least value it can have, symbols being sizes (never negative); None where that is not clear."""
        if self.terms is None:
            return None
        least = 0
        for monomial, coefficient in self.terms.items():
            if not monomial:
                least += coefficient
            elif coefficient < 0 or not all(_never_negative(atom) for atom, _ in monomial):
                return None
        return least

    def __repr__(self) -> str:
        return self.text if self.text is not None else _spelt(self)


def _made(terms: dict[Monomial, int]) -> Size:
    return Size(terms) if len(terms) <= _MOST_TERMS else UNKNOWN


def _put(terms: dict[Monomial, int], monomial: Monomial, coefficient: int) -> None:
    total = terms.get(monomial, 0) + coefficient
    if total:
        terms[monomial] = total
    else:
        terms.pop(monomial, None)


def _product(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return frozenset(powers.items())


def _substituted(atom: Atom, values: dict[Symbol, Size]) -> Size:
    if isinstance(atom, Symbol):
        return values.get(atom) or symbol_size(atom)
    left, right = atom.left.substitute(values), atom.right.substitute(values)
    return left // right if atom.op == "//" else left % right


def _never_negative(atom: Atom) -> bool:
    if isinstance(atom, Symbol):
        return atom.kind == "size"
    return False


def _quotient(op: str, left: Size, right: Size) -> Size:
    """Floor division or remainder; terms the divisor divides come out exactly."""
    if left.terms is None or right.terms is None or right.constant == 0:
        return UNKNOWN
    divisor = right.constant
    if divisor is None:
        if left == right:
            return UNKNOWN  # 1 or 0, unless it is 0
        return Size({frozenset({(Quotient(op, left, right), 1)}): 1})
    outside = {monomial: c // divisor for monomial, c in left.terms.items() if c % divisor == 0}
    rest = Size({monomial: c for monomial, c in left.terms.items() if c % divisor})
    if rest.constant is not None:
        inner = number(rest.constant // divisor if op == "//" else rest.constant % divisor)
    else:
        inner = Size({frozenset({(Quotient(op, rest, right), 1)}): 1})
    return Size(outside) + inner if op == "//" else inner


def number(value: int) -> Size:
    return Size({_ONE: value} if value else {})


def symbol_size(symbol: Symbol) -> Size:
    return Size({frozenset({(symbol, 1)}): 1})


UNKNOWN = Size(None)
ZERO = number(0)
ONE = number(1)


def compare(left: Size, right: Size) -> bool | None:
    """True where the sizes are equal, False where they differ whatever the names stand for, else None."""
    if left.terms is None or right.terms is None:
        return None
    if left.terms == right.terms:
        return True
    difference = left - right
    if difference.terms is None:
        return None
    constant = difference.terms.get(_ONE, 0)
    divisor = 0
    for monomial, coefficient in difference.terms.items():
        if monomial:
            divisor = gcd(divisor, coefficient)
    if not divisor:
        return False
    return False if constant % divisor else None


def join(left: Size, right: Size) -> Size:
    """The size of a value that has one of two sizes."""
    return left if compare(left, right) else UNKNOWN


def affine(size: Size, symbol: Symbol) -> tuple[Size, Size] | None:
    """`(coefficient, rest)` with `size == coefficient * symbol + rest`; None where it is not of that form."""
    if size.terms is None:
        return None
    coefficient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, value in size.terms.items():
        if (symbol, 1) in monomial:
            reduced = monomial - {(symbol, 1)}
            coefficient[reduced] = value
        else:
            rest[monomial] = value
    parts = Size(coefficient), Size(rest)
    if not coefficient or symbol in parts[0].symbols() or symbol in parts[1].symbols():
        return None
    return parts


def divide_exactly(size: Size, divisor: Size) -> Size | None:
    """`size / divisor` where that is a size; UNKNOWN where nobody can tell; None where it never divides."""
    value = divisor.constant
    if size.terms is None or divisor.terms is None or value == 0:
        return UNKNOWN
    if size == divisor:
        return ONE
    if value is None:
        return UNKNOWN
    if all(coefficient % value == 0 for coefficient in size.terms.values()):
        return Size({monomial: coefficient // value for monomial, coefficient in size.terms.items()})
    others = [coefficient for monomial, coefficient in size.terms.items() if monomial]
    if all(coefficient % value == 0 for coefficient in others):
        return None
    return UNKNOWN


def _order(item: tuple[Monomial, int]) -> tuple[bool, int, str]:
    """What is added comes before what is taken away, high powers first."""
    return (item[1] < 0, -sum(power for _, power in item[0]), _monomial_text(item[0]))


def _monomial_text(monomial: Monomial) -> str:
    factors = sorted((repr(atom) if isinstance(atom, Symbol) else f"({atom!r})", power) for atom, power in monomial)
    return "*".join(text if power == 1 else "*".join([text] * power) for text, power in factors)


def _grouped(size: Size) -> str:
    text = _spelt(size)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _spelt(size: Size) -> str:
    if size.terms is None:
        return "?"
    out = ""
    for monomial, coefficient in sorted(size.terms.items(), key=_order):
        names = _monomial_text(monomial)
        amount = abs(coefficient)
        body = str(amount) if not names else names if amount == 1 else f"{amount}*{names}"
        if len(size.terms) == 1 and coefficient == 1 and len(monomial) == 1:
            ((atom, power),) = monomial
            body = repr(atom) if power == 1 else body
        sign = "-" if coefficient < 0 else "+"
        out += f"{sign}{body}" if out else (f"-{body}" if coefficient < 0 else body)
    return out or "0"
