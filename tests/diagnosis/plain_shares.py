"""The numbers that states are decided by, in plain numpy and pair by pair, to hold beside those of the library.

The states of a layer are a list of arrays (token, dim), one for each prompt, in which every token counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

HALF_WAY = 0.72
"""Above the κ of a running mean: cos = √(i/j) between the means of i and j words comes to 2/3 over many pairs, to 0.71
over one. Two points with shares p and 1 − p have κ = s, excess s − s² with s = p² + (1 − p)²: 0.2 and more up to here.
"""

SEVERITY = ("spread", "anisotropic", "drawing together", "rank collapse", "consensus", "one point")


@dataclass(frozen=True)
class Numbers:
    common: float
    kappa: float
    cos2: float
    kappa_squared: float
    """Mean over prompts of the square of each prompt's own κ."""
    excess: float
    variance: float
    """In place of the excess: with v the mean over prompts of the variance over pairs of the centred cosine, which no
    negative κ can hide, (v − v_0)/(1 − v_0)."""
    state: str
    state_by_variance: str


def numbers(states: list[np.ndarray], start: list[np.ndarray]) -> Numbers:
    """κ', centred cos² and its excess, each relative to the start, and the state that they amount to."""
    common, kappas, cos2, spread = _absolute(states)
    _, kappas_0, cos2_0, spread_0 = _absolute(start)
    kappa_0 = np.nanmean(kappas_0)
    kappa = (np.nanmean(kappas) - kappa_0) / (1 - kappa_0)
    relative_cos2 = (cos2 - cos2_0) / (1 - cos2_0)
    squared = float(np.nanmean(((kappas - kappa_0) / (1 - kappa_0)) ** 2))
    excess = relative_cos2 - squared
    variance = (spread - spread_0) / (1 - spread_0)
    called = state_of(common, kappa, excess), state_of(common, kappa, variance, point=HALF_WAY)
    return Numbers(common, float(kappa), relative_cos2, squared, excess, variance, *called)


def state_of(common: float, kappa: float, excess: float, point: float = 0.55) -> str:
    if 1 - common < 0.001:
        return "one point"
    if kappa >= point:
        return "consensus"
    if excess >= 0.2:
        return "rank collapse"
    if kappa < 0.06:
        return "anisotropic" if common >= 0.85 else "spread"
    return "drawing together"


def _absolute(states: list[np.ndarray]) -> tuple[float, np.ndarray, float, float]:
    """Common share; κ of each prompt; centred cos², and the variance of the centred cosine over a prompt's pairs."""
    rows = [entry / np.linalg.norm(entry, axis=1, keepdims=True) for entry in (x.astype(float) for x in states)]
    means = [entry.mean(axis=0) for entry in rows]
    common = float(np.mean([p @ q for p, q in permutations(means, 2)]))
    within = np.array([_of_pairs(entry @ entry.T) for entry in rows])
    squares, variances = [], []
    for place, row in enumerate(rows):
        others = np.mean([mean for number, mean in enumerate(means) if number != place], axis=0)
        offset = row - others
        offset = offset / np.linalg.norm(offset, axis=1, keepdims=True)
        squares.append(_of_pairs((offset @ offset.T) ** 2))
        variances.append(squares[-1] - _of_pairs(offset @ offset.T) ** 2)
    return common, (within - common) / (1 - common), float(np.nanmean(squares)), float(np.nanmean(variances))


def _of_pairs(matrix: np.ndarray) -> float:
    count = len(matrix)
    return float((matrix.sum() - np.trace(matrix)) / (count * (count - 1))) if count > 1 else float("nan")
