"""The helping threads of a team (see `team`, which fills in the numbers): their loop, their making and their end."""

from __future__ import annotations


def for_each(before: str, after: str, body: str) -> str:
    """A loop over the helpers of %team: block `before` has come here, the loop goes on to `after`.

    The body knows %helper and its %itsstate.
    """
    return f"""
  %helpersat = getelementptr i8, ptr %team, i64 {{_HELPERS}}
  %helpers = load i64, ptr %helpersat
  %slots = getelementptr i8, ptr %team, i64 {{_SLOTS}}
  br label %each
each:
  %k = phi i64 [ 0, %{before} ], [ %k1, %one ]
  %rest = icmp slt i64 %k, %helpers
  br i1 %rest, label %one, label %{after}
one:
  %slot = getelementptr ptr, ptr %slots, i64 %k
  %helper = load ptr, ptr %slot
  %itsstate = getelementptr i8, ptr %helper, i64 {{_STATE}}{body}
  %k1 = add i64 %k, 1
  br label %each
"""


HELP = """
define internal ptr @aot.team.help(ptr %ctx) noinline nounwind {{
entry:
  %state = getelementptr i8, ptr %ctx, i64 {_STATE}
  %backat = getelementptr i8, ptr %state, i64 {_BACK}
  %team = load ptr, ptr %backat
  %seenat = getelementptr i8, ptr %state, i64 {_SEEN}
  %roundat = getelementptr i8, ptr %team, i64 {_ROUND}
  %openat = getelementptr i8, ptr %team, i64 {_OPEN}
  %activeat = getelementptr i8, ptr %team, i64 {_ACTIVE}
  %roomat = getelementptr i8, ptr %team, i64 {_ROOM}
  %quitat = getelementptr i8, ptr %team, i64 {_QUIT}
  %lock = getelementptr i8, ptr %team, i64 {_LOCK}
  %workc = getelementptr i8, ptr %team, i64 {_WORK}
  %donec = getelementptr i8, ptr %team, i64 {_DONE}
  %stopat = getelementptr i8, ptr %ctx, i64 {STOP}
  %flagat = getelementptr i8, ptr %ctx, i64 {INTERRUPT}
  %givenat = getelementptr i8, ptr %team, i64 {_INTERRUPT}
  call void @aot.stack_limit(ptr %ctx)
  br label %idle
idle:
  %seen = load i64, ptr %seenat
  br label %watch
watch:
  %looks = phi i64 [ 0, %idle ], [ %looks1, %again ]
  %round0 = load atomic i64, ptr %roundat acquire, align 8
  %new0 = icmp ne i64 %round0, %seen
  br i1 %new0, label %enter, label %again
again:
  {pause}
  %looks1 = add i64 %looks, 1
  %long = icmp sgt i64 %looks1, {_WAITS}
  br i1 %long, label %enter, label %watch
enter:
  %rc1 = call i32 @pthread_mutex_lock(ptr %lock)
  br label %check
check:
  %quit = load i64, ptr %quitat
  %end = icmp ne i64 %quit, 0
  br i1 %end, label %leave, label %news
news:
  %round = load atomic i64, ptr %roundat monotonic, align 8
  %old = icmp eq i64 %round, %seen
  br i1 %old, label %sleep, label %see
sleep:
  %rc2 = call i32 @pthread_cond_wait(ptr %workc, ptr %lock)
  br label %check
see:
  store i64 %round, ptr %seenat
  %open = load i64, ptr %openat
  %active = load atomic i64, ptr %activeat monotonic, align 8
  %room = load i64, ptr %roomat
  %isopen = icmp ne i64 %open, 0
  %fits = icmp slt i64 %active, %room
  %in = and i1 %isopen, %fits
  br i1 %in, label %join, label %stay
stay:
  %rc3 = call i32 @pthread_mutex_unlock(ptr %lock)
  br label %idle
join:
  %one = add i64 %active, 1
  store atomic i64 %one, ptr %activeat monotonic, align 8
  %flag = load ptr, ptr %givenat
  store ptr %flag, ptr %flagat
  store atomic i32 0, ptr %stopat monotonic, align 4
  %rc4 = call i32 @pthread_mutex_unlock(ptr %lock)
  call void @aot.team.work(ptr %team, ptr %ctx, ptr %state)
  call void @aot.reset(ptr %ctx)
  %rc5 = call i32 @pthread_mutex_lock(ptr %lock)
  %here = load atomic i64, ptr %activeat monotonic, align 8
  %fewer = sub i64 %here, 1
  store atomic i64 %fewer, ptr %activeat release, align 8
  %last = icmp eq i64 %fewer, 0
  br i1 %last, label %tell, label %back
tell:
  %rc6 = call i32 @pthread_cond_signal(ptr %donec)
  br label %back
back:
  %rc7 = call i32 @pthread_mutex_unlock(ptr %lock)
  br label %idle
leave:
  %rc8 = call i32 @pthread_mutex_unlock(ptr %lock)
  ret ptr null
}}
"""

MAKE = (
    """
; The team of a context, with up to so many helpers; null where there is no memory.
define internal ptr @aot.team.get(ptr %ctx, i64 %wanted) noinline nounwind {{
entry:
  %teamat = getelementptr i8, ptr %ctx, i64 {TEAM}
  %known = load ptr, ptr %teamat
  %none = icmp eq ptr %known, null
  br i1 %none, label %make, label %some
some:
  %same = call i1 @aot.team.is_ours(ptr %known)
  br i1 %same, label %grow, label %forked
forked:
  call void @aot.team.forget(ptr %known)
  store ptr null, ptr %teamat
  br label %make
make:
  %new = call ptr @aot.team.memory()
  %failed = icmp eq ptr %new, null
  br i1 %failed, label %nothing, label %fill
fill:
  %lock = getelementptr i8, ptr %new, i64 {_LOCK}
  %workc = getelementptr i8, ptr %new, i64 {_WORK}
  %donec = getelementptr i8, ptr %new, i64 {_DONE}
  %rc1 = call i32 @pthread_mutex_init(ptr %lock, ptr null)
  %rc2 = call i32 @pthread_cond_init(ptr %workc, ptr null)
  %rc3 = call i32 @pthread_cond_init(ptr %donec, ptr null)
  store ptr %new, ptr %teamat
  br label %grow
grow:
  %team = phi ptr [ %known, %some ], [ %new, %fill ]
  %helpersat = getelementptr i8, ptr %team, i64 {_HELPERS}
  br label %count
count:
  %have = load i64, ptr %helpersat
  %few = icmp slt i64 %have, %wanted
  br i1 %few, label %another, label %done
another:
  %ok = call i1 @aot.team.hire(ptr %ctx, ptr %team)
  br i1 %ok, label %count, label %done
done:
  ret ptr %team
nothing:
  ret ptr null
}}

; One more helper, to which signals do not go; recursion there may go as deep as on a stack of ours, if there is room.
define internal i1 @aot.team.hire(ptr %ctx, ptr %team) noinline nounwind {{
entry:
  %all = alloca [128 x i8], align 16
  %before = alloca [128 x i8], align 16
  %attr = alloca [128 x i8], align 16
  %helper = call ptr @calloc(i64 1, i64 {_HELPER_SIZE})
  %failed = icmp eq ptr %helper, null
  br i1 %failed, label %no, label %go
go:
  %state = getelementptr i8, ptr %helper, i64 {_STATE}
  store i64 -1, ptr %state
  %backat = getelementptr i8, ptr %state, i64 {_BACK}
  store ptr %team, ptr %backat
  %seenat = getelementptr i8, ptr %state, i64 {_SEEN}
  %roundat = getelementptr i8, ptr %team, i64 {_ROUND}
  %round = load atomic i64, ptr %roundat monotonic, align 8
  store i64 %round, ptr %seenat
  %keepat = getelementptr i8, ptr %ctx, i64 {KEEP}
  %keep = load i64, ptr %keepat
  %itskeepat = getelementptr i8, ptr %helper, i64 {KEEP}
  store i64 %keep, ptr %itskeepat
  call void @llvm.memset.p0.i64(ptr %all, i8 -1, i64 128, i1 false)
  %rc1 = call i32 @pthread_sigmask(i32 {set_mask}, ptr %all, ptr %before)
  %rc2 = call i32 @pthread_attr_init(ptr %attr)
  %rc3 = call i32 @pthread_attr_setstacksize(ptr %attr, i64 {_STACK})
  %threadat = getelementptr i8, ptr %state, i64 {_THREAD}
  %deep = call i32 @pthread_create(ptr %threadat, ptr %attr, ptr @aot.team.help, ptr %helper)
  %well = icmp eq i32 %deep, 0
  br i1 %well, label %made, label %smaller
smaller:
  %rc7 = call i32 @pthread_attr_setstacksize(ptr %attr, i64 8388608)
  %flat = call i32 @pthread_create(ptr %threadat, ptr %attr, ptr @aot.team.help, ptr %helper)
  br label %made
made:
  %rc4 = phi i32 [ 0, %go ], [ %flat, %smaller ]
  %rc5 = call i32 @pthread_attr_destroy(ptr %attr)
  %rc6 = call i32 @pthread_sigmask(i32 {set_mask}, ptr %before, ptr null)
  %refused = icmp ne i32 %rc4, 0
  br i1 %refused, label %undo, label %note
undo:
  call void @free(ptr %helper)
  br label %no
note:
  %helpersat = getelementptr i8, ptr %team, i64 {_HELPERS}
  %k = load i64, ptr %helpersat
  %slots = getelementptr i8, ptr %team, i64 {_SLOTS}
  %slot = getelementptr ptr, ptr %slots, i64 %k
  store ptr %helper, ptr %slot
  %k1 = add i64 %k, 1
  store i64 %k1, ptr %helpersat
  ret i1 true
no:
  ret i1 false
}}

; The memory of a team whose helpers have ended.
define internal void @aot.team.forget(ptr %team) noinline nounwind {{
entry:"""
    + for_each(
        "entry",
        "out",
        """
  call void @aot.release_chunks(ptr %helper)
  call void @free(ptr %helper)""",
    )
    + """out:
  {unmake}
  ret void
}}

; Whether the team was made in this process.
define internal i1 @aot.team.is_ours(ptr %team) noinline nounwind {{
entry:
  %its = load i64, ptr %team
  %wiped = icmp eq i64 %its, -1
  br i1 %wiped, label %yes, label %ask
yes:
  ret i1 true
ask:
  %pid32 = call i32 @getpid()
  %pid = sext i32 %pid32 to i64
  %same = icmp eq i64 %its, %pid
  ret i1 %same
}}
{make}
define internal void @aot.team.end(ptr %ctx) noinline nounwind {{
entry:
  %teamat = getelementptr i8, ptr %ctx, i64 {TEAM}
  %team = load ptr, ptr %teamat
  %none = icmp eq ptr %team, null
  br i1 %none, label %out, label %some
some:
  store ptr null, ptr %teamat
  %same = call i1 @aot.team.is_ours(ptr %team)
  br i1 %same, label %tell, label %free
tell:
  %lock = getelementptr i8, ptr %team, i64 {_LOCK}
  %workc = getelementptr i8, ptr %team, i64 {_WORK}
  %donec = getelementptr i8, ptr %team, i64 {_DONE}
  %rc1 = call i32 @pthread_mutex_lock(ptr %lock)
  %quitat = getelementptr i8, ptr %team, i64 {_QUIT}
  store i64 1, ptr %quitat
  %roundat = getelementptr i8, ptr %team, i64 {_ROUND}
  %r = atomicrmw add ptr %roundat, i64 1 release
  %rc2 = call i32 @pthread_cond_broadcast(ptr %workc)
  %rc3 = call i32 @pthread_mutex_unlock(ptr %lock)"""
    + for_each(
        "tell",
        "all",
        """
  %threadat = getelementptr i8, ptr %itsstate, i64 {_THREAD}
  %thread = load i64, ptr %threadat
  %rc4 = call i32 @pthread_join(i64 %thread, ptr null)""",
    )
    + """all:
  %rc5 = call i32 @pthread_cond_destroy(ptr %workc)
  %rc6 = call i32 @pthread_cond_destroy(ptr %donec)
  %rc7 = call i32 @pthread_mutex_destroy(ptr %lock)
  br label %free
free:
  call void @aot.team.forget(ptr %team)
  br label %out
out:
  ret void
}}
"""
)

# The memory of a team; it begins with the process, or with -1 in memory that a forked child finds empty.
MEMORY = {
    "linux": """
define internal ptr @aot.team.memory() noinline nounwind {{
entry:
  %made = call ptr @mmap(ptr null, i64 4096, i32 3, i32 34, i32 -1, i64 0)
  %number = ptrtoint ptr %made to i64
  %failed = icmp eq i64 %number, -1
  br i1 %failed, label %none, label %wipe
wipe:
  %rc = call i32 @madvise(ptr %made, i64 4096, i32 18)
  %pid32 = call i32 @getpid()
  %pid = sext i32 %pid32 to i64
  %wiped = icmp eq i32 %rc, 0
  %mark = select i1 %wiped, i64 -1, i64 %pid
  store i64 %mark, ptr %made
  ret ptr %made
none:
  ret ptr null
}}
""",
    "darwin": """
define internal ptr @aot.team.memory() noinline nounwind {{
entry:
  %made = call ptr @calloc(i64 1, i64 {_TEAM_SIZE})
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %none, label %mark
mark:
  %pid32 = call i32 @getpid()
  %pid = sext i32 %pid32 to i64
  store i64 %pid, ptr %made
  ret ptr %made
none:
  ret ptr null
}}
""",
}
MEMORY["unix"] = MEMORY["linux"]
UNMAKE = {
    "linux": "%rc = call i32 @munmap(ptr %team, i64 4096)",
    "unix": "%rc = call i32 @munmap(ptr %team, i64 4096)",
    "darwin": "call void @free(ptr %team)",
}
MEMORY_NEEDS = ("ptr @mmap(ptr, i64, i32, i32, i32, i64)", "i32 @madvise(ptr, i64, i32)", "i32 @munmap(ptr, i64)")
