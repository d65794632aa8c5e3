"""The attention weights of one layer as factors, per head, in one convention for every architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AttentionWeights:
    r"""Factors of one attention layer; tokens are rows.

    With `x` (token, dim) the input of the attention part (after the norm before it, where there is one),
    `g(h) = groups[h]` and `R_i` the rotation of position `i` (the identity without rotary positions)::

        q = x @ query[h] + query_bias[h]
        k = x @ key[g(h)] + key_bias[g(h)],   v = x @ value[g(h)] + value_bias[g(h)]
        s_ij = scale · ⟨R_i q_i, R_j k_j⟩,    w = softmax over the tokens j that i sees
        output = Σ_h (w v) @ output[h] + output_bias

    so that the dense circuits of head `h` are `qk = query[h] @ key[g(h)].T` and, in row form,
    `value[g(h)] @ output[h]` (the transpose of `ov`).

    The rotation multiplies by `rotary_scaling` and turns the pair of features `(f, f + d_head/2)` by
    `i · rotary_frequencies[f]` (half-split pairing). A sliding window, where a model has one, is not part of
    the weights and matters only for prompts longer than it.

    Attributes:
        query: Query factor W_Q.
        key: Key factor W_K, one per key-value head.
        value: Value factor W_V, one per key-value head.
        output: Output factor W_O.
        query_bias: Bias of the queries, None where the architecture has none; likewise the other biases.
        key_bias: Bias of the keys.
        value_bias: Bias of the values.
        output_bias: Bias of the attention output.
        norm_gain: Gain of the norm that feeds the attention; None for post-norm blocks, whose attention reads
            the residual state itself.
        norm_bias: Bias of that norm (None for RMSNorm).
        norm_eps: The epsilon of the block's norms.
        norm_kind: LayerNorm or RMSNorm.
        groups: Key-value head of each query head.
        scale: Factor of the logits, `1/√d_head` unless the configuration says otherwise.
        rotary_frequencies: Radians per position and feature pair, None without rotary positions.
        rotary_scaling: Factor on rotated queries and keys each (1 except for YaRN-like extensions).
    """

    query: Float[Tensor, "head dim d_head"]
    key: Float[Tensor, "kv_head dim d_head"]
    value: Float[Tensor, "kv_head dim d_head"]
    output: Float[Tensor, "head d_head dim"]
    groups: Int[Tensor, " head"]
    scale: float
    norm_eps: float
    norm_kind: Literal["layer", "rms"]
    query_bias: Float[Tensor, "head d_head"] | None = None
    key_bias: Float[Tensor, "kv_head d_head"] | None = None
    value_bias: Float[Tensor, "kv_head d_head"] | None = None
    output_bias: Float[Tensor, " dim"] | None = None
    norm_gain: Float[Tensor, " dim"] | None = None
    norm_bias: Float[Tensor, " dim"] | None = None
    rotary_frequencies: Float[Tensor, " pair"] | None = None
    rotary_scaling: float = 1.0

    @property
    def key_per_head(self) -> Float[Tensor, "head dim d_head"]:
        """The key factor of each query head; a view without a copy where heads do not share."""
        return self._per_head(self.key)

    @property
    def value_per_head(self) -> Float[Tensor, "head dim d_head"]:
        """The value factor of each query head; see `key_per_head`."""
        return self._per_head(self.value)

    def _per_head(self, factor: Tensor) -> Tensor:
        kv_heads, heads = factor.shape[0], self.query.shape[0]
        if kv_heads == heads:
            return factor
        if kv_heads == 1:
            return factor.expand(heads, -1, -1)
        return factor[self.groups]
