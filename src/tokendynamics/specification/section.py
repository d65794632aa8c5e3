"""The base of every table of the file: unknown keys are refused with the nearest valid one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from tokendynamics.specification.errors import did_you_mean


class Section(BaseModel):
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
