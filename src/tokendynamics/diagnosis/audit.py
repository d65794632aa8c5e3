"""What the weights alone say: signs, spectra and regime of every layer and head, read one layer at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from tokendynamics.attention.circuits import FactoredMatrix, ov_circuit, qk_circuit
from tokendynamics.attention.rotary import rotate
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.progress import Track, silent
from tokendynamics.numerics.tolerances import NEAR_ZERO
from tokendynamics.pretrained import AttentionWeights, Checkpoint
from tokendynamics.spectra.balance import balance
from tokendynamics.spectra.inertia import Inertia, inertia
from tokendynamics.spectra.low_rank import count_signs, low_rank_eigenvalues, product_eigenvalues
from tokendynamics.spectra.regime import Regime, classify
from tokendynamics.spectra.value_map import ValueSpectrum, value_spectrum_of_factors

ValueMap = Literal["V", "VO"]
Singular = Literal["undefined", "pinv"]

SIGNS = ("positive", "negative", "zero")
OFFSETS = (0, 1, 4, 16, 64)
"""Distances receiver − sender at which the QK circuits of a rotary model are read."""


def audit(
    ckpt: Checkpoint,
    value: ValueMap = "V",
    fold_norms: bool = False,
    singular: Singular = "undefined",
    *,
    layers: Sequence[int] | None = None,
    offsets: Sequence[int] = OFFSETS,
    track: Track = silent,
) -> xr.Dataset:
    """Signs, spectra and regime of every layer, from the weights alone.

    With W = Σ_h W_Q W_K^T and A = W (V^T)^{-1}, the inertia of W_sym and A_sym and the spectrum of V say which regime
    the layer's attention would have as a free flow. Layers are read one at a time; a model is never built.

    Args:
        ckpt: From `tokendynamics.load`.
        value: The value map V: "V" (W_V; with grouped queries each group's W_V repeated for the heads that share it)
            or "VO" (Σ_h W_V W_O).
        fold_norms: Whether the gain of the norm before attention multiplies the rows of W_Q, W_K and W_V.
        singular: Where V is singular A does not exist: "undefined" says so, "pinv" puts the pseudo-inverse instead.
        layers: Layers to read, counted from 1; None for all.
        offsets: For rotary models, the distances i − j (receiver minus sender, in tokens) at which each head's QK
            circuit is read; 0 means the unrotated W_Q W_K^T.
        track: Progress.

    Returns:
        Dataset with dims ``layer`` (counted from 1), ``head``, ``sign``, ``eigenvalue`` and, for rotary models,
        ``offset``. Counts: ``W_inertia``, ``A_inertia`` (layer, sign; A's are NaN where ``A_defined`` is False),
        ``qk_inertia``, ``ov_inertia`` (layer, head, sign). Spectra: ``qk_eigenvalues`` (layer, head, eigenvalue), of
        the scaled symmetric part, its exact zeros left out. Balances Σ Re λ/Σ|λ| in −1 … 1: ``qk_balance`` and
        ``ov_sym_balance`` (of the symmetric parts), ``ov_balance`` (of ov's own eigenvalues). ``V_rank``,
        ``V_near_zero`` (|λ| < 1e-3), ``V_near_zero_relative`` (|λ| < 1e-3 ρ), ``V_condition`` (∞ where singular),
        ``V_max_real``, ``V_radius`` (layer). ``regime``, ``regime_reason``, ``regime_by_spectrum`` (layer). Every
        convention is an attribute.

    Raises:
        ArgumentValueError: An unknown value map, a layer that does not exist, norms that cannot be folded, a W_V that
            is not square.
        CheckpointError: A tensor cannot be read or holds a NaN.

    Source: `positional` section D.6.2 and Table 7; Remark 3.5 for the regimes.

    >>> from tokendynamics.pretrained import load
    >>> table = audit(load("random:distilgpt2"), layers=[1])
    >>> int(table.V_rank[0]), bool(table.A_defined[0]), str(table.regime[0].item())
    (768, True, 'mixed')
    """
    _check_choice("value", value, ("V", "VO"))
    _check_choice("singular", singular, ("undefined", "pinv"))
    chosen = _chosen_layers(layers, ckpt.architecture.layers)
    rotary = tuple(offsets) if ckpt.architecture.positions == "rotary" else ()
    rows = [
        _audit_layer(_prepared(ckpt.attention(layer - 1), fold_norms), value, singular, rotary)
        for layer in track(chosen, "auditing the weights", len(chosen))
    ]
    return _as_dataset(rows, chosen, rotary, _conventions(ckpt, value, fold_norms, singular))


def _audit_layer(
    weights: AttentionWeights, value: ValueMap, singular: Singular, offsets: tuple[int, ...]
) -> dict[str, Any]:
    """Every number of one layer, by variable name."""
    query, key = weights.query.double(), weights.key_per_head.double()
    heads = _head_numbers(weights, query, key)
    if weights.rotary_frequencies is not None and offsets:
        heads["qk_balance_at_offset"] = _balance_at_offsets(query, key, weights.rotary_frequencies, offsets)
    whole = qk_circuit(query, key).summed().dense()
    del query, key
    return heads | _layer_numbers(whole, _value_factors(weights, value), singular)


def _head_numbers(
    weights: AttentionWeights, query: Float[Tensor, "head dim d_head"], key: Float[Tensor, "head dim d_head"]
) -> dict[str, Any]:
    dim = weights.query.shape[-2]
    qk = low_rank_eigenvalues(query, key) * weights.scale
    ov = ov_circuit(weights.value_per_head.double(), weights.output.double())
    ov_symmetric = low_rank_eigenvalues(ov.left, ov.right)
    return {
        "qk_eigenvalues": qk.numpy(),
        "qk_inertia": _as_array(count_signs(qk, dim)),
        "qk_balance": balance(qk).numpy(),
        "ov_inertia": _as_array(count_signs(ov_symmetric, dim)),
        "ov_sym_balance": balance(ov_symmetric).numpy(),
        "ov_balance": balance(product_eigenvalues(ov.left, ov.right)).numpy(),
    }


def _balance_at_offsets(
    query: Float[Tensor, "head dim d_head"],
    key: Float[Tensor, "head dim d_head"],
    frequencies: Float[Tensor, " pairs"],
    offsets: tuple[int, ...],
) -> np.ndarray:
    """QK balance per head with the query turned by the rotary angles of each offset, shape (head, offset)."""
    turned = [low_rank_eigenvalues(rotate(query, frequencies, float(offset)), key) for offset in offsets]
    return torch.stack([balance(eigenvalues) for eigenvalues in turned], dim=-1).numpy()


def _layer_numbers(W: Float[Tensor, "dim dim"], V: FactoredMatrix, singular: Singular) -> dict[str, Any]:
    spectrum = value_spectrum_of_factors(V.left, V.right)
    found = classify(inertia(W), _a_inertia(W, V, spectrum, singular), spectrum)
    return _regime_numbers(found)


def _a_inertia(
    W: Float[Tensor, "dim dim"], V: FactoredMatrix, spectrum: ValueSpectrum, singular: Singular
) -> Inertia | None:
    """Inertia of A = W (V^T)^{-1} by the congruence ``V A V^T = V W``: no inverse is taken."""
    if spectrum.invertible:
        return inertia(V.left @ (V.right.mT @ W))
    if singular == "pinv":
        return inertia(W @ torch.linalg.pinv(V.dense().mT))
    return None


def _regime_numbers(found: Regime) -> dict[str, Any]:
    value = found.value
    return {
        "W_inertia": np.array(found.qk_inertia),
        "A_inertia": np.full(3, np.nan) if found.a_inertia is None else np.array(found.a_inertia, dtype=float),
        "A_defined": found.a_inertia is not None,
        "V_rank": value.rank,
        "V_near_zero": value.near_zero,
        "V_near_zero_relative": value.near_zero_relative,
        "V_condition": value.condition,
        "V_max_real": value.max_real,
        "V_radius": value.radius,
        "regime": found.name,
        "regime_reason": found.reason,
        "regime_by_spectrum": found.by_spectrum,
    }


def _value_factors(weights: AttentionWeights, value: ValueMap) -> FactoredMatrix:
    """V as ``left @ right^T`` with one block of columns per KV head, so that its rank shows in its shape."""
    left = weights.value.double().movedim(0, 1).flatten(1)
    kv_heads, dim, d_head = weights.value.shape
    if value == "VO":
        summed = torch.zeros(kv_heads, d_head, dim, dtype=torch.float64)
        return FactoredMatrix(left, summed.index_add(0, weights.groups, weights.output.double()).flatten(0, 1).mT)
    heads = len(weights.groups)
    if heads * d_head != dim:
        came = f"W_V of {heads} heads × {d_head} = {heads * d_head} columns for dim {dim}, which is not square"
        raise ArgumentValueError(expected("value", "'VO' for this model", came, "pass value='VO'"))
    membership = torch.eye(kv_heads, dtype=torch.float64)[weights.groups]
    return FactoredMatrix(left, torch.kron(membership, torch.eye(d_head, dtype=torch.float64)))


def _prepared(weights: AttentionWeights, fold_norms: bool) -> AttentionWeights:
    if not fold_norms:
        return weights
    if weights.norm_gain is None:
        came = "True for a model with no norm before its attention"
        raise ArgumentValueError(expected("fold_norms", "False", came))
    gain = weights.norm_gain[:, None]
    return replace(weights, query=gain * weights.query, key=gain * weights.key, value=gain * weights.value)


def _as_dataset(
    rows: list[dict[str, Any]], layers: Sequence[int], offsets: tuple[int, ...], conventions: dict[str, str]
) -> xr.Dataset:
    dims = {name: ("layer", *_ROW_DIMS.get(name, ())) for name in rows[0]}
    variables = {name: (dims[name], np.stack([np.asarray(row[name]) for row in rows])) for name in rows[0]}
    coords: dict[str, Any] = {"layer": list(layers), "sign": list(SIGNS)}
    coords["head"] = np.arange(rows[0]["qk_balance"].shape[0])
    if offsets:
        coords["offset"] = list(offsets)
    return xr.Dataset(variables, coords=coords, attrs=conventions)


_ROW_DIMS: dict[str, tuple[str, ...]] = {
    "W_inertia": ("sign",),
    "A_inertia": ("sign",),
    "qk_inertia": ("head", "sign"),
    "ov_inertia": ("head", "sign"),
    "qk_eigenvalues": ("head", "eigenvalue"),
    "qk_balance": ("head",),
    "ov_balance": ("head",),
    "ov_sym_balance": ("head",),
    "qk_balance_at_offset": ("head", "offset"),
}


def _conventions(ckpt: Checkpoint, value: ValueMap, fold_norms: bool, singular: Singular) -> dict[str, str]:
    return {
        "model": ckpt.name,
        "value_map": value,
        "fold_norms": "gain folded into W_Q, W_K, W_V" if fold_norms else "not folded",
        "singular": singular,
        "scaling": "qk_eigenvalues carry 1/sqrt(d_head); signs and balances do not depend on it",
        "near_zero_threshold": f"{NEAR_ZERO:g} absolute, as in positional Table 7, and relative to the spectral radius",
        "balance": "qk: eigenvalues of the symmetric part; ov: Re of ov's own eigenvalues; ov_sym: symmetric part",
        "weights_precision": str(ckpt.dtype).removeprefix("torch."),
    }


def _chosen_layers(layers: Iterable[int] | None, count: int) -> list[int]:
    chosen = list(range(1, count + 1)) if layers is None else list(layers)
    wrong = [layer for layer in chosen if not 1 <= layer <= count]
    if wrong or not chosen:
        raise ArgumentValueError(expected("layers", f"numbers from 1 to {count}", wrong or "none"))
    return chosen


def _check_choice(argument: str, came: str, choices: tuple[str, ...]) -> None:
    if came not in choices:
        raise ArgumentValueError(expected(argument, f"one of {', '.join(choices)}", repr(came)))


def _as_array(counts: Inertia) -> np.ndarray:
    return torch.stack([torch.as_tensor(count) for count in counts], dim=-1).numpy()
