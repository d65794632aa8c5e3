"""What every table of the file shares: unknown keys are refused with the nearest valid one, numbers may have a unit.

Angles and angular frequencies have units; time itself has none (it is the time of the flow).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from tokendynamics.numerics import ArgumentValueError

ANGLE_UNITS = {"rad": 1.0, "deg": math.pi / 180.0, "turn": 2.0 * math.pi}
"""Radians in one of each."""

FREQUENCY_UNITS = {"rad": 1.0, "deg": math.pi / 180.0, "Hz": 2.0 * math.pi}
"""Radians per unit of time in one of each; ``Hz`` is one turn per unit of time."""

_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")


class SpecificationError(ArgumentValueError):
    """A specification file cannot be used; the message names the file, the line and the key."""


class SpecificationFileError(SpecificationError, FileNotFoundError):
    """A specification file is not there or cannot be read."""


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return the nearest of the `valid` names, and all of them where there are few.

    >>> did_you_mean("speed", ["seed", "law"])
    "did you mean 'seed'? (valid: law, seed)"
    >>> did_you_mean("xyz", ["seed", "law"])
    'valid: law, seed'
    """
    names = sorted(valid)
    by_lower_case = {valid_name.lower(): valid_name for valid_name in names}
    near = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.4)
    listed = f"valid: {', '.join(names)}"
    return f"did you mean {by_lower_case[near[0]]!r}? ({listed})" if near else listed


class TomlTable(BaseModel):
    """A table of the file. Types are strict (a quoted number is no number), NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    advice = did_you_mean(key, cls.model_fields)
                    raise PydanticCustomError("unknown_key", "unknown key; {advice}", {"key": key, "advice": advice})
        return values


def quantity(value: Any, units: dict[str, float]) -> Any:
    """Return a number as it is; a text such as ``"5 Hz"`` in the base unit.

    Raises:
        PydanticCustomError: No number, no unit, or one that `units` does not have.

    >>> quantity("90 deg", ANGLE_UNITS)
    1.5707963267948966
    """
    if not isinstance(value, str):
        return value
    match = _QUANTITY.fullmatch(value)
    base = next(iter(units))
    if match is None or not match[2]:
        example = f"'1.5 {base}'"
        raise PydanticCustomError(
            "no_unit",
            "expected a number (in {base}) or a text such as {example}, got {came}; units {units}",
            {"base": base, "example": example, "came": repr(value), "units": ", ".join(units)},
        )
    unit = match[2]
    if unit not in units:
        advice = did_you_mean(unit, units)
        for kind, others in (("angles", ANGLE_UNITS), ("frequencies", FREQUENCY_UNITS)):
            # A unit of the other quantity is named as that.
            for meant in (name for name in others if name.lower() == unit.lower() and name not in units):
                advice = f"{meant!r} is for {kind} (valid: {', '.join(sorted(units))})"
        raise PydanticCustomError("wrong_unit", "unknown unit {unit}; {advice}", {"unit": repr(unit), "advice": advice})
    return float(match[1]) * units[unit]


def _in(units: dict[str, float]) -> Callable[[Any], Any]:
    return lambda value: quantity(value, units)


Angle = Annotated[float, BeforeValidator(_in(ANGLE_UNITS))]
"""Radians, or a text with a unit of `ANGLE_UNITS`."""

Frequency = Annotated[float, BeforeValidator(_in(FREQUENCY_UNITS))]
"""Radians per unit of time, or a text with a unit of `FREQUENCY_UNITS`."""
