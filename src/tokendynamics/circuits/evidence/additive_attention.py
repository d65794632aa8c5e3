"""The attention without its logic: what it writes becomes the best sum of functions of one category each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tokendynamics.circuits.evidence.trial import Trial, chunk_length
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer

# A sum that leaves the range of what was written by less than this share of its own spread does so by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class AdditiveAttention:
    """Writes ``Σ_j f_ij(X_j)`` at token i, the f_ij fitted by least squares to what a model's attention wrote.

    The fit, on sequences drawn apart, takes away all that attention makes of two categories or more: pairs weighed by
    ``k^t q``, products of weights that depend on one category and values that depend on another, and what the sum in a
    softmax mixes. An attention that only carries categories, one by one, is reproduced exactly. Unlike exchanged keys,
    and unlike a block of ``k^t q`` on its own, the hidden units still see streams like those that they were made for.

    Where the sums of a feature leave the range of what attention ever wrote there, they are drawn towards their mean
    until they fit: hidden units that clip what they never had to carry would make logic out of the ablation itself.
    Drawing towards the mean keeps a sum a sum.

    Attributes:
        model: Whose attention is replaced.
        terms: The functions f_ij, (token j · category, token i · feature).
        mean: Of what was written, (token i · feature).
        share: How much of the distance from the mean is kept, 0 … 1, (token i · feature).
    """

    model: OneLayerTransformer
    terms: Tensor
    mean: Tensor
    share: Tensor

    @classmethod
    def fitted(cls, trial: Trial) -> AdditiveAttention:
        """The sums that are nearest to what the trial's model wrote on its sequences for fits."""
        terms, low, high, mean = _fit(trial)
        most, least = torch.full_like(mean, -torch.inf), torch.full_like(mean, torch.inf)
        for chunk in _chunks(trial):
            sums = _one_hots(trial.model, chunk) @ terms
            most, least = torch.maximum(most, sums.amax(dim=0)), torch.minimum(least, sums.amin(dim=0))
        share = torch.minimum(_fitting(most - mean, high - mean), _fitting(mean - least, mean - low))
        return cls(trial.model, terms, mean, share)

    def __call__(self, x: Tensor) -> Tensor:
        """What is written for sequences (sequence, token), shape (sequence, token, width)."""
        sums = _one_hots(self.model, x) @ self.terms
        return (self.mean + self.share * (sums - self.mean)).reshape(*x.shape, self.model.width)

    def stream(self, x: Tensor) -> Tensor:
        """The stream behind it, with the model's skip connection."""
        return self(x) + self.model.skip * self.model.embed(x)


def _fit(trial: Trial) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The functions f_ij, and the least, largest and mean of what attention wrote, each (token · feature)."""
    gram, moment, written = torch.zeros(()), torch.zeros(()), []
    for chunk in _chunks(trial):
        seen, wrote = _one_hots(trial.model, chunk), trial.model.attend(chunk).flatten(1)
        gram = gram + seen.mT @ seen
        moment = moment + seen.mT @ wrote
        written.append((wrote.amin(dim=0), wrote.amax(dim=0), wrote.sum(dim=0) / len(trial.fitting)))
    low, high, mean = (torch.stack(kind) for kind in zip(*written, strict=True))
    # The one-hots of each token sum to one, so the system is singular and consistent.
    terms = torch.linalg.pinv(gram, hermitian=True) @ moment
    return terms, low.amin(dim=0), high.amax(dim=0), mean.sum(dim=0)


def _fitting(reach: Tensor, room: Tensor) -> Tensor:
    """The share of `reach` that fits into `room`."""
    exceeds = reach > room * (1.0 + _ROUNDING)
    return torch.where(exceeds, room / torch.where(exceeds, reach, torch.ones_like(reach)), torch.ones_like(reach))


def _chunks(trial: Trial) -> tuple[Tensor, ...]:
    return trial.fitting.split(chunk_length(trial.model, trial.fitting.shape[1]))


def _one_hots(model: OneLayerTransformer, x: Tensor) -> Tensor:
    """One-hots of all categories of a sequence side by side, (sequence, token · category)."""
    return one_hot(x - 1, model.task.categories).double().flatten(1)
