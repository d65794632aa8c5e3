"""From the matrices of a file to the circuits of all heads, constant or as schedules in time."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from tokendynamics.attention import Periodic, Sinusoidal
from tokendynamics.specification._matrices import (
    DefiniteMatrix,
    DiagonalMatrix,
    DrawnMatrix,
    FromContraction,
    Law,
    PeriodicMatrix,
    Product,
    ScaledIdentity,
    SinusoidalMatrix,
)
from tokendynamics.specification.draws import Draws, OfSystems
from tokendynamics.specification.file import SpecificationFile
from tokendynamics.specification.toml import KeyPath

CircuitSchedule = Tensor | Sinusoidal | Periodic


def build_circuits(file: SpecificationFile, dim: int, draws: Draws) -> tuple[CircuitSchedule, CircuitSchedule]:
    """Build the circuits qk and ov of all heads; an entry that stands alone holds for every head.

    What each system draws for itself has the system's axis in front.

    Raises:
        SpecificationError: Numbers of heads or shapes that do not fit (both are printed), or schedules that
            cannot stand side by side.
    """
    table = file.tables.attention
    qk, ov = heads_of(table.qk, ("attention", "qk")), heads_of(table.ov, ("attention", "ov"))
    count = max(len(qk), len(ov))
    if min(len(qk), len(ov)) not in (1, count):
        raise file.error(("attention", "ov"), f"expected as many heads as qk, {len(qk)}, or one entry, got {len(ov)}")
    qk, ov = (heads if len(heads) == count else heads * count for heads in (qk, ov))
    ov = [_resolved(file, entry, path, qk[head], dim, draws) for head, (entry, path) in enumerate(ov)]
    return _schedule(file, qk, dim, draws), _schedule(file, ov, dim, draws)


def heads_of(circuit: Any, path: KeyPath) -> list[tuple[Any, KeyPath]]:
    """Return the entry of each head, and where it stands in the file."""
    if isinstance(circuit, list) and not (isinstance(circuit[0], list) and isinstance(circuit[0][0], float)):
        return [(entry, (*path, head)) for head, entry in enumerate(circuit)]
    return [(circuit, path)]


def declared_dim(entry: Any) -> int | None:
    """Return the rows of a matrix where the file says so; None for an identity or a drawn matrix."""
    match entry:
        case Tensor() | list():
            return len(entry)
        case DiagonalMatrix():
            return len(entry.diagonal)
        case Product():
            return len(entry.query)
        case FromContraction():
            return declared_dim(entry.contraction)
        case SinusoidalMatrix():
            return declared_dim(entry.matrix)
        case PeriodicMatrix():
            return next((size for size in map(declared_dim, entry.matrices) if size is not None), None)
    return None


def dense(file: SpecificationFile, entry: Any, path: KeyPath, dim: int, draws: Draws) -> Tensor:
    """Return a constant matrix of the file, (dim, dim) or (system, dim, dim), float64.

    Raises:
        SpecificationError: A shape that does not fit; both are printed.
    """
    matrix = _dense(file, entry, path, dim, draws)
    if matrix.shape[-2:] != (dim, dim):
        raise file.error(path, f"expected shape ({dim}, {dim}) to fit the tokens, got {tuple(matrix.shape)}")
    return matrix


def draw(draws: Draws, law: Law, path: KeyPath, *shape: int) -> Tensor:
    """Draw independent numbers of a law, float64."""
    if law.law == "normal":
        return law.scale * draws.normal(law.seed, path, *shape)
    return law.low + (law.high - law.low) * draws.uniform(law.seed, path, *shape)


def _draw_definite(draws: Draws, law: DefiniteMatrix, path: KeyPath, dim: int) -> Tensor:
    normal = draws.normal(law.seed, path, 3, dim, dim)
    below, turning, sizes = normal[..., 0, :, :], normal[..., 1, :, :], normal[..., 2, 0, :]
    lower = torch.eye(dim, dtype=torch.float64) + below.tril(-1) / math.sqrt(dim)
    signs = torch.ones(dim, dtype=torch.float64)
    signs[: {"positive": 0, "mixed": dim // 2, "negative": dim}[law.definite]] = -1
    values = signs * torch.nn.functional.softplus(sizes)
    skew = (turning - turning.mT) / math.sqrt(dim)
    return (lower * values.unsqueeze(-2)) @ lower.mT + law.skew * skew


_CANDIDATES = {1: 8, 2: 32, 3: 128, 4: 1024, 5: 8192}
"""Matrices of the first try by dim, somewhat more than it takes to find a definite one."""


def _draw_by_rejection(draws: Draws, law: DefiniteMatrix, path: KeyPath, dim: int) -> Tensor:
    """Draw the first standard normal matrix whose symmetric part is positive definite, of each system its own."""
    if isinstance(draws, OfSystems) and draws.systems > 1 and law.seed is None:
        alone = (replace(draws, first=draws.first + number, systems=1) for number in range(draws.systems))
        return torch.cat([_draw_by_rejection(each, law, path, dim) for each in alone])
    for attempt in count():
        # A law with a seed has one stream: twice as many are then drawn anew.
        drawn = draws.normal(law.seed, (*path, attempt), _CANDIDATES[dim] << attempt, dim, dim)
        symmetric = (drawn + drawn.mT) / 2
        definite = torch.linalg.cholesky_ex(symmetric).info == 0
        if bool(definite.any(dim=-1).all()):
            chosen = definite.int().argmax(dim=-1, keepdim=True)[..., None, None].expand(*drawn.shape[:-3], 1, dim, dim)
            symmetric, drawn = (each.gather(-3, chosen).squeeze(-3) for each in (symmetric, drawn))
            sign = -1.0 if law.definite == "negative" else 1.0
            return sign * (symmetric + law.skew * (drawn - symmetric))
    raise AssertionError


def matrix_of(file: SpecificationFile, entry: Any, path: KeyPath, dim: int, draws: Draws) -> Tensor:
    """Return what `dense` does for matrices that need not be square, such as the Q̄ of rotary positions."""
    return _dense(file, entry, path, dim, draws)


def _dense(file: SpecificationFile, entry: Any, path: KeyPath, dim: int, draws: Draws) -> Tensor:
    match entry:
        case Tensor():
            return entry
        case "identity":
            return torch.eye(dim, dtype=torch.float64)
        case list():
            return torch.tensor(entry, dtype=torch.float64)
        case ScaledIdentity():
            return entry.identity * torch.eye(dim, dtype=torch.float64)
        case DiagonalMatrix():
            return torch.tensor(entry.diagonal, dtype=torch.float64).diag()
        case Product():
            query, key = (torch.tensor(rows, dtype=torch.float64) for rows in (entry.query, entry.key))
            if query.shape != key.shape:
                raise file.error(
                    path, f"expected query and key of one shape, got {(*query.shape,)} and {(*key.shape,)}"
                )
            return query @ key.mT
        case DrawnMatrix():
            drawn = draw(draws, entry, path, dim, dim)
            return drawn + drawn.mT if entry.symmetric else drawn
        case DefiniteMatrix() if entry.by == "rejection":
            if dim not in _CANDIDATES:
                raise file.error(path, f"expected at most {max(_CANDIDATES)} dimensions by rejection, got {dim}")
            return _draw_by_rejection(draws, entry, path, dim)
        case DefiniteMatrix():
            return _draw_definite(draws, entry, path, dim)
    raise file.error(path, "expected a matrix that needs no other: a contraction form only gives ov from qk")


def _resolved(
    file: SpecificationFile, entry: Any, path: KeyPath, qk: tuple[Any, KeyPath], dim: int, draws: Draws
) -> tuple[Any, KeyPath]:
    """Return the matrix ov where it was given by the contraction form A: ``ov = A^{-1} qk``."""
    if not isinstance(entry, FromContraction):
        return entry, path
    if isinstance(qk[0], SinusoidalMatrix | PeriodicMatrix):
        raise file.error(path, "expected a qk that does not depend on time beside a contraction form")
    contraction = dense(file, entry.contraction, (*path, "contraction"), dim, draws)
    if bool((torch.linalg.matrix_rank(contraction) < dim).any()):
        raise file.error(path, "expected an invertible contraction form, got a singular one")
    ov = torch.linalg.solve(contraction, dense(file, *qk, dim, draws))
    if entry.norm is not None:
        ov = ov * (entry.norm / torch.linalg.matrix_norm(ov, ord=2, keepdim=True))
    return ov, path


def _schedule(file: SpecificationFile, heads: list[tuple[Any, KeyPath]], dim: int, draws: Draws) -> CircuitSchedule:
    if any(isinstance(entry, PeriodicMatrix) for entry, _ in heads):
        return _periodic(file, heads, dim, draws)
    if any(isinstance(entry, SinusoidalMatrix) for entry, _ in heads):
        return _sinusoidal(file, heads, dim, draws)
    return _stacked([dense(file, entry, path, dim, draws) for entry, path in heads], -3)


def _stacked(heads: list[Tensor], axis: int) -> Tensor:
    """Put heads side by side; one that all systems share is that of each where another head differs between them."""
    return torch.stack(torch.broadcast_tensors(*heads), dim=axis)


def _sinusoidal(file: SpecificationFile, heads: list[tuple[Any, KeyPath]], dim: int, draws: Draws) -> Sinusoidal:
    varying = [(entry, path) for entry, path in heads if isinstance(entry, SinusoidalMatrix)]
    absolute = varying[0][0].absolute
    for entry, path in varying:
        if entry.absolute != absolute:
            raise file.error(path, "expected the same 'absolute' in every head of a circuit")
    # A constant head is one whose gate stands still at sin(π/2) = 1.
    still = SinusoidalMatrix(matrix="identity", frequency=0.0, phase=math.pi / 2)
    gates = [(entry if isinstance(entry, SinusoidalMatrix) else still, path) for entry, path in heads]
    matrices = [
        dense(file, entry.matrix, (*path, "matrix"), dim, draws)
        if isinstance(entry, SinusoidalMatrix)
        else dense(file, entry, path, dim, draws)
        for entry, path in heads
    ]
    amplitude, frequency, phase = (
        _stacked([_gate(file, getattr(entry, name), (*path, name), dim, draws) for entry, path in gates], -2)
        for name in ("amplitude", "frequency", "phase")
    )
    return Sinusoidal(_stacked(matrices, -3), amplitude, frequency, phase, absolute)


def _gate(file: SpecificationFile, value: Any, path: KeyPath, dim: int, draws: Draws) -> Tensor:
    """Return one number per row of the matrix."""
    if isinstance(value, Law):
        return draw(draws, value, path, dim)
    numbers = torch.tensor(value, dtype=torch.float64)
    if numbers.ndim and len(numbers) != dim:
        raise file.error(path, f"expected one number, or one for each of {dim} rows, got {len(numbers)}")
    return numbers.expand(dim)


def _periodic(file: SpecificationFile, heads: list[tuple[Any, KeyPath]], dim: int, draws: Draws) -> Periodic:
    first = next(entry for entry, _ in heads if isinstance(entry, PeriodicMatrix))
    pieces = len(first.matrices)
    columns = []
    for entry, path in heads:
        if isinstance(entry, SinusoidalMatrix):
            raise file.error(path, "expected constant or periodic heads beside a periodic one")
        if isinstance(entry, PeriodicMatrix):
            if (entry.period, len(entry.matrices)) != (first.period, pieces):
                came = f"{len(entry.matrices)} matrices in {entry.period}"
                raise file.error(
                    path, f"expected {pieces} matrices in a period of {first.period}, as above, got {came}"
                )
            parts = [(matrix, (*path, "matrices", piece)) for piece, matrix in enumerate(entry.matrices)]
        else:
            parts = [(entry, path)] * pieces
        pieces_of_head = [dense(file, matrix, where, dim, draws) for matrix, where in parts]
        if any(matrix.ndim > 2 for matrix in pieces_of_head):
            raise file.error(path, "expected laws with a seed: the pieces of a period are those of all systems")
        columns.append(torch.stack(pieces_of_head))
    return Periodic(torch.stack(columns, dim=1), first.period)
