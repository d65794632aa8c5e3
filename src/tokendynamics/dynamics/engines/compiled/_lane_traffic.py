"""How systems enter and leave the lanes: numbers of one lane at a time, from and to arrays of all systems."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tokendynamics.dynamics.engines.compiled._events import Ends
from tokendynamics.dynamics.engines.compiled._model import Options, fill
from tokendynamics.dynamics.engines.compiled._steps import Method, Steps, dense_state
from tokendynamics.dynamics.engines.compiled.lanes import (
    WIDTH,
    any_of,
    behind,
    floats,
    holds,
    inlined,
    integers,
    load,
    select,
)

ARRIVED, SPENT, STUCK, STOPPED, MET = range(5)
"""How a system leaves: at the end of the interval, without budget, without a step, by Ctrl-C, at event number − MET."""

TIME, STEP, RATIO, FRESH, LIVE, TRIED, ACCEPTED, DUE, EXTENDED, EXTENSIONS, VALUES = range(11)
"""Entries of the control memory, one number for each lane; the values of the events come last."""


RUN_TRIED, RUN_ACCEPTED, RUN_EVALUATED, RUN_EXTENDED, RUN_DUE, RUN_CODE, RUN_FINITE, RUN_COUNTS = range(8)
"""What is counted of each run: attempted and accepted steps, how often all stages and the extra ones were evaluated;
the output time that is due next, how the run ended, and whether the field was finite all over its last step."""

RUN_STEP, RUN_END, RUN_TIMES = range(3)
"""The step to take next, 0 where none is known, and where the run ended."""


class LaneRun(NamedTuple):
    """All systems, before and after, as addresses of arrays whose first axis is the system.

    Attributes:
        y: States (system, token · dim), at last where each system's run ended.
        counts: (system, `RUN_COUNTS`).
        times: (system, `RUN_TIMES`).
        states: At the output times, (system, time, token · dim), before any projection.
    """

    y: int
    counts: int
    times: int
    states: int


class Interval(NamedTuple):
    """Where a run goes.

    Attributes:
        left: Where all systems stand.
        right: The end, which the last step lands on.
        times: Address of all output times.
        outputs: How many there are.
        max_steps: Budget of attempted steps, those of earlier intervals counted.
        longest: The longest step.
        spacing: That of floats at the left end: no first step is shorter.
    """

    left: float
    right: float
    times: int
    outputs: int
    max_steps: int
    longest: float
    spacing: float


def room_of_scratch(options: Options, method: Method, ends: Ends, dim: int) -> int:
    """Return how many lanes `scratch` takes, and one more: the steps that systems came with."""
    return (5 + len(method.nodes)) * options.tokens * dim + 2 + VALUES + ends.size + 1


@inlined
def scratch(features, options, method, place):
    """Return memory for steps and control, from `place` on."""
    entries, stages = options.tokens * len(features), len(method.nodes)
    state, after, between = behind(place, entries), behind(place, 2 * entries), behind(place, 3 * entries)
    velocity, slopes = behind(place, 4 * entries), behind(place, 5 * entries)
    clock = behind(slopes, stages * entries)
    return Steps(place, state, after, between, velocity, slopes, clock), behind(clock, 2)


@inlined
def enter(features, options, systems, lanes, steps, control, interval, run, lane, system):
    """Put a system into a lane, as one whose field is not known yet."""
    fill(features, options, systems, lanes, lane, system)
    entries = options.tokens * len(features)
    for entry in range(entries):
        steps.y[WIDTH * entry + lane] = floats(run.y)[system * entries + entry]
        # What the system before left there may be infinite, and infinity times a step of zero is no number.
        steps.slopes[WIDTH * entry + lane] = 0.0
    counts = system * RUN_COUNTS
    control[WIDTH * TIME + lane] = interval.left
    control[WIDTH * STEP + lane] = control[WIDTH * ACCEPTED + lane] = control[WIDTH * EXTENSIONS + lane] = 0.0
    control[WIDTH * RATIO + lane] = control[WIDTH * FRESH + lane] = control[WIDTH * LIVE + lane] = 1.0
    control[WIDTH * TRIED + lane] = integers(run.counts)[counts + RUN_TRIED]
    control[WIDTH * DUE + lane] = _due(interval, integers(run.counts)[counts + RUN_DUE])


@inlined
def leave(features, options, steps, control, run, lane, system, code, end, finite):
    """Write down where and how the run of a system ended."""
    entries = options.tokens * len(features)
    for entry in range(entries):
        floats(run.y)[system * entries + entry] = steps.y[WIDTH * entry + lane]
    counts, place = integers(run.counts), system * RUN_COUNTS
    tried = int(control[WIDTH * TRIED + lane])
    counts[place + RUN_EVALUATED] += tried - counts[place + RUN_TRIED] + 1
    counts[place + RUN_TRIED] = tried
    counts[place + RUN_ACCEPTED] += int(control[WIDTH * ACCEPTED + lane])
    counts[place + RUN_EXTENDED] += int(control[WIDTH * EXTENSIONS + lane])
    counts[place + RUN_CODE], counts[place + RUN_FINITE] = code, finite
    times, place = floats(run.times), system * RUN_TIMES
    times[place + RUN_STEP], times[place + RUN_END] = control[WIDTH * STEP + lane], end
    control[WIDTH * LIVE + lane] = control[WIDTH * STEP + lane] = 0.0


@inlined
def hand_out(features, options, method, steps, control, interval, run, inside, which, until, t, h):
    """Write the states at the output times up to `until`, of the lanes where the mask holds."""
    entries, counts = options.tokens * len(features), integers(run.counts)
    due = which & (load(control, DUE) <= until)
    while any_of(due):
        share = (load(control, DUE) - t) / h
        share = select(share < 1.0, share, 1.0)
        dense_state(features, options, method, steps, select(share > 0.0, share, 0.0), h)
        for lane in range(WIDTH):
            if holds(due, lane):
                place = inside[lane] * RUN_COUNTS + RUN_DUE
                output = (inside[lane] * interval.outputs + counts[place]) * entries
                for entry in range(entries):
                    floats(run.states)[output + entry] = steps.between[WIDTH * entry + lane]
                counts[place] += 1
                control[WIDTH * DUE + lane] = _due(interval, counts[place])
        due = which & (load(control, DUE) <= until)


@inlined
def _due(interval, output):
    return floats(interval.times)[output] if output < interval.outputs else math.inf


@inlined
def noted(crossings, count, steps, entries, lane, event, system):
    """Write down a crossing, at the time in the clock and the state between; return the rows, wider where need be."""
    width = 3 + entries
    if (count + 1) * width > len(crossings):
        wider = np.empty(2 * (count + 1) * width)
        for number in range(count * width):
            wider[number] = crossings[number]
        crossings = wider
    row = count * width
    crossings[row], crossings[row + 1], crossings[row + 2] = event, system, steps.clock[lane]
    for entry in range(entries):
        crossings[row + 3 + entry] = steps.between[WIDTH * entry + lane]
    return crossings
