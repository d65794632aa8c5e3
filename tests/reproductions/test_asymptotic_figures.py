"""What `asymptotic` prints or implies for its figures, at sizes that run in seconds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from reproductions.asymptotic import fig1, fig2, fig3, fig4, fig5, wendel


@pytest.mark.long
def test_figure_1_descends_to_minus_50_e_and_its_axis_shows_twice_the_potential():
    record = fig1.reproduce()
    potential, states = record.results["potential"], record.results["run"].tensor
    assert abs(potential[-1] + 135.91409142295225) < 1e-3
    assert np.diff(potential).max() <= 1e-9
    # Independent of `observables`: −½ Σ_ij exp(x_i^T P x_j) written out for the first state.
    x = states[0].numpy()
    assert math.isclose(potential[0], -0.5 * np.exp(x @ np.array(fig1.PRINTED["P"]) @ x.T).sum(), rel_tol=1e-12)
    assert -280 <= 2 * potential[-1] <= 2 * potential[0] <= -120 < potential[0]
    assert [quantity.name for quantity in record.failures] == ["V at t = 0, at or below the top of the printed axis"]


@pytest.mark.long
def test_figure_2_has_the_known_norms_and_the_period_one_half():
    record = fig2.reproduce()
    assert not record.failures
    # P_2 at t = 0 is diag(2, 0, 2) P'_2: its norm from the printed entries by hand.
    entries = [-0.3067, 0.0349, 0.1107, 0.1375, 0.1083, 0.1018]
    assert math.isclose(record["|P_2| at t = 0"].ours, 2 * math.hypot(*entries), rel_tol=1e-12)


@pytest.mark.long
def test_figure_3_stays_in_its_hemisphere_and_meets():
    record = fig3.reproduce()
    run = record.results["run"]
    assert bool((run.tensor[..., 0] > 0).all())
    assert record.results["diameter"][-1] < 1e-9
    assert np.diff(record.results["lyapunov"]).max() <= 1e-12
    assert record.results["lyapunov"][-1] > 1e-6
    assert not record.failures


@pytest.mark.slow
def test_figure_4_ends_at_the_top_eigenvector_after_the_second_function_rose():
    record = fig4.reproduce()
    assert not record.failures
    deficits = record.results["deficits"]
    assert deficits[-1].max() < 1.8e-3
    assert abs(deficits[0, 1] - 0.1) < 1e-12
    assert abs(deficits[:, 1].max() - 0.171) < 5e-4


@pytest.mark.long
def test_figure_5_begins_nearly_orthogonal_and_ends_in_consensus_at_a_small_size():
    record = fig5.reproduce(systems=4, tokens=8, dim=60, seed=2)
    assert not record.failures
    assert record.results["consensus"].shape == (4, 301)


def test_figure_5_gates_are_those_of_the_text():
    flow = fig5.paper_flow(7, seed=1)
    frequency, phase = flow.attention.qk.frequency, flow.attention.qk.phase
    assert 0 < float(frequency.min()) < float(frequency.max()) < 1
    assert 1 < float(phase.max()) < 2 * math.pi
    ratio = flow.attention.qk.matrix_at(1.3) / flow.attention.qk.matrix
    expected = (2 * torch.sin(frequency * 1.3 + phase)).abs().unsqueeze(-1)
    torch.testing.assert_close(ratio, expected.expand_as(ratio))


@pytest.mark.slow
def test_figure_5_passes_its_thresholds_when_it_should_with_50_tokens_of_500_features():
    record = fig5.reproduce(systems=6)
    assert {quantity.name for quantity in record.failures} <= {
        "largest rise of any E at all",
        "largest rise of the median E between saved times",
    }
    assert all(quantity.reason for quantity in record.failures)
    assert abs(record["mean E at t = 0"].ours - 0.945) < 0.005


@pytest.mark.long
def test_wendels_sum_ends_one_term_later_than_printed():
    record = wendel.reproduce(draws=200)
    failed = {quantity.name for quantity in record.failures}
    assert all("as printed" in name for name in failed)
    assert len(failed) >= 6
    # 10 tokens in dim 3: 0.0898 and 0.0195 differ by less than four standard deviations of 200 draws, 0.081.
    open_ = {quantity.name for quantity in record.of_verdict("cannot tell")}
    assert open_ == {"10 tokens in dim 3, sum to n", "10 tokens in dim 3, sum to n − 1 as printed"}
    assert record["3 tokens in dim 3, sum to n"].ours == 1.0
