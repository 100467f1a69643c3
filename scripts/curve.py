"""Draws the returns of a run's training episodes over its steps: `python scripts/curve.py RUN OUT.svg [TITLE]`."""

import csv
import statistics
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 64, 24, 48, 56
POINTS = 60  # of the curve, each the mean of as many episodes


def main(run: Path, out: Path, title: str) -> None:
    with (run / "episodes.csv").open(newline="") as file:
        rows = [(int(row["step"]), float(row["return"]), float(row["seconds"])) for row in csv.DictReader(file)]
    per_point = max(1, len(rows) // POINTS)
    groups = [rows[i : i + per_point] for i in range(0, len(rows) - per_point + 1, per_point)]
    points = [tuple(statistics.fmean(column) for column in zip(*group, strict=True)) for group in groups]
    out.write_text(draw(points, title, per_point), encoding="utf-8")
    for at, value, _ in points[:: max(1, len(points) // 12)]:
        print(f"{at:12,.0f} {value:8.1f}")


def draw(points: list[tuple[float, ...]], title: str, per_point: int) -> str:
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    low, high = low - (high - low) * 0.05 - 1e-9, high + (high - low) * 0.05 + 1e-9
    most = max(p[0] for p in points)

    def x(step: float) -> float:
        return LEFT + step / most * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [text(LEFT - 48, 26, title, size=16)]
    for i in range(5):
        value, step = low + (high - low) * i / 4, most * i / 4
        parts.append(f'<line x1="{LEFT}" y1="{y(value):.1f}" x2="{WIDTH - RIGHT}" y2="{y(value):.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y(value) + 4, f"{value:.1f}", "end"))
        parts.append(text(x(step), HEIGHT - BOTTOM + 20, f"{step:,.0f}", "middle"))
    line = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value, _ in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#0072b2" stroke-width="2"/>')
    parts.append(
        text(WIDTH / 2, HEIGHT - 12, f"steps; each point the mean return of {per_point} training episodes", "middle")
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *parts, "</svg>\n"])


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{words}</text>'


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else Path(sys.argv[1]).name)
