"""Reads the text that `ir.printer` writes.

`parse_module` gives a module whose printed text is the text it read (up to spacing, comments
`# ...`, and names that are used again once their region has ended).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from aotdiff.ir.graph import Func, Loc, Module, Op, Region, Value
from aotdiff.ir.types import Acc, Array, Record, Scalar, Type

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<symbol>@[\w.$-]+|@(?="))
  | (?P<value>%[\w.]+)
  | (?P<arrow>->)
  | (?P<number>-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf\b)|nan\b|inf\b)
  | (?P<word>[^\W\d][\w.$]*)
  | (?P<punct>[(){}\[\]<>:,=?])""",
    re.VERBOSE,
)
_SCALARS = ("f64", "f32", "i64", "bool")


class ParseError(Exception):
    """The text is not a graph; the message starts with the line and column."""


def parse_module(text: str) -> Module:
    """The module that the text describes; raises ParseError."""
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str):
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        self.at = 0
        self.values: dict[str, Value] = {}  # what is visible
        self.scope: list[str] = []  # names defined in the innermost region
        self._tokenize()

    # Tokens ------------------------------------------------------------------------------------------------

    def _tokenize(self) -> None:
        position = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            if match is None:
                raise self._error(f"unexpected {self.text[position]!r}", position)
            if match.lastgroup:
                self.tokens.append((match.lastgroup, match.group(), position))
            position = match.end()
        self.tokens.append(("end", "", len(self.text)))

    def _error(self, message: str, position: int | None = None) -> ParseError:
        position = self.tokens[self.at][2] if position is None else position
        line = self.text.count("\n", 0, position) + 1
        column = position - (self.text.rfind("\n", 0, position) + 1) + 1
        return ParseError(f"{line}:{column}: {message}")

    def kind(self) -> str:
        return self.tokens[self.at][0]

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][1]

    def take(self, kind: str) -> str:
        if self.kind() != kind:
            raise self._error(f"expected a {kind}, found {self.peek()!r}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def accept(self, text: str) -> bool:
        if self.kind() in ("string", "end") or self.peek() != text:
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self._error(f"expected {text!r}, found {self.peek()!r}")

    def list_of(self, item: Callable[[], Any], close: str) -> list:
        """Items separated by commas up to the closing token, which is taken."""
        items: list = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(item())
        return items

    # Module ------------------------------------------------------------------------------------------------

    def module(self) -> Module:
        module = Module()
        while self.kind() != "end":
            if self.accept("record"):
                name = self.symbol()
                self.expect("=")
                self.expect("(")
                module.records[name] = tuple(self.list_of(self.type, ")"))
            else:
                module.add(self.func())
        return module

    def func(self) -> Func:
        self.expect("func")
        self.values, self.scope = {}, []
        name = self.symbol()
        region = Region(self.args())
        self.expect("->")
        self.expect("(")
        types = self.list_of(self.type, ")")
        attrs = self.attributes() if self.accept("attributes") else {}
        loc = self.loc()
        self.expect("{")
        self.ops(region)
        return Func(name, region, types, attrs, loc)

    def symbol(self) -> str:
        symbol = self.take("symbol")[1:]
        return symbol or json.loads(self.take("string"))

    def args(self) -> list[Value]:
        self.expect("(")
        return self.list_of(self.arg, ")")

    def arg(self) -> Value:
        start = self.at
        name = self.take("value")
        self.expect(":")
        return self.define(name, Value(self.type()), start)

    def define(self, name: str, value: Value, at: int) -> Value:
        if name in self.values:
            raise self._error(f"{name} defined twice", self.tokens[at][2])
        value.name = "" if name[1:].isdigit() else name[1:]
        self.values[name] = value
        self.scope.append(name)
        return value

    def use(self) -> Value:
        name = self.take("value")
        if name not in self.values:
            self.at -= 1
            raise self._error(f"{name} is not defined")
        return self.values[name]

    # Operations --------------------------------------------------------------------------------------------

    def ops(self, region: Region) -> None:
        while not self.accept("}"):
            region.ops.append(self.op())

    def op(self) -> Op:
        start = self.at
        names = self.result_names()
        name = self.take("word")
        attrs: dict[str, Any] = {}
        if name == "const":
            attrs["value"] = self.attribute()
        if self.kind() == "symbol":
            attrs["callee"] = self.symbol()
        operands = self.operands()
        if self.peek() == "{" and self.tokens[self.at + 1][0] == "word" and self.peek(2) == "=":
            attrs |= self.attributes()
        types = self.result_types() if self.accept(":") else []
        if len(types) != len(names):
            self.at = start
            raise self._error(f"{len(names)} results and {len(types)} types")
        op = Op(name, operands, types, attrs, None, self.loc())
        self.regions(op)
        for result_name, result in zip(names, op.results, strict=True):
            self.define(result_name, result, start)
        self.implied(op)
        return op

    def result_names(self) -> list[str]:
        if self.kind() != "value":
            return []
        names = [self.take("value")]
        while self.accept(","):
            names.append(self.take("value"))
        self.expect("=")
        return names

    def operands(self) -> list[Value]:
        if self.kind() != "value" or self.peek(1) == "=":
            return []
        # `yield` without operands is followed by `}`; the next line's results end in `=`.
        end = self.at
        while self.tokens[end][0] == "value" and self.tokens[end + 1][1] == ",":
            end += 2
        if self.tokens[end + 1][1] == "=":
            return []
        operands = [self.use()]
        while self.accept(","):
            operands.append(self.use())
        return operands

    def result_types(self) -> list[Type]:
        types = [self.type()]
        while self.accept(","):
            types.append(self.type())
        return types

    def regions(self, op: Op) -> None:
        while self.peek() in ("{", "(") or (op.regions and self.peek() in ("else", "do", "and")):
            if op.regions:
                if self.kind() != "word":
                    return
                self.at += 1
            outer, self.scope = self.scope, []
            region = Region(self.args() if self.peek() == "(" else [])
            op.regions.append(region)
            self.expect("{")
            self.ops(region)
            for name in self.scope:
                del self.values[name]
            self.scope = outer

    def implied(self, op: Op) -> None:
        """Attributes that the text leaves out because the rest of the line says them."""
        if op.name in ("const", "undef"):
            op.attrs["type"] = op.results[0].type
            if op.name == "const" and op.results[0].type in (Scalar("f64"), Scalar("f32")):
                op.attrs["value"] = float(op.attrs["value"])
        elif op.name == "cast":
            op.attrs["to"] = op.results[0].type
        elif op.name == "par":
            op.attrs["rank"] = len(op.regions[0].args)
        elif op.name in ("for", "while"):
            op.attrs["carries"] = len(op.regions[-1].args) - 1

    # Pieces ------------------------------------------------------------------------------------------------

    def attributes(self) -> dict[str, Any]:
        self.expect("{")
        return dict(self.list_of(self.attribute_pair, "}"))

    def attribute_pair(self) -> tuple[str, Any]:
        name = self.take("word")
        self.expect("=")
        return name, self.attribute()

    def attribute(self) -> Any:
        if self.kind() == "string":
            return json.loads(self.take("string"))
        if self.kind() == "number":
            text = self.take("number")
            return float(text) if any(c in text for c in ".en") else int(text)
        if self.accept("["):
            return tuple(self.list_of(self.attribute, "]"))
        for word, value in (("true", True), ("false", False), ("none", None)):
            if self.accept(word):
                return value
        return self.type()

    def loc(self) -> Loc | None:
        if not self.accept("loc"):
            return None
        self.expect("(")
        path = json.loads(self.take("string"))
        self.expect(":")
        line = int(self.take("number"))
        self.expect(":")
        column = int(self.take("number"))
        self.expect(")")
        return Loc(path, line, column)

    def type(self) -> Type:
        word = self.take("word")
        if word == "acc":
            self.expect("<")
            inner = self.type()
            self.expect(">")
            if isinstance(inner, Array) and isinstance(inner.element, Scalar):
                return Acc(inner.element, inner.dims)
            assert isinstance(inner, Scalar)
            return Acc(inner, ())
        if word == "record":
            self.expect("<")
            element: Scalar | Record = Record(self.take("word"))
            self.expect(">")
        elif word in _SCALARS:
            element = Scalar(word)
        else:
            self.at -= 1
            raise self._error(f"expected a type, found {word!r}")
        return Array(element, tuple(self.list_of(self.size, "]"))) if self.accept("[") else element

    def size(self) -> int | None:
        return None if self.accept("?") else int(self.take("number"))
