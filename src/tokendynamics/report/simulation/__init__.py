"""The page of a simulation, a section a file."""

from tokendynamics.figures.figure import Section as _Section
from tokendynamics.report.simulation import _ends, _time, _tokens
from tokendynamics.report.simulation._ends import Ends as _Ends
from tokendynamics.report.simulation._run import Shown as _Shown


def _sections(run: _Shown, ends: _Ends, system: int) -> list[_Section]:
    """Return the sections that every simulation has, with the paths of one system."""
    sections = (_time.section(run), _tokens.section(run, system), _ends.section(run, ends))
    return [section for section in sections if section is not None]
