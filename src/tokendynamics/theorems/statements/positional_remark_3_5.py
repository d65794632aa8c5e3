"""Remark 3.5 of `positional`, which is false: A_sym ≺ 0 and qk_sym ≻ 0 do not send all tokens to zero."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import flow_of_run
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import (
    contracting_systems,
    contraction_form,
    definite_forms,
    head_matrix,
    invertible,
    single_head_in_free_space,
)
from tokendynamics.theorems.outcomes import outcomes_of
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import number


def paper_conjecture(flow: Flow) -> np.ndarray:
    """Return the paper's conjecture per system: "zero" if A_sym ≺ 0 and qk_sym ≻ 0, else "diverged".

    Source: `positional` Remark 3.5. False: see the statement's erratum. "undecided" where A is undefined.
    """
    form = contraction_form(flow)
    if flow.heads != 1:
        return np.full(form.qk.shape[:-2], "undecided")
    signs = np.where(contracting_systems(form).numpy(), "zero", "diverged")
    return np.where(form.defined.numpy(), signs, "undecided")


def observed_criterion(flow: Flow) -> np.ndarray:
    """Judge by the criterion seen to decide: "diverged" if some Re λ(V) > 0, "bounded" if all are below 0.

    An observation on random draws with A_sym ≺ 0 and qk_sym ≻ 0, not a theorem: of 1365 with every Re λ(V) < 0 none
    diverged, and nearly all with some Re λ(V) > 0 did; but see the statement's erratum. "undecided" where the largest
    is 0 to rounding, and for all Re λ(V) < 0 without those signs: with qk = ov = −I tokens do diverge.
    """
    return _by_spectrum(*largest_real_part(flow), paper_conjecture(flow))


def _by_spectrum(largest: np.ndarray, noise: np.ndarray, paper: np.ndarray) -> np.ndarray:
    contracting = paper == "zero"
    outcome = np.where(largest > noise, "diverged", "undecided")
    return np.where((largest < -noise) & contracting, "bounded", outcome)


def largest_real_part(flow: Flow) -> tuple[np.ndarray, np.ndarray]:
    """Return max Re λ(V) per system, times the weight factor, and what rounding can make of a zero."""
    ov = flow.weight_factor * head_matrix(flow.attention.ov)
    values = torch.linalg.eigvals(ov)
    noise = ov.shape[-1] * torch.finfo(ov.dtype).eps * torch.linalg.matrix_norm(ov, 2)
    return values.real.amax(dim=-1).numpy(), noise.numpy()


@measured.given(measured.constant_circuits)
def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    form = contraction_form(flow)
    paper, (largest, noise) = paper_conjecture(flow), largest_real_part(flow)
    observed = _counted(_by_spectrum(largest, noise, paper))
    part = number(float(largest.max()))
    false = measured.fact(
        "the remark is false",
        False,
        f"it predicts the outcome “{_counted(paper)}”; the eigenvalues of ov (largest real part {part}), which decided "
        f"in random systems, predict “{observed}”",
    )
    if not bool(form.defined.any()):
        return (invertible(form), *definite_forms(form), false)
    skew = torch.maximum(_asymmetry(form.matrix), _asymmetry(form.qk))
    what = "the larger relative asymmetry of the two (of symmetric ones positional-3.4 speaks)"
    uneven = measured.above("A or qk not symmetric", skew, form.rounding, what)
    return (invertible(form), uneven, *definite_forms(form), false)


def _asymmetry(matrix: Tensor) -> Tensor:
    size = matrix.abs().amax(dim=(-2, -1)).clamp_min(torch.finfo(matrix.dtype).tiny)
    return (matrix - matrix.mT).abs().amax(dim=(-2, -1)) / size


def _counted(outcomes: np.ndarray) -> str:
    words, counts = np.unique(outcomes, return_counts=True)
    if len(words) == 1:
        return str(words[0])
    return ", ".join(f"{word} in {count}" for word, count in zip(words, counts, strict=True))


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    reached, flow = outcomes_of(trajectory), flow_of_run(trajectory)
    paper = np.broadcast_to(paper_conjecture(flow), reached.shape)
    observed = np.broadcast_to(observed_criterion(flow), reached.shape)
    unknown = reached == "undecided"
    as_paper = np.where(unknown | (paper == "undecided"), "undecided", np.where(reached == paper, "holds", "fails"))
    # Some Re λ > 0 makes divergence usual, not certain: only the other direction can be contradicted by one run.
    bounded = np.where(unknown, "undecided", np.where(reached == "diverged", "fails", "holds"))
    as_observed = np.where(observed == "bounded", bounded, np.where(reached == observed, "holds", "undecided"))
    return (
        _verdict(
            "paper's conjecture (tokens tend to zero where A_sym ≺ 0 and qk_sym ≻ 0)", as_paper, reached, trajectory
        ),
        _verdict(
            "observed (the signs of the real parts of the eigenvalues of ov decide)", as_observed, reached, trajectory
        ),
    )


def _verdict(text: str, outcome: np.ndarray, reached: np.ndarray, trajectory: Trajectory) -> Condition:
    """Return a condition about a class, not a size: margins are 0 where it holds or is undecided, else −1."""
    failed = outcome == "fails"
    first = np.where(failed, np.asarray(trajectory.end_times, dtype=float), np.nan)
    return Condition(f"{text}; outcome {_counted(reached)}", outcome, np.where(failed, -1.0, 0.0), 0.0, first)


STATEMENT = Statement(
    name="positional-remark-3.5",
    title="Convergence to zero without symmetry",
    equations="Remark 3.5",
    erratum=(
        "The remark claims that all tokens converge to zero whenever A_sym ≺ 0 and qk_sym ≻ 0. Of random draws 92 % "
        "did in dim 2 and 74 % in dim 4; with ov = [[0.6, −0.8], [0.8, 0.6]] one token grows like e^{0.6t}. What "
        "decided was the spectrum of V: no draw with every Re λ(V) < 0 diverged. That is an observation, too: a ring "
        "of three tokens with ov = −I diverges."
    ),
    structure=single_head_in_free_space,
    hypotheses=_hypotheses,
    predict=lambda flow, start: Prediction("nothing: the conjecture is false", limit="none"),
    conditions=_conditions,
    standing="false",
)
