"""The state of an unfinished run on disk."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokendynamics.circuits.learning.settings import Settings
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.provenance.swap import recover
from tokendynamics.provenance.whole_file import whole_file

_FILE = "progress.pt"


@dataclass
class Progress:
    """What the next outer step needs.

    Attributes:
        parameters: The weights after the last step.
        optimizer: L-BFGS's own state (curvature pairs, last gradient).
        losses: See `LearningRecord`.
        pulls: See `LearningRecord`.
        evaluations: Losses and gradients so far.
        seconds: Time so far.
    """

    parameters: dict[str, Tensor]
    optimizer: dict[str, Any]
    losses: list[float] = field(default_factory=list)
    pulls: list[float] = field(default_factory=list)
    evaluations: int = 0
    seconds: float = 0.0

    def save(self, folder: Path, settings: Settings) -> None:
        """Write the state, whole or not at all."""
        # Into memory first: PyTorch's own words for a full disk do not name it.
        state = io.BytesIO()
        torch.save({"settings": json.dumps(settings.as_json()), **self.__dict__}, state)
        with whole_file(folder / _FILE) as made:
            made.write_bytes(state.getvalue())


def read_progress(folder: Path, settings: Settings) -> Progress | None:
    """The state that an earlier run left in `folder`; None if there is none.

    Raises:
        ArgumentValueError: The run there had other settings (the first that differs is printed), or cannot be read.
    """
    if not (folder / _FILE).is_file():
        return None
    try:
        state = torch.load(folder / _FILE, weights_only=True)
        former = json.loads(state.pop("settings"))
        progress = Progress(**state)
    except Exception as error:  # torch.load raises whatever the damage leads to
        came = f"one that is damaged in {folder}"
        raise ArgumentValueError(
            expected("folder", "a readable progress.pt", came, "delete it to start again")
        ) from error
    check_same(former, settings, folder)
    return progress


def remove_progress(folder: Path) -> None:
    """Forget the state of a finished run, and what killed ones left of theirs."""
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
            raise ArgumentValueError(expected(f"folder {folder}", f"a run with {name} = {short}", came, advice))
