"""The contraction form A = qk · ov^{−1} of `positional`, its hypotheses, and the norm bound that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, RotaryPositions, Schedule
from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import rounding_threshold
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import flow_of_run
from tokendynamics.theorems.result import Hypothesis
from tokendynamics.words import number


def free_softmax(flow: Flow) -> tuple[Hypothesis, ...]:
    """Suppose tokens in free space, moved by averages of tokens."""
    return (measured.in_free_space(flow), measured.weights_are_softmax(flow))


def absolute_positions(flow: Flow) -> Hypothesis:
    """Tell whether attention reads x + p."""
    return _positions_are(flow, AbsolutePositions, "absolute positions")


def rotary_positions(flow: Flow) -> Hypothesis:
    """Tell whether queries and keys are turned by their positions."""
    return _positions_are(flow, RotaryPositions, "rotary positions")


def head_matrix(schedule: Schedule) -> Tensor:
    """Return the matrix of the first head at t = 0, (*system, dim, dim), float64."""
    return schedule.matrix_at(0.0)[..., 0, :, :].detach().double().cpu()


def states_of(trajectory: Trajectory) -> Tensor:
    """Return the saved states, (*system, time, token, dim), float64."""
    return trajectory.tensor.detach().double().cpu()


def states_with_positions(trajectory: Trajectory) -> Tensor:
    """Return the saved states as attention reads them: x + p with absolute positions, x otherwise.

    Raises:
        ArgumentValueError: A run in the rescaled frame, whose states attention does not read.
    """
    if trajectory.frame == "rescaled":
        wanted = "a run in the frame 'tokens', whose states are x"
        raise ArgumentValueError("trajectory", wanted, "one of rescaled tokens z")
    return flow_of_run(trajectory).attention.with_positions(states_of(trajectory))


def at_times(trajectory: Trajectory, quantity: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Measure a quantity of states and velocities at every saved time, (*system, time).

    Args:
        trajectory: The run.
        quantity: From the states as attention reads them and the velocities, both (*system, token, dim), to
            (*system,). The velocity is that of the vector field at the saved state, not a difference of states.
    """
    states, times = states_of(trajectory), np.asarray(trajectory.times, dtype=float)
    flow = flow_of_run(trajectory)
    values = []
    for index, time in enumerate(times.tolist()):
        x = states[..., index, :, :]
        values.append(quantity(flow.attention.with_positions(x), flow.velocity(x, time)))
    return torch.stack(values, dim=-1)


def _positions_are(flow: Flow, kind: type, name: str) -> Hypothesis:
    positions = flow.attention.positions
    came = "there are none" if positions is None else f"the flow has {type(positions).__name__}"
    return measured.fact(name, isinstance(positions, kind), came)


def single_head_in_free_space(flow: Flow) -> tuple[Hypothesis, ...]:
    """Suppose the structure of the remarks: softmax in free space, no positions, full mask, one head."""
    return (*free_softmax(flow), measured.no_positions(flow), measured.full_mask(flow), measured.one_head(flow))


_ROUNDINGS = 16
LARGEST_DEVIATION = 1e-4
"""Where ov is so ill-conditioned that rounding alone could deviate by more, a larger deviation is not excused."""


@dataclass(frozen=True)
class ContractionForm:
    """The matrices of the one head of a flow and what follows from them.

    Attributes:
        qk: (*system, dim, dim), float64.
        ov: Times the flow's weight factor: with the paper normalization the flow is the plain one of ov/√dim.
        matrix: A = qk · ov^{−1}; of no use where `defined` is False.
        rank: Of ov, (*system,).
        condition: σ_max/σ_min of ov, (*system,), infinite below full rank.
        unit: The relative rounding of the numbers that were given.
    """

    qk: Tensor
    ov: Tensor
    matrix: Tensor
    rank: Tensor
    condition: Tensor
    unit: float

    @property
    def _looseness(self) -> Tensor:
        """How much more than `hypotheses.ROUNDING` rounding can make in A, (*system,), at least 1."""
        rounding = _ROUNDINGS * self.ov.shape[-1] * self.unit * self.condition
        return torch.where(self.defined, rounding / measured.ROUNDING, 1.0).clamp_min(1.0)

    @property
    def rounding(self) -> Tensor:
        """Relative error that rounding can make in A, (*system,)."""
        return measured.ROUNDING * self._looseness

    @property
    def tolerance(self) -> Tensor:
        """Asymmetry up to which A counts as symmetric, (*system,): what rounding makes, but never a visible one."""
        return self.rounding.clamp_max(LARGEST_DEVIATION)

    def scaled(self, excess: Tensor) -> Tensor:
        """Divide an excess (*system, time) by what rounding can make: `hypotheses.ROUNDING` is then allowed."""
        return excess / self._looseness.unsqueeze(-1)

    @property
    def defined(self) -> Tensor:
        """Whether ov has full rank, (*system,)."""
        return self.rank == self.ov.shape[-1]


def contraction_form(flow: Flow) -> ContractionForm:
    """Measure A = qk · ov^{−1} of the first head at t = 0.

    Source: `positional` below its (4), A = W (V^T)^{−1} with W = qk and V^T = ov.

    >>> from tokendynamics.attention import Attention
    >>> from tokendynamics.spaces import Free
    >>> form = contraction_form(Flow(Attention([[2.0]], [[-4.0]]), Free()))
    >>> form.matrix.tolist(), float(form.condition)
    ([[-0.5]], 1.0)
    """
    given = flow.attention.ov.matrix_at(0.0)
    qk, ov = head_matrix(flow.attention.qk), flow.weight_factor * head_matrix(flow.attention.ov)
    dim = ov.shape[-1]
    singular = torch.linalg.svdvals(ov)
    threshold = rounding_threshold(singular[..., :1], dim, given.dtype)
    rank = (singular > threshold).sum(dim=-1)
    regular = rank == dim
    condition = torch.where(regular, singular[..., 0] / torch.where(regular, singular[..., -1], 1.0), torch.inf)
    # A ov = qk: solved for A^T, without an inverse; without a solution, of the identity.
    given_ov = torch.where(regular[..., None, None], ov, torch.eye(dim).to(ov))
    # Expanded, since torch takes a (dim, dim) right-hand side of dim systems for dim vectors.
    matrix = torch.linalg.solve(given_ov.mT, qk.expand_as(given_ov).mT if qk.ndim < ov.ndim else qk.mT).mT
    unit = max(torch.finfo(dtype).eps for dtype in (given.dtype, flow.attention.qk.matrix_at(0.0).dtype))
    return ContractionForm(qk, ov, matrix, rank, condition, unit)


def invertible(form: ContractionForm) -> Hypothesis:
    """Measure whether the value matrix has full rank, so that A exists."""
    dim, everywhere = form.ov.shape[-1], bool(form.defined.all())
    text = f"ov has rank {int(form.rank.min())} of {dim} and condition number {number(float(form.condition.max()))}"
    undefined = "" if everywhere else ": A = qk ov⁻¹ is undefined"
    at = None if everywhere or not bool(form.defined.any()) else form.defined.numpy()
    return replace(measured.fact("ov invertible", everywhere, text + undefined), at=at)


def symmetric_contraction(form: ContractionForm) -> tuple[Hypothesis, ...]:
    """Measure whether A exists and is symmetric."""
    if not bool(form.defined.any()):
        return (invertible(form),)
    return (invertible(form), measured.symmetric(form.matrix, "A", form.tolerance))


def definite_forms(form: ContractionForm) -> tuple[Hypothesis, ...]:
    """Measure A_sym ≺ 0 and qk_sym ≻ 0, where A exists."""
    positive = measured.definite(form.qk, "qk")
    if not bool(form.defined.any()):
        return (positive,)
    return (measured.definite(form.matrix, "A", sign=-1, tolerance=form.rounding), positive)


def contracting_systems(form: ContractionForm) -> Tensor:
    """Tell which systems have A_sym ≺ 0 and qk_sym ≻ 0, (*system,)."""
    highest = torch.linalg.eigvalsh(symmetric_part(form.matrix))[..., -1]
    lowest = torch.linalg.eigvalsh(symmetric_part(form.qk))[..., 0]
    return (highest < 0) & (lowest > 0)


def largest_ratio(form: ContractionForm) -> Tensor:
    """Return the largest c with q_qk(u) ≥ c ‖u‖²_A for all u, ‖u‖²_A = −q_A(u) and A_sym ≺ 0; (*system,).

    It is the lowest eigenvalue of qk_sym relative to −A_sym; for A and qk symmetric, the lowest of −ov. The proof
    of `positional` B.3 prints the inequality the other way round, ‖·‖²_A ≥ c ‖·‖²_W, from which the bound does not
    follow.
    """
    root = torch.linalg.cholesky(-symmetric_part(form.matrix))
    half = torch.linalg.solve_triangular(root, symmetric_part(form.qk), upper=False)
    whole = torch.linalg.solve_triangular(root, half.mT, upper=False)
    return torch.linalg.eigvalsh(symmetric_part(whole))[..., 0]


def norm_bound(squared: Tensor, c: Tensor, tokens: int, times: Tensor) -> Tensor:
    """Return ``(1/c) log(e^{−2ct} (e^{c s} − L) + L)``, the bound of ‖x_l(t)‖²_A with s = ‖x_l(0)‖²_A.

    c is that of `largest_ratio`, L the number of tokens; the result is (*system, time, token).
    From d/dt s ≤ −2 + 2L e^{−cs}, which is u' ≤ −2cu + 2cL for u = e^{cs}. Computed as a logarithm of a sum of
    non-negative terms, so that nothing overflows.

    Source: `positional` proposition B.3, the last line of its proof.

    Returns:
        Shape (*system, time, token).

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> norm_bound(4 * one, one[0], 3, torch.tensor([0.0, 50.0]).double()).squeeze().exp().round(decimals=6).tolist()
    [54.59815, 3.0]
    """
    decay = -2 * c[..., None, None] * times[:, None]
    start = c[..., None, None] * squared.unsqueeze(-2) + decay
    rest = math.log(tokens) + (-torch.expm1(decay)).log()
    return torch.logaddexp(start, rest.expand_as(start)) / c[..., None, None]


def symmetric_part(matrix: Tensor) -> Tensor:
    """Return (B + B^T)/2."""
    return (matrix + matrix.mT) / 2
