"""What the weights alone say, in short sentences: distance from the theorems, and the prediction against the tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._hypotheses import STATEMENTS
from tokendynamics.diagnosis._prediction import prediction_against_trace
from tokendynamics.words import Finding

MET = 0.01
"""Distance up to which a hypothesis counts as met: weights stored in bfloat16 are rounded by up to 0.004 of them."""

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
    "a_symmetric": "A is symmetric",
    "a_negative": "A is negative definite",
}
"""The hypotheses of `tokendynamics.diagnosis._hypotheses.HYPOTHESES`."""

_VALUE_HYPOTHESES = {"ov_identity": "asymptotic-4.1 and asymptotic-5.1 ask", "ov_symmetric": "asymptotic-6.1 asks"}


def weights_findings(
    audit: xr.Dataset, kappa_change: xr.DataArray | Sequence[float] | np.ndarray | None = None
) -> list[Finding]:
    """Return what the weights alone say, and whether the tokens bear it out.

    Args:
        audit: From `tokendynamics.audit`.
        kappa_change: What attention does to consensus κ, layer by layer; see `prediction_against_trace`. None where
            that was not measured: nothing is then said of the prediction.
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
    name, of_it = names.most_common(1)[0]
    values = {
        "nearest": audit.nearest_statement.values.tolist(),
        "distance": nearest.tolist(),
        "meeting": met,
        "ov_identity": audit.hypothesis_distance.sel(hypothesis="ov_identity").values.tolist(),
        "ov_symmetric": audit.hypothesis_distance.sel(hypothesis="ov_symmetric").values.tolist(),
        "ov_norm": audit.ov_norm.values.tolist(),
    }
    if met == count:
        text = f"The weights meet the hypotheses of a theorem in {_of(count, count)}: {_counted(names)}."
    else:
        some = f"in {_of(met, count)} only" if met else "in no layer"
        text = (
            f"The weights meet the hypotheses of a theorem {some}. The nearest is {name} in {_of(of_it, count)}, at a "
            f"distance of {_range(nearest)} (0 would meet it): {_worst(audit, name)}."
        )
    return Finding(text + _on_value(audit, met), "weights", values)


def prediction_in_words(audit: xr.Dataset, kappa_change: xr.DataArray | Sequence[float] | np.ndarray) -> Finding:
    """Say whether the contraction that the weights predict orders the layers as attention is seen to.

    Args:
        audit: From `tokendynamics.audit`.
        kappa_change: See `prediction_against_trace`.
    """
    found = prediction_against_trace(audit, kappa_change)
    text = f"{found.words}: the contraction of OV weighted by QK, against what attention does to consensus."
    values = {
        "rank_correlation": found.correlation,
        "p_value": found.p_value,
        "rank_correlation_with_depth": found.by_depth,
        "layers": list(found.layers),
        "predicted": audit.predicted_contraction.values.tolist(),
    }
    return Finding(text, "components", values)


def _worst(audit: xr.Dataset, name: str) -> str:
    """Say which hypothesis of a statement the layers nearest to it are farthest from."""
    there = audit.hypothesis_distance.sel(layer=audit.layer.values[audit.nearest_statement.values == name])
    typical = {each: float(there.sel(hypothesis=each).median()) for each in STATEMENTS[name]}
    worst = max(typical, key=typical.__getitem__)
    return f"“{IN_WORDS[worst]}” is missed by {typical[worst]:.2f} in the median, of at most 1"


def _on_value(audit: xr.Dataset, met: int) -> str:
    """Say which layers meet what a theorem asks of OV, where they do not meet all of it."""
    count = audit.sizes["layer"]
    if met == count:
        return ""
    for name, statements in _VALUE_HYPOTHESES.items():
        layers = int((audit.hypothesis_distance.sel(hypothesis=name) <= MET).sum())
        if layers:  # a multiple of the identity is symmetric too, and said first
            return f" {IN_WORDS[name]} in {_of(layers, count)}, as {statements}."
    return ""


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{name} in {count}" if len(names) > 1 else name for name, count in names.most_common())


def _of(some: int, count: int) -> str:
    if count == 1:
        return "the layer audited"
    return f"all {count} layers" if some == count else f"{some} of {count} layers"


def _range(numbers: np.ndarray) -> str:
    low, high = f"{numbers.min():.2f}", f"{numbers.max():.2f}"
    return low if low == high else f"{low} to {high}"
