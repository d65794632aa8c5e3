"""How often each outcome is over one parameter, two, or three: curves with bands, or maps with contours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tokendynamics.figures._print import BORDERS, SHARES, colour_bar, draw
from tokendynamics.figures.axes import Parameter, parameter
from tokendynamics.figures.outcomes import OutcomeCurves, OutcomeMap, Shares
from tokendynamics.figures.palette import ORANGE, PRINTED
from tokendynamics.figures.style import DOUBLE, SINGLE, panels, paper_style
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments

_SIDE_BY_SIDE, _MOST_ROWS, _NEAR = 3, 8, 1e-6


@paper_style()
@typed_arguments
def phase_diagram(
    shares: xr.Dataset,
    x: str | None = None,
    y: str | None = None,
    *,
    words: Sequence[str] = (),
    where: Mapping[str, Any] | None = None,
    width: float | None = None,
) -> Figure:
    """Draw how often each outcome is, over one parameter or more.

    Over one, each outcome is a line with a band, its 95 % Wilson interval. Over two, each outcome is a map of cells,
    one for each point that was run; between numbers, a line shows where its share is 1/2, and dashed lines where the
    lower and the upper end of its interval are: the border lies between these. A third parameter has a row of maps for
    each of its values. An axis is logarithmic where its values rise by factors. A point without systems is grey.

    Args:
        shares: From `tokendynamics.sweeps.fractions`: fraction, low and high over parameters and words, and total over
            parameters.
        x: The parameter of the horizontal axis; None for the first.
        y: That of the vertical axis; None for the next, if there is one.
        words: Which outcomes; empty for those that occur, at most six.
        where: Values of further parameters, by name, at which the diagram is a section.
        width: Width in inches; None for one printed column, or both.

    Returns:
        The figure.

    Raises:
        ArgumentTypeError, ArgumentValueError: Not such a dataset, a parameter, value or outcome that it does not have,
            a random design (which has points and no axes), or more parameters than can be drawn.

    >>> from tokendynamics.sweeps import fractions
    >>> codes = xr.DataArray([[0, 0, 3], [3, 3, 3]], dims=("scale", "draw"), coords={"scale": [0.5, 1.0]})
    >>> figure = phase_diagram(fractions(xr.Dataset({"outcome": codes})))
    >>> [line.get_label() for line in figure.axes[0].lines], figure.axes[0].lines[0].get_ydata().round(3).tolist()
    (['zero', 'consensus'], [0.667, 0.0])
    """
    if where is not None and not isinstance(where, Mapping):
        raise ArgumentTypeError("where", "values by the names of parameters", shown(where))
    kind = _kind_of_words(shares)
    chosen = _section(shares, kind, where or {})
    names = _names(chosen, kind, x, y)
    chosen = chosen.sel({kind: _words(shares, kind, words)})
    axes = [parameter(name, _values(chosen, name)) for name in names]
    chosen = chosen.isel({axis.name: axis.order for axis in axes}).transpose(*names, kind)
    if len(axes) == 1:
        figure, (panel,) = panels(width=width or SINGLE)
        draw(OutcomeCurves(axes[0], [_shares(chosen, kind, str(word)) for word in chosen[kind].values]), panel)
        figure.legend(loc="outside upper left", ncols=2, columnspacing=1.2)
        return figure
    return _maps(chosen, axes, kind, width or DOUBLE)


def _kind_of_words(shares: xr.Dataset) -> str:
    """Return the dim of the outcomes: that which the total does not have."""
    if not {"fraction", "low", "high", "total"} <= set(shares):
        wanted = "what tokendynamics.sweeps.fractions returns"
        raise ArgumentTypeError("shares", wanted, f"variables {', '.join(map(str, shares)) or 'none'}")
    further = [str(dim) for dim in shares.fraction.dims if dim not in shares.total.dims]
    if len(further) != 1:
        raise ArgumentTypeError("shares", "one dim of words beyond those of total", str(further))
    return further[0]


def _values(shares: xr.Dataset, name: str) -> np.ndarray:
    return shares[name].values if name in shares.coords else np.arange(shares.sizes[name])


def _section(shares: xr.Dataset, kind: str, where: Mapping[str, Any]) -> xr.Dataset:
    for name, value in where.items():
        _check_name("where", name, shares, kind)
        values = _values(shares, name)
        if values.dtype.kind in "iuf" and isinstance(value, int | float):
            near = np.isclose(values, value, rtol=_NEAR, atol=0.0)
        else:
            near = values == value
        if not np.any(near):
            wanted = f"a value of {name}: {', '.join(map(str, values[:12]))}{', …' if len(values) > 12 else ''}"
            raise ArgumentValueError("where", wanted, shown(value))
        shares = shares.isel({name: int(np.argmax(near))})
    return shares


def _check_name(argument: str, name: str, shares: xr.Dataset, kind: str) -> None:
    known = [str(dim) for dim in shares.fraction.dims if dim != kind]
    if name not in known:
        raise ArgumentValueError(argument, f"one of {', '.join(known)}", repr(name))


def _names(shares: xr.Dataset, kind: str, x: str | None, y: str | None) -> list[str]:
    """Return the parameters to draw over: x, y, and the one of the rows."""
    dims = [str(dim) for dim in shares.fraction.dims if dim != kind]
    if "point" in dims:
        advice = "sort its points into bins first, or draw systems over its coordinates"
        raise ArgumentValueError("shares", "those of a grid", "a random design, which has no axes", advice)
    for argument, name in (("x", x), ("y", y)):
        if name is not None:
            _check_name(argument, name, shares, kind)
    if x is not None and x == y:
        raise ArgumentValueError("y", "another parameter than x", repr(y))
    first = [name for name in (x, y) if name is not None]
    rest = [name for name in dims if name not in first]
    names = [x or rest.pop(0), *([y] if y else []), *rest] if dims else []
    if not 1 <= len(names) <= 3:
        came = f"{len(names)}: {', '.join(names)}" if names else "none"
        raise ArgumentValueError("shares", "one to three parameters", came, "fix others with where=")
    if len(names) == 3 and shares.sizes[names[2]] > _MOST_ROWS:
        came = f"{shares.sizes[names[2]]} values of {names[2]}"
        raise ArgumentValueError("shares", f"at most {_MOST_ROWS} rows of maps", came, "fix one with where=")
    return names


def _words(shares: xr.Dataset, kind: str, words: Sequence[str]) -> list[str]:
    known = [str(word) for word in shares[kind].values]
    for word in words:
        if word not in known:
            raise ArgumentValueError("words", f"of {', '.join(known)}", repr(word))
    if len(words) > len(PRINTED):
        raise ArgumentValueError("words", f"at most {len(PRINTED)}", len(words))
    if words:
        return list(words)
    counts = shares.fraction.sum([dim for dim in shares.fraction.dims if dim != kind])
    occurring = [word for word in known if float(counts.sel({kind: word})) > 0]
    most = sorted(occurring, key=lambda word: -float(counts.sel({kind: word})))[: len(PRINTED)]
    return [word for word in occurring if word in most] or known[:1]


def _shares(shares: xr.Dataset, kind: str, word: str) -> Shares:
    one = shares.sel({kind: word})
    return Shares(word, one.fraction.values, one.low.values, one.high.values)


def _maps(shares: xr.Dataset, axes: Sequence[Parameter], kind: str, width: float) -> Figure:
    words = [str(word) for word in shares[kind].values]
    over = axes[2] if len(axes) == 3 else None
    columns = len(words) if over is not None else 2 if len(words) == 4 else min(len(words), _SIDE_BY_SIDE)
    rows = len(over.values) if over is not None else -(-len(words) // columns)
    figure, spots = panels(columns, rows, width=width, height=max(2.0, 0.8 * width / max(columns, 2)) * rows + 0.3)
    bordered = False
    for number, spot in enumerate(spots):
        if over is None and number >= len(words):
            spot.remove()
            continue
        word = words[number % columns if over is not None else number]
        one, title = shares, word
        if over is not None:
            one = one.isel({over.name: number // columns})
            title += f", {over.name} = {over.labels[number // columns]}"
        drawn = OutcomeMap(axes[0], axes[1], _shares(one, kind, word))
        draw(drawn, spot)
        spot.set_title(title)
        bordered |= bool(drawn.borders)
    spots = [spot for spot in spots if spot.figure is not None]
    colour_bar(figure, spots, SHARES, Normalize(0, 1), "share of systems")
    if bordered:
        names = {False: "share 1/2", True: "an end of its 95 % interval is 1/2"}
        lines = [Line2D([], [], color=ORANGE, label=name, **BORDERS[dashed]) for dashed, name in names.items()]
        figure.legend(handles=lines, loc="outside lower left", ncols=2)
    return figure
