"""Intervals of κ' hold what they are intervals of as often as they say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tokendynamics.diagnosis import trace
from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE
from tokendynamics.numerics.intervals import jackknife_interval
from tokendynamics.observables import relative_kappa
from tokendynamics.observables.share_decomposition import gram_of_means, shares_of_sums, shares_without_each
from tokendynamics.pretrained import Checkpoint

POPULATION, TEXTS, DRAWS = 400, 12, 300


def population(seed: int) -> list[list[int]]:
    """Prompts of words around topics of their own, of 6 to 40 tokens."""
    generator = np.random.default_rng(seed)
    prompts = []
    for _ in range(POPULATION):
        topic, spread = generator.integers(5, 290), generator.integers(2, 120)
        words = topic + generator.integers(-spread, spread + 1, size=generator.integers(6, 41))
        prompts.append(np.clip(words, 0, 299).tolist())
    return prompts


def left_behind(
    ckpt: Checkpoint, prompts: list[list[int]], *, packed: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cosine of different tokens, (prompt, 2), and mean unit row, (prompt, 2, dim), at both ends."""
    within, means = torch.empty(len(prompts), 2).double(), [torch.empty(0)] * len(prompts)
    for pack in ckpt.states_in_packs([torch.tensor(ids) for ids in prompts], packed=packed):
        for number, place in enumerate(pack.places):
            x = pack.of(number).feed_forward[[0, -1]].double()
            unit = x / x.norm(dim=-1, keepdim=True)
            means[place] = unit.mean(dim=1)
            count = len(prompts[place])
            within[place] = (unit.sum(dim=1).square().sum(dim=-1) - count) / (count * (count - 1))
    return within, torch.stack(means)


def relative(result: torch.Tensor) -> torch.Tensor:
    return relative_kappa(result[..., 1], result[..., 0])


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", pytest.param("bert", marks=pytest.mark.slow)])
def test_nine_of_ten_intervals_of_a_dozen_texts_hold_the_value_of_all(
    tiny: Callable[..., Checkpoint], family: str
) -> None:
    ckpt = tiny(family, seed=3, initializer_range=0.3)
    within, means = left_behind(ckpt, population(1))
    truth = float(relative(shares_of_sums(within, gram_of_means(means), 0.0).kappa))
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(DRAWS):
        some = torch.randperm(POPULATION, generator=generator)[:TEXTS]
        between = gram_of_means(means[some])
        whole = relative(shares_of_sums(within[some], between, 0.0).kappa)
        entry = relative(shares_without_each(within[some], between, 0.0).kappa)
        low, high = jackknife_interval(whole, entry, CONFIDENCE)
        held += bool(low <= truth <= high)
    assert 0.85 <= held / DRAWS <= 0.95


@pytest.mark.long
def test_the_interval_of_a_trace_is_that_of_what_its_texts_leave_behind(tiny: Callable[..., Checkpoint]) -> None:
    ckpt, prompts = tiny("llama", seed=3), population(2)[:TEXTS]
    within, means = left_behind(ckpt, prompts, packed=False)
    between = gram_of_means(means)
    whole = relative(shares_of_sums(within, between, 0.0).kappa)
    entry = relative(shares_without_each(within, between, 0.0).kappa)
    table = trace(ckpt, prompts, sinks=(), packed=False).sel(site="feed_forward").isel(layer=-1)
    assert float(table.consensus_relative) == pytest.approx(float(whole), abs=1e-10)
    expected = jackknife_interval(whole, entry, 0.9).numpy()
    assert table.consensus_relative_interval.values == pytest.approx(expected, abs=1e-9)
