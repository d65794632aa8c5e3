"""The page of a comparison: several models on one axis, where they part, and how their weights differ."""

from tokendynamics.report.comparison._page import render_comparison, write_comparison

__all__ = ["render_comparison", "write_comparison"]
