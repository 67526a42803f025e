"""LLVM IR as text: names, blocks and instructions of one function."""

from __future__ import annotations

import struct

UNROLLED = 400  # lines of a loop that is unrolled, all iterations together


def float_literal(value: float) -> str:
    """A double (or a float that is exact as a double) in LLVM's hexadecimal form."""
    return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"


def f32_literal(value: float) -> str:
    """The nearest float, written as LLVM wants it: the bits of the equal double."""
    try:
        return float_literal(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float_literal(float("inf") if value > 0 else float("-inf"))


def ascii_name(name: str) -> str:
    """A name as linkers and loaders take it: other characters than letters, digits, `_ . $` by their number."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_.$") else f"$u{ord(c):04x}" for c in name)


def symbol(name: str) -> str:
    """A global name in LLVM text."""
    return f"@{ascii_name(name)}"


def c_string(text: str) -> tuple[str, int]:
    """The constant `c"..."` for a zero-terminated string, and its length."""
    data = text.encode() + b"\0"
    body = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data)
    return f'c"{body}"', len(data)


def is_literal(name: str) -> bool:
    """Whether an i64 operand is a number."""
    return name[0] in "-0123456789"


def constant(name: str) -> int | None:
    """The number an i64 operand is, also where it stands for all lanes of a vector."""
    if name.startswith("splat (i64 "):
        name = name[11:-1]
    return int(name) if is_literal(name) else None


def trips(start: str, end: str, step: int | str) -> int:
    """How often a loop runs; 0 where that is not known."""
    if not (is_literal(start) and is_literal(end) and isinstance(step, int)):
        return 0
    return max(-(-(int(end) - int(start)) // step), 0)


class Text:
    """Appends instructions to the current block of one function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.cold: list[str] = []
        self.prologue: list[str] = []
        self.block_name = "entry"
        self.rolled = False
        self._repeated = 0
        self._count = 0

    # Names and lines ------------------------------------------------------------------------------------

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def label(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def op(self, text: str) -> str:
        """An instruction with a result; its name."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self.lines.append("  " + text)

    def hole(self) -> int:
        """A place for instructions that are known later: `fill`."""
        self.lines.append("")
        return len(self.lines) - 1

    def fill(self, hole: int, *lines: str) -> None:
        self.lines[hole] = "\n".join("  " + line for line in lines)

    # Blocks -----------------------------------------------------------------------------------------------

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block_name = label

    def jump(self, label: str) -> None:
        self.lines.append(f"  br label %{label}")

    def size(self) -> int:
        """Lines so far; those of loops that LLVM is to unroll count as often as they run."""
        return len(self.lines) + self._repeated

    def back(self, label: str, unless: tuple[str, str] | None = None, trips: int = 0, since: int = 0) -> None:
        """Back to the head of a loop: one that stays as it is where `rolled` says so.

        unless: the condition for it, and where to go otherwise. trips: how often it runs, if that is known; since: what
        `size` was at the head. Of a short one with few iterations LLVM is to make one block, so that small arrays
        become registers.
        """
        go = f"br label %{label}" if unless is None else f"br i1 {unless[0]}, label %{label}, label %{unless[1]}"
        body, how = self.size() - since, ""
        if self.rolled:
            how = ", !llvm.loop !2"
        elif trips > 1 and trips * body <= UNROLLED:
            how = ", !llvm.loop !5"
            self._repeated += (trips - 1) * body
        self.lines.append(f"  {go}{how}")

    def branch(self, cond: str, yes: str, no: str) -> None:
        self.lines.append(f"  br i1 {cond}, label %{yes}, label %{no}")

    def unless(self, bad: str, cold: str) -> None:
        """Go to the block `cold` if `bad`, which is unlikely."""
        go = self.label("ok")
        self.lines.append(f"  br i1 {bad}, label %{cold}, label %{go}, !prof !1")
        self.start(go)

    # Values -------------------------------------------------------------------------------------------------

    def phi(self, type_: str, *incoming: tuple[str, str]) -> str:
        return self.op(f"phi {type_} " + ", ".join(f"[ {value}, %{block} ]" for value, block in incoming))

    def alloca(self, type_: str, align: int = 8) -> str:
        """Storage in the entry block."""
        name = self.name()
        self.allocas.append(f"  {name} = alloca {type_}, align {align}")
        return name

    def add(self, x: str, y: str) -> str:
        """x + y of sizes and indices."""
        if x == "0":
            return y
        if y == "0":
            return x
        if is_literal(x) and is_literal(y):
            return str(int(x) + int(y))
        return self.op(f"add nsw i64 {x}, {y}")

    def mul(self, x: str, y: str) -> str:
        """x * y of sizes and indices."""
        if x == "1" or y == "0":
            return y
        if y == "1" or x == "0":
            return x
        if is_literal(x) and is_literal(y):
            return str(int(x) * int(y))
        return self.op(f"mul nsw i64 {x}, {y}")

    def bytes_at(self, base: str, offset: int | str) -> str:
        return self.op(f"getelementptr i8, ptr {base}, i64 {offset}")

    def load(self, type_: str, ptr: str) -> str:
        return self.op(f"load {type_}, ptr {ptr}")

    def store(self, type_: str, value: str, ptr: str) -> None:
        self.lines.append(f"  store {type_} {value}, ptr {ptr}")

    def body(self) -> str:
        """All blocks."""
        return "\n".join(["entry:", *self.allocas, *self.prologue, *self.lines, *self.cold])
