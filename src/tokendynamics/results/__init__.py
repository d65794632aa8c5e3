"""What every result has in common: how it says itself, its page, and how it is saved and read back."""

from tokendynamics.results._result import LINES, Readable, Result, StoredResult

__all__ = ["LINES", "Readable", "Result", "StoredResult"]
