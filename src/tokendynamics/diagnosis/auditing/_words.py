"""The weights in sentences: their distance from the theorems, and whether they predict what attention does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from math import isnan, nan
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float64
from scipy.stats import rankdata

from tokendynamics.diagnosis.auditing._hypotheses import STATEMENTS
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_tensor
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.theorems.registry import named
from tokendynamics.words import Finding, fixed, listing

FEWEST = 5
"""Layers from which an order is compared: four have 24 orders, of which none is significant."""

SURE = 0.05
"""Two-sided p-value below which a rank correlation is significant."""

STRONG = 0.6
"""Rank correlation from which a prediction is not called partial."""

_EXACT_UP_TO = 8

_DRAWS, _BLOCK = 20_000, 1000


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
"""The hypotheses of `HYPOTHESES`."""

VIOLATED = {name: words.replace(" is ", " is not ", 1) for name, words in IN_WORDS.items()} | {
    "ov_identity_per_head": "OV of some heads is not a multiple of the identity",
    "heads_alike": "its heads weigh tokens differently",
}
"""The same hypotheses where they do not hold."""

_VALUE_HYPOTHESES = {
    "ov_identity": "asymptotic-4.1 and asymptotic-5.1 require",
    "ov_symmetric": "asymptotic-6.1 requires",
}


@dataclass(frozen=True)
class PredictionAgainstTrace:
    """The prediction from the weights compared with the measured changes.

    Attributes:
        correlation: Spearman's rank correlation over the layers; NaN if one of the two is the same in all layers, or
            with too few layers.
        p_value: Two-sided, by permutation.
        by_depth: The rank correlation of the measured changes with the layer index alone.
        layers: Those that were compared.
        words: The result in words, without a full stop.
    """

    correlation: float
    p_value: float
    by_depth: float
    layers: tuple[int, ...]
    words: str


@typed_arguments
def prediction_against_trace(
    audit: xr.Dataset, kappa_change: xr.DataArray | Sequence[float] | np.ndarray
) -> PredictionAgainstTrace:
    """Compare, layer by layer, the contraction predicted from the weights with the change of κ by attention.

    Args:
        audit: From `tokendynamics.audit`.
        kappa_change: κ at the attention site of a layer less κ at the feed-forward site of the layer before: with a
            dimension ``layer`` that covers the audit's, or one number for each audited layer. NaN for undefined.

    Raises:
        ArgumentValueError: Another number of layers, or a layer that is missing.

    Example:
        >>> table = xr.Dataset({"predicted_contraction": ("layer", [0.1, 0.5, 0.2, 0.3, 0.9, 0.4])},
        ...                    coords={"layer": [1, 2, 3, 4, 5, 6]})
        >>> prediction_against_trace(table, [0.0, 0.3, 0.1, 0.2, 0.4, 0.25]).words
        'The weights alone predict the order of layers (Spearman ρ = 1.00, p = 0.003)'
    """
    layers, predicted = audit.layer.values, audit.predicted_contraction.values.astype(float)
    seen = _seen(layers, kappa_change)
    known = ~np.isnan(seen) & ~np.isnan(predicted)
    layers, predicted, seen = layers[known], predicted[known], seen[known]
    compared = tuple(int(layer) for layer in layers)
    if len(compared) < FEWEST:
        words = f"The prediction is not tested because there are too few layers ({len(compared)} of at least {FEWEST})"
        return PredictionAgainstTrace(nan, nan, nan, compared, words)
    correlation, p_value = rank_correlation(predicted, seen)
    by_depth, _ = rank_correlation(layers.astype(float), seen)
    return PredictionAgainstTrace(correlation, p_value, by_depth, compared, _words(correlation, p_value, by_depth))


def rank_correlation(
    first: Float64[np.ndarray, " layer"], second: Float64[np.ndarray, " layer"]
) -> tuple[float, float]:
    """Return Spearman's rank correlation and its two-sided p-value over orders of one of the two.

    Up to 8 numbers, all orders are counted. Beyond, 20,000 are drawn with a fixed seed and include the observed one, so
    that p is never 0.

    >>> correlation, p = rank_correlation(np.arange(5.0), np.array([2.0, 3.0, 5.0, 7.0, 11.0]))
    >>> correlation, round(p, 4)  # 2 of 120 orders
    (1.0, 0.0167)
    """
    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (first, second)]
    scale = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    if scale == 0:
        return nan, nan
    came = float(ranks[0] @ ranks[1]) / scale
    count = len(first)
    if count <= _EXACT_UP_TO:
        blocks = iter([np.array(list(permutations(range(count))))])
    else:
        draws = np.random.default_rng(0)  # in blocks: the heads of a large network are thousands
        drawn = (draws.random((_BLOCK, count)).argsort(axis=1) for _ in range(_DRAWS // _BLOCK))
        blocks = chain([np.arange(count)[None]], drawn)
    others = np.concatenate([ranks[1][orders] @ ranks[0] for orders in blocks]) / scale
    return min(max(came, -1.0), 1.0), float((np.abs(others) >= abs(came) - 1e-12).mean())


def _seen(layers: np.ndarray, kappa_change: Any) -> np.ndarray:
    if isinstance(kappa_change, xr.DataArray) and "layer" in kappa_change.coords:
        missing = sorted(set(layers.tolist()) - set(kappa_change.layer.values.tolist()))
        if missing:
            raise ArgumentValueError("kappa_change", "every layer of the audit", f"none for {missing[0]}")
        return kappa_change.sel(layer=layers).values.astype(float)
    seen = as_tensor(kappa_change, "kappa_change", finite=False).double().numpy()
    if seen.shape != layers.shape:
        wanted = f"one number for each of the {len(layers)} audited layers"
        raise ArgumentValueError("kappa_change", wanted, f"shape {seen.shape}")
    return seen


def p_value_in_words(p_value: float) -> str:
    """Return a p-value behind its sign.

    >>> p_value_in_words(0.33), p_value_in_words(0.0042), p_value_in_words(1e-5)
    ('= 0.33', '= 0.004', '< 0.001')
    """
    return f"= {fixed(p_value, 2 if p_value >= 0.01 else 3)}" if p_value >= 0.001 else "< 0.001"


def _words(correlation: float, p_value: float, by_depth: float) -> str:
    if isnan(correlation):
        return "The prediction from the weights is undefined because it, or what attention does, is equal in all layers"
    numbers = f"Spearman ρ = {fixed(correlation)}, p {p_value_in_words(p_value)}"
    if not p_value < SURE:
        size = "significantly " if abs(correlation) >= STRONG else ""  # few layers: a strong relation by chance
        return f"The weights alone do not {size}predict what attention does ({numbers})"
    if correlation < 0:
        return f"The weights alone predict the opposite order of layers ({numbers})"
    partly = "" if correlation >= STRONG else "partly "
    # In untrained networks depth alone orders the layers.
    depth = f"; depth alone: ρ = {fixed(by_depth)}" if abs(by_depth) >= correlation else ""
    return f"The weights alone {partly}predict the order of layers ({numbers}{depth})"


def weights_findings(
    audit: xr.Dataset, kappa_change: xr.DataArray | Sequence[float] | np.ndarray | None = None
) -> list[Finding]:
    """Return findings on the weights alone, and on whether they predict what attention does.

    Args:
        audit: From `tokendynamics.audit`.
        kappa_change: Change of κ by attention, layer by layer; see `prediction_against_trace`. None if it was not
            measured; there is then no finding on the prediction.
    """
    if kappa_change is None:
        return [theorems_in_words(audit)]
    comparison = prediction_against_trace(audit, kappa_change)
    text = f"{comparison.words}. This compares the contraction of OV weighted by QK with the change of κ by attention."
    values = {
        "rank_correlation": comparison.correlation,
        "p_value": comparison.p_value,
        "rank_correlation_with_depth": comparison.by_depth,
        "layers": list(comparison.layers),
        "predicted": audit.predicted_contraction.values.tolist(),
    }
    return [theorems_in_words(audit), Finding(text, "components", values)]


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
        **{
            hypothesis: audit.hypothesis_distance.sel(hypothesis=hypothesis).values.tolist()
            for hypothesis in _VALUE_HYPOTHESES
        },
        "ov_norm": audit.ov_norm.values.tolist(),
    }
    if met == count:
        counted = listing([f"{name} in {times}" if len(names) > 1 else name for name, times in names.most_common()])
        on_weights, besides = _besides(audit)
        text = f"The hypotheses of a theorem{on_weights} hold in {_of(count, count)}: {counted}.{besides}"
        return Finding(text, "weights", values)
    distances = audit.hypothesis_distance
    of_nearest = distances.sel(layer=audit.layer.values[audit.nearest_statement.values == name])
    medians = {hypothesis: float(of_nearest.sel(hypothesis=hypothesis).median()) for hypothesis in STATEMENTS[name]}
    farthest = max(medians, key=medians.__getitem__)
    reason = VIOLATED[farthest]
    low, high = fixed(nearest.min()), fixed(nearest.max())
    between = low if low == high else f"{low}–{high}"
    if met:
        on_weights, besides = _besides(audit)
        holds = f"The hypotheses of a theorem{on_weights} hold" if besides else "A theorem applies"
        text = f"{holds} in {_of(met, count)} only; elsewhere {reason}.{besides}"
    else:
        text = f"No theorem applies to this network: {reason}. The theory predicts nothing here."
    text += (
        f" The nearest theorem is {name} (“{named(name).title}”) in {_of(layers, count)}, at distance {between} "
        f"(0 = its hypotheses hold). The hypothesis that is missed most is “{IN_WORDS[farthest]}” (median distance "
        f"{fixed(medians[farthest])} of at most 1)."
    )
    for hypothesis, statements in _VALUE_HYPOTHESES.items():
        layers = int((distances.sel(hypothesis=hypothesis) <= MET).sum())
        if layers:  # a multiple of the identity is symmetric too, and reported first
            text += f" {IN_WORDS[hypothesis]} in {_of(layers, count)}, as {statements}."
            break
    return Finding(text, "weights", values)


def _besides(audit: xr.Dataset) -> tuple[str, str]:
    """Return what to add where hypotheses on the weights hold and attention has what that of the theorem has not."""
    besides = audit.attrs.get("besides", "none")  # absent in results of earlier versions
    if besides == "none":
        return "", ""
    return " on the weights", f" But attention here has {besides}, which the theorem does not cover."


def _of(some: int, count: int) -> str:
    if count == 1:
        return "the audited layer"
    return f"all {count} layers" if some == count else f"{some} of {count} layers"
