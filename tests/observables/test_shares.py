"""Shares of a direction: closed forms, an independent computation over all pairs, and unbiasedness."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.intervals import jackknife_interval
from tokendynamics.observables import relative_kappa, shares
from tokendynamics.observables.share_decomposition import (
    centred_cosines,
    centred_cosines_of_gram,
    gram_of_means,
    mean_of_others,
    resolution_of,
    shares_of_sums,
    shares_without_each,
)


def drawn(seed: int, counts: tuple[int, ...], dim: int = 5) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(count, dim)) + generator.normal(size=dim) + 0.5 for count in counts]


def over_all_pairs(prompts: list[np.ndarray]) -> tuple[float, float]:
    """Mean cosine of different tokens: of different prompts, of the same one; each prompt counts alike."""
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in prompts]
    common = [
        np.mean([u @ v for u in units[p] for v in units[q]]) for p, q in itertools.permutations(range(len(units)), 2)
    ]
    same = [np.mean([u[i] @ u[j] for i, j in itertools.permutations(range(len(u)), 2)]) for u in units if len(u) > 1]
    return float(np.mean(common)), float(np.mean(same))


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.lists(st.integers(2, 6), min_size=2, max_size=5))
def test_shares_are_means_over_all_pairs_and_add_to_one(seed: int, counts: list[int]) -> None:
    prompts = drawn(seed, tuple(counts))
    share_values = shares(prompts)
    common, same = over_all_pairs(prompts)
    assert float(share_values.common) == pytest.approx(common, abs=1e-12)
    assert float(share_values.prompt) == pytest.approx(same - common, abs=1e-12)
    assert float(share_values.common + share_values.prompt + share_values.own) == pytest.approx(1, abs=1e-12)
    assert float(share_values.kappa) == pytest.approx((same - common) / (1 - common), abs=1e-10)


def test_a_point_for_each_prompt_is_consensus_one_and_a_point_for_all_is_none() -> None:
    generator = torch.Generator().manual_seed(3)
    points = torch.randn(4, 1, 6, generator=generator, dtype=torch.float64).expand(4, 3, 6)
    assert float(shares(list(points)).kappa) == pytest.approx(1, abs=1e-12)
    same = shares([points[0]] * 4)
    assert float(same.common) == pytest.approx(1, abs=1e-12)
    assert bool(same.kappa.isnan())


def test_a_prompt_of_one_token_counts_between_prompts_alone() -> None:
    prompts = drawn(1, (3, 1, 4))
    common, same = over_all_pairs(prompts)
    share_values = shares(prompts)
    assert float(share_values.common) == pytest.approx(common, abs=1e-12)
    assert float(share_values.prompt) == pytest.approx(same - common, abs=1e-12)


def test_estimates_are_unbiased_at_two_prompts_as_at_many() -> None:
    """Of directions that share nothing each share is 0 on average, within four standard errors."""
    entries = [
        shares(list(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed)).double()))
        for seed in range(800)
    ]
    for values in (torch.stack([entry.common for entry in entries]), torch.stack([entry.prompt for entry in entries])):
        assert abs(float(values.mean())) < 4 * float(values.std()) / 800**0.5


def test_leaving_out_a_prompt_is_measuring_without_it() -> None:
    prompts = [torch.from_numpy(x) for x in drawn(7, (3, 4, 2, 5))]
    units = [x / x.norm(dim=-1, keepdim=True) for x in prompts]
    means = torch.stack([unit.mean(dim=0) for unit in units])
    within = torch.stack([((u @ u.mT).sum() - len(u)) / (len(u) * (len(u) - 1)) for u in units])
    left = shares_without_each(within, gram_of_means(means), 0.0)
    whole = shares_of_sums(within, gram_of_means(means), 0.0)
    assert float(whole.kappa) == pytest.approx(float(shares(prompts).kappa), abs=1e-12)
    for place in range(4):
        without = shares(prompts[:place] + prompts[place + 1 :])
        assert float(left.common[place]) == pytest.approx(float(without.common), abs=1e-12)
        assert float(left.kappa[place]) == pytest.approx(float(without.kappa), abs=1e-12)


def test_the_jackknife_leaves_a_prompt_of_one_token_out_as_well() -> None:
    within = torch.tensor([0.5, torch.nan, 0.3], dtype=torch.float64)
    between = torch.eye(3, dtype=torch.float64)
    left = shares_without_each(within, between, 0.0)
    assert left.prompt.tolist() == pytest.approx([0.3, 0.4, 0.5])
    assert shares_without_each(within[:2], between[:2, :2], 0.0).common.isnan().all()


def test_centred_cos2_of_a_line_two_lines_and_all_directions() -> None:
    zero = torch.zeros(3, dtype=torch.float64)
    line = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [1, 0, 0], [-1, 0, 0]], dtype=torch.float64)
    cross = torch.tensor([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]], dtype=torch.float64)
    assert float(centred_cosines(line, zero, 0.0)[1]) == 1
    assert float(centred_cosines(cross, zero, 0.0)[1]) == pytest.approx(1 / 3)  # 4 of 12 pairs on one line
    wide = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wide = wide / wide.norm(dim=-1, keepdim=True)
    assert float(centred_cosines(wide, zero, 0.0)[1]) == pytest.approx(1 / 3, abs=0.05)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(2, 5))
def test_centred_cos2_is_the_mean_over_pairs_on_both_sides_of_square(seed: int, count: int, dim: int) -> None:
    generator = np.random.default_rng(seed)
    x, center = generator.normal(size=(count, dim)), generator.normal(size=dim)
    v = x - center
    cosines = [
        v[i] @ v[j] / np.linalg.norm(v[i]) / np.linalg.norm(v[j]) for i, j in itertools.permutations(range(count), 2)
    ]
    mean, computed = centred_cosines(torch.from_numpy(x), torch.from_numpy(center), 0.0)
    assert float(computed) == pytest.approx(np.mean(np.square(cosines)), abs=1e-10)
    assert float(mean) == pytest.approx(np.mean(cosines), abs=1e-10)
    keep = torch.arange(count) != 0
    cosines = [cos for cos, (i, j) in zip(cosines, itertools.permutations(range(count), 2), strict=True) if i and j]
    mean, computed = centred_cosines(torch.from_numpy(x), torch.from_numpy(center), 0.0, keep)
    if count == 2:
        assert np.isnan([float(mean), float(computed)]).all()
    else:
        assert float(mean) == pytest.approx(np.mean(cosines), abs=1e-10)
        assert float(computed) == pytest.approx(np.mean(np.square(cosines)), abs=1e-10)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(2, 5))
def test_cosines_at_hand_give_what_the_differences_give(seed: int, count: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, count, dim, generator=generator, dtype=torch.float64)
    unit, center = x / x.norm(dim=-1, keepdim=True), torch.rand(2, dim, generator=generator, dtype=torch.float64) / dim
    keep = torch.rand(2, count, generator=generator) < 0.8
    along = (unit @ center.unsqueeze(-1)).squeeze(-1)
    result = centred_cosines_of_gram(unit @ unit.mT, along, center, 1e-9, keep)
    for one, other in zip(result, centred_cosines(unit, center, 1e-9, keep), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0, equal_nan=True)


def test_tokens_that_are_the_common_direction_itself_have_no_centred_direction() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 1e-9], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64)
    center = torch.tensor([1.0, 0.0], dtype=torch.float64)
    resolution = resolution_of(torch.float32)
    assert float(centred_cosines(x, center, resolution)[1]) == pytest.approx(
        float(centred_cosines(x[2:], center, 0.0)[1]), abs=1e-12
    )
    assert np.isnan(float(centred_cosines(x[:2], center, resolution)[1]))


def test_the_mean_of_the_others_holds_no_prompt_itself() -> None:
    means = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]], dtype=torch.float64)
    assert mean_of_others(means).tolist() == [[1.5, 2.0], [2.0, 1.5], [0.5, 0.5]]
    assert mean_of_others(means[:1]).isnan().all()


def test_relative_kappa_is_nought_at_the_embedding_and_one_at_consensus() -> None:
    reference = torch.tensor(0.2, dtype=torch.float64)
    assert float(relative_kappa(reference, reference)) == 0
    assert float(relative_kappa(torch.ones((), dtype=torch.float64), reference)) == 1


def test_kappa_is_differentiable() -> None:
    prompts = [torch.from_numpy(x).requires_grad_() for x in drawn(2, (3, 3))]
    shares(prompts).kappa.backward()
    grown = [x.detach().clone() for x in prompts]
    grown[0][1, 2] += 1e-6
    slope = float(shares(grown).kappa.detach() - shares(prompts).kappa.detach()) / 1e-6
    assert float(prompts[0].grad[1, 2]) == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("wrong", [[], [[[1.0, 0.0]]], [[[1.0, 0.0]], [[0.0, 0.0]]], [[[1.0, 0.0]], [[1.0]]]])
def test_what_is_no_population_of_prompts_is_refused(wrong: list) -> None:
    with pytest.raises(ArgumentValueError, match="prompts"):
        shares(wrong)


def test_the_jackknife_of_a_mean_is_the_t_interval() -> None:
    """Against the textbook: mean ± t s/√n, with t = 2.3534 of three degrees of freedom at 90 %."""
    values = torch.tensor([1.0, 4.0, 2.0, 7.0], dtype=torch.float64)
    left = (values.sum() - values) / 3
    half = 2.353363 * float(values.std()) / 2
    result = jackknife_interval(values.mean(), left, 0.9)
    assert result.tolist() == pytest.approx([3.5 - half, 3.5 + half], abs=1e-5)
    assert jackknife_interval(values.mean(), left[:2], 0.9).isnan().all()
