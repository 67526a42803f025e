"""Threads that share the work of one call, as LLVM IR: each calling thread's context has a team of its own.

`context.threads` points to a table of three functions: how many threads there may be, `run`, and the end of the team.
`run(ctx, function, env, pieces, most)` calls `function(context, env, piece)` for each piece, in this thread and in
those of the team, which take pieces in order as they come free: nothing waits for a thread that the system does not
run. Each helper has its own context. A team is made when first needed, sleeps between calls after a moment of waiting,
and belongs to one process: in a forked child, which has no helpers, there is a new one.

If pieces fail, the error of the first of them counts: those behind are stopped, those before come to their end.
"""

from __future__ import annotations

from aotdiff.codegen import context as ctx
from aotdiff.codegen import helpers
from aotdiff.codegen.system import system_of

MOST = 256  # threads
TABLE = f"aotdiff.threads.{ctx.SIZE}"  # the name of the table, which libraries share whose contexts are alike

# A team: the process, what is to be done, how far it is; locks; the helpers.
_PID, _HELPERS, _ROUND, _OPEN, _ACTIVE, _ROOM = 0, 8, 16, 24, 32, 40
_FUNCTION, _ENV, _PIECES, _INTERRUPT, _QUIT, _OWN, _OWN_STATE = 48, 56, 64, 72, 80, 88, 96
_NEXT, _FAILED, _LOCK, _WORK, _DONE, _SLOTS = 192, 256, 320, 448, 576, 704
_TEAM_SIZE = _SLOTS + 8 * MOST
# What a thread is doing: the piece (-1: none), the code of the piece that failed, that piece; for a helper also its
# thread, the team, the last round it saw. A helper's context is in front of that.
_PIECE, _CODE, _WHICH, _THREAD, _BACK, _SEEN = 0, 8, 16, 24, 32, 40
_STATE = (ctx.SIZE + 63) & -64
_HELPER_SIZE = _STATE + 64
_STACK = ctx.STACK_SIZE + (1 << 20)  # of a helper
_WAITS = 1500  # looks before going to sleep
_BELIEVED = 64  # times that the number of processors is used before the system is asked again

_PAUSES = {"x86_64": "void @llvm.x86.sse2.pause()", "aarch64": "void @llvm.aarch64.hint(i32 1)"}
_PAUSES["arm64"] = _PAUSES["aarch64"]

_COUNT = {
    "linux": """
  %mask = alloca [128 x i8], align 8
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 128, i1 false)
  %rc = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  %bits = load <16 x i64>, ptr %mask, align 8
  %counts = call <16 x i64> @llvm.ctpop.v16i64(<16 x i64> %bits)
  %all = call i64 @llvm.vector.reduce.add.v16i64(<16 x i64> %counts)
""",
    "unix": "\n  %all = call i64 @sysconf(i32 84)\n",
    "darwin": "\n  %all = call i64 @sysconf(i32 58)\n",
}
_COUNT_NEEDS = {
    "linux": (
        "i32 @sched_getaffinity(i32, i64, ptr)", "<16 x i64> @llvm.ctpop.v16i64(<16 x i64>)",
        "i64 @llvm.vector.reduce.add.v16i64(<16 x i64>)",
    ),
    "unix": ("i64 @sysconf(i32)",),
    "darwin": ("i64 @sysconf(i32)",),
}  # fmt: skip
_SET_MASK = {"linux": 2, "unix": 2, "darwin": 3}


def has_threads(triple: str) -> bool:
    """Whether there are POSIX threads."""
    return system_of(triple) in _COUNT


_PROCESSORS = """
; How many processors this thread may use; the system is asked now and then.
define internal i64 @aot.processors(ptr %ctx) noinline nounwind {{
entry:
  %freshat = getelementptr i8, ptr %ctx, i64 {FRESH}
  %knownat = getelementptr i8, ptr %ctx, i64 {PROCESSORS}
  %fresh = load i32, ptr %freshat
  %old = icmp eq i32 %fresh, 0
  br i1 %old, label %ask, label %known
known:
  %less = sub i32 %fresh, 1
  store i32 %less, ptr %freshat
  %before = load i32, ptr %knownat
  %wide = sext i32 %before to i64
  ret i64 %wide
ask:{count}
  %some = call i64 @llvm.smax.i64(i64 %all, i64 1)
  %short = trunc i64 %some to i32
  store i32 %short, ptr %knownat
  store i32 {_BELIEVED}, ptr %freshat
  ret i64 %some
}}

; How many threads a call may use: what the code was compiled for, what the context says, both at most (0: no limit, but
; the processors). One where there is one processor. A negative limit of the context counts as it is, for tests.
define internal i64 @aot.team.most(ptr %ctx, i64 %compiled) noinline nounwind {{
entry:
  %mostat = getelementptr i8, ptr %ctx, i64 {MOST}
  %asked = load i64, ptr %mostat
  %forced = icmp slt i64 %asked, 0
  %minus = sub i64 0, %asked
  br i1 %forced, label %out, label %more
more:
  %oneasked = icmp eq i64 %asked, 1
  %onecompiled = icmp eq i64 %compiled, 1
  %one = or i1 %oneasked, %onecompiled
  br i1 %one, label %out, label %look
look:
  %have = call i64 @aot.processors(ptr %ctx)
  %single = icmp eq i64 %have, 1
  %anyasked = icmp eq i64 %asked, 0
  %anycompiled = icmp eq i64 %compiled, 0
  %x = select i1 %anyasked, i64 %compiled, i64 %asked
  %y = select i1 %anycompiled, i64 %x, i64 %compiled
  %less = call i64 @llvm.smin.i64(i64 %x, i64 %y)
  %none = icmp eq i64 %less, 0
  %usual = select i1 %none, i64 %have, i64 %less
  %n = select i1 %single, i64 1, i64 %usual
  br label %out
out:
  %found = phi i64 [ %minus, %entry ], [ 1, %more ], [ %n, %look ]
  %capped = call i64 @llvm.smin.i64(i64 %found, i64 {most})
  ret i64 %capped
}}
"""

# Pieces, as long as there are any and none before has failed.
_DO_PIECES = (
    """
define internal void @aot.team.work(ptr %team, ptr %ctx, ptr %state) noinline nounwind {{
entry:
  %nextat = getelementptr i8, ptr %team, i64 {_NEXT}
  %failedat = getelementptr i8, ptr %team, i64 {_FAILED}
  %piecesat = getelementptr i8, ptr %team, i64 {_PIECES}
  %pieces = load i64, ptr %piecesat
  %functionat = getelementptr i8, ptr %team, i64 {_FUNCTION}
  %function = load ptr, ptr %functionat
  %envat = getelementptr i8, ptr %team, i64 {_ENV}
  %env = load ptr, ptr %envat
  br label %take
take:
  %piece = atomicrmw add ptr %nextat, i64 1 seq_cst
  %more = icmp slt i64 %piece, %pieces
  br i1 %more, label %try, label %out
try:
  store atomic i64 %piece, ptr %state seq_cst, align 8
  %failed = load atomic i64, ptr %failedat seq_cst, align 8
  %wanted = icmp slt i64 %piece, %failed
  br i1 %wanted, label %do, label %out
do:
  %code = call i32 %function(ptr %ctx, ptr %env, i64 %piece)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %stop, label %take
stop:
  %wide = sext i32 %code to i64
  %codeat = getelementptr i8, ptr %state, i64 {_CODE}
  store i64 %wide, ptr %codeat
  %whichat = getelementptr i8, ptr %state, i64 {_WHICH}
  store i64 %piece, ptr %whichat
  %old = atomicrmw min ptr %failedat, i64 %piece seq_cst
  %ownat = getelementptr i8, ptr %team, i64 {_OWN}
  %owner = load ptr, ptr %ownat
  %ownstate = getelementptr i8, ptr %team, i64 {_OWN_STATE}
  call void @aot.team.stop_behind(ptr %owner, ptr %ownstate, i64 %piece)"""
    + helpers.for_each(
        "stop",
        "out",
        """
  call void @aot.team.stop_behind(ptr %helper, ptr %itsstate, i64 %piece)""",
    )
    + """out:
  store atomic i64 -1, ptr %state seq_cst, align 8
  ret void
}}

define internal void @aot.team.stop_behind(ptr %ctx, ptr %state, i64 %piece) noinline nounwind {{
entry:
  %now = load atomic i64, ptr %state seq_cst, align 8
  %behind = icmp sgt i64 %now, %piece
  br i1 %behind, label %tell, label %out
tell:
  %stopat = getelementptr i8, ptr %ctx, i64 {STOP}
  store atomic i32 1, ptr %stopat monotonic, align 4
  br label %out
out:
  ret void
}}
"""
)

_RUN = (
    """
define internal i32 @aot.team.run(ptr %ctx, ptr %function, ptr %env, i64 %pieces, i64 %most) noinline nounwind {{
entry:
  %fewer = sub i64 %pieces, 1
  %others = sub i64 %most, 1
  %asked = call i64 @llvm.smin.i64(i64 %fewer, i64 %others)
  %processors = call i64 @aot.processors(ptr %ctx)
  %spare = sub i64 %processors, 1
  %useful = call i64 @llvm.smin.i64(i64 %asked, i64 %spare)
  %mostat = getelementptr i8, ptr %ctx, i64 {MOST}
  %limit = load i64, ptr %mostat
  %forced = icmp slt i64 %limit, 0
  %wanted = select i1 %forced, i64 %asked, i64 %useful
  %threadsat = getelementptr i8, ptr %ctx, i64 {THREADS}
  %table = load ptr, ptr %threadsat
  store ptr null, ptr %threadsat
  %team = call ptr @aot.team.get(ptr %ctx, i64 %wanted)
  %none = icmp eq ptr %team, null
  br i1 %none, label %alone, label %prepare
alone:
  %n = phi i64 [ 0, %entry ], [ %n1, %fine ]
  %left = icmp slt i64 %n, %pieces
  br i1 %left, label %oneself, label %over
oneself:
  %itscode = call i32 %function(ptr %ctx, ptr %env, i64 %n)
  %n1 = add i64 %n, 1
  %wrong = icmp ne i32 %itscode, 0
  br i1 %wrong, label %over, label %fine
fine:
  br label %alone
over:
  %code0 = phi i32 [ 0, %alone ], [ %itscode, %oneself ]
  store ptr %table, ptr %threadsat
  ret i32 %code0
prepare:"""
    + helpers.for_each(
        "prepare",
        "begin",
        """
  %itscode0 = getelementptr i8, ptr %itsstate, i64 {_CODE}
  store i64 0, ptr %itscode0""",
    )
    + """begin:
  %stopat = getelementptr i8, ptr %ctx, i64 {STOP}
  store atomic i32 0, ptr %stopat monotonic, align 4
  %flagat = getelementptr i8, ptr %ctx, i64 {INTERRUPT}
  %flag = load ptr, ptr %flagat
  %lock = getelementptr i8, ptr %team, i64 {_LOCK}
  %workc = getelementptr i8, ptr %team, i64 {_WORK}
  %donec = getelementptr i8, ptr %team, i64 {_DONE}
  %openat = getelementptr i8, ptr %team, i64 {_OPEN}
  %activeat = getelementptr i8, ptr %team, i64 {_ACTIVE}
  %ownat = getelementptr i8, ptr %team, i64 {_OWN}
  %ownstate = getelementptr i8, ptr %team, i64 {_OWN_STATE}
  %owncode = getelementptr i8, ptr %ownstate, i64 {_CODE}
  %rc1 = call i32 @pthread_mutex_lock(ptr %lock)
  store ptr %ctx, ptr %ownat
  store i64 0, ptr %owncode
  store atomic i64 -1, ptr %ownstate monotonic, align 8
  %functionat = getelementptr i8, ptr %team, i64 {_FUNCTION}
  store ptr %function, ptr %functionat
  %envat = getelementptr i8, ptr %team, i64 {_ENV}
  store ptr %env, ptr %envat
  %piecesat = getelementptr i8, ptr %team, i64 {_PIECES}
  store i64 %pieces, ptr %piecesat
  %givenat = getelementptr i8, ptr %team, i64 {_INTERRUPT}
  store ptr %flag, ptr %givenat
  %nextat = getelementptr i8, ptr %team, i64 {_NEXT}
  store atomic i64 0, ptr %nextat monotonic, align 8
  %failedat = getelementptr i8, ptr %team, i64 {_FAILED}
  store atomic i64 %pieces, ptr %failedat monotonic, align 8
  %roomat = getelementptr i8, ptr %team, i64 {_ROOM}
  store i64 %wanted, ptr %roomat
  store i64 1, ptr %openat
  %roundat = getelementptr i8, ptr %team, i64 {_ROUND}
  %r = atomicrmw add ptr %roundat, i64 1 release
  %rc2 = call i32 @pthread_cond_broadcast(ptr %workc)
  %rc3 = call i32 @pthread_mutex_unlock(ptr %lock)
  call void @aot.team.work(ptr %team, ptr %ctx, ptr %ownstate)
  %rc4 = call i32 @pthread_mutex_lock(ptr %lock)
  store i64 0, ptr %openat
  %rc5 = call i32 @pthread_mutex_unlock(ptr %lock)
  br label %watch
watch:
  %looks = phi i64 [ 0, %begin ], [ %looks1, %again ]
  %active0 = load atomic i64, ptr %activeat acquire, align 8
  %ready = icmp eq i64 %active0, 0
  br i1 %ready, label %settle, label %again
again:
  {pause}
  %looks1 = add i64 %looks, 1
  %long = icmp sgt i64 %looks1, {_WAITS}
  br i1 %long, label %settle, label %watch
settle:
  %rc6 = call i32 @pthread_mutex_lock(ptr %lock)
  br label %check
check:
  %active = load atomic i64, ptr %activeat acquire, align 8
  %busy = icmp ne i64 %active, 0
  br i1 %busy, label %sleep, label %finished
sleep:
  %rc7 = call i32 @pthread_cond_wait(ptr %donec, ptr %lock)
  br label %check
finished:
  %rc8 = call i32 @pthread_mutex_unlock(ptr %lock)
  store ptr %table, ptr %threadsat
  store atomic i32 0, ptr %stopat monotonic, align 4
  %failed = load atomic i64, ptr %failedat monotonic, align 8
  %well = icmp eq i64 %failed, %pieces
  br i1 %well, label %good, label %whose
good:
  ret i32 0
whose:
  %mycode = load i64, ptr %owncode
  %mywhich = getelementptr i8, ptr %ownstate, i64 {_WHICH}
  %mypiece = load i64, ptr %mywhich
  %icode = icmp ne i64 %mycode, 0
  %ifirst = icmp eq i64 %mypiece, %failed
  %mine = and i1 %icode, %ifirst
  br i1 %mine, label %found, label %search
search:
  %n2 = phi i64 [ 0, %whose ], [ %n3, %other ]
  %hisslot = getelementptr ptr, ptr %slots, i64 %n2
  %him = load ptr, ptr %hisslot
  %state = getelementptr i8, ptr %him, i64 {_STATE}
  %itscodeat = getelementptr i8, ptr %state, i64 {_CODE}
  %hiscode = load i64, ptr %itscodeat
  %itswhich = getelementptr i8, ptr %state, i64 {_WHICH}
  %itspiece = load i64, ptr %itswhich
  %hefailed = icmp ne i64 %hiscode, 0
  %hefirst = icmp eq i64 %itspiece, %failed
  %his = and i1 %hefailed, %hefirst
  br i1 %his, label %take, label %other
other:
  %n3 = add i64 %n2, 1
  br label %search
take:
  call void @llvm.memcpy.p0.p0.i64(ptr %ctx, ptr %him, i64 {INTERRUPT}, i1 false)
  br label %found
found:
  %code = phi i64 [ %mycode, %whose ], [ %hiscode, %take ]
  %code32 = trunc i64 %code to i32
  ret i32 %code32
}}
"""
)

assert _TEAM_SIZE <= 4096

_DECLARATIONS = (
    "i64 @llvm.smin.i64(i64, i64)", "i64 @llvm.smax.i64(i64, i64)", "i32 @getpid()", "ptr @calloc(i64, i64)",
    "void @free(ptr)", "void @llvm.memset.p0.i64(ptr, i8, i64, i1)", "void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
    "i32 @pthread_mutex_init(ptr, ptr)", "i32 @pthread_mutex_lock(ptr)", "i32 @pthread_mutex_unlock(ptr)",
    "i32 @pthread_mutex_destroy(ptr)", "i32 @pthread_cond_init(ptr, ptr)", "i32 @pthread_cond_wait(ptr, ptr)",
    "i32 @pthread_cond_signal(ptr)", "i32 @pthread_cond_broadcast(ptr)", "i32 @pthread_cond_destroy(ptr)",
    "i32 @pthread_sigmask(i32, ptr, ptr)", "i32 @pthread_attr_init(ptr)", "i32 @pthread_attr_setstacksize(ptr, i64)",
    "i32 @pthread_attr_destroy(ptr)", "i32 @pthread_create(ptr, ptr, ptr, ptr)", "i32 @pthread_join(i64, ptr)",
)  # fmt: skip


def team(triple: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """LLVM text of the table and what is behind it; runtime functions it calls; declarations."""
    system = system_of(triple)
    found = globals().items()
    names: dict[str, int | str] = {k: v for k, v in found if k.startswith("_") and isinstance(v, int)}
    names |= {"TEAM": ctx.TEAM, "MOST": ctx.MOST, "STOP": ctx.STOP, "THREADS": ctx.THREADS}
    names |= {"INTERRUPT": ctx.INTERRUPT, "KEEP": ctx.KEEP, "PROCESSORS": ctx.PROCESSORS, "FRESH": ctx.FRESH}
    names |= {"most": MOST, "count": _COUNT[system], "set_mask": _SET_MASK[system]}
    pause = _PAUSES.get(triple.split("-")[0])
    names["pause"] = f"call {pause}" if pause else ""
    names |= {"make": helpers.MEMORY[system].format(**names), "unmake": helpers.UNMAKE[system]}
    filled = (_PROCESSORS + _DO_PIECES + helpers.HELP + helpers.MAKE + _RUN).format(**names)
    table = f"@{TABLE} = weak constant [3 x ptr] [ptr @aot.team.most, ptr @aot.team.run, ptr @aot.team.end]\n"
    declared = (*_DECLARATIONS, *_COUNT_NEEDS[system], *(helpers.MEMORY_NEEDS if system != "darwin" else ()))
    declared += (pause.replace(" 1)", ")"),) if pause else ()
    called = ("aot.reset", "aot.release_chunks", "aot.stack_limit")
    return table + filled, called, tuple(f"declare {d}" for d in declared)
