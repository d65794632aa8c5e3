"""What is measured of the tokens after each pass: by prompt, and what prompts share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tokendynamics.observables import consensus, mean_pair_cosine
from tokendynamics.observables.directions import unit_rows
from tokendynamics.observables.share_decomposition import (
    centred_cosines,
    gram_of_means,
    mean_of_others,
    resolution_of,
    shares_of_sums,
)

BY_PROMPT = ("consensus", "consensus_signed", "mean_pair_cosine", "log_norm")
OVER_PROMPTS = ("share_common", "share_prompt", "share_own", "consensus_within", "centred_cos2")


def measures_of_prompt(states: Float[Tensor, "token dim"], log_scale: float, reference: int) -> dict[str, float]:
    """Return the measures of one prompt's tokens; NaN where they have no directions.

    Args:
        states: Of the tokens that count.
        log_scale: Logarithm of what the states were divided by.
        reference: The token that E is measured against.

    >>> found = measures_of_prompt(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 0.0, 0)
    >>> found["consensus"], found["mean_pair_cosine"], found["log_norm"]
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
    norms = [torch.linalg.vector_norm(each.double(), dim=-1) for each in prompts]
    if len(prompts) < 2 or not all(bool((torch.isfinite(each) & (each > 0)).all()) for each in norms):
        return dict.fromkeys(OVER_PROMPTS, float("nan"))
    directions = [unit_rows(each.double()) for each in prompts]
    means = torch.stack([each.mean(dim=0) for each in directions])
    within = torch.stack([_mean_product(each) for each in directions])
    resolution = resolution_of(dtype)
    found = shares_of_sums(within, gram_of_means(means), resolution)
    squares = [
        centred_cosines(each, center, resolution)[1]
        for each, center in zip(directions, mean_of_others(means), strict=True)
    ]
    values = (found.common, found.prompt, found.own, found.kappa, torch.stack(squares).nanmean())
    return dict(zip(OVER_PROMPTS, map(float, values), strict=True))


def _mean_product(directions: Float64[Tensor, "token dim"]) -> Float64[Tensor, ""]:
    """Return 1 − Σ|u − ū|²/(n − 1), which does not cancel where all are nearly one."""
    count = len(directions)
    if count < 2:
        return torch.tensor(torch.nan, dtype=torch.float64)
    return 1 - (directions - directions.mean(dim=0)).square().sum() / (count - 1)
