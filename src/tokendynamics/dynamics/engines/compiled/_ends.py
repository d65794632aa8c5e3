"""Events of eight systems: the values of `dynamics.events` at the end of a step and within it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tokendynamics.dynamics.engines._crossings import is_sampled
from tokendynamics.dynamics.engines.compiled._field import project, refine
from tokendynamics.dynamics.engines.compiled._model import turn
from tokendynamics.dynamics.engines.compiled._rows import added, dot, load_row, scaled
from tokendynamics.dynamics.engines.compiled._steps import dense_state, velocity_at
from tokendynamics.dynamics.engines.compiled.lanes import (
    at_least,
    behind,
    broadcast,
    fma,
    function,
    inlined,
    load,
    sqrt,
    store,
)
from tokendynamics.dynamics.engines.problem import Problem
from tokendynamics.dynamics.events import AtRest, Consensus, Event, NormAbove

CONSENSUS, NORM_ABOVE, AT_REST = range(3)


class Ends(NamedTuple):
    """Events as numbers; those that end a run come first.

    Attributes:
        kinds: `CONSENSUS`, `NORM_ABOVE` or `AT_REST`.
        bounds: Chord, norm or speed.
        references: The token that consensus is measured from.
        ending: How many of them end a run; the others are recorded.
        sampled: Which of them are looked for within steps.
    """

    kinds: Any
    bounds: Any
    references: Any
    ending: int
    sampled: Any


def ends_of(problem: Problem) -> Ends:
    """Return the events of a problem as numbers."""
    events = (*problem.events, *problem.recorded)
    kinds, bounds, references = [], [], []
    for event in events:
        kind, bound, reference = _numbers(event)
        kinds.append(kind)
        bounds.append(bound)
        references.append(reference % problem.start.shape[1])
    return Ends(
        np.array(kinds, dtype=np.int64),
        np.array(bounds, dtype=np.float64),
        np.array(references, dtype=np.int64),
        len(problem.events),
        np.array([is_sampled(event) for event in events], dtype=np.bool_),
    )


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
def value(features, options, lanes, kind, bound, reference, x, slope):
    """Return what is zero or less where the event holds, of states x on the space and the field there."""
    dim = len(features)
    largest = broadcast(0.0)
    if kind == AT_REST:
        for token in range(options.tokens):
            row = load_row(features, slope, token * dim)
            largest = at_least(sqrt(dot(row, row)), largest)
        return largest - bound
    if kind == NORM_ABOVE:
        for token in range(options.tokens):
            row = load_row(features, x, token * dim)
            largest = at_least(sqrt(dot(row, row)), largest)
        return bound - largest
    row = load_row(features, x, reference * dim)
    centre = scaled(-1.0 / sqrt(dot(row, row)), row)
    for token in range(options.tokens):
        row = load_row(features, x, token * dim)
        apart = added(1.0 / sqrt(dot(row, row)), row, centre)
        largest = at_least(sqrt(dot(apart, apart)), largest)
    return largest - bound


@inlined
def at_end(features, options, lanes, method, steps, ends, event, t):
    """Return the value of an event at the end of the step, whose last slope is the field there."""
    kind, bound, reference = ends.kinds[event], ends.bounds[event], ends.references[event]
    entries = options.tokens * len(features)
    slope = behind(steps.slopes, (len(method.nodes) - 1) * entries)
    if kind == AT_REST and options.multiple:
        for entry in range(entries):
            store(steps.velocity, entry, load(slope, entry))
        if options.turning:
            store(steps.clock, 0, t)
            turn(lanes, steps.clock)
        refine(features, options, lanes, steps.after, steps.velocity)
        slope = steps.velocity
    return value(features, options, lanes, kind, bound, reference, steps.after, slope)


@function
def value_within(features, options, lanes, method, steps, ends, event, share, t, h):
    """Return the value of an event at the shares of the step."""
    dense_state(features, options, method, steps, share, h)
    kind, bound, reference = ends.kinds[event], ends.bounds[event], ends.references[event]
    if kind == AT_REST:
        velocity_at(features, options, lanes, steps, fma(share, h, t), steps.between, steps.velocity)
        if options.multiple:
            refine(features, options, lanes, steps.between, steps.velocity)
    project(features, options, lanes, steps.between, steps.between)
    return value(features, options, lanes, kind, bound, reference, steps.between, steps.velocity)
