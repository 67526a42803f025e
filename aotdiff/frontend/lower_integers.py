"""Integer arithmetic while lowering: sizes and indices.

`Integers` writes i64 operations into the outermost open region where their operands exist, each once, so that sizes
and index offsets are shared and stand outside of loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aotdiff.frontend.lower_proofs import Facts, Poly, combine
from aotdiff.ir.builder import Builder, static_size
from aotdiff.ir.graph import Loc, Op, Region, Value
from aotdiff.ir.types import I64, Array, Type


class Emitter(Builder):
    """A builder that notes in which region each value is defined."""

    __slots__ = ("home",)

    def __init__(self, region: Region, loc: Loc | None, home: dict[Value, Region]):
        super().__init__(region, loc)
        self.home = home

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        types: Sequence[Type],
        attrs: dict | None = None,
        regions: list[Region] | None = None,
    ) -> Op:
        op = super().emit(name, operands, types, attrs, regions)
        for value in op.results:
            self.home[value] = self.region
        return op


class Integers(Facts):
    """The open regions of one function, and its integer values."""

    def __init__(self, body: Region, loc: Loc | None):
        super().__init__()
        self.home: dict[Value, Region] = {}
        self.stack: list[Emitter] = [Emitter(body, loc, self.home)]
        self.depths: dict[Region, int] = {body: 0}
        self.made: dict[tuple, Value] = {}

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
        self.note_quotient(name, value, a, b)
        return value

    def at_least_zero(self, a: Value) -> Value:
        """maximum(0, a), or a itself where it is never negative."""
        x = static_size(a)
        if x is not None:
            return a if x >= 0 else self.const(0)
        if self.natural(a):
            return a
        value = self._make(("clip", a), "maximum", [a, self.const(0)])
        atom = self.atom(value)
        self.never_negative.add(atom)
        self.clipped[atom] = a
        return value

    def dim(self, array: Value, axis: int) -> Value:
        assert isinstance(array.type, Array)
        known = array.type.dims[axis]
        if known is not None:
            return self.const(known)
        value = self._make(("dim", array, axis), "dim", [array], {"axis": axis})
        if value not in self.numbers:
            atom = self.atom(value)
            self.never_negative.add(atom)
            self.tame.add(atom)
        return value

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

    def length(self, low: Value, high: Value) -> Value:
        """high - low; not positive where low >= high, and where the difference does not fit."""
        if static_size(low) == 0 or (self.is_tame(self.poly(low)) and self.is_tame(self.poly(high))):
            return self.difference(high, low)
        forward = self.b.scalar("gt", high, low)
        return self.b.select(forward, self.sub(high, low), self.const(0))


def _wrap(value: int) -> int:
    """Two's complement, 64 bits."""
    return (value + 2**63) % 2**64 - 2**63
