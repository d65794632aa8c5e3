"""Attention as a map of token states: who attends to whom, and what is carried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention._positions import Positions
from tokendynamics.attention.circuit_at_time import CircuitAtTime, Multiple
from tokendynamics.attention.mixing import SHORT, Mask, attention_weights, average, logits, long_average
from tokendynamics.attention.schedules import Schedule, Time
from tokendynamics.attention.schedules.conversion import (
    ScheduleLike,
    as_schedule,
    beginning,
    is_sampled,
    shape_is_known,
    with_jumps,
)
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_finite, as_states, like, without_labels
from tokendynamics.numerics.signatures import typed_arguments

Weights = Literal["softmax", "linear", "exponential", "hardmax"]
Normalization = Literal["plain", "paper"]


class Attention:
    """Heads of attention: logits ``s_ij = x_i^T qk x_j``, weights from them, output ``Σ_h Σ_j w^h_ij ov_h x_j``.

    i receives and j sends; ov acts on column vectors. Matrices may be shared by all systems or, with leading
    system axes, differ between them.

    Args:
        qk: (dim, dim), (head, dim, dim) or (*system, head, dim, dim), a `FactoredMatrix`, `Sinusoidal`, `Periodic`,
            or a function of time; or a list with one of these for each head.
        ov: Likewise, for the same heads.
        causal: Whether token i sees only tokens j ≤ i.
        mask: Instead, whom each token sees: a boolean matrix (token, token), receivers first. Every token must see at
            least one; states then have that number of tokens.
        weights: ``"softmax"`` over the senders; ``"linear"``: the logits themselves (`logical` (2.2));
            ``"exponential"``: e^{s_ij − offset} over the number of senders that i sees, a softmax without its
            denominator (`perspective`, where it is called USA); or ``"hardmax"``: equal shares of 1 for the senders
            with the largest logit, the limit of a softmax at β → ∞ (`leaders`). Logits that differ by less than their
            rounding are equal.
        normalization: ``"plain"``, or ``"paper"``: the weights times 1/√dim (`asymptotic` (4)–(21)), a change of
            time. None leaves the choice to the flow: "paper" on the sphere and ellipsoid, "plain" in free space.
        positions: None, `AbsolutePositions`, `RotaryPositions`, or a scheme of your own: see `Positions`.
        offset: Taken off the logits of exponential weights, so that they do not overflow: with the largest logit no
            weight is above 1. It makes time run e^{offset} times as slowly and changes nothing else.

    Raises:
        ArgumentTypeError: Integer or complex arrays, or something that is no matrix.
        ArgumentValueError: Shapes that do not fit (both are printed), NaN or infinity, an unknown option.

    >>> attention = Attention([[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], causal=True)
    >>> attention.pattern([[1.0, 0.0], [0.0, 1.0]])
    [[[1.0, 0.0], [0.5, 0.5]]]
    """

    @typed_arguments
    def __init__(
        self,
        qk: ScheduleLike,
        ov: ScheduleLike,
        *,
        causal: bool = False,
        mask: ArrayLike | None = None,
        weights: Weights = "softmax",
        normalization: Normalization | None = None,
        positions: Positions | None = None,
        offset: float = 0.0,
    ) -> None:
        if weights not in get_args(Weights):
            wanted = "'softmax', 'linear', 'exponential' or 'hardmax'"
            raise ArgumentValueError("weights", wanted, repr(weights))
        if as_finite(offset, "offset") and weights != "exponential":
            wanted = "0, as only exponential weights have one"
            raise ArgumentValueError("offset", wanted, f"{offset} with {weights} weights")
        if normalization not in (None, "plain", "paper"):
            raise ArgumentValueError("normalization", "'plain', 'paper' or None", repr(normalization))
        self.qk: Schedule = as_schedule(qk, "qk")
        self.ov: Schedule = as_schedule(ov, "ov")
        self.causal = bool(causal)
        self.mask = None if mask is None else _as_mask(mask, self.causal)
        self.weights: Weights = weights
        self.normalization: Normalization | None = normalization
        self.positions = positions
        self.offset = float(offset)
        if self.shape_is_known:
            for name, schedule in (("qk", self.qk), ("ov", self.ov)):
                if schedule.shape[-1] != schedule.shape[-2] or schedule.shape[-1] == 0:
                    raise ArgumentValueError(name, "square matrices (…, dim, dim)", f"shape {tuple(schedule.shape)}")
            if self.qk.shape[-3:] != self.ov.shape[-3:]:
                fitting = f"the heads and dim of qk, shape {tuple(self.qk.shape)}"
                raise ArgumentValueError("ov", fitting, f"shape {tuple(self.ov.shape)}")
            if self.qk.shape[:-3] and self.ov.shape[:-3] and self.qk.shape[:-3] != self.ov.shape[:-3]:
                fitting = f"the system axes of qk, shape {tuple(self.qk.shape)}, or none"
                raise ArgumentValueError("ov", fitting, f"shape {tuple(self.ov.shape)}")
            if positions is not None:
                positions.check(self.qk, self.ov)

    @property
    def visible(self) -> Mask:
        """Whom receivers see, as `mixing` takes it."""
        return self.causal if self.mask is None else self.mask

    @property
    def dim(self) -> int:
        """Features of a token."""
        return self._known.shape[-1]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self._known.shape[-3]

    @property
    def size(self) -> str:
        """Heads and dim in words, without asking a function of time."""
        if not shape_is_known(self._known):
            return "shape not known yet"
        return f"{self.heads} head{'s' * (self.heads > 1)}, dim {self.dim}"

    @property
    def system_shape(self) -> tuple[int, ...]:
        """Leading axes of the matrices: () where all systems share them."""
        # A function of time is one for all systems.
        known = (schedule.shape[:-3] for schedule in self.schedules if shape_is_known(schedule))
        return max(known, key=len, default=())

    @property
    def shape_is_known(self) -> bool:
        """Whether no function of time has to be asked first; shapes are checked against each other then."""
        return all(map(shape_is_known, self.schedules))

    @property
    def _known(self) -> Schedule:
        return self.ov if shape_is_known(self.ov) and not shape_is_known(self.qk) else self.qk

    def beginning(self, t: float) -> Attention:
        """Return the same with the shapes of functions of time known from time t.

        Raises:
            ArgumentValueError: Shapes that do not fit (both are printed), or numbers that are not finite.
        """
        return self if self.shape_is_known else self._with_schedules(lambda schedule: beginning(schedule, t))

    @property
    def is_sampled(self) -> bool:
        """Whether some matrices are known only where they are asked: functions and schedules of the caller's own."""
        return any(map(is_sampled, self.schedules))

    def with_jumps(self, jumps: Sequence[float]) -> Attention:
        """Return the same with jumps declared in all its functions of time."""
        return self._with_schedules(lambda schedule: with_jumps(schedule, jumps))

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """All matrices over time: qk, ov, and those of positions."""
        return (self.qk, self.ov, *(self.positions.schedules if self.positions else ()))

    @property
    def constant(self) -> bool:
        """Whether nothing depends on time."""
        return all(schedule.constant for schedule in self.schedules)

    @typed_arguments
    def logits(self, x: ArrayLike, t: float = 0.0) -> Any:
        """Return ``s_ij = x_i^T qk x_j`` for all pairs, positions included and before any mask.

        Args:
            x: States (…, token, dim).
            t: Time of the schedules.

        Returns:
            Shape (…, head, token, token), receivers first, dimensionless.

        Raises:
            ArgumentValueError: A dim that differs from that of qk.
        """
        states, place = self._placed(x, as_finite(t, "t"))
        query, key = place.queries_and_keys(states, t)
        return like(logits(query, key), x)

    @typed_arguments
    def pattern(self, x: ArrayLike, t: float = 0.0) -> Any:
        """Return the attention pattern: the weights of every receiver over the senders, as `weights` says.

        Args:
            x: States (…, token, dim).
            t: Time of the schedules.

        Returns:
            Shape (…, head, token, token); without the 1/√dim of ``normalization="paper"``.
        """
        states, place = self._placed(x, as_finite(t, "t"))
        query, key = place.queries_and_keys(states, t)
        return like(self.weigh(query, key), x)

    def mix(self, x: Tensor, t: Time, *, identity_values: bool = False, relative: bool = False) -> Tensor:
        """Return ``Σ_h Σ_j w^h_ij ov_h x_j`` of checked states; with `identity_values` as if every ov were I.

        With `relative` it is ``Σ_h ov_h (Σ_j w^h_ij x_j − x_i)``.

        Memory is linear in the number of tokens, save for linear weights with a mask, and the mask itself.
        """
        query, key = self.queries_and_keys(x, t)
        placed = self.with_positions(x)
        ov = Multiple(torch.ones(self.heads).to(x), self.dim) if identity_values else self.ov.at(t)
        if x.shape[-2] > SHORT:
            values = ov.values(placed)
            mixed = long_average(query, key, values, self.visible, self.weights, self.offset)
            return ov.output(mixed - values if relative else mixed).sum(dim=-3)
        weights = self.weigh(query, key)
        if relative:
            weights = weights - torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
        if isinstance(ov, Multiple):
            return (weights * ov.multiple[..., None, None]).sum(dim=-3) @ placed
        return ov.output(average(weights, ov.values(placed))).sum(dim=-3)

    def weigh(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the weights of the logits ``q_i · k_j``, (*system, head, token, token)."""
        return attention_weights(query, key, self.visible, self.weights, self.offset)

    def queries_and_keys(self, x: Tensor, t: Time) -> tuple[Tensor, Tensor]:
        """Return rows whose inner products are the logits, (*system, head, token, rank); keys may have one head."""
        placed = self.with_positions(x)
        qk: CircuitAtTime = self.qk.at(t)
        query, key = qk.queries(placed), qk.keys(placed)
        return (query, key) if self.positions is None else self.positions.extended(query, key, placed, t)

    def with_positions(self, x: Tensor) -> Tensor:
        """Return what attention reads: x, or x + p with absolute positions."""
        return x if self.positions is None else self.positions.read(x)

    def fitting(self, x: ArrayLike, argument: str = "x") -> Tensor:
        """Return `x` as states whose dim and system axes fit, or refuse it and print both shapes."""
        states = as_states(x, argument)
        if states.shape[-1] != self.dim:
            wanted = f"shape (…, token, {self.dim}) to fit qk, (…, head, dim, dim) = {tuple(self.qk.shape)}"
            raise ArgumentValueError(argument, wanted, f"shape {tuple(states.shape)}")
        if self.system_shape and self.system_shape != states.shape[:-2]:
            wanted = f"leading axes {self.system_shape}, those of the matrices"
            raise ArgumentValueError(argument, wanted, f"shape {tuple(states.shape)}")
        if self.mask is not None and states.shape[-2] != len(self.mask):
            wanted = f"{len(self.mask)} tokens, those of the mask"
            raise ArgumentValueError(argument, wanted, f"shape {tuple(states.shape)}")
        self.with_positions(states)
        return states

    def with_schedules(self, qk: ScheduleLike, ov: ScheduleLike, positions: Positions | None) -> Attention:
        """Return the same options over other matrices."""
        return Attention(
            qk,
            ov,
            causal=self.causal,
            mask=self.mask,
            weights=self.weights,
            normalization=self.normalization,
            positions=positions,
            offset=self.offset,
        )

    def within(self, start: float, end: float) -> Attention:
        """Return the attention on an interval without breaks; see `Schedule.within`."""
        if self.constant:
            return self
        return self._with_schedules(lambda schedule: schedule.within(start, end))

    def breaks(self, start: float, end: float) -> list[float]:
        """Return the times strictly between start and end where a matrix jumps, in order."""
        return sorted({time for schedule in self.schedules for time in schedule.breaks(start, end)})

    def flattened(self) -> Attention:
        """Return the attention with its system axes, if it has several, made one."""
        return self._with_schedules(lambda schedule: schedule.flattened()) if len(self.system_shape) > 1 else self

    def joints(self, start: float, end: float) -> list[float]:
        """Return the jumps and kinks strictly between start and end, onto which explicit methods step, in order."""
        corners = {time for schedule in self.schedules for time in schedule.corners(start, end)}
        return sorted(corners.union(self.breaks(start, end)))

    def select(self, systems: Tensor) -> Attention:
        """Return the attention of some systems, by index along the first axis."""
        return self._with_schedules(lambda schedule: schedule.select(systems)) if self.system_shape else self

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Attention:
        """Return the same in another precision or place."""
        # Shapes and options stay as they are: nothing has to be checked anew.
        other = copy(self)
        other.positions = self.positions and self.positions.to(dtype=dtype, device=device)
        other.qk, other.ov = (schedule.to(dtype=dtype, device=device) for schedule in (self.qk, self.ov))
        return other

    def __repr__(self) -> str:
        positions = "" if self.positions is None else f", {type(self.positions).__name__}"
        mask = self.mask_in_words
        kinds = f"qk {type(self.qk).__name__}, ov {type(self.ov).__name__}"
        return f"Attention({self.size}, {kinds}, {mask}, {self.weights}{positions})"

    @property
    def mask_in_words(self) -> str:
        """Which mask: "full mask", "causal" or "a mask of 5 tokens"."""
        if self.mask is not None:
            return f"a mask of {len(self.mask)} tokens"
        return "causal" if self.causal else "full mask"

    def _placed(self, x: ArrayLike, t: float) -> tuple[Tensor, Attention]:
        """Return checked states, and the attention with its shapes known, in their precision and place."""
        attention = self.beginning(t)
        states = attention.fitting(x)
        return states, attention.to(dtype=states.dtype, device=states.device)

    def _with_schedules(self, change: Callable[[Schedule], Schedule]) -> Attention:
        positions = self.positions and self.positions.each(change)
        return self.with_schedules(change(self.qk), change(self.ov), positions)


def _as_mask(mask: ArrayLike, causal: bool) -> Tensor:
    """Read a boolean matrix in which every row has an entry that is True."""
    if causal:
        raise ArgumentValueError("mask", "None beside causal=True", "a mask", "leave causal out")
    read = mask.detach().cpu() if isinstance(mask, Tensor) else torch.from_numpy(np.array(without_labels(mask)))
    if read.dtype != torch.bool:
        raise ArgumentTypeError("mask", "True and False", f"dtype {read.dtype}")
    if read.ndim != 2 or read.shape[0] != read.shape[1] or len(read) == 0:
        raise ArgumentValueError("mask", "shape (token, token)", f"shape {tuple(read.shape)}")
    blind = ~read.any(dim=-1)
    if bool(blind.any()):
        came = f"none for token {int(blind.nonzero()[0])}"
        raise ArgumentValueError("mask", "a sender that each token sees", came, "let it see itself")
    return read.clone()
