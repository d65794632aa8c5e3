"""Which part of a one-layer transformer does the logic: five instruments and one verdict."""

from tokendynamics.circuits.evidence.measurement import Evidence, evidence

__all__ = ["Evidence", "evidence"]
