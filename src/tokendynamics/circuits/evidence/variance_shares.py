"""Instrument 1: which blocks of ``k^t q`` hold what no sum of a sender's and a receiver's term can give."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.circuits.evidence.centring import QK_BLOCKS, block_name, double_centred, mean_square, weights_of
from tokendynamics.circuits.evidence.instrument import Estimate, Instrument, finite_or_none
from tokendynamics.circuits.evidence.resampling import percentiles, random_weights
from tokendynamics.circuits.hand_built.transformer import Block, OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask

# A block (or a head) counts as used from a tenth (a hundredth) of the whole on.
_USED_BLOCK, _USED_HEAD = 0.1, 0.01


def variance_shares(
    model: OneLayerTransformer, task: PairTask, resamples: int, confidence: float, seed: int
) -> Instrument:
    """Shares of the variance of the double-centred blocks of ``k^t q``, for each head and for all together.

    Exactly one category and one position is on in each token, so constants can move between the blocks without any
    effect: only what double centring leaves belongs to a block. Categories weigh by the law and positions equally.
    A head's qk and ov scale against each other (with linear weights), so shares are taken within a head, and heads
    are added up with weights that this does not change: (variance of the head's blocks) × (variance of what ov writes,
    each feature as strongly as it is read).

    Args:
        model: The transformer.
        task: The law.
        resamples: Of the weights of categories and positions. The shares follow from the weights without sampling;
            the intervals say how much they hang on single categories and positions.
        confidence: Of the intervals.
        seed: Of the resamples.
    """
    law, uniform = weights_of(task, "category"), weights_of(task, "position")
    drawn = {
        "category": torch.cat([law[None], random_weights(law, resamples, seed)]),
        "position": torch.cat([uniform[None], random_weights(uniform, resamples, seed + 1)]),
    }
    variances = torch.stack([_variances(model, weights) for weights in _each(drawn)])  # (resample, head, block)
    written = torch.stack([_written(model, weights) for weights in _each(drawn)])  # (resample, head)
    strengths = variances.sum(dim=-1) * written
    combined = _shares((variances * written[..., None]).sum(dim=1))
    names = [block_name(block) for block in QK_BLOCKS]
    estimates = tuple(_estimate(name, combined[:, index], confidence) for index, name in enumerate(names))
    own = _shares(variances[0])
    size = strengths[0] / strengths[0].sum() if float(strengths[0].sum()) > 0 else torch.zeros_like(strengths[0])
    used = (own >= _USED_BLOCK) & (size >= _USED_HEAD)[:, None]
    by_category, by_position = bool(used[:, 0].any()), bool(used[:, 3].any())
    heads = [
        {"strength": float(size[head]), "qk": dict(zip(names, own[head].tolist(), strict=True)), "ov": ov}
        for head, ov in enumerate(_ov_shares(model, task))
    ]
    return Instrument(
        "variance shares",
        "what the blocks of k^t q hold after double centring",
        by_category,
        by_position if by_category or by_position else None,
        estimates,
        _sentence(by_category, by_position, estimates),
        {"heads": heads, "weights": "categories by the law, positions uniformly"},
    )


def _each(drawn: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    return [dict(zip(drawn, rows, strict=True)) for rows in zip(*drawn.values(), strict=True)]


def _variances(model: OneLayerTransformer, weights: dict[str, Tensor]) -> Tensor:
    """Variance of each double-centred block, (head, block)."""
    found = []
    for sender, receiver in QK_BLOCKS:
        block = model.key_query[:, model.block(sender), model.block(receiver)]
        rows, columns = weights[sender], weights[receiver]
        found.append(mean_square(double_centred(block, rows, columns), rows, columns))
    return torch.stack(found, dim=-1)


def _written(model: OneLayerTransformer, weights: dict[str, Tensor]) -> Tensor:
    """Variance of what ov writes for a random sender, summed over features as they are read, (head,)."""
    written = torch.stack([_ov_variance(model, weights, kind) for kind in ("category", "position")]).sum(dim=0)
    return written @ _gains(model)


def _gains(model: OneLayerTransformer) -> Tensor:
    """How strongly each feature is read, ``Σ_u (C_u B_uf)²`` over hidden units u, (feature,).

    A head that writes little to features that count much is as strong as one that writes much to others. The division
    in a norm is the same for all heads and left out.
    """
    read = model.C[:, None] * model.B
    if model.norm is not None:
        read[:, model.norm.features] *= model.norm.gain
    return read.square().sum(dim=0)


def _ov_variance(model: OneLayerTransformer, weights: dict[str, Tensor], sender: Block) -> Tensor:
    """Variance over the senders' one-hots of one kind of each written feature, (head, feature)."""
    columns = model.ov[:, :, model.block(sender)]
    centred = columns - (columns * weights[sender]).sum(dim=-1, keepdim=True)
    return (centred.square() * weights[sender]).sum(dim=-1)


def _ov_shares(model: OneLayerTransformer, task: PairTask) -> list[dict[str, float]]:
    kinds: tuple[Block, ...] = ("category", "position")
    weights: dict[str, Tensor] = {kind: weights_of(task, kind) for kind in kinds}
    written: tuple[Block, ...] = (*kinds, "scratch")
    names, columns = [], []
    for sender in kinds:
        variance = _ov_variance(model, weights, sender)
        for receiver in written:
            names.append(f"{sender}→{receiver}")
            columns.append(variance[:, model.block(receiver)].sum(dim=-1))
    shares = _shares(torch.stack(columns, dim=-1))
    return [dict(zip(names, row, strict=True)) for row in shares.tolist()]


def _shares(parts: Tensor) -> Tensor:
    """Parts over their sum along the last axis; zeros where nothing is there."""
    total = parts.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, parts / total, torch.zeros_like(parts))


def _estimate(name: str, shares: Tensor, confidence: float) -> Estimate:
    return Estimate(name, finite_or_none(float(shares[0])), *percentiles(shares[1:], confidence))


def _sentence(by_category: bool, by_position: bool, estimates: tuple[Estimate, ...]) -> str:
    route = {
        (True, True): "tokens are chosen by category and by position",
        (True, False): "tokens are weighed by pairs of categories",
        (False, True): "tokens are chosen by position, not by category",
        (False, False): "neither pairs of categories nor pairs of positions matter",
    }[by_category, by_position]
    return f"{route}: of the blocks' variance, {estimates[0]}, {estimates[3]}."
