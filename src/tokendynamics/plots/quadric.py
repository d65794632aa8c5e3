"""The surface y^T M y = 1 as curves: its wire in three dimensions and its outline on the paper."""

from __future__ import annotations

import numpy as np

_MERIDIANS, _PARALLELS, _POINTS = 12, 5, 121


def wire(metric: np.ndarray) -> list[np.ndarray]:
    """Return meridians and parallels of y^T M y = 1 in three dimensions, each of shape (point, 3).

    They are those of the unit sphere carried over by M^(−1/2), and every point is scaled back onto the surface, so
    that |y^T M y − 1| is at the level of rounding.

    >>> curves = wire(np.diag([1.0, 4.0, 9.0]))
    >>> max(float(abs(np.einsum("pi,ij,pj->p", c, np.diag([1.0, 4.0, 9.0]), c) - 1).max()) for c in curves) < 1e-14
    True
    """
    root = _inverse_root(metric)
    turn = np.linspace(0, 2 * np.pi, _POINTS)
    half = np.linspace(-np.pi / 2, np.pi / 2, _POINTS)
    longitudes = np.arange(_MERIDIANS) * 2 * np.pi / _MERIDIANS
    latitudes = (np.arange(_PARALLELS) + 1) * np.pi / (_PARALLELS + 1) - np.pi / 2
    meridians = [_on_sphere(np.full_like(half, longitude), half) for longitude in longitudes]
    parallels = [_on_sphere(turn, np.full_like(turn, latitude)) for latitude in latitudes]
    return [_onto_surface(curve @ root, metric) for curve in meridians + parallels]


def outline(metric: np.ndarray, paper: np.ndarray) -> np.ndarray:
    """Return the edge of the shadow of y^T M y = 1 under the orthonormal rows of `paper`, shape (point, 2).

    The shadow of the ellipsoid is the ellipse z^T (C M^(−1) C^T)^(−1) z = 1 with C = `paper`, in any dimension.

    >>> edge = outline(np.diag([1.0, 4.0]), np.eye(2))
    >>> edge.max(axis=0).round(3).tolist()
    [1.0, 0.5]
    """
    turn = np.linspace(0, 2 * np.pi, 2 * _POINTS - 1)
    shape = np.linalg.cholesky(paper @ np.linalg.solve(metric, paper.T))
    return np.stack([np.cos(turn), np.sin(turn)], axis=-1) @ shape.T


def _on_sphere(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=-1)


def _inverse_root(metric: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(metric)
    return (vectors / np.sqrt(values)) @ vectors.T


def _onto_surface(points: np.ndarray, metric: np.ndarray) -> np.ndarray:
    return points / np.sqrt(np.einsum("pi,ij,pj->p", points, metric, points))[:, None]
