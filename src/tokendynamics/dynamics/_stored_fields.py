"""What a saved trajectory must hold to be one: a damaged store may be readable and still say what no run can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokendynamics.dynamics._options import read_times
from tokendynamics.dynamics._status import Status
from tokendynamics.numerics._arguments import as_positive, as_states, as_text
from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, expected, shown

_TOLERANCES = ("rtol", "atol", "tau")


def check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse fields of a trajectory that contradict each other.

    Args:
        fields: Of `tokendynamics.dynamics.Trajectory`, by name.

    Raises:
        ArgumentTypeError, ArgumentValueError: The field is named.
    """
    states = as_states(fields["states"], "states")  # finite: a chunk that is missing reads as NaN
    times = np.array(read_times(fields["times"], at_least=1))
    if states.ndim < 3 or states.shape[-3] != len(times):
        wanted = f"shape (…, {len(times)}, token, dim), a state for each time"
        raise ArgumentValueError(expected("states", wanted, f"shape {tuple(states.shape)}"))
    for word in fields["status"].reshape(-1):
        if word not in set(Status):
            raise ArgumentValueError(expected("status", "words for the end of a run", shown(str(word))))
    if (fields["reached"] != (times <= fields["end_times"][..., None])).any():
        raise ArgumentValueError(expected("reached", "True up to each end_time and False after it", "something else"))
    if fields["flow"] is not None:
        fields["flow"].fitting(states[..., 0, :, :], "states")
    for name, count in fields["counts"].items():
        if count.dtype.kind not in "iu" or (count < 0).any():
            raise ArgumentValueError(expected(name, "whole numbers of at least 0", shown(count)))
    as_text(fields["engine"], "engine")
    for note in fields["notes"]:
        as_text(note, "notes")
    _check_parameters(fields["parameters"])


def _check_parameters(parameters: Any) -> None:
    if not isinstance(parameters, dict):
        raise ArgumentTypeError(expected("parameters", "an object", shown(parameters)))
    for name in _TOLERANCES:
        if name in parameters:
            as_positive(parameters[name], name)
