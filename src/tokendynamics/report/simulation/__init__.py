"""The page of a simulation: how each system ended, observables over time, the paths of the tokens."""

from tokendynamics.report.simulation._page import Account, render_simulation, write_simulation

__all__ = ["Account", "render_simulation", "write_simulation"]
