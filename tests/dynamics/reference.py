"""The equations of motion once more, written as sums over heads, receivers and senders, and SciPy's integrator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.integrate import solve_ivp

from tokendynamics.attention import AbsolutePositions, Attention, RotaryPositions
from tokendynamics.dynamics import Flow
from tokendynamics.spaces import Ellipsoid, Free, Sphere

Array = np.ndarray
Matrices = Callable[[float], Array]


@dataclass(frozen=True)
class Gate:
    """A schedule as the library is given it, and the same as a plain function of time (head, dim, dim)."""

    schedule: object
    at: Matrices
    breaks: tuple[float, ...] = ()


def constant(matrices: Array) -> Gate:
    return Gate(matrices, lambda t: matrices)


@dataclass(frozen=True)
class System:
    """Everything the equations need, without any class of the library.

    Attributes:
        space: "free", "sphere", "ellipsoid" or "remark_5_1".
        metric: (dim, dim) of an ellipsoid.
        table: Absolute positions (token, dim).
        rotary: (Q̄, K̄, base, scale), each matrix (head, dim, rank).
    """

    qk: Gate
    ov: Gate
    space: str = "free"
    metric: Array | None = None
    causal: bool = False
    weights: str = "softmax"
    normalization: str | None = None
    table: Array | None = None
    rotary: tuple[Array, Array, float, float] | None = None
    breaks: tuple[float, ...] = field(default=())

    def flow(self) -> Flow:
        """The same system as the library has it."""
        positions = None
        if self.table is not None:
            positions = AbsolutePositions(self.table)
        if self.rotary is not None:
            query, key, base, scale = self.rotary
            positions = RotaryPositions(query, key, base=base, scale=scale)
        attention = Attention(
            self.qk.schedule,  # pyright: ignore[reportArgumentType]
            self.ov.schedule,  # pyright: ignore[reportArgumentType]
            causal=self.causal,
            weights=self.weights,  # pyright: ignore[reportArgumentType]
            normalization=self.normalization,  # pyright: ignore[reportArgumentType]
            positions=positions,
        )
        if self.space == "free":
            return Flow(attention, Free())
        if self.space == "sphere":
            return Flow(attention, Sphere())
        assert self.metric is not None
        projection = "remark_5_1" if self.space == "remark_5_1" else "orthogonal"
        return Flow(attention, Ellipsoid(self.metric), projection)

    def m(self, dim: int) -> Array:
        return np.eye(dim) if self.metric is None else self.metric

    def project(self, x: Array) -> Array:
        if self.space == "free":
            return x
        m = self.m(x.shape[1])
        return np.array([row / math.sqrt(row @ m @ row) for row in x])

    def alphas(self, x: Array, t: float) -> Array:
        """Weights (head, receiver, sender), the factor 1/√dim included."""
        tokens, dim = x.shape
        qk = self.qk.at(t)
        z = x if self.table is None else x + self.table[:tokens]
        paper = self.normalization == "paper" or (self.normalization is None and self.space != "free")
        factor = 1 / math.sqrt(dim) if paper else 1.0
        result = np.zeros((len(qk), tokens, tokens))
        for h in range(len(qk)):
            for i in range(tokens):
                senders = range(i + 1) if self.causal else range(tokens)
                logits = [z[i] @ self.kernel(qk[h], h, j - i) @ z[j] for j in senders]
                if self.weights == "softmax":
                    exponentials = [math.exp(logit - max(logits)) for logit in logits]
                    result[h, i, list(senders)] = [factor * e / sum(exponentials) for e in exponentials]
                elif self.weights == "exponential":
                    result[h, i, list(senders)] = [factor * math.exp(logit) / len(logits) for logit in logits]
                else:
                    result[h, i, list(senders)] = [factor * logit for logit in logits]
        return result

    def kernel(self, qk: Array, h: int, offset: int) -> Array:
        """W_li of `positional` (7), dense; offset = i − l, sender less receiver."""
        if self.rotary is None:
            return qk
        query, key, base, scale = self.rotary
        return scale * (qk + query[h] @ rotation(query.shape[-1], offset, base) @ key[h].T)

    def velocity(self, x: Array, t: float) -> Array:
        y = self.project(x)
        tokens, dim = y.shape
        z = y if self.table is None else y + self.table[:tokens]
        alpha, ov, m = self.alphas(y, t), self.ov.at(t), self.m(dim)
        result = np.zeros_like(y)
        for i in range(tokens):
            for h in range(len(ov)):
                for j in range(tokens):
                    pulled = z[j] if self.space == "remark_5_1" else ov[h] @ z[j]
                    normal = 0.0 if self.space == "free" else y[i] @ m @ pulled
                    result[i] += alpha[h, i, j] * (pulled - normal * y[i])
        return result

    def layer(self, x: Array, k: int, tau: float) -> Array:
        """Equation (6) of `asymptotic`."""
        y, shifted = self.project(x), self.project(x).copy()
        z = y if self.table is None else y + self.table[: len(y)]
        alpha, ov = self.alphas(y, float(k)), self.ov.at(float(k))
        for i in range(len(y)):
            for h in range(len(ov)):
                for j in range(len(y)):
                    shifted[i] += tau * alpha[h, i, j] * (z[j] if self.space == "remark_5_1" else ov[h] @ z[j])
        return self.project(shifted)

    def solution(self, x0: Array, times: Array, rtol: float = 1e-12, atol: float = 1e-13) -> Array:
        """States (time, token, dim): DOP853 from stop to stop, the jumps of the matrices being stops."""
        jumps = [t for t in {*self.qk.breaks, *self.ov.breaks, *self.breaks} if times[0] < t < times[-1]]
        stops = sorted({*map(float, times), *jumps})
        states = {stops[0]: self.project(np.array(x0, dtype=float))}
        for left, right in itertools.pairwise(stops):
            states[right] = self.project(_between(self, states[left], left, right, rtol, atol))
        return np.array([states[float(t)] for t in times])


def rotation(rank: int, offset: float, base: float = 10000.0) -> Array:
    """R_m of `positional` (6): blocks of angle m · base^(−2c/rank) on neighbouring coordinates."""
    result = np.zeros((rank, rank))
    for c in range(rank // 2):
        angle = offset * base ** (-2 * c / rank)
        block = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        result[2 * c : 2 * c + 2, 2 * c : 2 * c + 2] = block
    return result


def _between(system: System, x: Array, left: float, right: float, rtol: float, atol: float) -> Array:
    # Inside an interval without jumps: the last moment belongs to it, not to the next one.
    inside = right - 1e-9 * (right - left)

    def slope(t: float, flat: Array) -> Array:
        return system.velocity(flat.reshape(x.shape), min(max(t, left), inside)).ravel()

    result = solve_ivp(slope, (left, right), x.ravel(), method="DOP853", rtol=rtol, atol=atol)
    assert result.success, result.message
    return result.y[:, -1].reshape(x.shape)
