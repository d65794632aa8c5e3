"""Some systems of a batch as a flow or a trajectory of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.spaces import Ellipsoid


def flow_of_systems(flow: Flow, where: np.ndarray) -> Flow:
    """Return the flow of the systems in `where`, (…,), as one axis; itself where all share its matrices."""
    index, metric = torch.as_tensor(np.flatnonzero(where)), flow.geometry.metric
    own_metric = metric is not None and metric.ndim > 2
    if not (flow.attention.system_shape or own_metric):
        return flow
    space = Ellipsoid(metric.flatten(0, -3)[index]) if metric is not None and own_metric else flow.space
    return Flow(flow.attention.flattened().select(index), space, projection=flow.projection)


def states_of_systems(states: Tensor, where: np.ndarray, axes: int = 2) -> Tensor:
    """Return the states of the systems in `where`: (…, *axes) as (system, *axes)."""
    return states.reshape(-1, *states.shape[states.ndim - axes :])[torch.as_tensor(np.flatnonzero(where))]


def run_of_systems(trajectory: Trajectory, where: np.ndarray) -> Trajectory:
    """Return the runs of the systems in `where`, (…,), along one axis; itself where these are all."""
    if bool(np.all(where)):
        return trajectory
    chosen = np.flatnonzero(where)
    tensor = states_of_systems(trajectory.tensor, where, axes=3)
    return replace(
        trajectory,
        states=tensor,
        tensor=tensor,
        status=np.asarray(trajectory.status).reshape(-1)[chosen],
        reached=np.asarray(trajectory.reached).reshape(-1, len(trajectory.times))[chosen],
        end_times=np.asarray(trajectory.end_times).reshape(-1)[chosen],
        counts={name: np.asarray(count).reshape(-1)[chosen] for name, count in trajectory.counts.items()},
        flow=None if trajectory.flow is None else flow_of_systems(trajectory.flow, where),
    )
