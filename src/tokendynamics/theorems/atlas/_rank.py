"""Statements of `rank`: what layers do to the differences of tokens, with and without residual connection."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import deviations_of, flow_of_run, layers_only, log_tolerance, never_above
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import number


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (
        measured.in_free_space(flow),
        measured.weights_are_softmax(flow),
        measured.no_positions(flow),
        measured.full_mask(flow),
    )


def _norms(flow: Flow, which: str, norm: int | float = 2) -> Tensor:
    """Return the largest norm that each head's matrix has, (*system, head)."""
    matrices, _ = measured.observed(getattr(flow.attention, which))
    return torch.stack([torch.linalg.matrix_norm(one.detach().cpu(), norm) for one in matrices]).amax(dim=0)


def _known(flow: Flow) -> tuple[Hypothesis, ...]:
    """Tell whether the matrices of all layers were looked at; of functions of time some were not."""
    return tuple(
        measured.fact(f"{name} known at all layers", True, "all matrices are known")
        if measured.observed(getattr(flow.attention, name))[1]
        else measured.assumed(f"{name} known at all layers", f"{name} was looked at at some times only")
        for name in ("qk", "ov")
    )


def cube(flow: Flow, tau: float = 1.0) -> Tensor:
    """Return K of D' ≤ K D³, (*system,): (τω/4) Σ_h ‖ov_h‖ ‖qk_h‖."""
    return tau * flow.weight_factor / 4 * (_norms(flow, "qk") * _norms(flow, "ov")).sum(dim=-1)


def _diameter(start: Tensor) -> Tensor:
    return torch.cdist(start, start, compute_mode="donot_use_mm_for_euclid_dist").flatten(-2).amax(dim=-1)


# --- without residual ------------------------------------------------------------------------------------------------


def _collapse_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    room = 1 - cube(flow) * _diameter(start).square()
    small = measured.above("tokens near enough to each other", room, 0.0, "1 − K D², D the largest distance,")
    return (*_known(flow), small)


def _predict_collapse(flow: Flow, start: Tensor) -> Prediction:
    constant, width = float(cube(flow).max()), float(_diameter(start).max())
    text = (
        f"layers without residual take the largest distance D to at most K D³, K = {number(constant, 3)}: "
        f"after L layers from D = {number(width, 3)} it is at most K^((3^L − 1)/2) D^(3^L), doubly exponentially small"
    )
    return Prediction(text, limit="equal tokens")


def _bare(residual: float, tau: float) -> str | None:
    return None if residual == 0 else f"their residual factor is {number(residual)}, not 0"


def _iterated(logs: Tensor, constant: Tensor, layers: Tensor) -> Tensor:
    """Return the logarithm of K^((3^n − 1)/2) D^(3^n) of the logarithms of D, (…, time), and of K, (…,)."""
    power = torch.pow(3.0, layers)
    # Equal tokens stay so: −∞ is no number to be multiplied by one that overflows.
    return torch.where(torch.isneginf(logs), logs, (power - 1) / 2 * constant.log()[..., None] + power * logs)


def mixed_norm(trajectory: Trajectory) -> Tensor:
    """Return the logarithm of (‖R‖₁ ‖R‖_∞)^½ by layer, R the deviations from the mean token, (…, time)."""
    deviations = deviations_of(trajectory)
    rest = (deviations.shape - deviations.shape.mean(dim=-2, keepdim=True)).double().cpu().abs()
    columns, rows = rest.sum(dim=-2).amax(dim=-1), rest.sum(dim=-1).amax(dim=-1)
    return (columns.log() + rows.log()) / 2 + math.log(2) * deviations.exponent.cpu()


def _printed(flow: Flow) -> Tensor:
    """Return the factor 4 β H / √d_qk of the source, (*system,), with the root in qk, as everywhere here."""
    # ‖qk‖₁ and ‖ov^T‖_{1,∞}: rows of ov^T are columns of ov, so the two norms of it change places.
    columns, rows = _norms(flow, "ov", 1), _norms(flow, "ov", np.inf)
    beta = (_norms(flow, "qk", 1) * (columns * rows).sqrt()).amax(dim=-1)
    return 4 * flow.heads * flow.weight_factor * beta


def _collapse_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    text = "the largest distance of tokens after a layer is at most K times the cube of that before"
    if (refused := layers_only(trajectory, text, _bare)) is not None:
        return refused
    flow, deviations = flow_of_run(trajectory), deviations_of(trajectory)
    tau, times = float(trajectory.parameters["tau"]), torch.as_tensor(np.asarray(trajectory.times))
    systems = deviations.exponent.shape[:-1]
    logs = deviations.log_diameter.cpu()
    bound = _iterated(logs[..., :-1], cube(flow, tau).expand(systems), times.diff())
    logs_mixed = mixed_norm(trajectory)
    printed = _iterated(logs_mixed[..., :1], (tau * _printed(flow)).expand(systems), times - times[0])
    tolerance = log_tolerance(trajectory)
    return (
        never_above(_excess(logs, bound), trajectory, tolerance, f"{text}, in logarithms", pointwise=True),
        # The source takes R from the nearest equal tokens, which the mean is but for a factor of at most 2.
        never_above(
            _relative(logs_mixed - math.log(2), printed),
            trajectory,
            tolerance,
            "log (‖R‖₁ ‖R‖_∞)^½ less the bound of the source",
            pointwise=True,
        ),
    )


def _excess(logs: Tensor, bound: Tensor) -> Tensor:
    """Return how far values (…, time) are above a bound on all but the first, relative to its size."""
    return torch.cat([torch.full_like(logs[..., :1], -torch.inf), _relative(logs[..., 1:], bound)], dim=-1)


def _relative(logs: Tensor, bound: Tensor) -> Tensor:
    above = (logs - bound) / (1 + torch.where(torch.isfinite(bound), bound.abs(), 0.0))
    return torch.where(torch.isneginf(logs), -torch.inf, above)


# --- with residual ---------------------------------------------------------------------------------------------------


def _strength(flow: Flow, tau: float = 1.0) -> Tensor:
    """Return τω Σ_h ‖ov_h‖, (*system,)."""
    return tau * flow.weight_factor * _norms(flow, "ov").sum(dim=-1)


def _skip_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    room = 1 - _strength(flow)
    weak = measured.above("attention weaker than the residual connection", room, 0.0, "1 − ω Σ_h ‖ov_h‖")
    apart = measured.above("tokens not all equal", _diameter(start), 0.0, "the largest distance of tokens")
    return (*_known(flow), weak, apart)


def _predict_skip(flow: Flow, start: Tensor) -> Prediction:
    least = float((1 - _strength(flow)).min())
    text = (
        f"with residual connection (factor 1, tau 1) a layer leaves at least the share {number(least, 3)} of the "
        "largest distance of tokens, and nearly all of it where tokens are near each other"
    )
    return Prediction(text, limit="tokens stay apart")


def _with_skip(residual: float, tau: float) -> str | None:
    return None if residual > 0 else "they have no residual connection"


def _skip_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    text = "a layer leaves at least the share ρ − τω Σ_h ‖ov_h‖ tanh(‖qk_h‖D²/4) of the largest distance D of tokens"
    if (refused := layers_only(trajectory, text, _with_skip)) is not None:
        return refused
    flow, deviations = flow_of_run(trajectory), deviations_of(trajectory)
    residual, tau = (float(trajectory.parameters[name]) for name in ("residual", "tau"))
    logs, times = deviations.log_diameter.cpu(), torch.as_tensor(np.asarray(trajectory.times))
    turned = torch.tanh(_norms(flow, "qk").unsqueeze(-2) * (2 * logs[..., :-1, None]).exp() / 4)
    taken = tau * flow.weight_factor * (_norms(flow, "ov").unsqueeze(-2) * turned).sum(dim=-1)
    # Between layers that were not saved the distance is not known: there tanh is 1.
    layers = times.diff()
    taken = torch.where(layers == 1, taken, _strength(flow, tau)[..., None])
    least = logs[..., :-1] + layers * (residual - taken).clamp_min(0.0).log()
    shortfall = torch.where(torch.isneginf(least), -torch.inf, (least - logs[..., 1:]) / (1 + least.abs()))
    excess = torch.cat([torch.full_like(logs[..., :1], -torch.inf), shortfall], dim=-1)
    return (never_above(excess, trajectory, log_tolerance(trajectory), f"{text}, in logarithms", pointwise=True),)


STATEMENTS = (
    Statement(
        name="rank-collapse",
        title="Attention without residual connection makes tokens equal doubly exponentially fast",
        equations="the bound of its summaries",
        structure=_structure,
        hypotheses=_collapse_hypotheses,
        predict=_predict_collapse,
        conditions=_collapse_conditions,
        decidable=lambda trajectory: layers_only(trajectory, "", _bare) is None,
        subject="layers",
    ),
    Statement(
        name="rank-skip",
        title="With a residual connection tokens do not collapse doubly exponentially",
        equations="the abstract",
        structure=_structure,
        hypotheses=_skip_hypotheses,
        predict=_predict_skip,
        conditions=_skip_conditions,
        decidable=lambda trajectory: layers_only(trajectory, "", _with_skip) is None,
        subject="layers",
    ),
)
