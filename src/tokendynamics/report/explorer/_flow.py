"""A flow as the page needs it: all its numbers, and whether a browser can integrate it."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, Attention, RotaryPositions
from tokendynamics.dynamics import Flow
from tokendynamics.numerics.printable import shortened
from tokendynamics.words import plural

MOST_TOKENS, MOST_DIM, MOST_HEADS = 128, 16, 16


Weights = Literal["softmax", "linear", "exponential"]


def why_not_live(flow: Flow, start: Tensor) -> str:
    """Return why a browser cannot integrate a flow from a start (token, dim), as a sentence; empty where it can."""
    attention, geometry = flow.attention, flow.geometry
    positions = attention.positions
    sizes = ((start.shape[-2], MOST_TOKENS, "token"), (flow.dim, MOST_DIM, "feature"), (flow.heads, MOST_HEADS, "head"))
    for count, most, noun in sizes:
        if count > most:
            return f"It has {plural(count, noun)}; a browser follows at most {most} live."
    if attention.weights == "hardmax":
        return "Its hardmax weights jump, which a browser does not follow live."
    if not attention.constant:
        return "Its matrices depend on time, which a browser does not follow live."
    if geometry.norm is not None:
        return f"Its tokens are normalized by the scheme {geometry.norm}, which a browser does not follow live."
    if geometry.constrained and not geometry.quadratic:
        return f"Its space, {shortened(flow.space.name, 60)}, is known to Python alone."
    if flow.projection != "orthogonal":
        return f"Its projection, {flow.projection}, is not the orthogonal one."
    if attention.mask is not None:
        return "Its mask is neither full nor causal, which a browser does not follow live."
    if flow.frozen:
        return "Some of its tokens do not move, which a browser does not follow live."
    if attention.system_shape or geometry.per_system:
        return "Its matrices differ between systems."
    if positions is not None and not isinstance(positions, AbsolutePositions | RotaryPositions):
        return "Its positions are a scheme of its own, which Python alone knows."
    return ""


def sharpness(flow: Flow) -> float:
    """Return β: the multiple of the identity that every qk is, and 1 for other matrices or beside rotary positions."""
    qk = _matrices(flow.attention.qk)
    multiple = float(qk[0, 0, 0])
    alike = bool((qk == multiple * torch.eye(qk.shape[-1], dtype=qk.dtype)).all())
    return multiple if alike and multiple > 0 and not isinstance(flow.attention.positions, RotaryPositions) else 1.0


def numbers_of(flow: Flow, start: Tensor) -> dict[str, Any]:
    """Return every number that an integration needs, with β = 1, as plain JSON; `why_not_live` must be empty."""
    attention, metric = flow.attention, flow.geometry.metric
    return {
        "space": {"kind": flow.space.name, "metric": None if metric is None else metric.double().tolist()},
        "weights": attention.weights,
        "peak": peak(flow, start),
        "causal": attention.causal,
        "normalization": flow.normalization,
        "factor": flow.weight_factor,
        "qk": (_matrices(attention.qk) / sharpness(flow)).tolist(),
        "ov": _matrices(attention.ov).tolist(),
        "positions": _positions(attention.positions),
        "start": start.double().tolist(),
    }


def peak(flow: Flow, start: Tensor) -> float:
    """Return what the offset of exponential weights is for β = 1, so that no weight is above 1.

    That of the flow itself where it has such weights; else a bound of the logits on the space, and 0 in free space.
    """
    attention, metric = flow.attention, flow.geometry.metric
    if attention.weights == "exponential":
        return attention.offset / sharpness(flow)
    if not flow.geometry.constrained:
        return 0.0
    longest = 1.0 if metric is None else float(torch.linalg.eigvalsh(metric.double())[0]) ** -0.5
    largest = float(torch.linalg.matrix_norm(_matrices(attention.qk) / sharpness(flow), 2).max())
    positions = attention.positions
    if isinstance(positions, AbsolutePositions):
        longest += float(torch.linalg.vector_norm(positions.table[: start.shape[-2]].double(), dim=-1).max())
    if isinstance(positions, RotaryPositions):
        sides = (float(torch.linalg.matrix_norm(_matrices(side), 2).max()) for side in (positions.query, positions.key))
        largest = max(largest, positions.scale * (largest + math.prod(sides)))
    return longest**2 * largest


def changed(flow: Flow, *, beta: float, causal: bool, weights: Weights, positions: bool, peak: float = 0.0) -> Flow:
    """Return a flow that can be live with other settings: what the page's controls change.

    Args:
        flow: See `why_not_live`.
        beta: What multiplies every logit, relative to a qk without its `sharpness`.
        causal: Whether a token sees those before it alone.
        weights: "softmax", "linear" or "exponential".
        positions: Whether its positions, if it has any, are kept.
        peak: See `peak`.
    """
    attention = flow.attention
    kept = attention.positions if positions else None
    qk = _matrices(attention.qk) / sharpness(flow)
    if isinstance(kept, RotaryPositions):
        scheme = RotaryPositions(
            _matrices(kept.query), _matrices(kept.key), scale=beta * kept.scale, frequencies=kept.frequencies
        )
    else:
        scheme, qk = kept, beta * qk
    other = Attention(
        qk,
        _matrices(attention.ov),
        causal=causal,
        weights=weights,
        normalization="paper" if flow.normalization == "paper" else "plain",
        positions=scheme,
        offset=beta * peak if weights == "exponential" else 0.0,
    )
    return Flow(other, flow.space)


def work(flow: Flow, start: Tensor) -> int:
    """Return heads × tokens² × features: how much one velocity takes."""
    return flow.heads * start.shape[-2] ** 2 * flow.dim


def at_betas(flow: Flow, betas: list[float], causal: bool, weights: Weights, positions: bool, top: float) -> Flow:
    """Return the flow with one system for each β, in the order of the values; beside rotary positions there is one.

    Exponential weights, whose `peak` is `top`, are those of one β.
    """
    flows = [changed(flow, beta=beta, causal=causal, weights=weights, positions=positions, peak=top) for beta in betas]
    one = flows[0].attention
    attention = Attention(
        torch.stack([at_beta.attention.qk.matrix_at(0.0) for at_beta in flows]),
        one.ov,
        causal=causal,
        weights=weights,
        normalization="paper" if flow.normalization == "paper" else "plain",
        positions=one.positions,
        offset=one.offset,
    )
    return Flow(attention, flow.space)


def _matrices(schedule: Any) -> Tensor:
    return schedule.matrix_at(0.0).detach().cpu().double()


def _positions(positions: Any) -> dict[str, Any] | None:
    if isinstance(positions, AbsolutePositions):
        return {"kind": "absolute", "table": positions.table.double().tolist()}
    if isinstance(positions, RotaryPositions):
        return {
            "kind": "rotary",
            "query": _matrices(positions.query).tolist(),
            "key": _matrices(positions.key).tolist(),
            "frequencies": positions.frequencies.tolist(),
            "scale": positions.scale,
            "base": positions.base,
        }
    return None
