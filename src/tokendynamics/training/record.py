"""What a run of training left: its course, its measures, and how to make it again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, ValidationError

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import plain, write_json
from tokendynamics.provenance.reading import check_checksum, read_json, with_checksum
from tokendynamics.provenance.whole import whole_file
from tokendynamics.results import Result
from tokendynamics.training.experiment import Experiment
from tokendynamics.training.folder import RECORD
from tokendynamics.training.tasks import TASKS
from tokendynamics.words import count, number, plural, sentence

FINISHED, NOT_FINITE = "finished", "not finite"


@dataclass(frozen=True, repr=False)
class Record(Result):
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

    >>> from tokendynamics.training import preset
    >>> Record(preset("bytes-small"), "stopped", 10).finished
    False
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

    @property
    def headline(self) -> str:
        """Name and answer."""
        return f"{self.experiment.name}: {answer(self)}"

    @property
    def findings(self) -> list[str]:
        """Notes, both splits, averaged weights, the course, and the layers."""
        return findings(self)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        return plain({**values, "experiment": self.experiment.as_json()})

    @typed_arguments
    def save(self, folder: str | Path) -> Path:
        """Write record.json into a folder, whole or not at all.

        Raises:
            StorageError: The disk is full or cannot be written; an older record is as it was.
        """
        place = Path(folder) / RECORD
        with whole_file(place) as made:
            write_json(made, with_checksum(self.as_json()))
        return place

    @classmethod
    @typed_arguments
    def open(cls, folder: str | Path) -> Record:
        """Read what `save` wrote.

        Raises:
            ArgumentValueError: No record in the folder, or one that cannot be read or that changed since.
        """
        place = Path(folder) / RECORD
        if not place.is_file():
            advice = "'tokendynamics train PRESET --out FOLDER' writes one when a run ends"
            raise ArgumentValueError("folder", f"a folder with {RECORD}", str(folder), advice)
        values = read_json(place, "folder")
        try:
            record = cls._from(values)
        except (ArgumentTypeError, ArgumentValueError, KeyError, TypeError) as error:
            raise ArgumentValueError("folder", f"a readable {RECORD}", f"{place} ({error})") from error
        check_checksum(values, str(place))
        return record

    @classmethod
    def _from(cls, values: dict[str, Any]) -> Record:
        try:
            _Stored.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise ArgumentTypeError(name, "what a run writes", shown(first["input"])) from error
        entries = {attribute.name: values[attribute.name] for attribute in fields(cls)}
        for name in ("history", "validation", "notes"):
            entries[name] = tuple(entries[name])
        return cls(**{**entries, "experiment": Experiment.from_json(entries["experiment"])})


def _of_a_step(entry: dict[str, float | None]) -> dict[str, float | None]:
    if entry.get("step") is None:
        raise ValueError("no step")
    return entry


_Numbers: TypeAlias = dict[str, float | None]
_Course: TypeAlias = list[Annotated[_Numbers, AfterValidator(_of_a_step)]]


class _Stored(BaseModel):
    """What a file of a record holds; None stands for a number that was not finite."""

    model_config = ConfigDict(strict=True)

    experiment: dict[str, Any]
    status: str
    steps: NonNegativeInt
    history: _Course
    validation: _Course
    measures: dict[str, _Numbers]
    layers: dict[str, dict[str, list[float | None]]]
    notes: list[str]
    seconds: NonNegativeFloat
    manifest: dict[str, Any]


AVERAGED = "test, averaged"


def measure_of(record: Record) -> str:
    """Return the name of the measure by which runs of this task are compared; the loss where it has none."""
    task = TASKS.get(record.experiment.task)
    name = "loss" if task is None else task.measure
    return name if any(name in values for values in record.measures.values()) else "loss"


def in_words(measure: str) -> str:
    """Return a measure as it is read.

    >>> in_words("bits_per_byte"), in_words("loss")
    ('bits per byte', 'nats of loss')
    """
    return "nats of loss" if measure == "loss" else measure.replace("_", " ")


def value(number_or_none: Any) -> float:
    """Return a number of a record, in which None stands for what is not finite."""
    return math.nan if number_or_none is None else float(number_or_none)


def answer(record: Record) -> str:
    """Return the run in one sentence."""
    steps, name = plural(record.steps, "step"), measure_of(record)
    reached = value(record.measures.get("test", {}).get(name))
    if not record.finished:
        planned = plural(record.experiment.recipe.steps, "step")
        return f"{sentence(record.status).rstrip('.')}: the run ended after {count(record.steps)} of {planned}."
    if not math.isfinite(reached):
        return f"Finished after {steps}; not measured on the test split."
    return f"{number(reached, 4)} {in_words(name)} on the test split, after {steps}."


def findings(record: Record) -> list[str]:
    """Return the run's notes, both splits, averaged weights, the validation loss over steps, and the layers."""
    name = measure_of(record)
    reached = value(record.measures.get("validation", {}).get(name))
    chosen = f"{number(reached, 4)} {in_words(name)} on the validation split, which serves to choose recipes."
    return [
        *(sentence(note) for note in record.notes),
        *([chosen] if math.isfinite(reached) else []),
        *_averaged(record),
        *_course(record),
        *(text for state in ("full", "bare") for text in _tokens(record.layers.get(state, {}), state)),
    ]


def _averaged(record: Record) -> list[str]:
    """Compare averaged weights with the last ones by their loss, which is better when lower in every task."""
    plain, averaged = (value(record.measures.get(split, {}).get("loss")) for split in ("test", AVERAGED))
    if not (math.isfinite(plain) and math.isfinite(averaged)):
        return []
    verdict = "lower than" if averaged < plain else "higher than" if averaged > plain else "the same as"
    return [
        f"With averaged weights the loss on the test split is {number(averaged, 4)} nats, {verdict} that of the last "
        f"weights, {number(plain, 4)}."
    ]


def _course(record: Record) -> list[str]:
    """Return whether the validation loss was lowest at the end."""
    steps, losses = course(record.validation, "loss")
    if len(losses) < 2:
        return []
    lowest = int(np.argmin(losses))
    last, least = number(float(losses[-1]), 4), number(float(losses[lowest]), 4)
    if losses[lowest] == losses[-1]:
        return [f"The validation loss is lowest at the last evaluation: {last} nats."]
    return [
        f"The validation loss was lowest at step {count(int(steps[lowest]))} ({least} nats) and rose to {last} at step "
        f"{count(int(steps[-1]))}."
    ]


def course(entries: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and finite values of one quantity of a record's history or validation."""
    points = [(entry["step"], value(entry.get(name))) for entry in entries]
    finite = np.array([point for point in points if math.isfinite(point[1])], dtype=np.float64).reshape(-1, 2)
    return finite[:, 0], finite[:, 1]


_WHERE = {"full": "In the whole network", "bare": "With attention alone (no norms, no feed-forward parts)"}


def _tokens(layers: Mapping[str, Sequence[Any]], state: str) -> list[str]:
    """Return how the mean distance of two tokens changes, and whether every layer changes it the same way."""
    distances = np.array([value(curve) for curve in layers.get("distance", ())])
    if len(distances) < 2 or not np.isfinite(distances).all():
        return []
    changes = np.diff(distances)
    how = "the layers do not all change it the same way"
    if (changes > 0).all() or (changes < 0).all():
        how = f"it {'grows' if changes[0] > 0 else 'shrinks'} in every layer"
    first, last = (number(float(distance)) for distance in distances[[0, -1]])
    return [
        f"{_WHERE[state]}, the mean distance of two tokens is {first} at the embedding and {last} after layer "
        f"{len(changes)}: {how}."
    ]
