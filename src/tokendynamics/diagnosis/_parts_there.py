"""Which parts a network has: nothing is said of one that is not there."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._figure_names import PART_NAMES


def parts_there(trace: xr.Dataset) -> dict[str, np.ndarray]:
    """Tell for each part which of the layers 1 … L have it; a layer whose parts were not found counts as having both.

    Args:
        trace: From `tokendynamics.trace`; one without the record of a layout counts likewise.

    Returns:
        Boolean arrays by the part's label in the data.
    """
    there = {name: np.ones(trace.sizes["layer"] - 1, dtype=bool) for name in PART_NAMES}
    if record := _record(trace):
        residuals = [record["kinds"][kind]["residual"] for kind in record["layers"]]
        there["feed_forward"] = np.array([each is None or each["feed_forward"] is not None for each in residuals])
    return there


def norms_there(trace: xr.Dataset) -> bool:
    """Tell whether a network has any norm of its residual stream; one without the record of a layout counts as having.

    Args:
        trace: From `tokendynamics.trace`.
    """
    record = _record(trace)
    return not record or record["final_norm"] is not None or any(kind["norms"] for kind in record["kinds"])


def _record(trace: xr.Dataset) -> dict[str, Any]:
    return json.loads(trace.attrs.get("layout", "{}"))
