"""The QK and OV circuits of a network's layer in the coordinates of a flow."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.attention.circuits import ov_circuit, qk_circuit
from tokendynamics.pretrained import AttentionWeights


class LayerCircuits:
    """One layer's circuits as they act on the flow's tokens.

    Attributes:
        qk: Factors of all heads; of rank 0 where the logits come from rotary positions alone.
        ov: Factors of all heads.
        rotary: Queries, keys and frequencies of rotary positions; None without.
    """

    def __init__(self, weights: AttentionWeights, on_sphere: bool, dtype: torch.dtype) -> None:
        read = _reader(weights, on_sphere)
        query, key = read(weights.query.double()), read(weights.key_per_head.double())
        scale, dim = weights.scale, query.shape[-2]
        if on_sphere:
            scale *= dim
        query = scale * query
        self.rotary = None if weights.rotary_frequencies is None else _rotary(query, key, weights, dtype)
        none = torch.zeros(*query.shape[:-1], 0, dtype=dtype, device=query.device)
        rotated = self.rotary is not None
        self.qk = qk_circuit(none, none) if rotated else qk_circuit(query.to(dtype), key.to(dtype))
        # √dim of the token that is read and 1/√dim of the token that is moved cancel on the sphere.
        self.ov = ov_circuit(read(weights.value_per_head.double()).to(dtype), weights.output.to(dtype))


def _reader(weights: AttentionWeights, on_sphere: bool) -> Callable[[Tensor], Tensor]:
    """Return what turns a factor that acts on normed tokens into one that acts on the flow's."""

    def read(factor: Float[Tensor, "head dim d_head"]) -> Float[Tensor, "head dim d_head"]:
        if not on_sphere or weights.norm_gain is None:
            return factor
        gained = weights.norm_gain.double()[:, None] * factor
        return gained - gained.mean(dim=-2, keepdim=True) if weights.norm_kind == "layer" else gained

    return read


def _rotary(query: Tensor, key: Tensor, weights: AttentionWeights, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and frequencies with the pairs (f, f + d_head/2) made neighbours."""
    half = query.shape[-1] // 2
    order = torch.arange(2 * half, device=query.device).view(2, half).T.reshape(-1)
    scaling = weights.rotary_scaling
    frequencies = torch.zeros(half, dtype=torch.float64)
    given = weights.rotary_frequencies
    if given is not None:
        frequencies[: len(given)] = given.double().cpu()
    return (scaling * query[..., order]).to(dtype), (scaling * key[..., order]).to(dtype), frequencies
