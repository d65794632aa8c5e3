"""Which parts and norms a network has, so that no sentence is about a missing one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.figure_names import PART_NAMES


def parts_there(trace: xr.Dataset) -> dict[str, np.ndarray]:
    """Return for each part which of the layers 1 … L have it; a layer with unidentified parts counts as having both.

    Args:
        trace: From `tokendynamics.trace`; without a recorded layout, all layers count as having both.

    Returns:
        Boolean arrays by the part's label in the data.
    """
    existing = {name: np.ones(trace.sizes["layer"] - 1, dtype=bool) for name in PART_NAMES}
    if record := _record(trace):
        residuals = [record["kinds"][kind]["residual"] for kind in record["layers"]]
        existing["feed_forward"] = np.array([part is None or part["feed_forward"] is not None for part in residuals])
    return existing


def norms_there(trace: xr.Dataset) -> bool:
    """Return whether a network has any norm of its residual stream; true without a recorded layout.

    Args:
        trace: From `tokendynamics.trace`.
    """
    record = _record(trace)
    return not record or record["final_norm"] is not None or any(kind["norms"] for kind in record["kinds"])


def _record(trace: xr.Dataset) -> dict[str, Any]:
    return json.loads(trace.attrs.get("layout", "{}"))
