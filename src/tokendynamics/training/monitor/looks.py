"""One measurement of a monitor, and the text that a checkpoint keeps of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

Values: TypeAlias = Mapping[str, np.ndarray]
"""The measures of one look, by name, over layers 0 … L."""

MEASURED = "measured"
"""The status of a look that found everything."""


@dataclass(frozen=True)
class Look:
    """One measurement.

    Attributes:
        step: Of the training.
        status: `MEASURED`, or why there are no numbers.
        values: The measures over layers 0 … L, by name (see `measured`); empty where there are none.
    """

    step: int
    status: str
    values: Values = field(default_factory=dict)

    def packed(self) -> str:
        """Return the look as one text, from which `unpacked` makes the same to the last bit.

        A checkpoint of transformers would give each number of a list a line of its own.
        """
        values = {name: each.tolist() for name, each in self.values.items()}
        return json.dumps({"step": self.step, "status": self.status, "values": values}, separators=(",", ":"))

    @classmethod
    def unpacked(cls, text: str) -> Look:
        """Return what `packed` returned.

        >>> Look.unpacked(Look(3, "measured", {"line_excess": np.array([0.1, np.nan])}).packed()).values["line_excess"]
        array([0.1, nan])
        """
        found = json.loads(text)
        values = {name: np.array(each, dtype=np.float64) for name, each in found["values"].items()}
        return cls(int(found["step"]), str(found["status"]), values)
