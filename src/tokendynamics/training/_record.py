"""What a run of training left: its course, its measures, and how to make it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, expected, shown
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.provenance._manifest import plain, write_json
from tokendynamics.provenance._reading import read_json
from tokendynamics.provenance._whole import whole_file
from tokendynamics.training._experiment import Experiment
from tokendynamics.training._folder import RECORD

FINISHED, NOT_FINITE = "finished", "not finite"


@dataclass(frozen=True)
class Record:
    """One run of `train`.

    Numbers that are not finite are None.

    Attributes:
        experiment: What was run.
        status: "finished", or "not finite" where a loss or weight was no number any more.
        steps: Steps of the optimiser that were taken.
        history: Of the training: for each logged step ``step``, ``loss`` (the mean over the steps since the last, in
            nats), ``learning_rate`` and ``grad_norm``.
        validation: For each evaluation ``step``, ``loss``, the task's measures and the layers' conditioning.
        measures: Loss and measures on the splits "validation" and "test" after the last step; where weights are
            averaged, also on "validation, averaged" and "test, averaged".
        layers: Norms and distances through the layers, see `tokendynamics.training.through_layers`.
        notes: What is to be known of the run, such as likely causes of a loss that is not finite.
        seconds: Wall-clock time of the call that ended the run.
        manifest: Versions, hardware, start.
    """

    experiment: Experiment
    status: str
    steps: int
    history: tuple[Mapping[str, float | None], ...] = ()
    validation: tuple[Mapping[str, float | None], ...] = ()
    measures: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    layers: Mapping[str, Mapping[str, list[float | None]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether all steps were taken."""
        return self.status == FINISHED

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return plain({**values, "experiment": self.experiment.as_json()})

    @typed_arguments
    def save(self, folder: str | Path) -> Path:
        """Write record.json into a folder, whole or not at all.

        Raises:
            StorageError: The disk is full; an older record is as it was.
        """
        place = Path(folder) / RECORD
        with whole_file(place) as made:
            write_json(made, self.as_json())
        return place

    @typed_arguments
    def report(self, path: str | Path, *, max_bytes: int | None = None) -> Path:
        """Write the page of the run as one HTML file, whole or not at all.

        Args:
            path: The file; its folder is made if need be.
            max_bytes: Refuse to write a page larger than this; None for no limit.

        Returns:
            The path written.

        Raises:
            ArgumentValueError: The page would be larger than `max_bytes`, or `path` is a folder.
        """
        # Pages stand above results, and no result imports them; see `Diagnosis.report`.
        return import_module("tokendynamics.report.training").write_run(self, path, max_bytes=max_bytes)

    @classmethod
    @typed_arguments
    def open(cls, folder: str | Path) -> Record:
        """Read what `save` wrote.

        Raises:
            ArgumentValueError: No record in the folder, or one that cannot be read.
        """
        place = Path(folder) / RECORD
        if not place.is_file():
            advice = "'tokendynamics train PRESET --out FOLDER' writes one when a run ends"
            raise ArgumentValueError(expected("folder", f"a folder with {RECORD}", str(folder), advice))
        values = read_json(place, "folder")
        try:
            return cls._from(values)
        except (ArgumentTypeError, ArgumentValueError, KeyError, TypeError) as error:
            raise ArgumentValueError(expected("folder", f"a readable {RECORD}", f"{place} ({error})")) from error

    @classmethod
    def _from(cls, values: dict[str, Any]) -> Record:
        entries = {each.name: values[each.name] for each in fields(cls)}
        for name, kind in _KINDS.items():
            parts = entries[name] if name in ("history", "validation") else ()
            if not isinstance(entries[name], kind) or not all(isinstance(part, dict) for part in parts):
                raise ArgumentTypeError(expected(name, "what a run writes", shown(entries[name])))
        for name in ("history", "validation", "notes"):
            entries[name] = tuple(entries[name])
        return cls(**{**entries, "experiment": Experiment.from_json(entries["experiment"])})


_KINDS: dict[str, Any] = {
    "status": str, "steps": int, "history": list, "validation": list, "measures": dict, "layers": dict, "notes": list,
    "seconds": int | float, "manifest": dict,
}  # fmt: skip
