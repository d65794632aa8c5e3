"""Norms of tokens and distances between them by layer, and how they grow (`positional` D.6.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from tokendynamics import observables
from tokendynamics.diagnosis.tracing.prompt_trace import find_sinks
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.scaled_states import scaled_states

MEASURES = ("norm", "distance")


@dataclass(frozen=True)
class DepthCurves:
    """Logarithms by layer, 0 the embedding, each (sequence, layer); NaN where states are not finite.

    Attributes:
        norm: Of the mean norm over the tokens of a sequence.
        distance: Of the mean distance over its pairs of tokens.
        norm_without_massive: Of the mean norm of its tokens but those of a norm above four times the median.
        final_norm: Of the mean norm after the network's final norm, (sequence,); NaN where undefined.
        final_distance: Of the mean distance there.
    """

    norm: np.ndarray
    distance: np.ndarray
    norm_without_massive: np.ndarray
    final_norm: np.ndarray
    final_distance: np.ndarray

    def of(self, measure: str, *, after_final_norm: bool = False) -> np.ndarray:
        """Return the norm or the distance, by its name; if wanted with the last state after the final norm."""
        curves, last = {"norm": (self.norm, self.final_norm), "distance": (self.distance, self.final_distance)}[measure]
        return np.concatenate([curves[:, :-1], last[:, None]], axis=1) if after_final_norm else curves


def depth_curves(ckpt: Checkpoint, sequences: Int[Tensor, "sequence token"]) -> DepthCurves:
    """Run sequences through a network, under its own variant, and measure their states after every block."""
    depth = ckpt.architecture.layers + 1
    norm, distance, usual = (np.full((len(sequences), depth), np.nan) for _ in range(3))
    final = np.full((2, len(sequences)), np.nan)
    for part in scaled_states(ckpt, list(sequences)):
        places = list(part.places)
        norms = torch.linalg.vector_norm(part.states.double(), dim=-1)
        norm[places] = _log(norms.mean(dim=-1), part.log_scale)
        usual[places] = _log(_usual(norms), part.log_scale)
        apart = torch.stack([_mean_distance(states) for states in part.states])
        distance[places] = _log(apart, part.log_scale)
        if part.final_norm is not None:
            final[0, places] = torch.linalg.vector_norm(part.final_norm.double(), dim=-1).mean(dim=-1).log().numpy()
            final[1, places] = _mean_distance(part.final_norm).log().numpy()
    return DepthCurves(norm, distance, usual, *final)


def _log(values: Float64[Tensor, "depth prompt"], log_scale: Float64[Tensor, "depth prompt"]) -> np.ndarray:
    logs = (values.log() + log_scale).mT
    return torch.where(torch.isfinite(logs), logs, torch.nan).numpy()


def _usual(norms: Float64[Tensor, "depth prompt token"]) -> Float64[Tensor, "depth prompt"]:
    finite = torch.isfinite(norms).all(dim=-1)
    massive = find_sinks(torch.where(finite[..., None], norms, 1.0))
    return torch.where(massive, torch.nan, norms).nanmean(dim=-1)


def _mean_distance(states: Float[Tensor, "prompt token dim"]) -> Float64[Tensor, " prompt"]:
    if not bool(torch.isfinite(states).all()):
        return torch.full((len(states),), torch.nan, dtype=torch.float64)
    count = states.shape[-2]
    return observables.pairwise_distances(states.double()).sum(dim=(-2, -1)) / (count * (count - 1))


@dataclass(frozen=True)
class Growth:
    """A least-squares line through the logarithms of a curve, beside one through the curve itself.

    Attributes:
        slope: Of the logarithm, by layer: growth by exp(slope) for each.
        explained: R² of that line.
        explained_plain: R² of a straight line through the values themselves.
    """

    slope: float
    explained: float
    explained_plain: float


def growth_of(logs: np.ndarray) -> Growth:
    """Fit a curve of logarithms over layers, (layer,); NaN throughout where it has one.

    >>> import numpy as np
    >>> growth = growth_of(np.log(3.0) + 0.5 * np.arange(9))
    >>> round(growth.slope, 12), round(growth.explained, 12), growth.explained_plain < 0.9
    (0.5, 1.0, True)
    """
    if not np.isfinite(logs).all():
        return Growth(math.nan, math.nan, math.nan)
    slope, explained = _line(logs)
    return Growth(slope, explained, _line(np.exp(logs - logs.max()))[1])


def _line(values: np.ndarray) -> tuple[float, float]:
    """Return slope and R² of the line through values at 0, 1, …; R² 0 where they are all one."""
    layers = np.arange(len(values)) - (len(values) - 1) / 2
    centred = values - values.mean()
    slope = float(layers @ centred / (layers @ layers))
    whole = float(centred @ centred)
    return slope, 0.0 if whole == 0 else 1 - float(np.square(centred - slope * layers).sum()) / whole
