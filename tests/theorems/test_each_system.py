"""Checks and certificates speak for every system of a batch, and functions of time are looked at over the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics.attention.circuit_at_time import CircuitAtTime, Dense
from tokendynamics.attention.schedules._schedule import Continuous, Schedule, Time
from tokendynamics.theorems import Certificate, Check, certify, check
from tokendynamics.theorems.contraction import contraction_form
from tokendynamics.theorems.result import counted
from tokendynamics.words import number

EYE = np.eye(3)
AROUND = torch.tensor([[1.0, 0, 0], [-1.0, 1, 0], [-1.0, -1, 1], [0, 0, -1.0], [0, 0, 1.0]]).double()
TIMES = np.linspace(0, 30, 31)


def fifty() -> torch.Tensor:
    """Fifty starts, all but number 17 in a half space."""
    start = td.Sphere().sample_hemisphere(5, [1.0, 0.0, 0.0], (50,), seed=1)
    start[17] = AROUND
    return start


def the(result: list, name: str) -> Check | Certificate:
    return next(one for one in result if one.statement == name)


@pytest.mark.long
def test_one_start_outside_the_half_space_does_not_hide_the_theorem_from_the_other_49() -> None:
    flow, start = td.Flow(td.Attention(EYE, EYE), td.Sphere()), fifty()
    result = the(check(flow, start), "asymptotic-4.1")
    assert not result.applies
    assert np.flatnonzero(~result.applies_to).tolist() == [17]
    assert "in the end" in result.prediction.text
    assert len(result.reasons) == 1
    assert result.reasons[0].endswith("(at 1 of 50 systems: 17)")
    assert str(result).startswith(
        "asymptotic-4.1: applies to 49 of 50 systems, not 17: the tokens y_i stay in the open half space"
    )
    certificate = the(certify(td.simulate(flow, start, TIMES)), "asymptotic-4.1")
    assert certificate.outcome == "holds"
    assert certificate.outcomes.shape == (50,)
    assert certificate.outcomes[17] == "does not apply"
    assert (np.delete(certificate.outcomes, 17) == "holds").all()
    assert "(49 of 50 systems, not 17; 1 does not apply)" in certificate.text


@pytest.mark.slow
def test_the_worst_of_the_systems_is_named_with_what_became_of_the_others() -> None:
    flow, start = td.Flow(td.Attention(EYE, EYE), td.Sphere()), fifty()
    run = td.simulate(flow, start, TIMES)
    tampered = run.tensor.clone()
    tampered[7, 20] = start[7]
    certificate = the(certify(dataclasses.replace(run, tensor=tampered)), "asymptotic-4.1")
    assert certificate.outcome == "fails"
    assert certificate.outcomes[7] == "fails"
    assert "(1 of 50 systems: 7; 1 does not apply, 48 holds)" in certificate.text
    assert certificate.first_failure == TIMES[20]


@pytest.mark.long
def test_a_batch_says_what_its_systems_say_one_by_one() -> None:
    rng = np.random.default_rng(0)
    ov = np.stack([-EYE, 0 * EYE, EYE, np.diag([1.0, -1.0, 0.5]), -EYE - 0.1 * np.diag([1.0, 2.0, 3.0])])
    qk = np.stack([EYE, EYE, EYE, rng.normal(size=(3, 3)), EYE])
    start = rng.normal(size=(5, 4, 3))
    for space in (td.Free(), td.Sphere()):
        together = check(td.Flow(td.Attention(qk[:, None], ov[:, None]), space), start)
        for system in range(5):
            alone = check(td.Flow(td.Attention(qk[system], ov[system]), space), start[system])
            for one, other in zip(together, alone, strict=True):
                assert one.applies_to[system] == other.applies, (system, one, other)
                assert other.applies_to.shape == ()


def test_one_singular_value_matrix_does_not_hide_the_certificates_of_the_contracting_ones() -> None:
    ov = np.stack([-EYE, 0 * EYE, -2 * EYE])[:, None]
    run = td.simulate(td.Flow(td.Attention(EYE, ov), td.Free()), 0.3 * fifty()[:3], [0.0, 0.5, 1.0])
    for names in (None, ["positional-3.1", "positional-3.3"]):
        certificates = certify(run, names)
        for name in ("positional-3.1", "positional-3.3"):
            missing = "does not apply" if names is None else "undecided"
            assert the(certificates, name).outcomes.tolist() == ["holds", missing, "holds"]


def test_predictions_are_those_of_the_systems_to_which_they_apply() -> None:
    ov = np.stack([np.diag([0.5, -1.0]), -np.eye(2), np.diag([2.0, -1.0])])[:, None]
    start = np.tile([[1.0, 0.3], [0.5, -0.6]], (3, 1, 1))
    result = the(check(td.Flow(td.Attention(np.eye(2), ov), td.Free()), start), "positional-3.6")
    assert result.applies_to.tolist() == [True, False, True]
    assert "0.5 exp(0.5 t)" in result.prediction.text
    assert "none exists: the largest real part of an eigenvalue is −1 (at 1 of 3 systems: 1)" in result.reasons[0]


def test_systems_are_named_where_they_are_few() -> None:
    marked = np.zeros((3, 4), dtype=bool)
    marked[0, 1] = marked[2, 3] = True
    assert counted(marked) == "2 of 12 systems: (0, 1), (2, 3)"
    assert counted(~marked) == "10 of 12 systems, not (0, 1), (2, 3)"
    assert counted(np.arange(100) % 2 == 0) == "50 of 100 systems: 0, 2, 4, 6, 8, …"
    assert counted(np.zeros(4, dtype=bool)) == "0 of 4 systems"


def test_str_of_a_check_says_what_was_assumed() -> None:
    flow = td.Flow(td.Attention(lambda t: EYE * np.cos(t), EYE), td.Sphere())
    text = str(the(check(flow, EYE, TIMES), "asymptotic-4.1"))
    assert text.startswith("asymptotic-4.1: applies if qk bounded: qk is a function of time")
    assert "whose bound cannot be measured" in text


class Foreign(Continuous):
    """A schedule of a user's own class."""

    constant, bounded, uniformly_continuous = False, None, None
    shape = (1, 3, 3)

    def __init__(self, function: Callable[[float], np.ndarray]) -> None:
        self.function = function

    def matrix_at(self, t: float) -> torch.Tensor:
        return torch.from_numpy(self.function(t))[None]

    def at(self, t: Time) -> CircuitAtTime:
        return Dense(self.matrix_at(float(t)))

    def flattened(self) -> Schedule:
        return self

    def select(self, systems: torch.Tensor) -> Schedule:
        return self

    def to(self, *, dtype: torch.dtype, device: torch.device) -> Schedule:
        return self


@pytest.mark.parametrize(
    "given", [lambda f: f, lambda f: [f], Foreign], ids=["function", "list of functions", "class of one's own"]
)
@pytest.mark.parametrize("switch", [2.5e-3, 5e3])
def test_a_function_of_time_is_looked_at_over_the_horizon_of_the_run(switch: float, given: Any) -> None:
    # The identity before (or after) the run, something else within it: fixed times from 0 to 138 see it or not by luck.
    def ov(t: float) -> np.ndarray:
        return EYE if t < switch else np.diag([2.0, 1.0, 1.0])

    flow = td.Flow(td.Attention(EYE, given(ov), causal=True), td.Sphere())
    brief, long = np.linspace(0, 5e-3, 5), np.linspace(0, 1e4, 5)
    within = the(check(flow, EYE, brief if switch < 1 else long), "asymptotic-5.1")
    assert not within.applies
    assert "ov is a multiple of the identity" in within.reasons[0]
    before = the(check(flow, EYE, [0.0, switch / 2]), "asymptotic-5.1")
    assert before.applies
    assert any(f"in [0, {number(switch / 2)}], other times are unknown" in text for text in before.assumed)


@pytest.mark.parametrize("given", [lambda f: f, lambda f: [f]])
def test_a_run_that_starts_late_is_judged_by_the_circuits_it_had(given: Any) -> None:
    def ov(t: float) -> np.ndarray:
        return -np.eye(2) if t < 5 else np.diag([0.5, -1.0])

    flow = td.Flow(td.Attention(np.eye(2), given(ov)), td.Free())
    x0, times = [[1.0, 0.3], [0.5, -0.6]], np.linspace(6.0, 8.0, 5)
    assert "0.5 exp(0.5 t)" in the(check(flow, x0, times), "positional-3.6").prediction.text
    assert the(certify(td.simulate(flow, x0, times)), "positional-3.6").outcome == "holds"


def test_times_that_are_none_are_refused() -> None:
    flow = td.Flow(td.Attention(EYE, EYE), td.Sphere())
    with pytest.raises(ValueError, match="times: expected increasing times"):
        check(flow, EYE, [1.0, 0.0])


@pytest.mark.parametrize("systems", [2, 3, 4])
@pytest.mark.parametrize("shared", ["qk", "ov"])
def test_the_contraction_form_of_as_many_systems_as_there_are_dims_is_that_of_each(systems: int, shared: str) -> None:
    # torch.linalg.solve takes a shared (dim, dim) beside (dim, dim, dim) for dim vectors.
    rng = np.random.default_rng(1)
    many, one = rng.normal(size=(systems, 1, 3, 3)), rng.normal(size=(1, 3, 3))
    qk, ov = (one, many) if shared == "qk" else (many, one)
    form = contraction_form(td.Flow(td.Attention(qk, ov), td.Free()))
    expected = qk[..., 0, :, :] @ np.linalg.inv(ov[..., 0, :, :])
    assert form.matrix.numpy() == pytest.approx(expected, rel=1e-9, abs=1e-9)
