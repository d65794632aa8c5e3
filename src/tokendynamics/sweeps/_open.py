"""A sweep's store as a dataset; what is missing is never taken for data."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import xarray as xr
from zarr.errors import ZarrUserWarning

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.stores import check_arrays_3
from tokendynamics.sweeps._layout import layout
from tokendynamics.sweeps._plan import Plan, parse_plan
from tokendynamics.sweeps._store import SPECIFICATION, stored_attributes
from tokendynamics.sweeps.measures import COMPLETE


@typed_arguments
def open_store(store: str | Path, *, partial: bool = False) -> xr.Dataset:
    """Return the dataset of a sweep.

    Args:
        store: Folder of the Zarr store.
        partial: Whether systems may be missing: their numbers are NaN, their codes and counts −1, `complete` false.

    Raises:
        ArgumentValueError: No store of a sweep, a damaged one, one whose codecs or files are not known to be harmless,
            or systems are missing and `partial` is not set.
        MemoryLimitError: It declares more than the memory.
    """
    place = Path(store)
    plan = parse_plan(stored_attributes(place)[SPECIFICATION], place.name)
    check_arrays_3(place, "store", "the store of a sweep")
    try:
        with warnings.catch_warnings():
            # The manifest beside the arrays is no part of the format.
            warnings.simplefilter("ignore", category=ZarrUserWarning)
            # Not the consolidated descriptions: those that were checked are read.
            dataset = xr.open_zarr(place, consolidated=False, zarr_format=3, chunks=None)
        # What varies in a random design is a coordinate of its points, though no index.
        dataset = dataset.set_coords([axis.name for axis in plan.axes if axis.name in dataset])
        _check_layout(dataset, plan, place)
        complete = dataset[COMPLETE].values
    except ArgumentValueError:
        raise
    except Exception as error:  # what readers and codecs raise of damaged files is theirs to choose
        raise ArgumentValueError(expected("store", "the store of a sweep", f"{place} ({error})")) from error
    if complete.all():
        return dataset
    if not partial:
        came = f"{place} with {int(complete.sum())} of {complete.size} systems"
        advice = "resume the sweep, or open the finished part with partial=True"
        raise ArgumentValueError(expected("store", "the store of a sweep that is complete", came, advice))
    return _masked(dataset.load(), plan)


def _check_layout(dataset: xr.Dataset, plan: Plan, place: Path) -> None:
    """Refuse arrays that are not those of the specification in the store."""
    for name, variable in layout(plan).items():
        found = dataset.variables.get(name)
        if found is None or found.dims != variable.dims or found.shape != variable.shape:
            came = f"{place}, whose array {name!r} is not that of its specification"
            raise ArgumentValueError(expected("store", "the store of a sweep", came))


def _masked(dataset: xr.Dataset, plan: Plan) -> xr.Dataset:
    """Put what stands for a missing number wherever a task has no record, whatever its other chunks hold."""
    there = dataset[COMPLETE]
    for name, variable in layout(plan).items():
        if variable.values is None and name != COMPLETE:
            dtype = dataset[name].dtype
            filled = xr.where(there, dataset[name], np.asarray(variable.fill, dtype=dtype), keep_attrs=False)
            dataset[name] = filled.astype(dtype).transpose(*variable.dims).assign_attrs(dataset[name].attrs)
    return dataset
