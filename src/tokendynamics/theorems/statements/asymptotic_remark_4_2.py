"""Remark 4.2 of `asymptotic`: how probable it is that a random start satisfies theorem 4.1 (Wendel)."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import hemisphere, wendel_probability
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import number, plural

DRAWN = "start drawn uniformly"
"""The hypothesis that only the one who drew the start can know."""
FEWEST = 30
"""Systems from which on a frequency is compared with the probability."""
_STANDARD_ERRORS = 4


def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return (measured.assumed(DRAWN, "that the tokens are independent and uniform cannot be measured on them"),)


def _decidable(trajectory: Trajectory) -> bool:
    """Say whether there are systems enough: a few tell nothing of a probability, unless it is 1."""
    *systems, _, tokens, dim = trajectory.tensor.shape
    return math.prod(systems) >= FEWEST or wendel_probability(tokens, dim) == 1


def _predict(flow: Flow, start: Tensor) -> Prediction:
    tokens = start.shape[-2]
    probability = wendel_probability(tokens, flow.dim)
    share = f"share{'s' if tokens == 1 else ''} an open half space with probability {number(probability, 6)}"
    text = f"{plural(tokens, 'uniform token')} in dim {flow.dim} {share}"
    return Prediction(text, limit="none: a probability of starts")


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    """Judge the frequency among the systems; a few starts decide only where the probability is 1."""
    start = trajectory.tensor[..., 0, :, :].detach().double()
    margin = np.asarray(hemisphere(start).margin.cpu())
    probability = wendel_probability(start.shape[-2], start.shape[-1])
    frequency, never = float(np.mean(margin > 0)), np.full(margin.shape, np.nan)
    text = f"an open half space holds the start (probability {number(probability, 6)}, seen in {number(frequency, 6)})"
    if probability == 1 or margin.size < FEWEST:
        outcome = np.where((margin > 0) & (probability == 1), "holds", "undecided")
        return (Condition(text, outcome, margin, 0.0, never),)
    allowed = _STANDARD_ERRORS * math.sqrt(probability * (1 - probability) / margin.size)
    left = allowed - abs(frequency - probability)
    # A frequency far off rather shows starts that were not drawn uniformly than a wrong probability.
    outcome = np.full(margin.shape, "holds" if left >= 0 else "undecided")
    text = f"{text}: they differ by at most {_STANDARD_ERRORS} standard errors"
    return (Condition(text, outcome, np.full(margin.shape, left), allowed, never),)


STATEMENT = Statement(
    name="asymptotic-remark-4.2",
    title="Wendel's probability of a common half space",
    equations="Remark 4.2",
    erratum=(
        "The printed sum runs to n − 1; it has to run to n, with dim = n + 1, and the probability is 1 exactly when "
        "the number of tokens is at most n + 1 (printed: n)."
    ),
    structure=lambda flow: (measured.on_sphere(flow),),
    hypotheses=_hypotheses,
    predict=_predict,
    conditions=_conditions,
    decidable=_decidable,
)
