"""Turns a chart into an SVG that stands in the page: described, slim, free of inline styles and of clashing ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from xml.etree import ElementTree  # reads only what vl-convert has just written

import lazy_loader
from markupsafe import Markup

from tokendynamics.figures.drawing import svg_of
from tokendynamics.figures.palette import BLUE, GRID, INK, PAPER, chart_config

_SVG = "http://www.w3.org/2000/svg"
_ROW = 21
_BOX = {"x": "8", "y": "-6", "width": "14", "height": "12"}
_DROPPED = ("role", "aria-roledescription", "aria-hidden", "aria-label", "class", "pointer-events", "font-family")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
_ARCS = re.compile(r"M([\d.]+),0A\1,\1,0,1,1,-\1,0A\1,\1,0,1,1,\1,0")
_INHERITED = (
    "fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "font-size",
    "font-weight", "text-anchor",
)  # fmt: skip
_HOVER = re.compile("mark-(?:rect|symbol) role-mark hover")
_HIT = re.compile("mark-rect role-mark hit")
ElementTree.register_namespace("", _SVG)


WIDE, NARROW = 740, 258
"""Widths of a chart's plotting area in CSS pixels: for the page, which scales it down, and for a phone."""

_LEAST = {"wide": WIDE + 55.0, "narrow": NARROW + 55.0}
"""What is drawn is at least as wide as a chart with its axis, or a small one would be blown up to the page's width."""

Specification: TypeAlias = dict[str, Any]
"""What a drawing says, as plain values: drawings beside each other are put together of these, since altair copies every
part of each again at every level."""

if TYPE_CHECKING:
    import altair as alt

    Drawing: TypeAlias = (
        alt.Chart | alt.LayerChart | alt.FacetChart | alt.ConcatChart | alt.HConcatChart | alt.VConcatChart
    )
else:
    # Takes half a second, for which figures in print need not wait.
    alt, Drawing = lazy_loader.load("altair"), Any


@dataclass(frozen=True)
class Key:
    """One entry of a chart's legend."""

    label: str
    mark: Literal["line", "band", "box", "circle", "disc", "diamond", "triangle", "dot"]
    colour: str
    dash: str = ""
    width: float = 2.2
    opacity: float = 1.0


def draw_for_screens(
    make: Callable[[float], Drawing | Specification],
    *,
    ident: str,
    title: str,
    description: str,
    keys: Sequence[Key] = (),
) -> Markup:
    """Draw a chart for the page and again for a phone, of which the style sheet shows one.

    A drawing that is scaled to a third of its width has letters that cannot be read; the second one is drawn as wide as
    it is shown. It carries no text for the pointer, which phones do not have.

    Args:
        make: Returns the chart for a width of its plotting area.
        ident: See `draw`.
        title: See `draw`.
        description: See `draw`.
        keys: See `draw`.
    """
    from altair.utils.schemapi import debug_mode

    # Altair would hold every axis against its schema: half of the time, for charts that are the project's own.
    with debug_mode(False):
        wide, narrow = make(WIDE), make(NARROW)
    drawn = draw(wide, ident=ident, title=title, description=description, keys=keys, screen="wide")
    return drawn + draw(
        narrow, ident=f"{ident}-narrow", title=title, description=description, keys=keys, screen="narrow"
    )


def inline(rows: Sequence[Mapping[str, Any]]) -> alt.Data:
    """Return rows as data of a chart, as text: altair walks through anything else value by value, several times.

    Args:
        rows: Plain values; None without one.
    """
    return alt.Data(values=json.dumps(rows), format={"type": "json"})


def plain(chart: Drawing | Specification) -> Specification:
    """Return what a drawing says, to be a part of another."""
    if isinstance(chart, dict):
        return chart
    # The schema check is slow on inline rows and adds nothing here: vl-convert refuses what it cannot draw.
    whole = chart.to_dict(validate=False)
    return {name: value for name, value in whole.items() if name not in ("$schema", "config")}


def layered(*layers: Drawing | Specification, **properties: Any) -> Specification:
    """Return drawings over each other.

    Args:
        layers: The lowest first.
        properties: Of all of them, such as the width.
    """
    return {"layer": [plain(layer) for layer in layers], **properties}


def words_chart(lines: Sequence[str]) -> Drawing:
    """Return a chart that holds lines of text: why there is nothing to draw."""
    text = alt.Chart(alt.Data(values=[{}])).mark_text(text=list(lines), align="left", x=0)
    return text.properties(width=2 * NARROW, height=60)


def draw(
    chart: Drawing | Specification,
    *,
    ident: str,
    title: str,
    description: str,
    keys: Sequence[Key] = (),
    screen: Literal["", "wide", "narrow", "notebook"] = "",
) -> Markup:
    """Draw `chart` without a browser.

    Args:
        chart: The chart; marks named ``hover…`` keep their description as a native tooltip, and those named ``hit…``
            as the name of the table that holds what the pointer is over.
        ident: Prefix of every id inside.
        title: The question that the figure answers.
        description: What there is to see, in a sentence with numbers.
        keys: The legend, set above the chart.
        screen: Which screens it is for; empty for all. On "narrow" and "notebook" nothing shows text for the pointer.
    """
    specification = plain(chart) | {"$schema": alt.SCHEMA_URL, "config": chart_config()}
    root = ElementTree.fromstring(svg_of(specification))  # noqa: S314
    if screen in {"narrow", "notebook"}:
        _drop_hover(root)
    # What takes the pointer names the table that its numbers are read from.
    for group in root.iter():
        if _HIT.search(group.get("class", "")):
            for mark in group:
                mark.set("data-table", mark.get("aria-label", ""))
                mark.set("data-class", "hit")
    _slim(root, tooltips=False)
    names: dict[str, str] = {}
    for element in root.iter():
        if "id" in element.attrib:
            names[element.attrib["id"]] = f"{ident}-clip-{len(names) + 1}"
            element.set("id", names[element.attrib["id"]])
    for element in root.iter():
        reference = element.get("clip-path", "")
        if reference:
            element.set("clip-path", f"url(#{names[reference[5:-1]]})")
    if float(root.attrib["width"]) < (least := _LEAST.get(screen, 0.0)):
        root.set("width", f"{least:g}")
        root.set("viewBox", f"0 0 {least:g} {root.attrib['height']}")
    _add_keys(root, keys)
    _describe(root, ident, title, description)
    if screen == "notebook":
        root.set("style", "width: 100%; height: auto; max-width: 52rem")
    elif screen:
        root.set("class", screen)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704  # serialised, hence escaped


def _drop_hover(root: ElementTree.Element) -> None:
    """Remove what only carries text for the pointer, and the text of marks that are drawn."""
    for group in root.iter():
        for child in list(group):
            if not _HOVER.search(child.get("class", "")):
                continue
            if all(mark.get("fill-opacity") == "0" for mark in child):
                group.remove(child)
            else:
                child.set("class", "")


def _slim(element: ElementTree.Element, tooltips: bool) -> None:
    tooltips = tooltips or _HOVER.search(element.get("class", "")) is not None
    rectangles = "mark-rect" in element.get("class", "")
    for child in list(element):
        if _draws_nothing(child):
            element.remove(child)
            continue
        _slim(child, tooltips)
        if child.tag == f"{{{_SVG}}}g" and len(child) == 0:
            element.remove(child)
    text = element.get("aria-label") if tooltips and len(element) == 0 else None
    for name in _DROPPED:
        element.attrib.pop(name, None)
    if element.get("opacity") == "1":
        del element.attrib["opacity"]
    for name in ("d", "transform", "x2", "y2", "fill-opacity"):
        if name in element.attrib:
            element.set(name, _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.2f}", element.attrib[name]))
    if "data-class" in element.attrib:
        element.set("class", element.attrib.pop("data-class"))
    # Vega makes a circle of two arcs; its element takes a third of the bytes.
    arcs = _ARCS.fullmatch(element.get("d", ""))
    if arcs:
        element.tag = f"{{{_SVG}}}circle"
        del element.attrib["d"]
        element.set("r", arcs[1])
    if rectangles:
        _join(element)
    _hoist(element)
    if text:
        ElementTree.SubElement(element, f"{{{_SVG}}}title").text = text
        element.set("class", "tip")


def _join(group: ElementTree.Element) -> None:
    """Make one path of rectangles that follow each other and look alike: a matrix of 3600 entries stays small."""
    former: ElementTree.Element | None = None
    seen: dict[str, str] = {}
    for mark in list(group):
        look = {name: value for name, value in mark.attrib.items() if name != "d"}
        if former is not None and look == seen and len(mark) == len(former) == 0 and "d" in mark.attrib:
            former.set("d", former.get("d", "") + mark.attrib["d"])
            group.remove(mark)
            continue
        former, seen = mark, look
    if len(group) and "d" in group[0].attrib:
        group.set("shape-rendering", "crispEdges")


def _hoist(group: ElementTree.Element) -> None:
    """Move what all children of a group say alike to the group: its colours and lines are inherited."""
    children = list(group)
    if len(children) < 2:
        return
    for name in _INHERITED:
        values = {child.get(name) for child in children}
        if len(values) == 1 and None not in values and name not in group.attrib:
            group.set(name, values.pop() or "")
            for child in children:
                del child.attrib[name]


def _draws_nothing(element: ElementTree.Element) -> bool:
    if element.get("class") not in {"background", "foreground"}:
        return False
    return not (element.get("fill") or element.get("stroke"))


def _describe(root: ElementTree.Element, ident: str, title: str, description: str) -> None:
    for name in ("class", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {
        "id": f"{ident}-svg",
        "role": "img",
        "aria-labelledby": f"{ident}-title {ident}-desc",
        "font-family": "system-ui, sans-serif",
    }
    for position, (tag, text) in enumerate((("title", title), ("desc", description))):
        child = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{ident}-{tag}"})
        child.text = text
        root.insert(position, child)


def _add_keys(root: ElementTree.Element, keys: Sequence[Key]) -> None:
    if not keys:
        return
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    places, rows = _places(keys, width)
    lift = rows * _ROW + 4
    drawing = ElementTree.Element(f"{{{_SVG}}}g", {"transform": f"translate(0,{lift})"})
    for child in list(root):
        root.remove(child)
        drawing.append(child)
    root.append(drawing)
    for key, (x, row) in zip(keys, places, strict=True):
        root.append(_key(key, x, row * _ROW + 12, width - x - _LABEL))
    root.set("height", f"{height + lift:g}")
    root.set("viewBox", f"0 0 {width:g} {height + lift:g}")


def _places(keys: Sequence[Key], width: float) -> tuple[list[tuple[float, int]], int]:
    left, x, row, places = 4.0, 4.0, 0, []
    for key in keys:
        needed = _LABEL + 4 + _text_width(key.label)
        if x > left and x + needed > width:
            x, row = left, row + 1
        places.append((x, row))
        x += needed + 14
    return places, row + 1


_LABEL = 30.0
"""Where the label of a key begins."""

_GLYPHS = {"iljI.,:;|'!": 4.0, " ()[]-/tfr": 5.2, "mwMW@%": 11.8}
"""Widths of characters in 12 px of the widest font that readers have; others are given by their kind."""


def _text_width(text: str) -> float:
    """Estimate the width of a label in pixels, rather too wide than too narrow."""
    known = {glyph: width for glyphs, width in _GLYPHS.items() for glyph in glyphs}
    return sum(known.get(glyph, 8.8 if glyph.isupper() else 7.7) for glyph in text)


def _key(key: Key, x: float, y: float, room: float) -> ElementTree.Element:
    group = ElementTree.Element(f"{{{_SVG}}}g", {"transform": f"translate({x:g},{y:g})"})
    stroke = {"stroke": key.colour, "stroke-width": f"{key.width:g}"}
    if key.dash:
        stroke["stroke-dasharray"] = key.dash
    shapes = {
        "line": ("line", {"x2": "24", **stroke}),
        "band": ("rect", {"y": "-6", "width": "24", "height": "12", "fill": key.colour, "fill-opacity": "0.18"}),
        "box": ("rect", {**_BOX, "fill": key.colour, "fill-opacity": f"{key.opacity:g}", "stroke": GRID}),
        "circle": ("circle", {"cx": "14", "r": "3.6", "fill": PAPER, **stroke}),
        "disc": ("circle", {"cx": "14", "r": "3.6", "fill": key.colour}),
        "dot": ("circle", {"cx": "20", "r": "5", "fill": key.colour, "stroke": BLUE}),
        "diamond": ("path", {"d": "M14,-6L19,0L14,6L9,0Z", "fill": key.colour, "stroke": PAPER}),
        "triangle": ("path", {"d": "M14,-5L19,4H9Z", "fill": key.colour, "stroke": PAPER}),
    }
    tag, attributes = shapes[key.mark]
    ElementTree.SubElement(group, f"{{{_SVG}}}{tag}", attributes)
    label = ElementTree.SubElement(group, f"{{{_SVG}}}text", {"x": "30", "y": "4", "font-size": "12px", "fill": INK})
    label.text = key.label
    if _text_width(key.label) > room:  # longer than a whole row
        label.attrib |= {"textLength": f"{room:g}", "lengthAdjust": "spacingAndGlyphs"}
    return group
