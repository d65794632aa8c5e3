"""The figures a file can ask for, each by its name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tokendynamics import figures, observables
from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.figures import Figure
from tokendynamics.figures.time_axis import Log
from tokendynamics.specification._tables import FigureName, FreeTable
from tokendynamics.specification.build import Setup
from tokendynamics.specification.file import SpecificationFile

_MOST_TOKENS_FOR_DISTANCES = 200


def figure_names(file: SpecificationFile) -> tuple[FigureName, ...]:
    """Return the figures that a file asks for; if none, the tokens and one functional that says what became of them."""
    if file.tables.output.figures is not None:
        return tuple(file.tables.output.figures)
    return ("tokens", "norms" if isinstance(file.tables.space, FreeTable) else "consensus")


def check_figures(file: SpecificationFile, setup: Setup) -> None:
    """Refuse what cannot be drawn, before anything is integrated.

    Raises:
        SpecificationError: No such system, or a figure that cannot be drawn of this setup.
    """
    table = file.tables.output
    systems = setup.start.shape[0] if setup.start.ndim == 3 else 1
    if table.system >= systems:
        raise file.error(("output", "system"), f"expected a system from 0 to {systems - 1}, got {table.system}")
    for index, name in enumerate(table.figures or ()):
        if found := _objection(name, setup, table.system):
            raise file.error(("output", "figures", index), f"{name!r}: {found}")


def _objection(name: FigureName, setup: Setup, system: int) -> str | None:
    """Say why a figure cannot be drawn of a setup, before it is integrated; None where it can."""
    tokens, dim = setup.start.shape[-2:]
    match name:
        case "phase_plane" if dim < 2:
            return f"expected tokens of dim 2 or more, got {dim}"
        case "distances" if not 2 <= tokens <= _MOST_TOKENS_FOR_DISTANCES:
            return f"expected 2 to {_MOST_TOKENS_FOR_DISTANCES} tokens, got {tokens}"
        case "potential" if setup.flow.heads != 1:
            return f"expected one head, got {setup.flow.heads}"
        case "hemisphere" if float(observables.hemisphere(_one(setup.start, system)).margin) <= 0:
            return "expected tokens that start in an open half space, got tokens around the origin"
    return None


def draw(name: FigureName, trajectory: Trajectory, flow: Flow, *, system: int, log_times: bool) -> Figure:
    """Draw one figure of a run; in a batch, of one system, or of all where a functional has one line for each.

    Raises:
        ArgumentValueError: What `tokendynamics.figures` refuses, such as a norm on a logarithmic axis when all are 0.
    """
    return _DRAWN[name](_Run(trajectory, flow, system, log_times))


class _Run:
    """A trajectory, cut where the drawn system ended, with what every figure asks of it."""

    def __init__(self, trajectory: Trajectory, flow: Flow, system: int, log_times: bool) -> None:
        self.trajectory, self.flow = trajectory, flow
        self.batched = trajectory.tensor.ndim == 4
        self.system = system if self.batched else None
        reached = trajectory.reached[system] if self.batched else trajectory.reached
        self.times = trajectory.times[reached]
        states = trajectory.tensor[system] if self.batched else trajectory.tensor
        self.states = states[torch.from_numpy(reached)].detach().cpu().double()
        log_times = log_times and len(self.times) > 1
        self.log: Log = "times" if log_times else "none"
        self.log_both: Log = "both" if log_times else "values"


def _tokens(run: _Run) -> Figure:
    return figures.tokens(run.trajectory, system=run.system)


def _phase_plane(run: _Run) -> Figure:
    return figures.phase_plane(run.trajectory, system=run.system)


def _norms(run: _Run) -> Figure:
    return figures.norms(run.times, run.states, log=run.log_both)


def _distances(run: _Run) -> Figure:
    geometry = "sphere" if run.flow.space.name == "sphere" else "euclidean"
    return figures.distances(run.times, run.states, geometry=geometry, log=run.log)


def _consensus(run: _Run) -> Figure:
    # One line for each system: those that ended early are held at the last state they reached.
    values = observables.consensus(run.trajectory.tensor.detach().cpu().double())
    return figures.over_time(run.trajectory.times, values, "consensus E", log=run.log)


def _hemisphere(run: _Run) -> Figure:
    direction = observables.hemisphere(run.states[0]).direction
    values = observables.hemisphere_function(run.states, direction)
    return figures.over_time(run.times, values, "maxᵢ (1 − v·yᵢ)", log=run.log)


def _potential(run: _Run) -> Figure:
    qk = [run.flow.attention.qk.matrix_at(float(time)) for time in run.times]
    matrices = torch.stack([_one(matrix[..., 0, :, :], run.system or 0, axes=2) for matrix in qk])
    values = observables.potential(run.states, matrices.detach().cpu().double())
    return figures.over_time(run.times, values, "potential V", log=run.log)


def _circuits(run: _Run) -> Figure:
    qk = [run.flow.attention.qk.matrix_at(float(time)) for time in run.times]
    norms = torch.stack([_one(matrix, run.system or 0, axes=3).norm(dim=(-2, -1)) for matrix in qk], dim=-1)
    names = [f"head {head + 1}" for head in range(len(norms))] if 1 < len(norms) <= 6 else []
    values = norms.detach().cpu().double()
    return figures.over_time(run.times, values, "Frobenius norm of qk", names=names, many="heads", log=run.log)


def _one(states: torch.Tensor, system: int, axes: int = 2) -> torch.Tensor:
    """Return the tensor of one system, where it has a system axis in front of the last `axes`."""
    return states[system] if states.ndim > axes else states


_DRAWN: dict[str, Callable[[_Run], Figure]] = {
    "tokens": _tokens,
    "phase_plane": _phase_plane,
    "norms": _norms,
    "distances": _distances,
    "consensus": _consensus,
    "hemisphere": _hemisphere,
    "potential": _potential,
    "circuits": _circuits,
}
