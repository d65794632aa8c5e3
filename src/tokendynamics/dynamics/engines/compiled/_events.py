"""Events of eight systems: their values at the end of a step and within it, and where these fall to zero.

Lane by lane what `dynamics.events` and `engines._crossings` do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tokendynamics.dynamics.engines._crossings import GOLDEN, HALVINGS, MARGIN, PLACES, SECTIONS, SLOWER, is_sampled
from tokendynamics.dynamics.engines.compiled._field import project, refine
from tokendynamics.dynamics.engines.compiled._known import Known
from tokendynamics.dynamics.engines.compiled._model import turn
from tokendynamics.dynamics.engines.compiled._steps import dense_state, velocity_at
from tokendynamics.dynamics.engines.compiled.lanes import (
    added,
    any_of,
    at_least,
    behind,
    broadcast,
    dot,
    floats,
    fma,
    function,
    inlined,
    integers,
    load,
    load_row,
    scaled,
    select,
    sqrt,
    store,
)
from tokendynamics.dynamics.engines.problem import Problem
from tokendynamics.dynamics.events import AtRest, Consensus, Event, NormAbove

CONSENSUS, NORM_ABOVE, AT_REST = range(3)


class Ends(NamedTuple):
    """Events as numbers; those that end a run come first.

    Attributes:
        kinds: Address of `CONSENSUS`, `NORM_ABOVE` or `AT_REST`.
        bounds: Address of chord, norm or speed.
        references: Address of the tokens that consensus is measured from.
        sampled: Address of whether an event is looked for within steps, 0 or 1.
        size: How many events there are.
        ending: How many of them end a run; the others are recorded.
        present: Whether there are events; known to the compiler, as is all that follows.
        within: Whether some are sampled.
        recording: Whether some are recorded.
        rest: Whether some are `AT_REST`.
    """

    kinds: int
    bounds: int
    references: int
    sampled: int
    size: int
    ending: int
    present: Any
    within: Any
    recording: Any
    rest: Any


def ends_of(problem: Problem) -> tuple[Ends, tuple[np.ndarray, ...]]:
    """Return the events of a problem as numbers, and the arrays that hold them."""
    events = (*problem.events, *problem.recorded)
    numbers = [_numbers(event) for event in events]
    kinds, bounds, references = ([number[part] for number in numbers] for part in range(3))
    sampled = [is_sampled(event) for event in events]
    whole = [kinds, [reference % problem.start.shape[1] for reference in references], sampled]
    arrays = (*(np.array(part, dtype=np.int64) for part in whole), np.array(bounds, dtype=np.float64))
    kind, reference, within, bound = (array.ctypes.data for array in arrays)
    ends = Ends(
        kinds=kind,
        bounds=bound,
        references=reference,
        sampled=within,
        size=len(events),
        ending=len(problem.events),
        present=Known(bool(events)),
        within=Known(any(sampled)),
        recording=Known(bool(problem.recorded)),
        rest=Known(AT_REST in kinds),
    )
    return ends, arrays


def _numbers(event: Event) -> tuple[int, float, int]:
    match event:
        case Consensus(below=below, reference=reference):
            return CONSENSUS, below, reference
        case NormAbove(bound=bound):
            return NORM_ABOVE, bound, 0
        case AtRest(speed=speed):
            return AT_REST, speed, 0
    raise AssertionError


@inlined
def value(features, options, ends, event, x, slope):
    """Return what is zero or less where the event holds, of states x on the space and the field there."""
    dim, kind, bound = len(features), integers(ends.kinds)[event], floats(ends.bounds)[event]
    largest = broadcast(0.0)
    if ends.rest and kind == AT_REST:
        for token in range(options.tokens):
            row = load_row(features, slope, token * dim)
            largest = at_least(sqrt(dot(row, row)), largest)
        return largest - bound
    if kind == CONSENSUS:
        row = load_row(features, x, integers(ends.references)[event] * dim)
        centre = scaled(-1.0 / sqrt(dot(row, row)), row)
        for token in range(options.tokens):
            row = load_row(features, x, token * dim)
            apart = added(1.0 / sqrt(dot(row, row)), row, centre)
            largest = at_least(sqrt(dot(apart, apart)), largest)
        return largest - bound
    for token in range(options.tokens):
        row = load_row(features, x, token * dim)
        largest = at_least(sqrt(dot(row, row)), largest)
    return bound - largest


@inlined
def at_end(features, options, lanes, method, steps, ends, event, t):
    """Return the value of an event at the end of the step, whose last slope is the field there."""
    entries = options.tokens * len(features)
    slope = behind(steps.slopes, method.last * entries)
    if ends.rest and integers(ends.kinds)[event] == AT_REST and options.multiple:
        for entry in range(entries):
            store(steps.velocity, entry, load(slope, entry))
        if options.turning:
            store(steps.clock, 0, t)
            turn(lanes, steps.clock)
        refine(features, options, lanes, steps.after, steps.velocity)
        slope = steps.velocity
    return value(features, options, ends, event, steps.after, slope)


@function
def value_within(features, options, lanes, method, steps, ends, event, share, t, h):
    """Return the value of an event at the shares of the step."""
    dense_state(features, options, method, steps, share, h)
    if ends.rest and integers(ends.kinds)[event] == AT_REST:
        velocity_at(features, options, lanes, steps, fma(share, h, t), steps.between, steps.velocity)
        if options.multiple:
            refine(features, options, lanes, steps.between, steps.velocity)
    project(features, options, lanes, steps.between, steps.between)
    return value(features, options, ends, event, steps.between, steps.velocity)


_LAST = len(PLACES) - 1


@function
def may_cross(features, options, method, steps, ends, event, before, after, h):
    """Return the lanes in which an event's value can be zero within the step; see `engines._crossings`."""
    bound = floats(ends.bounds)[event]
    if ends.rest and integers(ends.kinds)[event] == AT_REST:
        return ~(_slowest(features, options, method, steps) > SLOWER * bound)
    change = method.reach * h * _largest_change(features, options, method, steps)
    reach = select(change < 0.5, 2.0 * change / (1.0 - change), math.inf)
    least, most = select(before < after, before, after), at_least(before, after)
    if integers(ends.kinds)[event] == NORM_ABOVE:
        # The value is bound − norm, and the reach is one of the norm's logarithm.
        return ~((least > reach * (bound - least)) | (most < -1.0 * reach * bound))
    return ~((least > reach) | (most < -1.0 * reach))


@inlined
def _slowest(features, options, method, steps):
    """Return the least over the stages of the largest speed of a token."""
    dim, entries = len(features), options.tokens * len(features)
    slowest = broadcast(math.inf)
    for stage in range(method.last + 1):
        largest = broadcast(0.0)
        for token in range(options.tokens):
            row = load_row(features, steps.slopes, stage * entries + token * dim)
            largest = at_least(dot(row, row), largest)
        slowest = select(largest < slowest, largest, slowest)
    return sqrt(slowest)


@inlined
def _largest_change(features, options, method, steps):
    """Return the largest speed of a token in any stage relative to its norm."""
    dim, entries = len(features), options.tokens * len(features)
    largest = broadcast(0.0)
    for token in range(options.tokens):
        state, speed = load_row(features, steps.y, token * dim), broadcast(0.0)
        for stage in range(method.last + 1):
            row = load_row(features, steps.slopes, stage * entries + token * dim)
            speed = at_least(dot(row, row), speed)
        largest = at_least(speed / dot(state, state), largest)
    return sqrt(largest)


@function
def next_crossing(features, options, lanes, method, steps, ends, event, t, h, since, before, after):
    """Return the first share of the step beyond `since` at which the value falls to zero; infinite without one.

    The value is `before` at the share `since`, and `after` at the end of the step.
    """
    crossing = broadcast(math.inf)
    place, value = since, before
    left_place, left = since, before
    for number in range(1, _LAST + 1):
        following = after
        if number < _LAST:
            share = broadcast(PLACES[number])
            following = value_within(features, options, lanes, method, steps, ends, event, share, t, h)
        active = (since < PLACES[number]) & ~(crossing < math.inf)
        above = value > 0.0
        side = select(above, 1.0, -1.0)
        right = broadcast(PLACES[number])
        ratio = (right - place) / (place - left_place)
        falls_left = side * (left - value) * select(ratio > 1.0, ratio, 1.0)
        falls_right = side * (following - value) * select(ratio < 1.0, 1.0 / ratio, 1.0)
        depth = MARGIN * at_least(falls_left, falls_right)
        turns = side * value <= depth
        turns = turns & (side * (value - left) <= 0.0) & (side * (value - following) <= 0.0)
        turns = turns & active & (place > left_place)
        if any_of(turns):
            at, extreme = _extremum(features, options, lanes, method, steps, ends, event, t, h, side, left_place, right)
            crossed = turns & ((above & (extreme <= 0.0)) | (~above & (extreme < 0.0)))
            if any_of(crossed):
                low, high = select(above, left_place, at), select(above, at, right)
                at = bisected(features, options, lanes, method, steps, ends, event, t, h, low, high)
                crossing = select(crossed, at, crossing)
        falls = active & ~(crossing < math.inf) & above & (following <= 0.0)
        if any_of(falls):
            at = bisected(features, options, lanes, method, steps, ends, event, t, h, place, right)
            crossing = select(falls, at, crossing)
        left_place, left = select(active, place, left_place), select(active, value, left)
        place, value = select(active, right, place), select(active, following, value)
    return crossing


@function
def _extremum(features, options, lanes, method, steps, ends, event, t, h, side, low, high):
    """Return where between two places `side` times the value is least, and that, by golden sections."""
    first, second = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_first = side * value_within(features, options, lanes, method, steps, ends, event, first, t, h)
    at_second = side * value_within(features, options, lanes, method, steps, ends, event, second, t, h)
    for _ in range(SECTIONS):
        left = at_first < at_second
        low, high = select(left, low, first), select(left, second, high)
        place = select(left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        value = side * value_within(features, options, lanes, method, steps, ends, event, place, t, h)
        first, second = select(left, place, second), select(left, first, place)
        at_first, at_second = select(left, value, at_second), select(left, at_first, value)
    left = at_first < at_second
    return select(left, first, second), select(left, at_first, at_second)


@function
def bisected(features, options, lanes, method, steps, ends, event, t, h, low, high):
    """Return the share of the step at which the value, above zero at `low` and not at `high`, becomes zero."""
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        over = value_within(features, options, lanes, method, steps, ends, event, middle, t, h) <= 0.0
        low, high = select(over, low, middle), select(over, middle, high)
    return high
