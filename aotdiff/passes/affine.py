"""Linear forms over i64 values, and a small prover of `form >= 0`.

A form is a sum of integer multiples of values ("atoms") and a constant, as mathematical integers: an operation is
taken apart only where it cannot wrap around (see `Prover.bits`). What is known of an atom (a loop index is at least 0
and below its extent, a size is at least 0, a `minimum` is at most its operands ...) and the conditions known to hold
are lower and upper bounds, again forms; the prover replaces atoms by bounds, the ones defined last first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aotdiff.ir.graph import Value
from aotdiff.ir.types import BOOL, I64
from aotdiff.passes.facts import ArgOwners, constant

SIZE_BITS = 48  # more elements than any memory holds
_DEPTH = 6
_TRIES = 60


@dataclass(slots=True)
class Form:
    """`const + sum of factor * atom`."""

    const: int = 0
    terms: dict[Value, int] = field(default_factory=dict)

    def plus(self, other: Form, factor: int = 1) -> Form:
        terms = dict(self.terms)
        for atom, k in other.terms.items():
            total = terms.get(atom, 0) + factor * k
            if total:
                terms[atom] = total
            else:
                del terms[atom]
        return Form(self.const + factor * other.const, terms)

    def shifted(self, by: int) -> Form:
        return Form(self.const + by, self.terms)

    def replaced(self, atom: Value, by: Form) -> Form:
        """The form with a bound in place of an atom."""
        factor = self.terms[atom]
        rest = Form(self.const, {a: k for a, k in self.terms.items() if a is not atom})
        return rest.plus(by, factor)

    def __sub__(self, other: Form) -> Form:
        return self.plus(other, -1)


class Prover:
    """Knows the loops around (`owners`), the order of definitions, and conditions that hold (`facts`)."""

    def __init__(self, owners: ArgOwners):
        self.owners = owners
        self.order: dict[Value, int] = {}
        self.facts: dict[Value, list[Form]] = {}  # forms >= 0 by the atoms in them
        self.forms: dict[Value, Form] = {}
        self.width: dict[Value, int] = {}
        self.tries = 0

    # Forms -------------------------------------------------------------------------------------------------

    def form(self, value: Value) -> Form:
        """The form of an i64 value."""
        found = self.forms.get(value)
        if found is None:
            found = self.forms[value] = self._form(value)
        return found

    def _form(self, value: Value) -> Form:
        number = constant(value)
        if number is not None:
            return Form(number)
        op = value.op
        if op is None or self.bits(value) > 62:
            return Form(0, {value: 1})
        if op.name in ("add", "sub"):
            return self.form(op.operands[0]).plus(self.form(op.operands[1]), 1 if op.name == "add" else -1)
        if op.name == "neg":
            return Form().plus(self.form(op.operands[0]), -1)
        if op.name == "mul":
            for x, y in (op.operands, op.operands[::-1]):
                factor = constant(y)
                if factor is not None:
                    return Form().plus(self.form(x), factor) if factor else Form()
        return Form(0, {value: 1})

    def bits(self, value: Value) -> int:
        """An upper bound of log2 of the absolute value, 64 where nothing is known; above 62 an operation may wrap."""
        found = self.width.get(value)
        if found is None:
            found = self.width[value] = self._bits(value)
        return found

    def _bits(self, value: Value) -> int:
        op = value.op
        if op is None:
            return SIZE_BITS if self.owners.op_of(value) is not None and self._is_index(value) else 64
        if op.name == "const":
            return abs(op.attrs["value"]).bit_length()
        if op.name == "dim" or (op.name == "while" and value.type == I64):
            return SIZE_BITS
        if op.name == "cast" and op.operands[0].type == BOOL:
            return 1
        if value.type != I64 or op.name not in _BITS:
            return 64
        return min(64, _BITS[op.name]([self.bits(v) for v in op.operands if v.type == I64]))

    def _is_index(self, value: Value) -> bool:
        parent = self.owners.op_of(value)
        return parent is not None and (parent.name == "par" or (parent.name in ("for", "while") and value.index == 0))

    # Facts -------------------------------------------------------------------------------------------------

    def know(self, form: Form) -> list[Value]:
        """From here on `form >= 0`; gives the atoms it was noted for, for `forget`."""
        for atom in form.terms:
            self.facts.setdefault(atom, []).append(form)
        return list(form.terms)

    def forget(self, atoms: list[Value]) -> None:
        for atom in atoms:
            self.facts[atom].pop()

    # Proving -----------------------------------------------------------------------------------------------

    def nonnegative(self, form: Form) -> bool:
        """Whether `form >= 0` follows."""
        self.tries = _TRIES
        return self._prove(form, _DEPTH)

    def _prove(self, form: Form, depth: int) -> bool:
        if not form.terms:
            return form.const >= 0
        if depth == 0 or self.tries <= 0:
            return False
        self.tries -= 1
        atom = max(form.terms, key=lambda a: self.order.get(a, -1))
        below = form.terms[atom] > 0
        for bound in self._bounds(atom, below):
            if self._prove(form.replaced(atom, bound), depth - 1):
                return True
        return self._prove_both(form, atom, below, depth)

    def _prove_both(self, form: Form, atom: Value, below: bool, depth: int) -> bool:
        """A minimum is at least what both its operands are at least; likewise for others with two cases."""
        op = atom.op
        if op is None or op.name not in ("minimum", "maximum", "select"):
            return False
        if op.name == ("maximum" if below else "minimum"):
            return False  # one operand is enough, and was tried
        return all(self._prove(form.replaced(atom, self.form(v)), depth - 1) for v in op.operands if v.type == I64)

    def _bounds(self, atom: Value, below: bool) -> Iterator[Form]:
        """Lower (or upper) bounds of an atom in terms of others."""
        yield from self._from_facts(atom, below)
        op = atom.op
        if op is None:
            yield from self._index_bounds(atom, below)
        elif op.name in ("dim", "while"):
            if below:
                yield Form()
        elif op.name == "cast":
            yield Form(0 if below else 1) if op.operands[0].type == BOOL else Form(0, {atom: 1})
        elif op.name == ("maximum" if below else "minimum"):
            yield from (self.form(v) for v in op.operands)
        elif op.name == "mod":
            if self._positive(op.operands[1]):
                yield Form() if below else self.form(op.operands[1]).shifted(-1)
        elif op.name == "floordiv" and self._positive(op.operands[1]) and self._prove(self.form(op.operands[0]), 2):
            yield Form() if below else self.form(op.operands[0])
        elif op.name == "mul" and below and all(self._prove(self.form(v), 2) for v in op.operands):
            yield Form()

    def _positive(self, value: Value) -> bool:
        return self._prove(self.form(value).shifted(-1), 2)

    def _from_facts(self, atom: Value, below: bool) -> Iterator[Form]:
        """`factor * atom + rest >= 0` bounds the atom by `-rest` where the factor is 1 or -1."""
        for fact in reversed(self.facts.get(atom, ())):
            factor = fact.terms.get(atom, 0)
            if factor == (1 if below else -1):
                rest = Form(fact.const, {a: k for a, k in fact.terms.items() if a is not atom})
                yield Form().plus(rest, -factor)

    def _index_bounds(self, atom: Value, below: bool) -> Iterator[Form]:
        parent = self.owners.op_of(atom)
        if parent is None or not self._is_index(atom):
            return
        if below:
            yield Form()
            return
        if parent.name == "while":
            return
        extent = parent.operands[atom.index if parent.name == "par" else 0]
        yield self.form(extent).shifted(-1)
        op = extent.op
        if op is not None and op.name == "maximum":
            # Something runs, so the extent is positive: it is the operand that can be.
            for x, y in (op.operands, op.operands[::-1]):
                if (constant(y) or 0) <= 0 and constant(y) is not None:
                    yield self.form(x).shifted(-1)


_BITS = {
    "add": lambda bits: max(bits) + 1,
    "sub": lambda bits: max(bits) + 1,
    "neg": max,
    "mul": sum,
    "minimum": max,
    "maximum": max,
    "select": max,
    "mod": lambda bits: bits[1],
    "floordiv": lambda bits: bits[0],
    "clamp": max,
    "abs": max,
}
