"""How native code reports an error: the message is formatted with snprintf into the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotdiff.codegen import context

from aotdiff.ir.graph import Loc

if TYPE_CHECKING:
    from aotdiff.codegen.module import ModuleText
    from aotdiff.codegen.valuetext import ValueText


def report(fe: ValueText, kind: str, loc: Loc | None, message: str, values: Sequence[tuple[str, str]]) -> list[str]:
    """Instructions that write an error into the context and leave the function. Values are (LLVM type, name)."""
    prefix = f"{loc.path}:{loc.line}: " if loc else ""
    text, order = _printf_format(prefix, message, [t for t, _ in values])
    number = context.KIND_NUMBERS[kind]
    line, format_ = fe.located(loc.line if loc else 0, text)
    args = "".join(f", {values[i][0]} {values[i][1]}" for i in order)
    name = _writer(fe.module, [values[i][0] for i in order])
    call = f"call void {name}(ptr %ctx, i32 {number}, i32 {line}, ptr {format_}{args})"
    return [call, *fe.fail_return(str(number))]


def _writer(module: ModuleText, types: Sequence[str]) -> str:
    """The function that writes an error with values of these types: code that hardly ever runs is there once."""
    name = "@aot.fail" + "".join("." + type_ for type_ in types)

    def make() -> str:
        module.declare("declare i32 @snprintf(ptr, i64, ptr, ...)")
        given = "".join(f", {type_} %a{n}" for n, type_ in enumerate(types))
        return f"""define internal void {name}(ptr %ctx, i32 %kind, i32 %line, ptr %text{given}) #1 {{
entry:
  store i32 %kind, ptr %ctx
  %lineat = getelementptr i8, ptr %ctx, i64 {context.LINE}
  store i32 %line, ptr %lineat
  %message = getelementptr i8, ptr %ctx, i64 {context.MESSAGE}
  call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 {context.MESSAGE_SIZE}, ptr %text{given})
  ret void
}}"""

    module.define(name, make)
    return name


def _printf_format(prefix: str, message: str, types: Sequence[str]) -> tuple[str, list[int]]:
    """`prefix` and `message` as a printf format, and which values it prints in which order."""
    text, order, i = prefix.replace("%", "%%"), [], 0
    while i < len(message):
        end = message.find("}", i)
        if message[i] == "{" and end > 0 and message[i + 1 : end].isdigit() and int(message[i + 1 : end]) < len(types):
            index = int(message[i + 1 : end])
            text += "%lld" if types[index] == "i64" else "%g"
            order.append(index)
            i = end + 1
            continue
        text += "%%" if message[i] == "%" else message[i]
        i += 1
    return text, order
