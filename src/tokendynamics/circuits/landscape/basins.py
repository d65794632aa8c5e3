"""Where random starts end: fractions with confidence intervals.

What fraction a landscape catches is a property of the starts and of the descent as much as of the landscape. For
`PositionsOnly` with N = 5, M = 6 this share of quasi-Newton runs ends at infinity, at a loss per column of T/M,
T = 1 − |p|² (n = 300 starts of seed 0 for each entry; in brackets the 95 % interval):

==================================  ====================  ====================
Entries of the start                equal categories      categories by Zipf
==================================  ====================  ====================
normal, standard deviation 0.1      25 % (20 … 30)        16 % (12 … 21)
normal, standard deviation 0.5      25 % (20 … 30)        18 % (14 … 22)
normal, standard deviation 1        28 % (24 … 34)        24 % (20 … 29)
normal, standard deviation 2        35 % (30 … 41)        32 % (27 … 37)
uniform ±1/√(number of columns)     23 % (19 … 28)        17 % (13 … 21)
==================================  ====================  ====================

The others reach loss 0, but for 5 (equal) and 10 (Zipf) of 300 with standard deviation 2, and 1 with standard
deviation 1 (Zipf), which had not come to rest.

The gradient flow is caught less often: 3 of 30 starts (10 %, 3 … 26) with equal categories and standard deviation 1,
seed 0, up to time 1e4; the other 27 reach loss 0 before time 60.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.integrate import LSODA
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from tokendynamics.circuits.landscape.classification import Classification, classify, continue_descent
from tokendynamics.circuits.landscape.landscape import Gradient, Landscape, LossAndGradient, flatten, unflatten
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_number, generator
from tokendynamics.numerics.intervals import wilson
from tokendynamics.numerics.resources import check_fits, limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import plain
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.results.result import Readable
from tokendynamics.words import percent_estimate, plural

Status = Literal["converged", "budget spent", "stopped early", "not finite"]

_NO_LOSS = 1e-10

_HISTORY = 20
_LINE_SEARCH = 40
_LEAST_DECREASE = 1e-15
_NEWTON_STEPS = 60


class NotFinitePointError(ArithmeticError):
    """The point, its loss or its slope is not finite any more; the message says which."""


class Objective:
    """Loss, gradient and Hessian of a landscape as functions of the flattened (q, v).

    Args:
        landscape: Any landscape.
        start: The flattened point that is kept until a better one is seen.

    Attributes:
        best: The point of least loss among those evaluated.
        best_loss: Its loss.
        evaluations: How often loss and gradient were computed.
        scale: The loss of no output (v = 0), or 1 where that is zero: losses are measured in it.
    """

    def __init__(self, landscape: Landscape, start: np.ndarray) -> None:
        self._landscape = landscape
        self.best = start.copy()
        self.best_loss = float("inf")
        self.evaluations = 0
        attention, v = self.unflatten(start)
        loss = float(landscape.loss(attention, torch.zeros_like(v)))
        self.scale = loss if np.isfinite(loss) and loss > 0.0 else 1.0

    def __call__(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Loss and gradient at a point; raises `NotFinitePointError` instead of returning a NaN or infinity."""
        self.evaluations += 1
        if not np.isfinite(point).all():
            raise NotFinitePointError("a step led to a point that is not finite")
        attention, v = self.unflatten(point)
        value, gradient = self._evaluated(attention, v)
        loss, slope = float(value), flatten(gradient.attention, gradient.v).numpy()
        if not (np.isfinite(loss) and np.isfinite(slope).all()):
            part = "gradient" if np.isfinite(loss) else "loss"
            raise NotFinitePointError(f"the {part} is not finite at a point of norm {np.linalg.norm(point):.3g}")
        if loss < self.best_loss:
            self.best, self.best_loss = point.copy(), loss
        return loss, slope

    def _evaluated(self, attention: Tensor, v: Tensor) -> tuple[Tensor, Gradient]:
        if isinstance(self._landscape, LossAndGradient):
            return self._landscape.loss_and_gradient(attention, v)
        return self._landscape.loss(attention, v), self._landscape.gradient(attention, v)

    def hessian(self, point: np.ndarray) -> np.ndarray:
        """Return the second derivatives at a point; raises `NotFinitePointError` where they are not finite."""
        matrix = self._landscape.hessian(*self.unflatten(point)).numpy()
        if not np.isfinite(matrix).all():
            raise NotFinitePointError(f"the Hessian is not finite at a point of norm {np.linalg.norm(point):.3g}")
        return matrix

    def relative_gradient(self, point: np.ndarray, slope: np.ndarray) -> float:
        """Return ``|gradient| · max(|(q, v)|, 1)`` in units of the loss of no output."""
        return float(np.linalg.norm(slope)) * max(float(np.linalg.norm(point)), 1.0) / self.scale

    def arrived(self, point: np.ndarray, tolerance: float) -> bool:
        """Return whether the relative gradient is within `tolerance`, or hardly any loss is left."""
        loss, slope = self(point)
        return loss <= _NO_LOSS * self.scale or self.relative_gradient(point, slope) <= tolerance

    def unflatten(self, point: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the matrices q and v of a flattened point."""
        return unflatten(self._landscape, torch.from_numpy(point))


@dataclass(frozen=True)
class Ending:
    """Why a run ended, and with which point."""

    point: np.ndarray
    status: Status
    reason: str


def descend(landscape: Landscape, objective: Objective, start: np.ndarray, *, steps: int, tolerance: float) -> Ending:
    """Minimise from `start` by L-BFGS (scipy's L-BFGS-B, 20 pairs of history), and finish by Newton's method.

    L-BFGS comes to rest too early where curvatures differ by many orders of magnitude, as they do far out in a valley;
    `continue_descent` resolves them with the exact Hessian, to rest in the same valley.
    """
    size = max(float(np.linalg.norm(start)), 1.0) * np.sqrt(start.size)
    decrease = {"ftol": _LEAST_DECREASE, "gtol": tolerance * objective.scale / size}
    options = decrease | {"maxiter": steps, "maxfun": 20 * steps, "maxcor": _HISTORY, "maxls": _LINE_SEARCH}
    try:
        minimum = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        point = np.asarray(minimum.x)
        if objective.arrived(point, tolerance):
            return Ending(point, "converged", "the gradient or the loss is below the tolerance")
        if minimum.nit >= steps:
            return Ending(point, "budget spent", f"{steps} steps are done")
        further = continue_descent(landscape, *objective.unflatten(point), expansions=0, steps=_NEWTON_STEPS)
        point = flatten(further.attention, further.v).numpy()
        if objective.arrived(point, tolerance):
            return Ending(point, "converged", "the gradient or the loss is below the tolerance, by Newton's method")
    except NotFinitePointError as error:
        return Ending(objective.best, "not finite", str(error))
    return Ending(point, "stopped early", f"no step lowers the loss any more, after {minimum.nit} of L-BFGS")


def flow(
    objective: Objective, start: np.ndarray, *, horizon: float, steps: int, tolerance: float, accuracy: float = 1e-7
) -> Ending:
    """Follow dθ/dt = −∇L from `start` to the time `horizon`, or until the gradient or the loss vanishes.

    LSODA of scipy with the Hessian as Jacobian: stiff where curvatures differ much, as they do here.

    Args:
        objective: The loss L.
        start: The flattened start.
        horizon: The last time.
        steps: The largest number of integration steps.
        tolerance: On the relative gradient.
        accuracy: Relative error allowed in a step; the absolute one is 100 times smaller.
    """

    def velocity(_: float, point: np.ndarray) -> np.ndarray:
        return -objective(point)[1]

    def jacobian(_: float, point: np.ndarray) -> np.ndarray:
        return -objective.hessian(point)

    point = start
    try:
        # LSODA says "failed" by its status too, which is reported below.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            solver = LSODA(velocity, 0.0, start, horizon, rtol=accuracy, atol=accuracy / 100, jac=jacobian)
            for _ in range(steps):
                message = solver.step()
                point = np.array(solver.y)
                if solver.status == "failed":
                    return Ending(point, "stopped early", f"the integration failed at time {solver.t:.4g}: {message}")
                if objective.arrived(point, tolerance):
                    reason = f"the gradient or the loss is below the tolerance at time {solver.t:.4g}"
                    return Ending(point, "converged", reason)
                if solver.status == "finished":
                    return Ending(point, "budget spent", f"the horizon, time {horizon:.4g}, is reached")
    except NotFinitePointError as error:
        return Ending(objective.best, "not finite", str(error))
    return Ending(point, "budget spent", f"{steps} steps are done at time {solver.t:.4g} of {horizon:.4g}")


Method = Literal["quasi-newton", "gradient-flow"]
Scale = float | Literal["fan-in"]

CONFIDENCE = 0.95
"""Of the intervals of shares; see `wilson`."""

_BYTES = 80
"""Of each entry of each start: itself, its gradient, and the descent's memory of its steps."""


@dataclass(frozen=True)
class BasinRun:
    """One start followed to its end.

    Attributes:
        start: The number of the start, from 0.
        attention: The last finite attention matrix.
        v: The last finite v.
        loss: The loss there.
        relative_gradient: ``|gradient| · max(|(q, v)|, 1)`` divided by the loss of no output (v = 0).
        status: "converged" (relative gradient or loss below the tolerance), "budget spent" (steps or time are over),
            "stopped early" (no step made progress any more) or "not finite" (a NaN or infinity came up).
        reason: What ended the run, in words.
        evaluations: How often loss and gradient were computed.
        classification: What the end is; None where the run became not finite.
    """

    start: int
    attention: Tensor
    v: Tensor
    loss: float
    relative_gradient: float
    status: Status
    reason: str
    evaluations: int
    classification: Classification | None = None

    @property
    def kind(self) -> str:
        """The kind of the classification, or "not finite"."""
        return "not finite" if self.classification is None else self.classification.kind


@dataclass(frozen=True)
class Share:
    """Share of the starts that ended in one kind of point.

    Attributes:
        kind: See `classify`; "not finite" for runs that broke off.
        count: Number of starts.
        fraction: `count` divided by the number of all starts.
        low: Lower end of the 95 % interval of the fraction (Wilson).
        high: Upper end.
    """

    kind: str
    count: int
    fraction: float
    low: float
    high: float

    @property
    def percent(self) -> str:
        """The fraction as a percentage, with its interval."""
        return percent_estimate(self.fraction, [self.low, self.high], CONFIDENCE)


@dataclass(frozen=True, repr=False)
class Basins(Readable):
    """Where the starts of one landscape ended.

    Attributes:
        landscape: Its name.
        method: "quasi-newton" or "gradient-flow".
        scale: Of the starts, see `random_starts`.
        seed: Of the starts.
        budget: The largest number of steps of one run.
        horizon: The last time of a gradient flow; None for the quasi-Newton method.
        runs: One for each start.

    >>> from tokendynamics.circuits.landscape import PositionsOnly
    >>> basins = find_basins(PositionsOnly([0.5, 0.5], positions=3), 5, seed=0)
    >>> len(basins.runs), basins.method
    (5, 'quasi-newton')
    """

    landscape: str
    method: Method
    scale: Scale
    seed: int
    budget: int
    horizon: float | None
    runs: tuple[BasinRun, ...]

    @property
    def headline(self) -> str:
        """The landscape, and how it was descended."""
        return f"{self.landscape}: {plural(len(self.runs), 'start')}, {self.method}, seed {self.seed}"

    @property
    def findings(self) -> list[str]:
        """How many starts ended in each kind of point."""
        return [f"{share.kind}: {plural(share.count, 'start')}, {share.percent}" for share in self.shares]

    @property
    def shares(self) -> tuple[Share, ...]:
        """The kinds that came up, the most frequent first."""
        return tuple(self.share(kind) for kind, _ in Counter(run.kind for run in self.runs).most_common())

    @property
    def statuses(self) -> dict[str, int]:
        """How many runs ended with each status."""
        return dict(Counter(run.status for run in self.runs))

    def share(self, kind: str) -> Share:
        """Return the share of starts that ended in `kind`, which may be none, with its 95 % interval."""
        return self._share(kind, sum(run.kind == kind for run in self.runs))

    def above(self, loss: float) -> Share:
        """Return the share of starts whose last loss is above `loss`: stuck, for any reason, within this budget."""
        return self._share(f"loss above {loss:g}", sum(not run.loss <= loss for run in self.runs))

    def _share(self, kind: str, count: int) -> Share:
        total = len(self.runs)
        return Share(kind, count, count / total, *wilson(count, total))

    def as_json(self) -> dict[str, object]:
        """Return all fields, shares and statuses as plain values."""
        names = ("landscape", "method", "scale", "seed", "budget", "horizon")
        return plain(
            {name: getattr(self, name) for name in names}
            | {"starts": len(self.runs), "shares": self.shares, "statuses": self.statuses}
            | {"runs": [plain(run) | {"kind": run.kind} for run in self.runs]}
        )


@typed_arguments
def find_basins(
    landscape: Landscape,
    starts: int,
    *,
    seed: int,
    method: Method = "quasi-newton",
    scale: Scale = 1.0,
    budget: int = 600,
    horizon: float = 1e4,
    tolerance: float = 1e-7,
    progress: bool | Progress = False,
) -> Basins:
    """Follow random starts to their ends and say what these are.

    PyTorch and the BLAS of scipy run on one thread meanwhile: with as few variables as here, L-BFGS-B would spend most
    of its time in waking the others.

    Args:
        landscape: Any landscape.
        starts: How many.
        seed: Of the starts.
        method: "quasi-newton" (L-BFGS) or "gradient-flow" (dθ/dt = −∇L).
        scale: Standard deviation of the normal entries of the starts, or "fan-in".
        budget: The largest number of steps of one run.
        horizon: The last time of a gradient flow.
        tolerance: A run has converged where its relative gradient is below this, or its loss below 1e-10 of that of
            no output.
        progress: True for a progress bar, or a function; see `progress`.

    Raises:
        ArgumentTypeError, ArgumentValueError: Not a landscape, an unknown method, numbers that are not
            positive, or wrong starts.

    >>> from tokendynamics.circuits.landscape import PositionsOnly
    >>> basins = find_basins(PositionsOnly([0.5, 0.5], positions=3), 5, seed=0)
    >>> sum(share.count for share in basins.shares)
    5
    """
    if not isinstance(landscape, Landscape):
        raise ArgumentTypeError("landscape", "a Landscape", type(landscape).__name__)
    if method not in ("quasi-newton", "gradient-flow"):
        raise ArgumentValueError("method", "'quasi-newton' or 'gradient-flow'", repr(method))
    for name, number in (("budget", budget), ("horizon", horizon), ("tolerance", tolerance)):
        if not (math.isfinite(number) and number > 0):
            raise ArgumentValueError(name, "a positive number", number)
    attention, v = random_starts(landscape, starts, seed=seed, scale=scale)
    with limited_threads(1), threadpool_limits(1, user_api="blas"), reporting(progress) as report:
        numbers = tracked(range(starts), report, f"{landscape.name}: {method}")
        points = ((number, flatten(attention[number], v[number]).numpy()) for number in numbers)
        runs = [_followed(landscape, method, *point, budget, horizon, tolerance) for point in points]
    last_time = horizon if method == "gradient-flow" else None
    return Basins(landscape.name, method, scale, seed, budget, last_time, tuple(runs))


def _followed(
    landscape: Landscape, method: Method, number: int, start: np.ndarray, budget: int, horizon: float, tolerance: float
) -> BasinRun:
    objective = Objective(landscape, start)
    if method == "quasi-newton":
        ending = descend(landscape, objective, start, steps=budget, tolerance=tolerance)
    else:
        ending = flow(objective, start, horizon=horizon, steps=budget, tolerance=tolerance)
    attention, v = objective.unflatten(ending.point)
    finite = ending.status != "not finite"
    loss, relative_gradient = math.nan, math.nan
    if math.isfinite(objective.best_loss) or finite:
        gradient = landscape.gradient(attention, v)
        loss = float(landscape.loss(attention, v))
        relative_gradient = objective.relative_gradient(ending.point, flatten(gradient.attention, gradient.v).numpy())
    return BasinRun(
        start=number,
        attention=attention,
        v=v,
        loss=loss,
        relative_gradient=relative_gradient,
        status=ending.status,
        reason=ending.reason,
        evaluations=objective.evaluations,
        classification=classify(landscape, attention, v) if finite else None,
    )


def random_starts(
    landscape: Landscape, starts: int, *, seed: int, scale: float | Literal["fan-in"] = 1.0
) -> tuple[Tensor, Tensor]:
    """Draw independent random points of a landscape.

    Args:
        landscape: Any landscape.
        starts: How many, at least 1.
        seed: Seed; start number k does not depend on how many follow it.
        scale: The standard deviation of normal entries, or "fan-in": uniform within ±1/√(number of columns), as
            linear layers are initialised.

    Returns:
        Attention of shape (starts, *attention_shape) and v of shape (starts, *v_shape), float64.

    Raises:
        ArgumentTypeError: A number of starts that is no integer.
        ArgumentValueError: No starts, a scale that is not positive or not finite, or another word.

    >>> from tokendynamics.circuits.landscape import PositionsOnly
    >>> attention, v = random_starts(PositionsOnly([0.5, 0.5], positions=3), 10, seed=0)
    >>> tuple(attention.shape), tuple(v.shape)
    ((10, 3, 3), (10, 2, 2))
    """
    if isinstance(starts, bool) or not isinstance(starts, int):
        raise ArgumentTypeError("starts", "an integer", repr(starts))
    if starts < 1:
        raise ArgumentValueError("starts", "at least 1", starts)
    wanted = "a positive standard deviation or 'fan-in'"
    if not isinstance(scale, str):
        scale = as_number(scale, "scale")
        if not (math.isfinite(scale) and scale > 0.0):
            raise ArgumentValueError("scale", wanted, scale)
    elif scale != "fan-in":
        raise ArgumentValueError("scale", wanted, repr(scale))
    entries = math.prod(landscape.attention_shape)
    count = entries + math.prod(landscape.v_shape)
    check_fits(_BYTES * starts * count, "starts")
    if scale == "fan-in":
        draws = 2.0 * torch.rand(starts, count, generator=generator(seed), dtype=torch.float64) - 1.0
        width = torch.tensor(
            [landscape.attention_shape[1]] * entries + [landscape.v_shape[1]] * (count - entries)
        ).double()
        draws = draws / width.sqrt()
    else:
        draws = scale * torch.randn(starts, count, generator=generator(seed), dtype=torch.float64)
    attention, v = draws[:, :entries], draws[:, entries:]
    return attention.reshape(starts, *landscape.attention_shape), v.reshape(starts, *landscape.v_shape)
