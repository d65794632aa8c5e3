"""The page of a specification that was run: that of its trajectory, with title, manifest, warnings and certificates."""

from __future__ import annotations

from tokendynamics.report._registry import page_of
from tokendynamics.report.simulation._page import Account, simulation_page
from tokendynamics.specification import Simulation


@page_of.register(Simulation)
def specified_page(simulation: Simulation) -> str:
    """Return the page of a simulation.

    Args:
        simulation: From `tokendynamics.specification.run`.
    """
    account = Account(
        title=simulation.file.tables.title or simulation.file.name,
        manifest=simulation.manifest,
        certificates=simulation.certificates,
        warnings=tuple(simulation.warnings),
        files=simulation.files,
        system=simulation.file.tables.output.system,
    )
    return simulation_page(simulation.trajectory, account)
