"""Every number of one layer's audit, from its weights, within the memory of a few dim × dim matrices.

A layer of a large model is hundreds of megabytes, so heads are taken one at a time and no dense matrix is kept
longer than it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokendynamics.attention.circuits import FactoredMatrix, ov_circuit
from tokendynamics.attention.rotary import rotate
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.threads import limited_threads
from tokendynamics.pretrained import AttentionWeights
from tokendynamics.spectra.balance import balance
from tokendynamics.spectra.inertia import Inertia, inertia
from tokendynamics.spectra.low_rank import compress, count_signs, low_rank_eigenvalues, product_eigenvalues
from tokendynamics.spectra.regime import Regime, classify, contraction_form
from tokendynamics.spectra.value_map import ValueSpectrum, value_spectrum, value_spectrum_of_factors

ValueMap = Literal["V", "VO"]
Singular = Literal["undefined", "pinv"]


def audit_layer(
    read: Callable[[], AttentionWeights],
    value: ValueMap,
    fold_norms: bool,
    singular: Singular,
    offsets: tuple[int, ...],
) -> dict[str, Any]:
    """Return every number of one layer by variable name; see `tokendynamics.diagnosis.audit.audit` for each.

    Args:
        read: Reads the layer's factors. They are read here, and not passed, so that they can be let go of as soon as
            the matrix they go into exists.
        value: Which value map.
        fold_norms: Whether the norm's gain multiplies the factors.
        singular: What A is where the value map is singular.
        offsets: Distances at which rotary circuits are read; empty for none.

    Raises:
        ArgumentValueError: Norms that cannot be folded, or a W_V that is not square.
    """
    weights = _with_folded_norm(read()) if fold_norms else read()
    # Many problems of size 2·d_head: the barriers of several threads cost more than the arithmetic.
    with limited_threads(1):
        heads = [_head_numbers(weights, head, offsets) for head in range(len(weights.groups))]
    numbers = {name: np.stack([head[name] for head in heads]) for name in heads[0]}
    whole, value_parts = _sum_of_circuits(weights), _value_parts(weights, value)
    del weights
    qk_inertia = inertia(whole)
    V = _value_map(*value_parts)
    del value_parts
    spectrum = value_spectrum(V) if isinstance(V, Tensor) else value_spectrum_of_factors(V.left, V.right)
    dense = V if isinstance(V, Tensor) else V.dense()
    if spectrum.invertible:
        whole = contraction_form(whole, dense, spectrum.condition)
        del V, dense
        found = classify(qk_inertia, inertia(whole), spectrum)
    elif singular == "pinv":
        found = _with_pseudo_inverse(qk_inertia, inertia(whole @ torch.linalg.pinv(dense.mT)), spectrum)
    else:
        found = classify(qk_inertia, None, spectrum)
    return numbers | _regime_numbers(found)


def _head_numbers(weights: AttentionWeights, head: int, offsets: tuple[int, ...]) -> dict[str, np.ndarray]:
    dim, group = weights.query.shape[-2], int(weights.groups[head])
    query, key = compress(weights.query[head].double(), weights.key[group].double())
    qk = low_rank_eigenvalues(query, key) * weights.scale
    ov = ov_circuit(weights.value[group].double(), weights.output[head].double())
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
    if offsets and frequencies is not None:
        # A rotation acts on the columns of the queries, so the compressed factors serve every offset.
        turned = [low_rank_eigenvalues(rotate(query, frequencies, float(offset)), key) for offset in offsets]
        numbers["qk_balance_at_offset"] = torch.stack([balance(eigenvalues) for eigenvalues in turned])
    return {name: number.numpy() for name, number in numbers.items()}


def _sum_of_circuits(weights: AttentionWeights) -> Float[Tensor, "dim dim"]:
    """Return W = Σ_h W_Q W_K^T in float64, one head at a time."""
    dim = weights.query.shape[-2]
    whole = torch.zeros(dim, dim, dtype=torch.float64)
    for query, group in zip(weights.query, weights.groups.tolist(), strict=True):
        whole.addmm_(query.double(), weights.key[group].double().mT)
    return whole


def _value_parts(weights: AttentionWeights, value: ValueMap) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return what the value map is made of: W_V, W_O where it takes part, and the KV head of each head."""
    heads, dim, d_head = len(weights.groups), *weights.value.shape[1:]
    if value == "V" and heads * d_head != dim:
        came = f"W_V of {heads} heads × {d_head} = {heads * d_head} columns for dim {dim}, which is not square"
        raise ArgumentValueError(expected("value", "'VO' for this model", came, "pass value='VO'"))
    return weights.value, weights.output if value == "VO" else None, weights.groups


def _value_map(
    value: Float[Tensor, "kv_head dim d_head"],
    output: Float[Tensor, "head d_head dim"] | None,
    groups: Int[Tensor, " head"],
) -> Float[Tensor, "dim dim"] | FactoredMatrix:
    """Return V dense where it can have full rank; otherwise as factors with one block of columns per KV head."""
    kv_heads, dim, d_head = value.shape
    left = value.movedim(0, 1).flatten(1).double()
    if output is not None:
        summed = torch.zeros(kv_heads, d_head, dim, dtype=torch.float64)
        right = summed.index_add_(0, groups, output.double()).flatten(0, 1).mT
    elif kv_heads == len(groups):
        return left
    else:
        membership = torch.eye(kv_heads, dtype=torch.float64)[groups]
        right = torch.kron(membership, torch.eye(d_head, dtype=torch.float64))
    return FactoredMatrix(left, right) if kv_heads * d_head < dim else left @ right.mT


def _with_pseudo_inverse(qk_inertia: Inertia, a_inertia: Inertia, spectrum: ValueSpectrum) -> Regime:
    found = classify(qk_inertia, a_inertia, spectrum)
    note = f"; A from the pseudo-inverse, since the value map has rank {spectrum.rank}/{spectrum.dim}"
    return replace(found, reason=found.reason + note)


def _regime_numbers(found: Regime) -> dict[str, Any]:
    value = found.value
    return {
        "W_inertia": np.array(found.qk_inertia),
        "A_inertia": np.full(3, np.nan) if found.a_inertia is None else np.array(found.a_inertia, dtype=float),
        "A_defined": value.invertible,
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


def _with_folded_norm(weights: AttentionWeights) -> AttentionWeights:
    if weights.norm_gain is None:
        came = "True for a model with no norm before its attention"
        raise ArgumentValueError(expected("fold_norms", "False", came))
    gain = weights.norm_gain.double()[:, None]
    folded = {name: gain * getattr(weights, name).double() for name in ("query", "key", "value")}
    return replace(weights, **folded)
