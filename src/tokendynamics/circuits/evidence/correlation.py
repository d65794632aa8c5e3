"""Instrument 2: does the category block of ``k^t q`` look like q_true?"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.circuits.evidence.centring import column_centred, double_centred, mean_square
from tokendynamics.circuits.evidence.instrument import Estimate, Found, Instrument
from tokendynamics.circuits.evidence.resampling import percentiles, random_weights
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask
from tokendynamics.numerics.seeding import generator

# Share of a block's mean square below which its interaction is rounding.
_ROUNDING = 1e-24
_ALIKE = 0.5


def correlation(model: OneLayerTransformer, task: PairTask, resamples: int, confidence: float, seed: int) -> Instrument:
    """|Correlation| of the category–category block with q_true, each column centred over the senders.

    A constant added to a column of the block is the same for all senders, and whatever reads the attention can take
    it off again: the raw correlation sees such constants, the centred one does not. Pairs weigh by the law. With
    several heads the one that is most alike counts.

    Two uncertainties: the interval (Bayesian bootstrap over senders and over receivers) says how much the number
    hangs on single categories; the p-value is the chance of as large a number when the categories of q_true are
    renamed at random, previous and current ones apart.

    Args:
        model: The transformer.
        task: q_true and the law.
        resamples: For the interval and for the null.
        confidence: Of the interval; the p-value is held against 1 − confidence.
        seed: Of both.
    """
    title = "likeness of the category block of k^t q to q_true"
    block = model.key_query[:, model.block("category"), model.block("category")]
    law = task.law
    held = mean_square(double_centred(block, law, law), law, law) > _ROUNDING * mean_square(block, law, law)
    if not bool(held.any()):
        nothing = "no head weighs pairs of categories: there is nothing that could look like q_true."
        undefined = Estimate("centred", None), Estimate("interaction", None), Estimate("raw", None)
        return Instrument("correlation", title, False, None, undefined, nothing, {"heads": []})
    held_blocks = block[held]
    per_head = _column(held_blocks, task.q_true, law, law).abs()
    best = int(per_head.argmax())
    senders = random_weights(law, resamples, seed)
    receivers = random_weights(law, resamples, seed + 1)
    chosen = held_blocks[best]
    estimates = tuple(
        Estimate(
            name,
            abs(float(measure(chosen, task.q_true, law, law))),
            *_without_sign(*percentiles(measure(chosen, task.q_true, senders, receivers), confidence)),
        )
        for name, measure in {"centred": _column, "interaction": _double, "raw": _raw}.items()
    )
    chance = _chance(held_blocks, task, float(per_head[best]), resamples, seed + 2)
    found = _found(estimates[0], chance, confidence)
    details = {
        "heads": [{"head": int(h), "centred": float(r)} for h, r in zip(held.nonzero()[:, 0], per_head, strict=True)],
        "chance of as much under renamed categories": chance,
    }
    return Instrument("correlation", title, found, None, estimates, _sentence(estimates, chance), details)


def _column(block: Tensor, functional: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return _alike(column_centred(block, rows), column_centred(functional, rows), rows, columns)


def _double(block: Tensor, functional: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    centred = double_centred(block, rows, columns), double_centred(functional, rows, columns)
    return _alike(*centred, rows, columns)


def _raw(block: Tensor, functional: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return _alike(_less_mean(block, rows, columns), _less_mean(functional, rows, columns), rows, columns)


def _less_mean(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return matrix - (matrix * rows[..., :, None] * columns[..., None, :]).sum(dim=(-2, -1), keepdim=True)


def _without_sign(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The interval of |r| from that of r: it reaches down to 0 where r may have either sign."""
    if low is None or high is None:
        return None, None
    smallest = 0.0 if low <= 0.0 <= high else min(abs(low), abs(high))
    return smallest, max(abs(low), abs(high))


def _alike(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Weighted cosine of two matrices; 0 where one of them vanishes."""
    product = (a * b * rows[..., :, None] * columns[..., None, :]).sum(dim=(-2, -1))
    size = (mean_square(a, rows, columns) * mean_square(b, rows, columns)).sqrt()
    return torch.where(size > 0, product / size, torch.zeros_like(product))


def _chance(blocks: Tensor, task: PairTask, observed: float, resamples: int, seed: int) -> float:
    draw, count = generator(seed), task.categories
    as_large = 0
    for _ in range(resamples):
        previous, current = torch.randperm(count, generator=draw), torch.randperm(count, generator=draw)
        renamed = task.q_true[previous][:, current]
        # Renaming that changes nothing counts as equally large in spite of rounding.
        as_large += float(_column(blocks, renamed, task.law, task.law).abs().max()) >= observed - 1e-12
    return (1 + as_large) / (1 + resamples)


def _found(centred: Estimate, chance: float, confidence: float) -> Found:
    unlikely = chance <= 1.0 - confidence
    if unlikely and centred.low is not None and centred.low > _ALIKE:
        return True
    return False if not unlikely and centred.value is not None and centred.value < _ALIKE else None


def _sentence(estimates: tuple[Estimate, ...], chance: float) -> str:
    centred, _, raw = estimates
    return f"the likeness to q_true is {centred.number} (raw {raw.number}); as much by chance: p = {chance:.2g}."
