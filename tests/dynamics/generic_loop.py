"""The adaptive loop as one would write it with numba: a system after the other, numbers one by one, plain arrays.

The pair, the norm of the error and the controller are those of the engine "compiled"; nothing else is: no lanes, no
exponential of its own, no layout. One head, constant matrices, softmax weights; free tokens or tokens on the sphere.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tokendynamics.dynamics.engines.tableau import TABLEAUS

Array = np.ndarray

STAGES = 7
A, E = np.zeros((STAGES, STAGES)), np.array([float(entry) for entry in TABLEAUS["dopri5"].error])
for _number, _row in enumerate(TABLEAUS["dopri5"].stages):
    A[_number, : len(_row)] = [float(entry) for entry in _row]


@njit
def velocity(x, qk, ov, factor, causal, sphere, points, weights, into):
    tokens, dim = x.shape
    for i in range(tokens):
        square = 0.0
        for a in range(dim):
            square += x[i, a] * x[i, a]
        for a in range(dim):
            points[i, a] = x[i, a] / math.sqrt(square) if sphere else x[i, a]
    query, mean = np.empty(dim), np.empty(dim)
    for i in range(tokens):
        seen = i + 1 if causal else tokens
        for a in range(dim):
            query[a] = mean[a] = 0.0
            for b in range(dim):
                query[a] += points[i, b] * qk[b, a]
        top = -math.inf
        for j in range(seen):
            weights[j] = 0.0
            for a in range(dim):
                weights[j] += query[a] * points[j, a]
            top = max(top, weights[j])
        total = 0.0
        for j in range(seen):
            weight = math.exp(weights[j] - top)
            total += weight
            for a in range(dim):
                mean[a] += weight * points[j, a]
        along = 0.0
        for a in range(dim):
            pull = 0.0
            for b in range(dim):
                pull += ov[a, b] * mean[b]
            into[i, a] = factor * pull / total
            along += into[i, a] * points[i, a]
        if sphere:
            for a in range(dim):
                into[i, a] -= along * points[i, a]


@njit
def error_of(slopes, e, h, y, new, rtol, atol, sphere):
    """The error in units of what is allowed: of a token's length 1 on the sphere, of each number elsewhere."""
    tokens, dim = y.shape
    total = 0.0
    for i in range(tokens):
        for a in range(dim):
            error = 0.0
            for s in range(len(e)):
                error += e[s] * slopes[s, i, a]
            allowed = atol + rtol * (1.0 if sphere else max(abs(y[i, a]), abs(new[i, a])))
            total += (h * error / allowed) ** 2
    return math.sqrt(total / (tokens if sphere else tokens * dim))


@njit
def first_step(y, slope, rtol, atol, sphere, longest):
    size = speed = 0.0
    tokens, dim = y.shape
    for i in range(tokens):
        for a in range(dim):
            allowed = atol + rtol * (1.0 if sphere else abs(y[i, a]))
            size += (y[i, a] / allowed) ** 2
            speed += (slope[i, a] / allowed) ** 2
    size, speed = math.sqrt(size), math.sqrt(speed)
    guess = 1e-6 if size < 1e-5 or speed < 1e-5 else 0.01 * size / max(speed, 1e-300)
    return min(guess, longest)


@njit
def solve(y, a, e, qk, ov, factor, causal, sphere, horizon, rtol, atol):
    """Move y to the horizon; return the attempted steps."""
    tokens, dim = y.shape
    stages = len(e)
    slopes, new = np.empty((stages, tokens, dim)), y.copy()
    points, weights = np.empty((tokens, dim)), np.empty(tokens)
    velocity(y, qk, ov, factor, causal, sphere, points, weights, slopes[0])
    t, attempts, before = 0.0, 0, 1.0
    h = first_step(y, slopes[0], rtol, atol, sphere, horizon)
    while t < horizon:
        last = t + 1.0001 * h >= horizon
        h = horizon - t if last else h
        for s in range(1, stages):
            for i in range(tokens):
                for b in range(dim):
                    direction = 0.0
                    for r in range(s):
                        direction += a[s, r] * slopes[r, i, b]
                    new[i, b] = y[i, b] + h * direction
            velocity(new, qk, ov, factor, causal, sphere, points, weights, slopes[s])
        ratio = error_of(slopes, e, h, y, new, rtol, atol, sphere)
        attempts += 1
        accepted = ratio <= 1.0
        factor_of_step = 0.9 * max(ratio, 1e-10) ** -0.14 * before**0.08
        factor_of_step = max(0.2, min(factor_of_step, 10.0 if accepted else 1.0))
        if accepted:
            t = horizon if last else t + h
            before = max(ratio, 1e-4)
            y[:] = points if sphere else new
            slopes[0] = slopes[stages - 1]
        h *= factor_of_step
    return attempts


@njit
def solve_all(starts, a, e, qk, ov, factor, causal, sphere, horizon, rtol, atol):
    ends, attempts = starts.copy(), np.empty(len(starts), dtype=np.int64)
    for system in range(len(starts)):
        attempts[system] = solve(ends[system], a, e, qk, ov, factor, causal, sphere, horizon, rtol, atol)
    return ends, attempts


def generic_loop(
    starts: Array, qk: Array, ov: Array, horizon: float, rtol: float, atol: float, *, causal: bool, sphere: bool
) -> tuple[Array, Array]:
    """The states (system, token, dim) at the horizon, and the attempted steps of each system.

    Weights are divided by √dim on the sphere, as the library does there and as it does not in free space.
    """
    factor = 1 / math.sqrt(starts.shape[2]) if sphere else 1.0
    return solve_all(starts, A, E, qk, ov, factor, causal, sphere, horizon, rtol, atol)
