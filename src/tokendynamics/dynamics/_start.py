"""Where a simulation starts: at given states, or where an earlier run ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics._flow import Flow
from tokendynamics.dynamics._status import Status
from tokendynamics.dynamics._trajectory import Trajectory
from tokendynamics.dynamics.engines.problem import Outcome
from tokendynamics.dynamics.options import read_times
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_device
from tokendynamics.numerics.errors import expected, shown

_DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True)
class Start:
    """Checked states and what was known of them before.

    Attributes:
        states: (…, token, dim).
        original: In whose type states are handed out.
        before: The run that continues; None where it begins.
    """

    states: Tensor
    original: Any
    before: Trajectory | None

    @property
    def leading(self) -> tuple[int, ...]:
        """The axes of systems."""
        return tuple(self.states.shape[:-2])

    def projected(self, flow: Flow) -> Tensor:
        """Return the start on the space, (system, token, dim); states of an earlier run are on it and stay the same."""
        flat = self.states.reshape(-1, *self.states.shape[-2:])
        rounding = 8 * torch.finfo(flat.dtype).eps
        if self.before is not None and flow.space.defect(self.states.detach()) <= rounding:
            return flat
        return flow.field(flat).flattened().exactly_projected(flat)

    def moments(self, times: ArrayLike) -> tuple[tuple[float, ...], int]:
        """Return times from the start on, and how many at the front were not asked for.

        Raises:
            ArgumentValueError: Times that do not increase, or lie before the end of the run that continues.
        """
        if self.before is None:
            return read_times(times), 0
        end, asked = float(self.before.times[-1]), read_times(times, at_least=1)
        if asked[0] < end:
            wanted = f"times from {end:.17g} on, where the trajectory ends"
            raise ArgumentValueError(expected("times", wanted, asked[0]))
        if asked[0] > end:
            return (end, *asked), 1
        return (read_times(times), 0) if len(asked) < 2 else (asked, 0)

    @property
    def moving(self) -> Tensor | None:
        """Indices of the systems that go on; None if all do. Those that ended keep their end."""
        if self.before is None:
            return None
        on = torch.as_tensor(np.asarray(self.before.status).reshape(-1) == str(Status.HORIZON))
        return None if bool(on.all()) else on.nonzero().squeeze(-1)

    def merged(self, part: Outcome | None, blank: Outcome) -> Outcome:
        """Return the outcome of all systems from that of the moving ones."""
        moving, before = self.moving, self.before
        if moving is None or before is None:
            raise AssertionError
        blank.status = [Status(str(word)) for word in np.asarray(before.status).reshape(-1)]
        blank.end_times = torch.as_tensor(np.array(before.end_times, dtype=np.float64).reshape(-1))
        if part is None:
            return blank
        # Gradients pass: nothing else holds these states.
        blank.states[moving] = part.states
        blank.end_times[moving] = part.end_times
        for place, status in zip(moving.tolist(), part.status, strict=True):
            blank.status[place] = status
        for name, count in part.counts.items():
            blank.counts.setdefault(name, torch.zeros(len(blank.status), dtype=torch.int64))[moving] = count
        blank.crossings = [(number, int(moving[i]), time, state) for number, i, time, state in part.crossings]
        blank.notes, blank.interrupted, blank.longest_step = part.notes, part.interrupted, part.longest_step
        return blank


def read_start(
    flow: Flow, x0: ArrayLike | Trajectory, device: str | torch.device | None, dtype: torch.dtype | str | None
) -> Start:
    """Return the states in the precision and place asked for.

    Raises:
        ArgumentTypeError: Not a flow, or another precision.
        ArgumentValueError: States that do not fit, a zero token on a sphere, or a device that is not there.
    """
    if not isinstance(flow, Flow):
        raise ArgumentTypeError(expected("flow", "a Flow", type(flow).__name__))
    before = x0 if isinstance(x0, Trajectory) else None
    given = x0.tensor[..., -1, :, :] if isinstance(x0, Trajectory) else x0
    states = flow.fitting(given, "x0")
    states = states.to(dtype=_precision(dtype), device=None if device is None else as_device(device, "device"))
    flow.geometry.check(states, "x0")
    return Start(states, x0.states if isinstance(x0, Trajectory) else x0, before)


def _precision(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in _DTYPES.values()):
        return dtype
    wanted = "'float64' or 'float32', or torch.float64 or torch.float32"
    if not isinstance(dtype, str):
        raise ArgumentTypeError(expected("dtype", wanted, shown(dtype)))
    if dtype not in _DTYPES:
        raise ArgumentValueError(expected("dtype", wanted, shown(dtype)))
    return _DTYPES[dtype]
