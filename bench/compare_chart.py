"""A chart of one run of bench/compare.py as SVG: a panel for each task, a bar for each engine.

Owns the drawing. Knows speeds, not how they came about. Invariants: within a panel a bar is as long as its speed is
high, from zero; every bar has its figure beside it; the picture brings its own background and follows the reader's
choice of light or dark, so it is readable on either.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from bench.compare_results import OURS, Results, Task

WIDTH, COLUMNS, MARGIN, GAP = 940, 2, 24, 36
TITLE, ROW, BAR, NAME, FIGURE = 30, 22, 14, 132, 62  # pixels: heights of a title, a row, a bar; widths of the texts
TOP = 64
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2933; }
.head { font-size: 16px; font-weight: 600; }
.title { font-weight: 600; }
.quiet { fill: #5b6773; }
.page { fill: #ffffff; }
.ours { fill: #0f766e; }
.peer { fill: #a9b4bf; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.quiet { fill: #9aa7b4; }
.page { fill: #0d1117; }
.ours { fill: #2dd4bf; }
.peer { fill: #57636f; }
}
"""


def chart(results: Results, heading: str) -> str:
    """The whole picture. Tasks without any speed have no panel."""
    tasks = [task for task in results.tasks() if any(results.speed(task, name) for name in results.names())]
    width = (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) // COLUMNS
    parts: list[str] = []
    top = TOP
    for first in range(0, len(tasks), COLUMNS):
        tallest = 0
        for column, task in enumerate(tasks[first : first + COLUMNS]):
            drawn, height = _panel(results, task, MARGIN + column * (width + GAP), top, width)
            parts += drawn
            tallest = max(tallest, height)
        top += tallest + GAP // 2
    label = escape(f"{heading}: tokens a second of each engine, by task", {'"': "&quot;"})
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" '
        f'role="img" aria-label="{label}">'
    )
    return "\n".join(
        [
            opening,
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{top}" rx="8"/>',
            _text(MARGIN, 28, heading, "head"),
            _text(MARGIN, 48, "tokens a second, medians; more is better; each panel has a scale of its own", "quiet"),
            *parts,
            "</svg>\n",
        ]
    )


def _panel(results: Results, task: Task, left: int, top: int, width: int) -> tuple[list[str], int]:
    """One task's bars, and their height in all."""
    bars = [(name, results.speed(task, name)) for name in results.names() if _tried(results, task, name)]
    longest = width - NAME - FIGURE
    most = max(speed for _, speed in bars if speed is not None)
    parts = [_text(left, top + TITLE - 12, task.title, "title")]
    for index, (name, speed) in enumerate(bars):
        y = top + TITLE + index * ROW
        parts.append(_text(left, y + BAR - 3, name))
        if speed is None:
            parts.append(_text(left + NAME, y + BAR - 3, "no measurement", "quiet"))
            continue
        length, kind = longest * speed / most, "ours" if name == OURS else "peer"
        parts.append(f'<rect class="{kind}" x="{left + NAME}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>')
        parts.append(_text(left + NAME + length + 6, y + BAR - 3, f"{speed:,.0f}"))
    return parts, TITLE + len(bars) * ROW


def _tried(results: Results, task: Task, name: str) -> bool:
    return any(name in found.get(task.key, {}) for found in (results.speeds, results.failures))


def _text(x: float, y: float, content: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x:.1f}" y="{y:.1f}">{escape(content)}</text>'
