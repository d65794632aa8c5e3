"""Real eigenvectors that several matrices share, as whole spaces: repeated and defective eigenvalues included."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RESIDUAL = 1e-10
"""Largest |V n − λ n| relative to ‖V‖ of what counts as a real eigenvector."""
_SAME = 1e-6
_NEARLY_REAL = 1e-2
"""Pairs this near the real axis are looked at: a bound on the work, since the residual decides what is a vector."""


@dataclass(frozen=True)
class Eigenspace:
    """Vectors n with V_h n = λ_h n for every h.

    Attributes:
        basis: Orthonormal columns, (dim, k).
        values: λ_h, (head,).
    """

    basis: np.ndarray
    values: np.ndarray


def common_eigenspaces(matrices: np.ndarray, lowest: float = -np.inf) -> list[Eigenspace]:
    """Find the real eigenvectors that all matrices share, up to rounding.

    A repeated eigenvalue has more eigenvectors than those LAPACK returns, and a defective one of multiplicity m comes
    back split by eps^(1/m), possibly into complex pairs. So eigenvalues give candidates λ only, each with its
    neighbours' mean and the real part of pairs near the axis; whether there are vectors is decided by the singular
    values of V − λ, which are below rounding of ‖V‖ exactly where there are. Further matrices are looked at within the
    spaces of those before: a common n = B c has B^T V B c = λ c, which gives the next candidates.

    Args:
        matrices: V_h, (head, dim, dim), float64.
        lowest: Eigenvalues below this are left out.

    Returns:
        Spaces, some possibly within others (a vector of LAPACK's beside the whole eigenspace).

    >>> turned = np.array([[[0.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [1.0, 2.0]]])
    >>> [found.values.round(12).tolist() for found in common_eigenspaces(turned, lowest=0.0)]
    [[1.0, 3.0]]
    """
    dim = matrices.shape[-1]
    size = max(float(np.linalg.norm(matrix, 2)) for matrix in matrices)
    spaces = [Eigenspace(np.eye(dim), np.empty(0))]
    for matrix in matrices:
        spaces = [
            Eigenspace(basis, np.append(space.values, value))
            for space in spaces
            for basis, value in _within(matrix, space.basis, size)
            if value >= lowest
        ]
    return spaces


def _within(matrix: np.ndarray, basis: np.ndarray, size: float) -> list[tuple[np.ndarray, float]]:
    """Return the eigenvectors of a matrix in the span of `basis`, space by space, with their eigenvalue."""
    found: list[tuple[np.ndarray, float]] = []
    image = matrix @ basis
    values, vectors = np.linalg.eig(basis.T @ image)
    for index in np.flatnonzero(np.imag(values) == 0):
        vector = basis @ np.real(vectors[:, index])
        _keep(found, matrix, (vector / np.linalg.norm(vector))[:, None], size)
    for value in _candidates(values, size):
        _, singular, rows = np.linalg.svd(image - value * basis)
        whole = basis @ rows[singular <= RESIDUAL * size].T
        if whole.shape[1]:
            _keep(found, matrix, whole, size)
    return found


def _keep(found: list[tuple[np.ndarray, float]], matrix: np.ndarray, basis: np.ndarray, size: float) -> None:
    value = float(np.trace(basis.T @ matrix @ basis)) / basis.shape[1]
    if np.linalg.norm(matrix @ basis - value * basis, 2) <= RESIDUAL * size:
        found.append((basis, value))


def _candidates(values: np.ndarray, size: float) -> list[float]:
    """Means of the real parts of eigenvalues that lie close together, and real parts of pairs near the real axis."""
    near = values[np.abs(np.imag(values)) <= _NEARLY_REAL * size]
    reals = np.sort(np.real(near))
    groups = np.split(reals, np.flatnonzero(np.diff(reals) > _SAME * size) + 1)
    # A lone real eigenvalue has the one vector that LAPACK gave.
    return [float(group.mean()) for group in groups if len(group) > 1]
