"""A chart of one run of bench/speculation.py as SVG: a panel for each way to draw and batch, a bar for each gain.

Owns the drawing. Knows gains, not how they came about. Invariants: within the picture a bar is as long as its gain is
high, from zero; a line marks plain decoding; the interval lies over the bar, and its figure beside it; the picture
brings its own background and follows the reader's choice of light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.compare_chart import STYLE, WIDTH
from bench.speculation_results import Interval, Results

MARGIN, GAP, COLUMNS = 24, 36, 2
TITLE, ROW, BAR, SET_GAP, NAME, FIGURE = 30, 18, 11, 8, 190, 118
TOP = 64
OWN_STYLE = ".whisker { stroke: #5b6773; stroke-width: 1.5; } .even { stroke: #b45309; stroke-dasharray: 3 3; }"


@dataclass(frozen=True, slots=True)
class Panel:
    """A title and, for each set, its bars: what they are named and their gains."""

    title: str
    rows: Sequence[tuple[str, Sequence[tuple[str, Interval]]]]


def chart(panels: Sequence[Panel], heading: str) -> str:
    """The whole picture. Panels without any bar are left out."""
    panels = [panel for panel in panels if any(bars for _, bars in panel.rows)]
    width = (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) // COLUMNS
    most = max((gain.high for panel in panels for _, bars in panel.rows for _, gain in bars), default=1.0)
    parts: list[str] = []
    top = TOP
    for first in range(0, len(panels), COLUMNS):
        tallest = 0
        for column, panel in enumerate(panels[first : first + COLUMNS]):
            drawn, height = _panel(panel, MARGIN + column * (width + GAP), top, width, max(most, 1.0))
            parts += drawn
            tallest = max(tallest, height)
        top += tallest + GAP // 2
    label = escape(f"{heading}: times plain decoding, by prompt set", {'"': "&quot;"})
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" '
        f'role="img" aria-label="{label}">'
    )
    quiet = "times plain decoding of the same engine, with the 95 % interval; the broken line is plain decoding"
    return "\n".join(
        [
            opening,
            f"<style>{STYLE}{OWN_STYLE}</style>",
            f'<rect class="page" width="{WIDTH}" height="{top}" rx="8"/>',
            _text(MARGIN, 28, heading, "head"),
            _text(MARGIN, 48, quiet, "quiet"),
            *parts,
            "</svg>\n",
        ]
    )


def panels_of(results: Results) -> list[Panel]:
    """One for each way to draw and each batch, in the order of the run."""
    found: dict[tuple[float, int], list[tuple[str, list[tuple[str, Interval]]]]] = {}
    for one in results.measured:
        bars = [(name, gain) for name in results.proposers() if (gain := one.gain(name)) is not None]
        found.setdefault((one.case.temperature, one.case.batch), []).append((one.case.key, bars))
    names = {0.0: "greedy"}
    return [
        Panel(f"{names.get(temperature, f'temperature {temperature:g}')}, batch {batch}", rows)
        for (temperature, batch), rows in found.items()
    ]


def _panel(panel: Panel, left: int, top: int, width: int, most: float) -> tuple[list[str], int]:
    """One panel's bars, and their height in all."""
    scale = (width - NAME - FIGURE) / most
    start = left + NAME
    parts = [_text(left, top + TITLE - 12, panel.title, "title")]
    y = top + TITLE
    for index, (key, bars) in enumerate(panel.rows):
        for number, (name, gain) in enumerate(bars):
            middle, kind = y + BAR / 2, "ours" if number == 0 else "peer"
            parts.append(_text(left, y + BAR - 1, f"{key}: {name}" if len(bars) > 1 else key))
            parts.append(
                f'<rect class="{kind}" x="{start}" y="{y}" width="{gain.value * scale:.1f}" height="{BAR}" rx="2"/>'
            )
            parts.append(
                f'<line class="whisker" x1="{start + gain.low * scale:.1f}" x2="{start + gain.high * scale:.1f}" '
                f'y1="{middle}" y2="{middle}"/>'
            )
            parts.append(_text(start + gain.high * scale + 6, y + BAR - 1, str(gain), "quiet"))
            y += ROW
        y += SET_GAP if index + 1 < len(panel.rows) else 0
    even = start + scale
    parts.append(f'<line class="even" x1="{even:.1f}" x2="{even:.1f}" y1="{top + TITLE - 4}" y2="{y}"/>')
    return parts, y - top


def _text(x: float, y: float, content: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x:.1f}" y="{y:.1f}">{escape(content)}</text>'
