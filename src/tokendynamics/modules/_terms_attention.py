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
_PRODUCTS = 2**26
"""Products of numbers, of all weights, that are worth a thread of the loops: about ten milliseconds.

PyTorch's own threads wait for some milliseconds without giving way to others.
"""


def terms_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return ``Σ_j softmax_j(scale · Σ_p q_pi · k_pj) v_j`` in the form that is fast, in memory linear in the tokens.

    Args:
        pairs: What the logits are the products of.
        value: Values, (…, head, token, width); the result has their shape.
        causal: Whether token i sees only tokens j ≤ i.
        scale: Factor of the logits.
        dropout: Of the weights.
    """
    threads = 0 if dropout else threads_of_loops(pairs, value)
    if threads:
        # numba is an extra, and takes half a second to import.
        loops = import_module("tokendynamics.modules._compiled_attention")
        return loops.compiled_attention(pairs, value, causal=causal, scale=scale, threads=threads)
    further = sum(pair.query.shape[-1] for pair in pairs) - value.shape[-1]
    if further <= 0:
        return joined_attention(pairs, value, causal=causal, scale=scale, dropout=dropout)
    # The fused kernels want all of one width: without these zeros training would cost half as much again.
    padded = functional.pad(value, (0, further))
    return joined_attention(pairs, padded, causal=causal, scale=scale, dropout=dropout)[..., : value.shape[-1]]


def threads_of_loops(pairs: Sequence[Pair], value: Tensor) -> int:
    """Return on how many threads the compiled loops serve; 0 if they cannot, or PyTorch's own attention costs less."""
    plain = not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    tokens, units = value.shape[-2], math.prod(value.shape[:-2])
    if not (plain and _are_alike(pairs, value)) or tokens < _TOKENS or units * tokens**2 < _WEIGHTS:
        return 0
    # Whoever asks PyTorch for an attention that is not fused wants its second derivatives, or its forward mode.
    if not torch.backends.cuda.flash_sdp_enabled() or not _is_installed():
        return 0
    products = units * tokens**2 * (value.shape[-1] + sum(pair.query.shape[-1] for pair in pairs))
    available = torch.get_num_threads()
    threads = min(available, units, max(1, products // _PRODUCTS))
    return threads if 2 * threads >= available else 0  # a thread of the loops is worth nearly two of PyTorch's


def _are_alike(pairs: Sequence[Pair], value: Tensor) -> bool:
    """Return whether all numbers stand in the memory of this process, in one precision and for the same tokens."""
    parts = [part for pair in pairs for part in pair[:2]]
    known = value.dtype in (torch.float32, torch.float64) and all(type(part) is Tensor for part in (value, *parts))
    alike = all(part.shape[:-1] == value.shape[:-1] and part.dtype == value.dtype for part in parts)
    paired = all(pair.query.shape == pair.key.shape for pair in pairs)
    return known and alike and paired and all(part.device.type == "cpu" for part in (value, *parts))


@cache
def _is_installed() -> bool:
    return not missing("fast")


def joined_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return the same of PyTorch's own attention, which gets all columns side by side and the values as they are."""
    query, key = joined(pairs)
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal, scale=scale)
