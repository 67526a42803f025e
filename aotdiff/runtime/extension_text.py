"""What makes a built library importable: Python looks for `NAME.so` before `NAME.py`.

The library's init function (multi-phase, PEP 489) runs the `NAME.py` beside it in the new module. The C API is looked
up by name at that moment, so that the library needs no Python otherwise.
"""

from __future__ import annotations

from aotdiff.codegen.text import c_string

_CODE = "exec(compile(open(__file__[:-3] + '.py', encoding='utf-8').read(), __file__[:-3] + '.py', 'exec'))"
_FUNCTIONS = (
    "PyModuleDef_Init", "PyModule_GetDict", "Py_CompileString", "PyEval_EvalCode", "PyEval_GetBuiltins",
    "PyDict_SetItemString", "Py_DecRef",
)  # fmt: skip

_TEXT = """
declare ptr @dlsym(ptr, ptr)
{strings}
@aotdiff.python.slots = internal global [4 x i64] [i64 2, i64 ptrtoint (ptr @aotdiff.python.run to i64), i64 0, i64 0]
@aotdiff.python.definition = internal global {{ i64, ptr, ptr, i64, ptr, ptr, ptr, i64, ptr, ptr, ptr, ptr, ptr }} {{
  i64 1, ptr null, ptr null, i64 0, ptr null, ptr @aotdiff.python.name, ptr null, i64 0, ptr null,
  ptr @aotdiff.python.slots, ptr null, ptr null, ptr null }}

define internal i32 @aotdiff.python.run(ptr %module) {{
  {lookups}
  %space = call ptr %PyModule_GetDict(ptr %module)
  %builtins = call ptr %PyEval_GetBuiltins()
  %set = call i32 %PyDict_SetItemString(ptr %space, ptr @aotdiff.python.builtins, ptr %builtins)
  %code = call ptr %Py_CompileString(ptr @aotdiff.python.code, ptr @aotdiff.python.name, i32 257)
  %bad = icmp eq ptr %code, null
  br i1 %bad, label %failed, label %run
run:
  %result = call ptr %PyEval_EvalCode(ptr %code, ptr %space, ptr %space)
  call void %Py_DecRef(ptr %code)
  %none = icmp eq ptr %result, null
  br i1 %none, label %failed, label %done
done:
  call void %Py_DecRef(ptr %result)
  ret i32 0
failed:
  ret i32 -1
}}

define ptr @PyInit_{name}() {{
  {first}
  %made = call ptr %PyModuleDef_Init(ptr @aotdiff.python.definition)
  ret ptr %made
}}
"""


def extension_text(name: str) -> str:
    """LLVM text of the init function; nothing for a name that Python cannot import."""
    if not (name.isascii() and name.isidentifier()):
        return ""
    texts = {"name": name, "code": _CODE, "builtins": "__builtins__", **{f: f for f in _FUNCTIONS}}
    strings = []
    for label, text in texts.items():
        literal, size = c_string(text)
        strings.append(f"@aotdiff.python.{label} = private unnamed_addr constant [{size} x i8] {literal}")
    lookups = [f"%{f} = call ptr @dlsym(ptr null, ptr @aotdiff.python.{f})" for f in _FUNCTIONS]
    return _TEXT.format(strings="\n".join(strings), name=name, first=lookups[0], lookups="\n  ".join(lookups[1:]))
