"""Intervals by the bootstrap: the sequences are the independent units, never their tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits.evidence.instrument import Estimate, finite_or_none
from tokendynamics.numerics.seeding import generator


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Percentile intervals of ratios of sums over sequences.

    Attributes:
        counts: How often each sequence stands in each resample, (resample, sequence).
        confidence: Of the intervals, such as 0.95.
    """

    counts: Tensor
    confidence: float

    @classmethod
    def drawn(cls, sequences: int, resamples: int, confidence: float, seed: int) -> Bootstrap:
        """Resamples with replacement, each as large as the sample."""
        draws = torch.randint(sequences, (resamples, sequences), generator=generator(seed))
        counts = torch.zeros(resamples, sequences, dtype=torch.float64)
        return cls(counts.scatter_add_(1, draws, torch.ones_like(draws, dtype=torch.float64)), confidence)

    def ratio(
        self,
        name: str,
        numerator: Tensor,
        denominator: Tensor,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> Estimate:
        """``transform(Σ_s numerator_s / Σ_s denominator_s)`` over sequences s, with its interval.

        Args:
            name: Of the estimate.
            numerator: (sequence,).
            denominator: (sequence,), not negative.
            transform: Identity if None; monotonic.

        Returns:
            An estimate without numbers if the denominator vanishes or a sum is not finite.
        """
        sums = torch.stack([numerator, denominator])
        if not bool(torch.isfinite(sums).all()) or float(denominator.sum()) <= 0:
            return Estimate(name, None)
        totals = torch.cat([sums.sum(dim=1, keepdim=True), sums @ self.counts.mT], dim=1)
        # A resample may leave out every sequence that has something in the denominator; then it says nothing.
        quotients = totals[0, totals[1] > 0] / totals[1, totals[1] > 0]
        values = quotients if transform is None else transform(quotients)
        low, high = percentiles(values[1:], self.confidence)
        return Estimate(name, float(values[0]), low, high)


def percentiles(values: Tensor, confidence: float) -> tuple[float | None, float | None]:
    """The central interval of `values` (resample,) that holds the share `confidence` of them."""
    if values.numel() == 0:
        return None, None
    tail = (1.0 - confidence) / 2.0
    ends = torch.quantile(values, torch.tensor([tail, 1.0 - tail], dtype=values.dtype))
    return finite_or_none(float(ends[0])), finite_or_none(float(ends[1]))


def random_weights(weights: Tensor, resamples: int, seed: int) -> Tensor:
    """Bayesian bootstrap: each weight times an independent exponential variable, scaled to sum to one.

    Returns:
        Shape (resample, weight). Unlike draws with replacement it never leaves a category out.
    """
    draws = torch.empty(resamples, weights.shape[0], dtype=torch.float64).exponential_(generator=generator(seed))
    scaled = draws * weights
    return scaled / scaled.sum(dim=-1, keepdim=True)


def root(values: Tensor) -> Tensor:
    """Square root of a share of variance, as a share of amplitude; a negative share (noise) counts as 0."""
    return values.clamp_min(0.0).sqrt()
