"""Common mistakes, each a function from a failure to its explanation (or None), and words of other languages."""

from __future__ import annotations

from collections.abc import Callable

from aotdiff.frontend.diagnostics import Note
from aotdiff.frontend.failure import KEYWORDS, OPERANDS, UPDATES, WANTED, Explanation, Failure, described, open_tokens
from aotdiff.frontend.layout import ITEM_STARTS, OPERATORS
from aotdiff.frontend.lexing import end_span, stand_in
from aotdiff.frontend.transform import token_span

# Words of other languages: what to write here.
FOREIGN = {
    "def": "a function is written `fn name(x: f64) -> f64 { ... }`",
    "function": "a function is written `fn name(x: f64) -> f64 { ... }`",
    "func": "a function is written `fn name(x: f64) -> f64 { ... }`",
    "fun": "a function is written `fn name(x: f64) -> f64 { ... }`",
    "lambda": "a function without a name is written `|x| expression`",
    "elif": "`elif` is written `else if`",
    "elseif": "`elseif` is written `else if`",
    "elsif": "`elsif` is written `else if`",
    "mut": "a variable that changes is declared with `var`: `var s = 0.0`",
    "const": "a constant is written `let name = value`",
    "then": "a condition is followed by `{`: `if c { a } else { b }`",
    "do": "the body of a loop stands in `{ }`",
    "begin": "a block stands in `{ }`",
    "end": "a block ends with `}`",
    "until": "a loop is written `while not ... { }`",
    "loop": "an endless loop is written `while true { ... }`",
    "is": "values are compared with `==`",
    "from": 'a file is imported whole: `import "file.grad"`',
    "pass": "an empty block is written `{ }`",
    "del": "there is nothing to delete: values end with their block",
    "struct": "several values together are a tuple: `(a, b)`",
    "class": "several values together are a tuple: `(a, b)`",
    "double": "a declaration is written `let name: f64 = value`",
    "float": "a declaration is written `let name: f64 = value`",
    "int": "a declaration is written `let name: i64 = value`",
}


def bad_character(failure: Failure) -> Explanation | None:
    token = failure.token
    span = token_span(failure.path, token)
    if token.type == "OPEN_STRING":
        return Explanation(span, 'this text is never closed: `"` is missing (a text ends on its line)')
    if token.type != "BAD":
        return None
    hints = {
        "'": 'a text is written in double quotes: `"..."`',
        "“": 'a text is written in plain quotes: `"..."`',
        "”": 'a text is written in plain quotes: `"..."`',
        "?": "a choice is written `if c { a } else { b }`",
        "\\": "a statement goes on after an operator or a comma, and inside `(` and `[`",
        "√": "the square root is `sqrt(x)`",
        "∑": "a sum is written `sum(x[i] for i in 0..n)`",
        "∂": "a derivative is written `grad(f)(x)`",
        "&": "conditions are joined with `and`",
        "~": "a condition is negated with `not`",
    }
    char = token[0]
    shown = f"`{token}`" if token.isprintable() else f"U+{ord(char):04X}"
    notes: list[Note | str] = [hints[char]] if char in hints else []
    if len(token) > 1:
        return Explanation(span, f"{shown} cannot be part of a name", notes)
    return Explanation(span, f"the character {shown} has no meaning here", notes)


def foreign_word(failure: Failure) -> Explanation | None:
    """`def f`, `let mut x`, `elsif c`: a word of another language, then another word."""
    token, last = failure.token, failure.before()
    if last is not None and last in FOREIGN and last.type == "NAME" and token.type not in OPERATORS:
        if not (token.type in ("NL", "$END") or token.type in WANTED):
            return Explanation(token_span(failure.path, last), FOREIGN[str(last)])
    if token.type == "NAME" and token in FOREIGN:
        return Explanation(token_span(failure.path, token), FOREIGN[str(token)])
    return None


def equals_in_condition(failure: Failure) -> Explanation | None:
    token = failure.token
    if token.type != "EQUAL" or not failure.accepts("EQUAL_EQUAL"):
        return None
    span = token_span(failure.path, token)
    if failure.inside() in ("IF", "IF_STMT", "WHILE", "ASSERT"):
        return Explanation(span, "`=` assigns; values are compared with `==`", [], stand_in("EQUAL_EQUAL", "==", token))
    return Explanation(span, "`=` stands in the middle of an expression; values are compared with `==`")


def update_in_expression(failure: Failure) -> Explanation | None:
    token, last = failure.token, failure.before()
    span = token_span(failure.path, token)
    if token.type in UPDATES and failure.accepts("PLUS"):
        return Explanation(span, f"`{token}` is a statement of its own, not part of an expression")
    if token.type == "EQUAL" and last is not None and last.type in OPERATORS and last.end_pos == token.start_pos:
        return Explanation(span, f"there is no `{last}=`; write `a = a {last} ...`")
    return None


def increment(failure: Failure) -> Explanation | None:
    token, last = failure.token, failure.before()
    if token.type != "PLUS" or last is None or not failure.accepts("INT"):
        return None
    span = token_span(failure.path, token)
    if last.type == "PLUS":
        return Explanation(span, "`++` is no operator; to add one write `k += 1`")
    return Explanation(span, "found `+`, expected an expression; a number has no `+` before it")


def python_slice(failure: Failure) -> Explanation | None:
    if failure.token.type != "COLON" and failure.kind_before() != "COLON" or failure.brackets()[-1:] != ["LSQB"]:
        return None
    colon = failure.token if failure.token.type == "COLON" else failure.before()
    assert colon is not None
    span = token_span(failure.path, colon)
    return Explanation(span, "a slice is written with two points: `a[1..n]`, `a[1..]`, `a[..n]`")


def point_of_float(failure: Failure) -> Explanation | None:
    token, last = failure.token, failure.before()
    message = "a float has digits on both sides of its point"
    if token.type == "DOT" and (following := failure.after()) is not None and following.type == "INT":
        return Explanation(token_span(failure.path, token), message, [f"write `0.{following}`"])
    if last is not None and last.type == "DOT" and failure.kind_before(2) in ("INT", "FLOAT"):
        if token.type not in ("NAME", "INT"):
            number = failure.before(2)
            return Explanation(token_span(failure.path, last), message, [f"write `{number}.0`"])
    return None


def loop_head(failure: Failure) -> Explanation | None:
    token = failure.token
    if failure.inside() != "FOR" or failure.kind_before() not in ("FOR", "NAME"):
        return None
    span = token_span(failure.path, token)
    if token.type == "LPAR" and failure.kind_before() == "FOR":
        return Explanation(span, "a loop has one index and no parentheses: `for i in 0..n { }`")
    if token.type == "EQUAL":
        return Explanation(span, "a loop runs over a range or an array: `for i in 0..n { }`")
    return None


def checkpoint_head(failure: Failure) -> Explanation | None:
    if failure.kind_before(2) == "AT" and failure.accepts("LPAR") and not failure.accepts("PLUS"):
        last = failure.before()
        assert last is not None
        message = "checkpoint takes the number of segments: `@checkpoint(segments = 32) for ...`"
        return Explanation(token_span(failure.path, last), message)
    if failure.kind_before() == "RPAR" and failure.inside() == "AT":
        return Explanation(token_span(failure.path, failure.token), "`@checkpoint(...)` stands before a `for` loop")
    return None


def text_as_value(failure: Failure) -> Explanation | None:
    if failure.token.type == "STRING" and failure.accepts("INT"):
        span = token_span(failure.path, failure.token)
        return Explanation(span, 'a text is no value; it stands in `import "file.grad"` and `assert condition, "text"`')
    return None


def number_and_name(failure: Failure) -> Explanation | None:
    token, last = failure.token, failure.before()
    if last is None or last.type not in ("INT", "FLOAT") or last.end_pos != token.start_pos:
        return None
    if token.type not in ("NAME", "LPAR"):
        return None
    if last == "0" and token[0] in "xXbBoO":
        return Explanation(token_span(failure.path, token), "numbers are written in decimal digits")
    return Explanation(token_span(failure.path, token), f"multiplication is written out: `{last} * {token}`")


def range_points(failure: Failure) -> Explanation | None:
    token = failure.token
    if failure.kind_before() != "RANGE":
        return None
    message = "a range is written with two points and leaves its end out: `0..n`, `0..n+1`"
    if token.type in ("DOT", "RANGE", "EQUAL", "LESS"):
        return Explanation(token_span(failure.path, token), message)
    return None


def several_values(failure: Failure) -> Explanation | None:
    """`let a, b = t`, `a, b = t`, `return a, b`, `export f, g`: a comma outside brackets."""
    if failure.token.type != "COMMA" or failure.brackets():
        return None
    span, first = token_span(failure.path, failure.token), failure.tokens[0].type
    if first == "EXPORT":
        return Explanation(span, "an `export` names one function; the next one is a line of its own")
    if failure.inside() in ("LET", "VAR") and failure.accepts("EQUAL"):
        word = "let" if failure.inside() == "LET" else "var"
        return Explanation(span, f"several names stand in parentheses: `{word} (a, b) = ...`")
    if failure.inside() in ("FOR", "IN"):
        return Explanation(span, "a loop has one index: `for i in 0..n { for j in 0..m { } }`")
    if first == "TYPE" or failure.accepts("EQUAL") and failure.accepts("LBRACE"):
        return Explanation(span, "several types are a tuple and stand in parentheses: `(f64, f64)`")
    if not failure.accepts("PLUS") or failure.inside() not in ("RETURN", "EQUAL", "LBRACE", "LET", "VAR", "FN", ""):
        return None
    if failure.kind_before(2) in ("NL", "LBRACE") and _assigns(failure):
        note = "new names are declared: `let (a, b) = ...`"
        return Explanation(span, "several variables are assigned in parentheses: `(a, b) = ...`", [note])
    return Explanation(span, "several values are a tuple and stand in parentheses: `(a, b)`")


def _assigns(failure: Failure) -> bool:
    for token in failure.tokens[failure.position :]:
        if token.type in ("NL", "LBRACE", "RBRACE", "$END"):
            return False
        if token.type == "EQUAL":
            return True
    return False


def empty_sizes(failure: Failure) -> Explanation | None:
    """`x: f64[]`"""
    if failure.token.type == "RSQB" and failure.kind_before() == "LSQB":
        element = failure.before(2)
        if element is not None and element in ("f64", "f32", "i64", "bool", "real"):
            message = f"an array type has a size for each axis: `{element}[n]`, `{element}[n, m]`"
            return Explanation(token_span(failure.path, failure.token), message)
    return None


def reserved_word(failure: Failure) -> Explanation | None:
    token = failure.token
    if token.type not in KEYWORDS or not failure.accepts("NAME"):
        return None
    if failure.accepts("INT") and token.type not in ITEM_STARTS | {"IN", "LET", "VAR"}:
        return None
    if token.type in ("EXPORT", "IMPORT", "FN") and failure.kind_before() in ("NL", "LBRACE"):
        return None
    return Explanation(token_span(failure.path, token), f"`{token}` is a reserved word and cannot be a name here")


def nested_item(failure: Failure) -> Explanation | None:
    token = failure.token
    span = token_span(failure.path, token)
    if failure.kind_before() not in ("NL", "LBRACE", ""):
        return None
    if token.type == "FN":
        note = "a function without a name can: `let g = |y: f64| y * y`"
        return Explanation(span, "a function cannot be defined inside another one", [note])
    if token.type in ("EXPORT", "IMPORT", "TYPE", "DERIVATIVE"):
        return Explanation(span, f"`{token}` belongs at the top level of the file, outside functions")
    return None


def after_if_statement(failure: Failure) -> Explanation | None:
    """`if c { a } else { b } + 1.0`, or a bare `else`."""
    token = failure.token
    span = token_span(failure.path, token)
    if token.type == "ELSE":
        return Explanation(span, "this `else` has no `if` before it", consequence=True)
    if token.type in OPERATORS | {"DOT"} and failure.kind_before() == "RBRACE":
        values = failure.state.value_stack
        if "IF_STMT" in [values[i].type for i in open_tokens(values) if values[i].type in ("IF_STMT", "LBRACE")][-1:]:
            note = "put the `if` in parentheses to go on: `(if c { a } else { b }) + 1.0`"
            return Explanation(span, f"an `if` at the start of a statement ends at its brace; found `{token}`", [note])
    return None


def function_type(failure: Failure) -> Explanation | None:
    token = failure.token
    if failure.accepts("ARROW") and failure.kind_before() == "RPAR" and failure.inside() == "FN":
        if not (failure.tokens[0].type == "FN" and failure.accepts("LBRACE")):
            return Explanation(token_span(failure.path, token), "a function type names its result: `fn(f64) -> f64`")
    return None


def signature(failure: Failure) -> Explanation | None:
    """Slips in the head of a function: no parameter type, `:` for `->`, no body."""
    token, tokens = failure.token, failure.tokens
    if not tokens or tokens[0].type != "FN" or failure.inside() not in ("FN", ""):
        return None
    span = token_span(failure.path, token)
    if any(t.type in ("LBRACE", "EQUAL") for t in tokens[: failure.position]):
        return None
    if token.type in ("COMMA", "RPAR", "EQUAL") and failure.kind_before() == "NAME" and failure.accepts("COLON"):
        name = failure.before()
        assert name is not None
        message = f"parameter `{name}` needs its type, as in `{name}: f64` or `{name}: f64[n]`"
        return Explanation(token_span(failure.path, name), message)
    if token.type == "NAME" and failure.kind_before() == "NAME" and failure.accepts("COLON"):
        return Explanation(span, f"a parameter is its name, then its type: `{token}: {failure.before()}`")
    if token.type == "COLON" and failure.accepts("ARROW"):
        return Explanation(span, "the type of the result stands behind `->`: `fn f(x: f64) -> f64`")
    if token.type == "EQUAL" and failure.accepts("COMMA"):
        return Explanation(span, "a parameter has no default value")
    if token.type == "$END" and failure.accepts("LBRACE"):
        return Explanation(end_span(failure.path, tokens[-2]), "this function has no body: `{ ... }` or `= expression`")
    if token.type in ("LESS", "LSQB") and failure.kind_before() == "NAME" and failure.position == 2:
        return Explanation(span, "a function has no type parameters: sizes are bound by their use, `real` is any float")
    return None


def generator_slips(failure: Failure) -> Explanation | None:
    token = failure.token
    span = token_span(failure.path, token)
    inside = failure.inside()
    if token.type == "FOR" and inside == "IN" and failure.brackets():
        return Explanation(span, "the parts of a generator are separated by commas: `for i in 0..n, j in 0..m`")
    if token.type == "FOR" and failure.brackets()[-1:] == ["LPAR"]:
        note = "an array is built with `[... for i in 0..n]`"
        return Explanation(span, "a generator is the only argument of a reduction: `sum(x[i] for i in 0..n)`", [note])
    if token.type == "IF" and inside == "IF" and failure.brackets():
        return Explanation(span, "a generator has one condition; join two with `and`")
    if str(token) == "step" and inside == "IN":
        return Explanation(span, "`step` is for `for` statements; here compute the index: `x[2*i] for i in 0..n//2`")
    if token.type == "IF" and failure.accepts("FOR"):
        return Explanation(span, "the condition of a generator stands at its end: `sum(x[i] for i in 0..n if c)`")
    if token.type == "FOR" and failure.kind_before() in ("LPAR", "LSQB"):
        return Explanation(span, "the expression stands first: `[x[i] for i in 0..n]`, `sum(x[i] for i in 0..n)`")
    return None


def missing_value(failure: Failure) -> Explanation | None:
    """The statement ends where a value should be."""
    token, last = failure.token, failure.before()
    if last is None or token.type not in ("NL", "RBRACE", "$END", "RPAR", "RSQB", "COMMA"):
        return None
    place = end_span(failure.path, last)
    if last.type == "RETURN":
        return Explanation(place, "`return` needs a value")
    if token.type in ("NL", "RBRACE", "$END") and failure.accepts("EQUAL") and failure.inside() in ("LET", "VAR"):
        return Explanation(place, "this needs a value: `let name = value`, `var name = value`")
    if last.type in OPERATORS | UPDATES | {"EQUAL", "NOT"} and failure.accepts("INT"):
        return Explanation(place, f"expected an expression after `{last}`, found {described(token)}")
    return None


def missing_head(failure: Failure) -> Explanation | None:
    """`while { ... }`, `for i in 0.. { ... }`: the block was taken for the value that is missing before it."""
    if failure.kind_before() != "RBRACE" or not failure.accepts("LBRACE"):
        return None
    depth, i = 0, failure.position - 1
    while i > 0:
        depth += {"RBRACE": 1, "LBRACE": -1}.get(failure.tokens[i].type, 0)
        if depth == 0:
            break
        i -= 1
    head, brace = failure.tokens[i - 1], token_span(failure.path, failure.tokens[i])
    if i > 0 and head.type in OPERATORS | {"WHILE", "IF", "IF_STMT", "IN", "RANGE", "NOT"} or str(head) == "step":
        return Explanation(brace, f"expected an expression between `{head}` and `{{`")
    return None


def negated_operand(failure: Failure) -> Explanation | None:
    token, last = failure.token, failure.before()
    if token.type == "NOT" and last is not None and last.type in OPERATORS:
        return Explanation(token_span(failure.path, token), f"put parentheses around `not ...` behind `{last}`")
    return None


def lone_bar(failure: Failure) -> Explanation | None:
    token = failure.token
    span = token_span(failure.path, token)
    if token.type in ("VBAR", "DOUBLE_BAR") and failure.kind_before() in OPERATORS | {"NOT", "MINUS"}:
        return Explanation(span, "put parentheses around a function that is an operand: `(|x| x + 1.0)`")
    if token.type == "VBAR" and failure.accepts("PLUS"):
        return Explanation(span, "`|` begins a function, `|x| x + 1.0`; conditions are joined with `or`")
    return None


def import_path(failure: Failure) -> Explanation | None:
    if failure.tokens[0].type == "IMPORT" and failure.position == 1:
        span = token_span(failure.path, failure.token)
        return Explanation(span, 'an import names a file: `import "linalg.grad"`')
    return None


def colon_block(failure: Failure) -> Explanation | None:
    token = failure.token
    if token.type == "COLON" and failure.accepts("LBRACE"):
        return Explanation(token_span(failure.path, token), "a block stands in braces: found `:`, expected `{`")
    return None


def condition_last(failure: Failure) -> Explanation | None:
    """`x if c else y`"""
    token = failure.token
    if token.type == "IF" and failure.accepts("PLUS") and not failure.brackets():
        return Explanation(token_span(failure.path, token), "a choice is written `if c { a } else { b }`")
    return None


def slash_comment(failure: Failure) -> Explanation | None:
    """`// words` or `/* words`: comments of other languages."""
    token, i = failure.token, failure.position
    following = failure.after()
    opens = token.type == "SLASH" and following is not None and following.type == "STAR"
    if opens or token.type == "STAR" and failure.kind_before() == "SLASH":
        return Explanation(token_span(failure.path, token), "a comment begins with `#` and ends with its line")
    if token.type == "DOUBLE_SLASH" and failure.accepts("INT"):
        return Explanation(token_span(failure.path, token), "a comment begins with `#`; `//` is floor division")
    while i > 0 and failure.tokens[i - 1].line == token.line:
        i -= 1
        if failure.tokens[i].type == "DOUBLE_SLASH":
            begins = i == 0 or failure.tokens[i - 1].line != token.line or failure.position - i < 3
            if begins and failure.accepts("PLUS") and token.type in OPERANDS | KEYWORDS:
                message = "a comment begins with `#`; `//` is floor division"
                return Explanation(token_span(failure.path, failure.tokens[i]), message)
    return None


RULES: tuple[Callable[[Failure], Explanation | None], ...] = (
    bad_character,
    slash_comment,
    condition_last,
    foreign_word,
    equals_in_condition,
    update_in_expression,
    range_points,
    point_of_float,
    number_and_name,
    increment,
    python_slice,
    loop_head,
    checkpoint_head,
    text_as_value,
    nested_item,
    several_values,
    empty_sizes,
    generator_slips,
    after_if_statement,
    import_path,
    signature,
    function_type,
    reserved_word,
    missing_head,
    missing_value,
    negated_operand,
    lone_bar,
    colon_block,
)
