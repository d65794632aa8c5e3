"""How systems enter and leave the lanes: numbers of one lane at a time, from and to arrays of all systems."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tokendynamics.dynamics.engines.compiled._model import fill
from tokendynamics.dynamics.engines.compiled._steps import Steps, dense_state
from tokendynamics.dynamics.engines.compiled.lanes import (
    WIDTH,
    any_of,
    behind,
    function,
    holds,
    inlined,
    load,
    room,
    select,
)

ARRIVED, SPENT, STUCK, STOPPED, MET = range(5)
"""How a system leaves: at the end of the interval, without budget, without a step, by Ctrl-C, at event number − MET."""

TIME, STEP, RATIO, FRESH, LIVE, TRIED, ACCEPTED, DUE, VALUES = range(9)
"""Entries of the control memory, one number for each lane; the values of the events come last."""


class LaneRun(NamedTuple):
    """All systems, before and after; arrays whose first axis is the system.

    Attributes:
        y: States (system, token, dim), at last where each system's run ended.
        step: The step to take next; 0 where none is known.
        tried: Attempted steps.
        accepted: Accepted steps.
        evaluations: Times that all stages were evaluated.
        cursor: The output time that is due next.
        end: Where each run ended.
        code: How: `ARRIVED`, …
        finite: Whether the field was finite all over the last step tried.
        states: At the output times, (system, time, token, dim), before any projection.
    """

    y: Any
    step: Any
    tried: Any
    accepted: Any
    evaluations: Any
    cursor: Any
    end: Any
    code: Any
    finite: Any
    states: Any


class Interval(NamedTuple):
    """Where a run goes.

    Attributes:
        left: Where all systems stand.
        right: The end, which the last step lands on.
        times: All output times.
        max_steps: Budget of attempted steps, those of earlier intervals counted.
        longest: The longest step.
        spacing: That of floats at the left end: no first step is shorter.
    """

    left: float
    right: float
    times: Any
    max_steps: int
    longest: float
    spacing: float


@inlined
def scratch(features, options, method, ends):
    """Return memory for steps and control, and the array that holds it."""
    entries, stages = options.tokens * len(features), len(method.nodes)
    array, place = room((5 + stages) * entries + stages + VALUES + len(ends.kinds) + 1)
    state, after, between = behind(place, entries), behind(place, 2 * entries), behind(place, 3 * entries)
    velocity, slopes = behind(place, 4 * entries), behind(place, 5 * entries)
    clock = behind(slopes, stages * entries)
    return Steps(place, state, after, between, velocity, slopes, clock), behind(clock, stages), array


@function
def enter(systems, lanes, steps, control, interval, run, lane, system):
    """Put a system into a lane, as one whose field is not known yet."""
    fill(systems, lanes, lane, system)
    states = run.y[system]
    tokens, dim = states.shape
    for entry in range(tokens * dim):
        steps.y[WIDTH * entry + lane] = states[entry // dim, entry % dim]
        # What the system before left there may be infinite, and infinity times a step of zero is no number.
        steps.slopes[WIDTH * entry + lane] = 0.0
    control[WIDTH * TIME + lane] = interval.left
    control[WIDTH * STEP + lane] = control[WIDTH * ACCEPTED + lane] = 0.0
    control[WIDTH * RATIO + lane] = control[WIDTH * FRESH + lane] = control[WIDTH * LIVE + lane] = 1.0
    control[WIDTH * TRIED + lane] = run.tried[system]
    control[WIDTH * DUE + lane] = _due(interval.times, run.cursor[system])


@function
def leave(steps, control, run, lane, system, code, end, finite):
    """Write down where and how the run of a system ended."""
    tokens, dim = run.y[system].shape
    for entry in range(tokens * dim):
        run.y[system, entry // dim, entry % dim] = steps.y[WIDTH * entry + lane]
    run.step[system] = control[WIDTH * STEP + lane]
    attempts = int(control[WIDTH * TRIED + lane]) - run.tried[system]
    run.tried[system] += attempts
    run.accepted[system] += int(control[WIDTH * ACCEPTED + lane])
    run.evaluations[system] += attempts + 1
    run.end[system], run.code[system], run.finite[system] = end, code, finite
    control[WIDTH * LIVE + lane] = control[WIDTH * STEP + lane] = 0.0


@inlined
def hand_out(features, options, method, steps, control, interval, run, inside, which, until, t, h):
    """Write the states at the output times up to `until`, of the lanes where the mask holds."""
    entries, dim = options.tokens * len(features), len(features)
    due = which & (load(control, DUE) <= until)
    while any_of(due):
        share = (load(control, DUE) - t) / h
        share = select(share < 1.0, share, 1.0)
        dense_state(features, options, method, steps, select(share > 0.0, share, 0.0), h)
        for lane in range(WIDTH):
            if holds(due, lane):
                system = inside[lane]
                cursor = run.cursor[system]
                for entry in range(entries):
                    value = steps.between[WIDTH * entry + lane]
                    run.states[system, cursor, entry // dim, entry % dim] = value
                run.cursor[system] = cursor + 1
                control[WIDTH * DUE + lane] = _due(interval.times, cursor + 1)
        due = which & (load(control, DUE) <= until)


@inlined
def _due(times, cursor):
    return times[cursor] if cursor < len(times) else math.inf


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
