"""Tokens as one point and what each differs from it by, at a scale of its own: layers far below rounding.

A layer without residual takes tokens that nearly agree to the cube of their differences: after a few layers they agree
to the last digit, and all that is left to know is their logarithm. With ``x_i = c + 2^e d_i`` the logits of row i are,
up to what is the same for all senders, ``2^e c·qk d_j + 4^e d_i·qk d_j``. The first term is common to all receivers
that see the same senders and gives the weights a_j; by the second a receiver differs from that by
``a_j (exp(4^e g_ij − λ_i) − 1)`` with ``g_ij = d_i·qk d_j`` and λ_i such that weights sum to 1. Both parts are
computed without a difference of nearly equal numbers, and e is a number of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.attention.circuit_at_time import CircuitAtTime, Multiple
from tokendynamics.dynamics._field import Field
from tokendynamics.spaces.retraction import inner

_WEIGHTS = 2**22
"""Weights of a layer that are formed at once; larger problems keep states alone."""

_NEAR = 2.0**-10
"""Tokens that differ by less than this share of their center are followed by their deviations, others as they are: of
tokens of very different lengths a common center would round the short ones."""

_LARGEST_POWER = 120
"""Of two, that float32 holds; one scaling moves the exponent by no more."""


@dataclass(frozen=True)
class Deviations:
    """States ``x_i = center + 2^exponent · shape_i``.

    Attributes:
        center: (…, dim).
        shape: (…, token, dim); its largest entry is between ½ and 1, or all are 0.
        exponent: Whole numbers, (…), float64.
    """

    center: Tensor
    shape: Tensor
    exponent: Tensor

    @classmethod
    def of(cls, states: Tensor) -> Deviations:
        """Return states (…, token, dim) about their mean."""
        center = states.mean(dim=-2)
        exponent = torch.zeros(states.shape[:-2], dtype=torch.float64, device=states.device)
        return cls(center, states - center.unsqueeze(-2), exponent)._scaled()

    def states(self) -> Tensor:
        """Return the states themselves, rounded."""
        return self.center.unsqueeze(-2) + _power(self.exponent, self.shape) * self.shape

    @property
    def log_residual(self) -> Tensor:
        """The natural logarithm of the distance of the states to all whose tokens are equal, (…), −∞ at equal tokens.

        The distance is that of Frobenius: ``(Σ_i |x_i − x̄|²)^½`` with the mean x̄.
        """
        spread = self.shape - self.shape.mean(dim=-2, keepdim=True)
        return spread.double().flatten(start_dim=-2).norm(dim=-1).log() + math.log(2) * self.exponent

    @property
    def log_diameter(self) -> Tensor:
        """The natural logarithm of the largest distance between two tokens, (…), −∞ at equal tokens."""
        apart = torch.cdist(self.shape.double(), self.shape.double(), compute_mode="donot_use_mm_for_euclid_dist")
        return apart.flatten(start_dim=-2).amax(dim=-1).log() + math.log(2) * self.exponent

    @property
    def near(self) -> Tensor:
        """Whether tokens differ by less than 1/1024 of their center, (…)."""
        size = self.center.abs().amax(dim=-1)
        return (_power(self.exponent, self.shape) * self.shape).abs().amax(dim=(-2, -1)) < _NEAR * size

    def select(self, systems: Tensor) -> Deviations:
        """Return those of some systems, by index along the first axis."""
        return Deviations(self.center[systems], self.shape[systems], self.exponent[systems])

    def where(self, chosen: Tensor, other: Deviations) -> Deviations:
        """Return these of the systems that are chosen, (system,), and others of the rest."""
        chosen = chosen.to(self.center.device)
        return Deviations(
            torch.where(chosen[:, None], self.center, other.center),
            torch.where(chosen[:, None, None], self.shape, other.shape),
            torch.where(chosen, self.exponent, other.exponent),
        )

    def over_time(self, later: Sequence[Deviations]) -> Deviations:
        """Return these and later ones, the axis of time before those of a state."""
        every = (self, *later)
        return Deviations(
            torch.stack([one.center for one in every], dim=-2),
            torch.stack([one.shape for one in every], dim=-3),
            torch.stack([one.exponent for one in every], dim=-1),
        )

    def at(self, index: int) -> Deviations:
        """Return those of one time, by index."""
        return Deviations(self.center[..., index, :], self.shape[..., index, :, :], self.exponent[..., index])

    def reshaped(self, *leading: int) -> Deviations:
        """Return the same with other axes of systems in front of that of time."""
        return Deviations(
            self.center.reshape(*leading, *self.center.shape[-2:]),
            self.shape.reshape(*leading, *self.shape.shape[-3:]),
            self.exponent.reshape(*leading, self.exponent.shape[-1]),
        )

    def after_layer(self, field: Field, k: int, tau: float, residual: float) -> Deviations:
        """Return what `Field.layer` makes of the states, for fields that `can_follow` accepts."""
        attention = field.attention
        ov: CircuitAtTime = (
            Multiple(torch.ones(attention.heads).to(self.center), attention.dim)
            if field.identity_values
            else attention.ov.at(float(k))
        )
        middle, common, bent = self._averages(field, k, ov.values(self.shape))

        def carried(part: Tensor) -> Tensor:
            """Return ``τ Σ_h ov_h`` of averages (system, head, token, dim)."""
            return tau * field.factor * ov.output(part).sum(dim=-3)

        scale = _power(self.exponent, self.shape)
        average = ov.values(self.center.unsqueeze(-2)) + scale.unsqueeze(-3) * middle
        center = residual * self.center + carried(average).squeeze(-2)
        linear, cubic = residual * self.shape + carried(common), carried(bent)
        # Where nothing is left at the scale 2^e the rest is all there is, at the scale 8^e.
        none_left = (linear == 0).flatten(start_dim=1).all(dim=1)
        square = _power(2 * self.exponent, self.shape)
        shape = torch.where(none_left[:, None, None], cubic, linear + square * cubic)
        exponent = torch.where(none_left, 3 * self.exponent, self.exponent)
        return Deviations(center, shape, exponent)._centered()._projected(field)

    def _averages(self, field: Field, k: int, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return averages of values of `shape`, (system, head, token or 1, width), in three parts.

        Returns:
            That of the first receiver but for its own part in the logits; what the senders that others see change in
            it; and what the receivers' own part in the logits changes, divided by 4^e.
        """
        qk: CircuitAtTime = field.attention.qk.at(float(k))
        scale = _power(self.exponent, self.shape).unsqueeze(-3)
        keys = qk.keys(self.shape).mT
        shared = scale * (qk.queries(self.center.unsqueeze(-2)) @ keys)
        individual = qk.queries(self.shape) @ keys
        kinds, kind = _senders(field, self.shape)
        log_weights = shared.masked_fill(~kinds, -torch.inf).log_softmax(dim=-1)
        means = log_weights.exp() @ values
        common = means - means[..., :1, :]
        log_weights, weights = log_weights[..., kind, :], log_weights.exp()[..., kind, :]
        square = scale.square()
        added = (square * individual).masked_fill(~kinds[kind], 0.0)
        # λ of each row: near 0 by the exponentials less 1, which lose nothing; elsewhere as it stands.
        near = torch.log1p((weights * torch.expm1(added.clamp(-1, 1))).sum(dim=-1, keepdim=True))
        far = (log_weights + added).logsumexp(dim=-1, keepdim=True)
        small = added.abs().amax(dim=-1, keepdim=True) <= 0.5
        change = added - torch.where(small, near, far)
        ratio = torch.where(
            change < 1, torch.expm1(change.clamp(max=1)) * weights, (log_weights + change).exp() - weights
        )
        # Of squares that vanish beside 1 the first order is all.
        first = weights * (individual - (weights * individual).sum(dim=-1, keepdim=True))
        vanishing = square < torch.finfo(square.dtype).eps ** 2
        bend = torch.where(vanishing, first, ratio / square.clamp_min(torch.finfo(square.dtype).tiny))
        return means[..., :1, :], common[..., kind, :], bend @ values

    def _centered(self) -> Deviations:
        mean = self.shape.mean(dim=-2, keepdim=True)
        center = self.center + (_power(self.exponent, self.shape) * mean).squeeze(-2)
        return Deviations(center, self.shape - mean, self.exponent)._scaled()

    def _scaled(self) -> Deviations:
        exponent = torch.frexp(self.shape.abs().amax(dim=(-2, -1))).exponent.clamp_min(-_LARGEST_POWER)
        shape = torch.ldexp(self.shape, -exponent[..., None, None])
        return Deviations(self.center, shape, self.exponent + exponent)

    def _projected(self, field: Field) -> Deviations:
        """Return the points of the space, about that of the longest token."""
        geometry = field.geometry
        if not geometry.constrained:
            return self
        metric, scale = geometry.metric, _power(self.exponent, self.shape)
        states = self.states()
        lengths = inner(states, states, metric).sqrt()
        longest = lengths.argmax(dim=-2, keepdim=True)
        pivot = states.gather(-2, longest.expand(-1, 1, states.shape[-1]))
        length = lengths.gather(-2, longest)
        apart = self.shape - self.shape.gather(-2, longest.expand(-1, 1, states.shape[-1]))
        # x_i/n_i − x_r/n_r = (x_i − x_r)/n_r − x_i (n_i² − n_r²)/(n_i n_r (n_i + n_r)), all of it a multiple of 2^e.
        growth = 2 * inner(pivot.expand_as(apart), apart, metric) + scale * inner(apart, apart, metric)
        shape = apart / length - states * growth / (lengths * length * (lengths + length))
        center = geometry.exactly_projected(pivot).squeeze(-2)
        return Deviations(center, shape, self.exponent)._centered()


def can_follow(field: Field, start: Tensor) -> bool:
    """Tell whether `Deviations.after_layer` knows this field, and states (system, token, dim) are not too many."""
    attention, tokens = field.attention, start.shape[-2]
    known = attention.weights == "softmax" and attention.positions is None and field.geometry.closed_form
    known = known and not field.frozen
    return known and 0 < len(start) * attention.heads * tokens**2 <= _WEIGHTS


def _senders(field: Field, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return which sets of senders there are, (set, token), and which of them each token sees, (token,)."""
    if field.attention.mask is not None:
        kinds, kind = torch.unique(field.attention.mask.to(x.device), dim=0, return_inverse=True)
        return kinds, kind
    seen = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device)
    if not field.attention.causal:
        return seen[:1], torch.zeros(len(seen), dtype=torch.int64, device=x.device)
    return seen.tril(), torch.arange(len(seen), device=x.device)


def _power(exponent: Tensor, like: Tensor) -> Tensor:
    """Return 2^exponent, (…, 1, 1), in the dtype of `like`; 0 below its smallest number."""
    return torch.pow(2.0, exponent[..., None, None]).to(like)
