"""What C entries share: contexts per thread or in memory of the caller, error texts, the check of the processor."""

from __future__ import annotations

from collections.abc import Sequence

from aotdiff.codegen import context
from aotdiff.codegen.context import BUMP, BUMP_END, INTERRUPT, KEEP, LINE, MESSAGE, MESSAGE_SIZE, SIZE
from aotdiff.codegen.system import at_exit
from aotdiff.codegen.text import c_string

WRONG_PROCESSOR = 9  # the status where the processor lacks what the code needs
_PLACE = (SIZE + 63) & -64  # of a context in memory of the caller

PLACED = f"""
; A context at the start of memory that the caller gives, the rest its only chunk; null where it does not fit.
define internal ptr @aotdiff.placed(ptr %memory, i64 %bytes) noinline nounwind {{
entry:
  %address = ptrtoint ptr %memory to i64
  %up = add i64 %address, 63
  %start = and i64 %up, -64
  %skipped = sub i64 %start, %address
  %need = add i64 %skipped, {_PLACE}
  %null = icmp eq ptr %memory, null
  %few = icmp slt i64 %bytes, %need
  %none = or i1 %null, %few
  br i1 %none, label %refuse, label %place
place:
  %ctx = getelementptr i8, ptr %memory, i64 %skipped
  store i64 0, ptr %ctx
  %firstchar = getelementptr i8, ptr %ctx, i64 {MESSAGE}
  store i8 0, ptr %firstchar
  %rest = getelementptr i8, ptr %ctx, i64 {INTERRUPT}
  call void @llvm.memset.p0.i64(ptr %rest, i8 0, i64 {SIZE - INTERRUPT}, i1 false)
  %keep = getelementptr i8, ptr %ctx, i64 {KEEP}
  store i64 -1, ptr %keep
  %bumpat = getelementptr i8, ptr %ctx, i64 {BUMP}
  %bump = getelementptr i8, ptr %ctx, i64 {_PLACE}
  store ptr %bump, ptr %bumpat
  %endat = getelementptr i8, ptr %ctx, i64 {BUMP_END}
  %end = getelementptr i8, ptr %memory, i64 %bytes
  store ptr %end, ptr %endat
  ret ptr %ctx
refuse:
  ret ptr null
}}
"""

# Of a library: thread-local storage.
_LIBRARY = f"""
@aotdiff.context = internal thread_local global [{SIZE} x i8] zeroinitializer, align 16
@aotdiff.known = internal thread_local global i8 0
@aotdiff_error_text = weak thread_local global ptr null
@aotdiff.none = private unnamed_addr constant [1 x i8] zeroinitializer
@aotdiff.nomemory = private unnamed_addr constant [14 x i8] c"out of memory\\00"
declare ptr @llvm.threadlocal.address.p0(ptr)

define weak ptr @aotdiff_last_error() {{
  %slot = call ptr @llvm.threadlocal.address.p0(ptr @aotdiff_error_text)
  %text = load ptr, ptr %slot
  %null = icmp eq ptr %text, null
  %found = select i1 %null, ptr @aotdiff.none, ptr %text
  ret ptr %found
}}

define internal ptr @aotdiff.thread() noinline nounwind {{
entry:
  %ctx = call ptr @llvm.threadlocal.address.p0(ptr @aotdiff.context)
  %knownat = call ptr @llvm.threadlocal.address.p0(ptr @aotdiff.known)
  %known = load i8, ptr %knownat
  %new = icmp eq i8 %known, 0
  br i1 %new, label %first, label %out
first:
  store i8 1, ptr %knownat
  call void @aotdiff.at_exit(ptr %ctx)
  br label %out
out:
  ret ptr %ctx
}}

define internal i32 @aotdiff.failed(ptr %ctx, i32 %code) noinline nounwind {{
  %slot = call ptr @llvm.threadlocal.address.p0(ptr @aotdiff_error_text)
  %text = getelementptr i8, ptr %ctx, i64 {MESSAGE}
  store ptr %text, ptr %slot
  ret i32 %code
}}

define internal void @aotdiff.say(i32 %code, ptr %text) noinline nounwind {{
  %ctx = call ptr @llvm.threadlocal.address.p0(ptr @aotdiff.context)
  %rc = call i32 @aotdiff.refused(ptr %ctx, i32 %code, ptr %text)
  %rc2 = call i32 @aotdiff.failed(ptr %ctx, i32 %code)
  ret void
}}

; The error of a context that does not stay; `small` is the text where its memory was not enough.
define internal i32 @aotdiff.carried(ptr %ctx, i32 %code, ptr %small) noinline nounwind {{
  %message = getelementptr i8, ptr %ctx, i64 {MESSAGE}
  %memory = icmp eq i32 %code, {context.KIND_NUMBERS["MemoryError"]}
  %text = select i1 %memory, ptr %small, ptr %message
  call void @aotdiff.say(i32 %code, ptr %text)
  ret i32 %code
}}

{PLACED}
; What a finished call took of such memory, wherever it starts.
define internal i64 @aotdiff.used(ptr %ctx) nounwind {{
  %bumpat = getelementptr i8, ptr %ctx, i64 {BUMP}
  %bump = load ptr, ptr %bumpat
  %end = ptrtoint ptr %bump to i64
  %start = ptrtoint ptr %ctx to i64
  %size = sub i64 %end, %start
  %used = add i64 %size, 64
  ret i64 %used
}}
"""


def library_state(triple: str) -> str:
    """LLVM text of the state of a library."""
    return _LIBRARY + at_exit(triple)


# Of code in memory, which has no thread-local storage of its own: a POSIX key that `set_key` gives.
IN_MEMORY = f"""
@aotdiff.key = internal global i32 0
@aotdiff.spare = internal global [{SIZE} x i8] zeroinitializer, align 16
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare ptr @calloc(i64, i64)

define void @aotdiff.set_key(i32 %key) {{
  store i32 %key, ptr @aotdiff.key
  ret void
}}

define void @aotdiff.close(ptr %ctx) {{
  call void @aotdiff.release(ptr %ctx)
  call void @free(ptr %ctx)
  ret void
}}

define internal ptr @aotdiff.thread() noinline nounwind {{
entry:
  %key = load i32, ptr @aotdiff.key
  %found = call ptr @pthread_getspecific(i32 %key)
  %new = icmp eq ptr %found, null
  br i1 %new, label %first, label %out
first:
  %made = call ptr @calloc(i64 1, i64 {SIZE})
  %full = icmp eq ptr %made, null
  br i1 %full, label %spare, label %keep
keep:
  %rc = call i32 @pthread_setspecific(i32 %key, ptr %made)
  br label %out
spare:
  br label %out
out:
  %ctx = phi ptr [ %found, %entry ], [ %made, %keep ], [ @aotdiff.spare, %spare ]
  ret ptr %ctx
}}

define internal i32 @aotdiff.failed(ptr %ctx, i32 %code) noinline nounwind {{
  ret i32 %code
}}
"""

REFUSED = f"""
define internal i32 @aotdiff.refused(ptr %ctx, i32 %code, ptr %text) noinline nounwind {{
  store i32 %code, ptr %ctx
  %line = getelementptr i8, ptr %ctx, i64 {LINE}
  store i32 0, ptr %line
  %to = getelementptr i8, ptr %ctx, i64 {MESSAGE}
  call ptr @strncpy(ptr %to, ptr %text, i64 {MESSAGE_SIZE - 1})
  ret i32 %code
}}
declare ptr @strncpy(ptr, ptr, i64)
"""


# The processor ------------------------------------------------------------------------------------------------------

# Feature: leaf of cpuid, register (0 to 3: eax, ebx, ecx, edx), bit. All of these also need the system's support for
# the registers (xgetbv).
_BITS = {
    "avx": (1, 2, 28), "fma": (1, 2, 12), "avx2": (7, 1, 5), "bmi1": (7, 1, 3), "bmi2": (7, 1, 8),
    "avx512f": (7, 1, 16), "avx512dq": (7, 1, 17), "avx512cd": (7, 1, 28), "avx512bw": (7, 1, 30),
    "avx512vl": (7, 1, 31),
}  # fmt: skip
_CPUID = '"cpuid", "={ax},={bx},={cx},={dx},0,2,~{dirflag},~{fpsr},~{flags}"'
_GENERIC = 'attributes #1000 = { nounwind "target-cpu"="x86-64" "target-features"="" }'


def processor_check(triple: str, features: Sequence[str]) -> str:
    """LLVM text of `i1 aotdiff.fits()`: whether the processor can run the code, with the error text if not."""
    known = [f for f in features if f in _BITS]
    if not known or not triple.startswith(("x86_64", "amd64")):
        return ""
    masks: dict[tuple[int, int], int] = {}
    for feature in known:
        leaf, register, bit = _BITS[feature]
        masks[leaf, register] = masks.get((leaf, register), 0) | 1 << bit
    masks[1, 2] = masks.get((1, 2), 0) | 1 << 27  # osxsave, which xgetbv needs
    state = 0xE6 if any(f.startswith("avx512") for f in known) else 6
    text = f"this library needs a processor with {', '.join(known)}: rebuild there, or with --cpu generic"
    literal, size = c_string(text)
    steps = []
    for n, ((leaf, register), mask) in enumerate(sorted(masks.items())):
        steps.append(f"""
  %leaf{n} = call {{ i32, i32, i32, i32 }} asm {_CPUID}(i32 {leaf}, i32 0)
  %bits{n} = extractvalue {{ i32, i32, i32, i32 }} %leaf{n}, {register}
  %have{n} = and i32 %bits{n}, {_signed(mask)}
  %all{n} = icmp eq i32 %have{n}, {_signed(mask)}
  br i1 %all{n}, label %next{n}, label %bad
next{n}:""")
    return f"""
@aotdiff.processor = internal global i8 0
@aotdiff.wants = private unnamed_addr constant [{size} x i8] {literal}
{_GENERIC}

define internal i1 @aotdiff.fits() nounwind #1000 {{
  %known = load i8, ptr @aotdiff.processor
  %fine = icmp eq i8 %known, 1
  br i1 %fine, label %good, label %ask, !prof !0
good:
  ret i1 true
ask:
  %asked = call i1 @aotdiff.ask_processor()
  ret i1 %asked
}}

define internal i1 @aotdiff.ask_processor() noinline nounwind #1000 {{
  %top = call {{ i32, i32, i32, i32 }} asm {_CPUID}(i32 0, i32 0)
  %leaves = extractvalue {{ i32, i32, i32, i32 }} %top, 0
  %enough = icmp uge i32 %leaves, 7
  br i1 %enough, label %first, label %bad
first:{"".join(steps)}
  %state = call {{ i32, i32 }} asm "xgetbv", "={{ax}},={{dx}},{{cx}}"(i32 0)
  %low = extractvalue {{ i32, i32 }} %state, 0
  %saved = and i32 %low, {state}
  %whole = icmp eq i32 %saved, {state}
  br i1 %whole, label %good, label %bad
good:
  store i8 1, ptr @aotdiff.processor
  ret i1 true
bad:
  call void @aotdiff.say(i32 {WRONG_PROCESSOR}, ptr @aotdiff.wants)
  ret i1 false
}}
"""


def _signed(mask: int) -> int:
    return mask - (1 << 32) if mask >> 31 else mask
