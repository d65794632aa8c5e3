"""Training of networks in a chosen regime: experiments, tasks, records, and a monitor for any training run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokendynamics.training._experiment import Experiment, Multipliers, Recipe
from tokendynamics.training._presets import PRESETS, preset
from tokendynamics.training._record import Record
from tokendynamics.training._run import train
from tokendynamics.training.tasks import TASKS

if TYPE_CHECKING:
    from tokendynamics.training.monitor._monitor import Monitor

__all__ = ["PRESETS", "TASKS", "Experiment", "Monitor", "Multipliers", "Recipe", "Record", "preset", "train"]


def __getattr__(name: str) -> Any:
    if name != "Monitor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tokendynamics.training.monitor._monitor import Monitor  # a callback of transformers, which takes seconds

    return Monitor
