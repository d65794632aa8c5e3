"""The bound by operation count: the time that the arithmetic of a run takes at the rates which lanes reach alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from numba import njit

from tokendynamics.dynamics.engines.compiled.lanes import WIDTH, exp, floats, fma, inlined, load, room, sqrt, store
from tokendynamics.dynamics.engines.tableau import TABLEAUS

CHAINS = 8
"""Independent results that are computed in turn, so that no instruction waits for another."""

TIMES = 100_000


def works() -> dict[str, Callable[[], float]]:
    """Return by kind of operation what measures its rate, in results a second of processor time."""
    array, memory = room(CHAINS + 2)

    def rate(work: Callable[[int, int], None]) -> Callable[[], float]:
        def measured() -> float:
            array[:] = 1.25
            return _rate(lambda: work(memory, TIMES), CHAINS * WIDTH * TIMES)

        measured()  # compiles
        return measured

    return {
        "products": rate(_chained(_product)),
        "divisions": rate(_chained(_division)),
        "roots": rate(_chained(_root)),
        "exponentials": rate(_chained(_exponential)),
    }


def seconds(tokens: int, dim: int, evaluations: float, rates: Mapping[str, float]) -> float:
    """Return the least time of a system's run, if all operations but these cost nothing and none waits.

    One head with any `qk` and `ov` on the sphere, softmax weights, the pair of Dormand and Prince. Additions,
    multiplications and comparisons count as the fused products that take as long.

    Args:
        tokens: Of the system.
        dim: Of its tokens.
        evaluations: Of the right-hand side.
        rates: By kind, in results a second.
    """
    # Norm and point, the mean over its weights' sum, and two products to make the vector tangent.
    of_token = 5 * dim + 2 * dim * dim  # query and output
    of_pair = 2 * dim + 3  # logit and mean; the largest logit, the difference to it, the sum of the weights
    tableau = TABLEAUS["dopri5"]
    stages = sum(1 + sum(factor != 0 for factor in row) for row in tableau.stages[1:])
    of_steps = dim * (stages + 1 + sum(factor != 0 for factor in tableau.error)) / (len(tableau.stages) - 1)
    counts = {
        "products": tokens * (of_token + of_steps) + tokens**2 * of_pair,
        "divisions": 2 * tokens,
        "roots": tokens,
        "exponentials": tokens**2,
    }
    return evaluations * sum(count / rates[kind] for kind, count in counts.items())


def _rate(work: Callable[[], object], results: int) -> float:
    start = time.process_time()
    work()
    return results / (time.process_time() - start)


def _chained(step: Callable[..., Any]) -> Callable[[int, int], None]:
    """Return a loop that takes a step in every chain, from the chain's value, a factor and a summand to the next."""

    @njit(error_model="numpy")
    def loop(memory, times):
        place = floats(memory)
        factor, summand = load(place, CHAINS), load(place, CHAINS + 1)
        a, b, c, d = load(place, 0), load(place, 1), load(place, 2), load(place, 3)
        e, f, g, h = load(place, 4), load(place, 5), load(place, 6), load(place, 7)
        for _ in range(times):
            a, b, c, d = (
                step(a, factor, summand), step(b, factor, summand), step(c, factor, summand), step(d, factor, summand)
            )  # fmt: skip
            e, f, g, h = (
                step(e, factor, summand), step(f, factor, summand), step(g, factor, summand), step(h, factor, summand)
            )  # fmt: skip
        store(place, 0, a + b + c + d + e + f + g + h)

    return loop


@inlined
def _product(x, factor, summand):
    return fma(x, factor, summand)


@inlined
def _division(x, factor, summand):
    return factor / x


@inlined
def _root(x, factor, summand):
    return sqrt(x)


@inlined
def _exponential(x, factor, summand):
    return exp(-x)
