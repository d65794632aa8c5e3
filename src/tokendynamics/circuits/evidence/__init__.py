"""Which part of a one-layer transformer does the logic: five instruments and one verdict."""

from tokendynamics.circuits.evidence.instrument import Estimate, Instrument
from tokendynamics.circuits.evidence.measuring import Evidence, check_measurable, evidence

__all__ = ["Estimate", "Evidence", "Instrument", "check_measurable", "evidence"]
