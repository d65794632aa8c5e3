"""One run: from an experiment to a record and a network; one that was stopped continues from its last checkpoint."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, StorageError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.extras import require
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import manifest
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.swap import recover
from tokendynamics.provenance.whole import full_disk_as_storage_error
from tokendynamics.training._checkpoints import checkpoints
from tokendynamics.training.experiment import Experiment, differences
from tokendynamics.training.folder import CHECKPOINTS, EXPERIMENT, RECORD, held
from tokendynamics.training.record import FINISHED, NOT_FINITE, Record

if TYPE_CHECKING:
    from tokendynamics.training._fitted import TrainingRun

_LOG = logging.getLogger("tokendynamics")

CALL = "td.training.train(…)"


@typed_arguments
def train(
    experiment: Experiment,
    folder: str | Path,
    *,
    resume: bool = False,
    threads: int | None = None,
    loggers: Sequence[str] = ("tensorboard",),
    callbacks: Sequence[Any] = (),
    progress: bool | Progress = False,
    command: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Record:
    """Train a network and return the record of the run, which is also in the folder, with the network beside it.

    The folder holds ``experiment.json``, ``checkpoints``, ``logs`` and, when the run has ended, ``record.json`` and
    ``model``, which `tokendynamics.load` and the Auto classes read. A run that was stopped or killed at any time
    continues from its last checkpoint and gives the same numbers as one that was not.
    Under ``torchrun`` or ``accelerate launch`` every process calls this with the same arguments. The random number
    generators of Python, NumPy and PyTorch keep their states.

    Args:
        experiment: What is run.
        folder: Where; it must hold nothing unless `resume` is set.
        resume: Go on with what is in the folder, if there is something; a run that has ended is not run again.
        threads: PyTorch threads; None leaves them as they are.
        loggers: What Trainer knows: "tensorboard" (files in ``logs``), "wandb", ….
        callbacks: Further callbacks of Trainer, such as `tokendynamics.Monitor` and `tokendynamics.training.Samples`.
        progress: True for a progress bar, or a function; see `Progress`.
        command: What to record as the command that makes this again; None for the Python call.
        arguments: Further arguments of `transformers.TrainingArguments`, such as ``{"fsdp": True}``.

    Returns:
        The record. Its status is "not finite" where a loss or a weight was no finite number any more: the last
        checkpoint is then from before that, and the notes name likely causes.

    Raises:
        ArgumentValueError: Something is in the folder already, it is of another experiment (the difference is named),
            another process is at it, or the data cannot be used.
        CheckpointError: The last checkpoint is damaged.
        StorageError: The disk is full; a checkpoint that had been written is whole, and the run can be resumed.
    """
    require("training", "train", "training")
    place, started = Path(folder), datetime.now(UTC)
    ended = _former(place, experiment, resume)
    if ended is not None:
        return ended
    with limited_threads(threads) as used, reporting(progress) as report, _resumable(place), _draws_of_its_own():
        from tokendynamics.training import _fitted as fitted  # transformers' Trainer takes seconds

        run = fitted.TrainingRun(experiment, place, loggers, callbacks, report, arguments or {})
        try:
            parameters = {"processes": run.processes, "arguments": dict(arguments or {})}
            with nullcontext() if _is_further() else held(place):
                record = _ended(run, experiment)
                called = manifest(command or CALL, parameters, seed=experiment.seed, started=started, threads=used)
                record = replace(record, manifest=called, seconds=called["duration_seconds"])
                run.keep(record)
        finally:
            run.close()
    return record


def _ended(run: TrainingRun, experiment: Experiment) -> Record:
    """Train and measure a run, and return its record, without a manifest."""
    for note in () if _is_further() else run.notes:
        _LOG.warning("%s", note)
    causes = run.fit()
    measures, layers = ({}, {}) if causes else run.measured()
    causes = causes or run.not_finite(measures)
    status = NOT_FINITE if causes else FINISHED
    return Record(experiment, status, run.steps, *run.course(), measures, layers, (*causes, *run.notes))


def _former(place: Path, experiment: Experiment, resume: bool) -> Record | None:
    """Refuse a folder that is not this run's before anything is run; return the record of a run that has ended."""
    if _is_further():  # the first process looks for all of them
        return Record.open(place) if (place / RECORD).is_file() else None
    described = place / EXPERIMENT
    if not described.is_file():
        if place.exists() and (not place.is_dir() or any(_visible(place))):
            raise ArgumentValueError(expected("folder", "a new name, or the folder of a run", str(place)))
        return None
    former = read_experiment(place)
    if not resume:
        advice = "continue it with --resume (resume=True), or choose another one"
        raise ArgumentValueError(expected("folder", "a name where nothing is", str(place), advice))
    changed = differences(former, experiment)
    if changed:
        advice = "run it as it was begun, or choose another folder"
        raise ArgumentValueError(expected("folder", "the run of this experiment", "; ".join(changed), advice))
    if not (place / RECORD).is_file():
        return None
    recover(place / RECORD)  # what a kill just after it was written may have left
    return Record.open(place)


def _is_further() -> bool:
    """Whether this is one of several processes, and not the first."""
    return int(os.environ.get("RANK", "0")) > 0


def read_experiment(folder: Path) -> Experiment:
    """Return what the folder of a run says is run there.

    Raises:
        ArgumentValueError: There is no such file, or it cannot be read.
    """
    place = folder / EXPERIMENT
    values = read_json(place, "folder")
    try:
        return Experiment.from_json(values)
    except (ArgumentTypeError, ArgumentValueError) as error:
        raise ArgumentValueError(expected("folder", f"a readable {EXPERIMENT}", f"{place} ({error})")) from error


def _visible(place: Path) -> Iterator[Path]:
    """Yield what is in a folder but the remains of a run that was killed before it had described itself."""
    return (path for path in place.iterdir() if not path.name.startswith(f".{EXPERIMENT}.partial"))


@contextmanager
def _resumable(place: Path) -> Iterator[None]:
    """Say of a full disk that the run can go on."""
    try:
        with full_disk_as_storage_error(place):
            yield
    except StorageError as error:
        if checkpoints(place / CHECKPOINTS):
            advice = "the last checkpoint is whole: free space, then continue with --resume"
        else:
            advice = "there is no checkpoint: free space, then start again with --resume"
        raise StorageError(f"{error}; {advice}") from error


@contextmanager
def _draws_of_its_own() -> Iterator[None]:
    """Leave the generators that Trainer seeds as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # Trainer seeds the old one
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
