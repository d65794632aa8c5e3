"""Intervals: how well a number that came from few draws is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.numerics.arguments import generator
from tokendynamics.numerics.errors import ArgumentValueError

T_COVERAGE = (
    "The t-intervals assume normally distributed values: for skewed differences (such as exponential ones) and 5 to 15 "
    "seeds a 95 % interval covers the mean in only 88 to 91 % of studies"
)
"""What is said wherever t-intervals over few seeds are printed: their simulated coverage, see its test."""

_NORMAL_95 = 1.959963984540054


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a probability of which `count` of `total` independent trials are known.

    The probabilities p with ``|count/total − p| ≤ z √(p(1 − p)/total)``, z = 1.96: it stays within 0..1 and does not
    shrink to a point at 0 or `total` (E. B. Wilson, 1927).

    Args:
        count: Successes, 0..total.
        total: Trials, at least 1.

    Raises:
        ArgumentValueError: No trials, or a count outside 0..total.

    >>> tuple(round(end, 4) for end in wilson(0, 10))
    (0.0, 0.2775)
    """
    if total < 1:
        raise ArgumentValueError("total", "at least one trial", total)
    if not 0 <= count <= total:
        raise ArgumentValueError("count", f"0..{total}", count)
    share, weight = count / total, _NORMAL_95**2 / total
    middle = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * (share * (1 - share) + weight / 4)) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


def percentile_interval(values: Tensor, confidence: float) -> tuple[float | None, float | None]:
    """Return the central interval that holds the share `confidence` of resampled values.

    Returns:
        Both ends, interpolated; None without values, and for an end that is not finite.

    >>> percentile_interval(torch.arange(101).double(), 0.5)
    (25.0, 75.0)
    """
    if values.numel() == 0:
        return None, None
    tail = (1.0 - confidence) / 2.0
    low, high = torch.quantile(values, torch.tensor([tail, 1.0 - tail], dtype=values.dtype)).tolist()
    return low if math.isfinite(low) else None, high if math.isfinite(high) else None


def jackknife_interval(
    whole: Float64[Tensor, "*axes"], without_each: Float64[Tensor, "unit ..."], confidence: float
) -> Float64[Tensor, "*axes 2"]:
    """Return the jackknife-t interval of a number that came from n independent units (J. W. Tukey, 1958).

    Its center is the jackknife's own estimate, the mean of the pseudo-values nθ − (n − 1)θ_(−i); its half width their
    standard error times the t quantile with n − 1 degrees of freedom.

    Args:
        whole: θ of all units.
        without_each: θ with each of the units left out.
        confidence: Share of such intervals that hold the true number, such as 0.9.

    Returns:
        Lower and upper end along a last axis; NaN where a θ is not defined, or n < 3.

    >>> values = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    >>> left = (values.sum() - values) / 2
    >>> [round(end, 4) for end in jackknife_interval(values.mean(), left, 0.9).tolist()]
    [-1.4604, 7.4604]
    """
    count = len(without_each)
    if count < 3:
        return torch.full((*whole.shape, 2), torch.nan, dtype=whole.dtype)
    pseudo = count * whole - (count - 1) * without_each
    half = student_quantile(confidence, count - 1) * pseudo.std(dim=0) / math.sqrt(count)
    middle = pseudo.mean(dim=0)
    return torch.stack([middle - half, middle + half], dim=-1)


def student_quantile(confidence: float, freedom: int) -> float:
    """Return t with ``P(|T| ≤ t) = confidence`` for Student's T with `freedom` degrees of freedom.

    >>> round(student_quantile(0.9, 2), 4)
    2.92
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2))


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Percentile intervals of ratios of sums over independent units, such as sequences, never their tokens.

    Attributes:
        counts: How often each unit stands in each resample, (resample, unit).
        confidence: Of the intervals, such as 0.95.
    """

    counts: Tensor
    confidence: float

    @classmethod
    def drawn(cls, units: int, resamples: int, confidence: float, seed: int) -> Bootstrap:
        """Draw resamples with replacement, each as large as the sample."""
        draws = torch.randint(units, (resamples, units), generator=generator(seed))
        counts = torch.zeros(resamples, units, dtype=torch.float64)
        return cls(counts.scatter_add_(1, draws, torch.ones_like(draws, dtype=torch.float64)), confidence)

    def ratio(
        self, numerator: Tensor, denominator: Tensor, transform: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[float | None, float | None, float | None]:
        """Return ``transform(Σ_u numerator_u / Σ_u denominator_u)`` over units u, and both ends of its interval.

        Args:
            numerator: (unit,).
            denominator: (unit,), not negative.
            transform: Identity if None; monotonic.

        Returns:
            Three times None if the denominator vanishes or a sum is not finite.
        """
        sums = torch.stack([numerator, denominator])
        if not bool(torch.isfinite(sums).all()) or float(denominator.sum()) <= 0:
            return None, None, None
        totals = torch.cat([sums.sum(dim=1, keepdim=True), sums @ self.counts.mT], dim=1)
        # A resample may leave out every unit that has something in the denominator; then it says nothing.
        quotients = totals[0, totals[1] > 0] / totals[1, totals[1] > 0]
        values = quotients if transform is None else transform(quotients)
        return float(values[0]), *percentile_interval(values[1:], self.confidence)


def bayesian_bootstrap(weights: Tensor, resamples: int, seed: int) -> Tensor:
    """Return each weight times an independent exponential variable, scaled to sum to one (D. B. Rubin, 1981).

    Args:
        weights: (weight,), positive.
        resamples: How many sets of weights.
        seed: Of the draw.

    Returns:
        Shape (resample, weight). Unlike draws with replacement it never leaves a weight out.
    """
    draws = torch.empty(resamples, weights.shape[0], dtype=torch.float64).exponential_(generator=generator(seed))
    scaled = draws * weights
    return scaled / scaled.sum(dim=-1, keepdim=True)
