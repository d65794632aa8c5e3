"""What networks are trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.training.tasks._bytes import Bytes
from tokendynamics.training.tasks._digits import Digits
from tokendynamics.training.tasks._images import Images
from tokendynamics.training.tasks._task import Item, Task
from tokendynamics.training.tasks._words import Words

if TYPE_CHECKING:
    from tokendynamics.training._experiment import Experiment

TASKS = {"bytes": Bytes, "digits": Digits, "images": Images, "words": Words}
"""By name."""


def task_of(experiment: Experiment, draws: int) -> Task:
    """Return the task of an experiment, with as many items of training as a run takes.

    Raises:
        ArgumentValueError: An unknown task, data that cannot be used, or an option that there is not.
    """
    if experiment.task not in TASKS:
        raise ArgumentValueError(expected("task", "one of " + ", ".join(TASKS), repr(experiment.task)))
    return TASKS[experiment.task].of(experiment.data, experiment.options, experiment.seed, draws)


__all__ = ["TASKS", "Bytes", "Digits", "Images", "Item", "Task", "Words", "task_of"]
