"""The feed-forward part without its logic: every hidden unit the best affine function of its own input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tokendynamics.circuits.evidence.trial import Trial, chunk_length
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer

# Variance of an input, relative to its mean square, below which it is constant up to rounding.
_ROUNDING = 1e-24


def linear_units(trial: Trial, norm: bool = False, attend: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Outputs when each hidden unit is replaced, at each position, by an affine function of its own input.

    The functions are fitted by least squares on sequences drawn apart. Units that only select (always on or always
    off at a position, as in an attention that has done the logic) are reproduced exactly; units that decide are not.
    A best linear readout of the whole stream would not do: it finds whatever is decodable, also what the model does
    not use, and would rebuild q_true from a part of it.

    Args:
        trial: Model and sequences.
        norm: Whether the layer norm's division is made linear as well (the input is then taken before it).
        attend: What attention writes for sequences; the model's own if None. The functions are those of the model as
            it is, also where another attention is put before them.

    Returns:
        Shape (sequence, token from 2 on).
    """
    slope, intercept = _fit(trial, norm)
    model = trial.model

    def read(x: Tensor) -> Tensor:
        written = model.attend(x) if attend is None else attend(x)
        inputs = _inputs(model, written + model.skip * model.embed(x), norm)
        hidden = slope[: inputs.shape[-2]] * inputs + intercept[: inputs.shape[-2]]
        return hidden @ model.C + model.offset

    return trial.run(read, trial.x)


def _inputs(model: OneLayerTransformer, stream: Tensor, norm: bool) -> Tensor:
    """What each unit's ReLU sees, or (up to a constant) what it would see if the norm only centred."""
    if not norm or model.norm is None:
        return replace(model, activation="identity").hidden(stream)
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
