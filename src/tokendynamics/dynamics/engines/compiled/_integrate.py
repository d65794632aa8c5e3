"""The adaptive loop: eight systems at a time, each with its own step, a lane refilled as soon as its system ends.

Everything is done lane by lane, and what a lane holds beside its system never reaches it: a system's run is the same
to the last bit whoever its neighbours are. A system that is new in a lane first takes a step of length zero, which
gives it the field at its start without holding up the others.
"""

from __future__ import annotations

import math
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from tokendynamics.dynamics.engines.compiled._events import at_end, bisected, may_cross, next_crossing
from tokendynamics.dynamics.engines.compiled._field import project
from tokendynamics.dynamics.engines.compiled._lane_traffic import (
    ACCEPTED,
    ARRIVED,
    DUE,
    FRESH,
    LIVE,
    MET,
    RATIO,
    SPENT,
    STEP,
    STOPPED,
    STUCK,
    TIME,
    TRIED,
    VALUES,
    enter,
    hand_out,
    leave,
    noted,
    scratch,
)
from tokendynamics.dynamics.engines.compiled._model import eight
from tokendynamics.dynamics.engines.compiled._steps import (
    dense_state,
    error_size,
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
    fma,
    holds,
    inlined,
    load,
    select,
    store,
)


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
    store(control, TRIED, load(control, TRIED) + select(moving, 1.0, 0.0))
    store(control, ACCEPTED, load(control, ACCEPTED) + select(accepted, 1.0, 0.0))
    return t, used, now, accepted, fresh, ratio < math.inf


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
        if ends.sampled[event]:
            hit = accepted & may_cross(features, options, method, steps, ends, event, before, after, used)
            if any_of(hit):
                at = next_crossing(features, options, lanes, method, steps, ends, event, t, used, zero, before, after)
                # A value that rounding brought to zero at a joint of two intervals ends the run there.
                at = select(before > 0.0, at, 0.0)
                earlier = hit & (at < share)
                share, first = select(earlier, at, share), select(earlier, event, first)
        elif any_of(hit):
            at = bisected(features, options, lanes, method, steps, ends, event, t, used, zero, broadcast(1.0))
            earlier = hit & (at < share)
            share, first = select(earlier, at, share), select(earlier, event, first)
    return share, first


@inlined
def _record(features, options, lanes, method, steps, control, ends, attempt, inside, crossings, signals):
    """Write down where the values of recorded events fell to zero in this step."""
    t, used, _, accepted, _, _ = attempt
    entries = options.tokens * len(features)
    for event in range(ends.ending, len(ends.kinds)):
        before, after = _values(features, options, lanes, method, steps, control, ends, event, attempt)
        since = broadcast(0.0)
        hit = accepted & may_cross(features, options, method, steps, ends, event, before, after, used)
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
    slope = (len(method.nodes) - 1) * entries
    for entry in range(entries):
        y = select(accepted, load(steps.after, entry), load(steps.y, entry))
        store(steps.y, entry, select(ended, load(steps.between, entry), y))
        known = select(accepted | fresh, load(steps.slopes, slope + entry), load(steps.slopes, entry))
        store(steps.slopes, entry, known)


@inlined
def _code(ended, arrived, stuck, lane, event):
    if holds(ended, lane):
        return MET + int(event)
    if holds(arrived, lane):
        return ARRIVED
    return STUCK if holds(stuck, lane) else SPENT


@inlined
def _take_next(systems, lanes, steps, control, interval, run, queue, inside, known, lane, waiting):
    """Put the next system of the queue into a lane; return how many have been taken."""
    inside[lane] = queue[waiting]
    enter(systems, lanes, steps, control, interval, run, lane, inside[lane])
    known[lane] = run.step[inside[lane]]
    return waiting + 1


@inlined
def _hand_over(
    systems, lanes, steps, control, interval, run, queue, inside, known, signals, leaving, lasts, until, first, live,
    waiting,
):  # fmt: skip
    """Write down the systems that leave and put others into their lanes; return how many live and have been taken."""
    ended, arrived, stuck, finite = lasts
    store(steps.clock, 0, until)
    store(steps.clock, 1, first)
    for lane in range(WIDTH):
        if holds(leaving, lane):
            code = _code(ended, arrived, stuck, lane, steps.clock[WIDTH + lane])
            leave(steps, control, run, lane, inside[lane], code, steps.clock[lane], holds(finite, lane))
            signals[1] += 1
            if waiting < len(queue):
                waiting = _take_next(systems, lanes, steps, control, interval, run, queue, inside, known, lane, waiting)
            else:
                live -= 1
    return live, waiting


@inlined
def _give_up(steps, control, interval, run, queue, inside, waiting):
    """Write down that the systems under way, and those that wait, were stopped."""
    for lane in range(WIDTH):
        if control[WIDTH * LIVE + lane] > 0.0:
            leave(steps, control, run, lane, inside[lane], STOPPED, control[WIDTH * TIME + lane], True)
    for place in range(waiting, len(queue)):
        run.code[queue[place]], run.end[queue[place]] = STOPPED, interval.left


def _sources() -> int:
    """Return a number that changes with any of the files that the loop is compiled from."""
    folder, digest = Path(__file__).parent, sha256()
    for path in (*sorted(folder.glob("*.py")), folder.parent.parent / "_field.py"):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:7], "big")


def _loop(sources: int) -> Any:
    """Return the loop; what is compiled is kept on disk under `sources`: numba itself looks at this one file only."""

    @njit(nogil=True, cache=True, error_model="numpy")
    def integrate(features, options, systems, method, ends, run, interval, queue, signals):
        """Run the systems of the queue from the left to the right end of the interval.

        Args:
            features: A tuple as long as a token has features.
            options: What all systems share.
            systems: Their matrices.
            method: The pair and the tolerances.
            ends: The events.
            run: Where the systems are, and what becomes of them.
            interval: Where they go.
            queue: Indices of the systems to run.
            signals: Three whole numbers: whether to stop, set by the caller, how many systems are done, and how many
                crossings there are.

        Returns:
            The crossings of recorded events, each as event, system, time and the state there; and what the loop was
            compiled from.
        """
        lanes, memory_of_lanes = eight(features, options, systems)
        steps, control, memory_of_steps = scratch(features, options, method, ends)
        crossings, inside = np.empty(0), np.empty(WIDTH, dtype=np.int64)
        known = behind(control, VALUES + len(ends.kinds))
        live, waiting = min(WIDTH, len(queue)), 0
        for lane in range(live):
            waiting = _take_next(systems, lanes, steps, control, interval, run, queue, inside, known, lane, waiting)
        while live > 0 and signals[0] == 0:
            attempt = _attempt(features, options, lanes, method, steps, control, interval, load(known, 0))
            t, used, now, accepted, _, finite = attempt
            share, first = _end(features, options, lanes, method, steps, control, ends, attempt)
            if ends.ending < len(ends.kinds):
                crossings = _record(
                    features, options, lanes, method, steps, control, ends, attempt, inside, crossings, signals
                )
            ended = share <= 1.0
            until = select(ended, fma(share, used, t), now)
            if any_of(accepted & (load(control, DUE) <= until)):
                hand_out(features, options, method, steps, control, interval, run, inside, accepted, until, t, used)
            if any_of(ended):
                dense_state(features, options, method, steps, share, used)
            _move_on(options.tokens * len(features), method, steps, attempt, ended)
            arrived, stuck = accepted & (now >= interval.right), ~(now + load(control, STEP) > now)
            over = ended | arrived | stuck | (load(control, TRIED) >= interval.max_steps)
            leaving = over & (load(control, LIVE) > 0.0)
            if any_of(leaving):
                lasts = ended, arrived, stuck, finite
                live, waiting = _hand_over(
                    systems, lanes, steps, control, interval, run, queue, inside, known, signals, leaving, lasts,
                    until, first, live, waiting,
                )  # fmt: skip
        _give_up(steps, control, interval, run, queue, inside, waiting)
        # The arrays must live as long as their addresses are used.
        return crossings, sources, memory_of_lanes[0] + memory_of_steps[0]

    return integrate


integrate = _loop(_sources())
