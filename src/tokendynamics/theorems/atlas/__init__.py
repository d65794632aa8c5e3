"""Statements of the field beyond the three papers, in the order of their sources."""

from __future__ import annotations

from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.atlas import (
    _circle,
    _clusters,
    _context,
    _hardmax,
    _leaders,
    _lipschitz,
    _masking,
    _masks,
    _metastability,
    _noise,
    _norms,
    _perspective,
    _rank,
    _rollout,
    _strong_centers,
)

__all__ = ["ATLAS"]

ATLAS: tuple[Statement, ...] = (
    *_perspective.STATEMENTS, *_masking.STATEMENTS, *_strong_centers.STATEMENTS, *_clusters.STATEMENTS,
    *_metastability.STATEMENTS, *_context.STATEMENTS, *_rollout.STATEMENTS, *_lipschitz.STATEMENTS,
    *_circle.STATEMENTS, *_rank.STATEMENTS, *_hardmax.STATEMENTS, *_leaders.STATEMENTS, *_masks.STATEMENTS,
    *_norms.STATEMENTS, *_noise.STATEMENTS,
)  # fmt: skip
"""The registry beside `STATEMENTS`; `check` and `certify` take any of it by name."""


def __dir__() -> list[str]:
    return __all__
