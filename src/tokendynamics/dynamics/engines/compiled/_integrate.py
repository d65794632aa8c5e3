"""The adaptive loop: eight systems at a time, each with its own step, a lane refilled as soon as its system ends.

Everything is done lane by lane, and what a lane holds beside its system never reaches it: a system's run is the same
to the last bit whoever its neighbours are. A system that is new in a lane first takes a step of length zero, which
gives it the field at its start without holding up the others.
"""

from __future__ import annotations

import math
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from tokendynamics.dynamics.engines.compiled._events import Ends, at_end, bisected, may_cross, next_crossing
from tokendynamics.dynamics.engines.compiled._field import project
from tokendynamics.dynamics.engines.compiled._known import Compiler
from tokendynamics.dynamics.engines.compiled._model import Options, eight, fill
from tokendynamics.dynamics.engines.compiled._steps import (
    Method,
    Steps,
    dense_state,
    error_size,
    extend,
    first_step,
    proposed,
    take_step,
)
from tokendynamics.dynamics.engines.compiled.lanes import (
    WIDTH,
    any_of,
    at_least,
    behind,
    broadcast,
    floats,
    fma,
    holds,
    inlined,
    integers,
    load,
    select,
    store,
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


@inlined
def _attempt(features, options, lanes, method, steps, control, interval, known):
    """Attempt a step in every lane, and set the control memory for the next one.

    Returns:
        Time and length of the step, the time after it, and masks: whether it was accepted, whether the lane was new,
        whether the field was finite.
    """
    t, h, ratio_before = load(control, TIME), load(control, STEP), load(control, RATIO)
    fresh = load(control, FRESH) > 0.0
    moving = (load(control, LIVE) > 0.0) & ~fresh
    last = moving & (fma(h, 1.0001, t) >= interval.right)
    # The step that is taken is the one by which the time, a float, advances.
    until = select(moving, select(last, interval.right, t + h), t)
    used = until - t
    take_step(features, options, lanes, method, steps, t, used)
    project(features, options, lanes, steps.state, steps.after)
    ratio = error_size(features, options, lanes, method, steps, used)
    accepted = moving & (ratio <= 1.0)
    now = select(accepted, until, t)
    following = proposed(method, used, ratio, ratio_before, accepted)
    # A step that is rejected and would round to the same times again cannot be shortened.
    following = select(accepted | (t + following < until), following, 0.0)
    # A step cut short by the end of the interval says nothing against a longer one.
    following = select(last & accepted & (following < h), h, following)
    if any_of(fresh):
        guess = first_step(features, options, lanes, method, steps, interval.right - interval.left)
        guess = at_least(guess, interval.spacing)
        following = select(fresh, select(known > 0.0, known, guess), following)
    following = select(following > interval.longest, interval.longest, following)
    store(control, TIME, now)
    store(control, STEP, following)
    store(control, RATIO, select(accepted, select(ratio < 1e-4, 1e-4, ratio), ratio_before))
    store(control, FRESH, 0.0)
    store(control, EXTENDED, 0.0)
    store(control, TRIED, load(control, TRIED) + select(moving, 1.0, 0.0))
    store(control, ACCEPTED, load(control, ACCEPTED) + select(accepted, 1.0, 0.0))
    return t, used, now, accepted, fresh, ratio < math.inf


@inlined
def _extend(features, options, lanes, method, steps, control, which, t, h):
    """Evaluate what the continuous extension needs beyond the step, once a step, where the mask holds."""
    if method.extra:
        following = which & ~(load(control, EXTENDED) > 0.0)
        if any_of(following):
            extend(features, options, lanes, method, steps, t, h)
            store(control, EXTENDED, select(following, 1.0, load(control, EXTENDED)))
            store(control, EXTENSIONS, load(control, EXTENSIONS) + select(following, 1.0, 0.0))


@inlined
def _values(features, options, lanes, method, steps, control, ends, event, attempt):
    """Return an event's value at the start and at the end of the step, and keep the latter."""
    _, _, now, accepted, fresh, _ = attempt
    after = at_end(features, options, lanes, method, steps, ends, event, now)
    before = load(control, VALUES + event)
    store(control, VALUES + event, select(accepted | fresh, after, before))
    return before, after


@inlined
def _end(features, options, lanes, method, steps, control, ends, attempt):
    """Return the share of the step at which a system's run ended, infinite where it did not, and by which event."""
    t, used, _, accepted, _, _ = attempt
    share, first, zero = broadcast(math.inf), broadcast(0.0), broadcast(0.0)
    for event in range(ends.ending):
        before, after = _values(features, options, lanes, method, steps, control, ends, event, attempt)
        hit = accepted & (after <= 0.0)
        if ends.within and integers(ends.sampled)[event] != 0:
            hit = accepted & may_cross(features, options, method, steps, ends, event, before, after, used)
            if any_of(hit):
                _extend(features, options, lanes, method, steps, control, hit, t, used)
                at = next_crossing(features, options, lanes, method, steps, ends, event, t, used, zero, before, after)
                # A value that rounding brought to zero at a joint of two intervals ends the run there.
                at = select(before > 0.0, at, 0.0)
                earlier = hit & (at < share)
                share, first = select(earlier, at, share), select(earlier, event, first)
        elif any_of(hit):
            _extend(features, options, lanes, method, steps, control, hit, t, used)
            at = bisected(features, options, lanes, method, steps, ends, event, t, used, zero, broadcast(1.0))
            earlier = hit & (at < share)
            share, first = select(earlier, at, share), select(earlier, event, first)
    return share, first


@inlined
def _record(features, options, lanes, method, steps, control, ends, attempt, queue, crossings):
    """Write down where the values of recorded events fell to zero in this step."""
    t, used, _, accepted, _, _ = attempt
    entries, inside, signals = options.tokens * len(features), integers(queue.inside), integers(queue.signals)
    for event in range(ends.ending, ends.size):
        before, after = _values(features, options, lanes, method, steps, control, ends, event, attempt)
        since = broadcast(0.0)
        hit = accepted & may_cross(features, options, method, steps, ends, event, before, after, used)
        _extend(features, options, lanes, method, steps, control, hit, t, used)
        while any_of(hit):
            at = next_crossing(features, options, lanes, method, steps, ends, event, t, used, since, before, after)
            hit = hit & (at <= 1.0)
            if any_of(hit):
                dense_state(features, options, method, steps, at, used)
                store(steps.clock, 0, fma(at, used, t))
                for lane in range(WIDTH):
                    if holds(hit, lane):
                        crossings = noted(crossings, signals[2], steps, entries, lane, event, inside[lane])
                        signals[2] += 1
            since, before = select(hit, at, since), select(hit, 0.0, before)
    return crossings


@inlined
def _move_on(entries, method, steps, attempt, ended):
    """Take the accepted states and their slopes; where a run ended, the state between."""
    _, _, _, accepted, fresh, _ = attempt
    slope = method.last * entries
    for entry in range(entries):
        y = select(accepted, load(steps.after, entry), load(steps.y, entry))
        store(steps.y, entry, select(ended, load(steps.between, entry), y))
        known = select(accepted | fresh, load(steps.slopes, slope + entry), load(steps.slopes, entry))
        store(steps.slopes, entry, known)


@inlined
def _code(ended, arrived, stuck, stopped, lane, event):
    if holds(ended, lane):
        return MET + int(event)
    if holds(arrived, lane):
        return ARRIVED
    if holds(stuck, lane):
        return STUCK
    return STOPPED if stopped else SPENT


@inlined
def _fill_lanes(features, options, systems, lanes, steps, control, interval, run, queue, known, live, waiting):
    """Put the next systems into the lanes that are empty; return how many live and how many have been taken."""
    inside = integers(queue.inside)
    for lane in range(WIDTH):
        if inside[lane] < 0 and waiting < queue.size:
            inside[lane] = integers(queue.systems)[waiting]
            enter(features, options, systems, lanes, steps, control, interval, run, lane, inside[lane])
            known[lane] = floats(run.times)[inside[lane] * RUN_TIMES + RUN_STEP]
            live, waiting = live + 1, waiting + 1
    return live, waiting


@inlined
def _empty_lanes(features, options, steps, control, run, queue, lasts, stopped, until, first):
    """Write down the systems that leave; return how many they are."""
    leaving, ended, arrived, stuck, finite = lasts
    inside, count = integers(queue.inside), 0
    store(steps.clock, 0, until)
    store(steps.clock, 1, first)
    for lane in range(WIDTH):
        if holds(leaving, lane):
            code = _code(ended, arrived, stuck, stopped, lane, steps.clock[WIDTH + lane])
            end, smooth = steps.clock[lane], holds(finite, lane)
            leave(features, options, steps, control, run, lane, inside[lane], code, end, smooth)
            inside[lane] = -1
            count += 1
    integers(queue.signals)[1] += count
    return count


@inlined
def _give_up(interval, run, queue, waiting):
    """Write down that the systems that wait were stopped."""
    for place in range(waiting, queue.size):
        system = integers(queue.systems)[place]
        integers(run.counts)[system * RUN_COUNTS + RUN_CODE] = STOPPED
        floats(run.times)[system * RUN_TIMES + RUN_END] = interval.left


class Queue(NamedTuple):
    """The systems that one thread runs.

    Attributes:
        systems: Address of their indices.
        size: How many there are.
        memory: Address of lanes of zeros: `room_of_scratch` and `room_of_eight` together.
        inside: Address of eight whole numbers, the systems in the lanes; −1 for an empty lane.
        signals: Address of three whole numbers: whether to stop, set by the caller, how many systems are done, and how
            many crossings there are.
    """

    systems: int
    size: int
    memory: int
    inside: int
    signals: int


def _sources() -> int:
    """Return a number that changes with any of the files that the loop is compiled from."""
    folder, digest = Path(__file__).parent, sha256()
    for path in (*sorted(folder.glob("*.py")), folder.parent.parent / "_field.py"):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:7], "big")


def _loop(sources: int) -> Any:
    """Return the loop; what is compiled is kept on disk under `sources`: numba itself looks at this one file only."""

    @njit(nogil=True, cache=True, error_model="numpy", pipeline_class=Compiler)
    def integrate(features, options, systems, method, ends, run, interval, queue, crossings):
        """Run the systems of the queue from the left to the right end of the interval.

        Args:
            features: A tuple as long as a token has features.
            options: What all systems share.
            systems: Their matrices.
            method: The pair and the tolerances.
            ends: The events.
            run: Where the systems are, and what becomes of them.
            interval: Where they go.
            queue: The systems to run.
            crossings: An array without entries where events are recorded, and anything elsewhere.

        Returns:
            Recorded crossings, each as event, system, time and state; and what the loop was compiled from.
        """
        inside, place = integers(queue.inside), floats(queue.memory)
        steps, control = scratch(features, options, method, place)
        known = behind(control, VALUES + ends.size)
        lanes = eight(features, options, systems, behind(known, 1))
        live, waiting, stopped = 0, 0, False
        while True:
            if not stopped and live < WIDTH:
                live, waiting = _fill_lanes(
                    features, options, systems, lanes, steps, control, interval, run, queue, known, live, waiting
                )
            if live == 0:
                break
            attempt = _attempt(features, options, lanes, method, steps, control, interval, load(known, 0))
            t, used, now, accepted, _, finite = attempt
            share, first = broadcast(math.inf), broadcast(0.0)
            if ends.present:
                share, first = _end(features, options, lanes, method, steps, control, ends, attempt)
            if ends.recording:
                crossings = _record(features, options, lanes, method, steps, control, ends, attempt, queue, crossings)
            ended = share <= 1.0
            until = select(ended, fma(share, used, t), now)
            _extend(features, options, lanes, method, steps, control, accepted & (load(control, DUE) < now), t, used)
            if any_of(accepted & (load(control, DUE) <= until)):
                hand_out(features, options, method, steps, control, interval, run, inside, accepted, until, t, used)
            if ends.present and any_of(ended):
                dense_state(features, options, method, steps, share, used)
            _move_on(options.tokens * len(features), method, steps, attempt, ended)
            arrived, stuck = accepted & (now >= interval.right), ~(now + load(control, STEP) > now)
            stopped = integers(queue.signals)[0] != 0
            leaving = load(control, LIVE) > 0.0
            if not stopped:
                leaving = leaving & (ended | arrived | stuck | (load(control, TRIED) >= interval.max_steps))
            if any_of(leaving):
                lasts = leaving, ended, arrived, stuck, finite
                live -= _empty_lanes(features, options, steps, control, run, queue, lasts, stopped, until, first)
        _give_up(interval, run, queue, waiting)
        return crossings, sources

    return integrate


integrate = _loop(_sources())
