"""Training of networks in a chosen regime: experiments, tasks, records, and a monitor for any training run."""

from __future__ import annotations

from tokendynamics.training._experiment import Experiment, Multipliers, Recipe

__all__ = ["Experiment", "Multipliers", "Recipe"]
