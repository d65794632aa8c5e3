"""The bundle agrees with the single functions, with and without tokens left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokendynamics import observables
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.observables.summary import summarize


def one_by_one(x):
    """Compute the summary of one state (token, dim) by the single functions."""
    lower, median, upper = np.quantile(observables.norms(x), [0.25, 0.5, 0.75])
    tokens = len(x)
    pairs = tokens * (tokens - 1)
    return {
        "consensus_first": observables.consensus(x),
        "consensus_first_signed": observables.consensus(x, signed=True),
        "consensus_last": observables.consensus(x, -1),
        "mean_pair_cosine": observables.mean_pair_cosine(x) if pairs else np.nan,
        "effective_rank": observables.effective_rank(x),
        "effective_rank_unit_rows": observables.effective_rank(x, unit_rows=True),
        "stable_rank": observables.stable_rank(x),
        "stable_rank_unit_rows": observables.stable_rank(x, unit_rows=True),
        "rank_one_distance": observables.rank_one_distance(x),
        "norm_median": median,
        "norm_lower_quartile": lower,
        "norm_upper_quartile": upper,
        "distance_mean": observables.pairwise_distances(x).sum() / pairs if pairs else np.nan,
    }


def assert_agrees(x, keep=None):
    summary = summarize(torch.as_tensor(x), None if keep is None else torch.as_tensor(keep))
    for index in np.ndindex(*x.shape[:-2]):
        system = x[index].astype(np.float64)
        wanted = one_by_one(system if keep is None else system[keep[index]])
        assert set(summary) == set(wanted)
        for name, value in wanted.items():
            got = summary[name][index].item()
            assert got == pytest.approx(value, rel=1e-10, abs=1e-14, nan_ok=True), (name, index)


def random_states(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("shape", [(5, 4), (3, 7, 12), (2, 3, 12, 5), (4, 1, 3), (2, 6, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_summary_equals_the_single_functions(shape, dtype):
    assert_agrees((100 * random_states(*shape) + 30).astype(dtype))


@pytest.mark.parametrize("shape", [(4, 9, 20), (4, 20, 6)])
def test_tokens_left_out_do_not_count_anywhere(shape):
    x = random_states(*shape)
    x[:, 0] *= 1e6
    keep = np.random.default_rng(1).random(shape[:-1]) < 0.6
    keep[:, 3] = True
    keep[0] = True
    keep[1] = np.arange(shape[1]) == 4
    assert_agrees(x, keep)


def test_a_token_left_out_may_be_zero():
    x = random_states(2, 5, 4)
    x[:, 2] = 0
    keep = np.ones((2, 5), dtype=bool)
    keep[:, 2] = False
    assert_agrees(x, keep)


def test_a_sink_beside_ordinary_tokens_is_measured_right():
    x = random_states(3, 26, 64)
    x[:, 0] *= 2e4
    assert_agrees(x)


@pytest.mark.parametrize("spread", [0.0, 1e-12, 1e-8, 1e-5, 1e-3])
def test_tokens_that_have_nearly_collapsed_are_measured_from_differences(spread):
    assert_agrees(1 + spread * random_states(2, 6, 10))


def test_repeated_tokens_and_two_tight_groups_are_measured_right():
    x = random_states(3, 8, 16)
    x[0, 5] = x[0, 2]
    x[1, 4:] = x[1, :4] * (1 + 1e-9)
    x[2, :4] = x[2, 0] + 1e-7 * x[2, :4]
    assert_agrees(x)


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_states_of_any_scale_are_measured_right(scale):
    # A summary in the units of the states is compared relative to them.
    x = random_states(6, 4)
    small, plain = summarize(torch.as_tensor(x * scale)), summarize(torch.as_tensor(x))
    for name, value in plain.items():
        unit = scale if name.startswith(("norm", "distance")) else 1.0
        assert small[name].item() / unit == pytest.approx(value.item(), rel=1e-10)


def test_identical_tokens_have_their_closed_forms():
    summary = summarize(torch.ones(5, 3, dtype=torch.float64))
    assert summary["consensus_first"] == pytest.approx(0, abs=1e-15)
    assert summary["rank_one_distance"] == 0
    assert summary["distance_mean"] == 0
    assert summary["mean_pair_cosine"] == pytest.approx(1, rel=1e-15)


def test_one_token_has_undefined_pair_measures_and_nothing_else_undefined():
    summary = summarize(torch.tensor([[3.0, 4.0]]))
    assert {name for name, value in summary.items() if torch.isnan(value)} == {"mean_pair_cosine", "distance_mean"}
    assert summary["norm_median"] == 5
    assert summary["effective_rank"] == 1


def test_results_are_float64_tensors_whatever_came_in():
    for x in (torch.eye(3), np.eye(3, dtype=np.float32), [[1.0, 0.0], [0.0, 1.0]]):
        assert {value.dtype for value in summarize(x).values()} == {torch.float64}


def test_a_kept_zero_token_is_refused_and_named():
    x = torch.ones(2, 3, 4)
    x[1, 2] = 0
    with pytest.raises(ArgumentValueError, match=r"x: expected tokens with a direction.*token 2 of system \(1,\)"):
        summarize(x)


def test_masks_that_cannot_be_used_are_refused():
    x = torch.ones(2, 3, 4)
    with pytest.raises(ArgumentTypeError, match=r"keep: expected a boolean mask, got dtype torch\.float32"):
        summarize(x, torch.ones(2, 3))
    with pytest.raises(
        ArgumentValueError, match=r"keep: expected one entry per token, shape \(2, 3\), got shape \(3,\)"
    ):
        summarize(x, torch.ones(3, dtype=torch.bool))
    keep = torch.tensor([[True, True, True], [False, False, False]])
    with pytest.raises(ArgumentValueError, match=r"keep: expected at least one token.*none in state \(1,\)"):
        summarize(x, keep)
