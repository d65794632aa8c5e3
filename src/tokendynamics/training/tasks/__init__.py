"""What networks are trained on."""

from tokendynamics.training.tasks._images import Digits as _Digits
from tokendynamics.training.tasks._images import Images as _Images
from tokendynamics.training.tasks._task import Task
from tokendynamics.training.tasks._texts import Bytes as _Bytes
from tokendynamics.training.tasks._texts import Words as _Words

TASKS = {"bytes": _Bytes, "digits": _Digits, "images": _Images, "words": _Words}
"""By name."""

__all__ = ["TASKS", "Task"]


def __dir__() -> list[str]:
    return __all__
