"""Sentences about a sweep: its size, and its outcomes."""

from __future__ import annotations

import math
from typing import Any

import xarray as xr

from tokendynamics.sweeps._layout import layout, size
from tokendynamics.sweeps._plan import Plan
from tokendynamics.sweeps.outcome_fractions import fractions
from tokendynamics.words import plural

_MEGA = 2**20


def described(plan: Plan) -> str:
    """Return the number of systems of a sweep, their tasks, and the size of the store, as a sentence."""
    *points, draws = plan.shape
    names = " × ".join(f"{length} {name}" for length, name in zip(points, plan.dims, strict=False)) or "1 point"
    tasks, needed = math.prod(plan.tasks), size(plan, layout(plan))
    return (
        f"{plan.name}: {names} × {plural(draws, 'draw')} = {plural(plan.systems, 'system')} in "
        f"{plural(tasks, 'task')}; the store takes {needed / _MEGA:,.1f} MiB"
    )


def counted(dataset: xr.Dataset, variable: str) -> list[dict[str, Any]]:
    """Return each outcome or status that occurs, with its count, share and interval over all systems."""
    found = fractions(dataset, variable, over=tuple(map(str, dataset[variable].dims)))
    rows = [
        {"word": str(word), **{name: found[name].sel({variable: word}).item() for name in _COLUMNS}}
        for word in found[variable].values
    ]
    return [row for row in rows if row["count"]]


_COLUMNS = ("count", "fraction", "low", "high")


def tried_again(dataset: xr.Dataset) -> str:
    """Return how many systems the stiff engine ran again, as a sentence."""
    again, systems = int((dataset["tries"] > 1).sum()), dataset["tries"].size
    if not again:
        return f"no system of {systems:,} needed another try"
    return f"{again:,} of {systems:,} systems spent their steps and were tried again by the stiff engine"
