"""From a checked file to the flow, its start, the times and the options of `simulate`, and whether they go together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, Attention, Periodic, RotaryPositions, Sinusoidal
from tokendynamics.dynamics import Flow, Noise
from tokendynamics.dynamics.engines.table import ENGINES, OF_LAYERS, OPTIONS, having_method, users
from tokendynamics.dynamics.events import AtRest, Consensus, Event, NormAbove
from tokendynamics.dynamics.options import check_steps
from tokendynamics.numerics.arguments import as_device
from tokendynamics.numerics.resources import in_bytes, installed_memory
from tokendynamics.spaces import Ellipsoid, Free, Normalized, Space, Sphere
from tokendynamics.spaces.space import into_half_space
from tokendynamics.specification._tables import (
    AbsoluteTable,
    BoxStart,
    DefiniteMatrix,
    DiagonalMatrix,
    DrawnMatrix,
    EllipsoidTable,
    FreeTable,
    FromContraction,
    GivenAngles,
    GivenTimes,
    GivenTokens,
    HemisphereStart,
    Law,
    NormalizedTable,
    NormalStart,
    PeriodicMatrix,
    Product,
    ScaledIdentity,
    SinusoidalMatrix,
    UniformStart,
)
from tokendynamics.specification.draws import Draws, OfSeeds, OfSystems
from tokendynamics.specification.file import SpecificationFile
from tokendynamics.specification.toml import KeyPath
from tokendynamics.words import plural


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


def solver_options(file: SpecificationFile, times: np.ndarray, draws: Draws) -> dict[str, Any]:
    """Return the keyword arguments of `simulate` in ``[solver]``; noise is that of the systems that are drawn.

    Raises:
        SpecificationError: Options that do not go together, or a device that this machine does not have.
    """
    _check_step(file)
    solver, broken = file.tables.solver, times[times != np.round(times)]
    if solver.engine == "layers" and broken.size:
        raise file.error(("time",), f"expected whole numbers, which count layers for engine 'layers', got {broken[0]}")
    engine = "sde" if solver.noise else "fixed" if solver.step is not None else solver.engine or "auto"
    with file.blaming(("solver",)):
        check_steps(engine, times.tolist(), solver.step, solver.max_steps)
    options = solver.model_dump(exclude_none=True, exclude={"threads"})
    if solver.frame == "rescaled" and solver.engine == "layers":
        raise file.error(("solver", "frame"), "engine 'layers' has no frame 'rescaled'; take another engine")
    with file.blaming(("solver",)):
        as_device(options.get("device", "cpu"), "device")
    if "dtype" in options:
        options["dtype"] = getattr(torch, options["dtype"])
    if solver.noise is not None:
        options["noise"] = Noise(solver.noise.strength, *draws.noise(solver.noise.seed, ("solver", "noise")))
    return options


def _check_step(file: SpecificationFile) -> None:
    """Refuse a fixed step without the engine that takes one, and the other way: other engines choose their steps."""
    solver = file.tables.solver
    if solver.engine == "fixed" and solver.step is None:
        raise file.error(("solver",), "engine 'fixed' needs 'step', the length of a step")
    if solver.engine == "sde" and solver.noise is None:
        raise file.error(("solver",), "engine 'sde' needs 'noise', with a strength and a seed")
    if solver.noise is not None and solver.step is None:
        raise file.error(("solver", "noise"), "noise needs 'step', the length of a step")
    for option in OPTIONS:
        engine = solver.engine or "auto"
        fits = engine in users(option) or (engine == "auto" and option not in OF_LAYERS)
        if getattr(solver, option) is not None and not fits:
            names = " or ".join(map(repr, users(option)))
            raise file.error(("solver", option), f"engine {engine!r} has no {option!r}; take engine {names}")
    engine = solver.engine or "auto"
    adaptive = ENGINES.get("batched" if engine == "auto" else engine)
    if solver.step is not None or adaptive is None or solver.method in (None, *adaptive.methods):
        return
    having = having_method(solver.method)
    if having == ("fixed",):
        known = " or ".join(map(repr, adaptive.methods))
        raise file.error(("solver", "method"), f"{solver.method!r} needs 'step': only {known} can choose their own")
    names = " or ".join(map(repr, having))
    raise file.error(("solver", "method"), f"engine {engine!r} has no method {solver.method!r}; take engine {names}")


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
    qk, ov = _circuits(file, dim, draws)
    table = file.tables.attention
    positions = _positions(file, dim, draws)
    with file.blaming(("attention",)):
        attention = Attention(
            qk,
            ov,
            causal=table.causal,
            mask=table.mask,
            weights=table.weights,
            normalization=table.normalization,
            positions=positions,
            offset=table.offset,
        )
    table_of_space = file.tables.space
    plain = isinstance(table_of_space, FreeTable | NormalizedTable)
    projection = "orthogonal" if plain else table_of_space.projection
    with file.blaming(("space", "projection")):
        flow = Flow(attention, space, projection=projection, frozen=table.frozen)
    times = build_times(file)
    with file.blaming(("time",)):
        attention.breaks(float(times[0]), float(times[-1]))  # refuses more jumps than a run can pass
    events, options = build_events(file, tokens_of(file.tables.start)), solver_options(file, times, draws)
    return Setup(flow, start, times, events, options)


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
    table, space = file.tables.attention, file.tables.space
    heads = [entry for circuit in (table.qk, table.ov) for entry, _ in _heads_of(circuit, ())]
    for entry in (*heads, *([space.metric] if isinstance(space, EllipsoidTable) else [])):
        if (dim := _declared_dim(entry)) is not None:
            return dim
    raise file.error(("start",), "missing key 'dim': no matrix of the file says how many features a token has")


def _space(file: SpecificationFile, dim: int, draws: Draws) -> Space:
    table = file.tables.space
    if isinstance(table, EllipsoidTable):
        path: KeyPath = ("space", "metric")
        with file.blaming(path):
            return Ellipsoid(_dense(file, table.metric, path, dim, draws))
    if isinstance(table, NormalizedTable):
        with file.blaming(("space",)):
            return Normalized(table.scheme, switch=table.switch, rate=table.rate, radius=table.radius)
    return Free() if isinstance(table, FreeTable) else Sphere()


def _positions(file: SpecificationFile, dim: int, draws: Draws) -> AbsolutePositions | RotaryPositions | None:
    table = file.tables.positions
    if table is None:
        return None
    with file.blaming(("positions",)):
        if not isinstance(table, AbsoluteTable):
            names = ("query", "key")
            query, key = (_matrix_of(file, getattr(table, name), ("positions", name), dim, draws) for name in names)
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
            shapes = {(len(rows), len(rows[0])) for rows in start.tokens if isinstance(rows[0], list)}
            if len(shapes) > 1:
                raise file.error(("start", "tokens"), f"expected systems of one shape, got {sorted(shapes)}")
            return torch.tensor(start.tokens, dtype=torch.float64)
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


def _check_size(file: SpecificationFile, dim: int) -> None:
    """Refuse a file whose start, matrices or saved states are larger than the memory of this machine.

    Raises:
        SpecificationError: With the line of what needs most, the counts, and both sizes.
    """
    start, time, table = file.tables.start, file.tables.time, file.tables.attention
    tokens, systems = tokens_of(start), 1
    if isinstance(start, GivenTokens):
        systems = len(start.tokens) if isinstance(start.tokens[0][0], list) else 1
    elif not isinstance(start, GivenAngles):
        systems = start.systems or 1
    points = len(time.times) if isinstance(time, GivenTimes) else time.points
    heads = max(len(_heads_of(circuit, ())) for circuit in (table.qk, table.ov))
    states = _NUMBER * systems * tokens * dim
    needed: dict[KeyPath, int] = {
        ("start",): _COPIES * states,
        ("attention",): _COPIES * _NUMBER * heads * dim**2,
        ("time",): points * (states + _TIME),
    }
    total, installed = sum(needed.values()), installed_memory()
    if total > installed:
        sizes = ((systems, "system"), (tokens, "token"), (dim, "feature"))
        counts = " × ".join(f"{size:.6g} {noun}{'' if size == 1 else 's'}" for size, noun in sizes)
        counts = f"{counts}, {plural(heads, 'head')}, {points:.6g} times"
        wanted = f"what fits into the {in_bytes(installed)} of memory of this machine"
        largest = max(needed, key=lambda path: needed[path])
        raise file.error(largest, f"expected {wanted}, got {counts}: {in_bytes(total)} needed at least")


CircuitSchedule = Tensor | Sinusoidal | Periodic


def _circuits(file: SpecificationFile, dim: int, draws: Draws) -> tuple[CircuitSchedule, CircuitSchedule]:
    """Build the circuits qk and ov of all heads; an entry that stands alone holds for every head.

    What each system draws for itself has the system's axis in front.

    Raises:
        SpecificationError: Numbers of heads or shapes that do not fit (both are printed), or schedules that
            cannot stand side by side.
    """
    table = file.tables.attention
    qk, ov = _heads_of(table.qk, ("attention", "qk")), _heads_of(table.ov, ("attention", "ov"))
    number = max(len(qk), len(ov))
    if min(len(qk), len(ov)) not in (1, number):
        raise file.error(("attention", "ov"), f"expected as many heads as qk, {len(qk)}, or one entry, got {len(ov)}")
    qk, ov = (heads if len(heads) == number else heads * number for heads in (qk, ov))
    ov = [_resolved(file, entry, path, qk[head], dim, draws) for head, (entry, path) in enumerate(ov)]
    return _schedule(file, qk, dim, draws), _schedule(file, ov, dim, draws)


def _heads_of(circuit: Any, path: KeyPath) -> list[tuple[Any, KeyPath]]:
    """Return the entry of each head, and where it stands in the file."""
    if isinstance(circuit, list) and not (isinstance(circuit[0], list) and isinstance(circuit[0][0], float)):
        return [(entry, (*path, head)) for head, entry in enumerate(circuit)]
    return [(circuit, path)]


def _declared_dim(entry: Any) -> int | None:
    """Return the rows of a matrix where the file says so; None for an identity or a drawn matrix."""
    match entry:
        case Tensor() | list():
            return len(entry)
        case DiagonalMatrix():
            return len(entry.diagonal)
        case Product():
            return len(entry.query)
        case FromContraction():
            return _declared_dim(entry.contraction)
        case SinusoidalMatrix():
            return _declared_dim(entry.matrix)
        case PeriodicMatrix():
            return next((size for size in map(_declared_dim, entry.matrices) if size is not None), None)
    return None


def _dense(file: SpecificationFile, entry: Any, path: KeyPath, dim: int, draws: Draws) -> Tensor:
    """Return a constant matrix of the file, (dim, dim) or (system, dim, dim), float64.

    Raises:
        SpecificationError: A shape that does not fit; both are printed.
    """
    matrix = _matrix_of(file, entry, path, dim, draws)
    if matrix.shape[-2:] != (dim, dim):
        raise file.error(path, f"expected shape ({dim}, {dim}) to fit the tokens, got {tuple(matrix.shape)}")
    return matrix


def _draw(draws: Draws, law: Law, path: KeyPath, *shape: int) -> Tensor:
    """Draw independent numbers of a law, float64."""
    if law.law == "normal":
        return law.scale * draws.normal(law.seed, path, *shape)
    return law.low + (law.high - law.low) * draws.uniform(law.seed, path, *shape)


_CANDIDATES = {1: 8, 2: 32, 3: 128, 4: 1024, 5: 8192}
"""Matrices of the first try by dim, somewhat more than it takes to find a definite one."""


def _draw_by_rejection(draws: Draws, law: DefiniteMatrix, path: KeyPath, dim: int) -> Tensor:
    """Draw the first standard normal matrix whose symmetric part is positive definite, of each system its own."""
    if isinstance(draws, OfSystems) and draws.systems > 1 and law.seed is None:
        alone = (replace(draws, first=draws.first + number, systems=1) for number in range(draws.systems))
        return torch.cat([_draw_by_rejection(system, law, path, dim) for system in alone])
    for attempt in count():
        # A law with a seed has one stream: twice as many are then drawn anew.
        drawn = draws.normal(law.seed, (*path, attempt), _CANDIDATES[dim] << attempt, dim, dim)
        symmetric = (drawn + drawn.mT) / 2
        definite = torch.linalg.cholesky_ex(symmetric).info == 0
        if bool(definite.any(dim=-1).all()):
            chosen = definite.int().argmax(dim=-1, keepdim=True)[..., None, None].expand(*drawn.shape[:-3], 1, dim, dim)
            symmetric, drawn = (matrices.gather(-3, chosen).squeeze(-3) for matrices in (symmetric, drawn))
            sign = -1.0 if law.definite == "negative" else 1.0
            return sign * (symmetric + law.skew * (drawn - symmetric))
    raise AssertionError


def _matrix_of(file: SpecificationFile, entry: Any, path: KeyPath, dim: int, draws: Draws) -> Tensor:
    """Return what `_dense` does for matrices that need not be square, such as the Q̄ of rotary positions."""
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
            drawn = _draw(draws, entry, path, dim, dim)
            return drawn + drawn.mT if entry.symmetric else drawn
        case DefiniteMatrix() if entry.by == "rejection":
            if dim not in _CANDIDATES:
                raise file.error(path, f"expected at most {max(_CANDIDATES)} dimensions by rejection, got {dim}")
            return _draw_by_rejection(draws, entry, path, dim)
        case DefiniteMatrix():
            normal = draws.normal(entry.seed, path, 3, dim, dim)
            below, turning, sizes = normal[..., 0, :, :], normal[..., 1, :, :], normal[..., 2, 0, :]
            lower = torch.eye(dim, dtype=torch.float64) + below.tril(-1) / math.sqrt(dim)
            signs = torch.ones(dim, dtype=torch.float64)
            signs[: {"positive": 0, "mixed": dim // 2, "negative": dim}[entry.definite]] = -1
            values = signs * torch.nn.functional.softplus(sizes)
            skew = (turning - turning.mT) / math.sqrt(dim)
            return (lower * values.unsqueeze(-2)) @ lower.mT + entry.skew * skew
    raise file.error(path, "expected a matrix that needs no other: a contraction form only gives ov from qk")


def _resolved(
    file: SpecificationFile, entry: Any, path: KeyPath, qk: tuple[Any, KeyPath], dim: int, draws: Draws
) -> tuple[Any, KeyPath]:
    """Return the matrix ov where it was given by the contraction form A: ``ov = A^{-1} qk``."""
    if not isinstance(entry, FromContraction):
        return entry, path
    if isinstance(qk[0], SinusoidalMatrix | PeriodicMatrix):
        raise file.error(path, "expected a qk that does not depend on time beside a contraction form")
    contraction = _dense(file, entry.contraction, (*path, "contraction"), dim, draws)
    if bool((torch.linalg.matrix_rank(contraction) < dim).any()):
        raise file.error(path, "expected an invertible contraction form, got a singular one")
    ov = torch.linalg.solve(contraction, _dense(file, *qk, dim, draws))
    if entry.norm is not None:
        ov = ov * (entry.norm / torch.linalg.matrix_norm(ov, ord=2, keepdim=True))
    return ov, path


def _schedule(file: SpecificationFile, heads: list[tuple[Any, KeyPath]], dim: int, draws: Draws) -> CircuitSchedule:
    if any(isinstance(entry, PeriodicMatrix) for entry, _ in heads):
        return _periodic(file, heads, dim, draws)
    if any(isinstance(entry, SinusoidalMatrix) for entry, _ in heads):
        return _sinusoidal(file, heads, dim, draws)
    return _stacked([_dense(file, entry, path, dim, draws) for entry, path in heads], -3)


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
        _dense(file, entry.matrix, (*path, "matrix"), dim, draws)
        if isinstance(entry, SinusoidalMatrix)
        else _dense(file, entry, path, dim, draws)
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
        return _draw(draws, value, path, dim)
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
        pieces_of_head = [_dense(file, matrix, where, dim, draws) for matrix, where in parts]
        if any(matrix.ndim > 2 for matrix in pieces_of_head):
            raise file.error(path, "expected laws with a seed: the pieces of a period are those of all systems")
        columns.append(torch.stack(pieces_of_head))
    return Periodic(torch.stack(columns, dim=1), first.period)
