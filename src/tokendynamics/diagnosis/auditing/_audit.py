"""Audit of the weights: signs, spectra and regime of every layer and head, read one layer at a time.

A layer of a large model takes hundreds of megabytes, so heads are read one at a time and dense matrices are released
early.

Equivalent parameterisations (a head's W_V S and S^{-1} W_O, or a gain moved from a norm into the matrices that read its
output) give identical numbers for V = Σ_h W_V W_O with gains folded. Folding includes only the gain (1 + weight where a
norm adds 1): W and V then act on normalised tokens of mean square 1, under LayerNorm also of mean 0. Their action on
the direction (1, …, 1) counts in signs and spectra although attention never sees it. Biases are omitted, also those of
norms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from tokendynamics.attention import FactoredMatrix, ov_circuit, rotate
from tokendynamics.diagnosis.auditing._hypotheses import (
    HYPOTHESES,
    STATEMENTS,
    centred,
    gain_of,
    kept_square,
    numbers_from,
    numbers_of,
    qk_hypotheses,
    sums_of,
    with_gain,
)
from tokendynamics.diagnosis.network import besides_the_form, notes_of
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import NEAR_ZERO, whole_numbers
from tokendynamics.numerics.resources import check_fits, give_back, limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import AttentionWeights, Checkpoint
from tokendynamics.pretrained.architecture import as_layers
from tokendynamics.pretrained.discovery.words import form_in_words
from tokendynamics.pretrained.loading import Model, as_checkpoint
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.results.tables import axes_of
from tokendynamics.spectra import (
    Inertia,
    Regime,
    balance,
    classify,
    inertia,
    low_rank_eigenvalues,
    product_eigenvalues,
    value_spectrum,
)
from tokendynamics.spectra.regimes import same_signs_as_contraction
from tokendynamics.spectra.signs import compress, count_signs
from tokendynamics.spectra.value_map import ValueSpectrum, Wanted, value_spectrum_of_factors
from tokendynamics.words import listing, plural

ValueMap = Literal["V", "VO"]

Singular = Literal["undefined", "pinv"]


def audit_layer(
    read: Callable[[], AttentionWeights],
    value: ValueMap,
    fold_norms: bool | None,
    singular: Singular,
    offsets: tuple[int, ...],
    spectra: Wanted,
    *,
    causal: bool,
    positions: bool,
) -> dict[str, Any]:
    """Return every number of one layer by variable name; see `audit` for each.

    Args:
        read: Reads the layer's factors; they are read here so that they can be released early.
        value: The value map.
        fold_norms: Whether the norm's gain multiplies the factors; None for "where there is one".
        singular: What A is where the value map is singular.
        offsets: Distances at which rotary circuits are read; empty for none.
        spectra: Whether every eigenvalue of the value map is wanted.
        causal: Whether its attention is.
        positions: Whether positions take part in its attention.

    Raises:
        ArgumentValueError: Norms that cannot be folded, or a W_V that is not square.
    """
    weights = read()
    gain = gain_of(weights, fold_norms)
    numbers = _of_heads(weights, gain, offsets)
    give_back()
    # The matrices of the theorems are those of the audit, except under the conventions of the papers' tables.
    same = value == "VO" and (gain is None) == (weights.norm_gain is None)
    if not same:
        numbers |= numbers_of(weights, causal=causal, positions=positions)
    sums = sums_of(weights)
    kept = kept_square(weights, sums) if same else 0.0
    give_back()
    whole, value_parts = _sum_of_circuits(weights, gain), _value_parts(weights, value)
    del weights
    qk_inertia = inertia(whole)
    positive = None if sums.centred else int(qk_inertia.positive)
    of_qk = qk_hypotheses(centred(whole, sums), sums, positive) if same else {}
    V = _value_map(*value_parts, gain)
    del value_parts
    spectrum = _spectrum_of(V, spectra)
    dense = V if isinstance(V, Tensor) else V.dense()
    if same:
        qk = None if positions else centred(whole, sums)
        numbers |= numbers_from(sums, kept, of_qk, centred(dense, sums), qk, causal=causal)
        del qk
    if spectrum.invertible:
        whole = same_signs_as_contraction(whole, dense, spectrum.condition)
        del V, dense
        regime = classify(qk_inertia, inertia(whole), spectrum)
    elif singular == "pinv":
        regime = _with_pseudo_inverse(qk_inertia, inertia(whole @ torch.linalg.pinv(dense.mT)), spectrum)
    else:
        regime = classify(qk_inertia, None, spectrum)
    return numbers | _regime_numbers(regime)


def _of_heads(weights: AttentionWeights, gain: Tensor | None, offsets: tuple[int, ...]) -> dict[str, Any]:
    # Many problems of size 2·d_head: the barriers of several threads cost more than the arithmetic.
    with limited_threads(1):
        heads = [_head_numbers(weights, gain, head, offsets) for head in range(len(weights.groups))]
    return {name: np.stack([head[name] for head in heads]) for name in heads[0]}


def _spectrum_of(V: Tensor | FactoredMatrix, wanted: Wanted) -> ValueSpectrum:
    if isinstance(V, Tensor):
        return value_spectrum(V, wanted=wanted)
    return value_spectrum_of_factors(V.left, V.right, wanted=wanted)


def _head_numbers(
    weights: AttentionWeights, gain: Tensor | None, head: int, offsets: tuple[int, ...]
) -> dict[str, np.ndarray]:
    dim, group = weights.query.shape[-2], int(weights.groups[head])
    query, key = compress(with_gain(weights.query[head], gain), with_gain(weights.key[group], gain))
    qk = low_rank_eigenvalues(query, key) * weights.scale
    ov = ov_circuit(with_gain(weights.value[group], gain), weights.output[head].double())
    ov_symmetric = low_rank_eigenvalues(ov.left, ov.right)
    numbers = {
        "qk_eigenvalues": qk,
        "qk_inertia": torch.tensor(count_signs(qk, dim)),
        "qk_balance": balance(qk),
        "ov_inertia": torch.tensor(count_signs(ov_symmetric, dim)),
        "ov_sym_balance": balance(ov_symmetric),
        "ov_balance": balance(product_eigenvalues(ov.left, ov.right)),
    }
    frequencies = weights.rotary_frequencies
    if offsets and frequencies is None:  # a layer without positions among others: every distance is the same
        numbers["qk_balance_at_offset"] = numbers["qk_balance"].expand(len(offsets))
    elif offsets and frequencies is not None:
        # A rotation acts on the columns of the queries, so the compressed factors serve every offset.
        turned = [low_rank_eigenvalues(rotate(query, frequencies, float(offset)), key) for offset in offsets]
        numbers["qk_balance_at_offset"] = torch.stack([balance(eigenvalues) for eigenvalues in turned])
    return {name: number.numpy() for name, number in numbers.items()}


def _sum_of_circuits(weights: AttentionWeights, gain: Tensor | None) -> Float[Tensor, "dim dim"]:
    """Return W = Σ_h W_Q W_K^T in float64, one head at a time."""
    dim = weights.query.shape[-2]
    whole = torch.zeros(dim, dim, dtype=torch.float64)
    for query, group in zip(weights.query, weights.groups.tolist(), strict=True):
        whole.addmm_(query.double(), weights.key[group].double().mT)
    return whole if gain is None else whole.mul_(gain).mul_(gain.mT)


def _value_parts(weights: AttentionWeights, value: ValueMap) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the factors of the value map: W_V, W_O where it takes part, and the KV head of each head."""
    heads, dim, d_head = len(weights.groups), *weights.value.shape[1:]
    if value == "V" and heads * d_head != dim:
        came = f"W_V of {heads} heads × {d_head} = {heads * d_head} columns for dim {dim}, which is not square"
        raise ArgumentValueError("value", "'VO' for this model", came, "pass value='VO'")
    return weights.value, weights.output if value == "VO" else None, weights.groups


def _value_map(
    value: Float[Tensor, "kv_head dim d_head"],
    output: Float[Tensor, "head d_head dim"] | None,
    groups: Int[Tensor, " head"],
    gain: Tensor | None,
) -> Float[Tensor, "dim dim"] | FactoredMatrix:
    """Return V dense where it can have full rank; otherwise as factors with one block of columns per KV head."""
    kv_heads, dim, d_head = value.shape
    if output is not None and kv_heads * d_head >= dim:
        whole = torch.zeros(dim, dim, dtype=torch.float64)
        for group, written in zip(groups.tolist(), output, strict=True):
            whole.addmm_(with_gain(value[group], gain), written.double())
        return whole
    left = with_gain(value.movedim(0, 1).flatten(1), gain)
    if output is not None:
        summed = torch.zeros(kv_heads, d_head, dim, dtype=torch.float64)
        return FactoredMatrix(left, summed.index_add_(0, groups, output.double()).flatten(0, 1).mT)
    if kv_heads == len(groups):
        return left
    membership = torch.eye(kv_heads, dtype=torch.float64)[groups]
    right = torch.kron(membership, torch.eye(d_head, dtype=torch.float64))
    return FactoredMatrix(left, right) if kv_heads * d_head < dim else left @ right.mT


def _with_pseudo_inverse(qk_inertia: Inertia, a_inertia: Inertia, spectrum: ValueSpectrum) -> Regime:
    regime = classify(qk_inertia, a_inertia, spectrum)
    note = f"; A from the pseudo-inverse, since the value map has rank {spectrum.rank}/{spectrum.dim}"
    return replace(regime, reason=regime.reason + note)


def _regime_numbers(regime: Regime) -> dict[str, Any]:
    value = regime.value
    every = {} if value.eigenvalues is None else {
        "V_eigenvalues_real": value.eigenvalues.real.numpy(), "V_eigenvalues_imag": value.eigenvalues.imag.numpy()
    }  # fmt: skip
    return every | {
        "W_inertia": np.array(regime.qk_inertia),
        "A_inertia": np.full(3, np.nan) if regime.a_inertia is None else np.array(regime.a_inertia, dtype=float),
        "A_defined": value.invertible,
        "V_rank": value.rank,
        "V_near_zero": value.near_zero,
        "V_near_zero_relative": value.near_zero_relative,
        "V_condition": value.condition,
        "V_max_real": value.max_real,
        "V_radius": value.radius,
        "V_route": value.route,
        "regime": regime.name,
        "regime_reason": regime.reason,
        "regime_by_spectrum": regime.by_spectrum,
    }


_MATRICES = 4
"""Dense ones in float64 at a time: W, V, A, and the factors of one of them."""

SIGNS = ("positive", "negative", "zero")

OFFSETS = (0, 1, 4, 16, 64)
"""Distances receiver − sender at which the QK circuits of a rotary model are read."""


@typed_arguments
def audit(
    ckpt: Model,
    value: ValueMap = "VO",
    fold_norms: bool | None = None,
    singular: Singular = "undefined",
    *,
    layers: Sequence[int] | None = None,
    offsets: Sequence[int] = OFFSETS,
    spectra: Wanted = "extremes",
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Measure signs, spectra and regime of every layer, from the weights alone.

    With W = Σ_h W_Q W_K^T and A = W (V^T)^{-1}, inertia of W_sym and A_sym and spectrum of V say which regime the layer
    has as a free flow (`positional` D.6.2, Table 7, Remark 3.5). By default no number depends on which of the many
    weights of one network is stored; the papers' tables, of ``value="V"`` and ``fold_norms=False``, do.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        value: The value map V: "VO" (Σ_h W_V W_O) or "V" (W_V, with grouped queries repeated for heads that share it).
        fold_norms: Whether the gain of the norm before attention multiplies W_Q, W_K and W_V; None where there is one.
        singular: Where V is singular A does not exist: "undefined" says so, "pinv" puts the pseudo-inverse instead.
        layers: Layers to read, counted from 1; None for all that have an attention.
        offsets: For rotary models, distances receiver − sender at which QK circuits are read; 0 is W_Q W_K^T itself.
        spectra: "extremes" of the value maps, or "whole" for every eigenvalue, four times as long at dim 4096.
        progress: True for a progress bar, or a function; see `progress`.

    Returns:
        Dataset with dims ``layer`` (from 1), ``head``, ``sign``, ``eigenvalue`` and, if rotary, ``offset``. Counts:
        ``W_inertia``, ``A_inertia`` (layer, sign; A's NaN where ``A_defined`` is False, but for "pinv"),
        ``qk_inertia``, ``ov_inertia`` (layer, head, sign). ``qk_eigenvalues`` (layer, head, eigenvalue), of the scaled
        symmetric part, without exact zeros. Balances Σ Re λ/Σ|λ| in −1 … 1:
        ``qk_balance`` and ``ov_sym_balance`` (of the symmetric parts), ``ov_balance`` (of ov's own eigenvalues).
        ``V_rank``, ``V_near_zero`` (|λ| < 1e-3), ``V_near_zero_relative`` (|λ| < 1e-3 ρ), ``V_condition`` (∞ where
        singular), ``V_max_real``, ``V_radius``, ``V_route`` (of these: the whole spectrum, or Krylov spaces), where
        wanted ``V_eigenvalues_real`` and ``…_imag`` (layer, value_eigenvalue; by falling |λ|). ``regime``,
        ``regime_reason``, ``regime_by_spectrum`` (layer). Of the OV product with gains folded always: ``ov_norm`` (its
        largest singular value), ``predicted_contraction``, ``nearest_statement`` (layer), ``hypothesis_distance`` and
        ``statement_distance`` (layer, hypothesis or statement), 0 where met. Every convention is an attribute.

    Raises:
        ArgumentTypeError, ArgumentValueError: A wrong argument, norms that cannot be folded, a W_V that is not square.
        CheckpointError: A layer has no attention, or one that was not read; a tensor cannot be read or holds a NaN.
        MemoryLimitError: Matrices larger than the free memory.

    >>> from tokendynamics.pretrained import load
    >>> table = audit(load("random:gpt2-tiny"), layers=[1])
    >>> int(table.V_rank[0]), bool(table.A_defined[0]), str(table.regime[0].item())
    (48, True, 'mixed')
    """
    ckpt = as_checkpoint(ckpt)
    _check_choices(value, singular, spectra)
    chosen = list(dict.fromkeys(as_layers(layers, ckpt.architecture.layers, default=ckpt.layout.attending)))
    check_fits(_MATRICES * 8 * ckpt.architecture.dim**2, f"the audit of {ckpt.name}")
    rotary = _offsets(ckpt, offsets)
    choices = (value, fold_norms, singular, rotary, spectra)
    with reporting(progress) as report:
        counted = tracked(chosen, report, "auditing the weights")
        rows = [audit_layer(partial(ckpt.attention, layer), *choices, **_kind(ckpt, layer)) for layer in counted]
    return _as_dataset(rows, chosen, rotary, _conventions(ckpt, chosen, value, fold_norms, singular))


def _kind(ckpt: Checkpoint, layer: int) -> dict[str, bool]:
    attention = ckpt.layout.layers[layer - 1].attention
    if attention is None:  # reading its factors says why
        return {"causal": False, "positions": False}
    return {
        "causal": attention.causal,
        "positions": attention.rotation is not None or attention.relative_bias or attention.token_bias,
    }


def _offsets(ckpt: Checkpoint, offsets: Sequence[int]) -> tuple[int, ...]:
    given = tuple(whole_numbers(offsets, "offsets"))
    rotations = [layer.attention.rotation for layer in ckpt.layout.layers if layer.attention is not None]
    return given if any(rotation is not None and rotation.frequencies is not None for rotation in rotations) else ()


def _as_dataset(
    rows: list[dict[str, Any]], layers: Sequence[int], offsets: tuple[int, ...], conventions: dict[str, str]
) -> xr.Dataset:
    dims = {name: ("layer", *_ROW_DIMS.get(name, ())) for name in rows[0]}
    variables = {name: (dims[name], np.stack([np.asarray(row[name]) for row in rows])) for name in rows[0]}
    coords: dict[str, Any] = {"layer": list(layers), "sign": list(SIGNS)}
    coords |= {"hypothesis": list(HYPOTHESES), "statement": list(STATEMENTS)}
    coords["head"] = np.arange(rows[0]["qk_balance"].shape[0])
    if offsets:
        coords["offset"] = list(offsets)
    return xr.Dataset(variables, coords=coords, attrs=conventions)


_ROW_DIMS = axes_of(
    "sign: W_inertia A_inertia",
    "head sign: qk_inertia ov_inertia",
    "head eigenvalue: qk_eigenvalues",
    "value_eigenvalue: V_eigenvalues_real V_eigenvalues_imag",
    "hypothesis: hypothesis_distance",
    "statement: statement_distance",
    "head: qk_balance ov_balance ov_sym_balance",
    "head offset: qk_balance_at_offset",
)


def _conventions(
    ckpt: Checkpoint, layers: Sequence[int], value: ValueMap, fold_norms: bool | None, singular: Singular
) -> dict[str, str]:
    # What attention has in some of these layers that the audited theorems' attention has not.
    context, besides = ckpt.architecture.context, []
    for layer in layers:
        if (attention := ckpt.layout.layers[layer - 1].attention) is None:
            continue
        if attention.window is not None and (context is None or attention.window < context):
            besides.append(f"windows of {plural(attention.window, 'token')}")
        if attention.rotation is not None:
            besides.append("rotary positions")
        besides += besides_the_form(attention)
    return {
        "model": ckpt.name,
        "layout": json.dumps(ckpt.layout.plain()),
        "form": "; ".join(
            dict.fromkeys(form_in_words(layer.attention) for layer in ckpt.layout.layers if layer.attention)
        ),
        "value_map": value,
        "fold_norms": folding_in_words(ckpt, layers, fold_norms),
        "singular": singular,
        "scaling": "qk_eigenvalues include 1/sqrt(d_head); signs and balances do not depend on it",
        "near_zero_threshold": f"{NEAR_ZERO:g} absolute, as in positional Table 7, and relative to the spectral radius",
        "balance": "of qk: eigenvalues of the symmetric part; of ov: Re of its own eigenvalues; ov_sym: symmetric part",
        "besides": listing(list(dict.fromkeys(besides))) or "none",
        "theory": "ov_norm, distances from hypotheses and the prediction: always of the OV product, gains folded",
        "weights_precision": "as stored, computed in float64",
        **notes_of(ckpt),
    }


def _check_choices(value: str, singular: str, spectra: str) -> None:
    for argument, came, choices in (
        ("value", value, get_args(ValueMap)),
        ("singular", singular, get_args(Singular)),
        ("spectra", spectra, get_args(Wanted)),
    ):
        if came not in choices:
            raise ArgumentValueError(argument, f"one of {', '.join(choices)}", repr(came))


def folding_in_words(ckpt: Checkpoint, layers: Sequence[int], fold_norms: bool | None) -> str:
    """Describe the treatment of the gains: "the gain of the norm before attention is …".

    Args:
        ckpt: Whose layers.
        layers: Those read, counted from 1.
        fold_norms: See `gain_of`.
    """
    if fold_norms is False:
        return "not folded"
    attentions = [ckpt.layout.layers[layer - 1].attention for layer in layers]
    normed = [attention is not None and attention.norm is not None for attention in attentions]
    if all(normed):
        return "folded into W_Q, W_K, W_V"
    return (
        "folded into W_Q, W_K, W_V in the layers that have one"
        if any(normed)
        else "not folded because no layer has one"
    )
