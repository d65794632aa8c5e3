"""Says what a point of a landscape is: a minimum, a saddle, degenerate, on the way to infinity, or not stationary.

A continued descent shows whether it ends nearby or at infinity; moves that change no loss explain flat directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import Landscape, flatten, one_point, unflatten
from tokendynamics.numerics.arguments import ArrayLike, as_count, as_finite, generator
from tokendynamics.numerics.signatures import typed_arguments

_FACTOR = 1.25
_TOLERANCE = 1e-11


@dataclass(frozen=True)
class Symmetries:
    """The symmetries of a landscape, as directions at one point.

    Attributes:
        names: Which were found, of "scaling q against v", "scaling q", "scaling v", "constant on a column of q",
            "constant on a column of v" and "entries without influence".
        directions: An orthonormal basis of all their directions at the point, shape (n, count) over the flattened
            (q, v).
    """

    names: tuple[str, ...]
    directions: Tensor


@typed_arguments
def find_symmetries(landscape: Landscape, attention: ArrayLike, v: ArrayLike) -> Symmetries:
    """Find the symmetries that hold at a point in general position, and their directions at (attention, v).

    Args:
        landscape: Any landscape.
        attention: One matrix, the paper's q.
        v: One matrix.

    >>> from tokendynamics.circuits.landscape import PositionsOnly
    >>> symmetries = find_symmetries(PositionsOnly([0.5, 0.5], 2), [[0.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])
    >>> symmetries.names
    ('scaling q against v', 'constant on a column of q', 'entries without influence')
    """
    point = flatten(*one_point(landscape, attention, v))
    # Tried elsewhere, since at the point itself a move may change nothing by accident (any v where q = 0).
    general = _general_point(landscape)
    names, moves, directions = _candidates(landscape, general, point)
    losses = landscape.loss(*unflatten(landscape, torch.stack([general, *moves])))
    kept = (losses[1:] - losses[0]).abs() <= _TOLERANCE * losses[0].abs()
    symmetries = tuple(dict.fromkeys(name for name, keep in zip(names, kept.tolist(), strict=True) if keep))
    held = torch.stack(directions, dim=-1)[:, kept]
    lengths = held.norm(dim=0)
    left, values, _ = torch.linalg.svd(held[:, lengths > 0] / lengths[lengths > 0], full_matrices=False)
    return Symmetries(symmetries, left[:, values > 1e-9])  # an orthonormal basis


def scales_against(landscape: Landscape) -> bool:
    """Return whether ``(q, v) → (q/λ, λv)`` changes no loss, tried at a point in general position."""
    return "scaling q against v" in find_symmetries(landscape, *unflatten(landscape, _general_point(landscape))).names


def balanced(attention: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the point ``(q/λ, λv)`` with ``|q| = |v|``; where one of them is zero the other gets norm 1.

    >>> attention, v = balanced(torch.tensor([[4.0]]), torch.tensor([[1.0]]))
    >>> attention.item(), v.item()
    (2.0, 2.0)
    """
    q_norm, v_norm = float(attention.norm()), float(v.norm())
    if q_norm == 0.0 or v_norm == 0.0:
        return attention / (q_norm or 1.0), v / (v_norm or 1.0)
    factor = (q_norm / v_norm) ** 0.5
    return attention / factor, v * factor


def _general_point(landscape: Landscape) -> Tensor:
    size = sum(rows * columns for rows, columns in (landscape.attention_shape, landscape.v_shape))
    return torch.randn(size, generator=generator(0), dtype=torch.float64)


def _candidates(landscape: Landscape, general: Tensor, point: Tensor) -> tuple[list[str], list[Tensor], list[Tensor]]:
    (q, v), (q_here, v_here) = unflatten(landscape, general), unflatten(landscape, point)
    names = ["scaling q against v", "scaling q", "scaling v"]
    moves = [flatten(q / _FACTOR, v * _FACTOR), flatten(q * _FACTOR, v), flatten(q, v * _FACTOR)]
    none_q, none_v = torch.zeros_like(q), torch.zeros_like(v)
    directions = [flatten(-q_here, v_here), flatten(q_here, none_v), flatten(none_q, v_here)]
    attention, values = torch.zeros(landscape.attention_shape).double(), torch.zeros(landscape.v_shape).double()
    shifts = []
    for matrix, part in (("q", attention), ("v", values)):
        for column in range(part.shape[1]):
            part[:, column] = 1.0
            shifts.append((f"constant on a column of {matrix}", flatten(attention, values)))
            part[:, column] = 0.0
    entries = torch.eye(attention.numel() + values.numel(), dtype=torch.float64)
    for name, step in shifts + [("entries without influence", entry) for entry in entries]:
        names.append(name)
        moves.append(general + step)
        directions.append(step)
    return names, moves, directions


_EXPANSION = 1.3
# Far out on a valley, curvatures across and along it differ by the sixth power of the norm: what is smaller than this
# part of the highest one is rounding.
_ROUNDING = 1e-14
_HALVINGS = 30


@dataclass(frozen=True)
class Continuation:
    """Where a continued descent came from and went to (both balanced where the loss allows it).

    Attributes:
        attention: The attention it ended with.
        v: The v it ended with.
        loss: The loss it ended with.
        drop: By how much the loss fell.
        growth: The factor by which ``|(q, v)|`` grew.
    """

    attention: Tensor
    v: Tensor
    loss: float
    drop: float
    growth: float


@typed_arguments
def continue_descent(
    landscape: Landscape, attention: ArrayLike, v: ArrayLike, *, expansions: int = 4, steps: int = 40
) -> Continuation:
    """Descend by Newton's method to rest, then try to rest further out.

    An attempt multiplies (q, v) by 1.3 and descends again. It counts if it comes to rest further out and at a lower
    loss. From a minimum of finite norm the descent returns to where it came from; on a valley that runs to infinity
    every attempt succeeds, also where the slope along the valley has long fallen below what a stopping rule sees.

    Args:
        landscape: Any landscape.
        attention: One matrix, the paper's q.
        v: One matrix.
        expansions: How many attempts are made; the first that fails ends them.
        steps: The largest number of Newton steps in each.
    """
    as_count(expansions, "expansions", at_least=0)
    as_count(steps, "steps", at_least=0)
    start = flatten(*one_point(landscape, attention, v))
    balance = scales_against(landscape)
    start = _balanced(landscape, start) if balance else start
    before = _loss(landscape, start)
    point, loss = _to_rest(landscape, start, steps)
    point = _balanced(landscape, point) if balance else point
    for _ in range(expansions):
        further, lower = _to_rest(landscape, _EXPANSION * point, steps)
        further = _balanced(landscape, further) if balance else further
        if not lower < loss or further.norm() <= point.norm():
            break
        point, loss = further, lower
    length = float(start.norm())
    growth = float(point.norm()) / length if length > 0.0 else 1.0
    end_q, end_v = unflatten(landscape, point)
    return Continuation(end_q, end_v, loss, before - loss, growth)


def _to_rest(landscape: Landscape, point: Tensor, steps: int) -> tuple[Tensor, float]:
    loss = _loss(landscape, point)
    for _ in range(steps):
        step, slope = _newton(landscape, point)
        lower = _descended(landscape, point, step, slope, loss)
        if lower is None:
            break
        point, loss = lower
    return point, loss


def _newton(landscape: Landscape, point: Tensor) -> tuple[Tensor, float]:
    """Return the Newton step with all curvatures taken as positive, and the derivative of the loss along it."""
    at = unflatten(landscape, point)
    slopes = landscape.gradient(*at)
    gradient = flatten(slopes.attention, slopes.v)
    curvatures, axes = torch.linalg.eigh(landscape.hessian(*at))
    sizes = curvatures.abs()
    kept = sizes > _ROUNDING * sizes.max()
    along = axes.mT @ gradient
    step = axes @ torch.where(kept, -along / torch.where(kept, sizes, 1.0), 0.0)
    # A nearly flat direction asks for any length: no step doubles the point more than once.
    longest = 1.0 + float(point.norm())
    step = step * min(1.0, longest / max(float(step.norm()), 1e-300))
    return step, float(step.dot(gradient))


def _descended(
    landscape: Landscape, point: Tensor, step: Tensor, slope: float, loss: float
) -> tuple[Tensor, float] | None:
    fractions = 0.5 ** torch.arange(_HALVINGS, dtype=torch.float64)
    trials = point + fractions[:, None] * step
    losses = landscape.loss(*unflatten(landscape, trials))
    enough = losses < loss + 1e-4 * fractions * slope
    if not bool(enough.any()):
        return None
    first = int(enough.int().argmax())
    return trials[first], float(losses[first])


def _loss(landscape: Landscape, point: Tensor) -> float:
    return float(landscape.loss(*unflatten(landscape, point)))


def _balanced(landscape: Landscape, point: Tensor) -> Tensor:
    return flatten(*balanced(*unflatten(landscape, point)))


Kind = Literal["global minimum", "strict saddle", "degenerate", "at infinity", "local minimum", "not stationary"]

# Relative to the highest curvature, an eigenvalue of a matrix of a hundred rows is known to about 1e-14.
_CURVATURE_ROUNDING = 1e-13


@dataclass(frozen=True)
class Classification:
    """The kind of a point, and what was measured there (after balancing |q| = |v| where the loss allows it).

    Attributes:
        kind: See `classify`.
        text: One sentence with the decisive numbers.
        loss: The loss at the point.
        relative_loss: `loss` divided by the loss of no output at all (v = 0).
        relative_gradient: ``|gradient| · |(q, v)|`` (the norm at least 1) divided by the loss of no output: no units.
        lowest_curvature: The lowest eigenvalue of the Hessian.
        highest_curvature: The highest.
        zero_directions: How many eigenvalues count as zero.
        symmetric_directions: How many directions the symmetries of the landscape account for.
        symmetries: Their names.
        norm: ``|(q, v)|``.
        growth: The factor by which the norm grew when the descent was continued; 1.0 where it was not continued.
        limit: The loss that the continued descent ended with; the loss itself where it was not continued.

    >>> from tokendynamics.circuits.landscape import PositionsOnly, positions_only
    >>> landscape = PositionsOnly([0.5, 0.3, 0.2], positions=3)
    >>> point = positions_only.zero_column_sums(landscape)
    >>> point_kind = classify(landscape, point.attention, point.v)
    >>> point_kind.kind, point_kind.symmetries
    ('strict saddle', ('scaling q against v', 'constant on a column of q', 'entries without influence'))
    """

    kind: Kind
    text: str
    loss: float
    relative_loss: float
    relative_gradient: float
    lowest_curvature: float
    highest_curvature: float
    zero_directions: int
    symmetric_directions: int
    symmetries: tuple[str, ...]
    norm: float
    growth: float
    limit: float

    @property
    def unexplained_directions(self) -> int:
        """Zero directions that no symmetry accounts for."""
        return max(0, self.zero_directions - self.symmetric_directions)


@typed_arguments
def classify(
    landscape: Landscape,
    attention: ArrayLike,
    v: ArrayLike,
    *,
    lowest: float = 0.0,
    loss_tolerance: float = 1e-9,
    gradient_tolerance: float = 1e-6,
    curvature_tolerance: float = 1e-6,
    growth: float = 1.5,
    drop_tolerance: float = 0.05,
    expansions: int = 4,
) -> Classification:
    """Say what kind of point (attention, v) is, decided in this order.

    1. "global minimum": the loss is within `loss_tolerance` of `lowest` (under softmax it lies at infinity).
    2. "strict saddle": the gradient vanishes, and the Hessian has a negative eigenvalue.
    3. "at infinity": `continue_descent` multiplies ``|(q, v)|`` by `growth` while the loss falls by no more than
       `drop_tolerance`: it tends to a limit without a point that has it.
    4. "local minimum" where the gradient vanishes, no eigenvalue is negative and the symmetries of the landscape
       account for all that are zero; "degenerate" if they do not: second derivatives then do not decide.
    5. "not stationary".

    Where only the product of q and v counts, the point is first scaled to ``|q| = |v|``. The unit of losses is that of
    no output (v = 0), of gradients that over ``|(q, v)|``, of curvatures that over ``|(q, v)|²``.

    Args:
        landscape: Any landscape.
        attention: One matrix, the paper's q.
        v: One matrix.
        lowest: The least loss there is.
        loss_tolerance: See 1, in units of losses.
        gradient_tolerance: Below this the relative gradient counts as zero.
        curvature_tolerance: Eigenvalues below this, or below the rounding of the highest, count as zero.
        growth: See 3, where the descent is tried from `expansions` times further out.
        drop_tolerance: See 3, in units of losses.
        expansions: See `growth`.

    Raises:
        ArgumentTypeError, ArgumentValueError: No real floating-point numbers, a wrong shape, a NaN or infinity.

    >>> from tokendynamics.circuits.landscape import PositionsOnly, positions_only
    >>> landscape = PositionsOnly([0.5, 0.3, 0.2], positions=3)
    >>> point = positions_only.zero_column_sums(landscape)
    >>> classify(landscape, point.attention, point.v).kind
    'strict saddle'
    """
    here, expansions = _measure(landscape, attention, v, curvature_tolerance), as_count(expansions, "expansions", 0)
    if (above := here.loss - as_finite(lowest, "lowest")) <= loss_tolerance * here.scale:
        return here.result("global minimum", f"the loss is within {above:.2g} of the least there is")
    stationary = here.relative_gradient <= gradient_tolerance
    if stationary and here.negative:
        return here.result("strict saddle", f"no gradient, and the lowest curvature is {here.lowest_curvature:.3g}")
    further = continue_descent(landscape, here.attention, here.v, expansions=expansions)
    if further.growth >= growth and further.drop <= drop_tolerance * here.scale:
        text = f"the norm grows {further.growth:.3g} times while the loss tends to {further.loss:.6g}"
        return here.result("at infinity", text, further)
    if stationary:
        return _flat_or_minimal(here, further)
    return here.result("not stationary", f"the relative gradient is {here.relative_gradient:.2g}", further)


def _flat_or_minimal(here: _Measured, further: Continuation) -> Classification:
    """Tell a local minimum from a point whose second derivatives do not decide."""
    unexplained = here.zero_directions - here.symmetric.shape[-1]
    if unexplained > 0:
        text = f"no negative curvature, and {unexplained} directions without curvature that no symmetry accounts for"
        return here.result("degenerate", text, further)
    return here.result("local minimum", "no gradient, positive curvature but for the symmetries", further)


@dataclass(frozen=True)
class _Measured:
    attention: Tensor
    v: Tensor
    loss: float
    scale: float
    relative_gradient: float
    lowest_curvature: float
    highest_curvature: float
    zero_directions: int
    negative: bool
    symmetric: Tensor
    names: tuple[str, ...]

    def result(self, kind: Kind, text: str, further: Continuation | None = None) -> Classification:
        return Classification(
            kind=kind,
            text=f"{kind}: {text}",
            loss=self.loss,
            relative_loss=self.loss / self.scale,
            relative_gradient=self.relative_gradient,
            lowest_curvature=self.lowest_curvature,
            highest_curvature=self.highest_curvature,
            zero_directions=self.zero_directions,
            symmetric_directions=self.symmetric.shape[-1],
            symmetries=self.names,
            norm=float(flatten(self.attention, self.v).norm()),
            growth=1.0 if further is None else further.growth,
            limit=self.loss if further is None else further.loss,
        )


def _measure(landscape: Landscape, attention: ArrayLike, v: ArrayLike, curvature_tolerance: float) -> _Measured:
    checked_attention, checked_v = one_point(landscape, attention, v)
    symmetries = find_symmetries(landscape, checked_attention, checked_v)
    if "scaling q against v" in symmetries.names:
        checked_attention, checked_v = balanced(checked_attention, checked_v)
        symmetries = find_symmetries(landscape, checked_attention, checked_v)
    gradient = landscape.gradient(checked_attention, checked_v)
    scale = float(landscape.loss(checked_attention, torch.zeros_like(checked_v))) or 1.0
    size = float(flatten(checked_attention, checked_v).norm())
    curvatures = torch.linalg.eigvalsh(landscape.hessian(checked_attention, checked_v))
    unit = scale / max(size, 1.0) ** 2
    zero = max(curvature_tolerance * unit, _CURVATURE_ROUNDING * float(curvatures.abs().max()))
    return _Measured(
        attention=checked_attention,
        v=checked_v,
        loss=float(landscape.loss(checked_attention, checked_v)),
        scale=scale,
        # Near the origin the norm says nothing about how far the loss can fall: at least one unit of length counts.
        relative_gradient=float(flatten(gradient.attention, gradient.v).norm()) * max(size, 1.0) / scale,
        lowest_curvature=float(curvatures[0]),
        highest_curvature=float(curvatures[-1]),
        zero_directions=int((curvatures.abs() <= zero).sum()),
        negative=bool(curvatures[0] < -zero),
        symmetric=symmetries.directions,
        names=symmetries.names,
    )
