"""Sentences on the weights: their distance from the theorems, and whether they predict what attention does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._hypotheses import STATEMENTS
from tokendynamics.diagnosis._prediction import prediction_against_trace
from tokendynamics.words import Finding, fixed, listing

MET = 0.01
"""Distance up to which a hypothesis holds: weights stored in bfloat16 have relative rounding errors up to 0.004."""

IN_WORDS = {
    "ov_identity": "OV is a multiple of the identity",
    "ov_identity_per_head": "OV of every head is a multiple of the identity",
    "ov_symmetric": "OV is symmetric",
    "ov_top_eigenvalue": "the largest eigenvalue of OV is positive and simple",
    "ov_invertible": "OV is invertible",
    "heads_alike": "all heads weigh tokens alike",
    "qk_identity": "QK is a multiple of the identity",
    "qk_symmetric": "QK is symmetric",
    "qk_positive": "QK is positive definite",
    "a_symmetric": "A = QK (OVᵀ)⁻¹ is symmetric",
    "a_negative": "A = QK (OVᵀ)⁻¹ is negative definite",
}
"""The hypotheses of `tokendynamics.diagnosis._hypotheses.HYPOTHESES`."""

VIOLATED = {
    "ov_identity": "OV is not a multiple of the identity",
    "ov_identity_per_head": "OV of some heads is not a multiple of the identity",
    "ov_symmetric": "OV is not symmetric",
    "ov_top_eigenvalue": "the largest eigenvalue of OV is not positive and simple",
    "ov_invertible": "OV is not invertible",
    "heads_alike": "its heads weigh tokens differently",
    "qk_identity": "QK is not a multiple of the identity",
    "qk_symmetric": "QK is not symmetric",
    "qk_positive": "QK is not positive definite",
    "a_symmetric": "A = QK (OVᵀ)⁻¹ is not symmetric",
    "a_negative": "A = QK (OVᵀ)⁻¹ is not negative definite",
}
"""The same hypotheses where they do not hold."""

_VALUE_HYPOTHESES = {
    "ov_identity": "asymptotic-4.1 and asymptotic-5.1 require",
    "ov_symmetric": "asymptotic-6.1 requires",
}


def weights_findings(
    audit: xr.Dataset, kappa_change: xr.DataArray | Sequence[float] | np.ndarray | None = None
) -> list[Finding]:
    """Return findings on the weights alone, and on whether they predict what attention does.

    Args:
        audit: From `tokendynamics.audit`.
        kappa_change: Change of κ by attention, layer by layer; see `prediction_against_trace`. None if it was not
            measured; there is then no finding on the prediction.
    """
    findings = [theorems_in_words(audit)]
    return findings if kappa_change is None else [*findings, prediction_in_words(audit, kappa_change)]


def theorems_in_words(audit: xr.Dataset) -> Finding:
    """Say how far the layers are from the hypotheses of the nearest theorem.

    Args:
        audit: From `tokendynamics.audit`.
    """
    count = audit.sizes["layer"]
    nearest = audit.statement_distance.min("statement", skipna=True).values
    met = int((nearest <= MET).sum())
    names = Counter(audit.nearest_statement.values.tolist())
    name, layers = names.most_common(1)[0]
    values = {
        "nearest": audit.nearest_statement.values.tolist(),
        "distance": nearest.tolist(),
        "meeting": met,
        "ov_identity": audit.hypothesis_distance.sel(hypothesis="ov_identity").values.tolist(),
        "ov_symmetric": audit.hypothesis_distance.sel(hypothesis="ov_symmetric").values.tolist(),
        "ov_norm": audit.ov_norm.values.tolist(),
    }
    if met == count:
        text = f"The hypotheses of a theorem hold in {_of(count, count)}: {_counted(names)}."
        return Finding(text, "weights", values)
    reason, distance = _farthest(audit, name)
    if met:
        text = f"A theorem applies in {_of(met, count)} only; elsewhere {reason}."
    else:
        text = f"No theorem applies to this network: {reason}. The theory predicts nothing here."
    text += (
        f" The nearest theorem is {name} in {_of(layers, count)}, at distance {_range(nearest)} (0 = its hypotheses "
        f"hold). The median distance of “{IN_WORDS[distance.name]}” is {fixed(distance.value)} of at most 1."
    )
    return Finding(text + _value_hypotheses(audit), "weights", values)


def prediction_in_words(audit: xr.Dataset, kappa_change: xr.DataArray | Sequence[float] | np.ndarray) -> Finding:
    """Say whether the contraction that the weights predict orders the layers as attention does.

    Args:
        audit: From `tokendynamics.audit`.
        kappa_change: See `prediction_against_trace`.
    """
    comparison = prediction_against_trace(audit, kappa_change)
    text = f"{comparison.words}. Compared are the contraction of OV weighted by QK and the change of κ by attention."
    values = {
        "rank_correlation": comparison.correlation,
        "p_value": comparison.p_value,
        "rank_correlation_with_depth": comparison.by_depth,
        "layers": list(comparison.layers),
        "predicted": audit.predicted_contraction.values.tolist(),
    }
    return Finding(text, "components", values)


class _Distance(NamedTuple):
    """A hypothesis and its median distance over layers."""

    name: str
    value: float


def _farthest(audit: xr.Dataset, name: str) -> tuple[str, _Distance]:
    """Return what violates a statement most in the layers nearest to it, in words and as a number."""
    layers = audit.layer.values[audit.nearest_statement.values == name]
    distances = audit.hypothesis_distance.sel(layer=layers)
    medians = [_Distance(each, float(distances.sel(hypothesis=each).median())) for each in STATEMENTS[name]]
    farthest = max(medians, key=lambda distance: distance.value)
    return VIOLATED[farthest.name], farthest


def _value_hypotheses(audit: xr.Dataset) -> str:
    """Say in which layers a theorem's hypothesis on OV holds although others do not."""
    count = audit.sizes["layer"]
    for name, statements in _VALUE_HYPOTHESES.items():
        layers = int((audit.hypothesis_distance.sel(hypothesis=name) <= MET).sum())
        if layers:  # a multiple of the identity is symmetric too, and reported first
            return f" {IN_WORDS[name]} in {_of(layers, count)}, as {statements}."
    return ""


def _counted(names: Counter[str]) -> str:
    return listing([f"{name} in {count}" if len(names) > 1 else name for name, count in names.most_common()])


def _of(some: int, count: int) -> str:
    if count == 1:
        return "the audited layer"
    return f"all {count} layers" if some == count else f"{some} of {count} layers"


def _range(numbers: np.ndarray) -> str:
    low, high = fixed(numbers.min()), fixed(numbers.max())
    return low if low == high else f"{low}–{high}"
