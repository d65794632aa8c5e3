"""Small networks trained for the figures of trained ones, each kept in a folder so that a figure can be interrupted."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.arguments import generator
from tokendynamics.numerics.extras import require
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.training import Experiment, Record, preset, train
from tokendynamics.training.networks import task_of

Key = TypeVar("Key", bound=Hashable)

SKEW = 0.02
"""Standard deviation of the skew part of W at the start."""
LEARNING_RATE = 2e-3
MULTIPLIERS = {"lower": 1.0, "skew": 0.1, "pivots": 1.0}
"""So that skew parts stay small; at the presets' multipliers V grows in a hundred steps until a layer overshoots."""

PROJECTIONS = {"identity": "identity projection", "free": "free projection"}


def short_training(
    regime: str, *, output: str, seed: int, layers: int, steps: int, positions: str = "sinusoidal"
) -> Experiment:
    """Return a training of few steps in which the matrices of a regime learn no faster than everything else.

    Args:
        regime: Such as "convergence".
        output: "identity" or "free", the projection behind the heads.
        seed: Of weights and data.
        layers: How many.
        steps: Of the optimiser.
        positions: Of the network.
    """
    return preset("bytes-small").changed(
        regime=regime,
        seed=seed,
        model={"num_hidden_layers": layers, "skew": SKEW, "output": output, "positions": positions},
        options={"held_out": 0.01},
        recipe={
            "steps": steps,
            "batch": 8,
            "learning_rate": LEARNING_RATE,
            "warmup": steps // 10,
            "evaluate_every": steps,
            "multipliers": MULTIPLIERS,
        },
    )


def words_of_training(layers: int, steps: int) -> str:
    """Say what of `short_training` the paper does not."""
    return (
        f"their training ({layers} layers of 64, preset bytes-small, {steps} steps of 8 sequences with norms and "
        f"feed-forward parts, which are then left out; entries of the skew part of W {SKEW:g} at the start, learning "
        "at a tenth of the others' rate, all other parameters of a regime at that rate: at the preset's multipliers, "
        "10 for L, V grows until a layer of size 1 overshoots and convergence expands)"
    )


def short_trainings(
    names: Mapping[str, Mapping[str, str]], seeds: Sequence[int], layers: int, steps: int
) -> dict[tuple[str, str, int], Experiment]:
    """Return trainings with each projection and seed, by projection, name and seed.

    Args:
        names: Regime and positions, as `short_training` takes them, by the name that a figure gives them.
        seeds: Of weights and data.
        layers: How many.
        steps: Of the optimiser.
    """
    return {
        (output, name, seed): short_training(**how, output=output, seed=seed, layers=layers, steps=steps)
        for output in PROJECTIONS
        for name, how in names.items()
        for seed in seeds
    }


@contextmanager
def working_folder(folder: str | Path | None) -> Iterator[Path]:
    """Yield a folder for what is trained; without one, a folder that is gone afterwards.

    Raises:
        CheckpointError: What training needs is not installed.
    """
    require("training", "folder", "networks that are trained", error=CheckpointError)
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def digest_of(values: Mapping[str, Any]) -> str:
    """Return what tells plain values from others, in ten letters."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def place_of(experiment: Experiment, folder: Path) -> Path:
    """Return where a run is kept: by what it trains, so that figures that want the same run share it."""
    name = f"{experiment.name}-{experiment.model['regime']}-seed{experiment.seed}-{digest_of(experiment.as_json())}"
    return folder / "trained" / name


def trained(wanted: Mapping[Key, Experiment], folder: Path, report: Progress) -> dict[Key, Record]:
    """Train what is not there yet, and return every record.

    Args:
        wanted: By whatever they are to be known by.
        folder: Where runs are kept.
        report: Told the runs.
    """
    records: dict[Key, Record] = {}
    report(0, len(wanted), "trained networks")
    for key, experiment in wanted.items():
        records[key] = train(experiment, place_of(experiment, folder), resume=True, threads=1, loggers=())
        report(len(records), len(wanted), "trained networks")
    return records


def trained_in(
    folder: str | Path | None, wanted: Mapping[Key, Experiment], progress: bool | Progress
) -> dict[Key, Record]:
    """Train in a folder what is not there yet, see `working_folder` and `trained`."""
    with working_folder(folder) as place, reporting(progress) as report:
        return trained(wanted, place, report)


def network_of(experiment: Experiment, folder: Path) -> Checkpoint:
    """Return the network of a training that finished, in float64.

    Raises:
        CheckpointError: It did not finish.
    """
    return load(str(place_of(experiment, folder) / "model"), dtype="float64")


def texts_of_test(experiment: Experiment, tokens: int, count: int, seed: int) -> Int[Tensor, "text token"]:
    """Draw texts that no network of the task has been trained on: the beginnings of windows of its test split.

    Args:
        experiment: Whose task.
        tokens: Of each text, no more than a window has.
        count: How many.
        seed: Of the draw.
    """
    windows: Any = task_of(experiment, 1).test
    drawn = torch.randperm(len(windows), generator=generator(seed))[:count].tolist()
    return torch.from_numpy(np.stack([windows[number]["ids"][:tokens] for number in drawn]).astype(np.int64))
