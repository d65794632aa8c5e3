"""Measurements that several statements share: what a flow and a start are, and by how much.

Each returns a `Hypothesis`. Margins are at least 0 where the hypothesis holds, tolerance taken off, and those of the
worst head, time and system. What only a proof could show (all values of a callable) is assumed: `holds` is None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import Schedule, Sinusoidal
from tokendynamics.attention.circuit_at_time import CircuitAtTime
from tokendynamics.attention.schedules import Time
from tokendynamics.attention.schedules.conversion import PerHead
from tokendynamics.dynamics import Flow
from tokendynamics.observables import hemisphere
from tokendynamics.observables.half_space import RESOLUTION
from tokendynamics.theorems.result import Hypothesis
from tokendynamics.words import number

Measure: TypeAlias = Callable[[Flow, Tensor], tuple[Hypothesis, ...]]
"""Measures hypotheses on a flow and a start."""

_MOST = 16
_BETWEEN = 8
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class OnHorizon:
    """A schedule over the horizon of a run: before it, its value at the beginning.

    Attributes:
        schedule: What it is.
        moments: Where it is looked at, increasing.
    """

    schedule: Schedule
    moments: tuple[float, ...]
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Schedule`."""
        return self.schedule.shape

    @property
    def bounded(self) -> bool | None:
        """See `Schedule`."""
        return self.schedule.bounded

    @property
    def uniformly_continuous(self) -> bool | None:
        """See `Schedule`."""
        return self.schedule.uniformly_continuous

    def at(self, t: Time) -> CircuitAtTime:
        """See `Schedule`."""
        first = self.moments[0]
        return self.schedule.at(t.clamp_min(first) if isinstance(t, Tensor) else max(t, first))

    def matrix_at(self, t: float) -> Tensor:
        """See `Schedule`."""
        return self.schedule.matrix_at(max(t, self.moments[0]))

    def breaks(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return self.schedule.breaks(start, end)

    def corners(self, start: float, end: float) -> list[float]:
        """See `Schedule`."""
        return self.schedule.corners(start, end)

    def within(self, start: float, end: float) -> Schedule:
        """See `Schedule`."""
        return self.schedule.within(start, end)

    def flattened(self) -> OnHorizon:
        """See `Schedule`."""
        return OnHorizon(self.schedule.flattened(), self.moments)

    def select(self, systems: Tensor) -> OnHorizon:
        """See `Schedule`."""
        return OnHorizon(self.schedule.select(systems), self.moments)

    def to(self, *, dtype: torch.dtype, device: torch.device) -> OnHorizon:
        """See `Schedule`."""
        return OnHorizon(self.schedule.to(dtype=dtype, device=device), self.moments)


def over_horizon(flow: Flow, times: np.ndarray) -> Flow:
    """Return the flow whose sampled circuits are looked at between the first and the last of these times."""
    # Some of the times, ends included, and some between in no simple ratio, which no period hides behind.
    given = np.asarray(times, dtype=float)
    some = given[np.unique(np.linspace(0, len(given) - 1, min(len(given), _MOST)).round().astype(int))]
    between = given[0] + (given[-1] - given[0]) * (np.arange(1, _BETWEEN + 1) * _GOLDEN % 1)
    attention, moments = flow.attention, tuple(np.unique(np.concatenate([some, between])).tolist())
    qk, ov = (
        schedule if schedule.constant or hasattr(schedule, "pieces") else OnHorizon(schedule, moments)
        for schedule in (attention.qk, attention.ov)
    )
    if qk is attention.qk and ov is attention.ov:
        return flow
    return flow.with_attention(attention.with_schedules(qk, ov, attention.positions))


ROUNDING = 1e-12
"""A relative deviation from an identity between matrices that counts as rounding."""
LIMIT_AT_ZERO = 1e-30
"""Below it (e^{βx} − 1)/β is x in every digit of float64; of the smallest β the quotient itself has no digit."""
_TIMES = (0.0, 0.137, 0.71, 1.93, 4.41, 9.7, 23.3, 58.1, 137.9)
"""Where schedules that cannot be known at all times are looked at, if the times of the run are not known."""


def rounding(dim: int, *dtypes: torch.dtype) -> float:
    """Return the relative deviation that counts as rounding of matrices that came in these precisions.

    >>> rounding(2, torch.float64), rounding(2, torch.float64, torch.float32) > 4e-7
    (1e-12, True)
    """
    return max(ROUNDING, 2 * dim * max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0))


def precision(schedule: Schedule) -> torch.dtype:
    """Return the dtype in which the matrices of a schedule came."""
    first = 0.0 if known_at_all_times(schedule) else _moments(schedule)[0]
    return schedule.matrix_at(first).dtype


def known_at_all_times(schedule: Schedule) -> bool:
    """Tell whether a schedule takes a few matrices and no others, all of which are known."""
    return schedule.constant or getattr(schedule, "pieces", None) is not None


def observed(schedule: Schedule) -> tuple[list[Tensor], bool]:
    """Return the matrices of a schedule, float64, and whether these are all that it ever takes."""
    if schedule.constant:
        return [schedule.matrix_at(0.0).double()], True
    pieces = getattr(schedule, "pieces", None)
    if pieces is not None:
        return [piece.matrix_at(0.0).double() for piece in pieces], True
    return [schedule.matrix_at(time).double() for time in _moments(schedule)], False


def _moments(schedule: Schedule) -> tuple[float, ...]:
    return schedule.moments if isinstance(schedule, OnHorizon) else _TIMES


def _looked_at(schedule: Schedule) -> str:
    moments = _moments(schedule)
    return f"at the {len(moments)} times looked at in [{number(moments[0], 6)}, {number(moments[-1], 6)}]"


def fact(name: str, holds: bool, text: str) -> Hypothesis:
    """Return a hypothesis without a size, such as the mask."""
    return Hypothesis(name, holds, None, 0.0, text)


def assumed(name: str, text: str) -> Hypothesis:
    """Return a hypothesis that cannot be measured."""
    return Hypothesis(name, None, None, 0.0, text)


def at_most(name: str, value: float | Tensor, tolerance: float | Tensor, what: str) -> Hypothesis:
    """Require that a deviation, one or (…,), vanish up to the tolerance; `what` says what it is."""
    values, limits = _beside(value, tolerance)
    worst = int((limits - values).argmin())
    came, allowed = float(values.flatten()[worst]), float(limits.flatten()[worst])
    holds = values <= limits
    text = f"{what} is {number(came)}, at most {number(allowed)} allowed"
    return Hypothesis(name, bool(holds.all()), allowed - came, allowed, text, _where_they_differ(holds))


def above(name: str, value: float | Tensor, tolerance: float | Tensor, what: str) -> Hypothesis:
    """Require that a quantity, one or (…,) for each system, exceed 0 by more than the tolerance."""
    values, limits = _beside(value, tolerance)
    worst = int((values - limits).argmin())
    came, required = float(values.flatten()[worst]), float(limits.flatten()[worst])
    holds = values > limits
    text = f"{what} is {number(came)}, above {number(required)} required"
    return Hypothesis(name, bool(holds.all()), came - required, required, text, _where_they_differ(holds))


def _beside(value: float | Tensor, tolerance: float | Tensor) -> list[Tensor]:
    return list(
        torch.broadcast_tensors(*(torch.as_tensor(numbers, dtype=torch.float64) for numbers in (value, tolerance)))
    )


def _where_they_differ(holds: Tensor) -> np.ndarray | None:
    """Tell whether it holds at each system, or None where all are alike."""
    return holds.cpu().numpy() if bool(holds.any()) and not bool(holds.all()) else None


def one_head(flow: Flow) -> Hypothesis:
    """Tell whether there is a single head."""
    return fact("one head", flow.heads == 1, f"the flow has {flow.heads} head{'s' * (flow.heads > 1)}")


def full_mask(flow: Flow) -> Hypothesis:
    """Tell whether every token sees every token."""
    return fact("full mask", not flow.attention.causal and flow.attention.mask is None, _mask(flow))


def causal_mask(flow: Flow) -> Hypothesis:
    """Tell whether token i sees only tokens j ≤ i."""
    return fact("causal mask", flow.attention.causal, _mask(flow))


def weights_are(flow: Flow, kind: str) -> Hypothesis:
    """Tell whether weights are those of the statement, such as "exponential"."""
    weights = flow.attention.weights
    return fact(f"{kind} weights", weights == kind, f"weights are {weights}")


def weights_are_softmax(flow: Flow) -> Hypothesis:
    """Tell whether weights are a softmax of the logits, hence positive."""
    return weights_are(flow, "softmax")


def weights_are_softmax_or_exponential(flow: Flow) -> Hypothesis:
    """Tell whether weights are positive functions of the logits: a softmax, or exponentials without its denominator."""
    weights = flow.attention.weights
    return fact("softmax or exponential weights", weights in ("softmax", "exponential"), f"weights are {weights}")


def logits_in_a_weight(flow: Flow) -> float:
    """Return by how many of the largest logits the logarithm of ℓ times a weight can fall: 2 of a softmax, else 1."""
    return 2.0 if flow.attention.weights == "softmax" else 1.0


def no_positions(flow: Flow) -> Hypothesis:
    """Tell whether attention reads the states and nothing else."""
    positions = flow.attention.positions
    came = "there are none" if positions is None else f"the flow has {type(positions).__name__}"
    return fact("no positions", positions is None, came)


def projection_is(flow: Flow, projection: str) -> Hypothesis:
    """Tell whether the projection onto the tangent space is that of the statement."""
    return fact(f"{projection} projection", flow.projection == projection, f"the projection is {flow.projection}")


def on_ellipsoid(flow: Flow) -> Hypothesis:
    """Tell whether tokens live on an ellipsoid, the sphere among them."""
    return fact("tokens on an ellipsoid", flow.geometry.quadratic, _space(flow))


def on_sphere(flow: Flow) -> Hypothesis:
    """Measure whether tokens live on the unit sphere, or on an ellipsoid whose metric is the identity."""
    metric = metric_of(flow)
    if not flow.geometry.quadratic or flow.geometry.metric is None:
        return fact("tokens on the sphere", flow.geometry.quadratic, _space(flow))
    deviation = (metric - torch.eye(flow.dim).double()).abs().amax(dim=(-2, -1))
    allowed = rounding(flow.dim, flow.geometry.metric.dtype)
    return at_most("tokens on the sphere", deviation, allowed, "the largest entry of M − I")


def in_free_space(flow: Flow) -> Hypothesis:
    """Tell whether tokens are not constrained."""
    return fact("free space", flow.geometry.closed_form and not flow.geometry.constrained, _space(flow))


def dim_at_least_two(flow: Flow) -> Hypothesis:
    """Tell whether the sphere is connected; in dim 1 it is two points, and nothing moves."""
    return fact("dim at least 2", flow.dim >= 2, f"dim is {flow.dim}")


def metric_of(flow: Flow) -> Tensor:
    """Return M of the flow's space, float64, the identity on the sphere (and in free space)."""
    metric = flow.geometry.metric
    return torch.eye(flow.dim, dtype=torch.float64) if metric is None else metric.detach().double().cpu()


def constant(schedule: Schedule, name: str) -> Hypothesis:
    """Measure that matrices do not depend on time; assumed of a callable that agrees at a few times."""
    matrices, complete = observed(schedule)
    changes = torch.stack([(matrix - matrices[0]).abs().amax(dim=(-3, -2, -1)) for matrix in matrices]).amax(dim=0)
    claim = f"{name} constant in time"
    if float(changes.max()) == 0 and not complete:
        return assumed(claim, f"{name} is the same {_looked_at(schedule)}, other times are unknown")
    scale = matrices[0].abs().amax(dim=(-3, -2, -1)).clamp_min(1.0)
    return at_most(claim, changes / scale, ROUNDING, f"the largest relative change of {name}")


def multiples(flow: Flow) -> tuple[Tensor, Tensor, bool]:
    """Return how far value matrices are from multiples of the identity, the least multiple, and if all were seen.

    Returns:
        The largest entry of ov_h − c_h I relative to c_h, (*system,); c_h of each head, the least over the times seen,
        (*system, head), where c_h is the mean of the diagonal; and whether the matrices seen are all there are.
    """
    if flow.projection == "remark_5_1":
        return torch.zeros(()), torch.ones(flow.heads, dtype=torch.float64), True
    matrices, complete = observed(flow.attention.ov)
    stacked = torch.stack(matrices).cpu()
    multiple = stacked.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    eye = torch.eye(flow.dim, dtype=torch.float64)
    gaps = (stacked - multiple[..., None, None] * eye).abs().amax(dim=(-2, -1))
    relative = gaps / multiple.abs().clamp_min(torch.finfo(torch.float64).tiny)
    return relative.amax(dim=-1).amax(dim=0), multiple.amin(dim=0), complete


def positive_multiples(flow: Flow) -> tuple[Hypothesis, ...]:
    """Measure that every head's ov is c_h I with c_h > 0 at all times, at least a constant above 0.

    A gate ``amplitude · sin(frequency · t + phase)`` comes to 0 or below, or as near as one likes, at some time.
    """
    deviation, least, complete = multiples(flow)
    claims = "ov is a multiple of the identity", "the multiples are positive"
    if flow.projection == "remark_5_1":
        return tuple(fact(claim, True, "the projection of Remark 5.1 cancels ov") for claim in claims)
    allowed = rounding(flow.dim, precision(flow.attention.ov))
    identity = at_most(claims[0], deviation, allowed, "the largest entry of ov − c·I relative to c")
    if not identity.anywhere:
        return (identity,)
    # Whether some matrix has a gate that is a sine of time.
    schedule = flow.attention.ov
    inner = schedule.schedule if isinstance(schedule, OnHorizon) else schedule
    heads = inner.heads if isinstance(inner, PerHead) else (inner,)
    if any(isinstance(head, Sinusoidal) and bool((head.frequency != 0).any()) for head in heads):
        return (identity, fact(claims[1], False, "the gates of ov are sines, which are not above 0 at all times"))
    positive = above(claims[1], least.amin(dim=-1), 0.0, "the least multiple c of the identity in ov")
    if complete or positive.holds is not True or identity.holds is not True:
        return (identity, positive)
    looked = _looked_at(flow.attention.ov)
    return (assumed(claims[0], f"ov is a multiple of the identity {looked}, other times are unknown"), positive)


def identity_values(flow: Flow) -> Hypothesis:
    """Measure that every value matrix is the identity at all times, or is cancelled by the projection."""
    claim = "ov is the identity"
    if flow.projection == "remark_5_1":
        return fact(claim, True, "the projection of Remark 5.1 cancels ov")
    matrices, complete = observed(flow.attention.ov)
    eye = torch.eye(flow.dim, dtype=torch.float64, device=matrices[0].device)
    deviation = torch.stack([(matrix - eye).abs().amax(dim=(-3, -2, -1)) for matrix in matrices]).amax(dim=0)
    allowed = rounding(flow.dim, precision(flow.attention.ov))
    if float(deviation.max()) <= allowed and not complete:
        return assumed(claim, f"ov is the identity {_looked_at(flow.attention.ov)}, other times are unknown")
    return at_most(claim, deviation, allowed, "the largest entry of ov − I")


def constant_circuits(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    """Measure that qk and ov do not depend on time; whatever the start."""
    del start
    return constant(flow.attention.qk, "qk"), constant(flow.attention.ov, "ov")


def multiples_of_the_identity(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    """Measure that qk is βI and every ov_h is c_h I with c_h > 0; whatever the start."""
    del start
    return *multiple_of_the_identity(flow), *positive_multiples(flow)


def given(first: Measure) -> Callable[[Measure], Measure]:
    """Decorate what measures hypotheses that presuppose others: these come first, or alone where none can hold.

    Args:
        first: Measures the others.
    """

    def decorated(further: Measure) -> Measure:
        def measure(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
            known = first(flow, start)
            return (*known, *further(flow, start)) if all(one.anywhere for one in known) else known

        return measure

    return decorated


def one_head_on_the_sphere(flow: Flow) -> tuple[Hypothesis, ...]:
    """Tell whether one head of softmax weights and a full mask moves tokens on the unit sphere."""
    return (on_sphere(flow), weights_are_softmax(flow), no_positions(flow), full_mask(flow), one_head(flow))


def one_head_of_either_weights_on_the_sphere(flow: Flow) -> tuple[Hypothesis, ...]:
    """Tell the same of softmax or exponential weights."""
    return (
        on_sphere(flow),
        weights_are_softmax_or_exponential(flow),
        no_positions(flow),
        full_mask(flow),
        one_head(flow),
    )


def temperature(flow: Flow) -> tuple[Tensor, Tensor]:
    """Return β of each system, the mean of the diagonal of qk, and the largest entry of qk − βI, both (*system,)."""
    qk = flow.attention.qk.matrix_at(0.0)[..., 0, :, :].detach().double().cpu()
    beta = qk.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    return beta, (qk - beta[..., None, None] * torch.eye(flow.dim).double()).abs().amax(dim=(-2, -1))


def multiple_of_the_identity(flow: Flow) -> tuple[Hypothesis, ...]:
    """Measure that qk is βI, constant in time."""
    unchanging = constant(flow.attention.qk, "qk")
    if not unchanging.anywhere:
        return (unchanging,)
    beta, deviation = temperature(flow)
    allowed = rounding(flow.dim, precision(flow.attention.qk)) * (1 + float(beta.abs().max()))
    return (unchanging, at_most("qk is a multiple of the identity", deviation, allowed, "the largest entry of qk − βI"))


def pull(flow: Flow) -> Tensor:
    """Return Σ_h c_h times the factor of the weights, the least over the times seen, (*system,), for ov_h = c_h I."""
    return flow.weight_factor * multiples(flow)[1].sum(dim=-1)


def pull_of_one_point(flow: Flow) -> Tensor:
    """Return what pulls tokens in one point together, (*system,): ωc, times e^{β − offset} of exponential weights."""
    return pull(flow) * log_size_of_one_point(flow).exp()


def log_size_of_one_point(flow: Flow) -> Tensor:
    """Return the logarithm of the sum of weights of tokens in one point, (*system,): 0, or β − offset."""
    beta = temperature(flow)[0]
    return torch.zeros_like(beta) if flow.attention.weights == "softmax" else beta - flow.attention.offset


def pair_cosines(states: Tensor) -> Tensor:
    """Return the cosines of all pairs i < j, (…, pair)."""
    first, second = torch.triu_indices(states.shape[-2], states.shape[-2], 1)
    unit = states / torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    return (unit @ unit.mT)[..., first, second]


def tokens_at_least(start: Tensor, least: int) -> Hypothesis:
    """Tell whether there are at least that many tokens."""
    words = {2: "two"}
    return fact(f"at least {words.get(least, least)} tokens", start.shape[-2] >= least, there_are(start.shape[-2]))


def there_are(number: int) -> str:
    """Say how many there are.

    >>> there_are(1), there_are(4)
    ('there is 1', 'there are 4')
    """
    return f"there {'is' if number == 1 else 'are'} {number}"


def symmetric(matrix: Tensor, name: str, tolerance: float | Tensor = ROUNDING) -> Hypothesis:
    """Measure that a matrix (…, dim, dim) is symmetric; the deviation is relative to its largest entry."""
    scale = matrix.abs().amax(dim=(-2, -1)).clamp_min(torch.finfo(matrix.dtype).tiny)
    deviation = (matrix - matrix.mT).abs().amax(dim=(-2, -1)) / scale
    return at_most(f"{name} symmetric", deviation, tolerance, f"the relative asymmetry of {name}")


def definite(matrix: Tensor, name: str, sign: int = 1, tolerance: float | Tensor = ROUNDING) -> Hypothesis:
    """Measure that a symmetric part is positive (sign 1) or negative (−1) definite, relative to its size."""
    values = sign * torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    largest = values.abs().amax(dim=-1).clamp_min(torch.finfo(matrix.dtype).tiny)
    lowest = values.amin(dim=-1) / largest
    word, end = ("positive", "lowest") if sign > 0 else ("negative", "highest")
    what = f"the {end} eigenvalue of {name}{'' if sign > 0 else ', its sign changed,'} relative to the largest"
    return above(f"{name} {word} definite", lowest, tolerance, what)


def equal(first: Tensor, second: Tensor, claim: str, what: str, tolerance: float = ROUNDING) -> Hypothesis:
    """Measure that two matrices agree, relative to the largest entry of the second."""
    scale = second.abs().amax(dim=(-2, -1)).clamp_min(torch.finfo(second.dtype).tiny)
    deviation = (first - second).abs().amax(dim=(-2, -1)) / scale
    return at_most(claim, deviation, tolerance, what)


def proportional(first: Tensor, second: Tensor, claim: str, what: str, tolerance: float = ROUNDING) -> Hypothesis:
    """Measure that the first of two positive definite matrices is a multiple of the second.

    The multiple is the ratio of their traces, which is positive.
    """
    traces = [matrix.diagonal(dim1=-2, dim2=-1).sum(dim=-1)[..., None, None] for matrix in (first, second)]
    return equal(first, traces[0] / traces[1] * second, claim, what, tolerance)


def bounded(schedule: Schedule, name: str) -> Hypothesis:
    """Tell whether matrices stay bounded for all times."""
    if schedule.bounded is None:
        return assumed(f"{name} bounded", f"{name} is a function of time whose bound cannot be measured")
    return fact(f"{name} bounded", schedule.bounded, f"{name} is {type(schedule).__name__}")


def open_half_space(start: Tensor) -> Hypothesis:
    """Measure whether an open half space through 0 holds all tokens of a system: the margin of the deepest."""
    # A token at zero, where a free flow may start, is in no open half space.
    at_zero = (start == 0).all(dim=-1)
    somewhere = torch.where(at_zero.unsqueeze(-1), 1.0, start)
    margin = torch.where(at_zero.any(dim=-1), 0.0, hemisphere(somewhere).margin)
    what = "the margin of the deepest half space (0 without one)"
    return above("start in an open half space", margin, RESOLUTION, what)


def _space(flow: Flow) -> str:
    unknown = "" if flow.geometry.closed_form else ", one of your own, of which nothing more is known"
    if flow.geometry.norm is not None:
        unknown = ", which normalizes tokens"
    return f"the space is {flow.space.name}{unknown}"


def _mask(flow: Flow) -> str:
    if flow.attention.mask is not None:
        return "the mask is a graph"
    return "the mask is causal" if flow.attention.causal else "the mask is full"
