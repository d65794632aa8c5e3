"""The eigenspaces of ov in which tokens grow, of each system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems.contraction import head_matrix

_TINY = torch.finfo(torch.float64).tiny


def top_vector(flow: Flow) -> tuple[Tensor, Tensor, Tensor]:
    """Return the eigenvalue of ov of largest real part and the gap below it, relative to ‖ov‖, and its vector."""
    ov = head_matrix(flow.attention.ov)
    values, vectors = torch.linalg.eig(ov)
    order = values.real.argsort(dim=-1, descending=True)
    real = values.real.gather(-1, order)
    size = torch.linalg.matrix_norm(ov, 2).clamp_min(_TINY)
    column = order[..., :1].unsqueeze(-2).expand(*order.shape[:-1], ov.shape[-1], 1)
    vector = vectors.gather(-1, column).squeeze(-1).real
    # The only eigenvalue there is, is simple.
    second = real[..., 1] if flow.dim > 1 else real[..., 0] - size
    return real[..., 0] / size, (real[..., 0] - second) / size, torch.nn.functional.normalize(vector, dim=-1)


@dataclass(frozen=True)
class TopSpace:
    """The eigenspace L of the eigenvalue λ of ov of largest real part, of each system; sizes are relative to ‖ov‖.

    Attributes:
        projection: Onto L, (*system, dim, dim).
        dim: dim L, (*system,).
        top: λ.
        leak: The part of ov that brings vectors off L into L.
        gap: λ less the largest z·ov z on unit vectors z off L; 2 where L is all.
        size: ‖ov‖.
    """

    projection: Tensor
    dim: Tensor
    top: Tensor
    leak: Tensor
    gap: Tensor
    size: Tensor


def top_space(flow: Flow) -> TopSpace:
    """Return the eigenspace of the largest real part."""
    return TopSpace(*_of_each_system(flow, _top_space_of))


def _of_each_system(flow: Flow, measure: Callable[[Tensor, float], tuple[Tensor, ...]]) -> list[Tensor]:
    """Return what a function of ov, (dim, dim), and of its rounding gives for each system, (*system, …)."""
    ov = head_matrix(flow.attention.ov)
    tolerance = float(np.sqrt(measured.rounding(flow.dim, measured.precision(flow.attention.ov))))
    parts = [measure(matrix, tolerance) for matrix in ov.reshape(-1, flow.dim, flow.dim)]
    columns = (torch.stack(column) for column in zip(*parts, strict=True))
    return [column.reshape((*ov.shape[:-2], *column.shape[1:])) for column in columns]


def _top_space_of(ov: Tensor, tolerance: float) -> tuple[Tensor, ...]:
    size = torch.linalg.matrix_norm(ov, 2).clamp_min(_TINY)
    values = torch.linalg.eigvals(ov).real
    # The mean of the eigenvalues that rounding takes apart is right to rounding.
    top = values[values >= values.max() - tolerance * size].mean()
    eye = torch.eye(len(ov)).to(ov)
    _, singular, rows = torch.linalg.svd(ov - top * eye)
    inside = singular <= tolerance * size
    basis, rest = rows[inside].mT, rows[~inside].mT
    leak = torch.linalg.matrix_norm(basis.mT @ ov @ rest, 2) if 0 < basis.shape[1] < len(ov) else torch.zeros(()).to(ov)
    form = rest.mT @ ov @ rest
    gap = (top - torch.linalg.eigvalsh((form + form.mT) / 2)[-1]) / size if rest.shape[1] else torch.tensor(2.0).to(ov)
    return basis @ basis.mT, inside.sum().to(ov), torch.as_tensor(top / size), leak / size, gap, size


@dataclass(frozen=True)
class Fastest:
    """The eigenvalue λ of ov of largest modulus, the space F of its vectors, of each system.

    Attributes:
        rate: Its real part, times the factor of the weights, (*system).
        top: The real part relative to ‖ov‖.
        gap: |λ| less the next modulus, relative to ‖ov‖; 1 without others.
        missing: How many vectors F lacks of the multiplicity of λ.
        dim: dim F.
        projection: Onto F along the invariant complement, (*system, dim, dim); 0 without one.
        basis: Orthonormal in F, filled with zeros, (*system, dim, dim).
    """

    rate: Tensor
    top: Tensor
    gap: Tensor
    missing: Tensor
    dim: Tensor
    projection: Tensor
    basis: Tensor


def fastest_space(flow: Flow) -> Fastest:
    """Return the eigenspace of the largest modulus."""
    rate, *others = _of_each_system(flow, _fastest_of)
    return Fastest(flow.weight_factor * rate, *others)


def _fastest_of(ov: Tensor, tolerance: float) -> tuple[Tensor, ...]:
    dim, size = len(ov), torch.linalg.matrix_norm(ov, 2).clamp_min(_TINY)
    values = torch.linalg.eigvals(ov)
    values = values[values.abs().argsort(descending=True)]
    same = (values - values[0]).abs() <= tolerance * size
    top = values[same].mean()
    others = values[~same].abs()
    gap = (top.abs() - others[0]) / size if len(others) else torch.ones(()).to(ov)
    shifted = ov - top.real * torch.eye(dim).to(ov)
    left, singular, right = torch.linalg.svd(shifted)
    inside = singular <= tolerance * size
    vectors, functionals = right[inside].mT, left[:, inside]
    pairing = functionals.mT @ vectors
    projection, basis = torch.zeros_like(ov), torch.zeros_like(ov)
    count = int(inside.sum())
    if count == int(same.sum()) and count:
        projection = vectors @ torch.linalg.solve(pairing, functionals.mT)
        basis[:, :count] = vectors
    missing = same.sum().to(ov) - count
    return top.real, top.real / size, gap, missing, torch.tensor(float(count)).to(ov), projection, basis


def growing_part(flow: Flow) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many eigenvalues of ov have a real part above 0, the least of these, and the projection on their part.

    Shapes (*system), (*system) relative to ‖ov‖, and (*system, dim, dim), along the invariant complement; NaN where the
    vectors of both parts are nearly dependent.
    """
    ov = head_matrix(flow.attention.ov)
    values, vectors = torch.linalg.eig(ov)
    size = torch.linalg.matrix_norm(ov, 2).clamp_min(_TINY)
    grows = values.real > measured.ROUNDING * size[..., None]
    least = torch.where(grows, values.real, torch.inf).amin(dim=-1) / size
    projection = torch.full_like(ov, torch.nan)
    usable = torch.linalg.cond(vectors) < 1 / measured.ROUNDING
    if bool(usable.any()):
        basis = torch.where(usable[..., None, None], vectors, torch.eye(flow.dim).to(vectors))
        parts = (basis * grows.unsqueeze(-2)) @ torch.linalg.inv(basis)
        projection = torch.where(usable[..., None, None], parts.real, torch.nan)
    return grows.sum(dim=-1).double(), least, projection
