"""What networks are trained on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.training.tasks._bytes import Bytes
from tokendynamics.training.tasks._digits import Digits
from tokendynamics.training.tasks._images import Images
from tokendynamics.training.tasks._task import Task
from tokendynamics.training.tasks._words import Words

if TYPE_CHECKING:
    from tokendynamics.training.experiment import Experiment

TASKS = {"bytes": Bytes, "digits": Digits, "images": Images, "words": Words}
"""By name."""


def task_of(experiment: Experiment, draws: int) -> Task:
    """Return the task of an experiment, with as many items of training as a run takes.

    Raises:
        ArgumentValueError: An unknown task, data that cannot be used, an option that there is not, or more items than
            Python can number.
    """
    if draws > sys.maxsize:
        wanted = f"at most {sys.maxsize:,} items in all: steps × batch × accumulation × processes"
        raise ArgumentValueError(expected("recipe", wanted, f"{draws:,}"))
    if experiment.task not in TASKS:
        raise ArgumentValueError(expected("task", "one of " + ", ".join(TASKS), repr(experiment.task)))
    return TASKS[experiment.task].of(experiment.data, experiment.options, experiment.seed, draws)


__all__ = ["TASKS", "Bytes", "Digits", "Images", "Task", "Words", "task_of"]


def __dir__() -> list[str]:
    return __all__
