"""A statement that is not of the papers is checked and certified as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.theorems import STATEMENTS, Condition, Hypothesis, Prediction, Statement

EYE = torch.eye(3, dtype=torch.float64)
START = td.Sphere().sample_hemisphere(5, [1.0, 0.0, 0.0], seed=2)


def positive(flow: td.Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    lowest = float(torch.linalg.eigvalsh(flow.attention.ov.matrix_at(0.0)).min())
    return (Hypothesis("ov is positive", lowest > 0, lowest, 0.0, f"its lowest eigenvalue is {lowest:.3g}"),)


def no_rise(run: td.Trajectory) -> tuple[Condition, ...]:
    rises = np.diff(td.observables.diameter(run.tensor).numpy(), axis=-1)
    worst, tolerance = rises.max(axis=-1), 1e-6
    first = np.where(worst <= tolerance, np.nan, run.times[1 + np.argmax(rises > tolerance, axis=-1)])
    outcome = np.where(worst <= tolerance, "holds", "fails")
    return (Condition("the diameter does not rise", outcome, np.asarray(tolerance - worst), tolerance, first),)


OWN = Statement(
    name="no rise",
    title="tokens of a half space draw together",
    equations="",
    structure=lambda flow: (Hypothesis("one head", flow.heads == 1, None, 0.0, f"it has {flow.heads}"),),
    hypotheses=positive,
    predict=lambda flow, start: Prediction("the diameter does not rise", limit="none"),
    conditions=no_rise,
)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_that_holds_for_a_positive_value_map_fails_for_a_negative_one(sign: float) -> None:
    flow = td.Flow(td.Attention(EYE, sign * EYE), td.Sphere())
    computed, known = td.check(flow, START.tolist(), statements=[OWN, "asymptotic-4.1"])
    assert (computed.statement, known.statement) == ("no rise", "asymptotic-4.1")
    assert computed.applies == (sign > 0)
    (certificate,) = td.certify(td.simulate(flow, START, np.linspace(0.0, 5.0, 11)), [OWN])
    assert certificate.outcome == ("holds" if sign > 0 else "fails")
    if sign < 0:
        assert certificate.first_failure == 0.5  # the start leaves it at once, and a tighter run as well
        assert "so does a run with rtol" in certificate.text


def test_its_text_names_a_paper_only_where_it_is_in_one() -> None:
    assert str(OWN) == "no rise: tokens of a half space draw together"
    assert str(replace(OWN, name=STATEMENTS[0].name)).endswith(str(STATEMENTS[0].paper))


def test_what_is_no_statement_is_refused() -> None:
    flow = td.Flow(td.Attention(EYE, EYE), td.Sphere())
    with pytest.raises(ArgumentValueError, match=r"statements: expected names among asymptotic-3.1.*got 'no rise'"):
        td.check(flow, START, statements=["no rise"])
    with pytest.raises(ArgumentTypeError, match=r"statements\[0\]: expected a str or Statement"):
        td.check(flow, START, statements=[3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="statements: expected a list"):
        td.check(flow, START, statements="asymptotic-4.1")


def test_a_run_from_a_file_without_its_flow_says_what_no_file_keeps(tmp_path: object) -> None:
    flow = td.Flow(td.Attention(lambda t: EYE, EYE), td.Sphere())
    path = f"{tmp_path}/run.zarr"
    td.simulate(flow, START, [0.0, 1.0]).save(path)
    with pytest.raises(ArgumentValueError, match="keeps no function of time, space or positions of your own"):
        td.certify(td.Trajectory.open(path))
