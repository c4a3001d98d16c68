"""Line charts as SVG, written by hand: a few kilobytes each, readable in a diff, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

#: Okabe and Ito's colours, which colour-blind readers can tell apart; black is for what is ours.
COLOURS: Final = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#0072B2", "#999999")
_WIDTH, _HEIGHT, _LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 340, 270, 55, 30, 265, 185


@dataclass(frozen=True)
class Panel:
    """One chart: lines of (x, y) by name. x has a logarithmic axis; a name in `dashed` is drawn so."""

    title: str
    x_label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    dashed: tuple[str, ...] = ()


def svg(panels: Sequence[Panel]) -> str:
    """Panels side by side with one legend below. A name has the same colour in all of them."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colour = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    width, height = _WIDTH * len(panels), _HEIGHT + 18 * math.ceil(len(names) / 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for index, panel in enumerate(panels):
        parts += [f'<g transform="translate({index * _WIDTH + _LEFT},{_TOP})">', *_panel(panel, colour), "</g>"]
    dashed = {name for panel in panels for name in panel.dashed}
    for index, name in enumerate(names):
        x, y = 20 + index % 3 * 240, _HEIGHT + 10 + index // 3 * 18
        parts.append(_path([(x, y - 4), (x + 24, y - 4)], colour[name], name in dashed))
        parts.append(f'<text x="{x + 30}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, colour: Mapping[str, str]) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    parts = [f'<text x="0" y="-12" font-weight="bold">{escape(panel.title)}</text>']
    if not points:
        return parts
    xs = sorted({x for x, _ in points})
    low, high = math.log2(xs[0]), math.log2(xs[-1])
    top = _round_up(max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        share = (math.log2(x) - low) / (high - low) if high > low else 0.5
        return round(share * _PLOT_WIDTH, 1), round(_PLOT_HEIGHT * (1 - y / top), 1)

    for tick in range(5):
        y = place(xs[0], top * tick / 4)[1]
        parts.append(f'<path d="M0 {y}H{_PLOT_WIDTH}" stroke="#dddddd"/>')
        parts.append(f'<text x="-6" y="{y + 4}" text-anchor="end">{top * tick / 4:g}</text>')
    for x in xs:
        at = place(x, 0)[0]
        parts.append(f'<text x="{at}" y="{_PLOT_HEIGHT + 16}" text-anchor="middle">{x:g}</text>')
    middle = _PLOT_WIDTH / 2
    parts.append(f'<text x="{middle}" y="{_PLOT_HEIGHT + 34}" text-anchor="middle">{escape(panel.x_label)}</text>')
    for name, line in panel.lines.items():
        placed = [place(x, y) for x, y in line]
        parts.append(_path(placed, colour[name], name in panel.dashed))
        parts += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour[name]}"/>' for x, y in placed]
    return parts


def _path(points: Sequence[tuple[float, float]], colour: str, dashed: bool) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    steps = "L".join(f"{x} {y}" for x, y in points)
    return f'<path d="M{steps}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 6, 8, 10 times a power of ten: an axis that ends on a round number."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return float(next(step * unit for step in (1, 2, 4, 6, 8, 10) if step * unit >= value * 0.999))
