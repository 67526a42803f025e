"""`argsort` as LLVM IR: bottom-up merge sort of indices, stable, NaN last."""

from __future__ import annotations

_BLOCK = 1 << 16  # elements between looks


def sorter(name: str, memory: str, register: str, interrupts: bool) -> str:
    """Function `i1 name(values, n, result, scratch, flag, stop)` for elements of one type.

    It ends early, and gives true, when one of the two flags is not 0; without `interrupts` nobody looks at them.
    """

    def look(k: int) -> str:
        if not interrupts:
            return f"  %end{k} = icmp ne i32 0, 0"
        return f"""  %flag{k} = load volatile i32, ptr %flag, align 4
  %stop{k} = load volatile i32, ptr %stop, align 4
  %any{k} = or i32 %flag{k}, %stop{k}
  %end{k} = icmp ne i32 %any{k}, 0"""

    is_float = register in ("double", "float")
    load = lambda to, at: f"  %{to} = load {memory}, ptr {at}"  # noqa: E731
    if is_float:
        # b before a only if b is less, or a is NaN and b is not
        less = f"""  %below = fcmp olt {register} %b, %a
  %anan = fcmp uno {register} %a, 0.0
  %bnum = fcmp ord {register} %b, 0.0
  %later = and i1 %anan, %bnum
  %right = or i1 %below, %later"""
    else:
        less = f"  %right = icmp {'ult' if memory == 'i8' else 'slt'} {memory} %b, %a"
    return f"""
define internal i1 {name}(ptr readonly %x, i64 %n, ptr %result, ptr %scratch, ptr %flag, ptr %stop) #1 {{
entry:
  br label %fill
fill:
  %f = phi i64 [ 0, %entry ], [ %f1, %fillbody ]
  %fmore = icmp slt i64 %f, %n
  br i1 %fmore, label %fillbody, label %width
fillbody:
  %fat = getelementptr i64, ptr %result, i64 %f
  store i64 %f, ptr %fat
  %f1 = add i64 %f, 1
  br label %fill
width:
  %w = phi i64 [ 1, %fill ], [ %w2, %widthend ]
  %from = phi ptr [ %result, %fill ], [ %to, %widthend ]
  %to = phi ptr [ %scratch, %fill ], [ %from, %widthend ]
  %wmore = icmp slt i64 %w, %n
  br i1 %wmore, label %runs, label %last
runs:
  %lo = phi i64 [ 0, %width ], [ %hi, %runend ]
  %rmore = icmp slt i64 %lo, %n
  br i1 %rmore, label %run, label %widthend
run:
  %mid0 = add i64 %lo, %w
  %mid = call i64 @llvm.smin.i64(i64 %mid0, i64 %n)
  %hi0 = add i64 %mid, %w
  %hi = call i64 @llvm.smin.i64(i64 %hi0, i64 %n)
  %first0 = add i64 %lo, {_BLOCK}
  %first = call i64 @llvm.smin.i64(i64 %first0, i64 %hi)
{look(1)}
  br i1 %end1, label %stopped, label %merge
merge:
  %i = phi i64 [ %lo, %run ], [ %i2, %put ], [ %i, %more ]
  %j = phi i64 [ %mid, %run ], [ %j2, %put ], [ %j, %more ]
  %k = phi i64 [ %lo, %run ], [ %k2, %put ], [ %k, %more ]
  %bound = phi i64 [ %first, %run ], [ %bound, %put ], [ %next, %more ]
  %kmore = icmp slt i64 %k, %bound
  br i1 %kmore, label %choose, label %full
full:
  %all = icmp eq i64 %k, %hi
  br i1 %all, label %runend, label %more
more:
  %next0 = add i64 %k, {_BLOCK}
  %next = call i64 @llvm.smin.i64(i64 %next0, i64 %hi)
{look(2)}
  br i1 %end2, label %stopped, label %merge
choose:
  %ileft = icmp slt i64 %i, %mid
  br i1 %ileft, label %lefthas, label %takeright
lefthas:
  %jleft = icmp slt i64 %j, %hi
  br i1 %jleft, label %compare, label %takeleft
compare:
  %ia = getelementptr i64, ptr %from, i64 %i
  %ix = load i64, ptr %ia
  %ap = getelementptr {memory}, ptr %x, i64 %ix
{load("a", "%ap")}
  %ja = getelementptr i64, ptr %from, i64 %j
  %jx = load i64, ptr %ja
  %bp = getelementptr {memory}, ptr %x, i64 %jx
{load("b", "%bp")}
{less}
  br i1 %right, label %takeright, label %takeleft
takeleft:
  %li = add i64 %i, 1
  br label %put
takeright:
  %rj = add i64 %j, 1
  br label %put
put:
  %i2 = phi i64 [ %li, %takeleft ], [ %i, %takeright ]
  %j2 = phi i64 [ %j, %takeleft ], [ %rj, %takeright ]
  %source = phi i64 [ %i, %takeleft ], [ %j, %takeright ]
  %sat = getelementptr i64, ptr %from, i64 %source
  %sv = load i64, ptr %sat
  %tat = getelementptr i64, ptr %to, i64 %k
  store i64 %sv, ptr %tat
  %k2 = add i64 %k, 1
  br label %merge
runend:
  br label %runs
widthend:
  %w2 = shl i64 %w, 1
  br label %width
last:
  %there = icmp eq ptr %from, %result
  br i1 %there, label %out, label %copy
copy:
  %bytes = shl i64 %n, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %result, ptr %from, i64 %bytes, i1 false)
  br label %out
out:
  ret i1 false
stopped:
  ret i1 true
}}
"""


DECLARATIONS = (
    "declare i64 @llvm.smin.i64(i64, i64)",
    "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
)
