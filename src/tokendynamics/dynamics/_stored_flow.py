"""A flow as arrays and words that a file can hold, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tokendynamics.attention import AbsolutePositions, Attention, FactoredMatrix, RotaryPositions
from tokendynamics.attention.schedules import Constant, PerHead, Periodic, Schedule, Sinusoidal
from tokendynamics.dynamics._flow import Flow
from tokendynamics.spaces import Ellipsoid, Free, Sphere

Arrays = dict[str, np.ndarray]
OWN = "the caller's own"


def flow_to_arrays(flow: Flow) -> tuple[dict[str, Any], Arrays]:
    """Return a description in words and numbers, and the matrices by name.

    A schedule that is a user's function is described as "callable", a space or positions of the user's own as such:
    none of these comes back.
    """
    attention, positions = flow.attention, flow.attention.positions
    arrays: Arrays = {}
    words: dict[str, Any] = {
        "space": flow.space.name if type(flow.space) in (Free, Sphere, Ellipsoid) else OWN,
        "projection": flow.projection,
        "normalization": flow.normalization,
        "weights": attention.weights,
        "causal": attention.causal,
        "qk": _schedule_to_arrays(attention.qk, "qk", arrays),
        "ov": _schedule_to_arrays(attention.ov, "ov", arrays),
        "positions": None,
    }
    if flow.geometry.metric is not None:
        arrays["metric"] = _array(flow.geometry.metric)
    if isinstance(positions, AbsolutePositions):
        words["positions"], arrays["positions_table"] = {"kind": "absolute"}, _array(positions.table)
    if isinstance(positions, RotaryPositions):
        words["positions"] = {"kind": "rotary", "base": positions.base, "scale": positions.scale}
        arrays["positions_frequencies"] = _array(positions.frequencies)
        words["positions"]["query"] = _schedule_to_arrays(positions.query, "positions_query", arrays)
        words["positions"]["key"] = _schedule_to_arrays(positions.key, "positions_key", arrays)
    elif positions is not None and words["positions"] is None:
        words["positions"] = {"kind": OWN}
    return words, arrays


def flow_from_arrays(words: dict[str, Any], arrays: Arrays) -> Flow | None:
    """Return the flow again; None if its space, positions or one of its schedules was a user's own."""
    qk, ov = (_schedule_from_arrays(words[name], name, arrays) for name in ("qk", "ov"))
    place = words["positions"]
    positions: AbsolutePositions | RotaryPositions | None = None
    if place is not None and place["kind"] == "absolute":
        positions = AbsolutePositions(arrays["positions_table"])
    if place is not None and place["kind"] == "rotary":
        sides = [_schedule_from_arrays(place[name], f"positions_{name}", arrays) for name in ("query", "key")]
        if sides[0] is None or sides[1] is None:
            return None
        positions = RotaryPositions(
            sides[0], sides[1], place["base"], place["scale"], frequencies=arrays["positions_frequencies"]
        )
    if qk is None or ov is None or OWN in (words["space"], (place or {}).get("kind")):
        return None
    options = {name: words[name] for name in ("causal", "weights", "normalization")}
    attention = Attention(qk, ov, positions=positions, **options)
    space = {"free": Free, "sphere": Sphere, "ellipsoid": lambda: Ellipsoid(arrays["metric"])}[words["space"]]()
    return Flow(attention, space, words["projection"])


def _schedule_to_arrays(schedule: Schedule, name: str, arrays: Arrays) -> dict[str, Any]:
    if isinstance(schedule, Constant):
        _store(schedule.matrix, name, arrays)
        return {"kind": "constant"}
    if isinstance(schedule, Sinusoidal):
        for part in ("matrix", "amplitude", "frequency", "phase"):
            arrays[f"{name}_{part}"] = _array(getattr(schedule, part))
        return {"kind": "sinusoidal", "absolute": schedule.absolute}
    if isinstance(schedule, PerHead):
        heads = [_schedule_to_arrays(head, f"{name}_head{i}", arrays) for i, head in enumerate(schedule.heads)]
        return {"kind": "heads", "heads": heads}
    if isinstance(schedule, Periodic):
        _store(schedule.matrices, name, arrays)
        return {"kind": "periodic", "period": schedule.period}
    return {"kind": "callable"}


def _schedule_from_arrays(words: dict[str, Any], name: str, arrays: Arrays) -> Any:
    if words["kind"] == "constant":
        return Constant(_stored(name, arrays))
    if words["kind"] == "sinusoidal":
        parts = (arrays[f"{name}_{part}"] for part in ("matrix", "amplitude", "frequency", "phase"))
        return Sinusoidal(*parts, absolute=words["absolute"])
    if words["kind"] == "periodic":
        return Periodic(_stored(name, arrays), words["period"])
    if words["kind"] == "heads":
        heads = [_schedule_from_arrays(head, f"{name}_head{i}", arrays) for i, head in enumerate(words["heads"])]
        return None if None in heads else PerHead(heads, name)
    return None


def _store(matrix: torch.Tensor | FactoredMatrix, name: str, arrays: Arrays) -> None:
    if isinstance(matrix, FactoredMatrix):
        arrays[f"{name}_left"], arrays[f"{name}_right"] = _array(matrix.left), _array(matrix.right)
    else:
        arrays[name] = _array(matrix)


def _stored(name: str, arrays: Arrays) -> torch.Tensor | FactoredMatrix:
    if name in arrays:
        return torch.as_tensor(arrays[name])
    return FactoredMatrix(torch.as_tensor(arrays[f"{name}_left"]), torch.as_tensor(arrays[f"{name}_right"]))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()
