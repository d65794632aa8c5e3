"""From a checked file to the flow, its start, the times and the options of `simulate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, Attention, RotaryPositions
from tokendynamics.dynamics import Flow
from tokendynamics.dynamics.events import AtRest, Consensus, NormAbove
from tokendynamics.spaces import Ellipsoid, Free, Sphere
from tokendynamics.specification.circuits import build_circuits, declared_dim, dense, heads_of, matrix_of
from tokendynamics.specification.lines import KeyPath
from tokendynamics.specification.read import SpecificationFile
from tokendynamics.specification.size import check_size
from tokendynamics.specification.solver import solver_options
from tokendynamics.specification.start import build_start, tokens_of
from tokendynamics.specification.tables import (
    AbsoluteTable,
    EllipsoidTable,
    FreeTable,
    GivenAngles,
    GivenTimes,
    GivenTokens,
    HemisphereStart,
    SpacedTimes,
)


@dataclass(frozen=True)
class Problem:
    """What a file asks for.

    Attributes:
        flow: The flow.
        start: (token, dim) or (system, token, dim), float64, on the space.
        times: Saved times, increasing.
        events: What ends a system early.
        options: The other keyword arguments of `simulate` that the file sets.
    """

    flow: Flow
    start: Tensor
    times: np.ndarray
    events: tuple[Any, ...]
    options: dict[str, Any]


def build(file: SpecificationFile) -> Problem:
    """Make the flow and its start.

    Raises:
        SpecificationError: Shapes that do not fit (both are printed), a metric that is not positive definite, a
            token that cannot be projected, times that do not increase; with the line of the key.
    """
    dim = _dim(file)
    check_size(file, dim)
    space = _space(file, dim)
    start = build_start(file, space, dim)
    qk, ov = build_circuits(file, dim)
    table = file.tables.attention
    positions = _positions(file, dim)
    with file.blaming(("attention",)):
        attention = Attention(
            qk, ov, causal=table.causal, weights=table.weights, normalization=table.normalization, positions=positions
        )
    projection = "orthogonal" if isinstance(file.tables.space, FreeTable) else file.tables.space.projection
    with file.blaming(("space", "projection")):
        flow = Flow(attention, space, projection=projection)
    times = _times(file)
    return Problem(flow, start, times, _events(file), solver_options(file, times))


def _dim(file: SpecificationFile) -> int:
    """The dim that the start says, or else the first matrix that has a size."""
    start = file.tables.start
    match start:
        case GivenTokens():
            return len(start.tokens[0][0]) if isinstance(start.tokens[0][0], list) else len(start.tokens[0])
        case GivenAngles():
            return 2
        case HemisphereStart():
            return len(start.direction)
    if start.dim is not None:
        return start.dim
    for entry in _matrices(file):
        if (dim := declared_dim(entry)) is not None:
            return dim
    raise file.error(("start",), "missing key 'dim': no matrix of the file says how many features a token has")


def _matrices(file: SpecificationFile) -> list[Any]:
    table, space = file.tables.attention, file.tables.space
    heads = [entry for circuit in (table.qk, table.ov) for entry, _ in heads_of(circuit, ())]
    return [*heads, *([space.metric] if isinstance(space, EllipsoidTable) else [])]


def _space(file: SpecificationFile, dim: int) -> Free | Ellipsoid:
    table = file.tables.space
    if isinstance(table, EllipsoidTable):
        path: KeyPath = ("space", "metric")
        with file.blaming(path):
            return Ellipsoid(dense(file, table.metric, path, dim))
    return Free() if isinstance(table, FreeTable) else Sphere()


def _positions(file: SpecificationFile, dim: int) -> AbsolutePositions | RotaryPositions | None:
    table = file.tables.positions
    if table is None:
        return None
    with file.blaming(("positions",)):
        if not isinstance(table, AbsoluteTable):
            query, key = (matrix_of(file, getattr(table, name), ("positions", name), dim) for name in ("query", "key"))
            return RotaryPositions(query, key, base=table.base, scale=table.scale)
        tokens = tokens_of(file.tables.start)
        if table.table == "sinusoidal":
            return AbsolutePositions.sinusoidal(tokens, dim, base=table.base)
        given = torch.tensor(table.table, dtype=torch.float64)
        if given.shape[0] < tokens or given.shape[1] != dim:
            came = f"got {tuple(given.shape)}"
            raise file.error(("positions", "table"), f"expected shape ({tokens}, {dim}), that of the tokens, {came}")
        return AbsolutePositions(given)


def _times(file: SpecificationFile) -> np.ndarray:
    table = file.tables.time
    if isinstance(table, GivenTimes):
        times = np.array(table.times)
        later = np.diff(times) > 0
        if not later.all():
            index = int(np.argmin(later)) + 1
            came = f"{times[index]} after {times[index - 1]}"
            raise file.error(("time", "times", index), f"expected increasing times, got {came}")
        return times
    return _spaced(table)


def _spaced(table: SpacedTimes) -> np.ndarray:
    if table.first is None:
        return np.linspace(0.0, table.end, table.points)
    return np.concatenate([[0.0], np.geomspace(table.first, table.end, table.points - 1)])


def _events(file: SpecificationFile) -> tuple[Any, ...]:
    table = file.tables.events
    events: list[Any] = []
    if table.consensus is not None:
        reference, tokens = table.consensus.reference, tokens_of(file.tables.start)
        if reference >= tokens:
            path = ("events", "consensus", "reference")
            raise file.error(path, f"expected a token from 0 to {tokens - 1}, got {reference}")
        events.append(Consensus(below=table.consensus.below, reference=reference, then=table.then))
    if table.norm_above is not None:
        events.append(NormAbove(table.norm_above, then=table.then))
    if table.at_rest is not None:
        events.append(AtRest(table.at_rest, then=table.then))
    return tuple(events)
