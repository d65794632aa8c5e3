"""One transformer on one set of sequences: what it answers, and what changes when something in it is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits.evidence.instrument import Estimate
from tokendynamics.circuits.evidence.resampling import Bootstrap, root
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask
from tokendynamics.numerics.seeding import generator

# Numbers held by the largest intermediate array of a chunk: 16 MB of float64, so that chunks stay in the cache.
_CHUNK_NUMBERS = 2_000_000
# Variance of the interaction below this share of mean q_true² is rounding.
_ROUNDING = 1e-24


@dataclass(frozen=True, eq=False)
class Trial:
    """Sequences, answers, and the interaction they should contain; token 1 has no pair and is left out.

    Attributes:
        model: The transformer.
        task: The law and q_true.
        x: Sequences (sequence, token) that everything is evaluated on.
        other: As many, drawn independently: what categories are replaced by.
        fitting: Sequences drawn apart, that fits are made on.
        bootstrap: For intervals over `x`.
        targets: Y_i of `x`, (sequence, token from 2 on).
        outputs: What the model answers, same shape.
        interaction: The interaction part of the targets, same shape.
        seed: For resamples of other things than sequences.
    """

    model: OneLayerTransformer
    task: PairTask
    x: Tensor
    other: Tensor
    fitting: Tensor
    bootstrap: Bootstrap
    targets: Tensor
    outputs: Tensor
    interaction: Tensor
    seed: int

    @classmethod
    def drawn(
        cls, model: OneLayerTransformer, task: PairTask, samples: int, seed: int, resamples: int, confidence: float
    ) -> Trial:
        """Draw the sequences and run the unchanged model on them."""
        seeds = torch.randint(2**62, (5,), generator=generator(seed)).tolist()
        x, other = task.sample(samples, seeds[0]), task.sample(samples, seeds[1])
        features = 2 * task.categories + model.width
        # A least-squares fit of p features on n sequences adds p/n of its error on others: keep that below a twentieth.
        fitting = task.sample(max(2 * samples, 20 * features), seeds[2])
        bootstrap = Bootstrap.drawn(samples, resamples, confidence, seeds[3])
        outputs = in_chunks(model, model, x)[:, 1:]
        targets = task.targets(x)[:, 1:]
        interaction = pairs(task.interaction, x[:, :-1], x[:, 1:])
        return cls(model, task, x, other, fitting, bootstrap, targets, outputs, interaction, seeds[4])

    @property
    def has_logic(self) -> bool:
        """Whether q_true has an interaction at all."""
        return self.task.interaction_variance > _ROUNDING * float(self.task.q_true.square().max())

    @property
    def loss(self) -> Estimate:
        """Mean squared error over tokens i ≥ 2."""
        errors = (self.outputs - self.targets).square().sum(dim=1)
        return self.bootstrap.ratio("mean squared error", errors, torch.full_like(errors, self.targets.shape[1]))

    @property
    def missed(self) -> Estimate:
        """The loss over the variance of the interaction: 1 for the best prediction without any logic."""
        errors = (self.outputs - self.targets).square().sum(dim=1)
        return self.bootstrap.ratio("missed", errors, self.energy)

    @property
    def energy(self) -> Tensor:
        """Sum of the squared interaction, (sequence,); all zero where q_true has none."""
        energy = self.interaction.square().sum(dim=1)
        return energy if self.has_logic else torch.zeros_like(energy)

    def run(self, compute: Callable[..., Tensor], *sequences: Tensor) -> Tensor:
        """Outputs of `compute` on sequences, chunk by chunk, tokens from 2 on."""
        return in_chunks(self.model, compute, *sequences)[:, 1:]

    def rise(self, changed: Tensor) -> Tensor:
        """By how much the summed squared error rises when the outputs become `changed`, (sequence,)."""
        before, after = self.outputs - self.targets, changed - self.targets
        return (after.square() - before.square()).sum(dim=1)

    def rise_share(self, name: str, changed: Tensor) -> Estimate:
        """√(rise of the loss / variance of the interaction): 1 when the whole interaction is gone and no more."""
        return self.bootstrap.ratio(name, self.rise(changed), self.energy, root)

    def lost(self, name: str, changed: Tensor) -> Estimate:
        """The share of the interaction that leaves the output: slope of (before − after) on the interaction.

        Unlike a rise of the loss it does not see additive functions of the two categories, nor noise.
        """
        return self.slope(name, self.outputs - changed, self.interaction, self.x[:, :-1], self.x[:, 1:])

    def slope(self, name: str, moved: Tensor, contrast: Tensor, *single: Tensor) -> Estimate:
        """Slope of `moved` on `contrast`, beside one-hots of the categories in `single`; all (sequence, token)."""
        moved, contrast = without_sums(moved, *single), without_sums(contrast, *single)
        energy = contrast.square().sum(dim=1) * float(self.has_logic)
        return self.bootstrap.ratio(name, (moved * contrast).sum(dim=1), energy)


def pairs(matrix: Tensor, previous: Tensor, current: Tensor) -> Tensor:
    """``matrix[previous, current]`` for categories numbered from 1."""
    return matrix[previous - 1, current - 1]


def without_sums(values: Tensor, *categories: Tensor) -> Tensor:
    """What is left of `values` beside the best ``f_1(category 1) + f_2(category 2) + …``, by least squares.

    Args:
        values: (…).
        categories: Numbered from 1, each of the shape of `values`.

    >>> import torch
    >>> without_sums(torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([1, 1, 2])).tolist()
    [-0.5, 0.5, 0.0]
    """
    size = int(max(int(kind.max()) for kind in categories))
    # One-hots of all kinds side by side; the products of such columns are counts of pairs, so they need not be built.
    columns = [(kind - 1 + size * place).flatten() for place, kind in enumerate(categories)]
    total = size * len(columns)
    gram, moment = torch.zeros(total * total, dtype=torch.float64), torch.zeros(total, dtype=torch.float64)
    for first in columns:
        moment += torch.bincount(first, values.flatten(), minlength=total)
        for second in columns:
            gram += torch.bincount(first * total + second, minlength=total * total)
    # The kinds share the constant, so the system is singular and consistent.
    terms = torch.linalg.pinv(gram.reshape(total, total), hermitian=True) @ moment
    return values - sum((terms[column] for column in columns), torch.zeros(())).reshape(values.shape)


def chunk_length(model: OneLayerTransformer, tokens: int) -> int:
    """Sequences in a chunk."""
    hidden, heads = model.C.shape[0], model.ov.shape[0]
    widest = tokens * max(hidden, heads * max(tokens, model.width))
    return max(1, _CHUNK_NUMBERS // widest)


def in_chunks(model: OneLayerTransformer, compute: Callable[..., Tensor], *sequences: Tensor) -> Tensor:
    """``compute(*sequences)`` a few sequences at a time, so that memory does not grow with their number."""
    length = chunk_length(model, sequences[0].shape[1])
    parts = zip(*(rows.split(length) for rows in sequences), strict=True)
    return torch.cat([compute(*part) for part in parts])
