"""Counting signs against solving for eigenvalues, and small reductions against dense problems."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.measure import Comparison, alternate, speedup
from tokendynamics.spectra import inertia, low_rank_eigenvalues

DIM, D_HEAD, ROUNDS = 1600, 64, 5


def run() -> Iterator[Comparison]:
    """Inertia and per-head spectra at the size of GPT-2 XL."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
    symmetric = (matrix + matrix.mT) / 2
    positive = int((torch.linalg.eigvalsh(symmetric) > 0).sum())
    error = f"counts differ by {abs(inertia(matrix).positive - positive)}"
    pairs = alternate(lambda: inertia(matrix), lambda: torch.linalg.eigvalsh(symmetric), ROUNDS)
    yield speedup(f"inertia, dim {DIM}, against eigvalsh", pairs, at_least=2, error=error)
    pairs = alternate(lambda: inertia(matrix), lambda: torch.linalg.eigvals(symmetric), 3)
    yield speedup(f"inertia, dim {DIM}, against eigvals", pairs, at_least=12, error=error)
    left, right = torch.randn(2, DIM, D_HEAD, generator=generator, dtype=torch.float64)
    dense = left @ right.mT
    reduced, whole = low_rank_eigenvalues(left, right), torch.linalg.eigvalsh((dense + dense.mT) / 2)
    padded = torch.cat([reduced, torch.zeros(DIM - len(reduced), dtype=reduced.dtype)]).sort().values
    error = f"eigenvalues differ by {float((padded - whole).abs().max() / whole.abs().max()):.0e} of the largest"
    pairs = alternate(
        lambda: low_rank_eigenvalues(left, right), lambda: torch.linalg.eigvalsh((dense + dense.mT) / 2), ROUNDS
    )
    yield speedup(f"one head's spectrum, dim {DIM}, d_head {D_HEAD}, against dense", pairs, at_least=50, error=error)
