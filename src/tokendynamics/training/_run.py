"""One run: from an experiment to a record and a network; one that was stopped continues from its last checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokendynamics.modules import REGIMES
from tokendynamics.numerics import ArgumentValueError, StorageError
from tokendynamics.numerics.extras import require
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import manifest
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.provenance.swap import recover
from tokendynamics.provenance.whole import storage_errors
from tokendynamics.training.experiment import Experiment, differences
from tokendynamics.training.folder import CHECKPOINTS, EXPERIMENT, RECORD, checkpoints, held, read_experiment
from tokendynamics.training.monitor._network import draws_kept
from tokendynamics.training.record import FINISHED, NOT_FINITE, Record
from tokendynamics.words import number, plural

if TYPE_CHECKING:
    from tokendynamics.training._training_run import TrainingRun


_ROSE = 0.5
"""Rise above the lowest loss, in nats, from which a loss counts as rising."""
_GUESS = 20.0
"""Upper bound on the loss of a uniform guess, in nats: e^20 exceeds every vocabulary."""
_SINGULAR = 1e5
"""Condition number from which on an inverse in float32 keeps less than two digits."""

Course = Sequence[Mapping[str, float | None]]


def likely_causes(experiment: Experiment, history: Course, validation: Course) -> list[str]:
    """Return sentences on likely causes, the likeliest first; at least one.

    Args:
        experiment: What was run.
        history: See `Record`.
        validation: See `Record`.
    """
    recipe, causes = experiment.recipe, []
    losses = [loss for entry in history if (loss := entry["loss"]) is not None]
    remedies = f"halve it, or use a warm-up longer than {plural(recipe.warmup, 'step')}"
    too_high = f"the learning rate {recipe.learning_rate:g} is likely too high; {remedies}"
    if losses and losses[-1] > min(losses) + _ROSE:
        causes.append(f"the loss rose from {min(losses):.3g} to {losses[-1]:.3g} before: {too_high}")
    elif losses and losses[-1] > _GUESS:
        causes.append(f"the last loss was {losses[-1]:.3g}, more than that of a random guess: {too_high}")
    if experiment.model.get("form") == "solve" and validation:
        # Matrices that are inverted and had become nearly singular at the last evaluation.
        last = validation[-1]
        regime = REGIMES[experiment.model.get("regime", "baseline")]
        inverted = {"Q": ("query_condition", regime.w), "A": ("contraction_condition", regime.a)}
        singular = []
        for matrix, (name, constraint) in inverted.items():
            value = last.get(name, 0.0)
            if constraint is not None and (value is None or value > _SINGULAR):
                condition = "infinity" if value is None else number(value, 2)
                singular.append(
                    f"the condition number of {matrix} was {condition} and form = 'solve' inverts {matrix}: use form = "
                    "'congruence'"
                )
        causes += singular
    if not causes:
        came = f" (last loss {losses[-1]:.3g})" if losses else " (no loss was logged before)"
        causes.append(f"no cause was recorded{came}: halve the learning rate {recipe.learning_rate:g}")
    if recipe.precision == "fp16":
        causes.append("fp16 has no number above 65504: use bf16 or float32")
    if recipe.clip is None:
        causes.append("gradients are not clipped: use clip = 1.0")
    return causes


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
        StorageError: The disk is full or cannot be written; the last checkpoint is whole, and the run can be resumed.
    """
    require("training", "train", "training")
    place, started = Path(folder), datetime.now(UTC)
    ended = _former(place, experiment, resume)
    if ended is not None:
        return ended
    with limited_threads(threads) as used, reporting(progress) as report, _resumable(place), draws_kept():
        from tokendynamics.training import _training_run  # transformers' Trainer takes seconds

        run = _training_run.TrainingRun(experiment, place, loggers, callbacks, report, arguments or {})
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
    broken = run.fit()
    measures, layers = ({}, {}) if broken else run.measured()
    splits = [split for split, values in measures.items() if values["loss"] is None]
    if splits:
        broken = f"the loss on {splits[0]} is not finite after step {run.steps}, and every weight is"
    course, status = run.course(), NOT_FINITE if broken else FINISHED
    causes = (broken, *likely_causes(experiment, *course)) if broken else ()
    return Record(experiment, status, run.steps, *course, measures, layers, (*causes, *run.notes))


def _former(place: Path, experiment: Experiment, resume: bool) -> Record | None:
    """Refuse a folder that is not this run's before anything is run; return the record of a run that has ended."""
    if _is_further():  # the first process looks for all of them
        return Record.open(place) if (place / RECORD).is_file() else None
    described = place / EXPERIMENT
    if not described.is_file():
        # Remains of a run that was killed before it had described itself do not count.
        remains = f".{EXPERIMENT}.partial"
        if place.exists() and not (place.is_dir() and all(path.name.startswith(remains) for path in place.iterdir())):
            raise ArgumentValueError("folder", "a new name, or the folder of a run", str(place))
        return None
    former = read_experiment(place)
    if not resume:
        advice = "continue it with --resume (resume=True), or choose another one"
        raise ArgumentValueError("folder", "a name where nothing is", str(place), advice)
    changed = differences(former, experiment)
    if changed:
        advice = "run it as it was begun, or choose another folder"
        raise ArgumentValueError("folder", "the run of this experiment", "; ".join(changed), advice)
    if not (place / RECORD).is_file():
        return None
    recover(place / RECORD)  # what a kill just after it was written may have left
    return Record.open(place)


def _is_further() -> bool:
    """Whether this is one of several processes, and not the first."""
    return int(os.environ.get("RANK", "0")) > 0


@contextmanager
def _resumable(place: Path) -> Iterator[None]:
    """Say of a disk that is full or cannot be written that the run can go on."""
    try:
        with storage_errors(place):
            yield
    except StorageError as error:
        if checkpoints(place / CHECKPOINTS):
            advice = "the last checkpoint is whole: continue with --resume"
        else:
            advice = "there is no checkpoint: start again with --resume"
        raise StorageError(f"{error}; {advice}") from error
