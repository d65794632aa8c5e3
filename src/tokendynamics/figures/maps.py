"""Maps: signed values by layer, whose hue is the sign and whose depth the size; layers over the steps of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from tokendynamics.figures.axes import Column, hover, ticks, time_axis
from tokendynamics.figures.palette import GRID, INK, NEGATIVE, PAPER, POSITIVE
from tokendynamics.figures.svg import WIDE, Key, Specification, alt, inline, layered
from tokendynamics.words import number

_KEYS = (
    Key("−1", "box", NEGATIVE),
    Key("−0.4", "box", NEGATIVE, opacity=0.4),
    Key("0", "box", NEGATIVE, opacity=0.03),
    Key("+0.4", "box", POSITIVE, opacity=0.4),
    Key("+1   (a dash marks cells below −0.05)", "box", POSITIVE),
)
_SHOWN_SIGN = 0.05


@dataclass(frozen=True)
class Tile:
    """One value of the map: NaN where undefined; `text` is shown on hover."""

    layer: int
    row: int
    value: float
    text: str


@dataclass(frozen=True)
class SignedMap:
    """Tiles, layers × rows.

    Attributes:
        tiles: In any order.
        title: What a row is.
        rows: From the top.
    """

    tiles: Sequence[Tile]
    title: str
    rows: Sequence[int]
    largest: float = 1.0
    """Size of the values in the deepest colour."""

    @property
    def keys(self) -> Sequence[Key]:
        """The legend: the scale of colours."""
        if self.largest == 1.0:
            return _KEYS
        ends = (number(part * self.largest, 2) for part in (1.0, 0.4, 0.4, 1.0, _SHOWN_SIGN))
        full, some, more, most, dash = ends
        labels = (f"−{full}", f"−{some}", "0", f"+{more}", f"+{most}   (a dash marks cells below −{dash})")
        return [replace(key, label=label) for key, label in zip(_KEYS, labels, strict=True)]

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        layers, rows = sorted({tile.layer for tile in self.tiles}), list(self.rows)
        height = max(min(20 * len(rows), 400), 90)
        base = alt.Chart(alt.Data(values=[_drawn(tile, self.largest) for tile in self.tiles])).encode(
            x=alt.X(
                "layer:O",
                axis=alt.Axis(title="Layer", values=_thinned(layers, width), labelAngle=0),
                scale=alt.Scale(padding=0),
            ),
            y=alt.Y(
                "row:O", sort=rows, axis=alt.Axis(title=self.title, values=_thinned(rows)), scale=alt.Scale(padding=0)
            ),
        )
        strength = alt.FillOpacity("strength:Q", scale=None, legend=None)
        fill = alt.Fill("sign:N", scale=alt.Scale(domain=["+", "−"], range=[POSITIVE, NEGATIVE]), legend=None)
        small = min(width / len(layers), height / len(rows)) < 9
        tiled = (
            base.properties(name="hover")
            .mark_rect(stroke=GRID, strokeWidth=0.6)
            .encode(fill=fill, fillOpacity=strength, description="text:N")
        )
        dashes = base.mark_text(fontSize=7 if small else 11, aria=False).encode(
            text="mark:N", color=alt.Color("ink:N", scale=None)
        )
        return layered(tiled, dashes, width=width, height=height)


def _thinned(values: list[int], width: float = WIDE) -> list[int]:
    return values[:: math.ceil(len(values) * 24 / width)]


def _drawn(tile: Tile, largest: float) -> dict:
    undefined = math.isnan(tile.value)
    shown = 0.0 if undefined else tile.value / largest
    return {
        "layer": tile.layer,
        "row": tile.row,
        "sign": "+" if shown >= 0 else "−",
        "strength": round(abs(shown), 3),
        "text": tile.text,
        "mark": "×" if undefined else "−" if shown < -_SHOWN_SIGN else "",
        "ink": PAPER if abs(shown) > 0.55 else INK,
    }


@dataclass(frozen=True)
class Sign:
    """A sign at a place of the map, in the colour `ink`."""

    x: float
    y: int
    sign: str
    ink: str


@dataclass(frozen=True)
class LayerMap:
    """Cells, steps × layers, the last layer on top.

    Attributes:
        edges: Where the columns begin, and where the last one ends.
        layers: The rows.
        colours: For each column the colour of each row.
        keys: What the colours mean.
        signs: Over the cells.
        columns: Texts shown on hover.
    """

    edges: Sequence[float]
    layers: Sequence[int]
    colours: Sequence[Sequence[str]]
    keys: Sequence[Key]
    signs: Sequence[Sign]
    columns: Sequence[Column]

    def chart(self, width: float = WIDE) -> Specification:
        """Return the chart for a width of its plotting area."""
        layers, edges = self.layers, self.edges
        height = int(min(max(14 * len(layers), 120), 420))
        axis = time_axis(edges[0], edges[-1], "Step")
        x = axis.x(width)
        shown = alt.Axis(title="Layer", values=[tick for tick in ticks(layers[-1]) if tick in layers], format="d")
        y = alt.Y("y:Q", scale=alt.Scale(domain=[layers[0] - 0.5, layers[-1] + 0.5], nice=False), axis=shown)
        tiles = [
            {"x": left, "x2": right, "y": layer - 0.5, "y2": layer + 0.5, "colour": colour}
            for column, left, right in zip(self.colours, edges[:-1], edges[1:], strict=True)
            for layer, colour in zip(layers, column, strict=True)
        ]
        # One colour after the other: neighbours that look alike become one path.
        cells = (
            alt.Chart(inline(sorted(tiles, key=lambda tile: str(tile["colour"]))))
            .mark_rect(stroke=GRID, strokeWidth=0.4)
            .encode(x=x, x2="x2:Q", y=y, y2="y2:Q", fill=alt.Fill("colour:N", scale=None))
        )
        words = alt.Chart(inline([asdict(sign) for sign in self.signs]))
        words = words.mark_text(align="left", dx=2, fontSize=11, aria=False)
        over = [words.encode(x=x, y=y, text="sign:N", color=alt.Color("ink:N", scale=None))] if self.signs else []
        return layered(cells, *over, hover(self.columns, axis, height, width), width=width, height=height)
