"""What every result has in common: how it says itself, its page, and how it is saved and read back."""

from tokendynamics.results.result import Refused, Result

__all__ = ["Refused", "Result"]
