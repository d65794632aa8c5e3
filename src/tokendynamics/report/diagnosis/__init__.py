"""The page of a diagnosis, a section a file."""

from tokendynamics.diagnosis import Diagnosis as _Diagnosis
from tokendynamics.figures.figure import Section as _Section
from tokendynamics.report.diagnosis import (
    _deeper,
    _directions,
    _levers,
    _measures,
    _norms,
    _pairs,
    _parts,
    _shares,
    _sinks,
    _tokens,
    _updates,
    _weights,
)

_FILES = (
    _shares, _parts, _directions, _levers, _deeper, _updates, _norms, _sinks, _pairs, _measures, _weights, _tokens,
)  # fmt: skip
"""In the order of the page."""


def _sections(diagnosis: _Diagnosis) -> list[_Section]:
    """Return the sections of the page; those not requested are omitted."""
    return [section for file in _FILES if (section := file.section(diagnosis)) is not None]
