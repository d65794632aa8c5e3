"""The options of a simulation that a file sets, and whether they go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tokendynamics.dynamics.engines.table import OPTIONS, users
from tokendynamics.dynamics.engines.tableau import TABLEAUS
from tokendynamics.dynamics.options import check_steps
from tokendynamics.numerics.arguments import as_device
from tokendynamics.specification.read import SpecificationFile


def solver_options(file: SpecificationFile, times: np.ndarray) -> dict[str, Any]:
    """The keyword arguments of `simulate` in ``[solver]``.

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
    """A fixed step and the engine that takes one belong together; other engines choose their steps by an error."""
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
