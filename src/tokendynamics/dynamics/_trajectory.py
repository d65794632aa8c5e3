"""What a simulation returns: states at the times asked for, and how each system ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from tokendynamics.dynamics import _trajectory_files as trajectory_files
from tokendynamics.dynamics._deviations import Deviations
from tokendynamics.dynamics._flow import Flow
from tokendynamics.dynamics._noise import Noise
from tokendynamics.dynamics._trajectory_files import check_fields, from_dataset, to_dataset
from tokendynamics.dynamics.engines.problem import RecordedEvents
from tokendynamics.dynamics.rescaled import Frame
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.results import Result
from tokendynamics.words import count, listing, number, plural


@dataclass(frozen=True, repr=False)
class Trajectory(Result):
    """Tokens over time.

    Attributes:
        states: (…, time, token, dim), in the type of the start. Where a run ended early the last state is held, and
            `reached` says so.
        times: (time,), float64.
        status: How the run of each system ended, an array of words of shape (…,); see `Status`.
        reached: Whether a system's run got as far as each time, (…, time).
        end_times: Where each system's run ended, (…,).
        tensor: `states` as a tensor.
        flow: What was simulated; None after opening a file whose schedule was a user's function.
        frame: "tokens", or "rescaled": states, observables and events are those of ``z = exp(−t V) x``; see `simulate`.
        engine: Which engine did the work.
        counts: Right-hand sides and accepted steps of each system, (…,), and what else the engine knows: rejected steps
            (not LSODA's, which does not tell), Jacobians.
        notes: How the work was done, in words.
        recorded: When and where events with ``then="record"`` happened; None where there were none.
        parameters: Every option of the call, and the versions.
        deviations: Of layers, what tokens differ by at a scale of its own, far below the rounding of `states`; None of
            other engines, and where weights are no softmax, there are positions, or gradients are wanted.

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), td.Sphere())
    >>> run = td.simulate(flow, [[1.0, 0.0], [0.6, 0.8]], [0.0, 1.0, 30.0])
    >>> run.dataset.states.dims, str(run.status)
    (('system', 'time', 'token', 'feature'), 'reached the horizon')
    """

    states: Any
    times: np.ndarray
    status: np.ndarray
    reached: np.ndarray
    end_times: np.ndarray
    tensor: Tensor
    flow: Flow | None
    engine: str
    counts: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    recorded: RecordedEvents | None = None
    deviations: Deviations | None = None
    frame: Frame = "tokens"
    noise: Noise | None = None

    @cached_property
    def dataset(self) -> xr.Dataset:
        """An xarray Dataset with dims system, time, token, feature: states, observables, status, and the flow."""
        return to_dataset(self)

    @property
    def log_residual(self) -> np.ndarray:
        """Natural logarithm of the distance of the states to all with equal tokens, ``(Σ_i |x_i − x̄|²)^½``, (…, time).

        Of layers it is exact far below the smallest float, as rank collapse without residual connection needs; of
        other runs it is that of the saved states, which cannot be told from equal ones below their rounding.
        """
        known = self.deviations or Deviations.of(self.tensor.detach())
        return known.log_residual.cpu().numpy()

    @typed_arguments
    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the dataset: a Zarr store, or NetCDF where the name ends in .nc; whole or not at all.

        Args:
            path: An older trajectory there is replaced.
            overwrite: Replace whatever else is there, too.

        Raises:
            ArgumentValueError: Another suffix, or something that is no trajectory is in the way.
            StorageError: The disk is full; what was there is as it was.
        """
        return trajectory_files.save(self.dataset, path, overwrite=overwrite)

    @classmethod
    @typed_arguments
    def open(cls, path: str | Path) -> Trajectory:
        """Read what `save` wrote; states come back as a numpy array.

        Raises:
            ArgumentValueError: Nothing there, or not a trajectory.
        """
        dataset = trajectory_files.read(path)
        try:
            fields = from_dataset(dataset)
            check_fields(fields)
            return cls(**fields)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ArgumentValueError(expected("path", "a saved trajectory", f"{path} ({reason})")) from error

    @property
    def headline(self) -> str:
        """Shape, engine, and how many systems ended in which way."""
        words, numbers = np.unique(self.status.reshape(-1), return_counts=True)
        ends = listing([f"{count(int(many))} × {word}" for word, many in zip(words, numbers, strict=True)])
        return f"shape {tuple(self.tensor.shape)} by the engine {self.engine}: {ends}"

    @property
    def findings(self) -> list[str]:
        """Times, statuses with the times they were reached at, what was recorded, and the engine's notes."""
        first, last = (number(float(self.times[place])) for place in (0, -1))
        sentences = [f"{plural(len(self.times), 'time')} from t = {first} to {last}"]
        if self.frame == "rescaled":
            sentences.append("rescaled tokens z = exp(−t ov) x: states and observables are those of z")
        if self.noise is not None:
            sentences.append(f"noise of strength {number(self.noise.strength)}, seed {self.noise.seed}")
        for word in np.unique(self.status):
            ended = self.end_times[self.status == word]
            least, most = number(float(ended.min())), number(float(ended.max()))
            when = f"t = {least}" if least == most else f"t = {least} to {most}"
            sentences.append(f"{word}: {plural(ended.size, 'system')}, at {when}")
        return [*sentences, *self.notes]
