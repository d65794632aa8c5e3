"""The engines by name: what runs a problem, what each of them can do, and which one suits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from importlib import import_module

import torch

from tokendynamics.attention import AbsolutePositions, RotaryPositions
from tokendynamics.attention.mixing import logits
from tokendynamics.attention.schedules import Constant, Schedule, Sinusoidal
from tokendynamics.attention.schedules.conversion import PerHead
from tokendynamics.dynamics.engines._crossings import OverflowGuard
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.engines.tableau import TABLEAUS
from tokendynamics.dynamics.events import AtRest, Consensus, NormAbove
from tokendynamics.dynamics.rescaled import Growing
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.extras import missing, require
from tokendynamics.words import listing


def _refusal_of_jumps(problem: Problem) -> str | None:
    return "hardmax weights, which jump" if problem.field.attention.weights == "hardmax" else None


@dataclass(frozen=True)
class Engine:
    """One way to run a problem.

    Attributes:
        module: Where its function is, imported when it first runs: numba is an extra, and takes half a second.
        options: Those of `simulate` that it uses; the others of `OPTIONS` are refused.
        methods: The Runge–Kutta methods that it has, of `TABLEAUS`.
        controls_error: Whether it chooses its steps by `rtol` and `atol`: a problem is then reduced to the span of its
            start where that is exact, and states near `atol` are warned of.
        differentiable: Whether gradients flow through it.
        needs_jacobian: Whether it asks for the derivative of the field by formula.
        refusal: Says what of a problem it cannot do at all; None if it can do all of it.
        libraries: Packages whose versions a trajectory records.
        function: What runs a problem in `module`.
    """

    module: str
    options: frozenset[str]
    methods: tuple[str, ...] = ()
    controls_error: bool = False
    differentiable: bool = True
    needs_jacobian: bool = False
    refusal: Callable[[Problem], str | None] = _refusal_of_jumps
    libraries: tuple[str, ...] = ("torch", "numpy", "scipy")
    function: str = "run"

    def run(self, problem: Problem) -> Outcome:
        """Return what is found of a problem."""
        return getattr(import_module(f"tokendynamics.dynamics.engines.{self.module}"), self.function)(problem)


LARGEST_HARDMAX = 1024
"""Up to this many rows engine "hardmax" forms the exponential of a matrix."""

_LARGEST_DIM = 16
"""Rows of more features do not fit the registers of any processor."""


def _refusal_of_compiled(problem: Problem) -> str | None:
    """Return what of the problem the compiled loop cannot do, in words; None if it can do all of it."""
    field, positions = problem.field, problem.field.attention.positions
    if (jumps := _refusal_of_jumps(problem)) is not None:
        return jumps
    if problem.start.device.type != "cpu":
        return f"states on {problem.start.device}"
    if problem.start.shape[2] > _LARGEST_DIM:
        return f"more than {_LARGEST_DIM} features"
    if not field.geometry.closed_form:
        return _geometry_in_words(problem)
    if field.attention.mask is not None:
        return "a mask of your own"
    if field.frozen:
        return "frozen tokens"
    if positions is not None and type(positions) not in (AbsolutePositions, RotaryPositions):
        return "positions of your own"
    # Of a subclass it is not known what it means.
    if any(
        type(event) not in (AtRest, Consensus, NormAbove, OverflowGuard)
        for event in (*problem.events, *problem.recorded)
    ):
        return "events of your own"
    first, *_, last = problem.times
    joints = field.joints(first, last)
    inside = field.within(first, joints[0] if joints else last).attention
    if field.relative and not (isinstance(inside.qk, Growing) and inside.qk.qk.constant):
        return "a rescaled frame in which ov is no multiple of the identity, or qk depends on time"
    if not all(map(_is_known, inside.schedules)):
        return "circuits that are a function of time of your own"
    return None


def _geometry_in_words(problem: Problem) -> str:
    norm = problem.field.geometry.norm
    return "a space of your own" if norm is None else f"tokens that are normalized by {norm!r}"


def _refusal_of_layers(problem: Problem) -> str | None:
    return "the rescaled frame, in which layers have no map of their own" if problem.field.relative else None


def _refusal_of_stiff(problem: Problem) -> str | None:
    if problem.field.attention.weights == "exponential" and not problem.field.geometry.bounded:
        # Tokens reach infinity in finite time, at sizes of a few units: a step of a multistep method may pass that.
        return "exponential weights in a space where tokens can grow without end"
    return _refusal_of_jumps(problem)


def _refusal_of_sde(problem: Problem) -> str | None:
    if problem.field.relative:
        return "the rescaled frame, in which the noise of a token would grow"
    if not problem.field.geometry.closed_form:
        return _geometry_in_words(problem)
    if any(isinstance(event, AtRest) for event in (*problem.events, *problem.recorded)):
        return "the event AtRest, as tokens with noise never rest"
    return _refusal_of_jumps(problem)


def _is_known(schedule: Schedule) -> bool:
    heads = schedule.heads if isinstance(schedule, PerHead) else (schedule,)
    return all(isinstance(head, Constant | Sinusoidal | Growing) for head in heads)


def _refusal_of_hardmax(problem: Problem) -> str | None:
    """Return what of the problem the engine of hardmax weights cannot do, in words."""
    field, (_, tokens, dim) = problem.field, problem.start.shape
    attention = field.attention
    if attention.weights != "hardmax":
        return f"{attention.weights} weights"
    if field.geometry.constrained or field.geometry.norm is not None or not field.geometry.closed_form:
        return "hardmax weights outside free space"
    if attention.positions is not None:
        return "hardmax weights with positions"
    qk = attention.qk.qk if isinstance(attention.qk, Growing) else attention.qk
    if field.relative and qk is attention.qk:
        return "hardmax weights in a rescaled frame in which ov is no multiple of the identity"
    if not (qk.constant and attention.ov.constant):
        return "hardmax weights with matrices that depend on time"
    rows = tokens if field.multiples is not None else tokens * dim
    return f"{rows} rows of a matrix" if rows > LARGEST_HARDMAX else None


ENGINES: dict[str, Engine] = {
    "batched": Engine(
        "_batched",
        frozenset({"rtol", "atol", "method", "max_step"}),
        methods=("dopri5", "bosh3", "dop853"),
        controls_error=True,
    ),
    "compiled": Engine(
        "compiled._run",
        frozenset({"rtol", "atol", "method", "max_step"}),
        methods=("dopri5", "bosh3", "dop853"),
        controls_error=True,
        differentiable=False,
        refusal=_refusal_of_compiled,
        libraries=("torch", "numpy", "numba", "llvmlite"),
    ),
    "stiff": Engine(
        "_stiff",
        frozenset({"rtol", "atol", "max_step"}),
        controls_error=True,
        differentiable=False,
        needs_jacobian=True,
        refusal=_refusal_of_stiff,
    ),
    "hardmax": Engine("_hardmax", frozenset(), differentiable=False, refusal=_refusal_of_hardmax),
    "layers": Engine("_fixed", frozenset({"tau", "residual"}), refusal=_refusal_of_layers, function="run_layers"),
    "fixed": Engine("_fixed", frozenset({"step", "method"}), methods=tuple(TABLEAUS), refusal=lambda problem: None),
    "sde": Engine("_fixed", frozenset({"step", "noise"}), refusal=_refusal_of_sde),
}

OPTIONS = ("noise", "rtol", "atol", "step", "tau", "residual", "method", "max_step")
OF_LAYERS = ("tau", "residual")
"""Options of engine "layers", which "auto" never takes."""


def users(option: str) -> tuple[str, ...]:
    """Return the engines that use an option, by name.

    >>> users("method")
    ('batched', 'compiled', 'fixed')
    """
    return tuple(name for name, engine in ENGINES.items() if option in engine.options)


class UnsuitableEngineError(ArgumentValueError):
    """The engine that was asked for cannot run the problem; another one may."""


LONG_HORIZON = 2e3
"""Horizons from here on, in units of the fastest possible motion, send one system to the stiff engine.

Measured in alternation on one thread, on the circle with 4, 16 and 64 tokens and β = 1, 4, 9, 16: to t = 10 the stiff
engine takes 0.7 to 1.2 times as long as the batched one, to t = 300 half to 1.2 times, to t = 1000 a quarter to once,
to t = 3000 a tenth to a third. An explicit method takes 1.3 right-hand sides for each unit of time at every β.
"""

_FURTHER_SYSTEM, _LONGEST = 5e3, 1.5e5
"""By how much longer the horizon must be for each further system, and from where on one is long for any number.

The stiff engine runs one system after the other, the batched one all at once: 8 systems of 16 tokens at β = 4 took
1.5 s against 4.8 s to t = 1000, 32 took 1.7 s against 15.5 s. Beyond the second an explicit method spends its steps.
"""

_LARGEST_STIFF, _SYSTEMS, _JUMPS = 1024, 64, 50
SMALL = 512
"""Tokens times features of the largest system that "auto" compiles."""

_COMPILING = 2.5e6
"""Pairs of tokens of all systems, 16 more for each token, from which on "auto" compiles.

The first run of a kind of flow on a machine compiles for 4.5 s, later ones do not; half of that, in the batched engine,
is the bound. It is asked of the problem alone: what is compiled already may not decide which digits come out. Processor
seconds to t = 10 on the sphere at rtol = 1e-6, one thread:

| systems | tokens × features | pairs as above | batched | compiled |
|---------|-------------------|----------------|---------|----------|
| 10,000  | 4 × 2             | 0.8e6          | 0.52    | 0.05     |
| 3,000   | 10 × 3            | 0.8e6          | 0.84    | 0.06     |
| 10,000  | 10 × 3            | 2.6e6          | 2.78    | 0.19     |
| 1,000   | 32 × 8            | 1.5e6          | 1.52    | 0.16     |
| 3,000   | 32 × 8            | 4.6e6          | 4.10    | 0.50     |
"""


def suited(engine: str, problem: Problem, given: Collection[str] = ()) -> tuple[str, Problem]:
    """Return the engine to use, by name, and the problem with the method that suits it; its notes say why.

    Args:
        engine: What was asked for.
        problem: What is to be run, with dopri5 where no method was given.
        given: The `OPTIONS` that the caller set.

    Raises:
        ArgumentValueError: An unknown engine, or one that cannot do what is asked or does not use an option given.
    """
    names = ("auto", *ENGINES)
    if engine not in names:
        raise ArgumentValueError("engine", f"one of {', '.join(names)}", repr(engine))
    asked = engine
    if engine == "auto":
        may_be_stiff = "method" not in given and _suits_stiff(problem)
        adaptive = "stiff" if may_be_stiff else "compiled" if _suits_compiled(problem) else "batched"
        by_weights = "hardmax" if problem.field.attention.weights == "hardmax" else adaptive
        with_step = "sde" if problem.draws is not None else "fixed" if problem.step is not None else None
        engine = with_step or by_weights
        chosen = f"'auto', which takes {engine!r} here"
    else:
        chosen = repr(engine)
    if engine == "sde" and problem.draws is None:
        raise ArgumentValueError("noise", "td.Noise(strength, seed) for engine='sde'", None)
    if engine in ("fixed", "sde") and problem.step is None:
        why = f"for engine={engine!r}" if engine == asked else "where noise is given: its steps have one length"
        raise ArgumentValueError("step", f"a positive time {why}", None)
    for option in OPTIONS:
        if option in given and option not in ENGINES[engine].options:
            automatic = ("auto",) if option not in OF_LAYERS and asked != "auto" else ()
            names = " or ".join(repr(name) for name in (*users(option), *automatic))
            wanted = f"{names} where {option} is given"
            raise ArgumentValueError("engine", wanted, chosen, f"or leave {option} out")
    if not ENGINES[engine].differentiable and problem.wants_gradients:
        wanted = "'fixed' (by step=), 'layers' or 'batched' where gradients are wanted"
        raise ArgumentValueError("engine", wanted, repr(engine), "or detach x0 and the matrices")
    if ENGINES[engine].needs_jacobian and not problem.field.has_jacobian:
        norm = problem.field.geometry.norm
        what = "a space or positions of your own" if norm is None else _geometry_in_words(problem)
        raise ArgumentValueError(
            "engine", f"{_engines_for(problem)} for {what}", repr(engine), "their Jacobian is not known"
        )
    _check_refusals(engine, problem, chosen)
    if engine == "sde":
        how = "a step of the flow by Heun's method between two halves of Brownian motion, of weak order 2"
        looked = "; events are looked at where steps end" if problem.events or problem.recorded else ""
        return engine, replace(problem, tableau=TABLEAUS["heun"], notes=(f"with noise, {how}{looked}",))
    methods, method = ENGINES[engine].methods, problem.tableau.name
    if methods and method not in methods:
        having = " or ".join(f"{name} (by step=)" if name == "fixed" else name for name in having_method(method))
        wanted = f"one of {', '.join(methods)} for engine {engine}"
        raise ArgumentValueError("method", wanted, repr(method), f"or take engine {having}")
    if "method" in given or not methods or not ENGINES[engine].controls_error:
        return engine, problem
    return engine, _with_method(engine, problem)


def _check_refusals(engine: str, problem: Problem, chosen: str) -> None:
    """Refuse what an engine cannot do at all of a problem, and name those that can."""
    if engine == "compiled":
        require("fast", "engine", "engine='compiled'", otherwise="take 'batched'")
    refused = ENGINES[engine].refusal(problem)
    if refused is None:
        return
    if engine == "sde":
        raise UnsuitableEngineError("noise", f"none for {refused}", "noise")
    raise UnsuitableEngineError("engine", f"{_engines_for(problem)} for {refused}", chosen)


def _engines_for(problem: Problem) -> str:
    """Return the engines that can run a problem, in words."""
    able = [
        "'fixed' (by step=)" if name == "fixed" and problem.step is None else repr(name)
        for name, engine in ENGINES.items()
        if name != "sde"
        and engine.refusal(problem) is None
        and (problem.field.has_jacobian or not engine.needs_jacobian)
    ]
    return listing(able, "or")


def having_method(method: str) -> tuple[str, ...]:
    """Return the engines that have a Runge–Kutta method, by name.

    >>> having_method("rk4")
    ('fixed',)
    """
    return tuple(name for name, engine in ENGINES.items() if method in engine.methods)


_HIGH_ORDER = {"batched": (1e-7, 1e-9), "compiled": (1e-8, 1e-10)}
"""The largest rtol at which dop853 is taken where no method is named: for constant matrices, and for others.

Right-hand sides of dopri5 / dop853 at the same rtol, and the ratio of processor times: engine "batched", one thread, to
t = 10 on the sphere. Against a run at 1e-13, with constant matrices, the error of dop853 was 0.1 to 0.65 times that of
dopri5 for small systems, and less than 0.02 times for the large one. Gates are sines, and their absolute values, which
have a kink each half unit of time.

| rtol  | 32 systems of 10 × 3 | time | one of 512 × 64 | time | 200 output times | sines       | with kinks  |
|-------|----------------------|------|-----------------|------|------------------|-------------|-------------|
| 1e-4  | 84 / 101             | 0.99 | 32 / 50         | 0.69 |                  |             |             |
| 1e-5  | 117 / 125            | 1.06 | 44 / 50         | 0.69 |                  |             |             |
| 1e-6  | 169 / 153            | 1.05 | 50 / 50         | 0.97 | 169 / 191        | 356 / 519   | 524 / 772   |
| 1e-7  | 249 / 190            | 1.66 | 68 / 62         | 1.24 | 249 / 237        | 542 / 668   | 660 / 925   |
| 1e-8  | 376 / 243            | 2.02 | 92 / 74         | 1.21 | 376 / 303        | 832 / 875   | 928 / 1128  |
| 1e-9  | 577 / 307            | 1.80 | 122 / 86        | 1.63 |                  |             |             |
| 1e-10 | 895 / 395            | 2.81 | 170 / 98        | 1.59 | 895 / 490        | 2014 / 1521 | 2040 / 1670 |
| 1e-11 | 1397 / 510           | 2.42 | 248 / 110       | 2.17 |                  |             |             |
| 1e-12 | 2194 / 663           | 4.21 | 374 / 134       | 3.00 |                  |             |             |

The same for the engine "compiled": 400 to 800 systems of 10 × 3, and 64 of 32 × 8; medians of 7 alternating rounds.
Errors of dop853 are a tenth of those of dopri5 at the same rtol. The event is consensus, for which dop853 looks into
every step.

| rtol  | 10 × 3     | time | 32 × 8     | time | 200 outputs | event | sines       | time | kinks       | time |
|-------|------------|------|------------|------|-------------|-------|-------------|------|-------------|------|
| 1e-6  | 137 / 169  | 0.82 | 208 / 220  | 0.96 | 0.91        | 0.65  | 350 / 497   | 0.75 | 401 / 671   | 0.74 |
| 1e-7  | 192 / 198  | 0.92 | 302 / 263  | 1.10 | 1.00        | 0.70  | 535 / 636   | 0.85 | 551 / 783   | 0.79 |
| 1e-8  | 278 / 235  | 1.10 | 451 / 321  | 1.33 | 0.98        | 0.92  | 825 / 836   | 0.97 | 778 / 945   | 0.90 |
| 1e-9  | 414 / 287  | 1.37 | 686 / 399  | 1.64 | 1.04        | 0.98  | 1291 / 1104 | 1.14 | 1145 / 1176 | 0.87 |
| 1e-10 | 630 / 355  | 1.62 | 1061 / 505 | 2.04 | 1.10        | 1.17  | 2039 / 1450 | 1.38 | 1738 / 1462 | 1.16 |
| 1e-12 | 1528 / 567 | 2.51 | 2611 / 834 | 2.91 | 1.39        | 1.71  | 5125 / 2474 | 2.11 | 4207 / 2303 | 1.67 |
"""


def _with_method(engine: str, problem: Problem) -> Problem:
    """Return the problem with the Runge–Kutta method that suits it, and a note that says why."""
    constant = problem.field.constant
    largest = _HIGH_ORDER[engine][0 if constant else 1]
    circuits = "constant matrices" if constant else "matrices that depend on time"
    reason = None
    if problem.start.dtype != torch.float64:
        reason = "states are not float64"
    elif problem.max_step is not None or problem.field.relative:
        reason = "the length of steps is bounded"
    elif problem.rtol > largest:
        reason = (
            f"rtol = {problem.rtol:.3g} is above {largest:.0e}, from which on dop853 needs less work for {circuits}"
        )
    if reason is not None:
        return replace(problem, notes=(f"method dopri5 (order 5): {reason}",))
    why = f"rtol = {problem.rtol:.3g} is at most {largest:.0e}, where it needs less work than dopri5 for {circuits}"
    return replace(problem, tableau=TABLEAUS["dop853"], notes=(f"method dop853 (order 8): {why}",))


def _suits_compiled(problem: Problem) -> bool:
    systems, tokens, dim = problem.start.shape
    if systems * tokens * (tokens + 16) < _COMPILING or tokens * dim > SMALL:
        return False
    if problem.start.dtype != torch.float64 or problem.wants_gradients:
        return False
    known = problem.tableau.name in ENGINES["compiled"].methods
    return known and not missing("fast") and _refusal_of_compiled(problem) is None


def _suits_stiff(problem: Problem) -> bool:
    (systems, tokens, dim), (first, *_, last) = problem.start.shape, problem.times
    if (
        not 0 < systems <= _SYSTEMS
        or tokens * dim > _LARGEST_STIFF
        or problem.wants_gradients
        or not problem.field.has_jacobian
        or _refusal_of_stiff(problem) is not None
    ):
        return False
    # Every jump of a schedule starts a multistep method anew, at order one.
    if len(problem.field.attention.breaks(first, last)) > _JUMPS:
        return False
    # One system after the other there, all at once in the batched engine.
    long = min(LONG_HORIZON + _FURTHER_SYSTEM * (systems - 1), _LONGEST)
    return (last - first) * _rate(problem) >= long


def _rate(problem: Problem) -> float:
    """Return how fast velocities can change at the start: the speed of ov, times what the softmax adds."""
    field, start = problem.field, problem.start
    ov = field.attention.ov.matrix_at(problem.times[0])
    size = float(ov.norm(dim=(-2, -1)).sum(-1).max()) if not field.identity_values else field.attention.heads
    query, key = field.attention.queries_and_keys(start, problem.times[0])
    return field.factor * size * (1 + float(logits(query, key).abs().max()))
