"""The gain of the norm before attention, folded into the matrices that read its output."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Float64
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained import AttentionWeights, Checkpoint


def gain_of(weights: AttentionWeights, fold_norms: bool | None = None) -> Float64[Tensor, "dim 1"] | None:
    """Return the gain that multiplies the rows of W_Q, W_K and W_V; None for none.

    Args:
        weights: Of one layer.
        fold_norms: None folds where there is a norm before attention; True requires one; False ignores its gain.

    Raises:
        ArgumentValueError: True for a layer without a norm before its attention.
    """
    if fold_norms and weights.norm_gain is None:
        came = "True for a model with no norm before its attention"
        raise ArgumentValueError(expected("fold_norms", "False", came, "None folds where there is one"))
    return None if fold_norms is False or weights.norm_gain is None else weights.norm_gain.double()[:, None]


def with_gain(factor: Float[Tensor, "*head dim d_head"], gain: Float64[Tensor, "dim 1"] | None) -> Tensor:
    """Return a factor in float64 with the gain on its rows; large ones are taken a head at a time."""
    return factor.double() if gain is None else gain * factor.double()


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
