"""Sweeps: many systems over the points of a design, on the processors of this machine or of a cluster, in one store.

A design of either kind becomes a folder that is filled, resumed and recorded by `_store`, on the workers of `_cluster`:
`systems` has sweeps of simulated systems, whose functions are here, and `study` has studies of trained networks.

`sweep` runs the systems that a file describes and `open_store` reads what was stored; `read_plan` and `parse_plan`
check a file without running it. `docs/sweep.md` shows what a file may say.
"""

from __future__ import annotations

from tokendynamics.sweeps.systems._plan import Plan, parse_plan, read_plan
from tokendynamics.sweeps.systems._store import open_store
from tokendynamics.sweeps.systems.results import fractions, report
from tokendynamics.sweeps.systems.running import sweep

__all__ = ["Plan", "fractions", "open_store", "parse_plan", "read_plan", "report", "sweep"]


def __dir__() -> list[str]:
    return __all__
