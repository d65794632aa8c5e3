"""Learning: outer steps of L-BFGS, each on a fresh batch, and the state of an unfinished run on disk."""

from __future__ import annotations

import io
import json
import math
import os
import time
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.learning.model import (
    Architecture,
    Flavour,
    Sequences,
    Settings,
    design,
    initial_parameters,
    mean_squared_error,
    penalty_of,
    penalty_weight,
)
from tokendynamics.circuits.learning.record import LearningRecord
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.provenance.swap import recover
from tokendynamics.provenance.whole import whole_file

_HISTORY = 100
_TEST_SEQUENCES = 2000
_SECONDS_BETWEEN_SAVES = 5.0
# Of one run: batches are numbered, and the test sequences have a number no step reaches.
_SEEDS_OF_A_RUN = 1_000_003
_TEST = _SEEDS_OF_A_RUN - 1

_FILE = "progress.pt"


@typed_arguments
def learn(
    task: PairTask,
    architecture: Architecture = "combined",
    flavour: Flavour = "free",
    *,
    batch: int = 1000,
    steps: int = 50,
    inner: int = 20,
    hidden: int | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool | Progress = False,
    threads: int | None = 1,
) -> LearningRecord:
    """Train a one-layer transformer with linear attention on the pair task, `logical` 4.1.

    ``LayerNorm(ATT + X) → Linear → ReLU → Linear``, full mask, no 1/√d, mean squared error over i ≥ 2, L-BFGS with
    strong Wolfe line search and a history of 100, a fresh batch for each outer step. The attention is in closed form
    (`closed_form`), float64.

    Args:
        task: N, M, q_true, law. The paper: N = 10, M = 50, standard normal q_true.
        architecture: "solution-1", "solution-2", "solution-3" (tailored) or "combined".
        flavour: For "combined": "towards-1", "towards-2" or "towards-3" add a penalty, 1e-2 times the squared
            distance of the circuits to a hand-built solution, annealed to zero after six tenths of the steps; "free"
            has none.
        batch: Sequences per outer step.
        steps: Outer steps.
        inner: Iterations per outer step, at most.
        hidden: Hidden units; None for N² ("solution-1", "combined"), M ("solution-2"), N ("solution-3").
        seed: Of weights and batches.
        folder: Where progress is kept and the record is written. A run that is found there is resumed and gives the
            same result as one that was never interrupted; a finished one is returned as it is.
        progress: True for a progress bar, or a function; see `progress`.
        threads: PyTorch threads; None leaves the number as it is.

    Returns:
        The record. If the loss or a weight stops being finite, the status says so and at which step, and the weights
        are the last finite ones.

    Raises:
        ArgumentValueError: See `Settings`; or another run in `folder`.

    >>> from tokendynamics.circuits.functionals import random_functional
    >>> task = PairTask(random_functional(3, seed=0), positions=4)
    >>> record = learn(task, "solution-1", batch=20, steps=10, inner=10)
    >>> record.status, record.solved
    ('finished', True)
    """
    hidden = design(architecture).hidden_units(task) if hidden is None else hidden
    settings = Settings(task, architecture, flavour, batch, steps, inner, hidden, seed)
    target = None if folder is None else Path(folder)
    if target is not None and (finished := _finished(settings, target)) is not None:
        return finished
    with limited_threads(threads), reporting(progress) as report:
        record = _run(settings, target, report)
    if target is not None:
        record.save(target)
        remove_unfinished(target)
    return record


def _finished(settings: Settings, target: Path) -> LearningRecord | None:
    """Return the record of the same run in a folder; None where the run is not finished there."""
    recover(Path(os.path.realpath(target)))  # half of a record that a kill left would look like another's file
    if not (target / "record.json").is_file():
        LearningRecord.check_free(target)
        return None
    record = LearningRecord.open(target)
    check_same(record.settings.as_json(), settings, target)
    remove_unfinished(target)
    return record


def _run(settings: Settings, folder: Path | None, report: Progress) -> LearningRecord:
    former = None if folder is None else read_unfinished(folder, settings)
    parameters, optimizer = _start(settings, former)
    unfinished = former or Unfinished(_copied(parameters), deepcopy(optimizer.state_dict()))
    try:
        status = _outer_steps(settings, parameters, optimizer, unfinished, folder, report)
    except KeyboardInterrupt:
        if folder is not None:
            unfinished.save(folder, settings)
        raise
    unseen = _sequences(settings, _TEST_SEQUENCES, _TEST).in_pieces()
    return LearningRecord(
        settings,
        tuple(unfinished.losses),
        tuple(unfinished.penalty_weights),
        mean_squared_error(settings.design, _copied(unfinished.parameters), unseen),
        status,
        unfinished.evaluations,
        unfinished.seconds,
        unfinished.parameters,
    )


def _outer_steps(
    settings: Settings,
    parameters: dict[str, Tensor],
    optimizer: torch.optim.LBFGS,
    unfinished: Unfinished,
    folder: Path | None,
    report: Progress,
) -> str:
    """Take the steps that are left and keep `unfinished` at the last complete one; the status at the end."""
    saved = time.monotonic()
    name = f"{settings.architecture}, {settings.flavour}, seed {settings.seed}"
    left = range(len(unfinished.losses), settings.steps)
    for step in tracked(left, report, name):
        began = time.perf_counter()
        loss, evaluations = _outer_step(settings, parameters, optimizer, step)
        if not math.isfinite(loss) or not all(bool(value.isfinite().all()) for value in parameters.values()):
            return f"not finite: the loss or a weight was not finite in outer step {step + 1} of {settings.steps}"
        # Copies: an interrupted step must not leave half of its own changes behind.
        unfinished.parameters, unfinished.optimizer = _copied(parameters), deepcopy(optimizer.state_dict())
        unfinished.losses.append(loss)
        unfinished.penalty_weights.append(_penalty_weight(settings, step))
        unfinished.evaluations += evaluations
        unfinished.seconds += time.perf_counter() - began
        if folder is not None and time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
            unfinished.save(folder, settings)
            saved = time.monotonic()
    return "finished"


def _start(settings: Settings, former: Unfinished | None) -> tuple[dict[str, Tensor], torch.optim.LBFGS]:
    parameters = initial_parameters(settings.design, settings.task, settings.hidden, settings.seed)
    if former is not None:
        parameters = {name: former.parameters[name].clone().requires_grad_() for name in parameters}
    # No tolerance: at a loss of 1e-9 the changes that still matter are below the default ones.
    optimizer = torch.optim.LBFGS(
        list(parameters.values()),
        max_iter=settings.inner,
        history_size=_HISTORY,
        line_search_fn="strong_wolfe",
        tolerance_grad=0.0,
        tolerance_change=0.0,
    )
    if former is not None:
        optimizer.load_state_dict(former.optimizer)
    return parameters, optimizer


def _outer_step(
    settings: Settings, parameters: dict[str, Tensor], optimizer: torch.optim.LBFGS, step: int
) -> tuple[float, int]:
    """Loss on the fresh batch before the step, without the penalty, and the number of evaluations."""
    batch = _sequences(settings, settings.batch, step).in_pieces()
    penalty, weight = penalty_of(settings.flavour, settings.task), _penalty_weight(settings, step)
    losses: list[float] = []

    def closure() -> float:
        optimizer.zero_grad()
        loss = mean_squared_error(settings.design, parameters, batch)
        losses.append(loss)
        return loss if penalty is None or weight == 0.0 else loss + penalty.add(parameters, weight)

    optimizer.step(closure)
    return losses[0], len(losses)


def _penalty_weight(settings: Settings, step: int) -> float:
    return 0.0 if settings.flavour == "free" else penalty_weight(step, settings.steps)


def _sequences(settings: Settings, count: int, number: int) -> Sequences:
    x = settings.task.sample(count, seed=_SEEDS_OF_A_RUN * (settings.seed + 1) + number)
    return Sequences.of(x, settings.task)


def _copied(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in parameters.items()}


@dataclass
class Unfinished:
    """What the next outer step needs.

    Attributes:
        parameters: The weights after the last step.
        optimizer: L-BFGS's own state (curvature pairs, last gradient).
        losses: See `LearningRecord`.
        penalty_weights: See `LearningRecord`.
        evaluations: Losses and gradients so far.
        seconds: Time so far.
    """

    parameters: dict[str, Tensor]
    optimizer: dict[str, Any]
    losses: list[float] = field(default_factory=list)
    penalty_weights: list[float] = field(default_factory=list)
    evaluations: int = 0
    seconds: float = 0.0

    def save(self, folder: Path, settings: Settings) -> None:
        """Write the state, whole or not at all."""
        # Into memory first: PyTorch's own words for a full disk do not name it.
        state = io.BytesIO()
        torch.save({"settings": json.dumps(settings.as_json()), **self.__dict__}, state)
        with whole_file(folder / _FILE) as made:
            made.write_bytes(state.getvalue())


def read_unfinished(folder: Path, settings: Settings) -> Unfinished | None:
    """Return the state that an earlier run left in `folder`; None without one.

    Raises:
        ArgumentValueError: The run there had other settings (the first that differs is printed), or cannot be read.
    """
    if not (folder / _FILE).is_file():
        return None
    try:
        state = torch.load(folder / _FILE, weights_only=True)
        former = json.loads(state.pop("settings"))
        if "pulls" in state:  # as earlier versions called them
            state["penalty_weights"] = state.pop("pulls")
        unfinished = Unfinished(**state)
    except Exception as error:  # torch.load raises whatever the damage leads to
        came = f"one that is damaged in {folder}"
        raise ArgumentValueError("folder", "a readable progress.pt", came, "delete it to start again") from error
    check_same(former, settings, folder)
    return unfinished


def remove_unfinished(folder: Path) -> None:
    """Delete the state of a finished run, and what killed runs left."""
    recover(folder / _FILE)
    (folder / _FILE).unlink(missing_ok=True)


def check_same(former: dict[str, Any], settings: Settings, folder: Path) -> None:
    """Refuse to mix two runs in one folder.

    Raises:
        ArgumentValueError: The first setting that differs is named.
    """
    for name, value in settings.as_json().items():
        if former.get(name) != value:
            short = value if not isinstance(value, list) else "another one"
            came = f"a run with {name} = {former.get(name) if not isinstance(value, list) else 'its own'}"
            advice = "choose another folder, or delete this one to start again"
            raise ArgumentValueError(f"folder {folder}", f"a run with {name} = {short}", came, advice)
