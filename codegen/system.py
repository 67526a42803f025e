"""What generated code asks of the operating system, by target: the end of a thread, the bounds of its stack.

Also what the C library lacks in places, and its `size_t`: where that has 32 bits, sizes are shortened before calls.
"""

from __future__ import annotations

import re

from aotdiff.codegen import context as ctx


def system_of(triple: str) -> str:
    """linux (with glibc), unix, darwin, windows or wasm."""
    if "darwin" in triple or "macos" in triple or "apple" in triple:
        return "darwin"
    if "windows" in triple or "mingw" in triple:
        return "windows"
    if triple.startswith("wasm"):
        return "wasm"
    return "linux" if "linux" in triple and "musl" not in triple else "unix"


def maps_pages(triple: str) -> bool:
    """Whether `mmap` is there as we call it: with a 64-bit offset."""
    return system_of(triple) == "linux" and "64" in triple.split("-")[0]


# The end of a thread -------------------------------------------------------------------------------------------------

_BY_KEY = """
@aotdiff.key = internal global i64 -1
define internal void @aotdiff.at_exit(ptr %ctx) noinline nounwind {{
entry:
  {slot}
  %known = load atomic i64, ptr @aotdiff.key acquire, align 8
  %none = icmp eq i64 %known, -1
  br i1 %none, label %make, label %set
make:
  {make}
  br i1 %failed, label %out, label %claim
claim:
  %pair = cmpxchg ptr @aotdiff.key, i64 -1, i64 %new acq_rel acquire
  %won = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %won, label %set, label %lost
lost:
  %other = extractvalue {{ i64, i1 }} %pair, 0
  %new32 = trunc i64 %new to i32
  %gone = call i32 @{delete}(i32 %new32)
  br label %set
set:
  %key = phi i64 [ %known, %entry ], [ %new, %claim ], [ %other, %lost ]
  %key32 = trunc i64 %key to i32
  %rc = call i32 @{set}(i32 %key32, ptr %ctx)
  br label %out
out:
  ret void
}}
declare i32 @{delete}(i32)
declare i32 @{set}(i32, ptr)
"""

_PTHREAD_KEY = _BY_KEY.format(
    slot="%slot = alloca i32, align 4",
    make="%refused = call i32 @pthread_key_create(ptr %slot, ptr @aotdiff.release)\n"
    "  %failed = icmp ne i32 %refused, 0\n  %made = load i32, ptr %slot\n  %new = zext i32 %made to i64",
    delete="pthread_key_delete",
    set="pthread_setspecific",
)

_FIBRE_KEY = _BY_KEY.format(
    slot="%slot = alloca i32, align 4",
    make="%made = call i32 @FlsAlloc(ptr @aotdiff.release)\n"
    "  %failed = icmp eq i32 %made, -1\n  %new = zext i32 %made to i64",
    delete="FlsFree",
    set="FlsSetValue",
)

_AT_EXIT = {
    "linux": """
@__dso_handle = external hidden global i8
declare i32 @__cxa_thread_atexit_impl(ptr, ptr, ptr)
define internal void @aotdiff.at_exit(ptr %ctx) noinline nounwind {
  %rc = call i32 @__cxa_thread_atexit_impl(ptr @aotdiff.release, ptr %ctx, ptr @__dso_handle)
  ret void
}
""",
    "darwin": """
declare void @_tlv_atexit(ptr, ptr)
define internal void @aotdiff.at_exit(ptr %ctx) noinline nounwind {
  call void @_tlv_atexit(ptr @aotdiff.release, ptr %ctx)
  ret void
}
""",
    "unix": _PTHREAD_KEY + "declare i32 @pthread_key_create(ptr, ptr)\n",
    "windows": _FIBRE_KEY + "declare i32 @FlsAlloc(ptr)\n",
    "wasm": """
define internal void @aotdiff.at_exit(ptr %ctx) noinline nounwind {
  ret void
}
""",
}


def at_exit(triple: str) -> str:
    """LLVM text of `aotdiff.at_exit(ctx)`: this thread's end releases the context."""
    return _AT_EXIT[system_of(triple)]


# The stack -----------------------------------------------------------------------------------------------------------

# Asked once per thread and context. A quarter megabyte is left for what we call. A context in the caller's memory
# (keep = -1) does not ask, since asking may allocate: a megabyte is taken to be there.
_STACK_LIMIT = f"""
define internal void @aot.stack_limit(ptr %ctx) #1 {{{{
entry:
  %attr = alloca [128 x i8], align 16
  %low = alloca ptr, align 8
  %size = alloca i64, align 8
  %threadat = getelementptr i8, ptr %ctx, i64 {ctx.STACK_THREAD}
  %limitat = getelementptr i8, ptr %ctx, i64 {ctx.STACK_LIMIT}
  %keepat = getelementptr i8, ptr %ctx, i64 {ctx.KEEP}
  %keep = load i64, ptr %keepat
  %given = icmp eq i64 %keep, -1
  %frame = call ptr @llvm.frameaddress.p0(i32 0)
  %here = ptrtoint ptr %frame to i64
  %room = select i1 %given, i64 1048576, i64 {{guess}}
  %below = call i64 @llvm.usub.sat.i64(i64 %here, i64 %room)
  {{self}}
  br i1 %given, label %take, label %look
look:
  %known = load i64, ptr %threadat
  %same = icmp eq i64 %known, %self
  br i1 %same, label %out, label %ask
ask:
  store i64 %self, ptr %threadat
  {{ask}}
  br i1 %failed, label %take, label %read
read:
  {{bottom}}
  %limit = add i64 %bottom, 262144
  store i64 %limit, ptr %limitat
  br label %out
take:
  store i64 %below, ptr %limitat
  br label %out
out:
  ret void
}}}}
"""

_PTHREAD_SELF = "%self = call i64 @pthread_self()"
_STACKS = {
    "linux": (
        (_PTHREAD_SELF, "%rc = call i32 @pthread_getattr_np(i64 %self, ptr %attr)\n  %failed = icmp ne i32 %rc, 0",
         "%rc2 = call i32 @pthread_attr_getstack(ptr %attr, ptr %low, ptr %size)\n"
         "  %rc3 = call i32 @pthread_attr_destroy(ptr %attr)\n  %bottom = load i64, ptr %low"),
        ("i64 @pthread_self()", "i32 @pthread_getattr_np(i64, ptr)", "i32 @pthread_attr_getstack(ptr, ptr, ptr)",
         "i32 @pthread_attr_destroy(ptr)"),
    ),
    "darwin": (
        (_PTHREAD_SELF,
         "%high = call i64 @pthread_get_stackaddr_np(i64 %self)\n"
         "  %bytes = call i64 @pthread_get_stacksize_np(i64 %self)\n  %failed = icmp eq i64 %bytes, 0",
         "%bottom = sub i64 %high, %bytes"),
        ("i64 @pthread_self()", "i64 @pthread_get_stackaddr_np(i64)", "i64 @pthread_get_stacksize_np(i64)"),
    ),
    "windows": (
        ("%id = call i32 @GetCurrentThreadId()\n  %self = zext i32 %id to i64",
         "call void @GetCurrentThreadStackLimits(ptr %low, ptr %size)\n  %failed = icmp eq i64 %self, 0",
         "%bottom = load i64, ptr %low"),
        ("i32 @GetCurrentThreadId()", "void @GetCurrentThreadStackLimits(ptr, ptr)"),
    ),
    "wasm": (("%self = add i64 0, 1", "%failed = icmp ne i64 %self, 0", "%bottom = add i64 0, 0"), ()),
}  # fmt: skip
_STACKS["unix"] = _STACKS["linux"]


def stack_limit(triple: str) -> tuple[str, tuple[str, ...]]:
    """LLVM text of `aot.stack_limit(ctx)`, and its declarations."""
    system = system_of(triple)
    (self, ask, bottom), declared = _STACKS[system]
    text = _STACK_LIMIT.format(self=self, ask=ask, bottom=bottom, guess=32768 if system == "wasm" else 4194304)
    always = ("ptr @llvm.frameaddress.p0(i32)", "i64 @llvm.usub.sat.i64(i64, i64)")
    return text, tuple(f"declare {d}" for d in (*always, *declared))


# The C library ------------------------------------------------------------------------------------------------------

# name: result, parameters; s stands for size_t
_SIZED = {
    "malloc": ("ptr", "s"),
    "strncpy": ("ptr", "pps"),
    "snprintf": ("i32", "psp"),
}


def fitted(text: str, triple: str) -> str:
    """The text for a target whose C library has less than glibc, or whose pointers have 32 bits."""
    if system_of(triple) != "linux":
        text = text.replace("@llvm.roundeven.", "@llvm.rint.")  # the same while nobody changes the rounding mode
    if system_of(triple) == "windows":
        text = text.replace("declare double @lgamma_r(double, ptr)", "declare double @lgamma(double)")
        text = re.sub(r"call double @lgamma_r\((double [^,]+), ptr [^)]+\)", r"call double @lgamma(\1)", text)
    if triple.startswith(("wasm32", "i386", "i686", "arm-", "armv7")):
        for name in _SIZED:
            if f"@{name}(" in text:
                text = re.sub(rf"^declare [^\n]*@{name}\([^\n]*$", _declared(name), text, flags=re.M)
                text = _shortened(text, name)
    return text


def _declared(name: str) -> str:
    result, parameters = _SIZED[name]
    types = ["i32" if p == "s" else "ptr" for p in parameters]
    return f"declare {result} @{name}({', '.join([*types, *(['...'] if name == 'snprintf' else [])])})"


def _shortened(text: str, name: str) -> str:
    """Calls with the size as an i32: before each, the shortening of its argument."""
    position = _SIZED[name][1].index("s")
    count = 0

    def call(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        head, arguments, tail = match.groups()
        head = head.replace("(ptr, i64, ptr, ...)", "(ptr, i32, ptr, ...)")
        parts = arguments.split(", ")
        size = parts[position].removeprefix("i64 ")
        if size.lstrip("-").isdigit():
            parts[position] = f"i32 {size}"
            return f"{head}{', '.join(parts)}{tail}"
        parts[position] = f"i32 %size.{name}.{count}"
        return f"  %size.{name}.{count} = trunc i64 {size} to i32\n{head}{', '.join(parts)}{tail}"

    return re.sub(rf"^((?!declare)[^\n]*@{name}\()([^\n]*?)(\)[^\n)]*)$", call, text, flags=re.M)
