"""One system of the page: a flow that the browser integrates, or frames that Python computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics import observables
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.report.explorer import _statements
from tokendynamics.report.explorer._flow import numbers_of, sharpness, why_not_live

_FRAMES, _POINTS = 301, 301 * 600
"""Times, and times × tokens, of frames that a page carries."""

_DIGITS = 6
"""Of the coordinates of frames: more than a screen shows."""

LINK = 0.1
"""Radians: tokens that are nearer than this are of one cluster."""

_LINKED = 600
"""Tokens beyond which clusters are not counted at every frame."""


def live_system(
    flow: Flow, start: Tensor, times: np.ndarray, *, name: str, title: str, sentence: str
) -> dict[str, Any]:
    """Return a system that the browser integrates from `start` (token, dim); `why_not_live` must be empty."""
    plane = None
    if flow.dim > 3:
        run = simulate(flow, start, times[:: max(1, len(times) // 60)], rtol=1e-5, atol=1e-7)
        plane = plane_of(run.tensor.double().numpy()[run.reached])
    return {
        "name": name,
        "title": title,
        "sentence": sentence,
        "why_not_live": "",
        "flow": numbers_of(flow, flow.geometry.project(start)),
        "beta": sharpness(flow),
        "times": _chosen(times, _FRAMES).tolist(),
        "plane": plane,
        "frames": None,
        "statements": _statements.at_controls(flow, start),
        "certificates": _statements.certificates(flow, start, times),
    }


def played_system(trajectory: Trajectory, why: str, *, name: str, title: str, sentence: str) -> dict[str, Any]:
    """Return a system whose frames are those of a run; of several systems, the first."""
    states, reached = trajectory.tensor, np.asarray(trajectory.reached)
    if states.ndim > 3:
        states, reached = states.flatten(0, -4)[0], reached.reshape(-1, reached.shape[-1])[0]
    tokens, dim = states.shape[-2:]
    most = max(2, min(_FRAMES, _POINTS // tokens))
    places = _chosen(np.flatnonzero(reached), most)
    if tokens > _POINTS // 2:
        advice = "save fewer tokens"
        raise ArgumentValueError(expected("result", f"at most {_POINTS // 2} tokens", str(tokens), advice))
    drawn = states[torch.from_numpy(places)].detach().cpu().double().numpy()
    plane = plane_of(drawn) if dim > 3 else None
    shown = drawn if plane is None else drawn @ np.array(plane["vectors"]).T
    known = trajectory.flow is not None and trajectory.tensor.ndim == 3 and trajectory.flow.attention.constant
    return {
        "name": name,
        "title": title,
        "sentence": sentence,
        "why_not_live": why,
        "flow": None,
        "space": trajectory.flow.space.name if trajectory.flow is not None else "free",
        "beta": 1.0,
        "times": trajectory.times[places].tolist(),
        "plane": plane,
        "frames": rounded(shown),
        "measures": [measured(torch.from_numpy(state)) for state in drawn],
        "statements": _statements.of_run(trajectory.flow, trajectory)
        if known and trajectory.flow is not None
        else None,
    }


def of_trajectory(trajectory: Trajectory, title: str) -> dict[str, Any]:
    """Return the system of a run: live from its first state where that can be, else played."""
    several = trajectory.tensor.ndim > 3 and int(np.prod(trajectory.tensor.shape[:-3])) > 1
    sentence = "The first system of several is shown." if several else ""
    flow = trajectory.flow
    if flow is None:
        why = "The flow of this run is not known any more; its saved states are played."
    else:
        start = trajectory.tensor.flatten(0, -4)[0] if trajectory.tensor.ndim > 3 else trajectory.tensor
        why = why_not_live(flow, start[0])
        if not why:
            times = np.asarray(trajectory.times)
            return live_system(
                flow, start[0].detach().cpu().double(), times, name="run", title=title, sentence=sentence
            )
        why = f"{why} The states that Python computed are played."
    return played_system(trajectory, why, name="run", title=title, sentence=sentence)


def measured(state: Tensor) -> dict[str, Any]:
    """Return what the page shows of one state (token, dim); null where a token is at zero, or tokens are too many."""
    directed = len(state) > 1 and bool((state.abs().amax(dim=-1) > 0).all())
    return {
        "spread": 1 - float(observables.mean_pair_cosine(state)) if directed else None,
        "rank": float(observables.effective_rank(state)) if bool(state.any()) else None,
        "clusters": int(observables.clusters(state, LINK)) if directed and len(state) <= _LINKED else None,
    }


def rounded(positions: np.ndarray) -> list[list[list[float]]]:
    """Return positions (time, token, axis) as plain numbers, to more digits than a screen shows."""
    return [[[float(f"{entry:.{_DIGITS}g}") for entry in token] for token in frame] for frame in positions.tolist()]


def _chosen(values: np.ndarray, most: int) -> np.ndarray:
    """Return at most `most` values, evenly by their place, the first and the last among them."""
    return values[np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int))]


def plane_of(states: np.ndarray) -> dict[str, Any]:
    """Return the three directions along which tokens (time, token, dim) differ most, with the share of each."""
    points = states.reshape(-1, states.shape[-1])
    centred = points - points.mean(axis=0)
    _, sizes, vectors = np.linalg.svd(centred, full_matrices=False)
    shares = sizes**2 / max(float((sizes**2).sum()), np.finfo(float).tiny)
    names = [f"direction {place + 1} ({share:.0%})" for place, share in enumerate(shares[:3])]
    return {"names": names, "vectors": vectors[:3].tolist()}
