"""A flow: attention acting on tokens of a space, in continuous time or layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.dynamics._field import Field, jacobian
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import (
    ArrayLike,
    as_choice,
    as_finite,
    as_integer,
    as_not_negative,
    as_states,
    check_open,
    first_index,
    first_token,
    like,
)
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.spaces import Normalized, Space
from tokendynamics.spaces.geometry import Geometry, geometry_of

Projection = Literal["orthogonal", "remark_5_1"]


class Flow:
    """Tokens that move under attention.

    On the sphere and on ellipsoids ``dy_i/dt = Σ_h Σ_j w^h_ij (ov_h y_j − (y_i^T M ov_h y_j) y_i)``
    (`asymptotic` (7)), evaluated at the projection ``y / |y|_M``: the formula as printed makes the ellipsoid
    repelling wherever ``y_i^T M Σ w ov y_j < 0``. In free space ``dx_i/dt = Σ_h ov_h Σ_j w^h_ij x_j``
    (`positional` (2), (5), (8)).

    Args:
        attention: The heads, whose weights are multiplied by 1/√dim if its normalization is "paper", or None on a
            sphere or ellipsoid.
        space: `Free`, `Sphere`, `Ellipsoid`, `Normalized`, or one of your own: see `tokendynamics.spaces.Space`.
        projection: "orthogonal" (for the metric), or "remark_5_1": the projection of `asymptotic` Remark 5.1, for
            one head and metric ``ov^T ov``: ``dy_i/dt = Σ_j w_ij (y_j − (y_i^T M y_j) y_i)``.
        frozen: Indices of tokens, from 0, that others see and that do not move.

    Raises:
        ArgumentTypeError: Not an attention, or not a space.
        ArgumentValueError: A metric that does not fit the dim (both are printed); for "remark_5_1" several heads, an ov
            that depends on time, or another metric; a frozen token given twice or below 0.

    >>> import torch
    >>> from tokendynamics.spaces import Free
    >>> identity = torch.eye(2, dtype=torch.float64)
    >>> flow = Flow(Attention(0 * identity, identity), Free())
    >>> flow.velocity([[1.0, 0.0], [0.0, 1.0]])  # both move with the mean
    [[0.5, 0.5], [0.5, 0.5]]
    """

    def __init__(
        self, attention: Attention, space: Space, projection: Projection = "orthogonal", frozen: ArrayLike = ()
    ) -> None:
        check_open(attention, "attention")
        check_open(space, "space")
        if not isinstance(attention, Attention):
            raise ArgumentTypeError("attention", "an Attention", type(attention).__name__)
        if not isinstance(space, Space) or isinstance(space, type):
            raise ArgumentTypeError("space", "Free(), Sphere(), Ellipsoid(metric) or a space of your own", shown(space))
        as_choice(projection, "projection", ("orthogonal", "remark_5_1"))
        self.attention, self.space = attention, space
        self.projection: Projection = projection
        if isinstance(frozen, str) or not isinstance(frozen, Sequence | np.ndarray):
            raise ArgumentTypeError("frozen", "a list of tokens", type(frozen).__name__)
        tokens = tuple(sorted(as_integer(token, "frozen", at_least=0) for token in frozen))
        if len(set(tokens)) < len(tokens):
            raise ArgumentValueError("frozen", "each token once", shown(tokens))
        self.frozen = tokens
        of_paper = self.geometry.quadratic and not isinstance(space, Normalized)
        self.normalization = attention.normalization or ("paper" if of_paper else "plain")
        # What a function of time returns is known from the first time of a run on: see `beginning`.
        if attention.shape_is_known:
            if self.geometry.metric is not None and self.geometry.metric.shape[-1] != attention.dim:
                wanted = (
                    f"a metric of shape ({attention.dim}, {attention.dim}) to fit qk, shape {tuple(attention.qk.shape)}"
                )
                raise ArgumentValueError("space", wanted, f"shape {tuple(self.geometry.metric.shape)}")
            if projection == "remark_5_1":
                _check_remark_5_1(attention, self.geometry, repr(space))

    def beginning(self, t: float) -> Flow:
        """Return the same with the shapes of functions of time known from time t, and checked.

        Raises:
            ArgumentValueError: As for `Attention` and `Flow`.
        """
        known = self.attention.beginning(t)
        return self if known is self.attention else self.with_attention(known)

    def with_jumps(self, jumps: Sequence[float]) -> Flow:
        """Return the same with jumps declared in all functions of time."""
        return self.with_attention(self.attention.with_jumps(jumps))

    def with_attention(self, attention: Attention, space: Space | None = None) -> Flow:
        """Return the same with other heads, and perhaps in another space."""
        return Flow(attention, space or self.space, self.projection, self.frozen)

    @property
    def dim(self) -> int:
        """Features of a token."""
        return self.attention.dim

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.attention.heads

    @property
    def geometry(self) -> Geometry:
        """The space as the vector field sees it."""
        return geometry_of(self.space)

    @property
    def constant(self) -> bool:
        """Whether the vector field does not depend on time."""
        return self.attention.constant and self.geometry.constant

    @property
    def weight_factor(self) -> float:
        """What multiplies the attention pattern: 1/√dim if the normalization is "paper", else 1."""
        return 1 / math.sqrt(self.dim) if self.normalization == "paper" else 1.0

    @typed_arguments
    def velocity(self, x: ArrayLike, t: float = 0.0) -> Any:
        """Return the vector field at x, taken at the projection of x on a constrained space.

        Where ov is a multiple of the identity, tokens nearly at rest are computed from the differences
        ``Σ_j w_ij (y_j − y_i)``: the velocity is then right to its own last digits, however small it is.

        Args:
            x: States (…, token, dim).
            t: Time of the schedules.

        Returns:
            Shape (…, token, dim), in units of x per time.

        Raises:
            ArgumentValueError: Shapes that do not fit (both are printed), NaN, or a zero token on a sphere.
        """
        flow = self.beginning(as_finite(t, "t"))
        states = flow.fitting(x)
        flow.geometry.check(states, "x")
        flow.check_frozen(states, "x")
        states = flow.geometry.rescaled(states)
        return like(flow.field(states).refined_velocity(states, t), x)

    @typed_arguments
    def jacobian(self, x: ArrayLike, t: float = 0.0) -> Any:
        """Return the derivative of the vector field at x: how each velocity changes with each token.

        On a constrained space the field is that at the projection of x, so that it does not change along x itself.
        Formulas are used where the space and the positions have them, automatic differentiation elsewhere.

        Args:
            x: States (…, token, dim).
            t: Time of the schedules.

        Returns:
            ``∂F_ia / ∂x_kb``, shape (…, token, dim, token, dim): memory grows with (token · dim)².

        Raises:
            ArgumentValueError: As for `velocity`.

        >>> import tokendynamics as td
        >>> flow = td.Flow(td.Attention([[0.0]], [[-1.0]]), td.Free())
        >>> flow.jacobian([[3.0], [1.0]])
        [[[[-0.5], [-0.5]]], [[[-0.5], [-0.5]]]]
        """
        flow = self.beginning(as_finite(t, "t"))
        states = flow.fitting(x)
        flow.geometry.check(states, "x")
        batch = states.reshape(-1, *states.shape[-2:])
        field = flow.field(states).flattened()
        if field.has_jacobian:
            return like(jacobian(field, batch, t).reshape(*states.shape, *states.shape[-2:]), x)
        # No system acts on another, so that the sum over systems has the slopes of all.
        slopes = torch.func.jacrev(lambda y: field.velocity(y, t).sum(dim=0))(batch)
        return like(slopes.movedim(2, 0).reshape(*states.shape, *states.shape[-2:]), x)

    @typed_arguments
    def step(self, x: ArrayLike, k: int = 0, tau: float = 1.0, residual: float = 1.0) -> Any:
        """Return one discrete layer, ``y ← π_M(ρ y + τ Σ_h w^h(y) y ov_h^T)``, with ρ = 1 that of `asymptotic` (6).

        With ρ = 1 the map is a first-order approximation of the flow: halving τ divides the error of one step by
        four. With ρ = 0 it is a layer without residual connection (`rank`), with ρ = 1 − τ one in which a token
        keeps the weight 1 − τ (`hardmax`); these approximate no flow.

        Args:
            x: States (…, token, dim).
            k: Index of the layer: the schedules are taken at time k.
            tau: Step τ.
            residual: The factor ρ of the state itself, at least 0.

        Returns:
            Shape (…, token, dim).

        Raises:
            ArgumentValueError: As for `velocity`; a residual below 0; or a token that overflows, or lands on zero and
                cannot be projected.
        """
        as_not_negative(residual, "residual")
        flow = self.beginning(float(k))
        states = flow.fitting(x)
        field = flow.field(states)
        field.geometry.check(states, "x")
        flow.check_frozen(states, "x")
        after = field.layer(field.exactly_projected(states), k, tau, residual)
        broken = ~torch.isfinite(after).all(dim=-1)
        if bool(broken.any()):
            lost = bool(torch.isnan(after[first_index(broken)]).any())
            what = " lands on zero, which has no direction" if lost else " overflows"
            came = f"one in which {first_token(broken)}{what}"
            raise ArgumentValueError("x", "states with a next layer", came, "take a smaller tau")
        return like(field.unmoved(after, states), x)

    def fitting(self, x: ArrayLike, argument: str = "x") -> Tensor:
        """Return `x` as states that fit attention and metric, or refuse it and print both shapes.

        One state (token, dim) holds for all systems of the matrices and of the metric.
        """
        metric, given = self.geometry.metric, as_states(x, argument)
        systems = self.attention.system_shape or (() if metric is None else tuple(metric.shape[:-2]))
        one_for_all = given.ndim == 2 and systems
        states = self.attention.fitting(given.expand(*systems, -1, -1) if one_for_all else given, argument)
        if metric is not None and metric.ndim > 2 and metric.shape[:-2] != states.shape[:-2]:
            wanted = f"leading axes {tuple(metric.shape[:-2])}, those of the metric"
            raise ArgumentValueError(argument, wanted, f"shape {tuple(states.shape)}")
        if self.frozen and self.frozen[-1] >= states.shape[-2]:
            wanted = f"at least {self.frozen[-1] + 1} tokens, as token {self.frozen[-1]} is frozen"
            raise ArgumentValueError(argument, wanted, f"shape {tuple(states.shape)}")
        return states

    def check_frozen(self, states: Tensor, argument: str) -> None:
        """Refuse frozen tokens that are not on the space: projecting them would move them.

        Raises:
            ArgumentValueError: The first such token, and how far it is off.
        """
        if not self.frozen:
            return
        still = states.detach()[..., list(self.frozen), :]
        off = torch.linalg.vector_norm(still - self.space.project(still), dim=-1)
        allowed = _ON_SPACE * torch.finfo(states.dtype).eps * torch.linalg.vector_norm(still, dim=-1)
        lost = off > allowed
        if bool(lost.any()):
            place = first_index(lost)
            came = f"token {self.frozen[place[-1]]} at a distance of {float(off[place]):.3g} from it"
            raise ArgumentValueError(argument, f"frozen tokens on the {self.space.name}", came, "project it first")

    def field(self, like_states: Tensor) -> Field:
        """Return the field for states of the dtype and device of `like_states`."""
        place = {"dtype": like_states.dtype, "device": like_states.device}
        return Field(
            attention=self.attention.to(**place),
            geometry=self.geometry.to(**place),
            factor=self.weight_factor,
            identity_values=self.projection == "remark_5_1",
            frozen=self.frozen,
        )

    def __repr__(self) -> str:
        still = f", {len(self.frozen)} frozen" if self.frozen else ""
        mask, weights = self.attention.mask_in_words, self.attention.weights
        kind = "" if weights == "softmax" else f" {weights} weights,"
        return f"Flow({self.attention.size},{kind} {mask}, {self.space.name}, {self.normalization}{still})"


_ON_SPACE = 64
"""Units of rounding by which a token may be off its space and counts as on it."""


def _check_remark_5_1(attention: Attention, geometry: Geometry, space: str) -> None:
    if attention.heads != 1 or not attention.ov.constant or not geometry.quadratic:
        came = f"{attention.heads} heads, ov {type(attention.ov).__name__}, {space}"
        wanted = "one head with a constant ov on an ellipsoid for 'remark_5_1'"
        raise ArgumentValueError("projection", wanted, came)
    ov = attention.ov.matrix_at(0.0)[..., 0, :, :]
    metric = torch.eye(attention.dim, dtype=ov.dtype) if geometry.metric is None else geometry.metric
    gram = ov.double().mT @ ov.double()
    defect = (gram - metric.to(gram)).abs().amax(dim=(-2, -1)) / gram.abs().amax(dim=(-2, -1))
    eps = max(torch.finfo(given.dtype).eps for given in (ov, metric))
    if float(defect.max()) > max(1e-10, 2 * attention.dim * eps):
        wanted = "the metric ov^T ov for 'remark_5_1'"
        came = f"a metric that differs from it by {float(defect.max()):.3g} of its largest entry"
        raise ArgumentValueError("space", wanted, came, "pass Ellipsoid(ov.T @ ov)")


_LARGEST_EXPONENT = 700.0


def check_exponentials(flow: Flow, states: Tensor, t: float) -> None:
    """Refuse exponential weights that are no numbers: for any tokens of a sphere or ellipsoid, elsewhere at the start.

    Args:
        flow: The flow.
        states: The start, (…, token, dim).
        t: Its time.

    Raises:
        ArgumentValueError: A logit, less the offset, above 700.
    """
    attention, geometry = flow.attention, flow.geometry
    if attention.weights != "exponential":
        return
    if (geometry.quadratic or geometry.norm is not None) and attention.positions is None:
        # With M = L L^T and y = L^{-T} u, |u| = 1, a logit is u · L^{-1} qk L^{-T} u'.
        qk = attention.qk.matrix_at(t).double()
        metric = geometry.metric
        if metric is not None:
            root = torch.linalg.cholesky(metric.to(qk)).unsqueeze(-3)
            half = torch.linalg.solve_triangular(root, qk, upper=False)
            qk = torch.linalg.solve_triangular(root, half.mT, upper=False).mT
        largest = float(torch.linalg.matrix_norm(qk, 2).max())
    else:
        largest = float(torch.as_tensor(attention.logits(states.detach(), t)).max())
    if largest - attention.offset > _LARGEST_EXPONENT:
        wanted = f"at least {largest - _LARGEST_EXPONENT:.6g}, as logits come up to {largest:.6g}"
        advice = "the offset slows time down by e^offset and changes nothing else"
        raise ArgumentValueError("offset", wanted, f"{attention.offset:.6g}", advice)
