"""Attention whose logits are a sum of products: of queries and keys, and of the columns that terms add beside them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from tokendynamics.modules.pairs import Pair, by_token, joined


def terms_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return ``Σ_j softmax_j(scale · Σ_p q_pi · k_pj) v_j`` in the form that is fast, in memory linear in the tokens.

    Args:
        pairs: What the logits are the products of.
        value: Values, (…, head, token, width); the result has their shape.
        causal: Whether token i sees only tokens j ≤ i.
        scale: Factor of the logits.
        dropout: Of the weights.
    """
    further = sum(pair.query.shape[-1] for pair in pairs) - value.shape[-1]
    if further <= 0:
        return joined_attention(pairs, value, causal=causal, scale=scale, dropout=dropout)
    # The fused kernels want all of one width: without these zeros training would cost half as much again.
    padded = by_token(functional.pad(by_token(value), (0, further)))
    mixed = joined_attention(pairs, padded, causal=causal, scale=scale, dropout=dropout)
    return by_token(by_token(mixed)[..., : value.shape[-1]])


def joined_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return the same of PyTorch's own attention, which gets all columns side by side and the values as they are."""
    query, key = joined(pairs)
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal, scale=scale)
