"""Parts without their logic: an attention that writes sums, hidden units that are affine in their own input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tokendynamics.circuits.evidence.trial import Trial, chunk_length
from tokendynamics.circuits.transformer import OneLayerTransformer

# A sum that leaves the range of what was written by less than this share of its own spread does so by rounding.
_OUT_OF_RANGE = 1e-9

# Variance of an input, relative to its mean square, below which it is constant up to rounding.
_CONSTANT = 1e-24


@dataclass(frozen=True, eq=False)
class AdditiveAttention:
    """Writes ``Σ_j f_ij(X_j)`` at token i, the f_ij fitted by least squares to what a model's attention wrote.

    The fit, on sequences drawn apart, takes away all that attention makes of two categories or more: pairs weighed by
    qk, products of weights that depend on one category and values that depend on another, and what the sum in a
    softmax mixes. An attention that only carries categories, one by one, is reproduced exactly. Unlike exchanged keys,
    and unlike a block of qk on its own, the hidden units still see streams like those that they were made for.

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
        """Return the sums that are nearest to what the trial's model wrote on its sequences for fits."""
        terms, low, high, mean = _fit_terms(trial)
        most, least = torch.full_like(mean, -torch.inf), torch.full_like(mean, torch.inf)
        for chunk in _chunks(trial):
            sums = _one_hots(trial.model, chunk) @ terms
            most, least = torch.maximum(most, sums.amax(dim=0)), torch.minimum(least, sums.amin(dim=0))
        share = torch.minimum(_fitting(most - mean, high - mean), _fitting(mean - least, mean - low))
        return cls(trial.model, terms, mean, share)

    def __call__(self, x: Tensor) -> Tensor:
        """Return what is written for sequences (sequence, token), shape (sequence, token, width)."""
        sums = _one_hots(self.model, x) @ self.terms
        return (self.mean + self.share * (sums - self.mean)).reshape(*x.shape, self.model.width)

    def stream(self, x: Tensor) -> Tensor:
        """Return the stream behind it, with the model's skip connection."""
        return self(x) + self.model.skip * self.model.embed(x)


def _fit_terms(trial: Trial) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the functions f_ij, and the least, largest and mean of what attention wrote, each (token · feature)."""
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
    """Return the share of `reach` that fits into `room`."""
    exceeds = reach > room * (1.0 + _OUT_OF_RANGE)
    return torch.where(exceeds, room / torch.where(exceeds, reach, torch.ones_like(reach)), torch.ones_like(reach))


def _chunks(trial: Trial) -> tuple[Tensor, ...]:
    return trial.fitting.split(chunk_length(trial.model, trial.fitting.shape[1]))


def _one_hots(model: OneLayerTransformer, x: Tensor) -> Tensor:
    """One-hots of all categories of a sequence side by side, (sequence, token · category)."""
    return one_hot(x - 1, model.task.categories).double().flatten(1)


@dataclass(frozen=True, eq=False)
class LinearUnits:
    """The feed-forward part with each hidden unit, at each position, an affine function of its own input.

    The functions are fitted by least squares on sequences drawn apart. Units that only select (always on or always
    off at a position, as in an attention that has done the logic) are reproduced exactly; units that decide are not.
    A best linear readout of the whole stream would not do: it finds whatever is decodable, also what the model does
    not use, and would rebuild q_true from a part of it.

    Attributes:
        model: Whose units are replaced.
        slope: (token, hidden).
        intercept: (token, hidden).
        norm: Whether the layer norm's division is made linear as well (the input is then taken before it).
    """

    model: OneLayerTransformer
    slope: Tensor
    intercept: Tensor
    norm: bool

    @classmethod
    def fitted(cls, trial: Trial, norm: bool = False) -> LinearUnits:
        """Return the affine functions that are nearest to what the trial's units did on its sequences for fits."""
        return cls(trial.model, *_fit_units(trial, norm), norm)

    def read(self, stream: Tensor) -> Tensor:
        """Return the outputs for a stream (sequence, token, width), shape (sequence, token).

        The functions stay those of the model as it was, also for the stream of another attention.
        """
        inputs = _inputs(self.model, stream, self.norm)
        hidden = self.slope[: inputs.shape[-2]] * inputs + self.intercept[: inputs.shape[-2]]
        return hidden @ self.model.C + self.model.offset

    def outputs(self, trial: Trial) -> Tensor:
        """Return the outputs after the model's own attention, (sequence, token from 2 on)."""
        return trial.run(lambda x: self.read(self.model.stream(x)), trial.x)


def _inputs(model: OneLayerTransformer, stream: Tensor, norm: bool) -> Tensor:
    """Return what each unit's ReLU sees, or (up to a constant) what it would see if the norm only centred."""
    if model.norm is None:
        return stream @ model.B.mT + model.bias
    if not norm:
        return model.norm(stream) @ model.B.mT + model.bias
    # The norm without its division: the same features, centred and scaled.
    first, last, _ = model.norm.features.indices(stream.shape[-1])
    part = stream[..., first:last]
    centred = (part - part.mean(dim=-1, keepdim=True)) * model.norm.gain + model.norm.shift
    return torch.cat([stream[..., :first], centred, stream[..., last:]], dim=-1) @ model.B.mT + model.bias


def _fit_units(trial: Trial, norm: bool) -> tuple[Tensor, Tensor]:
    """Slopes and intercepts, (token, hidden), by two passes: means first, so that nothing cancels."""
    model, count = trial.model, trial.fitting.shape[0]
    chunks = trial.fitting.split(chunk_length(model, trial.fitting.shape[1]))

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        stream = model.stream(x)
        return _inputs(model, stream, norm), model.hidden(stream)

    zero = torch.zeros(trial.fitting.shape[1], model.C.shape[0], dtype=torch.float64)
    mean_in, mean_out, square, variance, covariance = (zero.clone() for _ in range(5))
    for chunk in chunks:
        inputs, hidden = both(chunk)
        mean_in += inputs.sum(dim=0) / count
        mean_out += hidden.sum(dim=0) / count
        square += inputs.square().sum(dim=0) / count
    for chunk in chunks:
        inputs, hidden = both(chunk)
        variance += (inputs - mean_in).square().sum(dim=0) / count
        covariance += ((inputs - mean_in) * (hidden - mean_out)).sum(dim=0) / count
    moves = variance > _CONSTANT * square
    slope = torch.where(moves, covariance / torch.where(moves, variance, torch.ones_like(variance)), zero)
    return slope, mean_out - slope * mean_in
