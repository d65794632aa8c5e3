"""The factors of an attention with a remedy: those of W, and columns that do not turn for λ A."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from tokendynamics.numerics import AttentionFactorsError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._remedy_columns import LambdaColumns
from tokendynamics.pretrained._weights import AttentionWeights


@torch.no_grad()
def with_columns(weights: AttentionWeights, columns: LambdaColumns, where: str) -> AttentionWeights:
    """Return the factors of ``W_li + λ A``, so that the sum of ``query[h] key[g(h)]^T`` over heads has λA in it.

    Keys have a column for each feature of the slices of all heads that share them, queries that of their own slice.

    Args:
        weights: Of W.
        columns: Of the same attention.
        where: Network and layer, for the message.

    Raises:
        AttentionFactorsError: Queries or keys are normalized: λA stands beside what is no bilinear form.
    """
    if "query" in weights.normed or "key" in weights.normed:
        reason = f"{columns.words} stands beside normalized queries and keys, which have no matrix"
        message = expected(where, "queries and keys that no norm changes", f"normalized ones beside {columns.words}")
        raise AttentionFactorsError(message, f"{where.rpartition(': ')[2]}: {reason}")
    dim, groups = columns.dim, columns.heads // columns.kv_heads
    features = torch.eye(dim, columns.heads * columns.width).to(weights.key)
    key = features.unflatten(1, (columns.kv_heads, -1)).transpose(0, 1)
    strength = (columns.coefficients() / weights.scale).to(weights.query)[:, None]
    own = torch.eye(groups).to(features).repeat_interleave(columns.width, dim=1).repeat(columns.kv_heads, 1)
    query = key[weights.groups] * own[:, None] * strength
    wider = {"query": (weights.query, query), "key": (weights.key, key)}
    found = {name: _beside(*pair) for name, pair in wider.items()}
    for name, (_, further) in wider.items():
        bias = getattr(weights, f"{name}_bias")
        if bias is not None:
            found[f"{name}_bias"] = _beside(bias, torch.zeros_like(further[:, 0]))
    frequencies = weights.rotary_frequencies
    if frequencies is not None:
        frequencies = functional.pad(frequencies, (0, found["key"].shape[-1] // 2 - len(frequencies)))
    return replace(weights, **found, rotary_frequencies=frequencies)


def _beside(turning: Tensor, still: Tensor) -> Tensor:
    """Return both side by side, half behind half: the columns of a pair stand half of all columns apart."""
    if still.shape[-1] % 2:
        still = functional.pad(still, (0, 1))
    halves = zip(turning.chunk(2, dim=-1), still.chunk(2, dim=-1), strict=True)
    return torch.cat([part for pair in halves for part in pair], dim=-1)
