"""How often each outcome was, with the interval in which its probability is."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.intervals import wilson
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.sweeps._plan import DRAW, POINT
from tokendynamics.sweeps.measures import MISSING, STATUSES
from tokendynamics.sweeps.outcome import OUTCOMES

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


_WORDS = {"outcome": OUTCOMES, "status": STATUSES}


@typed_arguments
def fractions(
    dataset: xr.Dataset,
    variable: str = "outcome",
    *,
    over: tuple[str, ...] = (DRAW,),
    by: tuple[str, ...] = (),
    cells: int = 12,
) -> xr.Dataset:
    """Return the share of each word of `variable` among the systems that were run, with 95 % Wilson intervals.

    Args:
        dataset: From `sweep` or `open_store`.
        variable: "outcome" or "status".
        over: Dims whose systems are counted together.
        by: Of a random design, in place of `over`: coordinates by which its points are sorted into cells.
        cells: Along each of `by` that has more values than that, equally wide, or of equal factors where the largest
            is 100 times the smallest; a cell is named by its middle.

    Returns:
        Variables count, fraction, low, high with dims of `variable` without those of `over`, and `variable` itself;
        `total`, the systems that were run. NaN where none was.

    Raises:
        ArgumentValueError: The sweep did not measure `variable`, or has no coordinate of `by`.
    """
    if variable not in _WORDS or variable not in dataset:
        wanted = "'outcome' or 'status', if the sweep measured it"
        raise ArgumentValueError(expected("variable", wanted, repr(variable), "add it to measure in [sweep]"))
    if cells < 1:
        raise ArgumentValueError(expected("cells", "at least 1", cells))
    codes, words = dataset[variable], _WORDS[variable]
    if by:
        count = counted_in_cells(codes, len(words), by, cells).rename(word=variable)
        total = count.sum(variable)
    else:
        count = xr.concat([(codes == code).sum(over) for code in range(len(words))], dim=variable)
        total = (codes != MISSING).sum(over)
    count = count.assign_coords({variable: list(words)}).transpose(..., variable)
    return with_intervals(count, total)


def with_intervals(count: xr.DataArray, total: xr.DataArray) -> xr.Dataset:
    """Return count, fraction, low and high of the 95 % Wilson interval, and total; NaN where no system was run.

    Args:
        count: Systems of each kind.
        total: Systems that were run, over the dims of `count` without the kind.
    """
    low, high = xr.apply_ufunc(_wilson, count, total, output_core_dims=[[], []], vectorize=True)
    fraction = count / total.where(total > 0)
    return xr.Dataset({"count": count, "fraction": fraction, "low": low, "high": high, "total": total})


def _wilson(count: Any, total: Any) -> tuple[float, float]:
    return wilson(int(count), int(total)) if total else (np.nan, np.nan)
