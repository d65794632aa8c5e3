"""What a monitor saw, as maps: steps of the training across, layers up, a number or a state in each cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np
import xarray as xr

from tokendynamics.plots._parameter import parameter
from tokendynamics.report.diagnosis._page import _GLYPHS
from tokendynamics.report.kit._curves import Column, hover, ticks, time_axis
from tokendynamics.report.kit._figure import Cell, Figure, Table, cells
from tokendynamics.report.kit._palette import COMMON, GRID, INK, NEGATIVE, OWN, PAPER, POSITIONS
from tokendynamics.report.kit._svg import WIDE, Drawing, Key, draw_for_screens, inline
from tokendynamics.report.kit._text import number
from tokendynamics.report.simulation._shown import evenly

MOST_LOOKS = 60
"""Looks that a map has a column for: more could not be told apart."""

MISSING = "no numbers"

_COLOURS = {
    "spread": PAPER,
    "drawing together": POSITIONS[1],
    "consensus": POSITIONS[4],
    "rank collapse": NEGATIVE,
    "anisotropic": COMMON,
    "undetermined": OWN,
}
_PALE = (PAPER, OWN, COMMON, POSITIONS[1])
"""Fills on which a sign is dark."""


@dataclass(frozen=True)
class Scale:
    """The classes of a map's numbers: the first is what lies below the lowest bound, the last from the highest on."""

    bounds: tuple[float, ...]

    @property
    def keys(self) -> list[Key]:
        """The legend."""
        inner = [f"to {number(high)}" for high in self.bounds[1:]]
        names = [f"below {number(self.bounds[0])}", *inner, f"from {number(self.bounds[-1])}"]
        return [Key(name, "box", colour) for name, colour in zip(names, self._colours, strict=True)]

    @property
    def _colours(self) -> tuple[str, ...]:
        return (PAPER, *POSITIONS[-len(self.bounds) :])

    def colour(self, value: float) -> str:
        """Return the colour of a number, that of nothing where there is none."""
        return GRID if np.isnan(value) else self._colours[int(np.searchsorted(self.bounds, value, side="right"))]


def numbers_map(ident: str, question: str, label: str, values: xr.DataArray, scale: Scale, caption: str) -> Figure:
    """Draw one measure.

    Args:
        ident: For links.
        question: What the figure answers.
        label: The measure's name.
        values: Of the looks that are drawn (see `drawn`), over step and layer.
        scale: Its classes.
        caption: What it measures.
    """
    grid = values.transpose("step", "layer")
    keys = [*scale.keys, *([Key("not defined", "box", GRID)] if bool(grid.isnull().any()) else [])]
    rows = [cells([int(step), *map(float, line)]) for step, line in zip(grid.step.values, grid.values, strict=True)]
    return Figure(
        ident=ident,
        question=question,
        svg=_drawing(ident, question, grid, scale.colour, keys, f"{label} {_extremes(grid)}"),
        caption=f"{caption} A column for each look, a row for each layer, the last one on top.",
        table=Table(f"{label} at each step, after each layer", _heads(grid), tuple(rows)),
        label=label,
    )


def states_map(ident: str, question: str, states: xr.DataArray) -> Figure:
    """Draw the states that layers are held to be in, with a sign where one begins.

    Args:
        ident: For links.
        question: What the figure answers.
        states: Of the looks that are drawn, over step and layer.
    """
    grid = states.transpose("step", "layer")
    found = [word for word in (*_COLOURS, MISSING) if bool((grid == word).any())]
    keys = [Key(f"{_GLYPHS[word]}  {word}" if word in _COLOURS else word, "box", _colour(word)) for word in found]
    rows = [(*cells([int(step)]), *map(Cell, line)) for step, line in zip(grid.step.values, grid.values, strict=True)]
    return Figure(
        ident=ident,
        question=question,
        svg=_drawing(ident, question, grid, _colour, keys, _ends(grid), signs=_signs(grid)),
        caption="The state after each layer, a column for each look; a sign stands where a state begins. A layer keeps "
        "its state for as long as anything within the intervals of its measures makes it.",
        table=Table("State at each step, after each layer", _heads(grid), tuple(rows)),
    )


def drawn(table: xr.Dataset) -> xr.Dataset:
    """Return the looks that maps show, evenly by number, the first and the last among them; in all others the same.

    Args:
        table: The dataset of a monitor.
    """
    return table.isel(step=evenly(table.sizes["step"], MOST_LOOKS))


def _colour(word: str) -> str:
    return _COLOURS.get(word, GRID)


def _heads(grid: xr.DataArray) -> tuple[str, ...]:
    return ("Step", *(f"Layer {layer}" for layer in grid.layer.values))


def _drawing(
    ident: str,
    title: str,
    grid: xr.DataArray,
    colour: Callable,
    keys: Sequence[Key],
    description: str,
    signs: Sequence[dict] = (),
) -> str:
    across = parameter("Step", grid.step.values)
    edges = _edges(grid.step.values.astype(float))
    tiles = [
        {"x": left, "x2": right, "y": layer - 0.5, "y2": layer + 0.5, "colour": colour(value)}
        for line, left, right in zip(grid.values, edges[:-1], edges[1:], strict=True)
        for layer, value in zip(grid.layer.values.tolist(), line.tolist(), strict=True)
    ]
    return draw_for_screens(
        lambda width: across,
        ident=ident, title=title, description=f"{description} The table below holds every cell.", keys=keys,
    )
