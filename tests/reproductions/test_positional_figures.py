"""What `positional` prints or claims for its figures, and what comes out instead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reproductions.positional import fig1, fig2a, fig2b, fig5, fig9a, fig9b, remark_3_2, remark_3_5, remark_4_2
from reproductions.positional.flows import AS_DEFINED, UNTRANSPOSED, contraction_flow
from reproductions.positional.outcomes import Outcome, outcomes, positive_definite


def test_both_readings_differ_by_a_transpose_and_the_first_is_the_papers_definition():
    contraction, qk = fig1.PRINTED.matrix("RIGHT_A"), fig1.PRINTED.matrix("RIGHT_W")
    first, second = (contraction_flow(contraction, qk, reading) for reading in (AS_DEFINED, UNTRANSPOSED))
    value = first.attention.ov.matrix_at(0.0)[0].mT
    torch.testing.assert_close(qk @ torch.linalg.inv(value.mT), contraction)  # A = W (V^T)^(−1)
    torch.testing.assert_close(second.attention.ov.matrix_at(0.0)[0], value)


@pytest.mark.slow
def test_figure_1_shrinks_on_the_right_only_with_the_transpose():
    record = fig1.reproduce()
    assert [quantity.name for quantity in record.failures] == [f"right, {AS_DEFINED}: distances that grow"]
    assert record.failures[0].ours == 3
    apart = fig1.distances(record.results["runs"][UNTRANSPOSED][1])
    assert np.diff(apart, axis=0).max() < 1e-6


@pytest.mark.slow
def test_figure_2a_decays_like_the_inverse_square_root():
    record = fig2a.reproduce(systems=3)
    names = {quantity.name for quantity in record.failures}
    # Medians of three starts scatter more than those of many: only what does not depend on the draw must hold.
    assert all(name.startswith("median") for name in names)
    assert abs(record["log–log slope from t = 1e3 to 1e4"].ours + 0.5) < 0.05


@pytest.mark.long
def test_figure_2b_stays_in_the_shrinking_hull_and_runs_four_times_slower_than_printed():
    record = fig2b.reproduce()
    assert [quantity.name for quantity in record.failures] == ["V for A = 2W, as a multiple of I"]
    assert record.failures[0].ours == pytest.approx(0.5, abs=1e-12)


def test_outside_is_the_distance_beyond_the_hull():
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    assert fig2b.outside(torch.tensor([[0.5, 1.25]], dtype=torch.float64), square) == pytest.approx(0.25)
    assert fig2b.outside(torch.tensor([[0.5, 0.9]], dtype=torch.float64), square) == pytest.approx(-0.1)


@pytest.mark.slow
def test_figure_5_shrinks_without_and_grows_with_rotary_positions():
    assert not fig5.reproduce().failures


@pytest.mark.slow
def test_figure_9a_converges_for_one_start_and_leaves_for_the_others():
    record = fig9a.reproduce(draws=2)
    assert all(quantity.source == "reading" for quantity in record.failures)
    assert record["converging start: largest norm, t = 1e4 over t = 0"].ok
    assert record["turning start: largest norm at t = 100"].ok
    # The start that is 0.287 in size at t = 150 is above 10 at t = 400.
    assert record["turning start: largest norm, t = 400 over 150"].ours == pytest.approx(37.0951, abs=1e-3)
    assert record["growing start: largest norm, t = 400 over 0"].ours > 10


@pytest.mark.long
def test_figure_9b_grows_at_the_rate_of_its_value_matrix():
    assert not fig9b.reproduce().failures


def test_remark_3_2_fails_in_half_of_all_states_unless_a_is_symmetric():
    record = remark_3_2.reproduce(draws=600)
    assert [quantity.source for quantity in record.failures] == ["paper"]
    assert 0.4 < record["A not symmetric: that share"].ours < 0.62
    assert float(record.results["rates"]["A symmetric"].min()) > -1e-9


@pytest.mark.slow
def test_outcomes_of_flows_whose_end_is_known():
    identity = torch.eye(2, dtype=torch.float64)
    # V = −I, W = I: to zero (Theorem 3.4). V = I, W = 0: differences stay and the mean grows like e^t.
    # V = diag(−1, 0), W = 0: all stop where the mean of the first coordinate is 0.
    qk = torch.stack([identity, 0 * identity, 0 * identity])
    ov = torch.stack([-identity, identity, torch.diag(torch.tensor([-1.0, 0.0], dtype=torch.float64))])
    words = outcomes(qk, ov, tokens=3, seed=1)
    assert words.tolist() == [Outcome.ZERO, Outcome.DIVERGED, Outcome.EQUILIBRIUM]


def test_drawn_matrices_are_definite_and_not_symmetric():
    drawn = positive_definite(50, 3, torch.Generator().manual_seed(1))
    assert float(torch.linalg.eigvalsh((drawn + drawn.mT) / 2).min()) > 0
    assert float((drawn - drawn.mT).abs().amax(dim=(-2, -1)).min()) > 1e-3


@pytest.mark.slow
def test_remark_3_5_the_spectrum_of_v_decides_and_not_the_papers_condition():
    record = remark_3_5.reproduce(draws=100)
    assert all(quantity.source == "paper" for quantity in record.failures)
    assert sum("conjecture" in quantity.name for quantity in record.failures) == 2


@pytest.mark.slow
def test_remark_3_5_no_flow_under_the_condition_diverges_where_all_eigenvalues_of_v_are_negative():
    drawn = remark_3_5.draw_flows(condition=True, draws=12, dim=2, seed=7)
    assert drawn.share(Outcome.DIVERGED, drawn.largest < 0) == 0.0
    assert drawn.share(Outcome.ZERO) > 0.7


def _words(zero: int, infinity: int, undecided: int) -> np.ndarray:
    kinds = [Outcome.ZERO, Outcome.DIVERGED, Outcome.UNDECIDED]
    return np.repeat([str(kind) for kind in kinds], [zero, infinity, undecided])


def test_remark_4_2_counts_the_undecided_both_ways():
    rows = {row.name: row for row in remark_4_2.compared(2, _words(80, 20, 0), _words(30, 30, 40))}
    assert rows["dim 2, with rotary term: undecided, of all"].ours == pytest.approx(0.4)
    assert rows["dim 2, with rotary term: to infinity, of all, at least"].ours == pytest.approx(0.3)
    assert rows["dim 2, with rotary term: to infinity, of all, at most"].ours == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("before", "after", "verdict", "least"),
    [
        ((50, 50, 0), (10, 90, 0), "yes", 0.4),
        ((50, 50, 0), (20, 40, 40), "cannot tell", -0.1),
        ((10, 90, 0), (70, 10, 20), "no", -0.8),
        # A rise of 2 % in 100 draws is within two standard errors.
        ((50, 50, 0), (48, 52, 0), "cannot tell", 0.02),
        # The undecided of the flows before count against the rise as well.
        ((30, 20, 50), (20, 80, 0), "cannot tell", 0.1),
    ],
)
def test_remark_4_2_says_more_only_where_no_undecided_draw_can_change_it(before, after, verdict, least):
    order = np.random.default_rng(3).permutation(100)
    row = remark_4_2.change("rise", Outcome.DIVERGED, _words(*before), _words(*after)[order])
    assert (row.verdict, round(row.ours, 12)) == (verdict, least)


@pytest.mark.slow
def test_remark_4_2_fewer_flows_go_to_zero_with_rotary_positions():
    record = remark_4_2.reproduce(draws=40)
    assert not record.failures
    assert record["dim 4, fewer go to zero: least fall of the share"].ours > -0.2
