"""Random statements and functions; see `generator`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.fuzz import templates
from tests.fuzz.tree import Node

if TYPE_CHECKING:
    from tests.fuzz.generator import Generator, Helper, Scope

KINDS = ["f"] * 5 + ["f[n]", "f[m]", "f[n]", "f[n,m]", "f[n,n]", "f[m,n]", "i", "b"]

# Functions with rules of their own: the rule is the true derivative.
RULES = [
    """fn ruled(a: T, b: T) -> T = sin(a * b) + b**2
fn ruled_rule(a: T, b: T, ct: T) -> (T, T) = (ct * b * cos(a * b), ct * (a * cos(a * b) + 2.0 * b))
derivative vjp ruled = ruled_rule
""",
    """fn ruled(a: T, b: T) -> T {
var y = a
for k in 0..3 { y = sin(y + b)
 }
y
}
fn ruled_rule(a: T, b: T, da: T, db: T) -> T {
var y = a
var dy = da
for k in 0..3 { dy = cos(y + b) * (dy + db)
 y = sin(y + b)
 }
dy
}
derivative jvp ruled = ruled_rule
""",
]  # fmt: skip


def calls(helpers: list[Helper], kind: str, scope: Scope, forms: bool) -> list[tuple[float, str]]:
    """Templates of calls that give a type, derivatives of helpers among them."""
    found: list[tuple[float, str]] = []
    for helper in helpers:
        arguments = ", ".join(f"<{t}>" if t[0] != "<" else t[1:-1] for _, t in helper.arguments)
        if any(size not in scope.sizes for size in "nm" if any(size in t for _, t in helper.arguments)):
            continue
        if helper.result == kind:
            found.append((6, f"{helper.name}({arguments})"))
        if not (forms and helper.smooth and helper.result == "f"):
            continue
        first = next(name for name, type_ in helper.arguments if type_[0] == "f")
        for name, type_ in helper.arguments:
            wrt = "" if name == first else f", wrt = {name}"
            if type_ == kind and kind[0] == "f":
                found.append((4, f"grad({helper.name}{wrt})({arguments})"))
                if helper.name != "g":
                    found.append((2, f"value_and_grad({helper.name}, wrt = ({name},))({arguments}).1.0"))
                found.append((1, f"vjp({helper.name}{wrt})({arguments}, <f>)"))
                found.append((1, f"hvp({helper.name}{wrt})({arguments}, <{type_}>)"))
            if kind == "f" and type_[0] == "f":
                found.append((2, f"jvp({helper.name}{wrt})({arguments}, <{type_}>)"))
    return found


class Writer:
    """Writes functions with the expressions of a generator."""

    def __init__(self, generator: Generator) -> None:
        self.g = generator
        self.random = generator.random

    # Statements ----------------------------------------------------------------------------------------------

    def statement(self, scope: Scope, depth: int) -> Node:
        g = self.g
        table: list[tuple[float, Any]] = [(4, self.assign), (2, self.let), (1.5, self.var), (0.5, self.several)]
        if depth > 0:
            table += [(5, self.loop), (1.5, self.loop_while), (2.5, self.branch), (1, self.loop_over)]
        if scope.loop:
            table += [(0.8, self.leave_loop)]
        if scope.leave:
            table += [(0.4, self.leave_function)]
        table += [(0.2, self.check)]
        return g.weighted(table)(scope, depth)

    def block(self, scope: Scope, depth: int, count: int | None = None) -> Node:
        """Statements in braces; what is declared inside is not seen outside."""
        inner = scope.inner()
        statements = [self.statement(inner, depth) for _ in range(count or self.random.choice([1, 1, 2, 2, 3]))]
        return Node("block", ["{\n", *statements, "}"])

    def let(self, scope: Scope, depth: int) -> Node:
        kind = self.random.choice([k for k in KINDS if fits(k, scope)])
        name = self.g.fresh("t")
        value = self.g.expr(kind, scope, 3)
        scope.types[name] = kind
        return Node("stmt", [f"let {name}{self.annotation(kind)} = ", value, "\n"])

    def var(self, scope: Scope, depth: int) -> Node:
        kind = self.random.choice([k for k in KINDS if fits(k, scope)])
        name = self.g.fresh("v")
        value = self.g.expr(kind, scope, 2)
        scope.types[name] = kind
        scope.mutable.add(name)
        return Node("stmt", [f"var {name}{self.annotation(kind)} = ", value, "\n"])

    def annotation(self, kind: str) -> str:
        return f": {self.type(kind)}" if self.random.random() < 0.5 else ""

    def type(self, kind: str) -> str:
        element = {"f": self.g.element, "i": "i64", "b": "bool"}[kind[0]]
        return element + kind[1:].replace(",", ", ")

    def assign(self, scope: Scope, depth: int) -> Node:
        """An assignment to a variable or to a part of it."""
        names = [name for name in scope.types if name in scope.mutable]
        if not names:
            return self.var(scope, depth)
        name = self.random.choice(names)
        kind = scope.types[name]
        shape = kind.split("[")[0] + ("[,]" if "," in kind else "[]" if "[" in kind else "")
        template = self.g.weighted(templates.ASSIGN[shape])
        sizes = self.g.sizes_of(kind, template, scope)
        if sizes is None:
            return self.let(scope, depth)
        return Node("stmt", [self.g.fill("stmt", template, scope, 2, {**sizes, "v": name}), "\n"])

    def several(self, scope: Scope, depth: int) -> Node:
        """Two variables at once, or a tuple taken apart."""
        names = [name for name in scope.mutable if scope.types[name] == "f"]
        first, second = self.g.expr("f", scope, 2), self.g.expr("f", scope, 2)
        if len(names) > 1 and self.random.random() < 0.6:
            p, q = self.random.sample(sorted(names), 2)
            return Node("stmt", [f"({p}, {q}) = (sin(", first, "), tanh(", second, "))\n"])
        p, q = self.g.fresh("t"), self.g.fresh("t")
        vector = self.g.expr("f[n]", scope, 2) if fits("f[n]", scope) else self.g.expr("f", scope, 1)
        scope.types |= {p: "f", q: vector.kind}
        return Node("stmt", [f"let ({p}, {q}) = (", first, ", ", vector, ")\n"])

    # Control -------------------------------------------------------------------------------------------------

    def loop(self, scope: Scope, depth: int) -> Node:
        name = self.g.fresh("i")
        size = self.random.choice(scope.sizes) if scope.sizes else "3"
        ranges: list[tuple[float, tuple[str, str | None]]] = [
            (4, (f"0..{size}", size)),
            (3, (f"0..{self.random.choice('234')}", None)),
            (1, (f"{size}-1..-1 step -1", size)),
            (1, (f"1..{size}", size)),
            (1, (f"0..{size} step 2", size)),
            (2, ("0..(<i>) % 4", None)),
            (1, ("k..k + 2", None)) if "k" in scope.types else (1, ("2..0", None)),
        ]
        text, bound = self.g.weighted(ranges)
        inner = scope.inner()
        inner.loop = True
        header: list[Any] = [f"for {name} in ", self.g.fill("range", text, scope, 1, {}), " "]
        inner.types[name] = "i"
        if bound is not None:
            inner.bounds[name] = bound
        if self.random.random() < 0.12:
            header.insert(0, f"@checkpoint(segments = {self.random.choice('123')}) ")
        return Node("stmt", [*header, self.block(inner, depth - 1), "\n"])

    def loop_over(self, scope: Scope, depth: int) -> Node:
        """A loop over the elements or rows of an array."""
        kind = self.random.choice([k for k in KINDS if "[" in k and fits(k, scope)] or ["f"])
        if kind == "f":
            return self.loop(scope, depth)
        array, name = self.g.expr(kind, scope, 1), self.g.fresh("e")
        inner = scope.inner()
        inner.loop = True
        inner.types[name] = "f[" + kind.split(",")[1] if "," in kind else "f"
        return Node("stmt", [f"for {name} in ", array, " ", self.block(inner, depth - 1), "\n"])

    def loop_while(self, scope: Scope, depth: int) -> Node:
        """A loop that data ends, after six rounds at most."""
        count, value = self.g.fresh("c"), self.g.fresh("w")
        start = Node("stmt", [f"var {value} = ", self.g.expr("f", scope, 2), "\n"])
        inner = scope.inner()
        inner.types[value] = "f"
        inner.mutable.add(value)
        inner.loop = False  # `continue` before the count is raised would not end
        condition = Node("b", ["abs(", self.g.expr("f", inner, 1), ") > 0.1137"])
        step = self.g.fill("stmt", "$v = 0.7 * $v + 0.2 * sin(<f>)", inner, 1, {"v": value})
        body = [self.statement(inner, depth - 1) for _ in range(self.random.choice([0, 1, 2]))]
        body = [s for s in body if "break" not in s.text() and "continue" not in s.text()]
        loop = ["while ", f"{count} < {self.random.choice('246')} and ", condition, " {\n", *body, step, "\n"]
        whole = [f"var {count} = 0\n", start, *loop, f"{count} += 1\n", "}\n"]
        scope.types[value] = "f"
        scope.mutable.add(value)
        return Node("stmt", whole)

    def branch(self, scope: Scope, depth: int) -> Node:
        parts: list[Any] = ["if ", self.g.expr("b", scope, 2), " ", self.block(scope, depth - 1)]
        if self.random.random() < 0.6:
            parts += [" else ", self.block(scope, depth - 1)]
        return Node("stmt", [*parts, "\n"])

    def leave_loop(self, scope: Scope, depth: int) -> Node:
        word = self.random.choice(["break", "continue"])
        return Node("stmt", ["if ", self.g.expr("b", scope, 2), f" {{ {word}\n }}\n"])

    def leave_function(self, scope: Scope, depth: int) -> Node:
        assert scope.leave is not None
        value = self.g.expr(scope.leave, scope, 2)
        return Node("stmt", ["if ", self.g.expr("b", scope, 1), " { return ", value, "\n }\n"])

    def check(self, scope: Scope, depth: int) -> Node:
        return Node("stmt", ["assert ", self.g.expr("i", scope, 1), ' < 1000, "too large"\n'])

    # Functions -----------------------------------------------------------------------------------------------

    def body(self, scope: Scope, result: str, length: int, depth: int) -> list[Any]:
        statements = [self.statement(scope, depth) for _ in range(length)]
        value: list[Any] = [self.g.expr(result, scope, 3)]
        if result == "f":
            for name, kind in scope.types.items():
                if kind == "f" and self.random.random() < 0.7:
                    value += [" + ", Node("f", [f"0.3 * {name}"])]
                elif kind.startswith("f[") and self.random.random() < 0.5:
                    value += [" + ", Node("f", [f"0.2 * sum({name})"])]
        return [*statements, Node(result, value), "\n"]

    def helper(self) -> Node:
        """A function of its own, perhaps one that takes a function or calls itself."""
        return self.random.choice([self.ordinary, self.ordinary, self.ordinary, self.taking, self.recursive])()

    def scope(self, arguments: tuple[tuple[str, str], ...], result: str | None) -> Scope:
        from tests.fuzz.generator import Scope

        types = {name: kind for name, kind in arguments if kind[0] != "<"}
        sizes = tuple(size for size in "nm" if any(size in kind[1:] for kind in types.values()))
        return Scope(types, {}, sizes, leave=result)

    def func(self, name: str, arguments: str, result: str, body: list[Any]) -> Node:
        return Node("func", [f"fn {name}({arguments}) -> {self.type(result)} {{\n", *body, "}\n"])

    def declared(self, arguments: tuple[tuple[str, str], ...]) -> str:
        return ", ".join(f"{name}: {self.type(kind)}" for name, kind in arguments)

    def ordinary(self) -> Node:
        from tests.fuzz.generator import Helper

        name = self.g.fresh("h")
        kinds = self.random.choice([("f",), ("f", "f"), ("f[n]",), ("f", "f[n]"), ("f[n]", "f[m]"), ("f", "f[n,m]")])
        arguments = tuple((f"{name}_{k}", kind) for k, kind in enumerate(kinds))
        result = self.random.choice(["f", "f", "f[n]"]) if any("n" in kind for kind in kinds) else "f"
        self.g.budget = 30
        body = self.body(self.scope(arguments, result), result, self.random.choice([0, 1, 2, 3]), 1)
        self.g.helpers.append(Helper(name, arguments, result))
        return self.func(name, self.declared(arguments), result, body)

    def taking(self) -> Node:
        """A function with a function for a parameter, called in a loop; handed a lambda or a name."""
        from tests.fuzz.generator import Helper

        name, handed = self.g.fresh("h"), self.random.choice(["|$t| <f; $t=f>", "|$t| { <f; $t=f> }", "sin", "tanh"])
        inner = Helper("g", (("a", "f"),), "f")
        kept, self.g.helpers = self.g.helpers, [*self.g.helpers, inner, inner]
        self.g.budget = 25
        arguments = ((f"{name}_0", "f"),)
        body = self.body(self.scope(arguments, "f"), "f", self.random.choice([1, 2]), 1)
        self.g.helpers = [*kept, Helper(name, (("g", f"<{handed}>"), *arguments), "f", smooth=False)]
        declared = f"g: fn({self.g.element}) -> {self.g.element}, {self.declared(arguments)}"
        return self.func(name, declared, "f", body)

    def recursive(self) -> Node:
        from tests.fuzz.generator import Helper

        name = self.g.fresh("r")
        arguments = ((f"{name}_0", "f"),)
        scope = self.scope(arguments, "f")
        self.g.budget = 20
        stop, step = self.g.expr("f", scope, 2), self.g.expr("f", scope, 2)
        rest = Node("f", [f"{name}(sin(", step, f"), {name}_n - 1)"])
        after = self.g.fill("f", "(<f> * $r + 0.5 * cos($r))", scope, 1, {"r": "rest"})
        body = [f"if {name}_n <= 0 {{ return ", stop, "\n }\n", "let rest = ", rest, "\n", after, "\n"]
        self.g.helpers.append(Helper(name, (*arguments, (f"{name}_n", "<(<i>) % 4>")), "f"))
        return self.func(name, f"{self.declared(arguments)}, {name}_n: i64", "f", body)

    def program(self) -> tuple[Node, str]:
        """All functions, `f` last, and its result's type."""
        from tests.fuzz.generator import Helper

        parts: list[Any] = []
        if self.random.random() < 0.15:
            parts.append(Node("func", [self.g.plain(self.random.choice(RULES))]))
            self.g.helpers.append(Helper("ruled", (("a", "f"), ("b", "f")), "f"))
        parts += [self.helper() for _ in range(self.random.choice([0, 0, 1, 1, 2]))]
        arguments = (("x", "f[n]"), ("s", "f"), ("a", "f[n,m]"), ("k", "i"), ("idx", "i[m]"))
        result = self.random.choice(["f"] * 4 + ["f[n]"])
        self.g.budget = self.random.choice([30, 60, 90])
        body = self.body(self.scope(arguments, result), result, self.random.choice([1, 2, 3, 4, 5]), 2)
        parts.append(self.func("f", self.declared(arguments), result, body))
        return Node("program", parts), result


def fits(kind: str, scope: Scope) -> bool:
    """Whether the sizes of a type are in sight."""
    return all(size in scope.sizes for size in "nm" if size in kind[1:])
