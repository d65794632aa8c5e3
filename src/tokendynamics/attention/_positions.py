"""Where tokens stand in the sequence: tables added to them, rotations of queries and keys, or a custom scheme.

Rotary positions turn the coordinate pairs of queries and keys by angles that grow with the position.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.attention.circuit_at_time import per_head
from tokendynamics.attention.schedules import Constant, Schedule, Time
from tokendynamics.attention.schedules.conversion import ScheduleLike, as_schedule, shape_is_known
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_count, as_finite, as_positive, as_tensor
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments


@typed_arguments
def rotate(
    vectors: Float[Tensor, "*batch d_head"], frequencies: Float[Tensor, " pairs"], position: float
) -> Float[Tensor, "*batch d_head"]:
    """Turn each coordinate pair (c, c + d_head/2) by the angle ``position · frequencies[c]``.

    The pairing of halves is the one of the LLaMA family's checkpoints. ``⟨R_i q, R_j k⟩ = ⟨R_{i−j} q, k⟩``: only the
    distance of receiver and sender enters, so turning the query by i − j gives the circuit at that distance.

    Args:
        vectors: Queries or keys, shape (…, d_head); coordinates beyond 2 · pairs stay as they are.
        frequencies: Radians per token of each pair, shape (pairs,).
        position: In tokens.

    Source: `positional` (6)–(7), whose pairs are neighbours: the same up to the order of the coordinates.

    Raises:
        ArgumentTypeError: No tensors, or not of real numbers.
        ArgumentValueError: More pairs than the vectors have.

    >>> import math
    >>> rotate(torch.tensor([1.0, 0.0]), torch.tensor([math.pi / 2]), 1.0).round().tolist()
    [-0.0, 1.0]
    """
    pairs = len(frequencies) if frequencies.ndim == 1 else -1
    if vectors.ndim == 0 or not 0 <= 2 * pairs <= vectors.shape[-1]:
        wanted = f"one frequency for each pair of coordinates at most, with vectors of shape {tuple(vectors.shape)}"
        raise ArgumentValueError("frequencies", wanted, f"shape {tuple(frequencies.shape)}")
    angles = (frequencies.to(torch.float64) * as_finite(position, "position")).to(vectors.device)
    cosine, sine = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
    first, second, rest = vectors[..., :pairs], vectors[..., pairs : 2 * pairs], vectors[..., 2 * pairs :]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], dim=-1)


_BYTES = 32
"""Of each entry of a table of sines: its angle, both functions of it, and the one that is taken."""


@runtime_checkable
class Positions(Protocol):
    """What attention asks of a positional scheme; one of your own inherits from this and overrides what it changes.

    A scheme changes what attention reads (`read`), or the rows whose inner products are the logits (`extended`), where
    further columns of queries and keys add terms to them. It is run by the engines "batched", "fixed" and "layers";
    trajectories opened from a file do not know it.

    Attributes:
        changes_states: Whether `read` gives anything else than the states.
        changes_logits: Whether `extended` gives anything else than its queries and keys.
        closed_form: Whether the derivative by the states is known: then `linear_part` gives it.

    Attention with linear biases, ``s_ij − slope · (i − j)``:

    >>> class LinearBias(Positions):
    ...     def __init__(self, slope): self.slope = slope
    ...     def extended(self, query, key, x, t):
    ...         i = torch.arange(x.shape[-2], dtype=x.dtype)[:, None]
    ...         one = torch.ones_like(i)
    ...         rows = [torch.cat(pair, -1) for pair in ((-self.slope * i, one), (one, self.slope * i))]
    ...         sides = zip((query, key), rows, strict=True)
    ...         return tuple(torch.cat([side, row.expand(*side.shape[:-1], 2)], -1) for side, row in sides)
    >>> from tokendynamics.attention import Attention
    >>> attention = Attention([[0.0]], [[1.0]], positions=LinearBias(0.5))
    >>> attention.logits([[1.0], [1.0]])
    [[[0.0, 0.5], [-0.5, 0.0]]]
    """

    changes_states: bool = False
    changes_logits: bool = True
    closed_form: bool = False

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Matrices over time, if the scheme has any."""
        return ()

    def linear_part(self) -> Positions | None:
        """Return the scheme without what it adds to states; None where nothing is left."""
        return self

    def check(self, qk: Schedule, ov: Schedule) -> None:
        """Raise an `ArgumentValueError` where the scheme does not fit the circuits."""

    def read(self, x: Tensor) -> Tensor:
        """Return what attention reads of states (…, token, dim)."""
        return x

    def extended(self, query: Tensor, key: Tensor, x: Tensor, t: Time) -> tuple[Tensor, Tensor]:
        """Return queries and keys (*system, head, token, rank) with what positions add; `x` is what was read."""
        return query, key

    def each(self, change: Callable[[Schedule], Schedule]) -> Positions:
        """Return the same with its schedules changed."""
        return self

    def restricted(self, basis: Tensor) -> Positions | None:
        """Return the same in coordinates of a basis (system, dim, rank); None where it has no such form."""
        return None

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Positions:
        """Return the same in another precision or place."""
        return self


class AbsolutePositions(Positions):
    """A vector p_i added to token i inside attention, in the logits and in what is averaged.

    The state stays x: the flow is the one of x + p seen from x. Source: `positional` (5).

    Args:
        table: (token, dim), given or learned.

    >>> AbsolutePositions.sinusoidal(3, 2).table[:, 0].round(decimals=3).tolist()  # sin 1, sin 2, sin 3
    [0.841, 0.909, 0.141]
    """

    changes_states = True
    changes_logits = False
    closed_form = True

    def __init__(self, table: ArrayLike) -> None:
        self.table = as_tensor(table, "table", ndim_at_least=2, axes="(token, dim)")
        if self.table.ndim != 2:
            raise ArgumentValueError("table", "shape (token, dim)", f"shape {tuple(self.table.shape)}")

    @classmethod
    @typed_arguments
    def sinusoidal(cls, tokens: int, dim: int, base: float = 10000.0) -> AbsolutePositions:
        """Return ``p_ij = sin(i · base^(−j/dim))`` for even j and ``cos(i · base^(−(j−1)/dim))`` for odd j.

        i = 1 … tokens, and the feature index j counts from 0. Source: the formula above `positional` (5).
        """
        check_fits(_BYTES * as_count(tokens, "tokens") * as_count(dim, "dim"), "tokens")
        as_positive(base, "base")
        position = torch.arange(1, tokens + 1, dtype=torch.float64).unsqueeze(-1)
        feature = torch.arange(dim, dtype=torch.float64)
        angle = position * base ** (-(feature - feature % 2) / dim)
        return cls(torch.where(feature % 2 == 0, angle.sin(), angle.cos()))

    def __repr__(self) -> str:
        return f"AbsolutePositions({tuple(self.table.shape)})"

    def check(self, qk: Schedule, ov: Schedule) -> None:
        """See `Positions`."""
        if self.table.shape[-1] != qk.shape[-1]:
            wanted = f"table of shape (token, {qk.shape[-1]}) to fit qk"
            raise ArgumentValueError("positions", wanted, f"shape {tuple(self.table.shape)}")

    def linear_part(self) -> None:
        """See `Positions`."""

    def read(self, x: Tensor) -> Tensor:
        """Return ``x + p``.

        Raises:
            ArgumentValueError: More tokens than the table has rows.
        """
        if self.table.shape[0] < x.shape[-2]:
            wanted = f"at least {x.shape[-2]} rows, one for each token of x, shape {tuple(x.shape)}"
            raise ArgumentValueError("table", wanted, f"shape {tuple(self.table.shape)}")
        return x + self.table[: x.shape[-2]].to(x)

    def to(self, *, dtype: torch.dtype, device: torch.device) -> AbsolutePositions:
        """See `Positions`."""
        return AbsolutePositions(self.table.to(dtype=dtype, device=device))


class RotaryPositions(Positions):
    """An extra term ``x_l^T Q̄ R_{i−l} K̄^T x_i`` in the logits of receiver l and sender i.

    R_m turns the neighbouring coordinate pairs (2c, 2c + 1) by the angles m · base^(−2c/rank). Since
    ``R_{i−l} = R_l^T R_i``, the vectors Q̄^T x_l and K̄^T x_i are turned by their own positions and nothing of size
    token² × dim² exists. Source: `positional` (6)–(8), without its 1/√D_k.

    Args:
        query: Q̄, (dim, rank) or (head, dim, rank), constant or a schedule; rank even.
        key: K̄ of the same shape.
        base: Of the geometric sequence of frequencies.
        scale: Multiplies ALL logits, those of qk too; 1/√D_k for the paper's (7).
        frequencies: Radians per position of each pair, (rank/2,), in place of those of `base`.

    Raises:
        ArgumentValueError: Shapes that differ, an odd rank, a base that is not positive.

    >>> positions = RotaryPositions(torch.eye(2), torch.eye(2), base=1.0)
    >>> positions.query.shape
    (1, 2, 2)
    """

    closed_form = True

    @typed_arguments
    def __init__(
        self,
        query: ScheduleLike,
        key: ScheduleLike,
        base: float = 10000.0,
        scale: float = 1.0,
        *,
        frequencies: ArrayLike | None = None,
    ) -> None:
        self.query: Schedule = as_schedule(query, "query")
        self.key: Schedule = as_schedule(key, "key")
        if shape_is_known(self.query) and shape_is_known(self.key):
            _check_pair(self.query, self.key)
        if not base > 0:
            raise ArgumentValueError("base", "a positive number", base)
        self.base, self.scale = float(base), as_finite(scale, "scale")
        self._given = None if frequencies is None else as_tensor(frequencies, "frequencies")
        if shape_is_known(self.query) or shape_is_known(self.key):
            _ = self.frequencies

    @property
    def dim(self) -> int:
        """Features of a token."""
        return self._known.shape[-2]

    @property
    def rank(self) -> int:
        """Coordinates that are turned."""
        return self._known.shape[-1]

    @property
    def _known(self) -> Schedule:
        return self.key if shape_is_known(self.key) and not shape_is_known(self.query) else self.query

    @cached_property
    def frequencies(self) -> Tensor:
        """Radians per position of each pair, (rank/2,), float64."""
        pair = torch.arange(0, self.rank, 2, dtype=torch.float64)
        given = self.base ** (-pair / self.rank) if self._given is None else self._given
        if given.shape != pair.shape:
            wanted = f"one number for each of {len(pair)} pairs"
            raise ArgumentValueError("frequencies", wanted, f"shape {tuple(given.shape)}")
        return given.to(torch.float64)

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """See `Positions`."""
        return (self.query, self.key)

    def check(self, qk: Schedule, ov: Schedule) -> None:
        """See `Positions`."""
        heads, dim, _ = qk.shape[-3:]
        if self.dim != dim or self.query.shape[-3] not in (1, heads):
            wanted = f"query of shape ({heads}, {dim}, rank) to fit qk"
            raise ArgumentValueError("positions", wanted, f"shape {tuple(self.query.shape)}")
        leading = {schedule.shape[:-3] for schedule in (*self.schedules, qk, ov)} - {()}
        if len(leading) > 1:
            wanted = "the same system axes in qk, ov and positions, or none"
            raise ArgumentValueError("positions", wanted, f"axes {' and '.join(map(str, sorted(leading)))}")

    def extended(self, query: Tensor, key: Tensor, x: Tensor, t: Time) -> tuple[Tensor, Tensor]:
        """See `Positions`."""
        turned_query, turned_key = self.turned(x, t)
        return _side_by_side(query, turned_query) * self.scale, _side_by_side(key, turned_key)

    def turned(self, x: Tensor, t: Time) -> tuple[Tensor, Tensor]:
        """Return queries and keys (*system, head, token, rank), each turned by its own position."""
        tokens = x.unsqueeze(-3)
        query = per_head(tokens, self.query.at(t).dense())
        key = per_head(tokens, self.key.at(t).dense())
        place = torch.arange(x.shape[-2], dtype=torch.float64)
        angles = (place.unsqueeze(-1) * self.frequencies).to(x.device)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        return _turn(query, cosine, sine), _turn(key, cosine, sine)

    def with_schedules(self, query: ScheduleLike, key: ScheduleLike) -> RotaryPositions:
        """Return the same base and scale over other matrices."""
        return RotaryPositions(query, key, self.base, self.scale, frequencies=self._given)

    def each(self, change: Callable[[Schedule], Schedule]) -> RotaryPositions:
        """See `Positions`."""
        return self.with_schedules(change(self.query), change(self.key))

    def restricted(self, basis: Tensor) -> RotaryPositions | None:
        """See `Positions`."""
        if not (self.query.constant and self.key.constant):
            return None
        return self.each(lambda schedule: Constant(basis.mT.unsqueeze(-3) @ schedule.matrix_at(0.0)))

    def __repr__(self) -> str:
        size = tuple(self._known.shape) if shape_is_known(self._known) else "shape not known yet"
        return f"RotaryPositions({size}, base {self.base:g}, scale {self.scale:g})"

    def to(self, *, dtype: torch.dtype, device: torch.device) -> RotaryPositions:
        """See `Positions`."""
        return self.each(lambda schedule: schedule.to(dtype=dtype, device=device))


def _check_pair(query: Schedule, key: Schedule) -> None:
    if query.shape != key.shape:
        raise ArgumentValueError("key", f"the shape of query, {tuple(query.shape)}", f"shape {tuple(key.shape)}")
    if query.shape[-1] % 2:
        advice = "rotary positions turn pairs of coordinates"
        raise ArgumentValueError("query", "an even number of columns", f"{query.shape[-1]}", advice)


def _side_by_side(first: Tensor, second: Tensor) -> Tensor:
    if first.shape[:-1] == second.shape[:-1]:
        return torch.cat([first, second], dim=-1)
    leading = np.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    return torch.cat([first.expand(*leading, -1), second.expand(*leading, -1)], dim=-1)


def _turn(vectors: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    even, odd = vectors[..., 0::2], vectors[..., 1::2]
    return torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], dim=-1).flatten(-2)
