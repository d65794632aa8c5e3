"""One system of the page: a flow that the browser integrates, or frames that Python computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tokendynamics import observables
from tokendynamics.attention import RotaryPositions
from tokendynamics.dynamics import Flow, Status, Trajectory, simulate
from tokendynamics.dynamics.events import NormAbove
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.extras import missing
from tokendynamics.observables.summary import Observable
from tokendynamics.report.explorer import _statements
from tokendynamics.report.explorer._flow import (
    MOST_TOKENS,
    at_betas,
    changed,
    numbers_of,
    peak,
    sharpness,
    why_not_live,
    work,
)
from tokendynamics.words import count

_FRAMES, _POINTS = 301, 301 * 600
"""Times, and times × tokens, of frames that a page carries."""

_DRAWN, _OUTLINE = 25, 64
"""Times, and tokens, of the still picture that stands where a browser moves nothing."""

_DIGITS = 6
"""Of the coordinates of frames: more than a screen shows."""

LINK = 0.1
"""Radians: tokens that are nearer than this are of one cluster."""

_LINKED = 600
"""Tokens beyond which clusters are not counted at every frame."""


_SWEPT = 25
"""Values of β of the strip below its slider, each the same multiple of the one before."""

_FAR = 1e9
"""Norm of a token beyond which a browser follows a run no longer."""

_MOST_STEPS = {"batched": 1000, "compiled": 20_000}
"""Steps of a run by engine; where they are not enough, the page computes its strip itself."""

_MOST_WORK = 60_000
"""Heads × tokens² × features of a flow beyond which the page computes its strip itself, the runs being long."""

NO_NOISE = "A browser computes no noise."
OF_LAYERS = "Each time is a layer, and a browser follows the flow alone, not its layers."
BY_PYTHON = "Python computes observables of your own: the saved states are played."


def live_system(
    flow: Flow, start: Tensor, times: np.ndarray, *, name: str, title: str, sentence: str, still: bool = True
) -> dict[str, Any]:
    """Return a system that the browser integrates from `start` (token, dim); `why_not_live` must be empty.

    With `still`, it has frames for `still_of`, which belong on no page.
    """
    plane, frames = None, []
    if still or flow.dim > 3:
        run = simulate(flow, start, _chosen(times, 61), rtol=1e-5, atol=1e-7)
        reached = run.tensor.double().numpy()[run.reached]
        plane = plane_of(reached) if flow.dim > 3 else None
        frames = rounded(reached if plane is None else reached @ np.array(plane["vectors"]).T)
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
        "still": frames,
        "sweep": strip(flow, start, times),
        "statements": _statements.at_controls(flow, start),
        "certificates": _statements.certificates(flow, start, times),
    }


def swept(flow: Flow) -> list[float]:
    """Return the values of β: from 1/4 to 16, or to the β of the flow itself where that is beyond."""
    beta = sharpness(flow)
    low, high = min(0.25, beta), max(16.0, beta)
    return [low * (high / low) ** (place / (_SWEPT - 1)) for place in range(_SWEPT)]


def strip(flow: Flow, start: Tensor, times: np.ndarray) -> list[float | None] | None:
    """Return the mean cosine of all pairs of tokens at the last time, for each value of β.

    Args:
        flow: One that can be live.
        start: (token, dim).
        times: Those of the page.

    Returns:
        None for a value at which tokens fly apart, and None in all where the page has to compute the strip itself.
    """
    if len(start) < 2 or work(flow, start) > _MOST_WORK or (not _one_batch(flow) and missing("fast")):
        return None
    values: list[float | None] = []
    for batch, engine in _batches(flow, start):
        starts = flow.geometry.project(start.double()).expand(*batch.attention.system_shape, *start.shape)
        events = [] if flow.geometry.constrained else [NormAbove(_FAR)]
        try:
            run = simulate(batch, starts, times[[0, -1]], engine=engine, max_steps=_MOST_STEPS[engine], events=events)
        except ArgumentValueError:  # Exponentials of these logits overflow: there is no run.
            return None
        statuses = np.asarray(run.status).reshape(-1).tolist()
        if not {*statuses} <= {Status.HORIZON, Status.DIVERGED}:
            return None
        ends = run.tensor[..., -1, :, :].reshape(-1, *start.shape)
        values += [
            _alike(end) if status == Status.HORIZON else None for status, end in zip(statuses, ends, strict=True)
        ]
    return values


def _one_batch(flow: Flow) -> bool:
    """Tell whether one batch has all β: an offset of exponential weights and a scale of rotary positions have one."""
    return flow.attention.weights != "exponential" and not isinstance(flow.attention.positions, RotaryPositions)


def _batches(flow: Flow, start: Tensor) -> Iterator[tuple[Flow, Literal["batched", "compiled"]]]:
    """Yield flows whose systems have the values of β one after the other, and the engine of each."""
    attention, betas, top = flow.attention, swept(flow), peak(flow, start)
    settings: dict[str, Any] = {"causal": attention.causal, "weights": attention.weights, "positions": True}
    if _one_batch(flow):
        yield at_betas(flow, betas, top=top, **settings), "batched"
        return
    for beta in betas:
        yield changed(flow, beta=beta, peak=top, **settings), "compiled"


def _alike(end: Tensor) -> float | None:
    directed = bool((end.abs().amax(dim=-1) > 0).all())
    return round(float(observables.mean_pair_cosine(end)), _DIGITS) if directed else None


def played_system(
    trajectory: Trajectory,
    why: str,
    *,
    name: str,
    title: str,
    sentence: str,
    added: Mapping[str, Observable] | None = None,
) -> dict[str, Any]:
    """Return a system whose frames are those of a run, with observables of the user; of several systems, the first."""
    states, reached = trajectory.tensor, np.asarray(trajectory.reached)
    if states.ndim > 3:
        states, reached = states.flatten(0, -4)[0], reached.reshape(-1, reached.shape[-1])[0]
    tokens, dim = states.shape[-2:]
    check_tokens(tokens)
    most = max(2, min(_FRAMES, _POINTS // tokens))
    places = _chosen(np.flatnonzero(reached), most)
    drawn = states[torch.from_numpy(places)].detach().cpu().double().numpy()
    plane = plane_of(drawn) if dim > 3 else None
    shown = drawn if plane is None else drawn @ np.array(plane["vectors"]).T
    unknown = _why_no_statements(trajectory)
    return {
        "name": name,
        "title": title,
        "sentence": sentence,
        "why_not_live": why,
        "flow": None,
        "space": trajectory.flow.space.name if trajectory.flow is not None else "free",
        "beta": 1.0,
        "times": trajectory.times[places].tolist(),
        "clock": "layer" if trajectory.engine == "layers" else None,
        "plane": plane,
        "frames": rounded(shown),
        "measures": [_with_added(torch.from_numpy(state), added or {}) for state in drawn],
        "added": list(added or {}),
        "statements": None if unknown or trajectory.flow is None else _statements.of_run(trajectory.flow, trajectory),
        "why_no_statements": unknown,
    }


def _with_added(state: Tensor, added: Mapping[str, Observable]) -> dict[str, Any]:
    """Return what the page shows of a state, with the values of the user's observables; null where one is undefined."""
    values = [observable(state) for observable in added.values()]
    return measured(state) | ({"added": [value if math.isfinite(value) else None for value in values]} if added else {})


def _why_no_statements(trajectory: Trajectory) -> str:
    """Return why nothing is said of the statements of a run; empty where they can be asked."""
    if trajectory.flow is None:
        return "Not known: this run does not know its flow any more."
    if trajectory.tensor.ndim > 3:
        return "Not asked of systems in a batch: explore a run of one alone."
    return ""


def of_trajectory(trajectory: Trajectory, title: str, added: Mapping[str, Observable] | None = None) -> dict[str, Any]:
    """Return the system of a run: live from its first state where that can be, else played."""
    several = trajectory.tensor.ndim > 3 and int(np.prod(trajectory.tensor.shape[:-3])) > 1
    sentence = "The first system of several is shown." if several else ""
    flow = trajectory.flow
    if trajectory.frame == "rescaled":
        why = "A browser does not compute rescaled tokens z = exp(−t ov) x; the saved states are played."
    elif trajectory.noise is not None:
        why = f"{NO_NOISE} The saved states are played."
    elif trajectory.engine == "layers":
        why = f"{OF_LAYERS} The saved states are played."
    elif flow is None:
        why = "The flow of this run is not known any more; its saved states are played."
    elif added:
        why = BY_PYTHON
    else:
        start = trajectory.tensor.flatten(0, -4)[0] if trajectory.tensor.ndim > 3 else trajectory.tensor
        why = why_not_live(flow, start[0])
        if not why:
            times = np.asarray(trajectory.times)
            return live_system(
                flow, start[0].detach().cpu().double(), times, name="run", title=title, sentence=sentence
            )
        why = f"{why} The states that Python computed are played."
    return played_system(trajectory, why, name="run", title=title, sentence=sentence, added=added)


def check_tokens(tokens: int) -> None:
    """Refuse more tokens than a page can hold at two times.

    Raises:
        ArgumentValueError: More than that.
    """
    if tokens > _POINTS // 2:
        wanted = f"at most {count(_POINTS // 2)} tokens, of which a browser moves at most {MOST_TOKENS} live"
        raise ArgumentValueError("result", wanted, count(tokens), "take fewer tokens")


def still_of(system: dict[str, Any]) -> dict[str, Any] | None:
    """Return a picture for where nothing moves: paths as SVG, and where they end; None where nothing moved.

    Coordinates are those of a square of 400, seen as the page shows them first.
    """
    frames = np.array(system.get("still") or system["frames"])[:, :_OUTLINE]
    if len(frames) < 2:
        return None
    frames = _chosen(frames, _DRAWN)
    if frames.shape[-1] < 3:
        seen = frames[..., :2]
    else:
        (x, y, z), turn, lift = np.moveaxis(frames, -1, 0), 0.7, 0.35
        towards = np.cos(turn) * x + np.sin(turn) * y
        seen = np.stack([np.cos(turn) * y - np.sin(turn) * x, np.cos(lift) * z - np.sin(lift) * towards], axis=-1)
    space = system["flow"]["space"]["kind"] if system["flow"] else system["space"]
    extent = 1.0 if space == "sphere" else float(np.abs(seen).max()) or 1.0
    points = (200 + 180 / extent * seen * [1, -1]).round(1).transpose(1, 0, 2).tolist()
    paths = [
        {"hue": (205 + token * 137.508) % 360, "points": " ".join(f"{x},{y}" for x, y in path), "end": path[-1]}
        for token, path in enumerate(points)
    ]
    return {"sphere": space == "sphere", "paths": paths}


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
