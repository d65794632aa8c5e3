"""The free flows of `positional` from the matrices its appendix D.1 prints."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from reproductions.drawing import framed
from reproductions.published import Published
from tokendynamics import figures
from tokendynamics.attention import Attention, RotaryPositions
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.spaces import Free

Reading = Literal["V = (A⁻¹W)ᵀ", "V = A⁻¹W"]
"""How A = W V^(−T) is solved for V: as the paper defines it, and with the transpose forgotten."""

AS_DEFINED: Reading = "V = (A⁻¹W)ᵀ"
UNTRANSPOSED: Reading = "V = A⁻¹W"

FOUR_TOKENS = ((1.0, 0.5), (-0.8, 1.2), (0.6, -1.1), (-1.3, -0.4))
"""A start where the paper prints none: four tokens in the plane."""


def contraction_flow(contraction: Tensor, qk: Tensor, reading: Reading = AS_DEFINED) -> Flow:
    """Return the flow (2) with W = qk and the V for which A = W V^(−T), so that ov = V^T = A^(−1) W.

    Args:
        contraction: A, (…, dim, dim).
        qk: W, (…, dim, dim).
        reading: `UNTRANSPOSED` takes V, and not V^T, for A^(−1) W.
    """
    ov = torch.linalg.solve(contraction, qk)
    return Flow(Attention(qk, ov if reading == AS_DEFINED else ov.mT), Free())


def query_key_flow(query: Tensor, key: Tensor, value: float, rotary: tuple[Tensor, Tensor] | None = None) -> Flow:
    """Return the flow with V = value · I and W = Q K^T, or (8) with W_li of (7).

    Without rotary positions Q K^T is not divided by √D_k: so the printed eigenvalues are meant. With them all of (7)
    is, as it stands.

    Args:
        query: Q, (dim, D_k).
        key: K, (dim, D_k).
        value: The multiple of the identity.
        rotary: Q̄ and K̄, (dim, dim), or None.
    """
    positions = None if rotary is None else RotaryPositions(*rotary, scale=query.shape[-1] ** -0.5)
    ov = value * torch.eye(query.shape[-2], dtype=query.dtype)
    return Flow(Attention(query @ key.mT, ov, positions=positions), Free())


def rotary_flow(printed: Published) -> Flow:
    """Return the flow (8) with the printed Q, K, Q̄, K̄ and V = VALUE · I."""
    query, key = printed.matrix("Q"), printed.matrix("K")
    return query_key_flow(query, key, printed["VALUE"], (printed.matrix("QBAR"), printed.matrix("KBAR")))


def run_free(flow: Flow, start: Any, times: Any, engine: Literal["batched", "stiff"] = "batched") -> Trajectory:
    """Return a run tight enough to compare ten digits."""
    return simulate(flow, start, times, rtol=1e-10, atol=1e-12, engine=engine)


def draw_tokens(axes: Axes, states: Any, **how: Any) -> None:
    """Draw tokens in the plane, with room around their circles."""
    figures.phase_plane(states, axes=axes, **how)
    framed(axes)


def largest_norms(run: Trajectory) -> np.ndarray:
    """Return the norm of the largest token at each time, (…, time)."""
    return torch.linalg.vector_norm(run.tensor, dim=-1).amax(dim=-1).numpy()


def symmetric_eigenvalues(matrix: Tensor) -> list[float]:
    """Return the eigenvalues of the symmetric part of a matrix, ascending."""
    return torch.linalg.eigvalsh((matrix + matrix.mT) / 2).tolist()
