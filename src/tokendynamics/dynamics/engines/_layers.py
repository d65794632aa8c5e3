"""The discrete model: the map of a layer, again and again."""

from __future__ import annotations

from tokendynamics.dynamics.engines._endings import Lockstep
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected


def run(problem: Problem) -> Outcome:
    """Apply layers 0, 1, 2, …; `problem.times` count layers, and schedules are taken at the layer's index.

    Gradients pass through, and events are looked at after each layer.

    Raises:
        ArgumentValueError: A time that is not a whole number.
    """
    for time in problem.times:
        if time != int(time):
            advice = "the times of engine='layers' count layers"
            raise ArgumentValueError(expected("times", "whole numbers", time, advice))
    systems = Lockstep(problem, Outcome.blank(problem))
    first, last = int(problem.times[0]), int(problem.times[-1])
    try:
        systems.begin()
        for k in range(first, last):
            if not bool(systems.alive.any()):
                break
            after = problem.field.layer(systems.y, k, problem.tau)
            systems.moved(after, float(k + 1), problem.field, [(systems.y, after)])
            if k + 1 in problem.times:
                systems.keep(float(k + 1))
            problem.report((k + 1 - first) / (last - first))
    except KeyboardInterrupt:
        pass
    return systems.finished(stages=1)
