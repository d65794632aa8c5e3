"""The page of a sweep: how often each outcome is, over the parameters that varied."""

from tokendynamics.report.sweep._page import Findings, render_sweep, write_sweep

__all__ = ["Findings", "render_sweep", "write_sweep"]
