"""What processors have: the features code may use, and the check for them in front of a library's entries.

Which features a named processor has only LLVM's tables know, and llvmlite does not show them. So a small program is
compiled for it, and the instructions tell. That is done in a process of its own: LLVM prints what it thinks of a
name that it does not know, and may then end the process.
"""

from __future__ import annotations

import difflib
import functools
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
from aotdiff.codegen.loader import CodegenError
from aotdiff.codegen.system import system_of
from aotdiff.codegen.text import c_string

WRONG_PROCESSOR = 9  # the status where the processor lacks what the code needs


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature by its name in Linux and in LLVM, and where to ask for it.

    On x86 `place` is a leaf of cpuid, a register (0 to 3: eax, ebx, ecx, edx) and a bit; on aarch64 an entry of the
    auxiliary vector and a bit. `probe` is a function in LLVM IR, `sign` a pattern of the instruction that it becomes.
    """

    name: str
    llvm: str
    place: tuple[int, ...]
    probe: str
    sign: str


_WIDE = '"min-legal-vector-width"="512"'


def _operation(t: str, op: str, wide: str = "") -> str:
    return f"define {t} @probe({t} %a, {t} %b) {wide} {{ %c = {op} {t} %a, %b\n ret {t} %c }}"


def _count(t: str, name: str, wide: str = "") -> str:
    """Of bits or of leading zeros."""
    flag = (", i1 false", ", i1") if name.startswith("ctlz") else ("", "")
    call = f"%c = call {t} @llvm.{name}({t} %a{flag[0]})"
    return f"define {t} @probe({t} %a) {wide} {{ {call}\n ret {t} %c }}\ndeclare {t} @llvm.{name}({t}{flag[1]})"


def _memory(t: str, op: str) -> str:
    """Arithmetic on an array of 256 bits, in vectors of any length where there are such."""
    load, store = f"%a = load {t}, ptr %p", f"store {t} %c, ptr %p"
    return f"define void @probe(ptr %p) vscale_range(2, 2) {{ {load}\n %c = {op} {t} %a, %a\n {store}\n ret void }}"


_FMA = """define double @probe(double %a, double %b) { %c = call double @llvm.fma.f64(double %a, double %b, double %b)
 ret double %c }
declare double @llvm.fma.f64(double, double, double)"""
_SWAP = """define void @probe(ptr %p, i32 %a) { %c = call i32 @llvm.bswap.i32(i32 %a)
 store i32 %c, ptr %p
 ret void }
declare i32 @llvm.bswap.i32(i32)"""
_AND_NOT = """define i64 @probe(i64 %a, i64 %b) { %n = xor i64 %a, -1
 %c = and i64 %n, %b
 ret i64 %c }"""
_MASK = """define <4 x double> @probe(<4 x double> %a, <4 x double> %b) { %m = fcmp olt <4 x double> %a, %b
 %c = select <4 x i1> %m, <4 x double> %b, <4 x double> zeroinitializer
 ret <4 x double> %c }"""
_REVERSE = f"""define <64 x i8> @probe(<64 x i8> %a) {_WIDE} {{
 %c = shufflevector <64 x i8> %a, <64 x i8> poison, <64 x i32> <{", ".join(f"i32 {k}" for k in range(63, -1, -1))}>
 ret <64 x i8> %c }}"""

_X86 = (
    Feature("popcnt", "popcnt", (1, 2, 23), _count("i64", "ctpop.i64"), "popcnt"),
    Feature("movbe", "movbe", (1, 2, 22), _SWAP, "movbe"),
    Feature("avx", "avx", (1, 2, 28), _operation("<4 x double>", "fadd"), "vaddpd.*%ymm"),
    Feature("fma", "fma", (1, 2, 12), _FMA, "vfmadd"),
    Feature("avx2", "avx2", (7, 1, 5), _operation("<8 x i32>", "add"), "vpaddd.*%ymm"),
    Feature("bmi1", "bmi", (7, 1, 3), _AND_NOT, "andn"),
    Feature("bmi2", "bmi2", (7, 1, 8), _operation("i64", "shl"), "shlx"),
    Feature("avx512f", "avx512f", (7, 1, 16), _operation("<8 x double>", "fadd", _WIDE), "vaddpd.*%zmm"),
    Feature("avx512dq", "avx512dq", (7, 1, 17), _operation("<8 x i64>", "mul", _WIDE), "vpmullq.*%zmm"),
    Feature("avx512cd", "avx512cd", (7, 1, 28), _count("<8 x i64>", "ctlz.v8i64", _WIDE), "vplzcntq.*%zmm"),
    Feature("avx512bw", "avx512bw", (7, 1, 30), _operation("<64 x i8>", "add", _WIDE), "vpaddb.*%zmm"),
    Feature("avx512vl", "avx512vl", (7, 1, 31), _MASK, "vcmp.*%ymm.*%k"),
    Feature("avx512vbmi", "avx512vbmi", (7, 2, 1), _REVERSE, "vpermb"),
    Feature("avx512_vpopcntdq", "avx512vpopcntdq", (7, 2, 14), _count("<8 x i64>", "ctpop.v8i64", _WIDE),
            "vpopcntq.*%zmm"),
)  # fmt: skip

_ATOMIC_ADD = """define i64 @probe(ptr %p) { %c = atomicrmw add ptr %p, i64 1 seq_cst
 ret i64 %c }"""
_ATOMIC_LOAD = """define i64 @probe(ptr %p) { %c = load atomic i64, ptr %p acquire, align 8
 ret i64 %c }"""
_ROTATED = """define <4 x double> @probe(<4 x double> %a, <4 x double> %b) {
 %ar = shufflevector <4 x double> %a, <4 x double> poison, <2 x i32> <i32 0, i32 2>
 %ai = shufflevector <4 x double> %a, <4 x double> poison, <2 x i32> <i32 1, i32 3>
 %br = shufflevector <4 x double> %b, <4 x double> poison, <2 x i32> <i32 0, i32 2>
 %bi = shufflevector <4 x double> %b, <4 x double> poison, <2 x i32> <i32 1, i32 3>
 %re = fsub <2 x double> %br, %ai
 %im = fadd <2 x double> %bi, %ar
 %c = shufflevector <2 x double> %re, <2 x double> %im, <4 x i32> <i32 0, i32 2, i32 1, i32 3>
 ret <4 x double> %c }"""
_LARGER = """define i64 @probe(i64 %a, i64 %b) { %c = call i64 @llvm.smax.i64(i64 %a, i64 %b)
 ret i64 %c }
declare i64 @llvm.smax.i64(i64, i64)"""
_COPY = """define void @probe(ptr %p, ptr %q, i64 %n) {
 call void @llvm.memcpy.p0.p0.i64(ptr %p, ptr %q, i64 %n, i1 false)
 ret void }
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"""

_ARM = (
    Feature("atomics", "lse", (16, 8), _ATOMIC_ADD, "ldadd"),
    Feature("fcma", "complxnum", (16, 14), _ROTATED, "fcadd"),
    Feature("lrcpc", "rcpc", (16, 15), _ATOMIC_LOAD, "ldapr"),
    Feature("sve", "sve", (16, 22), _memory("<4 x double>", "fadd"), r"\bz\d"),
    Feature("sve2", "sve2", (26, 1), _memory("<4 x i64>", "mul"), r"mul\s+z\d+\.d, z"),
    Feature("cssc", "cssc", (26, 34), _LARGER, "smax"),
    Feature("mops", "mops", (26, 43), _COPY, "cpyfp|cpyp"),
)


def _known(triple: str) -> tuple[Feature, ...]:
    """The features that are checked on this target, where there is a way to ask for them."""
    if triple.startswith(("x86_64", "amd64")):
        return _X86
    return _ARM if triple.startswith(("aarch64", "arm64")) and system_of(triple) in ("linux", "unix") else ()


@functools.cache
def host_features() -> dict[str, bool]:
    return dict(llvm.get_host_cpu_features())


def required_features(cpu: str, triple: str | None) -> list[str]:
    """Features that code for this processor may use, as Linux names them; none where it is for any."""
    if cpu == "generic" or (cpu == "native" and triple is not None):
        return []
    target = triple or llvm.get_process_triple()
    if cpu != "native":
        return list(_features_of(cpu, target))
    host = host_features()
    return [feature.name for feature in _known(target) if host.get(feature.llvm)]


# Named processors ---------------------------------------------------------------------------------------------------

_PROBER = """
import sys, llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
cpu, triple, *texts = sys.stdin.read().split("\\x00")
machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=2, reloc="pic", codemodel="small")
for text in texts:
    print(machine.emit_assembly(llvm.parse_assembly(text)), end="\\x00")
"""


def _probed(cpu: str, triple: str, texts: Sequence[str]) -> subprocess.CompletedProcess[str]:
    given = "\x00".join([cpu, triple, *texts])
    return subprocess.run([sys.executable, "-c", _PROBER], input=given, capture_output=True, text=True, check=False)


@functools.cache
def _features_of(cpu: str, triple: str) -> tuple[str, ...]:
    """The features of a processor that LLVM knows by this name; CodegenError if it does not."""
    known = _known(triple)
    plain = "define void @probe() { ret void }"
    done = _probed(cpu, triple, [plain, *(feature.probe for feature in known)])
    if done.returncode or "not a recognized processor" in done.stderr:
        listed = re.findall(r"^\s+([\w.-]+)\s+- Select the ", _probed("help", triple, [plain]).stderr, re.M)
        near = [] if cpu in listed else difflib.get_close_matches(cpu, listed, 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ": native, generic or a name that LLVM knows"
        raise CodegenError(f"no processor {cpu!r} for {triple}{hint}")
    found = zip(known, done.stdout.split("\x00")[1:], strict=False)
    return tuple(feature.name for feature, text in found if re.search(feature.sign, _instructions(text)))


def _instructions(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if line.startswith("\t") and not line.startswith("\t."))


# The check ----------------------------------------------------------------------------------------------------------


def processor_check(triple: str, features: Sequence[str]) -> str:
    """LLVM text of `i1 aotdiff.fits()`: whether the processor can run the code, with the error text if not."""
    needed = [feature for feature in _known(triple) if feature.name in features]
    if not needed:
        return ""
    arm = needed[0] in _ARM
    names = ", ".join(feature.name for feature in needed)
    literal, size = c_string(f"this library needs a processor with {names}: rebuild there, or with --cpu generic")
    return _CHECK.format(
        size=size, literal=literal, code=WRONG_PROCESSOR, steps=_arm_steps(needed) if arm else _x86_steps(needed),
        generic="generic" if arm else "x86-64", extra="declare i64 @getauxval(i64)" if arm else "",
    )  # fmt: skip


_CHECK = """
@aotdiff.processor = internal global i8 0
@aotdiff.wants = private unnamed_addr constant [{size} x i8] {literal}
attributes #1000 = {{ nounwind "target-cpu"="{generic}" "target-features"="" }}
{extra}

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
{steps}
good:
  store i8 1, ptr @aotdiff.processor
  ret i1 true
bad:
  call void @aotdiff.say(i32 {code}, ptr @aotdiff.wants)
  ret i1 false
}}
"""
_CPUID = '"cpuid", "={ax},={bx},={cx},={dx},0,2,~{dirflag},~{fpsr},~{flags}"'


def _masks(needed: Sequence[Feature]) -> dict[tuple[int, ...], int]:
    """The bits needed, by where they are."""
    masks: dict[tuple[int, ...], int] = {}
    for feature in needed:
        *place, bit = feature.place
        masks[tuple(place)] = masks.get(tuple(place), 0) | 1 << bit
    return masks


def _x86_steps(needed: Sequence[Feature]) -> str:
    names = [feature.name for feature in needed]
    masks = _masks(needed)
    registers = any(name.startswith("avx") or name == "fma" for name in names)  # which the system must save
    if registers:
        masks[1, 2] = masks.get((1, 2), 0) | 1 << 27  # osxsave, which xgetbv needs
    leaf = max(place[0] for place in masks)
    steps = [f"""  %top = call {{ i32, i32, i32, i32 }} asm {_CPUID}(i32 0, i32 0)
  %leaves = extractvalue {{ i32, i32, i32, i32 }} %top, 0
  %enough = icmp uge i32 %leaves, {leaf}
  br i1 %enough, label %next, label %bad
next:"""]  # fmt: skip
    for n, ((leaf, register), mask) in enumerate(sorted(masks.items())):
        signed = mask - (1 << 32) if mask >> 31 else mask
        steps.append(f"""  %leaf{n} = call {{ i32, i32, i32, i32 }} asm {_CPUID}(i32 {leaf}, i32 0)
  %bits{n} = extractvalue {{ i32, i32, i32, i32 }} %leaf{n}, {register}
  %have{n} = and i32 %bits{n}, {signed}
  %all{n} = icmp eq i32 %have{n}, {signed}
  br i1 %all{n}, label %next{n}, label %bad
next{n}:""")
    if not registers:
        return "\n".join([*steps, "  br label %good"])
    state = 0xE6 if any(name.startswith("avx512") for name in names) else 6
    steps.append(f"""  %state = call {{ i32, i32 }} asm "xgetbv", "={{ax}},={{dx}},{{cx}}"(i32 0)
  %low = extractvalue {{ i32, i32 }} %state, 0
  %saved = and i32 %low, {state}
  %whole = icmp eq i32 %saved, {state}
  br i1 %whole, label %good, label %bad""")
    return "\n".join(steps)


def _arm_steps(needed: Sequence[Feature]) -> str:
    steps = []
    for n, ((entry,), mask) in enumerate(sorted(_masks(needed).items())):
        steps.append(f"""  %bits{n} = call i64 @getauxval(i64 {entry})
  %have{n} = and i64 %bits{n}, {mask}
  %all{n} = icmp eq i64 %have{n}, {mask}
  br i1 %all{n}, label %next{n}, label %bad
next{n}:""")
    return "\n".join([*steps, "  br label %good"])
