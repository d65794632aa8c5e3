"""Training of networks in a chosen regime: experiments, tasks, records, and a monitor for any training run."""

from __future__ import annotations

from tokendynamics.training._experiment import Experiment, Multipliers, Recipe
from tokendynamics.training._presets import PRESETS, preset
from tokendynamics.training._record import Record
from tokendynamics.training._run import train
from tokendynamics.training.tasks import TASKS

__all__ = ["PRESETS", "TASKS", "Experiment", "Multipliers", "Recipe", "Record", "preset", "train"]
