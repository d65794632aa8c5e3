"""One attempted step of eight systems by an embedded Runge–Kutta pair, its error and its continuous extension."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tokendynamics.dynamics.engines.compiled._field import inner, velocity
from tokendynamics.dynamics.engines.compiled._model import turn
from tokendynamics.dynamics.engines.compiled._rows import combined, load_row
from tokendynamics.dynamics.engines.compiled.lanes import (
    absolute,
    at_least,
    behind,
    broadcast,
    exp,
    fma,
    function,
    inlined,
    load,
    rough_log,
    select,
    sqrt,
    store,
)
from tokendynamics.dynamics.engines.tableau import Tableau

SAFETY, SLOWEST, FASTEST = 0.9, 0.2, 10.0
MOST = 6
"""Stages that a step evaluates at most."""


class Method(NamedTuple):
    """A pair whose last stage is the first of the next step, as tuples, whose lengths the compiler knows.

    Attributes:
        order: Of the solution that is propagated.
        nodes: c.
        stages: Rows of a, without the first, which is empty; the last one is repeated until there are `MOST`.
        error: b − b̂.
        extension: `Tableau.extension`.
        reach: `Tableau.reach`.
        rtol: Relative tolerance per step.
        atol: Absolute tolerance per step.
    """

    order: int
    nodes: tuple[float, ...]
    stages: tuple[tuple[float, ...], ...]
    error: tuple[float, ...]
    extension: tuple[tuple[float, ...], ...]
    reach: float
    rtol: float
    atol: float

    @classmethod
    def of(cls, tableau: Tableau, rtol: float, atol: float) -> Method:
        """Convert the exact fractions of a tableau."""

        def rows(table: tuple[tuple[Any, ...], ...]) -> tuple[tuple[float, ...], ...]:
            return tuple(tuple(map(float, row)) for row in table)

        nodes, error = rows((tableau.nodes, tableau.error))
        stages = rows(tableau.stages[1:])
        stages += stages[-1:] * (MOST - len(stages))
        return cls(tableau.order, nodes, stages, error, rows(tableau.extension), tableau.reach, rtol, atol)


class Steps(NamedTuple):
    """Scratch memory of a step: addresses of (token · dim) lanes each.

    Attributes:
        y: Where the systems are.
        state: The stage at hand; at last the end of the step, before any projection.
        after: The projection of that.
        between: A state within the step.
        velocity: The field there.
        slopes: Those of all stages, one after the other; the last is the field at `after`.
        clock: One entry for each stage: the time, or weights of the continuous extension.
    """

    y: Any
    state: Any
    after: Any
    between: Any
    velocity: Any
    slopes: Any
    clock: Any


@inlined
def take_step(features, options, lanes, method, steps, t, h):
    """Fill the slopes, of which the first is known, and `steps.state`."""
    entries = options.tokens * len(features)
    for stage in range(1, len(method.nodes)):
        _set_state(entries, method, steps, stage, h)
        slope = behind(steps.slopes, stage * entries)
        velocity_at(features, options, lanes, steps, fma(h, method.nodes[stage], t), steps.state, slope)


@inlined
def _set_state(entries, method, steps, stage, h):
    """Write the state of a stage."""
    # A loop over tuples of different lengths would take stack anew at each step, and misalign it for lanes.
    if stage == 1:
        _move(entries, method.stages[0], steps, h)
    elif stage == 2:
        _move(entries, method.stages[1], steps, h)
    elif stage == 3:
        _move(entries, method.stages[2], steps, h)
    elif stage == 4:
        _move(entries, method.stages[3], steps, h)
    elif stage == 5:
        _move(entries, method.stages[4], steps, h)
    else:
        _move(entries, method.stages[5], steps, h)


@inlined
def _move(entries, row, steps, h):
    for entry in range(entries):
        store(steps.state, entry, fma(h, combined(row, steps.slopes, entry, entries), load(steps.y, entry)))


@function
def velocity_at(features, options, lanes, steps, t, x, into):
    """Write the field at the states x and times t."""
    if options.turning:
        store(steps.clock, 0, t)
        turn(lanes, steps.clock)
    velocity(features, options, lanes, x, into)


@inlined
def error_size(features, options, lanes, method, steps, h):
    """Return the estimated error in units of what the tolerances allow, as a root mean square; NaN if not finite."""
    dim, tokens = len(features), options.tokens
    entries, total = tokens * dim, broadcast(0.0)
    if options.constrained:
        for token in range(tokens):
            for entry in range(token * dim, (token + 1) * dim):
                store(steps.between, entry, combined(method.error, steps.slopes, entry, entries))
            row = load_row(features, steps.between, token * dim)
            total = total + inner(options, lanes, row, row)
        return h * sqrt(total / tokens) / (method.atol + method.rtol)
    for entry in range(entries):
        size = at_least(absolute(load(steps.state, entry)), absolute(load(steps.y, entry)))
        error = h * combined(method.error, steps.slopes, entry, entries)
        part = error / fma(size, method.rtol, method.atol)
        total = fma(part, part, total)
    return sqrt(total / entries)


@inlined
def first_step(features, options, lanes, method, steps, longest):
    """Return a first guess of the step: one in which states change by a hundredth of themselves, as tolerances count.

    The controller then finds its own; see Hairer, Nørsett and Wanner, II.4, without the second derivative.
    """
    dim, tokens = len(features), options.tokens
    slope = behind(steps.slopes, (len(method.nodes) - 1) * tokens * dim)
    size, speed = broadcast(0.0), broadcast(0.0)
    if options.constrained:
        for token in range(tokens):
            row = load_row(features, slope, token * dim)
            speed = speed + inner(options, lanes, row, row)
        size, speed = broadcast(1.0), sqrt(speed / tokens)
    else:
        for entry in range(tokens * dim):
            y = absolute(load(steps.y, entry))
            allowed = fma(y, method.rtol, method.atol)
            one, other = y / allowed, load(slope, entry) / allowed
            size, speed = fma(one, one, size), fma(other, other, speed)
        size, speed = sqrt(size), sqrt(speed)
    guess = 0.01 * size / at_least(speed, 1e-300)
    guess = select((size < 1e-5) | (speed < 1e-5), 1e-6, guess)
    return select(guess < longest, guess, select(guess >= longest, longest, guess))


@inlined
def proposed(method, h, ratio, last_ratio, accepted):
    """Return the next step length by the ratios of error and tolerance of this step and the last accepted one."""
    log = rough_log(at_least(ratio, 1e-10))
    factor = SAFETY * exp((-0.7 / method.order) * log + (0.4 / method.order) * rough_log(last_ratio))
    factor = select(ratio < math.inf, factor, SLOWEST)
    factor = at_least(factor, SLOWEST)
    most = select(accepted, FASTEST, 1.0)
    return h * select(factor < most, factor, most)


@function
def dense_state(features, options, method, steps, share, h):
    """Write the states at the shares θ of the step into `steps.between`, by the continuous extension."""
    entries = options.tokens * len(features)
    other = 1.0 - share
    for stage in range(len(method.extension)):
        row, total = method.extension[stage], broadcast(0.0)
        for power in range(len(row) - 1, -1, -1):
            total = fma(total, other if power % 2 == 0 else share, row[power])
        store(steps.clock, stage, h * total * share)
    for entry in range(entries):
        total = load(steps.y, entry)
        for stage in range(len(method.extension)):
            total = fma(load(steps.clock, stage), load(steps.slopes, stage * entries + entry), total)
        store(steps.between, entry, total)
