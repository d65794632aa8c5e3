"""The record of a learning run: losses, weights, and the learned model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import LayerNorm, OneLayerTransformer
from tokendynamics.circuits.learning.model import EPSILON, Settings, initial_parameters
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_count, as_finite, as_tensor, as_text
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.array_files import read_npz
from tokendynamics.provenance.owned import digest
from tokendynamics.provenance.reading import check_checksum, read_json, with_checksum
from tokendynamics.provenance.swap import NEW, locked, put_in_place, recover, staging
from tokendynamics.provenance.whole import settle_results, storage_errors
from tokendynamics.results import Result
from tokendynamics.words import count, number, percent, plural

SOLVED = 0.01
"""A model has solved the task if at most this share of the variance of the targets remains."""

_RECORD, _PARAMETERS = "record.json", "parameters.npz"
_DIGEST = "parameters_sha256"


@dataclass(frozen=True, eq=False, repr=False)
class LearningRecord(Result):
    """One run of `learn`.

    Attributes:
        settings: Task, model and recipe.
        losses: Mean squared error on each outer step's fresh batch BEFORE the step: an error on unseen sequences.
        penalty_weights: Weight of the penalty in each outer step.
        final_loss: Mean squared error on further fresh sequences after the last step, without any penalty.
        status: "finished", or why the run stopped early; the last finite weights are then kept.
        evaluations: Losses and gradients computed.
        seconds: Wall-clock time of the steps.
        parameters: Float64 tensors by name, of the shapes that `initial_parameters` gives.

    >>> from tokendynamics.circuits import PairTask, learn
    >>> record = learn(PairTask([[1.0, -2.0], [3.0, 4.0]], positions=3), "solution-1", batch=20, steps=2, inner=2)
    >>> len(record.losses), record.qk.shape
    (2, torch.Size([5, 5]))
    """

    settings: Settings
    losses: tuple[float, ...]
    penalty_weights: tuple[float, ...]
    final_loss: float
    status: str
    evaluations: int
    seconds: float
    parameters: dict[str, Tensor]

    @property
    def headline(self) -> str:
        """Name, and whether the task was solved."""
        return f"{self.name}: {self.status}, {'solved' if self.solved else 'not solved'}"

    @property
    def findings(self) -> list[str]:
        """The final loss, and the cost of the run."""
        steps, seconds = plural(len(self.losses), "step"), number(self.seconds)
        return [
            f"The final loss is {number(self.final_loss)}: {percent(self.relative_loss)} of the variance remains.",
            f"It took {steps}, {count(self.evaluations)} evaluations of the loss, and {seconds} s.",
        ]

    @property
    def task(self) -> PairTask:
        """The task that was learned."""
        return self.settings.task

    @property
    def architecture(self) -> str:
        """See `DESIGNS`."""
        return self.settings.architecture

    @property
    def flavour(self) -> str:
        """The solution that the penalty favoured at first, for the combined model."""
        return self.settings.flavour

    @property
    def seed(self) -> int:
        """Random seed of weights and batches."""
        return self.settings.seed

    @property
    def name(self) -> str:
        """Such as "combined, towards-2, seed 0"."""
        flavour = f", {self.flavour}" if self.settings.design.pairs == "both" else ""
        return f"{self.architecture}{flavour}, seed {self.seed}"

    @property
    def relative_loss(self) -> float:
        """The final loss as a share of the variance of the targets."""
        return self.final_loss / self.task.variance if self.task.variance > 0 else self.final_loss

    @property
    def solved(self) -> bool:
        """Whether at most `SOLVED` of the variance remains."""
        return self.relative_loss <= SOLVED

    @property
    def transformer(self) -> OneLayerTransformer:
        """The learned model, with its weights over all N + M features."""
        return as_transformer(self.settings, self.parameters, self.name)

    @property
    def qk(self) -> Tensor:
        """(receiver, sender) = (width, width); zero where the model cannot see."""
        return self.transformer.qk[0]

    @property
    def ov(self) -> Tensor:
        """v, acting on columns, (width, width); zero where the model cannot see."""
        return self.transformer.ov[0]

    def as_json(self) -> dict[str, Any]:
        """Return everything but the weights, as what `json.dumps` takes; None for a number that is not finite."""
        finite = [loss if np.isfinite(loss) else None for loss in (*self.losses, self.final_loss, self.relative_loss)]
        return {
            **self.settings.as_json(),
            "losses": finite[:-2],
            "penalty_weights": list(self.penalty_weights),
            "final_loss": finite[-2],
            "relative_loss": finite[-1],
            "solved": self.solved,
            "status": self.status,
            "evaluations": self.evaluations,
            "seconds": round(self.seconds, 3),
        }

    @typed_arguments
    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write record.json and parameters.npz into `folder`, whole or not at all.

        The record holds the SHA-256 of the parameters: by it a later call knows what it may replace.

        Args:
            folder: Made if it does not exist; an older record there is replaced, other files stay.
            overwrite: Replace files of these names that no run wrote.

        Raises:
            ArgumentValueError: A foreign file is in the way.
            StorageError: The disk is full or cannot be written; what was there is as it was.
        """
        place = Path(os.path.realpath(folder))
        recover(place)
        if not overwrite:
            self.check_free(place)
        with storage_errors(place):
            place.mkdir(parents=True, exist_ok=True)
            with staging(place) as root:
                self._write(root / NEW)
                with locked(place):
                    put_in_place(root, place, (_RECORD, _PARAMETERS), entry_by_entry=True)
        return Path(folder)

    def _write(self, made: Path) -> None:
        made.mkdir()
        arrays: dict[str, Any] = {name: value.detach().numpy() for name, value in self.parameters.items()}
        np.savez(made / _PARAMETERS, **arrays)
        text = json.dumps(with_checksum(self.as_json() | {_DIGEST: digest(made / _PARAMETERS)}), indent=1)
        (made / _RECORD).write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def check_free(folder: Path) -> None:
        """Refuse a folder where `save` would replace what no run wrote, before a run begins.

        Raises:
            ArgumentValueError: A foreign file is in the way.
        """
        present = [name for name in (_RECORD, _PARAMETERS) if os.path.lexists(folder / name)]
        try:
            recorded = read_json(folder / _RECORD, "folder")[_DIGEST]
            foreign = present[-1:] if recorded != digest(folder / _PARAMETERS) else []
        except (OSError, ValueError, KeyError, TypeError):
            foreign = present[:1]
        if foreign:
            wanted = "no file in the way that an earlier run did not write or that was changed since"
            advice = "choose another folder, or allow it with overwrite=True"
            raise ArgumentValueError("folder", wanted, str(folder / foreign[0]), advice)

    @classmethod
    @typed_arguments
    def open(cls, folder: str | Path) -> LearningRecord:
        """Read what `save` wrote.

        Raises:
            ArgumentValueError: The folder holds no record, or one that cannot be read or that changed since.
        """
        settle_results(folder)
        source = Path(folder)
        if not (source / _RECORD).is_file() or not (source / _PARAMETERS).is_file():
            wanted = f"a folder with {_RECORD} and {_PARAMETERS}"
            advice = "'tokendynamics circuits learn … --out FOLDER' writes one"
            raise ArgumentValueError("folder", wanted, str(source), advice)
        entries = read_json(source / _RECORD, "folder")
        arrays = read_npz(source / _PARAMETERS, "folder")
        try:
            parameters = {name: as_tensor(array, name) for name, array in arrays.items()}
            record = cls._from(entries, parameters)
        except (ArgumentTypeError, ArgumentValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ArgumentValueError("folder", "a readable record", f"{source} ({reason})") from error
        record.check_parameters(source)
        check_checksum(entries, "folder")
        if entries.get(_DIGEST, written := digest(source / _PARAMETERS)) != written:
            wanted = f"{_PARAMETERS} as it was written, by its SHA-256 in {_RECORD}"
            raise ArgumentValueError("folder", wanted, f"another one in {source}", "repeat the run")
        return record

    def check_parameters(self, source: Path) -> None:
        """Refuse weights that are not those of the settings.

        Raises:
            ArgumentValueError: A weight is missing, or its shape is another one.
        """
        settings = self.settings
        for name, value in initial_parameters(settings.design, settings.task, settings.hidden, settings.seed).items():
            came = self.parameters.get(name)
            if came is None or came.shape != value.shape:
                shape = "none" if came is None else f"shape {tuple(came.shape)}"
                wanted = f"a record whose weight {name} has shape {tuple(value.shape)}"
                raise ArgumentValueError("folder", wanted, f"{shape} in {source}")

    @classmethod
    def _from(cls, entries: Any, parameters: dict[str, Tensor]) -> LearningRecord:
        if not isinstance(entries, dict):
            raise ArgumentTypeError(_RECORD, "an object", shown(entries))
        status = as_text(entries["status"], "status")  # in characters that can be printed
        if status != "finished" and not (status.startswith("not finite: ") and status.isprintable()):
            raise ArgumentValueError("status", "'finished' or 'not finite: …'", shown(status))
        # Records of earlier versions say "pulls".
        stored = "pulls" if "pulls" in entries else "penalty_weights"
        return cls(
            Settings.from_json(entries),
            tuple(_loss(loss, "losses") for loss in _listed(entries, "losses")),
            tuple(as_finite(weight, stored) for weight in _listed(entries, stored)),
            _loss(entries["final_loss"], "final_loss"),
            status,
            as_count(entries["evaluations"], "evaluations", at_least=0),
            as_finite(entries["seconds"], "seconds"),
            parameters,
        )


def _loss(value: Any, name: str) -> float:
    """Read a loss as it was written: null stands for one that was not finite."""
    return float("nan") if value is None else as_finite(value, name)


def _listed(entries: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(entries[name], list):
        raise ArgumentTypeError(name, "a list", shown(entries[name]))
    return entries[name]


def as_transformer(settings: Settings, parameters: dict[str, Tensor], name: str) -> OneLayerTransformer:
    """Embed the circuits into the features the design sees; the rest is zero, and not normalized.

    Args:
        settings: Task and architecture.
        parameters: See `initial_parameters`.
        name: Of the transformer.
    """
    weights = {key: value.detach() for key, value in parameters.items()}
    task, design = settings.task, settings.design
    keys, stream = design.key_features(task), design.stream_features(task)
    qk, ov = (torch.zeros(task.width, task.width, dtype=torch.float64) for _ in range(2))
    qk[keys, keys] = weights["q"].T @ weights["k"]
    ov[stream, stream] = weights["v"]
    B = torch.zeros(settings.hidden, task.width, dtype=torch.float64)
    B[:, stream] = weights["B"]
    return OneLayerTransformer(
        Attention(qk, ov, weights="linear"),
        B,
        weights["bias"],
        weights["C"],
        task,
        offset=float(weights["offset"]),
        norm=LayerNorm(weights["gain"], weights["shift"], EPSILON, stream),
        name=name,
    )
