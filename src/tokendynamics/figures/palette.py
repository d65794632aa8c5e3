"""The colours, each with its twin for a dark page, and the look shared by all charts.

A chart is drawn with the light colours as plain attributes, so that its SVG is whole when copied out of the page.
The page's style sheet maps each of them to its dark twin by attribute. Hues follow the colour-blind-safe
blue-orange and purple-orange pairs; every pair also differs in lightness, and lines differ in dash and marker.
"""

from __future__ import annotations

from typing import Any

PAPER, INK, MUTED, AXIS, GRID = "#fefefd", "#1d2128", "#58606b", "#8b929c", "#e4e6ea"
BLUE, ORANGE, GREEN = "#1f5a99", "#b8520a", "#5c6b2f"
ATTENTION, FEED_FORWARD, NORM = "#1c4f8a", "#f2b25c", "#9aa3ae"
NEGATIVE, POSITIVE = "#5b3596", "#c9600a"
COMMON, OF_PROMPT, OWN = "#e0a458", "#2f6db3", "#dbe3ea"
PRINTED: tuple[tuple[str, tuple[float, ...]], ...] = (
    (BLUE, ()),
    ("#d55e00", (5, 1.6)),
    (INK, (1.2, 1.4)),
    ("#8a5bb5", (6, 1.6, 1.2, 1.6)),
    ("#00866a", (3, 1.4, 1.2, 1.4, 1.2, 1.4)),
    ("#a67200", (9, 2.6)),
)
"""Colour and dash of the first to the sixth line that has a name, on white paper."""

POSITIONS = ("#a9cbe6", "#74a9d2", "#3f82ba", "#1f5a99", "#0d335f")

_DARK = {
    PAPER: "#15181d",
    INK: "#e7e9ec",
    MUTED: "#a8b0bb",
    AXIS: "#737c88",
    GRID: "#2c323a",
    BLUE: "#7fb6ee",
    ORANGE: "#f0a25e",
    GREEN: "#b9c98a",
    ATTENTION: "#8fc1f5",
    FEED_FORWARD: "#a85f16",
    NORM: "#6d7682",
    NEGATIVE: "#b79bf0",
    COMMON: "#a96a1c",
    OF_PROMPT: "#5f9bdc",
    OWN: "#333c47",
    POSITIVE: "#f09a4a",
    **dict(zip(POSITIONS, ("#2f4a66", "#3f6a96", "#5590c8", "#86b9ea", "#c6e0f8"), strict=True)),
}
# BLUE is also the fourth position colour: the later entry wins, and both read well on the dark paper.


def dark_rules() -> str:
    """Return CSS rules that give every drawn colour its dark twin; meant for a dark media query."""
    return "\n".join(
        f'svg [{attribute}="{light}"] {{ {attribute}: {dark}; }}'
        for light, dark in _DARK.items()
        for attribute in ("fill", "stroke")
    )


def chart_config() -> dict[str, Any]:
    """Return the Vega-Lite `config` of every chart: quiet axes, a transparent background, no frame."""
    axis = {
        "labelColor": MUTED,
        "titleColor": INK,
        "gridColor": GRID,
        "domainColor": AXIS,
        "tickColor": AXIS,
        "labelFontSize": 12,
        "titleFontSize": 12.5,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "tickSize": 4,
    }
    return {
        "background": None,
        "view": {"stroke": None},
        "axis": axis,
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False, "minExtent": 40, "titleX": -48},
        "header": {"labelColor": INK, "labelFontSize": 12, "titleColor": INK},
        "title": {"color": INK, "fontSize": 12.5, "fontWeight": "normal"},
    }
