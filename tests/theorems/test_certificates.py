"""How outcomes are decided: monotone violations fail, limits not reached are undecided, the worst system counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.dynamics.events import Consensus
from tokendynamics.numerics.arguments import ArrayLike
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.spaces import Sphere
from tokendynamics.theorems import STATEMENTS, certify, check
from tokendynamics.theorems._conditions import combine, never_above, never_rises, tends_to_zero, undecided

EYE = torch.eye(2, dtype=torch.float64)


def run(start: ArrayLike, horizon: float = 30.0, saved: int = 31, ov: torch.Tensor = EYE) -> Trajectory:
    times = np.linspace(0.0, horizon, saved)
    return simulate(Flow(Attention(EYE, ov), Sphere()), start, times)


@pytest.fixture(scope="module")
def three_times() -> Trajectory:
    """Two systems of two tokens at t = 0, 1, 2."""
    return run(torch.tensor([[[1.0, 0.0], [0.6, 0.8]], [[1.0, 0.0], [0.0, 1.0]]]).double(), 2.0, 3)


def test_a_short_horizon_leaves_the_limit_undecided_with_the_value_reached() -> None:
    start = [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]
    (short,) = certify(run(start, 0.5, 6), statements=["asymptotic-4.1"])
    assert short.outcome == "undecided"
    assert short.first_failure is None
    half = float(torch.linalg.vector_norm(run(start, 0.5, 6).tensor[-1, 0] - run(start, 0.5, 6).tensor[-1, 2])) / 2
    assert short.margin == pytest.approx(1e-3 - half)
    (long,) = certify(run(start), statements=["asymptotic-4.1"])
    assert long.outcome == "holds"


def test_a_monotone_quantity_that_rises_fails_with_the_first_time() -> None:
    # ov = −I pushes tokens apart: the deficit of the deepest half space rises from the start.
    (certificate,) = certify(run([[1.0, 0.0], [0.8, 0.6]], 4.0, 5, ov=-EYE), statements=["asymptotic-4.1"])
    assert certificate.outcome == "fails"
    assert certificate.first_failure == 1.0
    assert certificate.margin < -0.1
    failed = [one.text for one in certificate.conditions if (one.outcome == "fails").any()]
    assert any("max_i (1 − v·y_i)" in text for text in failed)
    assert any("at the proved rate" in text for text in failed)


def test_statements_that_do_not_apply_run_only_on_request() -> None:
    trajectory = run([[1.0, 0.0], [0.8, 0.6]], 4.0, 5, ov=-EYE)
    assert "asymptotic-4.1" not in [entry.statement for entry in certify(trajectory)]
    names = [statement.name for statement in STATEMENTS if statement.name.startswith("asymptotic")]
    assert [entry.statement for entry in certify(trajectory, statements=names)] == names


def test_an_unknown_statement_is_named_with_the_known_ones() -> None:
    with pytest.raises(ArgumentValueError, match=r"statements: .*asymptotic-4\.1.*'asymptotic-4\.2'"):
        certify(run([[1.0, 0.0], [0.8, 0.6]], 1.0, 2), statements=["asymptotic-4.2"])


def test_starts_that_cannot_be_checked_are_refused(unchecked: None) -> None:
    flow = Flow(Attention(EYE, EYE), Sphere())
    with pytest.raises(ArgumentValueError, match=r"x0: .*\(…, token, 2\).*\(1, 3\)"):
        check(flow, [[1.0, 0.0, 0.0]])
    with pytest.raises(ArgumentValueError, match="x0: expected finite numbers"):
        check(flow, [[1.0, float("nan")]])
    with pytest.raises(ArgumentTypeError, match="x0"):
        check(flow, np.array([[1, 0]]))


def test_rises_are_measured_from_the_lowest_value_so_far(three_times: Trajectory) -> None:
    result = never_rises(np.array([[3.0, 1.0, 1.5], [3.0, 2.0, 1.0]]), three_times, 0.1, "f")
    assert result.outcome.tolist() == ["fails", "holds"]
    assert result.margin.tolist() == pytest.approx([-0.4, 0.1])
    assert result.first_failure[0] == 2.0
    assert np.isnan(result.first_failure[1])


def test_a_nan_is_never_taken_for_agreement(three_times: Trajectory) -> None:
    result = never_above(np.array([[0.0, np.nan, 0.0], [0.0, 0.0, 0.0]]), three_times, 0.1, "f")
    assert result.outcome.tolist() == ["fails", "holds"]
    assert result.first_failure[0] == 1.0
    assert tends_to_zero(np.array([[1.0, np.nan], [1.0, 0.0]]), 0.1, "f").outcome.tolist() == ["undecided", "holds"]


def test_the_worst_outcome_decides_then_the_narrowest_margin(three_times: Trajectory) -> None:
    wide = never_above(np.full((2, 3), -1.0), three_times, 0.1, "wide")
    narrow = never_above(np.full((2, 3), 0.09), three_times, 0.1, "narrow")
    far = tends_to_zero(np.full((2, 3), 5.0), 0.1, "far")
    broken = never_above(np.array([[0.0, 0.0, 0.7], [0.0, 0.0, 0.0]]), three_times, 0.1, "broken")
    result = combine("name", (wide, narrow))
    assert (result.outcome, result.text.partition(":")[0]) == ("holds", "narrow")
    assert result.margin == pytest.approx(0.01)
    result = combine("name", (wide, far, narrow))
    assert (result.outcome, result.margin) == ("undecided", pytest.approx(-4.9))
    result = combine("name", (far, wide, broken))
    assert (result.outcome, result.first_failure) == ("fails", 2.0)
    assert result.margin == pytest.approx(-0.6)
    assert result.outcomes.tolist() == ["fails", "undecided"]
    assert "1 of 2 systems" in result.text
    nowhere = undecided((2,), "none", np.array([False, True]))
    assert combine("name", (wide, nowhere)).outcomes.tolist() == ["holds", "undecided"]


def test_a_batch_is_judged_by_its_worst_system_and_tells_every_one() -> None:
    near, far = [[1.0, 0.0], [0.999, 0.04]], [[1.0, 0.0], [-0.99, 0.1]]
    batch = run(torch.tensor([near, far]).double(), 3.0, 4)
    (both,) = certify(batch, statements=["asymptotic-4.1"])
    (alone,) = certify(run(torch.tensor(far).double(), 3.0, 4), statements=["asymptotic-4.1"])
    assert both.outcome == alone.outcome == "undecided"
    assert both.margins[1] == pytest.approx(float(alone.margins), abs=1e-6)
    assert both.outcomes.shape == (2,)


def test_a_start_in_no_half_space_leaves_theorem_4_1_undecided() -> None:
    triangle = [[1.0, 0.0], [-0.6, 0.8], [-0.6, -0.8]]
    (certificate,) = certify(run(triangle, 60.0, 3), statements=["asymptotic-4.1"])
    assert certificate.outcome == "undecided"


def test_single_precision_runs_are_not_failed_for_their_rounding() -> None:
    flow = Flow(Attention(EYE, EYE, causal=True), Sphere())
    start = Sphere().sample(5, 2, (20,), seed=0).float()
    trajectory = simulate(flow, start, np.linspace(0.0, 200.0, 41), rtol=1e-5, atol=1e-6, dtype=torch.float32)
    outcomes = {entry.statement: entry.outcome for entry in certify(trajectory)}
    assert outcomes["asymptotic-5.1"] == "holds"


def test_a_certificate_says_how_much_of_the_horizon_it_saw() -> None:
    start = torch.tensor([[[1.0, 0.0], [0.6, 0.8]], [[1.0, 0.0], [1.0, 0.0]]]).double()
    stopped = simulate(Flow(Attention(EYE, EYE), Sphere()), start, np.linspace(0, 30, 4), events=(Consensus(0.5),))
    assert stopped.end_times.max() < 30
    (certificate,) = certify(stopped, statements=["asymptotic-4.1"])
    assert certificate.text.endswith("; over [0, 0] of 30 (2 of 2 systems ended early)")
    (whole,) = certify(run(start), statements=["asymptotic-4.1"])
    assert "over [" not in whole.text


def test_a_certificate_is_printed_as_one_line() -> None:
    (computed,) = certify(run([[1.0, 0.0], [0.6, 0.8]]), statements=["asymptotic-4.1"])
    margin = f"margin {computed.margin:.3g}, tolerance {computed.tolerance:.3g}"
    assert str(computed) == f"asymptotic-4.1: holds ({margin}): {computed.text}"
