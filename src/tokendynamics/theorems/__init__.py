"""The statements of the theory: which apply to a flow, what they predict, and what held along a trajectory."""

from __future__ import annotations

from tokendynamics.theorems._closed_forms import (
    predict_equiangular,
    predict_gaussian_moments,
    predict_interaction_window,
    predict_long_context,
    predict_noise_transition,
    predict_position_correlation,
    predict_strong_centers,
    predict_two_clusters,
)
from tokendynamics.theorems._families import Family
from tokendynamics.theorems._papers import PAPERS
from tokendynamics.theorems._search import Search, search_counterexample
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.atlas import ATLAS
from tokendynamics.theorems.registry import certify, check
from tokendynamics.theorems.result import Certificate, Check, Condition, Hypothesis, Prediction
from tokendynamics.theorems.statements import STATEMENTS

__all__ = [
    "ATLAS", "PAPERS", "STATEMENTS", "Certificate", "Check", "Condition", "Family", "Hypothesis", "Prediction",
    "Search", "Statement", "certify", "check", "predict_equiangular", "predict_gaussian_moments",
    "predict_interaction_window", "predict_long_context", "predict_noise_transition", "predict_position_correlation",
    "predict_strong_centers", "predict_two_clusters", "search_counterexample",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
