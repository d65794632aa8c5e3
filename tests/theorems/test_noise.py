"""Statements on flows say nothing of runs with noise, and those on noise nothing of runs without."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.theorems.outcomes import outcomes_of
from tokendynamics.theorems.registry import KNOWN

FLOW = td.Flow(td.Attention(np.eye(3), np.eye(3)), td.Sphere())
START = td.Sphere().sample_hemisphere(4, [1.0, 0.0, 0.0], seed=3)
NOISE = td.Noise(0.4, seed=7)


@cache
def run(noise: td.Noise | None) -> td.Trajectory:
    """Return a run in which tokens meet where there is no noise."""
    return td.simulate(FLOW, START, np.linspace(0.0, 20.0, 5), noise=noise, step=0.1)


def test_no_statement_on_flows_applies_to_a_run_with_noise() -> None:
    quiet = {one.statement for one in td.check(FLOW, START) if one.applies}
    assert "asymptotic-4.1" in quiet
    assert {one.statement for one in td.check(FLOW, START, noise=td.Noise(0.0, seed=0)) if one.applies} <= quiet
    for check in td.check(FLOW, START, noise=NOISE):
        statement = next(one for one in KNOWN if one.name == check.statement)
        if statement.subject != "noise":
            assert not check.applies
            assert check.prediction is None
        if check.statement in quiet and statement.subject != "noise":
            assert check.reasons == ("no noise: noise has the strength 0.4",)


@pytest.mark.long
def test_only_statements_on_noise_are_certified_of_a_run_with_noise() -> None:
    assert "asymptotic-4.1" in {one.statement for one in td.certify(run(None))}
    assert "asymptotic-4.1" in {one.statement for one in td.certify(run(td.Noise(0.0, seed=0)))}
    on_noise = {one.name for one in KNOWN if one.subject == "noise"}
    assert {one.statement for one in td.certify(run(NOISE))} <= on_noise


@pytest.mark.parametrize("name", [one.name for one in KNOWN if one.subject != "noise"])
def test_asked_by_name_a_statement_on_flows_refuses_a_run_with_noise(name: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"a run without noise for {name}, which does not apply: noise"):
        td.certify(run(NOISE), statements=[name])


def test_what_became_of_tokens_is_not_said_of_a_run_with_noise() -> None:
    flow = td.Flow(td.Attention([[1.0]], [[-1.0]]), td.Free())
    quiet = td.simulate(flow, [[1.0]], np.linspace(0.0, 20.0, 5), step=0.1, noise=td.Noise(0.0, seed=0))
    assert outcomes_of(quiet) == "zero"
    noisy = td.simulate(flow, [[1.0]], np.linspace(0.0, 20.0, 5), step=0.1, noise=NOISE)
    with pytest.raises(ArgumentValueError, match="trajectory: expected a run without noise: with it no token comes to"):
        outcomes_of(noisy)
