"""Which engine tries first: that of the file, or the fastest one that is installed and can run the flow."""

from __future__ import annotations

from typing import Any

import torch

from tokendynamics.dynamics import Trajectory, simulate
from tokendynamics.dynamics.engines.table import SMALL, UnsuitableEngineError
from tokendynamics.numerics.extras import missing
from tokendynamics.specification.build import Setup


def first_engine() -> str:
    """Return the engine that tries first where the file has none: "compiled" with the extra `fast`, or "batched".

    The client decides for all workers, and the store records it: the last bits of the two differ.
    """
    return "batched" if missing("fast") else "compiled"


def simulated(setup: Setup, engine: str) -> Trajectory:
    """Run a batch for the first time.

    Args:
        setup: What was built.
        engine: From `first_engine`; it serves where the file has no engine and the flow is small and of a kind that
            the engine knows, and `simulate` chooses elsewhere.
    """
    options = setup.options
    if engine == "compiled" and not _decided(options) and setup.start[0].numel() <= SMALL:
        try:
            return _run(setup, options | {"engine": engine})
        except UnsuitableEngineError:
            pass
    return _run(setup, options)


def _decided(options: dict[str, Any]) -> bool:
    """Tell whether the file chose an engine, or what "compiled" does not do."""
    chosen = options.get("engine", "auto") != "auto" or options.get("dtype", torch.float64) != torch.float64
    return chosen or not options.keys().isdisjoint({"step", "tau"})


def _run(setup: Setup, options: dict[str, Any]) -> Trajectory:
    return simulate(setup.flow, setup.start, setup.times, events=setup.events, **options)
