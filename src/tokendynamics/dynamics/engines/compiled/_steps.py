"""One attempted step of eight systems by an embedded Runge–Kutta pair, its stages, error and extension."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tokendynamics.dynamics.engines.compiled._field import inner, velocity
from tokendynamics.dynamics.engines.compiled._known import Known, known_value
from tokendynamics.dynamics.engines.compiled._model import turn
from tokendynamics.dynamics.engines.compiled.lanes import (
    LONG,
    VECTOR,
    WIDTH,
    absolute,
    as_lanes,
    at_least,
    behind,
    broadcast,
    exp,
    fma,
    function,
    fused,
    inlined,
    instruction,
    lanes,
    load,
    load_lanes,
    load_row,
    rough_log,
    select,
    sqrt,
    store,
    store_lanes,
)
from tokendynamics.dynamics.engines.tableau import TABLEAUS, Row, Tableau


def _tableau(method: Any) -> Tableau:
    return TABLEAUS[known_value(method, "tableau")]


def _equal(number: Any) -> Any:
    return ir.Constant(VECTOR, [float(number)] * WIDTH)


def _slope(builder: Any, slopes: Any, stage: int, entry: Any, entries: Any) -> Any:
    return load_lanes(builder, slopes, builder.add(entry, builder.mul(entries, ir.Constant(LONG, stage))))


def _sum(context: Any, builder: Any, row: Row, slopes: Any, entry: Any, entries: Any) -> Any:
    total = None
    for stage, factor in enumerate(row):
        # Stages of weight zero are left out: they may have overflowed without mattering.
        if factor == 0:
            continue
        value = _slope(builder, slopes, stage, entry, entries)
        factor = _equal(factor)
        total = builder.fmul(factor, value) if total is None else fused(context, builder, factor, value, total)
    return _equal(0.0) if total is None else total


@instruction
def move_to_stage(typing: Any, method: Any, stage: Any, y: Any, slopes: Any, h: Any, entries: Any, into: Any) -> Any:
    """Write ``y + h Σ_s a_stage,s k_s``, the state of a stage after the first."""
    rows = dict(enumerate((*_tableau(method).stages, *_tableau(method).extra_stages)))

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, stage, y, slopes, h, entries, into = args
        h, done = as_lanes(context, builder, h, sig.args[4]), builder.append_basic_block("moved")
        choice = builder.switch(stage, done)
        for number, row in rows.items():
            block = builder.append_basic_block(f"stage{number}")
            choice.add_case(ir.Constant(LONG, number), block)
            builder.position_at_end(block)
            with cgutils.for_range(builder, entries) as loop:
                total = _sum(context, builder, row, slopes, loop.index, entries)
                state = fused(context, builder, h, total, load_lanes(builder, y, loop.index))
                store_lanes(builder, state, into, loop.index)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(method, types.intp, y, slopes, h, types.intp, into), emit


def _combination(row_of: Callable[[Tableau], Row]) -> Callable[..., Any]:
    def typing(typing: Any, method: Any, slopes: Any, entry: Any, entries: Any) -> Any:
        row = row_of(_tableau(method))

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return _sum(context, builder, row, *args[1:])

        return lanes(method, slopes, types.intp, types.intp), emit

    return typing


error_of = instruction(_combination(lambda tableau: tableau.error))
coarse_error_of = instruction(_combination(lambda tableau: tableau.coarse))


@instruction
def move_within(typing: Any, method: Any, share: Any, h: Any, y: Any, slopes: Any, entries: Any, into: Any) -> Any:
    """Write the states at the shares θ of the step, by the continuous extension; see `Tableau.extension`."""
    rows = {stage: row for stage, row in enumerate(_tableau(method).extension) if any(row)}

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, share, h, y, slopes, entries, into = args
        other = builder.fsub(_equal(1.0), share)
        weights = {}
        for stage, row in rows.items():
            total = _equal(0.0)
            for power in range(len(row) - 1, -1, -1):
                total = fused(context, builder, total, other if power % 2 == 0 else share, _equal(row[power]))
            weights[stage] = builder.fmul(builder.fmul(h, total), share)
        with cgutils.for_range(builder, entries) as loop:
            total = load_lanes(builder, y, loop.index)
            for stage, weight in weights.items():
                value = _slope(builder, slopes, stage, loop.index, entries)
                total = fused(context, builder, weight, value, total)
            store_lanes(builder, total, into, loop.index)
        return context.get_dummy_value()

    return types.void(method, share, h, y, slopes, types.intp, into), emit


SAFETY, SLOWEST, FASTEST = 0.9, 0.2, 10.0


class Method(NamedTuple):
    """A pair whose last stage is the first of the next step.

    Attributes:
        tableau: Its name, known to the compiler, as are the next three.
        last: The number of the last stage of a step.
        extra: Stages that only the continuous extension needs.
        two_errors: Whether the error is estimated twice, see `Tableau.coarse`.
        order: Of the solution that is propagated.
        nodes: c, those of extra stages included.
        reach: `Tableau.reach`.
        rtol: Relative tolerance per step.
        atol: Absolute tolerance per step.
    """

    tableau: Any
    last: Any
    extra: Any
    two_errors: Any
    order: int
    nodes: tuple[float, ...]
    reach: float
    rtol: float
    atol: float

    @classmethod
    def of(cls, tableau: Tableau, rtol: float, atol: float) -> Method:
        """Convert the exact fractions of a tableau."""
        return _method_of(tableau.name)._replace(rtol=rtol, atol=atol)


@cache
def _method_of(name: str) -> Method:
    tableau = TABLEAUS[name]
    return Method(
        tableau=Known(name),
        last=Known(len(tableau.stages) - 1),
        extra=Known(len(tableau.extra_stages)),
        two_errors=Known(bool(tableau.coarse)),
        order=tableau.order,
        nodes=tuple(float(node) for node in (*tableau.nodes, *tableau.extra_nodes)),
        reach=tableau.reach,
        rtol=0.0,
        atol=0.0,
    )


class Steps(NamedTuple):
    """Scratch memory of a step: addresses of (token · dim) lanes each.

    Attributes:
        y: Where the systems are.
        state: The stage at hand; at last the end of the step, before any projection.
        after: The projection of that.
        between: A state within the step.
        velocity: The field there.
        slopes: Those of all stages, one after the other, extra ones last; `Method.last` is the field at `after`.
        clock: Two entries: the time, or a time and the number of an event.
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
    """Fill the slopes of the step, of which the first is known, and `steps.state`."""
    for stage in range(1, method.last + 1):
        _evaluate(features, options, lanes, method, steps, stage, t, h)


@function
def extend(features, options, lanes, method, steps, t, h):
    """Fill the slopes that only the continuous extension needs; `steps.state` is overwritten."""
    for stage in range(method.last + 1, method.last + 1 + method.extra):
        _evaluate(features, options, lanes, method, steps, stage, t, h)


@inlined
def _evaluate(features, options, lanes, method, steps, stage, t, h):
    entries = options.tokens * len(features)
    move_to_stage(method, stage, steps.y, steps.slopes, h, entries, steps.state)
    into = behind(steps.slopes, stage * entries)
    velocity_at(features, options, lanes, steps, fma(h, method.nodes[stage], t), steps.state, into)


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
    ratio = _size(features, options, lanes, method, steps, h, False)
    if method.two_errors:
        coarse = _size(features, options, lanes, method, steps, h, True)
        both = ratio * ratio / sqrt(fma(0.01 * coarse, coarse, ratio * ratio))
        # An estimate that is not finite stays so.
        ratio = select(ratio > 0.0, both, ratio)
    return ratio


@inlined
def _size(features, options, lanes, method, steps, h, coarse):
    dim, tokens = len(features), options.tokens
    entries, total = tokens * dim, broadcast(0.0)
    for entry in range(entries):
        if coarse:
            error = coarse_error_of(method, steps.slopes, entry, entries)
        else:
            error = error_of(method, steps.slopes, entry, entries)
        store(steps.between, entry, error)
    if options.constrained:
        for token in range(tokens):
            row = load_row(features, steps.between, token * dim)
            total = total + inner(options, lanes, row, row)
        return h * sqrt(total / tokens) / (method.atol + method.rtol)
    for entry in range(entries):
        size = at_least(absolute(load(steps.state, entry)), absolute(load(steps.y, entry)))
        part = h * load(steps.between, entry) / fma(size, method.rtol, method.atol)
        total = fma(part, part, total)
    return sqrt(total / entries)


@inlined
def first_step(features, options, lanes, method, steps, longest):
    """Return a first guess of the step: one in which states change by a hundredth of themselves, as tolerances count.

    The controller then finds its own; see Hairer, Nørsett and Wanner, II.4, without the second derivative.
    """
    dim, tokens = len(features), options.tokens
    slope = behind(steps.slopes, method.last * tokens * dim)
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
    move_within(method, share, h, steps.y, steps.slopes, options.tokens * len(features), steps.between)
