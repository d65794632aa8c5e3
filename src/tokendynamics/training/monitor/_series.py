"""Everything that a monitor has found, look by look: numbers, states, what changed; its files and its page."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from tokendynamics.diagnosis._layer_states import State
from tokendynamics.diagnosis._result import _writable, _write_table
from tokendynamics.diagnosis._stored import nothing_saved, table_of
from tokendynamics.numerics._errors import ArgumentValueError, expected, shown
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.provenance._manifest import manifest, write_json
from tokendynamics.provenance._whole import check_free, whole_folder
from tokendynamics.training.monitor._changes import MEASURES, Change, changes_at, settled, states_in
from tokendynamics.training.monitor._dataset import STORED, dataset_of, looks_of
from tokendynamics.training.monitor._looks import Look

NOTHING = "nothing measured yet"
WRITER = "td.Monitor"
_TABLE, _SUMMARY = "monitor", "monitor.json"
_WANTED = "what a monitor saved"


@dataclass
class Series:
    """The looks of a run in the order of their steps, and what they come to.

    Attributes:
        facts: What the numbers hang on, by name: the attributes of the dataset.
        texts: The name of each text, and what it is.
        looks: All so far.
        states: The state after each layer 1 … L by the measures of each look alone; none where there are no numbers.
        held: The states that changes are counted from: a state stays while anything within the intervals makes it.
        changes: What layers did, in the order of the steps; of one step the largest change of a measure first.
        packed: Each look as a text.
        anchors: By measure, for each layer 1 … L the place of the look from which large changes count.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    texts: list[list[str]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    states: list[list[State]] = field(default_factory=list)
    held: list[list[State]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    packed: list[str] = field(default_factory=list)
    anchors: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, look: Look) -> list[Change]:
        """Add a look; return what layers have done since the last one that has numbers.

        Args:
            look: Of a later step than all others.
        """
        former = next((states for states in reversed(self.held) if states), None)
        states = states_in(look.values) if look.values else []
        self.looks.append(look)
        self.packed.append(look.packed())
        self.states.append(states)
        self.held.append(states if former is None or not states else settled(former, look.values))
        if not states:
            return []
        place = len(self.looks) - 1
        if former is None:
            self.anchors = {name: np.full(len(states), place) for name in MEASURES}
            return []
        changes = changes_at(self.looks, self.states, self.held, self.anchors)
        for change in changes:
            if change.measure:
                self.anchors[change.measure][[layer - 1 for layer in change.layers]] = place
        self.changes += changes
        return changes

    @property
    def status(self) -> str:
        """How the last look went: "measured", or why there are no numbers."""
        return self.looks[-1].status if self.looks else NOTHING

    @property
    def dataset(self) -> xr.Dataset:
        """Everything over ``step``, ``layer`` (0 … L) and further axes, by the names of `tokendynamics.trace`."""
        return dataset_of(self.looks, self.held, self.texts, self.facts)

    def plain(self) -> dict[str, Any]:
        """Return plain values, of which `of_plain` makes the same again; what is measured later comes into them."""
        return {"facts": self.facts, "texts": self.texts, "looks": self.packed}

    @classmethod
    def of_plain(cls, values: Any) -> Series:
        """Return what `plain` returned.

        Args:
            values: It, or a copy.

        Raises:
            ArgumentValueError: Something else.
        """
        try:
            found = cls(dict(values["facts"]), [[str(name), str(text)] for name, text in values["texts"]])
            for text in values["looks"]:
                found.add(Look.unpacked(text))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ArgumentValueError(expected("state", "that of a monitor", shown(str(error)))) from error
        return found

    @typed_arguments
    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the dataset and the sentences into a folder, whole: what an earlier monitor wrote there goes.

        Args:
            folder: Made if it does not exist.
            overwrite: Replace files in the way that no monitor wrote.

        Returns:
            The folder.

        Raises:
            ArgumentValueError: A foreign file in the way.
            StorageError: The disk is full; what was there is as it was.
        """
        place, names = Path(folder), (f"{_TABLE}.zarr", _SUMMARY)
        check_free(place, names, WRITER, overwrite=overwrite)
        threads = torch.get_num_threads()
        record = manifest(self.command, self.parameters, seed=None, started=datetime.now(UTC), threads=threads)
        with whole_folder(place, record, WRITER, overwrite=overwrite) as made:
            _write_table(_writable(self.dataset), made / names[0], "zarr")
            said = {"status": self.status, "changes": [each.text for each in self.changes]}
            write_json(made / names[1], {**said, "texts": self.texts, "facts": self.facts})
        return place

    @classmethod
    @typed_arguments
    def open(cls, folder: str | Path) -> Series:
        """Read what `save` wrote.

        Args:
            folder: Where it was saved.

        Raises:
            ArgumentValueError: Nothing there, or nothing that a monitor saved, or something damaged.
            MemoryLimitError: A file declares more than the memory.
        """
        place = Path(folder)
        if not (place / _SUMMARY).exists():
            raise nothing_saved(place, _WANTED, _SUMMARY, {"diagnosis.json": "td.Diagnosis.open"})
        table = table_of(place, _TABLE, STORED, _WANTED)
        try:
            texts = [list(map(str, each)) for each in zip(table.prompt.values, table.text.values, strict=True)]
            found = cls(dict(table.attrs), texts)
            for look in looks_of(table):
                found.add(look)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ArgumentValueError(expected("folder", _WANTED, f"{folder} ({shown(str(error))})")) from error
        return found

    @typed_arguments
    def report(self, path: str | Path, *, max_bytes: int | None = None) -> Path:
        """Write a page on what training did to the tokens as one HTML file, whole or not at all.

        Args:
            path: The file to write; its folder is made if need be.
            max_bytes: Refuse to write a page larger than this; None for no limit.

        Raises:
            ArgumentValueError: `path` is a folder, or the page would be larger than `max_bytes`.
        """
        # Pages stand above results, and no result imports them; see `Diagnosis.report`.
        return import_module("tokendynamics.report.training").write_monitor(self, path, max_bytes=max_bytes)

    @property
    def command(self) -> str:
        """The call that measures this again, as far as it can be written down."""
        return f"td.Monitor(texts, every={self.facts.get('every', 500)})"

    @property
    def parameters(self) -> dict[str, Any]:
        """What the call was given."""
        return {"every": self.facts.get("every"), "texts": [name for name, _ in self.texts]}
