"""The designs of a study: what its files say, swept into stores or only built."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from reproductions.studies.record import Size
from tokendynamics.specification.build import Setup
from tokendynamics.sweeps import Plan, parse_plan, sweep
from tokendynamics.sweeps.systems.measures import OUTCOMES

_PART, _FEWEST = 20, 8
_DRAWS = re.compile(r"(?m)^draws = (\d+)$")
_WORDS = np.array(OUTCOMES)


@dataclass
class Design:
    """One design of a study.

    Attributes:
        name: Of its file.
        plan: What is to be run.
        folder: Where its store is.
        how: Keyword arguments of `tokendynamics.sweeps.sweep`.
    """

    name: str
    plan: Plan
    folder: Path
    how: dict[str, Any] = field(default_factory=dict)

    def swept(self) -> xr.Dataset:
        """Return every system of the design, from the store as far as it has them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return sweep(self.plan, self.folder / f"{self.name}.zarr", resume=True, **self.how).load()

    def built(self) -> Iterator[tuple[dict[str, Any], Setup]]:
        """Return the systems as they start, some hundreds of a point at a time, with the point's coordinates."""
        plan = self.plan
        for task in product(*map(range, plan.tasks)):
            for block in plan.blocks(task):
                places = zip(plan.axes, block.point, strict=True)
                at = {axis.name: axis.labels[place].item() for axis, place in places}
                yield at, plan.setup(block)

    def told(self) -> dict[str, Any]:
        """Return what a record says of the design."""
        table = self.plan.table
        return {
            "sha256": hashlib.sha256(text_of(self.name).encode()).hexdigest()[:16],
            "seed": table.seed,
            "draws": table.draws,
            "systems": self.plan.systems,
        }


def text_of(name: str) -> str:
    """Return the text of a design of the folder specs."""
    return (Path(__file__).parent / "specs" / f"{name}.toml").read_text(encoding="utf-8")


def design(name: str, size: Size, folder: Path, **how: Any) -> Design:
    """Return a design at a size: quick ones have a twentieth of the draws, but eight at least."""
    text = text_of(name)
    if size == "quick":
        text = _DRAWS.sub(lambda match: f"draws = {max(_FEWEST, int(match[1]) // _PART)}", text)
    return Design(name, parse_plan(text, f"{name}.toml"), folder, how)


def words(dataset: xr.Dataset) -> xr.DataArray:
    """Return the outcome of each system as a word."""
    return xr.apply_ufunc(lambda codes: _WORDS[codes], dataset["outcome"])
