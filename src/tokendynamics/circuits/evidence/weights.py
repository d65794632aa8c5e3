"""Instruments 1 and 2: what the blocks of qk hold, and whether the category block looks like q_true.

Blocks are compared by their interaction: the part that no sum of a row and a column function gives.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import FeatureBlock, OneLayerTransformer
from tokendynamics.circuits.evidence.instrument import Estimate, Found, Instrument
from tokendynamics.numerics.arguments import generator
from tokendynamics.numerics.intervals import bayesian_bootstrap, percentile_interval
from tokendynamics.provenance.manifest import plain
from tokendynamics.words import listing, number

QK_BLOCKS: tuple[tuple[FeatureBlock, FeatureBlock], ...] = (
    ("category", "category"),
    ("position", "category"),
    ("category", "position"),
    ("position", "position"),
)
"""Blocks of qk, (receiver, sender), in the order in which those of the paper's ``k^t q`` are printed."""


def block_name(block: tuple[FeatureBlock, FeatureBlock]) -> str:
    """Return a block (receiver, sender) in words, as it stands in the paper's ``k^t q``: the sender first.

    >>> block_name(("position", "category"))
    'category–position'
    """
    receiver, sender = block
    return f"{sender}–{receiver}"


def weights_of(task: PairTask, block: FeatureBlock) -> Tensor:
    """Return how often each one-hot of a kind occurs: categories by the law, positions uniformly."""
    if block == "category":
        return task.law
    return torch.full((task.positions,), 1.0 / task.positions, dtype=torch.float64)


def row_centred(matrix: Tensor, columns: Tensor) -> Tensor:
    """Return each row less its mean over the columns, with weights `columns` (…, column) that sum to one.

    Of a qk it takes off what is the same for all senders, and of an ov what is written for every sender alike.
    """
    return matrix - (matrix * columns[..., None, :]).sum(dim=-1, keepdim=True)


def double_centred(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the interaction ``m_rc − m_r· − m_·c + m_··`` under weights of rows and columns that sum to one.

    Args:
        matrix: (…, row, column).
        rows: (…, row).
        columns: (…, column).

    >>> import torch
    >>> half = torch.tensor([0.5, 0.5])
    >>> double_centred(torch.tensor([[1.0, 2.0], [3.0, 8.0]]), half, half)
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    return row_centred(row_centred(matrix, columns).mT, rows).mT


def mean_square(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return ``Σ_rc rows_r columns_c m_rc²``, shape (…)."""
    return (matrix.square() * columns[..., None, :] * rows[..., :, None]).sum(dim=(-2, -1))


# A block (or a head) counts as used from a tenth (a hundredth) of the whole on.
_USED_BLOCK, _USED_HEAD = 0.1, 0.01

# Share of a block's mean square below which its interaction is rounding.
_ROUNDING = 1e-24
_ALIKE = 0.5


def variance_shares(
    model: OneLayerTransformer, task: PairTask, resamples: int, confidence: float, seed: int
) -> Instrument:
    """Measure the shares of the variance of the double-centred blocks of qk, for each head and for all together.

    Exactly one category and one position is on in each token, so constants can move between the blocks without any
    effect: only what double centring leaves belongs to a block. Categories weigh by the law and positions equally.
    A head's qk and ov scale against each other (with linear weights), so shares are taken within a head, and heads
    are added up with weights that this does not change: (variance of the head's blocks) × (variance of what ov writes,
    each feature as strongly as it is read).

    The shares follow from the weights without sampling: intervals over resampled weights of categories and positions
    say how much they depend on single ones.
    """
    law, uniform = weights_of(task, "category"), weights_of(task, "position")
    drawn = {
        "category": torch.cat([law[None], bayesian_bootstrap(law, resamples, seed)]),
        "position": torch.cat([uniform[None], bayesian_bootstrap(uniform, resamples, seed + 1)]),
    }
    variances = torch.stack([_variances(model, weights) for weights in _by_draw(drawn)])  # (resample, head, block)
    written = torch.stack([_written(model, weights) for weights in _by_draw(drawn)])  # (resample, head)
    strengths = variances.sum(dim=-1) * written
    combined = _shares((variances * written[..., None]).sum(dim=1))
    names = [block_name(block) for block in QK_BLOCKS]
    estimates = tuple(
        Estimate(name, plain(float(shares[0])), *percentile_interval(shares[1:], confidence))
        for name, shares in zip(names, combined.unbind(-1), strict=True)
    )
    head_shares = _shares(variances[0])
    size = strengths[0] / strengths[0].sum() if float(strengths[0].sum()) > 0 else torch.zeros_like(strengths[0])
    used = (head_shares >= _USED_BLOCK) & (size >= _USED_HEAD)[:, None]
    by_category, by_position = bool(used[:, 0].any()), bool(used[:, 3].any())
    heads = [
        {"strength": float(size[head]), "qk": dict(zip(names, head_shares[head].tolist(), strict=True)), "ov": ov}
        for head, ov in enumerate(_ov_shares(model, task))
    ]
    route = {
        (True, True): "Tokens are chosen by category and by position",
        (True, False): "Tokens are weighed by pairs of categories",
        (False, True): "Tokens are chosen by position, not by category",
        (False, False): "Neither pairs of categories nor pairs of positions matter",
    }[by_category, by_position]
    shares = [f"{estimates[place].written(confidence)} is {estimates[place].name}" for place in (0, 3)]
    return Instrument(
        "variance shares",
        "Variance of the blocks of kᵗq after double centring",
        by_category,
        by_position if by_category or by_position else None,
        estimates,
        f"{route}: of the blocks' variance, {listing(shares)}.",
        {"heads": heads, "weights": "categories by the law, positions uniformly"},
    )


def _by_draw(drawn: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    return [dict(zip(drawn, rows, strict=True)) for rows in zip(*drawn.values(), strict=True)]


def _variances(model: OneLayerTransformer, weights: dict[str, Tensor]) -> Tensor:
    """Variance of each double-centred block, (head, block)."""
    variances = []
    for receiver, sender in QK_BLOCKS:
        block = model.qk[:, model.block(receiver), model.block(sender)]
        rows, columns = weights[receiver], weights[sender]
        variances.append(mean_square(double_centred(block, rows, columns), rows, columns))
    return torch.stack(variances, dim=-1)


def _written(model: OneLayerTransformer, weights: dict[str, Tensor]) -> Tensor:
    """Variance of what ov writes for a random sender, summed over features as they are read, (head,).

    A feature is read as strongly as ``Σ_u (C_u B_uf)²`` over hidden units u: a head that writes little to features that
    count much is as strong as one that writes much to others. The division in a norm is the same for all heads and left
    out.
    """
    read = model.C[:, None] * model.B
    if model.norm is not None:
        read[:, model.norm.features] *= model.norm.gain
    written = torch.stack([_ov_variance(model, weights, kind) for kind in ("category", "position")]).sum(dim=0)
    return written @ read.square().sum(dim=0)


def _ov_variance(model: OneLayerTransformer, weights: dict[str, Tensor], sender: FeatureBlock) -> Tensor:
    """Variance over the senders' one-hots of one kind of each written feature, (head, feature)."""
    columns = model.ov[:, :, model.block(sender)]
    centred = columns - (columns * weights[sender]).sum(dim=-1, keepdim=True)
    return (centred.square() * weights[sender]).sum(dim=-1)


def _ov_shares(model: OneLayerTransformer, task: PairTask) -> list[dict[str, float]]:
    kinds: tuple[FeatureBlock, ...] = ("category", "position")
    weights: dict[str, Tensor] = {kind: weights_of(task, kind) for kind in kinds}
    written: tuple[FeatureBlock, ...] = (*kinds, "scratch")
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


def correlation(model: OneLayerTransformer, task: PairTask, resamples: int, confidence: float, seed: int) -> Instrument:
    """Measure the |correlation| of the category–category block with q_true, centred over the senders of each receiver.

    A constant added to a receiver's row of the block is the same for all senders, and whatever reads the attention can
    take it off again: the raw correlation sees such constants, the centred one does not. Pairs weigh by the law. With
    several heads the one that is most alike counts.

    Two uncertainties: the interval (Bayesian bootstrap over senders and over receivers) says how much the number
    depends on single categories; the p-value is the chance of as large a number when the categories of q_true are
    renamed at random, previous and current ones apart.
    """
    title = "Correlation of the category block of kᵗq with q_true"
    block = model.qk[:, model.block("category"), model.block("category")]
    # q_true has the previous category first, which is the sender's.
    wanted, law = task.q_true.mT, task.law
    held = mean_square(double_centred(block, law, law), law, law) > _ROUNDING * mean_square(block, law, law)
    if not bool(held.any()):
        nothing = "No head weighs pairs of categories, so the correlation with q_true is undefined."
        undefined = Estimate("centred", None), Estimate("interaction", None), Estimate("raw", None)
        return Instrument("correlation", title, False, None, undefined, nothing, {"heads": []})
    held_blocks = block[held]
    per_head = _alike("centred", held_blocks, wanted, law, law).abs()
    best = int(per_head.argmax())
    senders = bayesian_bootstrap(law, resamples, seed)
    receivers = bayesian_bootstrap(law, resamples, seed + 1)
    estimates = []
    for name in _CENTRED:
        value = abs(float(_alike(name, held_blocks[best], wanted, law, law)))
        resampled = _alike(name, held_blocks[best], wanted, receivers, senders)
        low, high = percentile_interval(resampled, confidence)
        if low is not None and high is not None:  # |r| reaches down to 0 where r may have either sign
            sizes = abs(low), abs(high)
            low, high = 0.0 if low <= 0.0 <= high else min(sizes), max(sizes)
        estimates.append(Estimate(name, value, low, high))
    chance = _chance(held_blocks, task, float(per_head[best]), resamples, seed + 2)
    # The category block is q_true's where it is alike beyond chance.
    unlikely, first = chance <= 1.0 - confidence, estimates[0]
    logic_found: Found = None
    if unlikely and first.low is not None and first.low > _ALIKE:
        logic_found = True
    elif not unlikely and first.value is not None and first.value < _ALIKE:
        logic_found = False
    details = {
        "heads": [{"head": int(h), "centred": float(r)} for h, r in zip(held.nonzero()[:, 0], per_head, strict=True)],
        "chance of as much under renamed categories": chance,
    }
    centred, _, raw = (estimate.written(confidence) for estimate in estimates)
    sentence = (
        f"The |correlation| with q_true is {centred} centred and {raw} raw (permutation p = {number(chance, 2)})."
    )
    return Instrument("correlation", title, logic_found, None, tuple(estimates), sentence, details)


def _less_mean(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return matrix - (matrix * columns[..., None, :] * rows[..., :, None]).sum(dim=(-2, -1), keepdim=True)


_CENTRED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "centred": lambda matrix, rows, columns: row_centred(matrix, columns),
    "interaction": double_centred,
    "raw": _less_mean,
}
"""What is left of a matrix in each correlation, by its name, under weights of rows and columns."""


def _alike(name: str, block: Tensor, q_true: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Weighted cosine of two matrices after centring; 0 where one of them vanishes."""
    a, b = (_CENTRED[name](matrix, rows, columns) for matrix in (block, q_true))
    product = (a * b * columns[..., None, :] * rows[..., :, None]).sum(dim=(-2, -1))
    size = (mean_square(a, rows, columns) * mean_square(b, rows, columns)).sqrt()
    return torch.where(size > 0, product / size, torch.zeros_like(product))


def _chance(blocks: Tensor, task: PairTask, observed: float, resamples: int, seed: int) -> float:
    draw, count = generator(seed), task.categories
    as_large = 0
    for _ in range(resamples):
        previous, current = torch.randperm(count, generator=draw), torch.randperm(count, generator=draw)
        renamed = task.q_true[previous][:, current].mT
        # Renaming that changes nothing counts as equally large in spite of rounding.
        as_large += float(_alike("centred", blocks, renamed, task.law, task.law).abs().max()) >= observed - 1e-12
    return (1 + as_large) / (1 + resamples)
