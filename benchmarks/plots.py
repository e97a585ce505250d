"""Plots as SVG, by hand: no plotting package is needed, and the same numbers give the same bytes.

    plot = Plot("Recall by similarity", "true Jaccard similarity", "share found", x=(0.5, 1.0), y=(0.0, 1.0))
    plot.line(points, "promised")
    plot.dots(points, "found", errors=intervals)
    plot.save(path)

Black on white with a drawn background, so that it reads on dark pages, too; series differ in colour and in shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

Point = tuple[float, float]
COLOURS = ("#1f5fa8", "#c2410c", "#15803d", "#7e22ce", "#374151")  # readable side by side, also without red and green
WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 52


def ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round numbers from low to high, at most so many and one: steps of 1, 2, 2.5 or 5 times a power of ten."""
    if not low < high:
        raise ValueError(f"an axis from {low} to {high} has no length")
    power = math.floor(math.log10((high - low) / most))
    for base in (1.0, 2.0, 2.5, 5.0, 10.0):
        step = base * 10.0**power
        if (high - low) / step <= most * (1 + 1e-9):
            break
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


@dataclass
class Plot:
    """One diagram. x, y: the ends of the axes; points outside are not drawn (lines are cut at the frame)."""

    title: str
    x_label: str
    y_label: str
    x: tuple[float, float]
    y: tuple[float, float]
    note: str = ""
    _body: list[str] = field(default_factory=list)
    _legend: list[tuple[str, str]] = field(default_factory=list)
    _drawn: list[Point] = field(default_factory=list)  # points, and some of every line, in the picture

    def _x(self, value: float) -> float:
        return LEFT + (value - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y[0]) / (self.y[1] - self.y[0]) * (HEIGHT - TOP - BOTTOM)

    def _inside(self, point: Point) -> bool:
        return self.x[0] <= point[0] <= self.x[1] and self.y[0] <= point[1] <= self.y[1]

    def _colour(self) -> str:
        return COLOURS[len(self._legend) % len(COLOURS)]

    def line(self, points: Iterable[Point], label: str, dashed: bool = False) -> None:
        """A line through points that ascend in x. Without a label it belongs to the series before it."""
        colour = self._colour() if label else COLOURS[(len(self._legend) - 1) % len(COLOURS)]
        style = ' stroke-dasharray="5 4"' if dashed else ""
        points = [point for point in points if self.x[0] <= point[0] <= self.x[1]]
        for (a, b), (c, d) in pairwise(points):
            self._drawn += [(self._x(a + (c - a) * i / 20), self._y(b + (d - b) * i / 20)) for i in range(21)]
        path = " ".join(f"{self._x(a):.1f},{self._y(b):.1f}" for a, b in points)
        look = f'stroke="{colour}" stroke-width="1.6"{style}'
        self._body.append(f'<polyline points="{path}" fill="none" {look} clip-path="url(#frame)"/>')
        if label:
            self._legend.append((label, f'<line x1="0" y1="0" x2="22" y2="0" {look}/>'))

    def dots(
        self,
        points: Sequence[Point],
        label: str,
        errors: Sequence[tuple[float, float]] | None = None,
        radius: float = 3.5,
        faint: bool = False,
    ) -> None:
        """Points, with low and high ends of their errors where given. Every second series is squares.

        faint: for thousands of points, so that where many lie is darker
        """
        colour = self._colour()
        square = len(self._legend) % 2 == 1
        look = f'fill="{colour}"' + (' fill-opacity="0.25"' if faint else "")

        def mark(x: float, y: float, size: float) -> str:
            if square:
                return (
                    f'<rect x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size:g}" height="{2 * size:g}" {look}/>'
                )
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" {look}/>'

        for i, point in enumerate(points):
            if not self._inside(point):
                continue
            x = self._x(point[0])
            self._drawn.append((x, self._y(point[1])))
            if errors is not None:
                low, high = (self._y(min(max(end, self.y[0]), self.y[1])) for end in errors[i])
                self._body.append(f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" stroke="{colour}"/>')
            self._body.append(mark(x, self._y(point[1]), radius))
        look = f'fill="{colour}"'
        self._legend.append((label, mark(11, 0, 3.5)))

    def mark(self, x: float, label: str) -> None:
        """A thin upright line with a word at its top."""
        place = self._x(x)
        self._body.append(
            f'<line x1="{place:.1f}" y1="{TOP}" x2="{place:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#888" '
            f'stroke-dasharray="2 3"/><text x="{place + 4:.1f}" y="{TOP + 12}" fill="#555">{escape(label)}</text>'
        )

    def _corner(self) -> Point:
        """Where the legend begins: in the corner of the frame in which it covers least of what is drawn."""
        wide = 30 + max((7 * len(label) for label, _ in self._legend), default=0)
        high = 18 * (len(self._legend) - 1)
        right, bottom, left, top = WIDTH - RIGHT - wide, HEIGHT - BOTTOM - 14 - high, LEFT + 12, TOP + 28

        def covered(corner: Point) -> int:
            x, y = corner
            return sum(x - 8 <= a <= x + wide and y - 12 <= b <= y + high + 12 for a, b in self._drawn)

        return min([(right, bottom), (left, top), (left, bottom), (right, top)], key=covered)

    def svg(self) -> str:
        """The whole picture."""
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12" role="img">',
            f"<title>{escape(self.title)}</title>",
            f'<defs><clipPath id="frame"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
            f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath></defs>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(self.title)}</text>',
        ]
        for value in ticks(*self.x):
            place = self._x(value)
            out.append(
                f'<line x1="{place:.1f}" y1="{TOP}" x2="{place:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
                f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>'
            )
        for value in ticks(*self.y):
            place = self._y(value)
            out.append(
                f'<line x1="{LEFT}" y1="{place:.1f}" x2="{WIDTH - RIGHT}" y2="{place:.1f}" stroke="#eee"/>'
                f'<text x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{value:g}</text>'
            )
        out += self._body
        out.append(
            f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}" fill="none" '
            'stroke="#333"/>'
        )
        middle = (TOP + HEIGHT - BOTTOM) / 2
        out.append(
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 16}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>"
            f'<text x="16" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 16 {middle:.1f})">'
            f"{escape(self.y_label)}</text>"
        )
        if self.note:
            out.append(
                f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end" font-size="10" fill="#555">'
                f"{escape(self.note)}</text>"
            )
        x, y = self._corner()
        for label, symbol in self._legend:
            out.append(f'<g transform="translate({x} {y})">{symbol}<text x="28" y="4">{escape(label)}</text></g>')
            y += 18
        return "\n".join([*out, "</svg>"]) + "\n"

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.svg(), encoding="utf-8")
