"""A run of passes in a file, so that it can be interrupted and resumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tokendynamics.diagnosis._pass_measures import BY_PROMPT, OVER_PROMPTS
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.provenance.array_files import read_npz
from tokendynamics.provenance.whole import whole_file

_ARRAYS = {"identity", "by_prompt", "over_prompts", "states", "log_scale"}


@dataclass(frozen=True)
class PassRun:
    """What a run has found.

    Attributes:
        identity: Everything that its numbers depend on, as text.
        rows: For each pass, from the embedding on, the measures of each prompt.
        over: For each pass the measures over all prompts.
        states: After the last of them.
        log_scale: Logarithm of what these are divided by.
    """

    identity: str
    rows: list[list[dict[str, float]]]
    over: list[dict[str, float]]
    states: Float[Tensor, "prompt token dim"]
    log_scale: Float64[Tensor, " prompt"]


def write_run(path: Path, run: PassRun) -> None:
    """Write a run; the file is whole or the former one.

    Raises:
        StorageError: The disk is full.
    """
    states = run.states.detach().cpu()
    arrays = {
        "identity": np.frombuffer(run.identity.encode(), dtype=np.uint8),
        "by_prompt": np.array([[[row[name] for name in BY_PROMPT] for row in rows] for rows in run.rows]),
        "over_prompts": np.array([[each[name] for name in OVER_PROMPTS] for each in run.over]),
        # NumPy has no bfloat16, whose numbers are all numbers of float32.
        "states": (states.float() if states.dtype == torch.bfloat16 else states).numpy(),
        "log_scale": run.log_scale.numpy(),
    }
    with whole_file(path) as made, made.open("wb") as stream:
        np.savez(stream, **arrays)


def read_run(path: Path, identity: str) -> PassRun:
    """Read a run to resume.

    Raises:
        ArgumentValueError: No such file, damaged, or a run of other arguments.
    """
    arrays = read_npz(path, "store")
    if set(arrays) != _ARRAYS or arrays["identity"].dtype != np.uint8:
        raise ArgumentValueError(expected("store", "a file that passes wrote", f"{path}, which holds something else"))
    if arrays["identity"].tobytes() != identity.encode():
        advice = "choose another file, or remove it"
        raise ArgumentValueError(expected("store", "a run of the same arguments", f"another one in {path}", advice))
    by_prompt, over, states = arrays["by_prompt"], arrays["over_prompts"], arrays["states"]
    fits = by_prompt.ndim == 3 and over.ndim == 2 and states.ndim == 3 and len(by_prompt) == len(over) > 0
    fits = fits and arrays["log_scale"].shape == states.shape[:1]
    if not fits or by_prompt.shape[1:] != (len(states), len(BY_PROMPT)) or over.shape[1] != len(OVER_PROMPTS):
        raise ArgumentValueError(expected("store", "a file that passes wrote", f"{path}, whose arrays do not fit"))
    rows = [[_named(row, BY_PROMPT) for row in each] for each in by_prompt]
    shared = [_named(each, OVER_PROMPTS) for each in over]
    return PassRun(identity, rows, shared, torch.from_numpy(states), torch.from_numpy(arrays["log_scale"]).double())


def _named(values: np.ndarray, names: tuple[str, ...]) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))
