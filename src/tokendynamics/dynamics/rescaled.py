"""The rescaled frame: tokens of a free flow as ``z = exp(−t V) x``, where V is what ov does to tokens that agree.

With ``V = ω Σ_h ov_h`` constant and every ov_h commuting with it, the change of variables is exact:

    dz_i/dt = ω Σ_h ov_h Σ_j w^h_ij (z_j − z_i),   w_i = softmax_j(z_i^T exp(t V)^T qk exp(t V) z_j).

Tokens that grow like exp(t V) stay bounded, and what is left is who attends to whom. The matrices of the logits grow
without end: they are kept as exponentials of logarithms, and from `_LARGEST` on their size no longer grows, only their
shape changes. Every difference of logits that floats resolve is then so large that the softmax is a hardmax, as it is
in truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from tokendynamics.attention.circuit_at_time import CircuitAtTime, Dense, Scaled, per_head
from tokendynamics.attention.schedules import Schedule, Time
from tokendynamics.attention.schedules.conversion import is_sampled
from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics._flow import Flow
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.spaces import Free

Frame = Literal["tokens", "rescaled"]

_LARGEST = 300.0
"""Largest logarithm of an entry of the matrices of the logits, in float64: products with tokens stay finite."""
_LARGEST_SINGLE = 40.0
_COMMUTING = 1e-12
"""Largest entry of ov_h V − V ov_h, relative to the sizes of both, that counts as rounding."""
_DAMPED = 2.0
"""Step times rate at which Dormand–Prince and Bogacki–Shampine methods shrink what decays to a third or less."""
_WELL_CONDITIONED = 1e6
"""Eigenvectors with a larger condition number lose more digits than the exponential of the matrix itself."""


def check_rescaled(flow: Flow) -> None:
    """Refuse a flow whose rescaled tokens have no equation of their own.

    Args:
        flow: With known shapes.

    Raises:
        ArgumentValueError: Another space than free space, weights that do not add up to 1, positions, frozen tokens, an
            ov that depends on time or is to be differentiated by, or heads that do not commute with their sum.
    """
    attention, wanted, advice = flow.attention, "", "take frame='tokens'"
    if not isinstance(flow.space, Free):
        wanted, came = "'tokens' outside free space", f"{flow.space.name}, where tokens do not grow"
    elif attention.weights not in ("softmax", "hardmax"):
        wanted = "'tokens' without softmax or hardmax weights"
        came = f"{attention.weights} weights, which do not add up to 1"
    elif attention.positions is not None:
        wanted, came = "'tokens' with positions", f"{type(attention.positions).__name__}, which do not grow with tokens"
    elif flow.frozen:
        wanted, came = "'tokens' with frozen tokens", f"{len(flow.frozen)} of them, which move once they are rescaled"
    elif not attention.ov.constant:
        wanted, came = "'tokens' where ov depends on time", f"ov {type(attention.ov).__name__}"
    elif attention.ov.matrix_at(0.0).requires_grad:
        wanted, came = "'tokens' where gradients by ov are wanted", "an ov that requires them"
        advice = "detach ov, or take frame='tokens'"
    else:
        _check_heads(attention.ov.matrix_at(0.0))
        return
    raise ArgumentValueError("frame", wanted, f"'rescaled' with {came}", advice)


def _check_heads(ov: Tensor) -> None:
    """Refuse heads (*system, head, dim, dim) that do not commute with their sum."""
    ov = ov.detach().double()
    total = ov.sum(dim=-3, keepdim=True)
    size = torch.linalg.matrix_norm(ov, 2) * torch.linalg.matrix_norm(total, 2)
    defect = (ov @ total - total @ ov).abs().amax(dim=(-2, -1)) / size.clamp_min(torch.finfo(torch.float64).tiny)
    worst = float(defect.max())
    if worst > _COMMUTING:
        wanted = "'tokens' for heads whose ov do not commute with their sum"
        came = f"'rescaled' with {ov.shape[-3]} heads, of which one fails to by {worst:.3g} of its size"
        raise ArgumentValueError("frame", wanted, came, "take one head, or multiples of the identity")


def grows_evenly(flow: Flow) -> bool:
    """Tell whether every ov is a positive multiple of the identity, and qk constant.

    Then rescaled logits keep their proportions and only become sharper: tokens at rest stay there.
    """
    multiple = getattr(flow.attention.ov, "multiple", None)
    return flow.attention.constant and multiple is not None and bool((multiple > 0).all())


def rescaled(field: Field) -> Field:
    """Return the field of z for a field of x that passes `check_rescaled`, its systems along one axis at most."""
    attention = field.attention
    dtype = attention.ov.matrix_at(0.0).dtype
    largest = _LARGEST if dtype == torch.float64 else _LARGEST_SINGLE
    multiples = field.multiples
    if multiples is not None:
        qk: Schedule = Growing(attention.qk, field.factor * multiples.sum(dim=-1), largest)
    else:
        total = field.factor * attention.ov.matrix_at(0.0).sum(dim=-3)
        qk = Conjugated.of(attention.qk, total, largest)
    return replace(field, attention=attention.with_schedules(qk, attention.ov, None), relative=True)


def longest_step(field: Field, given: float | None) -> float | None:
    """Return a step of explicit methods, no longer than `given`, that damps rescaled tokens: ``2 / max |λ(V)|``.

    Up to 3.3 their steps are stable, but hardly damp: tokens at rest would go on swinging by what errors are allowed.
    """
    growth = field.factor * field.attention.ov.matrix_at(0.0).detach().double().sum(dim=-3)
    fastest = float(torch.linalg.eigvals(growth).abs().max())
    if fastest == 0:
        return given
    return _DAMPED / fastest if given is None else min(given, _DAMPED / fastest)


def resolved(field: Field, x: Tensor) -> Field:
    """Return a rescaled field with logits no sharper than floats resolve at states x, for its derivative.

    Where rounding alone moves a logit by more than 1, derivatives of the weights are those of rounding errors.
    """
    qk = field.attention.qk
    if not isinstance(qk, Growing | Conjugated):
        return field
    size = float(x.detach().square().sum(dim=-1).amax()) * qk.unit
    most = -math.log(torch.finfo(x.dtype).eps) - math.log(size + torch.finfo(x.dtype).tiny)
    sharp = replace(qk, largest=min(qk.largest, most))
    return replace(field, attention=field.attention.with_schedules(sharp, field.attention.ov, None))


class _OverTime:
    """What schedules that follow qk share, beside the growth: they are known as a formula where qk is."""

    qk: Schedule
    constant = False
    bounded: bool | None = None
    uniformly_continuous: bool | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether qk is known only where it is asked."""
        return is_sampled(self.qk)

    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        return self.at(t).dense()

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        raise NotImplementedError

    def breaks(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return self.qk.breaks(start, end)

    def corners(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return self.qk.corners(start, end)


@dataclass(frozen=True)
class Growing(_OverTime):
    """``e^{2λt} qk``, for ov that are multiples of the identity.

    Attributes:
        qk: The circuits of the logits of x.
        rate: λ, (*system) or ().
        largest: The exponent from which on the size no longer grows.
    """

    qk: Schedule
    rate: Tensor
    largest: float

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        return (*self.rate.shape, *self.qk.shape[-3:]) if self.rate.ndim else tuple(self.qk.shape)

    @cached_property
    def unit(self) -> float:
        """The largest entry of what is multiplied by e^`largest` at most."""
        return float(self.qk.matrix_at(0.0).detach().abs().amax())

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        return Scaled(self.qk.at(t), (2 * self.rate * t).clamp_max(self.largest).exp())

    def within(self, start: float, end: float) -> Growing:
        """See `Schedule`."""
        return replace(self, qk=self.qk.within(start, end))

    def flattened(self) -> Growing:
        """See `Schedule`."""
        return replace(self, qk=self.qk.flattened(), rate=self.rate.flatten() if self.rate.ndim else self.rate)

    def select(self, systems: Tensor) -> Growing:
        """See `Schedule`."""
        return replace(self, qk=self.qk.select(systems), rate=self.rate[systems] if self.rate.ndim else self.rate)

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Growing:
        """See `Schedule`."""
        return replace(self, qk=self.qk.to(dtype=dtype, device=device), rate=self.rate.to(dtype=dtype, device=device))


@dataclass(frozen=True)
class _Modes:
    """V in a basis of its own: ``V = R B R^{-1}`` with B of numbers a and of blocks [[a, b], [−b, a]].

    Attributes:
        right: R, (*system, dim, dim).
        inverse: R^{-1}.
        rates: a of every coordinate, (*system, dim), float64.
        turns: b, with the sign that the other coordinate of the block enters with; 0 outside blocks.
        other: Index of the other coordinate of the block, (*system, dim).
    """

    right: Tensor
    inverse: Tensor
    rates: Tensor
    turns: Tensor
    other: Tensor

    @classmethod
    def of(cls, growth: Tensor) -> _Modes | None:
        """Return the modes of V, float64; None where its eigenvectors are nearly dependent."""
        if torch.equal(growth, growth.mT):
            values, right = torch.linalg.eigh(growth)
            rates, turns = values, torch.zeros_like(values)
        else:
            values, vectors = torch.linalg.eig(growth)
            rates, turns = values.real.contiguous(), values.imag.contiguous()
            # Of a pair the first has the positive imaginary part: real and imaginary part of its vector are the basis.
            right = torch.where((turns < 0).unsqueeze(-2), -vectors.imag, vectors.real).contiguous()
        singular = torch.linalg.svdvals(right)
        if bool((singular[..., 0] > _WELL_CONDITIONED * singular[..., -1]).any()):
            return None
        other = torch.arange(growth.shape[-1]) + turns.sign().long()
        return cls(right, torch.linalg.inv(right), rates, turns, other)

    def mapped(self, change: Callable[[Tensor, int], Tensor]) -> _Modes:
        """Return the same with every part changed, a function of it and of the axes of one system."""
        rows = (change(part, 1) for part in (self.rates, self.turns, self.other))
        return _Modes(change(self.right, 2), change(self.inverse, 2), *rows)

    def turned(self, coordinates: Tensor, angles: Tensor) -> Tensor:
        """Turn coordinates (*system, …, dim) within their blocks by angles (*system, 1…, dim)."""
        if not bool(self.turns.any()):
            return coordinates
        if self.other.ndim == 1:
            beside = coordinates[..., self.other]
        else:
            axes = coordinates.ndim - self.other.ndim
            index = self.other.reshape(*self.other.shape[:-1], *[1] * axes, -1)
            beside = coordinates.gather(-1, index.expand(coordinates.shape))
        return torch.addcmul(angles.cos() * coordinates, angles.sin(), beside)


class _GrownCircuit:
    """The matrices ``exp(tV)^T qk exp(tV)`` of one moment, divided by e^shift, through the modes of V.

    Args:
        modes: Of V.
        entries: ``R^T qk R``, (*system, head, dim, dim).
        logs: Logarithms of their sizes, float64.
        times: () or (system,).
        largest: The logarithm of an entry from which on the size no longer grows.
    """

    def __init__(self, modes: _Modes, entries: Tensor, logs: Tensor, times: Tensor, largest: float) -> None:
        self.modes, self.entries = modes, entries
        self.exponents = modes.rates * times.unsqueeze(-1)
        self.angles = (modes.turns * times.unsqueeze(-1)).to(entries)
        self.shift = torch.zeros((), dtype=torch.float64, device=entries.device)
        if float(2 * self.exponents.amax() + logs.amax()) > largest:
            size = (logs + self._pairs).amax(dim=(-3, -2, -1))
            self.shift = (size - largest).clamp_min(0.0).unsqueeze(-1)
        self.most = 2 * largest
        self._last: tuple[Tensor, Tensor] | None = None

    def queries(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return per_head(self._grown(x), self.entries)

    def keys(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return self._grown(x)

    def values(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return Dense(self.dense()).values(x)

    def output(self, mixed: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return Dense(self.dense()).output(mixed)

    def dense(self) -> Tensor:
        """See `CircuitAtTime`."""
        # Rows are turned the other way: r D is D^T r.
        angles = -self.angles[..., None, None, :]
        turned = self.modes.turned(self.modes.turned(self.entries, angles).mT, angles).mT
        exponents = self._pairs - self.shift[..., None, None]
        grown = turned * torch.exp(exponents.clamp_max(self.most)).to(turned)
        inverse = self.modes.inverse.unsqueeze(-3)
        return inverse.mT @ (grown @ inverse)

    @property
    def _pairs(self) -> Tensor:
        """a_i + a_j times t, (*system, 1, dim, dim)."""
        return (self.exponents.unsqueeze(-1) + self.exponents.unsqueeze(-2)).unsqueeze(-3)

    def _grown(self, x: Tensor) -> Tensor:
        """Return ``e^{−shift/2} R^{-1} exp(tV) x``, (*system, 1, token, dim), once for queries and keys."""
        if self._last is None or self._last[0] is not x:
            turned = self.modes.turned(x @ self.modes.inverse.mT, self.angles.unsqueeze(-2))
            exponents = (self.exponents - self.shift / 2).clamp_max(self.most)
            self._last = x, (turned * exponents.exp().to(turned).unsqueeze(-2)).unsqueeze(-3)
        return self._last[1]


@dataclass(frozen=True)
class Conjugated(_OverTime):
    """``exp(tV)^T qk exp(tV)``, for any V.

    The entries of qk in a basis of modes of V are multiplied by ``e^{(a_i + a_j) t}``, with sums of logarithms to say
    which of them counts: what one direction of growth outweighs by more than any float is still there where the other
    is absent from qk. Where the eigenvectors of V are nearly dependent the exponential of ``t V − shift`` serves.

    Attributes:
        qk: The circuits of the logits of x.
        growth: V, (*system, dim, dim) or (dim, dim).
        modes: Those of V; None where its eigenvectors are nearly dependent.
        rates: Real parts of its eigenvalues, (*system, dim), float64.
        largest: The logarithm of an entry from which on the size no longer grows.
    """

    qk: Schedule
    growth: Tensor
    modes: _Modes | None
    rates: Tensor
    largest: float

    unit = 1.0

    @classmethod
    def of(cls, qk: Schedule, growth: Tensor, largest: float) -> Conjugated:
        """Return the schedule of a constant V."""
        exact = growth.detach().double().cpu()
        whole = cls(qk, growth, _Modes.of(exact), torch.linalg.eigvals(exact).real, largest)
        return whole.to(dtype=growth.dtype, device=growth.device)

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        return (*self.growth.shape[:-2], *self.qk.shape[-3:]) if self.growth.ndim > 2 else tuple(self.qk.shape)

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        times = t if isinstance(t, Tensor) else torch.tensor(t, dtype=torch.float64, device=self.growth.device)
        if self.modes is None:
            return Dense(self._through_exponential(self.qk.at(t).dense(), times.double()))
        entries = self._entries if self.qk.constant else self._entries_of(self.qk.at(t).dense(), self.modes)
        return _GrownCircuit(self.modes, *entries, times, self.largest)

    @cached_property
    def _entries(self) -> tuple[Tensor, Tensor]:
        if self.modes is None:
            raise AssertionError
        return self._entries_of(self.qk.matrix_at(0.0), self.modes)

    def _entries_of(self, qk: Tensor, modes: _Modes) -> tuple[Tensor, Tensor]:
        """Return ``R^T qk R``, (*system, head, dim, dim), and logarithms of its sizes."""
        right = modes.right.unsqueeze(-3)
        entries = right.mT @ (qk @ right)
        # Below its rounding an entry counts as 0: it would outgrow all others.
        noise = 8 * torch.finfo(qk.dtype).eps * (right.abs().mT @ (qk.abs() @ right.abs()))
        entries = torch.where(entries.abs() > noise, entries, 0.0)
        return entries, entries.abs().double().log()

    def _through_exponential(self, qk: Tensor, times: Tensor) -> Tensor:
        shift, dim = (self.rates * times.unsqueeze(-1)).amax(dim=-1), self.growth.shape[-1]
        exponents = self.growth.double() * times[..., None, None]
        power = torch.matrix_exp(exponents - shift[..., None, None] * torch.eye(dim).to(exponents)).unsqueeze(-3)
        whole = power.mT @ qk.double() @ power
        logs = whole.abs().log() + 2 * shift[..., None, None, None]
        excess = (logs.amax(dim=(-3, -2, -1), keepdim=True) - self.largest).clamp_min(0.0)
        return (whole.sign() * torch.exp((logs - excess).nan_to_num(nan=-torch.inf, neginf=-torch.inf))).to(qk)

    def within(self, start: float, end: float) -> Conjugated:
        """See `Schedule`."""
        return replace(self, qk=self.qk.within(start, end))

    def flattened(self) -> Conjugated:
        """See `Schedule`."""
        return self._with_parts(
            self.qk.flattened(), lambda part, axes: part.flatten(0, -axes - 1) if part.ndim > axes + 1 else part
        )

    def select(self, systems: Tensor) -> Conjugated:
        """See `Schedule`."""
        return self._with_parts(self.qk.select(systems), lambda part, axes: part[systems] if part.ndim > axes else part)

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Conjugated:
        """See `Schedule`."""

        def converted(part: Tensor, axes: int) -> Tensor:
            return part.to(dtype=dtype, device=device) if axes == 2 else part.to(device=device)

        return self._with_parts(self.qk.to(dtype=dtype, device=device), converted)

    def _with_parts(self, qk: Schedule, change: Callable[[Tensor, int], Tensor]) -> Conjugated:
        modes = None if self.modes is None else self.modes.mapped(change)
        return replace(self, qk=qk, growth=change(self.growth, 2), modes=modes, rates=change(self.rates, 1))
