"""Integer arithmetic while lowering: sizes, indices, and what can be proved about them.

`Integers` writes i64 operations into the outermost open region where their operands exist, each once, so that
sizes and index offsets are shared and stand outside of loops. It keeps every integer as a polynomial over atoms
(sizes, indices, anything else), which decides whether two sizes are equal and whether an index needs a check.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aotdiff.ir.builder import Builder, static_size
from aotdiff.ir.graph import Loc, Op, Region, Value
from aotdiff.ir.types import I64, Array, Type

Poly = dict[tuple[int, ...], int]  # sorted atom numbers -> coefficient; () is the constant term

_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_MOST_FACTS = 40  # older facts are not tried: proofs must stay cheap


class Emitter(Builder):
    """A builder that notes in which region each value is defined."""

    __slots__ = ("home",)

    def __init__(self, region: Region, loc: Loc | None, home: dict[Value, Region]):
        super().__init__(region, loc)
        self.home = home

    def emit(self, name, operands, types, attrs=None, regions=None) -> Op:  # type: ignore[override]
        op = super().emit(name, operands, types, attrs, regions)
        for value in op.results:
            self.home[value] = self.region
        return op


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


class Integers:
    """The open regions of one function, its integer values, and the facts known at this point."""

    def __init__(self, body: Region, loc: Loc | None):
        self.home: dict[Value, Region] = {}
        self.stack: list[Emitter] = [Emitter(body, loc, self.home)]
        self.depths: dict[Region, int] = {body: 0}
        self.atoms: list[Value] = []
        self.numbers: dict[Value, int] = {}
        self.polys: dict[Value, Poly] = {}
        self.made: dict[tuple, Value] = {}
        self.never_negative: set[int] = set()
        self.ranges: dict[int, tuple[Poly, Poly]] = {}  # atom -> (least, one more than the most)
        self.quotients: dict[int, tuple[int, Poly]] = {}  # atom x // c -> c, x; for c > 0
        self.clipped: dict[int, Poly] = {}  # atom maximum(0, p) -> p
        self.choices: dict[int, list[tuple[Poly, list[Poly]]]] = {}  # atom -> its values by branch, with their facts
        self.facts: list[Poly] = []  # each is >= 0

    # Regions ---------------------------------------------------------------------------------------------

    @property
    def b(self) -> Emitter:
        """The builder of the innermost open region."""
        return self.stack[-1]

    @contextmanager
    def region(self, types: list[Type], names: list[str]) -> Iterator[Region]:
        """Open a region; the caller ends it with `yield` (also after it is closed)."""
        region = Region([Value(t, n) for t, n in zip(types, names, strict=True)])
        known = len(self.facts)
        self.depths[region] = len(self.stack)
        self.stack.append(Emitter(region, self.b.loc, self.home))
        try:
            yield region
        finally:
            self.stack.pop()
            del self.depths[region]
            del self.facts[known:]

    @contextmanager
    def outermost(self) -> Iterator[None]:
        """Write into the function's own region for a while."""
        inner = self.stack[1:]
        closed = [e.region for e in inner]
        del self.stack[1:]
        depths = {r: self.depths.pop(r) for r in closed}
        try:
            yield
        finally:
            self.stack.extend(inner)
            self.depths.update(depths)

    def depth(self, value: Value) -> int | None:
        """Which open region defines the value; None if it is not visible here."""
        owner = value.owner
        region = owner if isinstance(owner, Region) else self.home.get(value)
        return None if region is None else self.depths.get(region)

    def visible(self, value: Value) -> bool:
        return self.depth(value) is not None

    def _make(self, key: tuple, name: str, operands: list[Value], attrs: dict | None = None) -> Value:
        """The operation's value, written once where all its operands exist."""
        known = self.made.get(key)
        if known is not None and self.visible(known):
            return known
        depth = 0
        for operand in operands:
            level = self.depth(operand)
            assert level is not None, f"{operand!r} is not visible here"
            depth = max(depth, level)
        builder = self.stack[depth]
        saved, builder.loc = builder.loc, self.b.loc
        value = builder.emit(name, operands, [I64], attrs).result
        builder.loc = saved
        self.made[key] = value
        return value

    # Values ----------------------------------------------------------------------------------------------

    def const(self, value: int) -> Value:
        return self._make(("const", value), "const", [], {"value": value, "type": I64})

    def add(self, a: Value, b: Value) -> Value:
        x, y = static_size(a), static_size(b)
        if x is not None and y is not None:
            return self.const(_wrap(x + y))
        if x == 0:
            return b
        if y == 0:
            return a
        return self._make(("add", a, b), "add", [a, b])

    def sub(self, a: Value, b: Value) -> Value:
        x, y = static_size(a), static_size(b)
        if x is not None and y is not None:
            return self.const(_wrap(x - y))
        if y == 0:
            return a
        if a is b:
            return self.const(0)
        return self._make(("sub", a, b), "sub", [a, b])

    def mul(self, a: Value, b: Value) -> Value:
        x, y = static_size(a), static_size(b)
        if x is not None and y is not None:
            return self.const(_wrap(x * y))
        if x == 1 or y == 0:
            return b
        if y == 1 or x == 0:
            return a
        return self._make(("mul", a, b), "mul", [a, b])

    def neg(self, a: Value) -> Value:
        x = static_size(a)
        return self.const(_wrap(-x)) if x is not None else self._make(("neg", a), "neg", [a])

    def divide(self, name: str, a: Value, b: Value) -> Value:
        """`floordiv` or `mod`; the divisor is known not to be 0 here, and the operation stays here if it varies."""
        x, y = static_size(a), static_size(b)
        if x is not None and y and not (y == -1 or abs(x) >= 2**62):
            return self.const(x // y if name == "floordiv" else x % y)
        if name == "floordiv" and y == 1:
            return a
        value = self._make((name, a, b), name, [a, b]) if y else self.b.scalar(name, a, b)
        self._note_quotient(name, value, a, b)
        return value

    def _note_quotient(self, name: str, value: Value, a: Value, b: Value) -> None:
        atom = self.atom(value)
        divisor = self.poly(b)
        size = fixed(divisor)
        if name == "floordiv" and size is not None and size > 0:
            self.quotients[atom] = (size, self.poly(a))
        if atom in self.ranges or not self.nonneg(combine(divisor, {(): -1})):
            return
        if name == "mod":
            self.ranges[atom] = ({}, divisor)
        elif self.nonneg(self.poly(a)):
            self.ranges[atom] = ({}, combine(self.poly(a), {(): 1}))

    def at_least_zero(self, a: Value) -> Value:
        """maximum(0, a), or a itself where it is never negative."""
        x = static_size(a)
        if x is not None:
            return a if x >= 0 else self.const(0)
        if self.nonneg(self.poly(a)):
            return a
        value = self._make(("clip", a), "maximum", [a, self.const(0)])
        atom = self.atom(value)
        self.never_negative.add(atom)
        self.clipped[atom] = self.poly(a)
        return value

    def dim(self, array: Value, axis: int) -> Value:
        assert isinstance(array.type, Array)
        known = array.type.dims[axis]
        if known is not None:
            return self.const(known)
        value = self._make(("dim", array, axis), "dim", [array], {"axis": axis})
        if value not in self.numbers:
            self.never_negative.add(self.atom(value))
        return value

    # Polynomials -----------------------------------------------------------------------------------------

    def atom(self, value: Value) -> int:
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.atoms)
            self.atoms.append(value)
        return number

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

    def emit(self, p: Poly) -> Value:
        """A value with this polynomial, written in its simplest form."""
        total: Value | None = None
        terms = sorted(p.items(), key=lambda item: (not item[0], item[1] < 0, item[0]))
        for monomial, c in terms:
            term = self.const(abs(c) if monomial else c)
            if monomial:
                factors = [self.atoms[a] for a in monomial]
                term = factors[0] if abs(c) == 1 else self.mul(term, factors[0])
                for factor in factors[1:]:
                    term = self.mul(term, factor)
            if total is None:
                total = self.neg(term) if monomial and c < 0 else term
            elif not monomial and c < 0:
                total = self.sub(total, self.const(-c))
            else:
                total = self.sub(total, term) if monomial and c < 0 else self.add(total, term)
        return self.const(0) if total is None else total

    def difference(self, a: Value, b: Value) -> Value:
        """a - b, simplified."""
        return self.emit(combine(self.poly(a), self.poly(b), -1))

    # Proofs ----------------------------------------------------------------------------------------------

    def assume(self, p: Poly) -> None:
        """p >= 0 from here to the end of the region."""
        if fixed(p) is None:
            self.facts.append(p)

    def assume_equal(self, a: Value, b: Value) -> None:
        p = combine(self.poly(a), self.poly(b), -1)
        self.assume(p)
        self.assume(combine({}, p, -1))

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
            p = combine(self.poly(op.operands[0]), self.poly(op.operands[1]), -1)
            self._assume_comparison(op.name if holds else _OPPOSITE[op.name], p)

    def _assume_shortcut(self, op: Op, holds: bool) -> None:
        """`a and b`, `a or b` written as a branch: the side taken only if `a` holds, or not."""
        sides = [region.yielded[0].op for region in op.regions]
        side = 1 if holds else 0
        known = sides[side]
        if known is not None and known.name == "const" and known.attrs["value"] is not holds:
            self.assume_condition(op.operands[0], holds)

    def _assume_comparison(self, name: str, p: Poly) -> None:
        """p compared with 0."""
        minus = combine({}, p, -1)
        if name in ("ge", "eq"):
            self.assume(p)
        if name in ("le", "eq"):
            self.assume(minus)
        if name == "gt":
            self.assume(combine(p, {(): -1}))
        if name == "lt":
            self.assume(combine(minus, {(): -1}))
        if name == "ne":
            for side in (p, minus):
                if self.nonneg(side):
                    self.assume(combine(side, {(): -1}))

    def choose(self, value: Value, choices: list[tuple[Poly, list[Poly]]]) -> None:
        """An integer that a branch chose, with what is known on each side."""
        atom = self.atom(value)
        self.choices[atom] = choices
        if all(self._under(facts, p) for p, facts in choices):
            self.never_negative.add(atom)

    def _under(self, facts: list[Poly], p: Poly) -> bool:
        """p >= 0, given more facts."""
        known = len(self.facts)
        self.facts.extend(facts)
        found = self.nonneg(p)
        del self.facts[known:]
        return found

    def bound(self, index: Value, low: Poly, high: Poly) -> None:
        """low <= index < high wherever the index exists; so something lies between."""
        self.ranges[self.atom(index)] = (low, high)
        self.assume(combine(combine(high, low, -1), {(): -1}))

    def equal(self, a: Value, b: Value) -> bool:
        """Whether two values are known to be equal."""
        if a is b:
            return True
        p = combine(self.poly(a), self.poly(b), -1)
        if not p:
            return True
        if fixed(p) is not None:
            return False
        p = self._unclip(p)
        return not p or (self.nonneg(p) and self.nonneg(combine({}, p, -1)))

    def _unclip(self, p: Poly) -> Poly:
        for atom in {a for m in p for a in m if a in self.clipped}:
            inner = self.clipped[atom]
            if self.nonneg(inner):
                p = _substitute(p, atom, inner) or {}
        return p

    def nonneg(self, p: Poly) -> bool:
        """Whether p >= 0 is known."""
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
        for value, facts in self.choices[chosen]:
            replaced = _substitute(p, chosen, value)
            if replaced is None or not self._under(facts, replaced):
                return False
        return True

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
            if atom not in self.ranges:
                return False
            sign = self._sign(p, atom)
            if sign == 0:
                return False
            low, high = self.ranges[atom]
            replaced = _substitute(p, atom, low if sign > 0 else combine(high, {(): -1}))
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
            if len(others) != len(monomial) - 1 or not all(self._natural(a) for a in others):
                return 0
            s = 1 if c > 0 else -1
            if sign not in (0, s):
                return 0
            sign = s
        return sign

    def _natural(self, atom: int) -> bool:
        """Never negative, as a size or an index from 0 on."""
        if atom in self.never_negative:
            return True
        low = fixed(self.ranges[atom][0]) if atom in self.ranges else None
        return low is not None and low >= 0


def _substitute(p: Poly, atom: int, value: Poly) -> Poly | None:
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


def _wrap(value: int) -> int:
    """Two's complement, 64 bits."""
    return (value + 2**63) % 2**64 - 2**63
