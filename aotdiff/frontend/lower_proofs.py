"""What is known about integers: polynomials, facts, and the proofs that make run-time checks unnecessary.

Every i64 value is a polynomial over atoms, exact modulo 2**64, which decides whether two sizes are equal. Order needs
more care, as arithmetic wraps. See note: order.
"""

from __future__ import annotations

from aotdiff.ir.builder import static_size
from aotdiff.ir.graph import Op, Value
from aotdiff.ir.types import I64

Poly = dict[tuple[int, ...], int]  # sorted atom numbers -> coefficient; () is the constant term

_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_MOST_FACTS = 40  # older facts are not tried: proofs must stay cheap
_ONE: Poly = {(): 1}


def constant(value: int) -> Poly:
    return {(): value} if value else {}


def combine(a: Poly, b: Poly, factor: int = 1) -> Poly:
    """a + factor * b"""
    total = dict(a)
    for monomial, c in b.items():
        c = total.get(monomial, 0) + factor * c
        if c:
            total[monomial] = c
        else:
            total.pop(monomial, None)
    return total


def product(a: Poly, b: Poly) -> Poly:
    total: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            key = tuple(sorted(m + n))
            value = total.get(key, 0) + c * d
            if value:
                total[key] = value
            else:
                total.pop(key, None)
    return total


def fixed(p: Poly) -> int | None:
    """The value of a polynomial without atoms."""
    if not p:
        return 0
    return p.get(()) if len(p) == 1 else None


def substituted(p: Poly, atom: int, value: Poly) -> Poly | None:
    """p with an atom replaced; None where the atom does not occur to the first power only."""
    total: Poly = {}
    for monomial, c in p.items():
        if atom not in monomial:
            total = combine(total, {monomial: c})
            continue
        rest = tuple(a for a in monomial if a != atom)
        if len(rest) != len(monomial) - 1:
            return None
        total = combine(total, product({rest: c}, value))
    return total


class Facts:
    """Integers of one function as polynomials, and what is known about them at this point."""

    def __init__(self) -> None:
        self.atoms: list[Value] = []
        self.numbers: dict[Value, int] = {}
        self.polys: dict[Value, Poly] = {}
        self.tame: set[int] = set()  # atoms whose sums and products with one another cannot wrap
        self.never_negative: set[int] = set()
        self.ranges: dict[int, tuple[Poly, Poly]] = {}  # atom -> (least, one more than the most)
        self.quotients: dict[int, tuple[int, Poly]] = {}  # atom x // c -> c, x; for c > 0
        self.clipped: dict[int, Value] = {}  # atom maximum(0, x) -> x
        self.choices: dict[int, list[tuple[Poly, list[Poly]]]] = {}  # atom -> its values by branch, with their facts
        self.facts: list[Poly] = []  # each is >= 0; those of a region end with it

    # Polynomials -----------------------------------------------------------------------------------------

    def atom(self, value: Value) -> int:
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.atoms)
            self.atoms.append(value)
        return number

    def opaque(self, value: Value) -> int:
        """The number of a value that is an atom from now on, whatever it is made of."""
        self.polys.pop(value, None)
        return self.atom(value)

    def poly(self, value: Value) -> Poly:
        known = self.polys.get(value)
        if known is None:
            known = self.polys[value] = self._read(value)
        return known

    def _read(self, value: Value) -> Poly:
        op = value.op
        if op is None or value in self.numbers:
            return {(self.atom(value),): 1}
        if op.name == "const":
            return constant(op.attrs["value"])
        if op.name in ("add", "sub"):
            return combine(self.poly(op.operands[0]), self.poly(op.operands[1]), 1 if op.name == "add" else -1)
        if op.name == "neg":
            return combine({}, self.poly(op.operands[0]), -1)
        if op.name == "mul":
            a, b = self.poly(op.operands[0]), self.poly(op.operands[1])
            if len(a) * len(b) <= 16:
                return product(a, b)
        return {(self.atom(value),): 1}

    # Exactness ---------------------------------------------------------------------------------------------

    def exact(self, value: Value) -> bool:
        """Whether the value is that of its polynomial, so that no arithmetic in it can have wrapped."""
        p = self.poly(value)
        return (len(p) == 1 and all(len(m) <= 1 and c == 1 for m, c in p.items() if m)) or self.is_tame(p)

    def is_tame(self, p: Poly) -> bool:
        """Whether the polynomial is small beside 2**63."""
        for monomial, c in p.items():
            if len(monomial) > 3 or abs(c) > (2**20 if monomial else 2**60):
                return False
            if not all(a in self.tame or self._is_bounded(a) for a in monomial):
                return False
        return True

    def _is_bounded(self, atom: int) -> bool:
        """Whether facts say that an atom lies between tame numbers."""
        low = high = False
        for fact in self.facts[: -_MOST_FACTS - 1 : -1]:
            c = fact.get((atom,))
            if c in (1, -1) and all(a == atom or a in self.tame for m in fact for a in m):
                low, high = low or c == 1, high or c == -1
        return low and high

    def _settles(self, p: Poly) -> bool:
        """Whether a value of this polynomial that is found between tame numbers is that of the polynomial."""
        if self.is_tame(p):
            return True
        wild = [m for m in p if not all(a in self.tame for a in m)]
        return len(wild) == 1 and len(wild[0]) == 1 and p[wild[0]] in (1, -1) and self.is_tame(
            {m: c for m, c in p.items() if m not in wild}
        )

    # Facts -------------------------------------------------------------------------------------------------

    def assume_at_least(self, a: Value, b: Value, more: int = 0) -> None:
        """a >= b + more, by a comparison of the values."""
        if self.exact(a) and self.exact(b):
            self._assume(combine(combine(self.poly(a), self.poly(b), -1), _ONE, -more))

    def assume_within(self, value: Value, size: Value, inclusive: bool = False) -> None:
        """0 <= value < size (or <= size), by comparisons of the values."""
        p, top = self.poly(value), self.poly(size)
        if self.exact(size) and (self.exact(value) or (self.is_tame(top) and self._settles(p))):
            self._assume(p)
            self._assume(combine(combine(top, p, -1), _ONE, 0 if inclusive else -1))

    def assume_equal(self, a: Value, b: Value) -> None:
        """a == b, by a comparison of the values."""
        p, q = self.poly(a), self.poly(b)
        exact = self.exact(a) and self.exact(b)
        if exact or (self.is_tame(q) and self._settles(p)) or (self.is_tame(p) and self._settles(q)):
            self._assume(combine(p, q, -1))
            self._assume(combine(q, p, -1))

    def _assume(self, p: Poly) -> None:
        if fixed(p) is None:
            self.facts.append(p)

    def assume_condition(self, cond: Value, holds: bool) -> None:
        """What a condition on integers says, from here to the end of the region."""
        op = cond.op
        if op is None:
            return
        if op.name == "not":
            self.assume_condition(op.operands[0], not holds)
        elif op.name in ("and", "or"):
            if holds == (op.name == "and"):
                for part in op.operands:
                    self.assume_condition(part, holds)
        elif op.name == "if" and len(op.results) == 1:
            self._assume_shortcut(op, holds)
        elif op.name in _COMPARED and op.operands[0].type == I64:
            self._assume_comparison(op.name if holds else _OPPOSITE[op.name], *op.operands)

    def _assume_shortcut(self, op: Op, holds: bool) -> None:
        """`a and b`, `a or b` written as a branch: the side taken only if `a` holds, or not."""
        known = op.regions[1 if holds else 0].yielded[0].op
        if known is not None and known.name == "const" and known.attrs["value"] is not holds:
            self.assume_condition(op.operands[0], holds)

    def _assume_comparison(self, name: str, a: Value, b: Value) -> None:
        if name == "eq":
            self.assume_equal(a, b)
        elif name in ("ge", "gt"):
            self.assume_at_least(a, b, 1 if name == "gt" else 0)
        elif name in ("le", "lt"):
            self.assume_at_least(b, a, 1 if name == "lt" else 0)
        else:
            for x, y in ((a, b), (b, a)):
                if self.at_least(x, y):
                    self.assume_at_least(x, y, 1)

    def bound_index(self, index: Value, count: Value) -> None:
        """An index of a loop of `count` iterations: 0 <= index < count, and no loop gets far enough to wrap."""
        atom = self.atom(index)
        self.tame.add(atom)
        self.never_negative.add(atom)
        if self.exact(count):
            self.ranges[atom] = ({}, self.poly(count))
            self._assume(combine(self.poly(count), _ONE, -1))

    def bound_between(self, value: Value, low: Value, high: Value, more: int = 0) -> None:
        """low + more <= value < high + more, a value made of wild numbers in a way that cannot have wrapped."""
        atom = self.opaque(value)
        if self.exact(low) and self.exact(high):
            shift = constant(more)
            self.ranges[atom] = (combine(self.poly(low), shift), combine(self.poly(high), shift))

    def note_quotient(self, name: str, value: Value, a: Value, b: Value) -> None:
        """The range of `a // b` or `a % b`."""
        atom, divisor, size = self.atom(value), self.poly(b), static_size(b)
        if name == "floordiv":
            if size is not None and size > 0 and self.exact(a):
                self.quotients[atom] = (size, self.poly(a))
                if self.is_tame(self.poly(a)):
                    self.tame.add(atom)
            if self.natural(a) and self.positive(b) and self.exact(a):
                self.ranges.setdefault(atom, ({}, combine(self.poly(a), _ONE)))
        elif self.positive(b):
            self.never_negative.add(atom)
            self.ranges.setdefault(atom, ({}, divisor))
            if self.is_tame(divisor):
                self.tame.add(atom)

    def choose(self, value: Value, sides: list[tuple[Value, list[Poly]]]) -> None:
        """An integer that a branch chose, with what is known on each side."""
        atom = self.atom(value)
        natural = tame = True
        choices: list[tuple[Poly, list[Poly]]] = []
        for side, facts in sides:
            known = len(self.facts)
            self.facts.extend(facts)
            exact = self.exact(side)
            natural = natural and exact and self.natural(side)
            tame = tame and exact and self.is_tame(self.poly(side))
            del self.facts[known:]
            if not exact:
                return
            choices.append((self.poly(side), facts))
        self.choices[atom] = choices
        if natural:
            self.never_negative.add(atom)
        if tame:
            self.tame.add(atom)

    # Proofs ------------------------------------------------------------------------------------------------

    def at_least(self, a: Value, b: Value, more: int = 0) -> bool:
        """Whether a >= b + more is known."""
        p = combine(combine(self.poly(a), self.poly(b), -1), _ONE, -more)
        return self.exact(a) and self.exact(b) and self.nonneg(p)

    def natural(self, value: Value) -> bool:
        """Whether value >= 0 is known."""
        return self.exact(value) and self.nonneg(self.poly(value))

    def positive(self, value: Value) -> bool:
        """Whether value >= 1 is known."""
        return self.exact(value) and self.nonneg(combine(self.poly(value), _ONE, -1))

    def equal(self, a: Value, b: Value) -> bool:
        """Whether two values are known to be equal."""
        if a is b:
            return True
        p = combine(self.poly(a), self.poly(b), -1)
        if not p:
            return True
        if fixed(p) is not None or not (self.exact(a) and self.exact(b)):
            return False
        p = self._unclip(p)
        return not p or (self.nonneg(p) and self.nonneg(combine({}, p, -1)))

    def _unclip(self, p: Poly) -> Poly:
        for atom in {a for m in p for a in m if a in self.clipped}:
            inner = self.clipped[atom]
            if self.natural(inner):
                p = substituted(p, atom, self.poly(inner)) or {}
        return p

    def nonneg(self, p: Poly) -> bool:
        """Whether p >= 0 is known, p being what it is without wrapping."""
        value = fixed(p)
        if value is not None:
            return value >= 0
        if self._direct(p):
            return True
        atoms = {a for m in p for a in m}
        for fact in self.facts[: -_MOST_FACTS - 1 : -1]:
            if any(a in atoms for m in fact for a in m) and self._direct(combine(p, fact, -1)):
                return True
        chosen = max((a for a in atoms if a in self.choices), default=None)
        if chosen is None:
            return False
        for choice, facts in self.choices[chosen]:
            replaced = substituted(p, chosen, choice)
            if replaced is None or not self._under(facts, replaced):
                return False
        return True

    def _under(self, facts: list[Poly], p: Poly) -> bool:
        """p >= 0, given more facts."""
        known = len(self.facts)
        self.facts.extend(facts)
        found = self.nonneg(p)
        del self.facts[known:]
        return found

    def _direct(self, p: Poly) -> bool:
        """p >= 0 by replacing each bounded atom, innermost first, by its worst case."""
        for _ in range(8):
            bounded = [a for m in p for a in m if a in self.ranges or a in self.quotients]
            if not bounded:
                break
            atom = max(bounded)
            multiplied = self._without_quotient(p, atom)
            if multiplied is not None:
                p = multiplied
                continue
            sign = self._sign(p, atom)
            if sign == 0 or atom not in self.ranges:
                return False
            low, high = self.ranges[atom]
            replaced = substituted(p, atom, low if sign > 0 else combine(high, _ONE, -1))
            if replaced is None:
                return False
            p = replaced
        return all(c >= 0 and all(a in self.never_negative for a in m) for m, c in p.items())

    def _without_quotient(self, p: Poly, atom: int) -> Poly | None:
        """c * p at its least, where the atom is x // c and stands alone; None for other atoms."""
        if atom not in self.quotients or any(atom in m and len(m) > 1 for m in p):
            return None
        c, x = self.quotients[atom]
        amount = p[(atom,)]
        rest = {m: c * value for m, value in p.items() if m != (atom,)}
        return combine(rest, x if amount < 0 else combine(x, constant(c - 1), -1), amount)

    def _sign(self, p: Poly, atom: int) -> int:
        """The sign of the atom's coefficient; 0 where it is not clear."""
        sign = 0
        for monomial, c in p.items():
            if atom not in monomial:
                continue
            others = [a for a in monomial if a != atom]
            if len(others) != len(monomial) - 1 or not all(a in self.never_negative for a in others):
                return 0
            s = 1 if c > 0 else -1
            if sign not in (0, s):
                return 0
            sign = s
        return sign


# Note: order
# Facts and proofs of order are about integers that do not wrap; values do. A value is exact when it is an atom or a
# small polynomial of tame atoms (sizes of arrays, indices of loops, what lies between such): then it equals its
# polynomial. Comparisons give facts, and proofs replace checks, for exact values only. A value n + c of a wild n that
# is found between 0 and a size is exact too: had it wrapped, it would be negative or beyond every size.
