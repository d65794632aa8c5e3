"""The exponential of the lanes: how far it is off, and its rate beside what others reach and what a product reaches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numba import njit

from bench.measure import NO_TARGET, NOTHING_COMPARED, Comparison, rounds_of, share
from tokendynamics.dynamics.engines.compiled.lanes import WIDTH, behind, exp, floats, load, room, store
from tokendynamics.numerics.resources import limited_threads

NUMBERS, TIMES, ROUNDS = 4096, 500, 7
"""Numbers that stay in the nearest cache, and how often they are gone through."""
POINTS = 1024 * 4096
SIDE = 512


def run() -> Iterator[Comparison]:
    """Units in the last place, then rates on one core."""
    yield _accuracy()
    numbers = np.linspace(-30.0, 0.0, NUMBERS)
    results, plain, product = np.empty(NUMBERS), torch.from_numpy(numbers), torch.empty(NUMBERS, dtype=torch.float64)
    matrix = torch.linspace(-1, 1, SIDE * SIDE, dtype=torch.float64).view(SIDE, SIDE)
    _exponentials(numbers, results, 1)
    with limited_threads(1):
        seconds = rounds_of(
            {
                "lanes": lambda: _exponentials(numbers, results, TIMES),
                "torch": lambda: [torch.exp(plain, out=product) for _ in range(TIMES)],
                "product": lambda: matrix @ matrix,
            },
            ROUNDS,
        )
    count, operations = NUMBERS * TIMES / 1e9, 2 * SIDE**3 / 1e9
    rates = [(count / taken["lanes"], count / taken["torch"]) for taken in seconds]
    difference = np.abs(results / plain.exp().numpy() - 1).max()
    yield share(
        "exponentials in lanes, of the rate of torch.exp in cache", rates, at_least=1.0,
        error=f"differ by {difference:.0e} of themselves", unit="G/s",
    )  # fmt: skip
    rates = [(count / taken["lanes"], operations / taken["product"]) for taken in seconds]
    ceiling = share(
        f"exponentials in lanes, of the operations of a {SIDE} × {SIDE} matrix product, the ceiling", rates,
        at_least=0.0, error=NOTHING_COMPARED, unit="G/s",
    )  # fmt: skip
    yield replace(ceiling, target=NO_TARGET)


def _accuracy() -> Comparison:
    x = np.random.default_rng(0).uniform(-708, 709, size=POINTS)
    x[::2] = np.random.default_rng(1).uniform(-1, 0, size=POINTS // 2)
    results = np.empty(POINTS)
    _exponentials(x, results, 1)
    if np.finfo(np.longdouble).nmant < 60:
        return Comparison(
            "exponential, units in the last place", np.nan, 1.0, np.nan, (np.nan, np.nan), NO_TARGET, True,
            "no longer format here to compare with", "ulp",
        )  # fmt: skip
    exact = np.exp(x.astype(np.longdouble))
    units = np.abs(results.astype(np.longdouble) - exact) / np.spacing(exact.astype(np.float64))
    worst = float(units.max())
    return Comparison(
        f"exponential over −708 … 709, {POINTS} points, units in the last place against a longer format",
        worst, 1.0, worst, (worst, worst), "≤ 1", worst <= 1, f"worst at {x[int(units.argmax())]:.6g}", "ulp",
    )  # fmt: skip


def _exponentials(numbers: np.ndarray, results: np.ndarray, times: int) -> None:
    array, memory = room(2 * (min(len(numbers), NUMBERS) // WIDTH))
    _through_lanes(memory, numbers, results, times)
    del array


@njit(error_model="numpy", nogil=True)
def _through_lanes(memory, numbers, results, times):
    count = min(len(numbers), NUMBERS) // WIDTH
    place = floats(memory)
    into = behind(place, count)
    for first in range(0, len(numbers), WIDTH * count):
        for number in range(WIDTH * count):
            place[number] = numbers[first + number]
        for _ in range(times):
            for block in range(count):
                store(into, block, exp(load(place, block)))
        for number in range(WIDTH * count):
            results[first + number] = into[number]
