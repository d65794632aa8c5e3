"""The table ``[sweep]`` of a sweep's file; `docs/sweep.md` shows each key with its meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic_core import PydanticCustomError

from tokendynamics.specification.section import Angle, TomlTable

MOST_POINTS = 10**7
"""Of an axis, and of a random design: their coordinates are held in memory."""


class AxisTable(TomlTable):
    """``[[sweep.axis]]``: keys of the specification that take the same value, and the values."""

    key: str | Annotated[list[str], Field(min_length=1)]
    name: str | None = None
    values: Annotated[list[Any], Field(min_length=1)] | None = None
    labels: list[str] | None = None
    low: float | None = None
    high: float | None = None
    points: Annotated[int, Field(ge=1, le=MOST_POINTS)] | None = None
    spacing: Literal["linear", "log"] = "linear"
    whole: bool = False

    def model_post_init(self, context: Any) -> None:
        """Refuse an axis without values, with values of two kinds, or in the wrong order."""
        given = [name for name in ("low", "high", "points") if getattr(self, name) is not None]
        if self.values is not None and given:
            raise PydanticCustomError("bounds", "expected values, or low and high, got both")
        if self.values is None and not {"low", "high"} <= set(given):
            raise PydanticCustomError("bounds", "expected values, or low and high, got neither")
        if self.low is not None and self.high is not None and not self.low < self.high:
            message = "expected low < high, got {low} and {high}"
            raise PydanticCustomError("bounds", message, {"low": self.low, "high": self.high})
        if self.spacing == "log" and not (self.low or 0) > 0:
            raise PydanticCustomError("bounds", "expected low > 0 for spacing 'log', got {low}", {"low": self.low})
        if self.labels is not None and len(self.labels) != len(self.values or ()):
            raise PydanticCustomError("bounds", "expected a label for each of the values")


class SweepTable(TomlTable):
    """``[sweep]``: which systems are run, what is kept of them, and when another engine tries again."""

    design: Literal["grid", "random"] = "grid"
    points: Annotated[int, Field(ge=1, le=MOST_POINTS)] | None = None
    draws: PositiveInt = 1
    seed: NonNegativeInt
    axis: list[AxisTable] = Field(default=[])
    measure: list[str] = Field(default=["outcome"])
    over_time: list[str] = Field(default=[])
    cluster_angle: Annotated[Angle, Field(gt=0.0)] = 0.0872664625997164788
    keep: Literal["states"] | None = None
    retry: Literal["stiff", "none"] = "stiff"
    retry_steps: PositiveInt = 3000
    last_steps: PositiveInt | None = None
    task: PositiveInt | None = None


class SweepOnly(TomlTable):
    """What a sweep's file has beyond a specification."""

    sweep: SweepTable
