"""One transformer on one set of sequences: what it answers, and what changes when something in it is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer, chunk_length
from tokendynamics.circuits.evidence.instrument import Estimate
from tokendynamics.numerics.arguments import generator
from tokendynamics.numerics.intervals import Bootstrap

# Variance of the interaction below this share of mean q_true² is rounding.
_ROUNDING = 1e-24
# Sequences for each value of a function of one category, for that to be fitted token by token: it then takes away at
# most a fifth of what is not a sum.
_SEQUENCES_PER_VALUE = 5


@dataclass(frozen=True, eq=False)
class EvidenceTrial:
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
    ) -> EvidenceTrial:
        """Draw the sequences and run the unchanged model on them."""
        seeds = torch.randint(2**62, (5,), generator=generator(seed)).tolist()
        x, other = task.sample(samples, seeds[0]), task.sample(samples, seeds[1])
        # A least-squares fit of p features on n sequences adds p/n of its error on others: keep that below a twentieth
        # for readouts, and below a fifth for sums over all tokens, where the error is again a sum.
        features, terms = 2 * task.categories + model.width, task.positions * task.categories
        fitting = task.sample(max(2 * samples, 20 * features, 5 * terms), seeds[2])
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
        return self.ratio("mean squared error", errors, torch.full_like(errors, self.targets.shape[1]))

    @property
    def missed(self) -> Estimate:
        """The loss over the variance of the interaction: 1 for the best prediction without any logic."""
        errors = (self.outputs - self.targets).square().sum(dim=1)
        return self.ratio("missed", errors, self.energy)

    @property
    def energy(self) -> Tensor:
        """Sum of the squared interaction, (sequence,); all zero where q_true has none."""
        energy = self.interaction.square().sum(dim=1)
        return energy if self.has_logic else torch.zeros_like(energy)

    def ratio(
        self, name: str, numerator: Tensor, denominator: Tensor, transform: Callable[[Tensor], Tensor] | None = None
    ) -> Estimate:
        """Return the ratio of two sums over sequences, each (sequence,), with its interval; see `Bootstrap.ratio`."""
        return Estimate(name, *self.bootstrap.ratio(numerator, denominator, transform))

    def run(self, compute: Callable[..., Tensor], *sequences: Tensor) -> Tensor:
        """Return the outputs of `compute` on sequences, chunk by chunk, tokens from 2 on."""
        return in_chunks(self.model, compute, *sequences)[:, 1:]

    def rise(self, changed: Tensor) -> Tensor:
        """Return by how much the summed squared error rises when the outputs become `changed`, (sequence,)."""
        before, after = self.outputs - self.targets, changed - self.targets
        return (after.square() - before.square()).sum(dim=1)

    def rise_share(self, name: str, changed: Tensor) -> Estimate:
        """Return √(rise of the loss / variance of the interaction): 1 when the interaction is gone and no more."""
        return self.ratio(name, self.rise(changed), self.energy, root)

    def lost(self, name: str, changed: Tensor) -> Estimate:
        """Return the share of the interaction that leaves the output: slope of (before − after) on the interaction.

        Unlike a rise of the loss it does not see additive functions of the two categories at each token, nor noise.
        """
        return self.slopes(self.outputs - changed, {name: self.interaction}, self.x[:, :-1], self.x[:, 1:])[0]

    def left(self, name: str, changed: Tensor) -> Estimate:
        """Return the share of the interaction that `changed` outputs still have: their slope on the interaction."""
        return self.slopes(changed, {name: self.interaction}, self.x[:, :-1], self.x[:, 1:])[0]

    def any_interaction(self, name: str, values: Tensor) -> Estimate:
        """Return √(variance of the interaction of the own pair's categories in `values` / that of q_true's), any shape.

        The means over all tokens with the same pair, beside sums: unlike a slope it sees logic that q_true has not.
        """
        previous, current = self.x[:, :-1], self.x[:, 1:]
        freed, pair = without_sums(values, previous, current), (previous - 1) * self.task.categories + current - 1
        counts = torch.bincount(pair.flatten()).clamp_min(1)
        means = torch.bincount(pair.flatten(), freed.flatten()) / counts
        return self.ratio(name, means[pair].square().sum(dim=1), self.energy, root)

    def slopes(self, changes: Tensor, contrasts: Mapping[str, Tensor], *single: Tensor) -> list[Estimate]:
        """Fit `changes` to all `contrasts` at once, beside functions of each category in `single`, token by token.

        All are (sequence, token); contrasts must not be collinear.
        """
        freed = {name: without_sums(contrast, *single) for name, contrast in contrasts.items()}
        changes = without_sums(changes, *single)
        estimates = []
        for name, contrast in freed.items():
            others = [other for key, other in freed.items() if key != name]
            unshared, answered = (without_projection(values, others) for values in (contrast, changes))
            energy = unshared.square().sum(dim=1) * float(self.has_logic)
            estimates.append(self.ratio(name, (answered * unshared).sum(dim=1), energy))
        return estimates


def root(values: Tensor) -> Tensor:
    """Return the share of amplitude of a share of variance; a negative share (noise) counts as 0."""
    return values.clamp_min(0.0).sqrt()


def pairs(matrix: Tensor, previous: Tensor, current: Tensor) -> Tensor:
    """Return ``matrix[previous, current]`` for categories numbered from 1."""
    return matrix[previous - 1, current - 1]


def without_sums(values: Tensor, *categories: Tensor) -> Tensor:
    """Return what is left of `values` beside the best ``f_1(category 1) + f_2(category 2) + …``, by least squares.

    Each token has functions of its own: fitted units differ between positions by the error of their fit, which is as
    large as a share of the sums and would drown a small interaction if only the mean over positions were taken off.
    With less than five sequences for each value of a function one set of functions serves all tokens.

    >>> import torch
    >>> without_sums(torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([1, 1, 2])).tolist()
    [-0.5, 0.5, 0.0]
    """
    if values.ndim == 1:
        return without_sums(values[:, None], *(kind[:, None] for kind in categories))[:, 0]
    size = int(max(int(kind.max()) for kind in categories))
    total = size * len(categories)
    sets = values.shape[1] if values.shape[0] >= _SEQUENCES_PER_VALUE * total else 1
    place = torch.arange(values.shape[1]) % sets * total
    # One-hots of all kinds side by side; the products of such columns are counts of pairs, so they need not be built.
    columns = [kind - 1 + size * number for number, kind in enumerate(categories)]
    gram, moment = torch.zeros(sets * total**2, dtype=torch.float64), torch.zeros(sets * total, dtype=torch.float64)
    for first in columns:
        moment += torch.bincount((place + first).flatten(), values.flatten(), minlength=sets * total)
        for second in columns:
            gram += torch.bincount(((place + first) * total + second).flatten(), minlength=sets * total**2)
    # The kinds share the constant, so the system is singular and consistent.
    terms = torch.linalg.pinv(gram.reshape(sets, total, total), hermitian=True) @ moment.reshape(sets, total, 1)
    return values - sum((terms.flatten()[place + column] for column in columns), torch.zeros(()))


def without_projection(values: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return what is left of `values` beside a linear combination of `others`, by least squares; all of one shape.

    >>> import torch
    >>> without_projection(torch.tensor([1.0, 2.0]).double(), [torch.tensor([3.0, 0.0]).double()]).tolist()
    [0.0, 2.0]
    """
    if not others:
        return values
    beside = torch.stack([other.flatten() for other in others])
    # With entries up to 1 the products neither overflow nor vanish.
    size = beside.abs().amax(dim=1, keepdim=True)
    beside = beside / torch.where(size > 0, size, torch.ones_like(size))
    if not bool(torch.isfinite(beside).all()):
        return torch.full_like(values, torch.nan)
    slopes = torch.linalg.pinv(beside @ beside.mT, hermitian=True) @ (beside @ values.flatten())
    return values - (slopes @ beside).reshape(values.shape)


def in_chunks(model: OneLayerTransformer, compute: Callable[..., Tensor], *sequences: Tensor) -> Tensor:
    """Return ``compute(*sequences)`` a few sequences at a time, so that memory does not grow with their number."""
    length = chunk_length(model, sequences[0].shape[1])
    parts = zip(*(rows.split(length) for rows in sequences), strict=True)
    return torch.cat([compute(*part) for part in parts])
