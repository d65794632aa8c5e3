"""The points of a random design sorted into cells, so that those of a cell can be counted together."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.sweeps._measures import MISSING
from tokendynamics.sweeps._plan import POINT

_FACTOR = 100.0
"""From this ratio of largest to smallest on, cells are of equal factors."""


def counted_in_cells(codes: xr.DataArray, words: int, by: tuple[str, ...], cells: int) -> xr.DataArray:
    """Count systems of a random design in the cells of some of its coordinates.

    Args:
        codes: (point, draw), with coordinates along the points.
        words: How many codes there are.
        by: Names of coordinates.
        cells: Along a coordinate with more values than that; others have a cell for each value.

    Returns:
        Counts over `by` and a last dim "word"; a cell of numbers is named by its middle.

    Raises:
        ArgumentValueError: A coordinate that the design does not have.
    """
    known = [str(name) for name, each in codes.coords.items() if each.dims == (POINT,)]
    for name in by:
        if name not in known:
            raise ArgumentValueError(expected("by", f"of {', '.join(known) or 'a random design'}", repr(name)))
    sides = [_cells(codes[name].values, cells) for name in by]
    shape = [len(labels) for labels, _ in sides]
    places = np.ravel_multi_index([place for _, place in sides], shape)
    rows = codes.transpose(POINT, ...).values.reshape(len(places), -1)
    counts = np.zeros((int(np.prod(shape)), words), dtype=np.int64)
    which = np.broadcast_to(places[:, None], rows.shape)[rows != MISSING]
    np.add.at(counts, (which, rows[rows != MISSING]), 1)
    coords = {name: labels for name, (labels, _) in zip(by, sides, strict=True)}
    return xr.DataArray(counts.reshape(*shape, words), dims=(*by, "word"), coords=coords)


def _cells(values: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the names of cells and the cell of each value."""
    found, place = np.unique(values, return_inverse=True)
    if values.dtype.kind not in "iuf" or len(found) <= cells:
        return found, place
    log = found[0] > 0 and found[-1] / found[0] >= _FACTOR
    space = np.geomspace if log else np.linspace
    edges = space(found[0], found[-1], cells + 1)
    middles = np.sqrt(edges[1:] * edges[:-1]) if log else (edges[1:] + edges[:-1]) / 2
    return middles, np.clip(np.searchsorted(edges, values, side="right") - 1, 0, cells - 1)
