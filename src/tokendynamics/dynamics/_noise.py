"""Noise beside a flow: tokens make Brownian motions of their own, of strengths that do not depend on where they are.

Numbers come from a counter and no state: those of a system in a step are a function of seed, system and step (the
finalizer of SplitMix64 by Steele, Lea and Flood (2014) over the counters, then the inverse of the normal distribution).
Whatever else is in a batch, and whenever a run continues, they are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.numerics.arguments import as_integer, as_not_negative
from tokendynamics.numerics.signatures import typed_fields
from tokendynamics.spaces.retraction import inner, tangent_part


@typed_fields
@dataclass(frozen=True)
class Noise:
    """Brownian motion that every token makes beside the flow: ``dy = F(y) dt + σ dB`` with generator ``σ²/2 Δ``.

    Δ is the Laplacian of the space: of a free token that of its coordinates, on the sphere the Laplace–Beltrami
    operator (in Itô's form ``dy = F dt + σ (I − y yᵀ) dW − σ² (dim − 1)/2 · y dt``), on an ellipsoid that of the metric
    M, of which it is the image of a sphere. Motions of different tokens are independent. Frozen tokens have none.

    Args:
        strength: σ, at least 0, in units of x per square root of time.
        seed: An integer. The numbers of a system depend on the seed, its place in the batch, and the step alone.
        first: Added to the place of every system: a part of a batch that begins with system n has the noise that it
            has in the whole with ``first=n``.

    Raises:
        ArgumentTypeError, ArgumentValueError: A strength that is negative or not finite, or a seed or first of more
            than 63 bits or below 0.

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention([[0.0]], [[0.0]]), td.Free())
    >>> run = td.simulate(flow, [[[0.0]]] * 1000, [0.0, 4.0], noise=td.Noise(0.5, seed=1), step=0.1)
    >>> f"{float(run.tensor[:, -1].std()):.1f}"  # 0.5 √4
    '1.0'
    """

    strength: float
    seed: int
    first: int = 0

    def __post_init__(self) -> None:
        as_not_negative(self.strength, "strength")
        for name in ("seed", "first"):
            as_integer(getattr(self, name), name, at_least=0)


_STEP = 0x9E3779B97F4A7C15
"""2⁶⁴ over the golden ratio: by which counters are spread before they are mixed."""


def _mixed(words: np.ndarray) -> np.ndarray:
    """Return words of 64 bits of which every bit depends on all those given."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _spread(words: np.ndarray, counters: np.ndarray) -> np.ndarray:
    return _mixed(words + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP))


@dataclass(frozen=True)
class Draws:
    """The normal numbers of a batch.

    Attributes:
        noise: Its strength and seed.
        systems: Place of each system among all, (system,).
        taken: Steps that its run before has drawn for each, (system,).
    """

    noise: Noise
    systems: np.ndarray
    taken: np.ndarray

    @classmethod
    def of(cls, noise: Noise, taken: np.ndarray) -> Draws:
        """Return those of a batch of which each system has taken some steps."""
        return cls(noise, np.arange(len(taken), dtype=np.uint64) + np.uint64(noise.first), taken)

    def select(self, systems: Tensor) -> Draws:
        """Return those of some systems."""
        return replace(self, systems=self.systems[systems.numpy()], taken=self.taken[systems.numpy()])

    def of_step(self, number: int, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers of a step, counted from the start of this run.

        Args:
            number: The step.
            shape: Of the numbers of one system.

        Returns:
            Shape (system, *shape), float64; finite, at most 8.3 in size.
        """
        count = int(np.prod(shape))
        numbers = np.empty((len(self.systems), count))
        with np.errstate(over="ignore"):
            seed, among = _mixed(np.array([self.noise.seed], dtype=np.uint64)), np.arange(count)
            size = max(1, _PIECE // max(1, count))
            for part in (slice(start, start + size) for start in range(0, len(numbers), size)):
                streams = _spread(_spread(seed, self.systems[part]), self.taken[part] + number)
                words = _spread(streams[:, None], among)
                # 53 bits, and a half so that 0 is not among them.
                uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
                ndtri(np.minimum(uniform, _LARGEST), out=numbers[part])
        return torch.from_numpy(numbers).reshape(-1, *shape)


_LARGEST = 1 - 2.0**-53
_PIECE = 2**14
"""Numbers that are drawn at a time, so that what passes between operations stays in cache."""


@dataclass(frozen=True)
class BrownianMotion:
    """How noise moves the tokens of a field.

    A step of the flow stands between two steps of half its length. Each of these is exact in law in free space. On a
    sphere of n dimensions it goes along a great circle by ``|ξ| √τ (1 + (n − 1) τ/6)^(−1/2)``, ξ normal in the tangent
    space, τ = σ² times the time: its mean of a harmonic of eigenvalue λ agrees with ``exp(−λ τ/2)`` up to τ³, so that
    the whole step is of weak order two (Strang) where that of the flow is.

    Attributes:
        field: Whose geometry and frozen tokens are those of the tokens.
        draws: The numbers.
        root: M^(−1/2) of a metric, else None.
    """

    field: Field
    draws: Draws
    root: Tensor | None

    @classmethod
    def of(cls, field: Field, draws: Draws | None) -> BrownianMotion | None:
        """Return the motion; None where there is no noise, or of strength 0."""
        if draws is None or draws.noise.strength == 0:
            return None
        metric = field.geometry.metric
        if metric is None:
            return cls(field, draws, None)
        values, vectors = torch.linalg.eigh(metric)
        return cls(field, draws, (vectors * values.rsqrt().unsqueeze(-2)) @ vectors.mT)

    def of_step(self, number: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of both halves of a step, each (system, token, dim)."""
        both = self.draws.of_step(number, (2, *x.shape[1:])).to(x)
        return both[:, 0], both[:, 1]

    def displaced(self, y: Tensor, normal: Tensor, time: float) -> Tensor:
        """Return where tokens (system, token, dim) are after some time of Brownian motion."""
        variance = self.draws.noise.strength**2 * time
        if not self.field.geometry.constrained:
            return self.field.unmoved(y + variance**0.5 * normal, y)
        if y.shape[-1] == 1:
            return y  # two points, between which nothing moves
        metric = self.field.geometry.metric
        ahead = tangent_part(y, normal if self.root is None else normal @ self.root, metric)
        size = inner(ahead, ahead, metric).sqrt()
        angle = size * (variance / (1 + (y.shape[-1] - 2) * variance / 6)) ** 0.5
        return self.field.unmoved(angle.cos() * y + angle.sin() * ahead / size, y)
