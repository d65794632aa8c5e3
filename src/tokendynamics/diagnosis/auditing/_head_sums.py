"""The gain of the norm before attention, folded into the matrices that read its output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained import AttentionWeights


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


SENDERS = 20
"""Other tokens that a token sees, for the share of attention that it gives itself."""


class Head(NamedTuple):
    """Factors of one head in float64, folded and centred: W_h = query @ key^T, V_h = value @ output."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


@dataclass(frozen=True)
class HeadSums:
    """What is known of each head of a layer without a dim × dim matrix.

    Attributes:
        directions: dim, or dim − 1 where the mean is taken out.
        centred: Whether it is.
        ov_squares: ‖V_h‖² of each head.
        ov_traces: tr V_h.
        qk_squares: ‖W_h‖².
        kept: a_h, the weight that a token gives itself: its logit on itself being t = scale · tr W_h and those on 20
            others 0, as they are in the mean over tokens of mean square 1 and of any direction, e^t/(e^t + 20).
    """

    directions: int
    centred: bool
    ov_squares: tuple[float, ...]
    ov_traces: tuple[float, ...]
    qk_squares: tuple[float, ...]
    kept: tuple[float, ...]


def heads_of(weights: AttentionWeights) -> Iterator[Head]:
    """Yield the factors of each head, folded, without the mean where a LayerNorm takes it off.

    Args:
        weights: Of one layer, as stored.
    """
    gain = gain_of(weights)
    for head, group in enumerate(weights.groups.tolist()):
        query, key = with_gain(weights.query[head], gain), with_gain(weights.key[group], gain)
        value, output = with_gain(weights.value[group], gain), weights.output[head].double()
        if is_centred(weights):
            query, key, value = (factor - factor.mean(dim=0, keepdim=True) for factor in (query, key, value))
            output = output - output.mean(dim=1, keepdim=True)
        yield Head(query, key, value, output)


def is_centred(weights: AttentionWeights) -> bool:
    """Tell whether attention reads states without a mean: behind a LayerNorm whose gain is folded."""
    return weights.norm_gain is not None and weights.norm_kind == "layer"


def sums_of(weights: AttentionWeights) -> HeadSums:
    """Return what is known of each head without a dim × dim matrix; see `HeadSums`.

    Args:
        weights: As stored.
    """
    rows = []
    for head in heads_of(weights):
        logit = torch.tensor(weights.scale * float((head.query * head.key).sum()), dtype=torch.float64)
        rows.append((
            _product_square(head.value, head.output.mT),
            float((head.value * head.output.mT).sum()),
            _product_square(head.query, head.key),
            float(torch.sigmoid(logit - log(SENDERS))),
        ))  # fmt: skip
    centred = is_centred(weights)
    return HeadSums(weights.query.shape[-2] - centred, centred, *zip(*rows, strict=True))


def qk_sum(weights: AttentionWeights) -> Float64[Tensor, "dim dim"]:
    """Return W = Σ_h W_h, folded and centred."""
    return _sum(weights, ((head.query, head.key.mT) for head in heads_of(weights)))


def ov_sum(weights: AttentionWeights) -> Float64[Tensor, "dim dim"]:
    """Return V = Σ_h V_h, folded and centred."""
    return _sum(weights, ((head.value, head.output) for head in heads_of(weights)))


def kept_square(weights: AttentionWeights, sums: HeadSums) -> float:
    """Return ‖Σ_h a_h V_h‖².

    Args:
        weights: As stored.
        sums: Of them.
    """
    heads = zip(sums.kept, heads_of(weights), strict=True)
    return float(_sum(weights, ((share * head.value, head.output) for share, head in heads)).square().sum())


def centred(matrix: Float64[Tensor, "dim dim"], sums: HeadSums) -> Float64[Tensor, "dim dim"]:
    """Return a sum over heads of folded factors without the direction (1, …, 1), where the layer reads none.

    Args:
        matrix: Σ_h W_h or Σ_h V_h.
        sums: Of the same layer.

    >>> sums = HeadSums(1, True, (), (), (), ())
    >>> centred(torch.tensor([[3.0, 0.0], [0.0, 1.0]]).double(), sums).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if not sums.centred:
        return matrix
    return matrix - matrix.mean(dim=0) - matrix.mean(dim=1, keepdim=True) + matrix.mean()


def _sum(weights: AttentionWeights, products: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    dim = weights.query.shape[-2]
    whole = torch.zeros(dim, dim, dtype=torch.float64)
    for left, right in products:
        whole.addmm_(left, right)
    return whole


def _product_square(left: Tensor, right: Tensor) -> float:
    """Return ‖left @ right^T‖² without the product."""
    return float(((left.mT @ left) * (right.mT @ right)).sum())
