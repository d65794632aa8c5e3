"""What every result has in common: how it says itself in a few lines, in a notebook, and on a page."""

from tokendynamics.results._result import LINES, Readable, Result

__all__ = ["LINES", "Readable", "Result"]
