"""What every result has in common: how it says itself, its page, and how it is saved and read back."""

from tokendynamics.results._result import LINES, Readable, Refused, Result, StoredResult, reason_of

__all__ = ["LINES", "Readable", "Refused", "Result", "StoredResult", "reason_of"]
