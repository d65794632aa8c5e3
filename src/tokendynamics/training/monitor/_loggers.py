"""Where the numbers of a look go: to the loggers of a Trainer, and to a custom writer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from tokendynamics.numerics import ArgumentTypeError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.training.monitor.looks import Values

Write: TypeAlias = Callable[[str, float, int], object]
"""Takes name, value and step."""

_SENT = (
    "share_common", "share_prompt", "share_own", "consensus_within", "consensus_relative", "centred_cos2",
    "attention_sink_mass",
)  # fmt: skip
_PARTS = ("attention", "feed_forward")


def scalars(values: Values) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a look by the names that loggers show, such as ``tokens/consensus_within/layer_03``.

    What is not defined is left out.

    Args:
        values: Of one look.
    """
    lines = {name: values[name] for name in _SENT}
    lines |= {f"update_ratio_{part}": values["update_ratio"][:, place] for place, part in enumerate(_PARTS)}
    for name, line in lines.items():
        digits = max(2, len(str(len(line) - 1)))
        for layer, value in enumerate(line.tolist()):
            if np.isfinite(value):
                yield f"tokens/{name}/layer_{layer:0{digits}}", value


def as_write(writer: Any) -> Write | None:
    """Return what takes name, value and step.

    Args:
        writer: A function of these three, a ``SummaryWriter`` of TensorBoard or what has its ``add_scalar``; or None.

    Raises:
        ArgumentTypeError: Anything else.
    """
    if writer is None:
        return None
    write = getattr(writer, "add_scalar", writer)
    if not callable(write):
        wanted = "a SummaryWriter, or a function of name, value and step"
        raise ArgumentTypeError(expected("writer", wanted, shown(writer)))
    return write


def loggers() -> list[Any]:
    """Return the callbacks of transformers that hand numbers to TensorBoard and the like, of the Trainer that calls.

    A callback is handed everything but its neighbours, and they are who writes: they are those of the list that is
    being gone through, some calls further out. Empty where none is.
    """
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    from transformers.trainer_callback import CallbackHandler

    known = tuple(INTEGRATION_TO_CALLBACK.values())
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, CallbackHandler):
            return [callback for callback in caller.callbacks if isinstance(callback, known)]
        frame = frame.f_back
    return []
