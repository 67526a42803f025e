"""Pictures of graphs: a function and its adjoint beside the source, as SVG or as a page around it.

Every operation is a line in a box, regions are boxes inside boxes, and what belongs to one source line has one
colour (what a library function brought has none). Curves lead from a value to where it is used; constants stand where
they are used. On the page, pointing at a line shows all that came from it.
"""

from __future__ import annotations

import colorsys
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aotdiff.runtime.interface import Refused

if TYPE_CHECKING:
    from aotdiff.ir.graph import Func, Loc, Module, Op, Region, Value
    from aotdiff.runtime.function import Function

_ROW, _CHAR, _INDENT, _MARGIN, _GUTTER = 18, 7.3, 16, 24, 90
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**", "ipow": "**",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "and", "or": "or",
}  # fmt: skip
_MOST_EDGES = 1500
_STYLE = """
text { font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #1d1d1f; white-space: pre }
.title { font-weight: bold; font-size: 14px } .type { fill: #6e6e73 } .number { fill: #a1a1a6 }
.region { fill: none; stroke: #c7c7cc } .row { stroke: none }
.edge { fill: none; stroke: #98989d; stroke-width: 0.8; marker-end: url(#end) } #end { fill: #98989d }
.on .row, .row.on { stroke: #0a60ff; stroke-width: 1.5 }
"""
_ARROW = (
    '<marker id="end" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="0">'
    '<path d="M0 0 L6 3 L0 6 z"/></marker>'
)
_SCRIPT = """
for (const element of document.querySelectorAll("[data-line]"))
  for (const [event, on] of [["mouseenter", true], ["mouseleave", false]])
    element.addEventListener(event, () => {
      for (const other of document.querySelectorAll(`[data-line="${element.dataset.line}"]`))
        other.classList.toggle("on", on);
    });
"""


def draw(f: Function, page: bool, order: int = 1) -> str:
    """The picture of a function and its derivatives up to `order`, as SVG or as an HTML page."""
    compiler, root, places = f.recipe()
    graph, name = compiler.optimized(root, places, "f64")
    path = f.interface.path
    panels = [Panel(f.name, path).function(graph, name)]
    derived = f
    for _ in range(order):
        try:
            derived = derived.vjp()
        except Refused:
            break
        compiler, root, places = derived.recipe()
        graph, name = compiler.optimized(root, places, "f64")
        panels.append(Panel(derived.name, path).function(graph, name))
    source = _Source(path, compiler.program().sources.get(path, "").split("\n"), panels)
    svg = _svg([source.panel(), *panels])
    if not page:
        return svg
    title = html.escape(f"{f.name}: {f.signature}")
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
    return f'{head}\n<body style="margin:0; overflow:auto">\n{svg}\n<script>{_SCRIPT}</script></body></html>\n'


@dataclass(slots=True)
class _Line:
    depth: int
    text: str
    type: str
    line: int | None


@dataclass(slots=True)
class Panel:
    """One column: its lines, the boxes around regions, the curves between lines. `path`: whose lines have colours."""

    title: str
    path: str
    lines: list[_Line] = field(default_factory=list)
    boxes: list[tuple[int, int, int]] = field(default_factory=list)  # first line, last line, depth
    edges: list[tuple[int, int]] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)
    rows: dict[Any, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    numbered: bool = False

    def function(self, graph: Module, name: str) -> Panel:
        """Fill the column with a function and those it calls."""
        pending, done = [name], set()
        while pending:
            func = graph.funcs[pending.pop(0)]
            if func.name in done:
                continue
            done.add(func.name)
            self._func(func)
            pending += [op.attrs["callee"] for op in func.body.walk() if op.name == "call"]
        return self

    def _func(self, func: Func) -> None:
        self.lines.append(_Line(0, "", "", None))
        head = ", ".join(self._define(p, len(self.lines)) for p in func.params)
        result = ", ".join(map(str, func.result_types))
        self.lines.append(_Line(0, f"@{func.name}({head})", f"-> {result}", self._line(func.loc)))
        self._region(func.body, 1)

    def _region(self, region: Region, depth: int) -> None:
        start = len(self.lines)
        for op in region.ops:
            self._op(op, depth)
        self.boxes.append((start, len(self.lines) - 1, depth))

    def _line(self, loc: Loc | None) -> int | None:
        return loc.line if loc is not None and loc.path == self.path else None

    def _op(self, op: Op, depth: int) -> None:
        if op.name == "const":
            self.names[op.results[0]] = _shown(op.attrs["value"])
            return
        row = len(self.lines)
        for operand in dict.fromkeys(op.operands):
            source = self.rows.get(operand)
            if source is not None and row - source > 1:
                self.edges.append((source, row))
        results = ", ".join(self._define(r, row) for r in op.results)
        text = self._text(op, [self.names.get(v, "?") for v in op.operands])
        types = ", ".join(str(r.type) for r in op.results)
        line = self._line(op.loc)
        self.lines.append(_Line(depth, (f"{results} = {text}" if results else text)[:100], types[:60], line))
        for region in op.regions:
            if region.args:
                head = ", ".join(self._define(a, len(self.lines)) for a in region.args)
                self.lines.append(_Line(depth + 1, f"({head})", "", line))
            self._region(region, depth + 1)

    def _text(self, op: Op, operands: list[str]) -> str:
        """The operation as one would write it, where there is such a way."""
        if op.name in _INFIX:
            return f" {_INFIX[op.name]} ".join(operands)
        if op.name in ("read", "accum"):
            place = f"{operands[0]}[{', '.join(operands[1 : len(operands) - (op.name == 'accum')])}]"
            return place if op.name == "read" else f"{place} += {operands[-1]}"
        shown = ("callee", "kinds", "axis", "kind", "to")
        return " ".join([op.name, *operands, *(_shown(op.attrs[key]) for key in shown if key in op.attrs)])

    def _define(self, value: Value, row: int) -> str:
        stem = value.name or "v"
        taken = self.counts[stem] = self.counts.get(stem, -1) + 1
        self.names[value] = f"{stem}.{taken}" if taken or not value.name else stem
        self.rows[value] = row
        return self.names[value]

    @property
    def width(self) -> float:
        longest = max((len(line.text) + len(line.type) + 2 for line in self.lines), default=10)
        deepest = max((line.depth for line in self.lines), default=0)
        return max(longest, len(self.title)) * _CHAR + deepest * _INDENT + (0 if self.numbered else _GUTTER)


class _Source:
    """The column of source lines that the graphs come from."""

    def __init__(self, path: str, lines: Sequence[str], panels: Sequence[Panel]) -> None:
        self.path = path
        self.lines = lines
        self.used = {line.line for panel in panels for line in panel.lines if line.line}

    def panel(self) -> Panel:
        made = Panel(self.path, self.path, numbered=True)
        if self.used:
            for number in range(min(self.used), max(self.used) + 1):
                if number <= len(self.lines):
                    made.lines.append(_Line(0, f"{number:4}  {self.lines[number - 1][:100]}", "", number))
        return made


def _shown(attribute: Any) -> str:
    if isinstance(attribute, bool):
        return str(attribute).lower()
    return " ".join(map(str, attribute)) if isinstance(attribute, (tuple, list)) else str(attribute)


def _svg(panels: Sequence[Panel]) -> str:
    height = max(len(panel.lines) for panel in panels) * _ROW + 3 * _MARGIN
    left, parts = float(_MARGIN), []
    for panel in panels:
        parts.append(_column(panel, left))
        left += panel.width + 2 * _MARGIN
    size = f'width="{left:.0f}" height="{height}" viewBox="0 0 {left:.0f} {height}"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    body = "\n".join([f"<style>{_STYLE}</style>", _ARROW, background, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'


def _column(panel: Panel, left: float) -> str:
    top = 2 * _MARGIN
    x = left + (0 if panel.numbered else _GUTTER)
    out = [f'<text class="title" x="{x:.0f}" y="{_MARGIN}">{html.escape(panel.title)}</text>']
    width = panel.width - (0 if panel.numbered else _GUTTER)
    for first, last, depth in panel.boxes:
        y, h = top + first * _ROW - 2, (last - first + 1) * _ROW + 2
        at = x + (depth - 0.4) * _INDENT
        size = f'width="{width - (depth - 0.4) * _INDENT:.0f}" height="{h}"'
        out.append(f'<rect class="region" rx="4" x="{at:.0f}" y="{y}" {size}/>')
    edges = sorted(panel.edges, key=lambda e: e[1] - e[0])[:_MOST_EDGES]
    for source, target in edges:
        y1, y2 = top + (source + 0.5) * _ROW, top + (target + 0.5) * _ROW
        lane = x - 4
        bend = lane - min(_GUTTER - 12.0, 8 + 3 * (target - source) ** 0.7)
        start, end = (x + panel.lines[row].depth * _INDENT - 3 for row in (source, target))
        curve = f"C{bend:.0f} {y1:.0f} {bend:.0f} {y2:.0f} {lane:.0f} {y2:.0f}"
        out.append(f'<path class="edge" d="M{start:.0f} {y1:.0f} H{lane:.0f} {curve} H{end:.0f}"/>')
    for k, line in enumerate(panel.lines):
        if line.text:
            out.append(_row(line, x, top + k * _ROW, width))
    return "\n".join(out)


def _colour(line: int) -> str:
    """A light colour of its own for a source line."""
    red, green, blue = colorsys.hls_to_rgb(line * 47 % 360 / 360, 0.93, 0.6)
    return f"#{int(red * 255):02x}{int(green * 255):02x}{int(blue * 255):02x}"


def _row(line: _Line, x: float, y: float, width: float) -> str:
    at = x + line.depth * _INDENT
    colour = _colour(line.line) if line.line else "none"
    mark = f' data-line="{line.line}"' if line.line else ""
    size = f'width="{width - line.depth * _INDENT:.0f}" height="{_ROW - 2}"'
    box = f'<rect class="row" x="{at - 3:.0f}" y="{y}" {size} rx="3" fill="{colour}"/>'
    kind = f'<tspan class="type">  {html.escape(line.type)}</tspan>' if line.type else ""
    text = f'<text x="{at:.0f}" y="{y + 12}" xml:space="preserve">{html.escape(line.text)}{kind}</text>'
    return f"<g{mark}>{box}{text}</g>"
