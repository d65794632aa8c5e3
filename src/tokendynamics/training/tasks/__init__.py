"""What networks are trained on."""

from tokendynamics.training.tasks import _bytes, _digits, _images, _words
from tokendynamics.training.tasks._task import Task

TASKS = {"bytes": _bytes.Bytes, "digits": _digits.Digits, "images": _images.Images, "words": _words.Words}
"""By name."""

__all__ = ["TASKS", "Task"]


def __dir__() -> list[str]:
    return __all__
