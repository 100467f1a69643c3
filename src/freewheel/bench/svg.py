"""Plots as small SVG files: grouped bars and lines, with nothing but text to write them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

# Told apart by most colour-blind readers, and in grey by their order.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
WIDTH, CHART_HEIGHT = 720, 220
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 34, 40
NUM_TICKS = 4


@dataclass(frozen=True)
class Chart:
    """Bars in groups: one bar per series in every group; None leaves a gap."""

    title: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Curve:
    """Points joined by a line; `is_dashed` for what was not measured and belongs to the curve of the same colour."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    is_dashed: bool = False


def bars(title: str, charts: Sequence[Chart]) -> str:
    """Charts below each other under one legend."""
    names = list(dict.fromkeys(name for chart in charts for name in chart.series))
    parts = [_title(title), *_legend([(name, i) for i, name in enumerate(names)])]
    for number, chart in enumerate(charts):
        parts += _chart(chart, names, 64 + number * CHART_HEIGHT)
    return _document(64 + len(charts) * CHART_HEIGHT, parts)


def lines(title: str, x_title: str, y_title: str, curves: Sequence[Curve]) -> str:
    """Curves over a common pair of axes; the y axis begins at 0."""
    height, top = 420, 64 + TOP
    xs = [x for curve in curves for x, _ in curve.points]
    low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    pad = (high - low) * 0.06 or 1.0
    low, high = low - pad, high + pad
    most = nice_top(max((y for curve in curves for _, y in curve.points), default=1.0))
    bottom = height - BOTTOM - 16
    parts = [_title(title), *_legend([(curve.name, curve.colour) for curve in curves if not curve.is_dashed])]
    parts += _grid(most, top, bottom)
    parts.append(_text(LEFT - 60, top - 14, y_title))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = LEFT + (point[0] - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        return x, bottom - point[1] / most * (bottom - top)

    for curve in curves:
        at = [place(point) for point in curve.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        dash = ' stroke-dasharray="6 4"' if curve.is_dashed else ""
        colour = COLOURS[curve.colour % len(COLOURS)]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if not curve.is_dashed:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in at]
    for x in sorted(set(xs)):
        parts.append(_text(place((x, 0.0))[0], bottom + 18, f"{x:g}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 10, x_title, "middle"))
    return _document(height, parts)


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def nice_top(most: float) -> float:
    """The end of an axis: 1, 1.5, 2, 3, 4, 5 or 8 times a power of ten, at or above the largest value."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 8, 10) if step * power >= most * (1 - 1e-9))


def _chart(chart: Chart, names: Sequence[str], y: float) -> list[str]:
    top, bottom = y + TOP, y + CHART_HEIGHT - BOTTOM
    values = [value for figures in chart.series.values() for value in figures if value is not None]
    most = nice_top(max(values, default=1.0))
    parts = [_text(LEFT - 60, y + 18, chart.title), *_grid(most, top, bottom)]
    room = (WIDTH - LEFT - RIGHT) / max(len(chart.groups), 1)
    bar = room * 0.8 / max(len(chart.series), 1)
    for g, group in enumerate(chart.groups):
        start = LEFT + g * room + room * 0.1
        parts.append(_text(LEFT + (g + 0.5) * room, bottom + 18, group, "middle"))
        for s, (name, figures) in enumerate(chart.series.items()):
            value = figures[g]
            if value is None:
                continue
            tall = value / most * (bottom - top)
            x, colour = start + s * bar, COLOURS[names.index(name) % len(COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{bottom - tall:.1f}" width="{bar * 0.9:.1f}" height="{tall:.1f}" fill="{colour}"/>'
            )
            parts.append(_text(x + bar * 0.45, bottom - tall - 4, short(value), "middle", 10))
    return parts


def _grid(most: float, top: float, bottom: float) -> list[str]:
    parts = []
    for i in range(NUM_TICKS + 1):
        y = bottom - i / NUM_TICKS * (bottom - top)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{"#444" if i == 0 else "#ddd"}"/>'
        )
        parts.append(_text(LEFT - 8, y + 4, short(most * i / NUM_TICKS), "end", 11))
    return parts


def _legend(entries: Sequence[tuple[str, int]]) -> list[str]:
    parts, x = [], float(LEFT - 60)
    for name, colour in entries:
        stroke = COLOURS[colour % len(COLOURS)]
        parts.append(f'<line x1="{x:.0f}" y1="48" x2="{x + 22:.0f}" y2="48" stroke="{stroke}" stroke-width="8"/>')
        parts.append(_text(x + 28, 52, name))
        x += 28 + 7.2 * len(name) + 22
    return parts


def _title(text: str) -> str:
    return _text(LEFT - 60, 26, text, size=16)


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _document(height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" fill="#222">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])


def short(value: float) -> str:
    """1,234 as 1.2k; small numbers with two digits."""
    if value >= 1e4:
        return f"{value / 1e3:.0f}k"
    if value >= 1e3:
        return f"{value / 1e3:.1f}k"
    return f"{value:.3g}"
