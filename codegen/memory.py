"""The workspace allocator, as LLVM IR: size classes with free lists over a few large chunks.

Everything allocated during a call is given back at its end at once (`aot.reset`), so error paths free nothing.
A buffer has a 64-byte header that holds its size class; classes are four to an octave.
"""

from __future__ import annotations

from aotdiff.codegen import context as ctx

_BIG = 1 << 20
_LIMIT = 1 << 46
_FIRST_CHUNK = 1 << 16
# Large blocks of one size are not a multiple of a page apart: arrays that a loop walks side by side would compete for
# the same sets of the cache.
_LARGE, _APART = 1 << 14, 768

ALLOC = f"""
define internal noalias ptr @aot.alloc(ptr noalias %ctx, i64 %bytes) #1 {{
entry:
  %big = icmp ugt i64 %bytes, {_LIMIT}
  br i1 %big, label %none, label %sized, !prof !1
sized:
  %rounded = call i64 @llvm.umax.i64(i64 %bytes, i64 64)
  %x = sub i64 %rounded, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %x, i1 true)
  %e = sub i64 63, %zeros
  %shift = sub i64 %e, 2
  %top = lshr i64 %x, %shift
  %m = and i64 %top, 3
  %e4 = shl i64 %e, 2
  %class = or i64 %e4, %m
  %offset = shl i64 %class, 3
  %lists = getelementptr i8, ptr %ctx, i64 {ctx.FREE}
  %slot = getelementptr i8, ptr %lists, i64 %offset
  %head = load ptr, ptr %slot
  %empty = icmp eq ptr %head, null
  br i1 %empty, label %carve, label %pop
pop:
  %next = load ptr, ptr %head
  store ptr %next, ptr %slot
  ret ptr %head
carve:
  %m5 = add i64 %m, 5
  %size = shl i64 %m5, %shift
  %large = icmp ugt i64 %size, {_LARGE}
  %round = select i1 %large, i64 {127 + _APART}, i64 127
  %padded = add i64 %size, %round
  %need = and i64 %padded, -64
  %bumpat = getelementptr i8, ptr %ctx, i64 {ctx.BUMP}
  %endat = getelementptr i8, ptr %ctx, i64 {ctx.BUMP_END}
  %dirty = getelementptr i8, ptr %ctx, i64 {ctx.DIRTY}
  store i64 1, ptr %dirty
  %bump = load ptr, ptr %bumpat
  %end = load ptr, ptr %endat
  %b = ptrtoint ptr %bump to i64
  %f = ptrtoint ptr %end to i64
  %room = sub i64 %f, %b
  %fits = icmp uge i64 %room, %need
  br i1 %fits, label %place, label %chunk, !prof !0
place:
  %after = getelementptr i8, ptr %bump, i64 %need
  store ptr %after, ptr %bumpat
  br label %done
chunk:
  %block = call ptr @aot.chunk(ptr %ctx, i64 %need)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %none, label %done, !prof !1
done:
  %start = phi ptr [ %bump, %place ], [ %block, %chunk ]
  store i64 %class, ptr %start
  %user = getelementptr i8, ptr %start, i64 64
  ret ptr %user
none:
  ret ptr null
}}
"""

# A chunk: next chunk, its size, whether it was mapped; blocks from a multiple of 64 on. Large blocks get a chunk each
# and leave the bump. Where the system maps pages large chunks are mapped: what `free` keeps for itself, or cannot give
# back because of something above it, would be memory besides the chunk that replaces it.
_MAPPED = 1 << 18
_CHUNK = f"""
define internal ptr @aot.chunk(ptr %ctx, i64 %need) #1 {{
entry:
  %keepat = getelementptr i8, ptr %ctx, i64 {ctx.KEEP}
  %keep = load i64, ptr %keepat
  %given = icmp eq i64 %keep, -1
  br i1 %given, label %none, label %more
more:
  %wantat = getelementptr i8, ptr %ctx, i64 {ctx.WANT}
  %want = load i64, ptr %wantat
  %totalat = getelementptr i8, ptr %ctx, i64 {ctx.TOTAL}
  %total = load i64, ptr %totalat
  %least = call i64 @llvm.umax.i64(i64 %want, i64 {_FIRST_CHUNK})
  %grown = call i64 @llvm.umax.i64(i64 %least, i64 %total)
  %capped = call i64 @llvm.umin.i64(i64 %grown, i64 268435456)
  %usual = call i64 @llvm.umax.i64(i64 %capped, i64 %want)
  %need128 = add i64 %need, 128
  %big = icmp uge i64 %need, {_BIG}
  %covers = icmp uge i64 %usual, %need128
  %first = icmp ne i64 %want, 0
  %whole = and i1 %covers, %first
  %notwhole = xor i1 %whole, true
  %alone = and i1 %big, %notwhole
  %atleast = call i64 @llvm.umax.i64(i64 %usual, i64 %need128)
  %size = select i1 %alone, i64 %need128, i64 %atleast
  %try = call ptr @aot.pages(i64 %size)
  %failed = icmp eq ptr %try, null
  br i1 %failed, label %smaller, label %got
smaller:
  %again = call ptr @aot.pages(i64 %need128)
  %hopeless = icmp eq ptr %again, null
  br i1 %hopeless, label %none, label %got
got:
  %p = phi ptr [ %try, %more ], [ %again, %smaller ]
  %n = phi i64 [ %size, %more ], [ %need128, %smaller ]
  %newtotal = add i64 %total, %n
  store i64 %newtotal, ptr %totalat
  store i64 0, ptr %wantat
  %listat = getelementptr i8, ptr %ctx, i64 {ctx.CHUNKS}
  %list = load ptr, ptr %listat
  store ptr %list, ptr %p
  %sizeat = getelementptr i8, ptr %p, i64 8
  store i64 %n, ptr %sizeat
  store ptr %p, ptr %listat
  %start = call ptr @aot.chunk_start(ptr %p)
  br i1 %alone, label %out, label %usable
usable:
  %after = getelementptr i8, ptr %start, i64 %need
  %bumpat = getelementptr i8, ptr %ctx, i64 {ctx.BUMP}
  store ptr %after, ptr %bumpat
  %end = getelementptr i8, ptr %p, i64 %n
  %endat = getelementptr i8, ptr %ctx, i64 {ctx.BUMP_END}
  store ptr %end, ptr %endat
  br label %out
out:
  ret ptr %start
none:
  ret ptr null
}}

define internal ptr @aot.chunk_start(ptr %p) #2 {{
  %i = ptrtoint ptr %p to i64
  %j = add i64 %i, 95
  %k = and i64 %j, -64
  %d = sub i64 %k, %i
  %start = getelementptr i8, ptr %p, i64 %d
  ret ptr %start
}}
"""

_MALLOC = """
define internal ptr @aot.pages(i64 %size) #2 {
  %p = call ptr @malloc(i64 %size)
  ret ptr %p
}
define internal void @aot.unpage(ptr %p) #2 {
  call void @free(ptr %p)
  ret void
}
"""

_MAP = f"""
define internal ptr @aot.pages(i64 %size) #1 {{
entry:
  %large = icmp uge i64 %size, {_MAPPED}
  br i1 %large, label %map, label %ask
map:
  %pages = call ptr @mmap(ptr null, i64 %size, i32 3, i32 34, i32 -1, i64 0)
  %number = ptrtoint ptr %pages to i64
  %refused = icmp eq i64 %number, -1
  br i1 %refused, label %none, label %have
ask:
  %given = call ptr @malloc(i64 %size)
  %nothing = icmp eq ptr %given, null
  br i1 %nothing, label %none, label %have
have:
  %p = phi ptr [ %pages, %map ], [ %given, %ask ]
  %mappedat = getelementptr i8, ptr %p, i64 16
  %mapped = zext i1 %large to i64
  store i64 %mapped, ptr %mappedat
  ret ptr %p
none:
  ret ptr null
}}
define internal void @aot.unpage(ptr %p) #1 {{
entry:
  %mappedat = getelementptr i8, ptr %p, i64 16
  %mapped = load i64, ptr %mappedat
  %plain = icmp eq i64 %mapped, 0
  br i1 %plain, label %give, label %unmap
give:
  call void @free(ptr %p)
  ret void
unmap:
  %sizeat = getelementptr i8, ptr %p, i64 8
  %size = load i64, ptr %sizeat
  %rc = call i32 @munmap(ptr %p, i64 %size)
  ret void
}}
"""

FREE = f"""
define internal void @aot.free(ptr noalias %ctx, ptr %p) #1 {{
entry:
  %null = icmp eq ptr %p, null
  br i1 %null, label %out, label %put
put:
  %header = getelementptr i8, ptr %p, i64 -64
  %class = load i64, ptr %header
  %offset = shl i64 %class, 3
  %lists = getelementptr i8, ptr %ctx, i64 {ctx.FREE}
  %slot = getelementptr i8, ptr %lists, i64 %offset
  %head = load ptr, ptr %slot
  store ptr %head, ptr %p
  store ptr %p, ptr %slot
  br label %out
out:
  ret void
}}
"""

CLONE = """
define internal noalias ptr @aot.clone(ptr noalias %ctx, ptr %from, i64 %bytes) #1 {
entry:
  %p = call ptr @aot.alloc(ptr %ctx, i64 %bytes)
  %failed = icmp eq ptr %p, null
  %nothing = icmp eq ptr %from, null
  %skip = or i1 %failed, %nothing
  br i1 %skip, label %out, label %copy
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %p, ptr align 8 %from, i64 %bytes, i1 false)
  br label %out
out:
  ret ptr %p
}
"""

# A buffer of at least `need` bytes with the first `used` bytes of `p`, which is freed; twice the size where it moves.
GROW = """
define internal ptr @aot.grow(ptr noalias %ctx, ptr %p, i64 %used, i64 %need) #1 {
entry:
  %twice = shl i64 %used, 1
  %size = call i64 @llvm.umax.i64(i64 %need, i64 %twice)
  %new = call ptr @aot.alloc(ptr %ctx, i64 %size)
  %failed = icmp eq ptr %new, null
  br i1 %failed, label %out, label %copy
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %new, ptr align 8 %p, i64 %used, i1 false)
  call void @aot.free(ptr %ctx, ptr %p)
  br label %out
out:
  ret ptr %new
}
"""

RESET = f"""
define internal void @aot.reset(ptr noalias %ctx) #2 {{
entry:
  %dirtyat = getelementptr i8, ptr %ctx, i64 {ctx.DIRTY}
  %dirty = load i64, ptr %dirtyat
  %clean = icmp eq i64 %dirty, 0
  br i1 %clean, label %out, label %all
all:
  call void @aot.reset_all(ptr %ctx)
  br label %out
out:
  ret void
}}

define internal void @aot.reset_all(ptr noalias %ctx) #1 {{
entry:
  %dirtyat = getelementptr i8, ptr %ctx, i64 {ctx.DIRTY}
  store i64 0, ptr %dirtyat
  %lists = getelementptr i8, ptr %ctx, i64 {ctx.FREE}
  call void @llvm.memset.p0.i64(ptr align 8 %lists, i8 0, i64 {8 * ctx.FREE_LISTS}, i1 false)
  %listat = getelementptr i8, ptr %ctx, i64 {ctx.CHUNKS}
  %list = load ptr, ptr %listat
  %nothing = icmp eq ptr %list, null
  br i1 %nothing, label %none, label %some
none:
  ret void
some:
  %next = load ptr, ptr %list
  %one = icmp eq ptr %next, null
  %totalat = getelementptr i8, ptr %ctx, i64 {ctx.TOTAL}
  %total = load i64, ptr %totalat
  %keepat = getelementptr i8, ptr %ctx, i64 {ctx.KEEP}
  %asked = load i64, ptr %keepat
  %default = icmp eq i64 %asked, 0
  %keep = select i1 %default, i64 {ctx.KEEP_DEFAULT}, i64 %asked
  %small = icmp ule i64 %total, %keep
  %reuse = and i1 %one, %small
  br i1 %reuse, label %rewind, label %merge
rewind:
  %start = call ptr @aot.chunk_start(ptr %list)
  %bumpat = getelementptr i8, ptr %ctx, i64 {ctx.BUMP}
  store ptr %start, ptr %bumpat
  %end = getelementptr i8, ptr %list, i64 %total
  %endat = getelementptr i8, ptr %ctx, i64 {ctx.BUMP_END}
  store ptr %end, ptr %endat
  ret void
merge:
  %restat = getelementptr i8, ptr %ctx, i64 {ctx.BUMP}
  %rest = load i64, ptr %restat
  %stopat = getelementptr i8, ptr %ctx, i64 {ctx.BUMP_END}
  %stop = load i64, ptr %stopat
  %unused = sub i64 %stop, %rest
  %used = sub i64 %total, %unused
  call void @aot.release_chunks(ptr %ctx)
  br i1 %small, label %anew, label %none
anew:
  %wantat = getelementptr i8, ptr %ctx, i64 {ctx.WANT}
  store i64 %used, ptr %wantat
  %place = call ptr @aot.chunk(ptr %ctx, i64 0)
  ret void
}}
"""

RELEASE_CHUNKS = f"""
define internal void @aot.release_chunks(ptr %ctx) #1 {{
entry:
  %listat = getelementptr i8, ptr %ctx, i64 {ctx.CHUNKS}
  %list = load ptr, ptr %listat
  br label %loop
loop:
  %p = phi ptr [ %list, %entry ], [ %next, %again ]
  %last = icmp eq ptr %p, null
  br i1 %last, label %clear, label %again
again:
  %next = load ptr, ptr %p
  call void @aot.unpage(ptr %p)
  br label %loop
clear:
  call void @llvm.memset.p0.i64(ptr align 8 %listat, i8 0, i64 {ctx.KEEP - ctx.CHUNKS}, i1 false)
  %dirtyat = getelementptr i8, ptr %ctx, i64 {ctx.DIRTY}
  call void @llvm.memset.p0.i64(ptr align 8 %dirtyat, i8 0, i64 {ctx.STACK - ctx.DIRTY}, i1 false)
  ret void
}}
"""

# name -> (text, other runtime functions it calls, external declarations)
RUNTIME: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "aot.alloc": (
        ALLOC,
        ("aot.chunk",),
        ("declare i64 @llvm.umax.i64(i64, i64)", "declare i64 @llvm.ctlz.i64(i64, i1)"),
    ),
    "aot.chunk": (
        _CHUNK,
        ("aot.pages",),
        ("declare i64 @llvm.umax.i64(i64, i64)", "declare i64 @llvm.umin.i64(i64, i64)"),
    ),
    "aot.pages": (_MALLOC, (), ("declare ptr @malloc(i64)", "declare void @free(ptr)")),
    "aot.free": (FREE, (), ()),
    "aot.clone": (CLONE, ("aot.alloc",), ("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",)),
    "aot.grow": (
        GROW,
        ("aot.alloc", "aot.free"),
        ("declare i64 @llvm.umax.i64(i64, i64)", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"),
    ),
    "aot.reset": (RESET, ("aot.chunk", "aot.release_chunks"), ("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",)),
    "aot.release_chunks": (
        RELEASE_CHUNKS,
        ("aot.pages",),
        ("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",),
    ),
}

# Instead of "aot.pages" above, where there is `mmap` with 64 bits.
MAPPED_PAGES = (
    _MAP,
    (),
    (
        "declare ptr @malloc(i64)",
        "declare void @free(ptr)",
        "declare ptr @mmap(ptr, i64, i32, i32, i32, i64)",
        "declare i32 @munmap(ptr, i64)",
    ),
)
