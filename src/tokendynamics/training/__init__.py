"""Training of networks in a chosen regime: experiments, tasks, records, and a monitor for any training run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokendynamics.training._experiment import Experiment, Multipliers, Recipe
from tokendynamics.training._presets import PRESETS, preset
from tokendynamics.training._record import Record
from tokendynamics.training._run import train
from tokendynamics.training.tasks import TASKS

if TYPE_CHECKING:
    from tokendynamics.training._samples import Samples
    from tokendynamics.training.monitor._monitor import Monitor

__all__ = [
    "PRESETS", "TASKS", "Experiment", "Monitor", "Multipliers", "Recipe", "Record", "Samples", "preset", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "Monitor":  # callbacks of transformers, which takes seconds
        from tokendynamics.training.monitor._monitor import Monitor

        return Monitor
    if name == "Samples":
        from tokendynamics.training._samples import Samples

        return Samples
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
