"""Legends stay within the drawing: labels begin a new row where they do not fit, and long ones are set narrower."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tokendynamics.figures.svg import NARROW, Key, _add_keys

DEJAVU = {"G": 9.3, "P": 7.2, "T": 7.3, "2": 7.6, "L": 6.7, "M": 10.4, "H": 9.0, "e": 7.4, "a": 7.4, "d": 7.6, "o": 7.3}
"""Widths at 12 px in a wide font that Linux browsers take for system-ui."""


@pytest.mark.parametrize(
    "labels", [["GPT2LMHeadModel [1]", "GPT2LMHeadModel [2]"], ["M" * 60], ["a", "b", "c"], ["one network " * 8, "two"]]
)
def test_no_label_leaves_a_narrow_drawing(labels: list[str]) -> None:
    width = NARROW + 55
    root = ElementTree.Element("svg", {"width": str(width), "height": "100", "viewBox": f"0 0 {width} 100"})
    _add_keys(root, [Key(label, "line", "#000000") for label in labels])
    ends = []
    for group in root.findall("{http://www.w3.org/2000/svg}g")[1:]:
        (text,) = group.findall("{http://www.w3.org/2000/svg}text")
        x = float(group.attrib["transform"].removeprefix("translate(").partition(",")[0])
        drawn = sum(DEJAVU.get(glyph, 7.0) for glyph in text.text or "")
        ends.append(x + float(text.attrib["x"]) + float(text.attrib.get("textLength", drawn)))
    assert len(ends) == len(labels)
    assert max(ends) <= width
