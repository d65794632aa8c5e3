"""The flow on the sphere written once for every library it is integrated with, as its users would write it.

All three forms are the same formula in float64: tokens projected, ``softmax(y qk(t) y^T)`` by matrix products over all
heads at once, the tangent part of what comes out. Where ov is the identity nobody multiplies by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import Attention, Sinusoidal
from tokendynamics.dynamics import Flow
from tokendynamics.spaces import Sphere


@dataclass(frozen=True)
class SphereFlow:
    """Matrices of the flow.

    Attributes:
        qk: (head, dim, dim).
        ov: (head, dim, dim), or None for the identity.
        gates: (frequency, phase), each (head, dim): qk stands behind ``diag(|2 sin(frequency · t + phase)|)``.
        causal: Whether token i sees only tokens j ≤ i.
    """

    qk: Tensor
    ov: Tensor | None = None
    gates: tuple[Tensor, Tensor] | None = None
    causal: bool = False

    @property
    def factor(self) -> float:
        """1/√dim."""
        return 1 / math.sqrt(self.qk.shape[-1])

    def ours(self) -> Flow:
        """In this library."""
        qk = self.qk if self.gates is None else Sinusoidal(self.qk, 2.0, *self.gates, absolute=True)
        ov = torch.eye(self.qk.shape[-1], dtype=self.qk.dtype).expand_as(self.qk) if self.ov is None else self.ov
        return Flow(Attention(qk, ov, causal=self.causal), Sphere())

    def numpy(self, tokens: int) -> Callable[[float, np.ndarray], np.ndarray]:
        """Of one system, flat, as `scipy.integrate` wants it."""
        qk, ov = self.qk.numpy(), None if self.ov is None else self.ov.numpy()
        mask, scale = np.triu(np.full((tokens, tokens), -np.inf), 1), self.factor

        def velocity(t: float, flat: np.ndarray) -> np.ndarray:
            y = flat.reshape(tokens, -1)
            y = y / np.sqrt((y * y).sum(axis=1, keepdims=True))
            scores = (self._gated(np, y, t) @ qk) @ y.T
            if self.causal:
                scores += mask
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            pull = weights.sum(axis=0) @ y if ov is None else (weights @ y @ ov.swapaxes(-1, -2)).sum(axis=0)
            pull *= scale
            return (pull - (y * pull).sum(axis=1, keepdims=True) * y).ravel()

        return velocity

    def torch(self, tokens: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Of states (system, token, dim) at one time, or flat (system, token · dim)."""
        mask, scale = torch.full((tokens, tokens), -torch.inf, dtype=self.qk.dtype).triu(1), self.factor

        def velocity(t: Tensor, states: Tensor) -> Tensor:
            y = torch.nn.functional.normalize(states.view(len(states), tokens, -1), dim=-1)
            pull: Any = 0
            # A product per head: broadcasting over heads and systems would copy the matrices for every system.
            for head, qk in enumerate(self.qk):
                query = y if self.gates is None else y * _gate(torch, self.gates, t)[head]
                scores = (query @ qk) @ y.mT
                weights = torch.softmax(scores + mask if self.causal else scores, dim=-1)
                pull = pull + (weights @ y if self.ov is None else weights @ y @ self.ov[head].mT)
            pull = scale * pull
            return (pull - (y * pull).sum(dim=-1, keepdim=True) * y).view_as(states)

        return velocity

    def jax(self) -> Callable[[Any, Any, Any], Any]:
        """Of one system (token, dim), as diffrax wants it: `vmap` makes it many."""
        jax, jnp = import_module("jax"), import_module("jax.numpy")
        qk, ov = jnp.asarray(self.qk.numpy()), None if self.ov is None else jnp.asarray(self.ov.numpy())

        def velocity(t: Any, states: Any, _: Any) -> Any:
            y = states / jnp.linalg.norm(states, axis=-1, keepdims=True)
            scores = (self._gated(jnp, y, t) @ qk) @ y.T
            hidden = jnp.triu(jnp.full(scores.shape[-2:], -jnp.inf), 1) if self.causal else 0.0
            weights = jax.nn.softmax(scores + hidden, axis=-1)
            pull = weights.sum(axis=0) @ y if ov is None else (weights @ y @ ov.swapaxes(-1, -2)).sum(axis=0)
            pull = self.factor * pull
            return pull - (y * pull).sum(axis=-1, keepdims=True) * y

        return velocity

    def _gated(self, library: Any, y: Any, t: Any) -> Any:
        if self.gates is None:
            return y[None]
        gates = tuple(library.asarray(part.numpy()) for part in self.gates)
        return y * _gate(library, gates, t)[:, None, :]


def _gate(library: Any, gates: tuple[Any, Any], t: Any) -> Any:
    frequency, phase = gates
    return 2.0 * library.abs(library.sin(frequency * t + phase))
