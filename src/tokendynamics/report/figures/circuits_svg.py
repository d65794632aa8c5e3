"""A few SVG elements by hand, in the colours that the page maps to their dark twins."""

from __future__ import annotations

from typing import TypeAlias
from xml.etree import ElementTree  # writes only: nothing foreign is read

from markupsafe import Markup

from tokendynamics.report.palette import INK

_SVG = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", _SVG)

Parent: TypeAlias = ElementTree.Element


def empty(width: float) -> Parent:
    """Return a drawing without anything in it."""
    return ElementTree.Element(f"{{{_SVG}}}svg", {"width": f"{width:g}", "font-family": "system-ui, sans-serif"})


def add(parent: Parent, tag: str, **attributes: str) -> Parent:
    """Return a child of that tag."""
    return ElementTree.SubElement(parent, f"{{{_SVG}}}{tag}", attributes)


def text(
    parent: Parent, words: str, x: float, y: float, *, size: float, fill: str = INK, anchor: str = "", weight: str = ""
) -> None:
    """Write words at a place; `anchor` is "middle", "end" or the start."""
    attributes = {"x": f"{x:.6g}", "y": f"{y:.6g}", "font-size": f"{size:g}px", "fill": fill}
    if anchor:
        attributes["text-anchor"] = anchor
    if weight:
        attributes["font-weight"] = weight
    add(parent, "text", **attributes).text = words


def line(parent: Parent, x1: float, y1: float, x2: float, y2: float, stroke: str, width: float, dash: str = "") -> None:
    """Return a straight line."""
    attributes = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke-width": width}
    attributes = {name: f"{value:.6g}" for name, value in attributes.items()} | {"stroke": stroke}
    add(parent, "line", **attributes, **({"stroke-dasharray": dash} if dash else {}))


def described(root: Parent, *, ident: str, width: float, height: float, title: str, description: str) -> Markup:
    """Return the finished drawing as markup, with title and description for those who do not see it."""
    root.attrib |= {
        "height": f"{height:g}",
        "viewBox": f"0 0 {width:g} {height:g}",
        "id": f"{ident}-svg",
        "role": "img",
        "aria-labelledby": f"{ident}-title {ident}-desc",
    }
    for position, (tag, words) in enumerate((("title", title), ("desc", description))):
        child = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{ident}-{tag}"})
        child.text = words
        root.insert(position, child)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704  # serialised, hence escaped
