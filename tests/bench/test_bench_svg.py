"""Plots are well-formed SVG that shows what it was given."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from freewheel.bench import svg

SPACE = "{http://www.w3.org/2000/svg}"


def shapes(text: str, kind: str) -> list[ET.Element]:
    return list(ET.fromstring(text).iter(SPACE + kind))


def words(text: str) -> list[str | None]:
    return [element.text for element in shapes(text, "text")]


def test_bars_are_as_tall_as_their_values() -> None:
    panel = svg.Chart("a < b", ["one", "two"], {"x": [100.0, 50.0], "y": [25.0, None]})
    text = svg.bars("title & more", [panel])
    coloured = [e for e in shapes(text, "rect") if e.get("fill") != "#fff"]
    assert [e.get("fill") for e in coloured] == [svg.COLOURS[0], svg.COLOURS[1], svg.COLOURS[0]]
    tall = [float(e.get("height", "0")) for e in coloured]
    assert tall[0] == pytest.approx(2 * tall[2], abs=0.2)
    assert tall[0] == pytest.approx(4 * tall[1], abs=0.4)
    assert {"title & more", "a < b", "one", "two", "x", "y", "100", "50", "25"} <= set(words(text))


def test_lines_have_a_point_per_value_and_none_where_nothing_was_measured() -> None:
    curves = [
        svg.Curve("measured", [(10.0, 1.1), (50.0, 1.9)], 0),
        svg.Curve("predicted", [(10.0, 1.2), (50.0, 2.0)], 0, is_dashed=True),
    ]
    text = svg.lines("t", "x", "y", curves)
    assert len(shapes(text, "polyline")) == 2
    assert len(shapes(text, "circle")) == 2
    low, high = (float(e.get("cy", "0")) for e in shapes(text, "circle"))
    assert high < low  # up is more
    assert {"10", "50", "measured"} <= set(words(text))  # a dashed curve goes with the one of its colour


def test_everything_lies_inside() -> None:
    text = svg.bars("t", [svg.Chart(str(i), ["g"], {"x": [1.0], "y": [0.0]}) for i in range(3)])
    root = ET.fromstring(text)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for element in shapes(text, "text"):
        assert 0 <= float(element.get("x", "-1")) <= width
        assert 0 <= float(element.get("y", "-1")) <= height


def test_nothing_to_show_is_still_a_plot(tmp_path: Path) -> None:
    svg.write(tmp_path / "empty.svg", svg.lines("t", "x", "y", []))
    ET.fromstring((tmp_path / "empty.svg").read_text())


@pytest.mark.parametrize(("most", "top"), [(0.0, 1.0), (0.93, 1.0), (1.2, 1.5), (736.0, 800.0), (1000.0, 1000.0)])
def test_an_axis_ends_at_a_round_number(most: float, top: float) -> None:
    assert svg.nice_top(most) == pytest.approx(top)
