"""Attention whose logits are a sum of products: of queries and keys, and of the columns that terms add beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import import_module

import torch
from torch import Tensor
from torch.nn import functional

from tokendynamics.modules._pairs import Pair, joined
from tokendynamics.numerics._extras import missing

_WEIGHTS, _TOKENS = 2**18, 32
"""With fewer weights in all, or fewer tokens, PyTorch's own attention costs less."""


def terms_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return ``Σ_j softmax_j(scale · Σ_p q_pi · k_pj) v_j`` in the form that is fast, in memory linear in the tokens.

    Args:
        pairs: What the logits are the products of.
        value: Values, (…, head, token, width); the result has their shape.
        causal: Whether token i sees only tokens j ≤ i.
        scale: Factor of the logits.
        dropout: Of the weights.
    """
    if not dropout and suits_loops(pairs, value):
        # numba is an extra, and takes half a second to import.
        loops = import_module("tokendynamics.modules._compiled_attention")
        return loops.compiled_attention(pairs, value, causal=causal, scale=scale)
    further = sum(pair.query.shape[-1] for pair in pairs) - value.shape[-1]
    if further <= 0:
        return joined_attention(pairs, value, causal=causal, scale=scale, dropout=dropout)
    # The fused kernels want all of one width: without these zeros training would cost half as much again.
    padded = functional.pad(value, (0, further))
    return joined_attention(pairs, padded, causal=causal, scale=scale, dropout=dropout)[..., : value.shape[-1]]


def suits_loops(pairs: Sequence[Pair], value: Tensor) -> bool:
    """Return whether the compiled loops can serve, and cost less than PyTorch's own attention."""
    tokens = value.shape[-2]
    large = tokens >= _TOKENS and math.prod(value.shape[:-1]) * tokens >= _WEIGHTS
    dtypes = {value.dtype, *(part.dtype for pair in pairs for part in pair[:2])}
    full_precision = dtypes in ({torch.float32}, {torch.float64})
    plain = value.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    if not (large and full_precision and plain):
        return False
    # Whoever asks PyTorch for an attention that is not fused wants its second derivatives, or its forward mode.
    return torch.backends.cuda.flash_sdp_enabled() and _is_installed()


@cache
def _is_installed() -> bool:
    return not missing("fast")


def joined_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return the same of PyTorch's own attention, which gets all columns side by side and the values as they are."""
    query, key = joined(pairs)
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal, scale=scale)
