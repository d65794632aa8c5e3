"""Rotary positions: turning the coordinate pairs of queries and keys by angles that grow with the position."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def rotate(
    vectors: Float[Tensor, "*batch d_head"], frequencies: Float[Tensor, " pairs"], position: float
) -> Float[Tensor, "*batch d_head"]:
    """Turn each coordinate pair (c, c + d_head/2) by the angle ``position · frequencies[c]``.

    The pairing of halves is the one of the LLaMA family's checkpoints. ``⟨R_i q, R_j k⟩ = ⟨R_{i−j} q, k⟩``: only the
    distance of receiver and sender enters, so turning the query by i − j gives the circuit at that distance.

    Args:
        vectors: Queries or keys, shape (…, d_head); coordinates beyond 2 · pairs stay as they are.
        frequencies: Radians per token of each pair, shape (pairs,).
        position: In tokens.

    Source: `positional` (6)–(7), whose pairs are neighbours: the same up to the order of the coordinates.

    >>> import math
    >>> rotate(torch.tensor([1.0, 0.0]), torch.tensor([math.pi / 2]), 1.0).round().tolist()
    [-0.0, 1.0]
    """
    pairs = len(frequencies)
    angles = (frequencies.to(torch.float64) * position).to(vectors.device)
    cosine, sine = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
    first, second, rest = vectors[..., :pairs], vectors[..., pairs : 2 * pairs], vectors[..., 2 * pairs :]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], dim=-1)
