"""Falls of an event's value within a step of eight systems: what `engines._crossings` does, lane by lane."""

from __future__ import annotations

import math

from tokendynamics.dynamics.engines._crossings import GOLDEN, HALVINGS, MARGIN, PLACES, REACH, SECTIONS, SLOWER
from tokendynamics.dynamics.engines.compiled._ends import AT_REST, NORM_ABOVE, value_within
from tokendynamics.dynamics.engines.compiled._rows import dot, load_row
from tokendynamics.dynamics.engines.compiled.lanes import (
    any_of,
    at_least,
    broadcast,
    function,
    inlined,
    select,
    sqrt,
)

_LAST = len(PLACES) - 1


@function
def may_cross(features, options, method, steps, ends, event, before, after, h):
    """Return the lanes in which an event's value can be zero within the step; see `engines._crossings`."""
    bound = ends.bounds[event]
    if ends.kinds[event] == AT_REST:
        return ~(_slowest(features, options, method, steps) > SLOWER * bound)
    change = REACH * h * _largest_change(features, options, method, steps)
    reach = select(change < 0.5, 2.0 * change / (1.0 - change), math.inf)
    least, most = select(before < after, before, after), at_least(before, after)
    if ends.kinds[event] == NORM_ABOVE:
        # The value is bound − norm, and the reach is one of the norm's logarithm.
        return ~((least > reach * (bound - least)) | (most < -1.0 * reach * bound))
    return ~((least > reach) | (most < -1.0 * reach))


@inlined
def _slowest(features, options, method, steps):
    """Return the least over the stages of the largest speed of a token."""
    dim, entries = len(features), options.tokens * len(features)
    slowest = broadcast(math.inf)
    for stage in range(len(method.nodes)):
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
        for stage in range(len(method.nodes)):
            row = load_row(features, steps.slopes, stage * entries + token * dim)
            speed = at_least(dot(row, row), speed)
        largest = at_least(speed / dot(state, state), largest)
    return sqrt(largest)


@function
def next_crossing(features, options, lanes, method, steps, ends, event, t, h, since, before, after):
    """Return the first share of the step beyond `since` at which the value falls to zero; infinite without one.

    The value is `before` at the share `since`, and `after` at the end of the step.
    """
    found = broadcast(math.inf)
    place, value = since, before
    left_place, left = since, before
    for number in range(1, _LAST + 1):
        following = after
        if number < _LAST:
            share = broadcast(PLACES[number])
            following = value_within(features, options, lanes, method, steps, ends, event, share, t, h)
        active = (since < PLACES[number]) & ~(found < math.inf)
        above = value > 0.0
        side = select(above, 1.0, -1.0)
        depth = MARGIN * at_least(side * (left - value), side * (following - value))
        turns = side * value <= depth
        turns = turns & (side * (value - left) <= 0.0) & (side * (value - following) <= 0.0)
        turns = turns & active & (place > left_place)
        right = broadcast(PLACES[number])
        if any_of(turns):
            at, extreme = _extremum(features, options, lanes, method, steps, ends, event, t, h, side, left_place, right)
            crossed = turns & ((above & (extreme <= 0.0)) | (~above & (extreme < 0.0)))
            if any_of(crossed):
                low, high = select(above, left_place, at), select(above, at, right)
                at = bisected(features, options, lanes, method, steps, ends, event, t, h, low, high)
                found = select(crossed, at, found)
        falls = active & ~(found < math.inf) & above & (following <= 0.0)
        if any_of(falls):
            at = bisected(features, options, lanes, method, steps, ends, event, t, h, place, right)
            found = select(falls, at, found)
        left_place, left = select(active, place, left_place), select(active, value, left)
        place, value = select(active, right, place), select(active, following, value)
    return found


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
