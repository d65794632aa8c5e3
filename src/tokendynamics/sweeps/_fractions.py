"""How often each outcome was, with the interval in which its probability is."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.numerics._intervals import wilson
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.sweeps._bins import counted_in_cells
from tokendynamics.sweeps._measures import MISSING, STATUSES
from tokendynamics.sweeps._outcome import OUTCOMES
from tokendynamics.sweeps._plan import DRAW

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
