"""From a checked file to the flow, its start, the times and the options of `simulate`, and whether they go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, Attention, RotaryPositions
from tokendynamics.dynamics import Flow
from tokendynamics.dynamics.engines.table import OPTIONS, users
from tokendynamics.dynamics.engines.tableau import TABLEAUS
from tokendynamics.dynamics.events import AtRest, Consensus, Event, NormAbove
from tokendynamics.dynamics.options import check_steps
from tokendynamics.numerics.arguments import as_device
from tokendynamics.numerics.resources import in_bytes, installed_memory
from tokendynamics.spaces import Ellipsoid, Free, Space, Sphere
from tokendynamics.spaces.space import into_half_space
from tokendynamics.specification._circuits import build_circuits, declared_dim, dense, heads_of, matrix_of
from tokendynamics.specification._tables import (
    AbsoluteTable,
    BoxStart,
    EllipsoidTable,
    FreeTable,
    GivenAngles,
    GivenTimes,
    GivenTokens,
    HemisphereStart,
    NormalStart,
    SpacedTimes,
    UniformStart,
)
from tokendynamics.specification.draws import Draws, OfSeeds
from tokendynamics.specification.file import SpecificationFile
from tokendynamics.specification.toml import KeyPath


def build_times(file: SpecificationFile) -> np.ndarray:
    """Return the saved times, increasing.

    Raises:
        SpecificationError: Times that do not increase.
    """
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


def build_events(file: SpecificationFile, tokens: int) -> tuple[Event, ...]:
    """Return what ends a system of `tokens` tokens before the horizon, or is recorded.

    Raises:
        SpecificationError: A reference that is not among the tokens.
    """
    table = file.tables.events
    events: list[Event] = []
    if table.consensus is not None:
        reference = table.consensus.reference
        if reference >= tokens:
            path = ("events", "consensus", "reference")
            raise file.error(path, f"expected a token from 0 to {tokens - 1}, got {reference}")
        events.append(Consensus(below=table.consensus.below, reference=reference, then=table.then))
    if table.norm_above is not None:
        events.append(NormAbove(table.norm_above, then=table.then))
    if table.at_rest is not None:
        events.append(AtRest(table.at_rest, then=table.then))
    return tuple(events)


def solver_options(file: SpecificationFile, times: np.ndarray) -> dict[str, Any]:
    """Return the keyword arguments of `simulate` in ``[solver]``.

    Raises:
        SpecificationError: Options that do not go together, or a device that this machine does not have.
    """
    _check_step(file)
    _check_layers(file, times)
    solver = file.tables.solver
    engine = "fixed" if solver.step is not None else solver.engine or "auto"
    with file.blaming(("solver",)):
        check_steps(engine, times.tolist(), solver.step, solver.max_steps)
    options = file.tables.solver.model_dump(exclude_none=True, exclude={"threads"})
    _check_device(file, options.get("device", "cpu"))
    if "dtype" in options:
        options["dtype"] = getattr(torch, options["dtype"])
    return options


def _check_step(file: SpecificationFile) -> None:
    """Refuse a fixed step without the engine that takes one, and the other way: other engines choose their steps."""
    solver = file.tables.solver
    if solver.engine == "fixed" and solver.step is None:
        raise file.error(("solver",), "engine 'fixed' needs 'step', the length of a step")
    for option in OPTIONS:
        engine = solver.engine or "auto"
        fits = engine in users(option) or (engine == "auto" and option != "tau")
        if getattr(solver, option) is not None and not fits:
            names = " or ".join(map(repr, users(option)))
            raise file.error(("solver", option), f"engine {engine!r} has no {option!r}; take engine {names}")
    adaptive = solver.step is None and solver.engine in (None, "auto", "batched", "compiled")
    if adaptive and solver.method is not None and not TABLEAUS[solver.method].error:
        known = " or ".join(repr(name) for name, tableau in TABLEAUS.items() if tableau.error)
        raise file.error(("solver", "method"), f"{solver.method!r} needs 'step': only {known} can choose their own")


def _check_layers(file: SpecificationFile, times: np.ndarray) -> None:
    broken = times[times != np.round(times)]
    if file.tables.solver.engine == "layers" and broken.size:
        raise file.error(("time",), f"expected whole numbers, which count layers for engine 'layers', got {broken[0]}")


def _check_device(file: SpecificationFile, device: str) -> None:
    with file.blaming(("solver",)):
        as_device(device, "device")


_NUMBER = 8
_COPIES = 4
"""Of states and matrices at the least, while a run is under way."""
_TIME = 64
"""Bytes of a saved time beside its states: a Python number, an array's entry, and whether it was reached."""
StartTable = GivenTokens | GivenAngles | UniformStart | HemisphereStart | BoxStart | NormalStart


@dataclass(frozen=True)
class Setup:
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


def build(file: SpecificationFile, draws: Draws | None = None) -> Setup:
    """Make the flow and its start.

    Args:
        file: The checked file.
        draws: Where random numbers come from; None for the seeds of the laws.

    Raises:
        SpecificationError: Shapes that do not fit (both are printed), a metric that is not positive definite, a
            token that cannot be projected, times that do not increase; with the line of the key.
    """
    dim, draws = _dim(file), draws or OfSeeds()
    _check_size(file, dim)
    space = _space(file, dim, draws)
    start = _start(file, space, dim, draws)
    qk, ov = build_circuits(file, dim, draws)
    table = file.tables.attention
    positions = _positions(file, dim, draws)
    with file.blaming(("attention",)):
        attention = Attention(
            qk, ov, causal=table.causal, weights=table.weights, normalization=table.normalization, positions=positions
        )
    projection = "orthogonal" if isinstance(file.tables.space, FreeTable) else file.tables.space.projection
    with file.blaming(("space", "projection")):
        flow = Flow(attention, space, projection=projection)
    times = build_times(file)
    return Setup(flow, start, times, build_events(file, tokens_of(file.tables.start)), solver_options(file, times))


def _dim(file: SpecificationFile) -> int:
    """Return the dim that the start says, or else the first matrix that has a size."""
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


def _space(file: SpecificationFile, dim: int, draws: Draws) -> Free | Ellipsoid:
    table = file.tables.space
    if isinstance(table, EllipsoidTable):
        path: KeyPath = ("space", "metric")
        with file.blaming(path):
            return Ellipsoid(dense(file, table.metric, path, dim, draws))
    return Free() if isinstance(table, FreeTable) else Sphere()


def _positions(file: SpecificationFile, dim: int, draws: Draws) -> AbsolutePositions | RotaryPositions | None:
    table = file.tables.positions
    if table is None:
        return None
    with file.blaming(("positions",)):
        if not isinstance(table, AbsoluteTable):
            names = ("query", "key")
            query, key = (matrix_of(file, getattr(table, name), ("positions", name), dim, draws) for name in names)
            return RotaryPositions(query.unsqueeze(-3), key.unsqueeze(-3), base=table.base, scale=table.scale)
        tokens = tokens_of(file.tables.start)
        if table.table == "sinusoidal":
            return AbsolutePositions.sinusoidal(tokens, dim, base=table.base)
        given = torch.tensor(table.table, dtype=torch.float64)
        if given.shape[0] < tokens or given.shape[1] != dim:
            came = f"got {tuple(given.shape)}"
            raise file.error(("positions", "table"), f"expected shape ({tokens}, {dim}), that of the tokens, {came}")
        return AbsolutePositions(given)


def tokens_of(start: StartTable) -> int:
    """Return the number of tokens of a system."""
    match start:
        case GivenTokens():
            return len(start.tokens[0]) if isinstance(start.tokens[0][0], list) else len(start.tokens)
        case GivenAngles():
            return len(start.angles)
    return start.tokens


def _start(file: SpecificationFile, space: Space, dim: int, draws: Draws) -> Tensor:
    """Return the tokens, projected onto the space: (token, dim), or (system, token, dim), float64.

    Raises:
        SpecificationError: Shapes that do not fit, a token that is zero, a law the space does not have.
    """
    start = file.tables.start
    if isinstance(start, GivenTokens):
        path = ("start", "tokens")
    else:
        path = ("start", "angles") if isinstance(start, GivenAngles) else ("start", "law")
    with file.blaming(path):
        tokens = _tokens(file, start, space, dim, draws)
        if draws.systems is not None and tokens.ndim == 2:
            tokens = tokens.expand(draws.systems, -1, -1)
        return space.project(tokens)


def _tokens(file: SpecificationFile, start: StartTable, space: Space, dim: int, draws: Draws) -> Tensor:
    match start:
        case GivenTokens():
            return _given(file, start)
        case GivenAngles():
            angles = torch.tensor(start.angles, dtype=torch.float64)
            return torch.stack([angles.cos(), angles.sin()], dim=-1)
    if start.dim is not None and start.dim != dim:
        raise file.error(("start", "dim"), f"expected {dim}, the length of direction, got {start.dim}")
    path: KeyPath = ("start",)
    shape = (*(() if start.systems is None else (start.systems,)), start.tokens, dim)
    match start:
        case UniformStart():
            if isinstance(space, Free):
                raise file.error(("start", "law"), "expected 'normal' or 'box': free space has no uniform law")
            return space.image(draws.normal(start.seed, path, *shape))
        case HemisphereStart():
            normal = draws.normal(start.seed, path, *shape)
            return into_half_space(start.direction, lambda _: space.image(normal))
        case NormalStart():
            return start.scale * draws.normal(start.seed, path, *shape)
    if start.low >= start.high:
        raise file.error(("start", "low"), f"expected low < high, got {start.low} and {start.high}")
    return start.low + (start.high - start.low) * draws.uniform(start.seed, path, *shape)


def _given(file: SpecificationFile, start: GivenTokens) -> Tensor:
    shapes = {(len(rows), len(rows[0])) for rows in start.tokens if isinstance(rows[0], list)}
    if len(shapes) > 1:
        raise file.error(("start", "tokens"), f"expected systems of one shape, got {sorted(shapes)}")
    return torch.tensor(start.tokens, dtype=torch.float64)


def _check_size(file: SpecificationFile, dim: int) -> None:
    """Refuse a file whose start, matrices or saved states are larger than the memory of this machine.

    Raises:
        SpecificationError: With the line of what needs most, the counts, and both sizes.
    """
    start, time, table = file.tables.start, file.tables.time, file.tables.attention
    tokens, systems = tokens_of(start), _systems(file)
    points = len(time.times) if isinstance(time, GivenTimes) else time.points
    heads = max(len(heads_of(circuit, ())) for circuit in (table.qk, table.ov))
    states = _NUMBER * systems * tokens * dim
    needed: dict[KeyPath, int] = {
        ("start",): _COPIES * states,
        ("attention",): _COPIES * _NUMBER * heads * dim**2,
        ("time",): points * (states + _TIME),
    }
    total, installed = sum(needed.values()), installed_memory()
    if total > installed:
        counts = f"{systems:.6g} systems × {tokens:.6g} tokens × {dim:.6g} features, {heads} heads, {points:.6g} times"
        wanted = f"what fits into the {in_bytes(installed)} of memory of this machine"
        largest = max(needed, key=lambda path: needed[path])
        raise file.error(largest, f"expected {wanted}, got {counts}: {in_bytes(total)} needed at least")


def _systems(file: SpecificationFile) -> int:
    start = file.tables.start
    if isinstance(start, GivenAngles):
        return 1
    if isinstance(start, GivenTokens):
        return len(start.tokens) if isinstance(start.tokens[0][0], list) else 1
    return start.systems or 1
