"""What was found in a loss landscape, as the page and the terminal tell it."""

from __future__ import annotations

from dataclasses import dataclass

from tokendynamics.circuits.landscape.basins import Basins
from tokendynamics.circuits.landscape.classification import Classification
from tokendynamics.circuits.landscape.softmax_stall import Stall
from tokendynamics.circuits.landscape.stationary_point import StationaryPoint


@dataclass(frozen=True)
class LandscapeSurvey:
    """One landscape.

    Attributes:
        name: Of the landscape.
        answer: A few words.
        claims: What does and does not hold, the most important first.
        remarks: On the stationary points.
        facts: Name and text of what was given.
        points: Members of the families, and what they are.
        stalls: Where there is no finite stationary point: how long descent waits.
        basins: Where random starts ended.
        marks: Losses worth a line, by name.
        positions_attend: Whether attention is over positions and the value map over categories.
    """

    name: str
    answer: str
    claims: tuple[str, ...]
    remarks: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    points: tuple[tuple[StationaryPoint, Classification], ...]
    stalls: tuple[Stall, ...]
    basins: Basins
    marks: dict[str, float]
    positions_attend: bool
