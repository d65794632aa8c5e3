"""From the tables of a file to the times and the options of `simulate`, and whether they go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tokendynamics.dynamics.engines.table import OPTIONS, users
from tokendynamics.dynamics.engines.tableau import TABLEAUS
from tokendynamics.dynamics.events import AtRest, Consensus, Event, NormAbove
from tokendynamics.dynamics.options import check_steps
from tokendynamics.numerics.arguments import as_device
from tokendynamics.specification.file import SpecificationFile
from tokendynamics.specification.tables import GivenTimes, SpacedTimes


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
    """Return what ends a system of so many `tokens` before the horizon, or is recorded.

    Raises:
        SpecificationError: A reference that is none of the tokens.
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
    adaptive = solver.step is None and solver.engine in (None, "auto", "batched")
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
