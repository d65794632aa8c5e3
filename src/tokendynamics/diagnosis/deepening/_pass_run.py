"""A run of passes: what is measured of the tokens after each, and the file from which it can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.observables import consensus, mean_pair_cosine
from tokendynamics.observables.directions import unit_rows
from tokendynamics.observables.share_decomposition import (
    centred_cosines,
    gram_of_means,
    mean_of_others,
    resolution_of,
    shares_of_sums,
)
from tokendynamics.provenance.array_files import read_npz
from tokendynamics.provenance.whole import whole_file

BY_PROMPT = ("consensus", "consensus_signed", "mean_pair_cosine", "log_norm")

OVER_PROMPTS = ("share_common", "share_prompt", "share_own", "consensus_within", "centred_cos2")


_ARRAYS = {"identity", "by_prompt", "over_prompts", "states", "log_scale"}


def measures_of_prompt(states: Float[Tensor, "token dim"], log_scale: float, reference: int) -> dict[str, float]:
    """Return the measures of one prompt's tokens; NaN where they have no directions.

    Args:
        states: Of the tokens that count.
        log_scale: Logarithm of what the states were divided by.
        reference: The token that E is measured against.

    >>> measures = measures_of_prompt(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 0.0, 0)
    >>> measures["consensus"], measures["mean_pair_cosine"], measures["log_norm"]
    (0.5, 0.0, 0.0)
    """
    wide = states.double()
    norms = torch.linalg.vector_norm(wide, dim=-1)
    if not bool(torch.isfinite(norms).all()) or not bool((norms > 0).all()):
        return dict.fromkeys(BY_PROMPT, float("nan"))
    return {
        "consensus": float(consensus(wide, reference)),
        "consensus_signed": float(consensus(wide, reference, signed=True)),
        "mean_pair_cosine": float(mean_pair_cosine(wide)) if len(wide) > 1 else float("nan"),
        "log_norm": float(norms.median().log()) + log_scale,
    }


def measures_over_prompts(prompts: Sequence[Float[Tensor, "_ dim"]], dtype: torch.dtype) -> dict[str, float]:
    """Return the shares, κ and centred cos² of several prompts; NaN of one, and where tokens have no directions.

    Args:
        prompts: States of the tokens that count.
        dtype: Of the network, whose rounding is the resolution.
    """
    norms = [torch.linalg.vector_norm(states.double(), dim=-1) for states in prompts]
    if len(prompts) < 2 or not all(
        bool((torch.isfinite(prompt_norms) & (prompt_norms > 0)).all()) for prompt_norms in norms
    ):
        return dict.fromkeys(OVER_PROMPTS, float("nan"))
    directions = [unit_rows(states.double()) for states in prompts]
    means = torch.stack([rows.mean(dim=0) for rows in directions])
    # 1 − Σ|u − ū|²/(n − 1), which does not cancel where all are nearly one; undefined for one token
    spreads = [(rows - rows.mean(dim=0)).square().sum() / (len(rows) - 1 or torch.nan) for rows in directions]
    within = 1 - torch.stack(spreads)
    resolution = resolution_of(dtype)
    shares = shares_of_sums(within, gram_of_means(means), resolution)
    squares = [
        centred_cosines(rows, center, resolution)[1]
        for rows, center in zip(directions, mean_of_others(means), strict=True)
    ]
    values = (shares.common, shares.prompt, shares.own, shares.kappa, torch.stack(squares).nanmean())
    return dict(zip(OVER_PROMPTS, map(float, values), strict=True))


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
        "over_prompts": np.array([[measures[name] for name in OVER_PROMPTS] for measures in run.over]),
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
    rows = [[_named(row, BY_PROMPT) for row in of_pass] for of_pass in by_prompt]
    shared = [_named(row, OVER_PROMPTS) for row in over]
    return PassRun(identity, rows, shared, torch.from_numpy(states), torch.from_numpy(arrays["log_scale"]).double())


def _named(values: np.ndarray, names: tuple[str, ...]) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))
