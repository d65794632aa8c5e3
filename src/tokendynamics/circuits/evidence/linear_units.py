"""The feed-forward part without its logic: every hidden unit the best affine function of its own input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits.evidence.trial import Trial, chunk_length
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer

# Variance of an input, relative to its mean square, below which it is constant up to rounding.
_ROUNDING = 1e-24


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
        """The affine functions that are nearest to what the trial's units did on its sequences for fits."""
        return cls(trial.model, *_fit(trial, norm), norm)

    def read(self, stream: Tensor) -> Tensor:
        """The outputs for a stream (sequence, token, width), shape (sequence, token).

        The functions stay those of the model as it was, also for the stream of another attention.
        """
        inputs = _inputs(self.model, stream, self.norm)
        hidden = self.slope[: inputs.shape[-2]] * inputs + self.intercept[: inputs.shape[-2]]
        return hidden @ self.model.C + self.model.offset

    def outputs(self, trial: Trial) -> Tensor:
        """The outputs after the model's own attention, (sequence, token from 2 on)."""
        return trial.run(lambda x: self.read(self.model.stream(x)), trial.x)


def _inputs(model: OneLayerTransformer, stream: Tensor, norm: bool) -> Tensor:
    """What each unit's ReLU sees, or (up to a constant) what it would see if the norm only centred."""
    if model.norm is None:
        return stream @ model.B.mT + model.bias
    if not norm:
        return model.norm(stream) @ model.B.mT + model.bias
    # The norm without its division: the same features, centred and scaled.
    first, last, _ = model.norm.features.indices(stream.shape[-1])
    part = stream[..., first:last]
    centred = (part - part.mean(dim=-1, keepdim=True)) * model.norm.gain + model.norm.shift
    return torch.cat([stream[..., :first], centred, stream[..., last:]], dim=-1) @ model.B.mT + model.bias


def _fit(trial: Trial, norm: bool) -> tuple[Tensor, Tensor]:
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
    moves = variance > _ROUNDING * square
    slope = torch.where(moves, covariance / torch.where(moves, variance, torch.ones_like(variance)), zero)
    return slope, mean_out - slope * mean_in
