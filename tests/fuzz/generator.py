"""Random well-typed programs as source text.

`program(seed)` gives a `Program`: functions with loops in loops, exits, in-place updates, data-dependent branches and
indices, closures, helpers, recursion, derivative forms and rules. Values stay bounded, so that differences make sense.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz import statements, templates
from tests.fuzz.tree import Node

LITERALS = ["0.3", "0.7", "1.2", "0.05", "2.0", "1.0", "0.5", "(-1.3)", "(-0.4)"]
_PLACE = re.compile(r"<([^<>=;+ ]+(?: [^<>;]*)?(?:; [^<>]*)?)>|\$(\w)")
_ARRAY = re.compile(r"(\w)\[(.*)\]")


@dataclass(slots=True)
class Scope:
    """What an expression may use: variables with types, index variables with bounds, sizes; what may be assigned."""

    types: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, str] = field(default_factory=dict)
    sizes: tuple[str, ...] = ("n", "m")
    mutable: set[str] = field(default_factory=set)
    loop: bool = False
    leave: str | None = None  # the type of the function's result where `return` may stand

    def inner(self, pure: bool = False) -> Scope:
        """A scope inside; `pure`: of an expression, where nothing around may be assigned."""
        mutable: set[str] = set() if pure else set(self.mutable)
        leave = None if pure else self.leave
        return Scope(dict(self.types), dict(self.bounds), self.sizes, mutable, self.loop and not pure, leave)

    def names(self, kind: str) -> list[str]:
        return [name for name, found in self.types.items() if found == kind]


@dataclass(frozen=True, slots=True)
class Helper:
    """A function that others may call; `call` has the argument types, functions as text templates."""

    name: str
    arguments: tuple[tuple[str, str], ...]  # name, type
    result: str
    smooth: bool = True  # may be handed to a derivative form


@dataclass(slots=True)
class Program:
    """The tree, the element type, and whether `f` gives a scalar."""

    tree: Node
    element: str
    result: str
    forms: int

    def text(self) -> str:
        return self.tree.text()


class Generator:
    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.element = self.random.choice(["f64"] * 5 + ["f32"] + ["real"] * 2)
        self.count = 0
        self.budget = 0
        self.forms = 0
        self.forms_left = self.random.choice([0, 0, 1, 1, 2])
        self.stops = self.random.random() < 0.1  # differences do not know of `stop_gradient`
        self.helpers: list[Helper] = []

    # Expressions ---------------------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def weighted(self, table: list[tuple[float, Any]]) -> Any:
        return self.random.choices([item for _, item in table], [weight for weight, _ in table])[0]

    def expr(self, kind: str, scope: Scope, depth: int) -> Node:
        """An expression of a type, of some depth at most."""
        self.budget -= 1
        for _ in range(4 if depth > 0 and self.budget > 0 else 0):
            template = self.weighted(self.table(kind, scope))
            sizes = self.sizes_of(kind, template, scope)
            if sizes is not None:
                self.note(template)
                return self.fill(kind, template, scope, depth - 1, sizes)
        return Node(kind, [self.leaf(kind, scope)])

    def note(self, template: str) -> None:
        if any(form in template for form in ("grad(", "jvp(", "vjp(", "hessian(", "hvp(", "jacobian(")):
            self.forms_left -= 1
            self.forms += 1

    def table(self, kind: str, scope: Scope) -> list[tuple[float, str]]:
        """The templates for a type, calls of helpers among them."""
        base, forms = _TABLES["f[,]" if "," in kind else "f[]" if "[" in kind else kind]
        table = base + statements.calls(self.helpers, kind, scope, self.forms_left > 0)
        return table + [(weight * 4, text) for weight, text in forms] if self.forms_left > 0 else table

    def sizes_of(self, kind: str, template: str, scope: Scope) -> dict[str, str] | None:
        """Sizes for `$D`, `$E`, `$F`; None where the template cannot be used here."""
        found = dict(zip("DE", dims(kind)))
        for letter in "DEF":
            if f"${letter}" in template and letter not in found:
                if not scope.sizes:
                    return None
                found[letter] = self.random.choice(scope.sizes)
        for wanted in re.findall(r"<name ([^<>]*)>", template):
            if not scope.names(put(wanted, found)):
                return None
        if ("idx[" in template and "idx" not in scope.types) or ("stop_gradient" in template and not self.stops):
            return None
        return found

    def fill(self, kind: str, template: str, scope: Scope, depth: int, names: dict[str, str]) -> Node:
        """A template with every placeholder filled."""
        names = dict(names)
        parts: list[Any] = []
        position = 0
        for match in _PLACE.finditer(template):
            parts.append(self.plain(template[position : match.start()]))
            position = match.end()
            if match[2]:
                parts.append(self.name(match[2], names))
            else:
                parts.append(self.placeholder(match[1], scope, depth, names))
        parts.append(self.plain(template[position:]))
        return Node(kind, parts)

    def plain(self, text: str) -> str:
        return re.sub(r"(?<!\.)\bT\b", self.element, text)

    def name(self, letter: str, names: dict[str, str]) -> str:
        if letter not in names:
            names[letter] = self.fresh(letter)
        return names[letter]

    def placeholder(self, text: str, scope: Scope, depth: int, names: dict[str, str]) -> Any:
        head, *extra = [part.strip() for part in text.split(";")]
        if head.startswith("pick "):
            return self.random.choice(head.split()[1:])
        if head.startswith("name "):
            return self.random.choice(scope.names(put(head[5:], names)))
        if head.startswith("ix "):
            return self.index(put(head[3:], names), scope, depth)
        inner = scope.inner(pure=True)
        for part in extra:
            if "=" in part:
                name, kind = part.split("=")
                inner.types[self.name(name[1:], names)] = put(kind, names)
            else:
                name, bound = part.split(":")
                inner.types[self.name(name[1:], names)] = "i"
                inner.bounds[self.name(name[1:], names)] = put(bound, names)
        return self.expr(put(head, names), inner, depth)

    def index(self, size: str, scope: Scope, depth: int) -> Node:
        """An index that is in range wherever the size is not 0."""
        choices = [name for name, bound in scope.bounds.items() if bound == size] * 3 + ["0", f"{size} - 1"]
        if depth > 0 and self.random.random() < 0.35:
            return Node("ix", ["(", self.expr("i", scope, depth - 1), f") % {size}"])
        if size == "n" and "idx" in scope.types:
            choices += [f"idx[{name}]" for name, bound in scope.bounds.items() if bound == "m"] * 2
        return Node("ix", [self.random.choice(choices)])

    def leaf(self, kind: str, scope: Scope) -> str:
        """A variable or a literal."""
        names = scope.names(kind)
        if names and self.random.random() < 0.85:
            return self.random.choice(names[-4:] if self.random.random() < 0.6 else names)
        if kind == "i":
            return self.random.choice("0123")
        if kind == "b":
            return self.random.choice(["true", "false"])
        if kind == "f":
            return self.element_of_array(scope) or self.random.choice(LITERALS)
        return self.array(kind, scope)

    def array(self, kind: str, scope: Scope) -> str:
        """An array where no variable has the type."""
        vectors = [scope.names(f"f[{size}]") for size in dims(kind)]
        if len(vectors) == 2 and all(vectors) and self.random.random() < 0.8:
            return f"outer({self.random.choice(vectors[0])}, {self.random.choice(vectors[1])})"
        value = self.random.choice(scope.names("f") or [f"{self.element}({self.random.choice(LITERALS)})"])
        return f"full({value}, {', '.join(dims(kind))})"

    def element_of_array(self, scope: Scope) -> str | None:
        """`x[i]` for an array in sight, most of the time."""
        found = []
        for name, kind in scope.types.items():
            if kind.startswith("f["):
                indices = [[v for v, bound in scope.bounds.items() if bound == size] for size in dims(kind)]
                if all(indices):
                    found.append(f"{name}[{', '.join(self.random.choice(choice) for choice in indices)}]")
        return self.random.choice(found) if found and self.random.random() < 0.8 else None


_TABLES: dict[str, tuple[list, list]] = {
    "f": (templates.SCALAR, templates.FORMS),
    "f[]": (templates.VECTOR, templates.VECTOR_FORMS),
    "f[,]": (templates.MATRIX, templates.MATRIX_FORMS),
    "i": (templates.INTEGER, []),
    "b": (templates.BOOLEAN, []),
}


def dims(kind: str) -> list[str]:
    """`["n", "m"]` of "f[n,m]"."""
    match = _ARRAY.fullmatch(kind)
    return match[2].split(",") if match else []


def put(text: str, names: dict[str, str]) -> str:
    """Sizes put in for their letters."""
    return re.sub(r"\$(\w)", lambda match: names.get(match[1], match[0]), text)


def program(seed: str) -> Program:
    """The program of a seed: always the same."""
    generator = Generator(seed)
    tree, result = statements.Writer(generator).program()
    return Program(tree, generator.element, result, generator.forms)
