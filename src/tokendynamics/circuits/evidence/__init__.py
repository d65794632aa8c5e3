"""Which part of a one-layer transformer does the logic: five instruments and one verdict."""

from tokendynamics.circuits.evidence._evidence import Evidence, check_measurable, evidence
from tokendynamics.circuits.evidence._instrument import Estimate, Instrument

__all__ = ["Estimate", "Evidence", "Instrument", "check_measurable", "evidence"]
