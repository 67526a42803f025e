"""What C entries share: contexts per thread or in memory of the caller, error texts."""

from __future__ import annotations

from aotdiff.codegen import context
from aotdiff.codegen.context import BUMP, BUMP_END, INTERRUPT, KEEP, LINE, MESSAGE, MESSAGE_SIZE, SIZE
from aotdiff.codegen.system import at_exit
from aotdiff.codegen.team import TABLE

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
  store i8 1, ptr %knownat{{threads}}
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


_WITH_THREADS = f"""
  %tableat = getelementptr i8, ptr %ctx, i64 {context.THREADS}
  store ptr @{TABLE}, ptr %tableat"""


def library_state(triple: str, threads: bool = False) -> str:
    """LLVM text of the state of a library, of one whose calls may use several threads."""
    return _LIBRARY.replace("{threads}", _WITH_THREADS if threads else "") + at_exit(triple)


# Of code in memory, which has no thread-local storage of its own: a POSIX key that `set_key` gives.
IN_MEMORY = f"""
@aotdiff.key = internal global i32 0
@aotdiff.table = internal global ptr null
@aotdiff.most = internal global ptr null
@aotdiff.spare = internal global [{SIZE} x i8] zeroinitializer, align 16
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare ptr @calloc(i64, i64)

define void @aotdiff.set_key(i32 %key) {{
  store i32 %key, ptr @aotdiff.key
  ret void
}}

; The table of `codegen.team` or null, and where the most threads a call may use are.
define void @aotdiff.set_threads(ptr %table, ptr %most) {{
  store ptr %table, ptr @aotdiff.table
  store ptr %most, ptr @aotdiff.most
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
  %table = load ptr, ptr @aotdiff.table
  %tableat = getelementptr i8, ptr %made, i64 {context.THREADS}
  store ptr %table, ptr %tableat
  %rc = call i32 @pthread_setspecific(i32 %key, ptr %made)
  br label %out
spare:
  br label %out
out:
  %ctx = phi ptr [ %found, %entry ], [ %made, %keep ], [ @aotdiff.spare, %spare ]
  %where = load ptr, ptr @aotdiff.most
  %nowhere = icmp eq ptr %where, null
  br i1 %nowhere, label %done, label %limit
limit:
  %most = load atomic i64, ptr %where monotonic, align 8
  %mostat = getelementptr i8, ptr %ctx, i64 {context.MOST}
  store i64 %most, ptr %mostat
  br label %done
done:
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
