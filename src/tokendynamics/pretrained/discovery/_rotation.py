"""What positions do to queries and keys: each position's matrix is fitted, then read as rotations of feature pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError

_TOLERANCE = 2e-4


@dataclass(frozen=True)
class Rotation:
    """Position i turns the pair of features (first[f], second[f]) of every head by i · frequencies[f].

    Attributes:
        first: First feature of each pair.
        second: Second feature of each pair.
        frequencies: Radians per position; None where the angle is no multiple of the position (patches of an image).
        table: The network's own table that holds the frequencies; None where they were fitted.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    frequencies: tuple[float, ...] | None
    table: str | None

    def halves(self, d_head: int) -> tuple[list[int], list[float]]:
        """Return an order of the features in which pairs are (f, f + d_head/2), and the frequency of each.

        Features that do not turn have the frequency 0.

        >>> Rotation((0, 2), (1, 3), (1.0, 0.5), None).halves(6)
        ([0, 2, 4, 1, 3, 5], [1.0, 0.5, 0.0])
        """
        turned = {*self.first, *self.second}
        rest = [feature for feature in range(d_head) if feature not in turned]
        half = len(rest) // 2
        order = [*self.first, *rest[:half], *self.second, *rest[half:]]
        return order, [*(self.frequencies or (0.0,) * len(self.first)), *([0.0] * half)]


class TooFewInputsError(LayoutNotFoundError):
    """Positions do something, and the matrices of what they do have more entries than were seen."""


def unturned(plain: Tensor, seen: Tensor) -> bool:
    """Tell whether positions do nothing: attention sees what was projected."""
    return float((plain - seen).abs().max()) <= _TOLERANCE * float(seen.abs().max())


def turned(x: Float[Tensor, "*batch token d_head"], angles: Tensor, rotation: Rotation) -> Tensor:
    """Return x with its pairs turned by angles, (token, pair)."""
    first, second = list(rotation.first), list(rotation.second)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b = x[..., first], x[..., second]
    result = x.clone()
    result[..., first] = a * cos - b * sin
    result[..., second] = a * sin + b * cos
    return result


def fitted_matrices(
    plain: Float[Tensor, "batch head token d_head"], seen: Float[Tensor, "batch head token d_head"]
) -> Float[Tensor, "token d_head d_head"]:
    """Return the matrix of each position that takes a projected query, as a row, to the one that attention sees.

    Raises:
        LayoutNotFoundError: No matrix does.
    """
    rows, targets = (tensor.double().permute(2, 0, 1, 3).flatten(1, 2) for tensor in (plain, seen))
    if rows.shape[1] < 1.5 * rows.shape[2]:
        raise TooFewInputsError("too few inputs to fit what positions do")
    matrices = torch.linalg.lstsq(rows, targets).solution
    error = float((rows @ matrices - targets).abs().max() / targets.abs().max())
    if not error <= _TOLERANCE:
        raise LayoutNotFoundError(f"positions do not act linearly on queries and keys (they miss by {error:.1g})")
    return matrices


def rotation_of(matrices: Tensor, tables: Iterable[tuple[str, Tensor]]) -> tuple[Rotation | None, Tensor | None]:
    """Read fitted matrices as a rotation; both None where they are the identity.

    Args:
        matrices: (token, d_head, d_head).
        tables: The network's tables by name; one that fits is more precise than any fit.

    Returns:
        The rotation and its angles, (token, pair).

    Raises:
        LayoutNotFoundError: They turn no pairs of features.
    """
    width = matrices.shape[-1]
    if float((matrices - torch.eye(width, dtype=matrices.dtype)).abs().max()) <= _TOLERANCE:
        return None, None
    best = min(_by_table(matrices, tables), key=lambda candidate: candidate[0], default=(1.0, None))
    if best[1] is not None and best[0] <= _TOLERANCE:
        rotation = best[1]
        steps = torch.arange(len(matrices), dtype=torch.float64)
        return rotation, steps[:, None] * torch.tensor(rotation.frequencies, dtype=torch.float64)
    return _fitted(matrices)


def _by_table(matrices: Tensor, tables: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[float, Rotation]]:
    width, steps = matrices.shape[-1], torch.arange(len(matrices), dtype=torch.float64)
    for name, table in tables:
        count = table.numel()
        if table.ndim != 1 or not table.is_floating_point() or not 0 < 2 * count <= width:
            continue
        frequencies = table.detach().double().cpu()
        for start in {0, width - 2 * count}:
            places = range(start, start + 2 * count)
            for first, second in ((places[:count], places[count:]), (places[::2], places[1::2])):
                rotation = Rotation(tuple(first), tuple(second), tuple(frequencies.tolist()), name)
                yield _misfit(matrices, rotation, steps[:, None] * frequencies), rotation


def _misfit(matrices: Tensor, rotation: Rotation, angles: Tensor) -> float:
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype).expand(len(matrices), -1, -1)
    wanted = turned(eye.transpose(0, 1), angles, rotation).transpose(0, 1)
    return float((wanted - matrices).abs().max())


def _fitted(matrices: Tensor) -> tuple[Rotation, Tensor]:
    """Read the pairs off the matrices themselves: each feature's strongest partner at any position."""
    strength = matrices.abs().amax(dim=0)
    strength.fill_diagonal_(0.0)
    partner = strength.argmax(dim=1)
    pairs = [
        (a, b)
        for a, b in enumerate(partner.tolist())
        if a < b and int(partner[b]) == a and float(strength[a, b]) > _TOLERANCE
    ]
    if not pairs:
        raise LayoutNotFoundError("positions change queries and keys, but turn no pairs of features")
    first, second = (tuple(features) for features in zip(*pairs, strict=True))
    a, b = list(first), list(second)
    angles = torch.atan2(matrices[:, a, b], matrices[:, a, a])
    one = Rotation(first, second, None, None)
    if _misfit(matrices, one, angles) > 10 * _TOLERANCE:
        raise LayoutNotFoundError("positions change queries and keys, but not by turning pairs of features")
    frequencies = angles[1]
    steps = torch.arange(len(matrices), dtype=torch.float64)[:, None] * frequencies
    if _misfit(matrices, one, steps) > 10 * _TOLERANCE:
        return one, angles
    return Rotation(first, second, tuple(frequencies.tolist()), None), steps
