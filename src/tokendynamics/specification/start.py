"""Where the tokens start: given, by angles on the circle, or drawn by a law with a seed."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.numerics.seeding import generator
from tokendynamics.spaces import Free, Space
from tokendynamics.specification.read import SpecificationFile
from tokendynamics.specification.tables import (
    BoxStart,
    GivenAngles,
    GivenTokens,
    HemisphereStart,
    NormalStart,
    UniformStart,
)

StartTable = GivenTokens | GivenAngles | UniformStart | HemisphereStart | BoxStart | NormalStart


def tokens_of(start: StartTable) -> int:
    """Number of tokens of a system."""
    match start:
        case GivenTokens():
            return len(start.tokens[0]) if isinstance(start.tokens[0][0], list) else len(start.tokens)
        case GivenAngles():
            return len(start.angles)
    return start.tokens


def build_start(file: SpecificationFile, space: Space, dim: int) -> Tensor:
    """The tokens, projected onto the space: (token, dim), or (system, token, dim), float64.

    Raises:
        SpecificationError: Shapes that do not fit, a token that is zero, a law the space does not have.
    """
    start = file.tables.start
    if isinstance(start, GivenTokens):
        path = ("start", "tokens")
    else:
        path = ("start", "angles") if isinstance(start, GivenAngles) else ("start", "law")
    with file.blaming(path):
        return space.project(_tokens(file, start, space, dim))


def _tokens(file: SpecificationFile, start: StartTable, space: Space, dim: int) -> Tensor:
    match start:
        case GivenTokens():
            return _given(file, start)
        case GivenAngles():
            angles = torch.tensor(start.angles, dtype=torch.float64)
            return torch.stack([angles.cos(), angles.sin()], dim=-1)
    if start.dim is not None and start.dim != dim:
        raise file.error(("start", "dim"), f"expected {dim}, the length of direction, got {start.dim}")
    systems = () if start.systems is None else (start.systems,)
    match start:
        case UniformStart():
            if isinstance(space, Free):
                raise file.error(("start", "law"), "expected 'normal' or 'box': free space has no uniform law")
            return space.sample(start.tokens, dim, systems, seed=start.seed)
        case HemisphereStart():
            return space.sample_hemisphere(start.tokens, start.direction, systems, seed=start.seed)
        case NormalStart():
            shape = (*systems, start.tokens, dim)
            return start.scale * torch.randn(shape, dtype=torch.float64, generator=generator(start.seed))
    if start.low >= start.high:
        raise file.error(("start", "low"), f"expected low < high, got {start.low} and {start.high}")
    uniform = torch.rand((*systems, start.tokens, dim), dtype=torch.float64, generator=generator(start.seed))
    return start.low + (start.high - start.low) * uniform


def _given(file: SpecificationFile, start: GivenTokens) -> Tensor:
    shapes = {(len(rows), len(rows[0])) for rows in start.tokens if isinstance(rows[0], list)}
    if len(shapes) > 1:
        raise file.error(("start", "tokens"), f"expected systems of one shape, got {sorted(shapes)}")
    return torch.tensor(start.tokens, dtype=torch.float64)
