"""What networks are trained on."""

from __future__ import annotations

from tokendynamics.training.tasks._task import Item, Task

__all__ = ["Item", "Task"]
