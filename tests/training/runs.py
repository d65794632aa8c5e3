"""Runs of training that take seconds: tiny networks on a text that is made here."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from tokendynamics.training import Experiment, Record, preset, train

WORDS = ("once", "upon", "a", "time", "there", "was", "token", "that", "went", "its", "way", "and", "met", "another")
CONTEXT = 16

MODEL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "output": "identity",
}
RECIPE = {"steps": 6, "batch": 2, "warmup": 2, "evaluate_every": 3, "save_every": 2, "log_every": 1}


def text(size: int, seed: int = 0) -> str:
    draw = random.Random(seed)  # noqa: S311
    words = " ".join(draw.choice(WORDS) + draw.choice(("", "", ",", ".\n")) for _ in range(size))
    return words[:size]


def small(folder: Path, *, size: int = 1500, **changes: Any) -> Experiment:
    """A byte-level decoder of two layers on `size` bytes, which are written into the folder."""
    data = folder / f"text-{size}.txt"
    if not data.is_file():
        data.write_text(text(size))
    given = {name: changes.pop(name, {}) for name in ("model", "recipe", "options")}
    return preset("bytes-small").changed(
        data=str(data),
        model=MODEL | given["model"],
        recipe=RECIPE | given["recipe"],
        options={"context": CONTEXT} | given["options"],
        **changes,
    )


def run(experiment: Experiment, folder: Path, **options: Any) -> Record:
    return train(experiment, folder, threads=1, **{"loggers": (), **options})


class At(TrainerCallback):
    """Does something at the end of a step: before the step is logged, evaluated and kept."""

    def __init__(self, step: int, what: Callable[[torch.nn.Module], object]) -> None:
        self._step, self._what = step, what

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == self._step:
            self._what(given["model"])


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same(one: Path, other: Path) -> None:
    """Hold that two runs gave the same numbers and weights to the last bit, and the same files."""
    first, second = Record.open(one), Record.open(other)
    for name in ("status", "steps", "history", "validation", "measures", "layers", "notes"):
        assert getattr(first, name) == getattr(second, name), name
    assert files(one) == files(other)
    for folder in ("model", "model-averaged"):
        if (one / folder).is_dir():
            actual, reference = weights(one / folder), weights(other / folder)
            assert actual.keys() == reference.keys()
            assert all(torch.equal(actual[name], reference[name]) for name in actual)


def files(folder: Path) -> list[str]:
    """Everything in the folder of a run but its curves."""
    result = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return [name for name in result if not name.startswith("logs")]
