"""What cannot be checked is named, and what can be is never an exception."""

from __future__ import annotations

import numpy as np
import pytest

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.spaces import Space

SPHERE = td.Flow(td.Attention(np.eye(3), np.eye(3)), td.Sphere())


@pytest.mark.usefixtures("unchecked")
def test_something_that_is_no_flow_is_refused():
    with pytest.raises(ArgumentTypeError, match="flow: expected a Flow, got 3"):
        td.check(3, np.ones((2, 3)))


def test_a_start_that_does_not_fit_is_refused_as_simulate_refuses_it():
    per_system = td.Flow(td.Attention(np.random.default_rng(0).normal(size=(2, 1, 3, 3)), np.eye(3)), td.Sphere())
    for verb in (td.check, lambda flow, x0: td.simulate(flow, x0, [0, 1])):
        with pytest.raises(ArgumentValueError, match=r"x0: expected leading axes \(2,\), those of the matrices"):
            verb(per_system, np.ones((5, 4, 3)))
        with pytest.raises(
            ArgumentValueError, match="x0: expected tokens that are not zero, got a zero vector at token 0"
        ):
            verb(SPHERE, np.zeros((4, 3)))
    with pytest.raises(ArgumentValueError, match="x0: expected at least one system"):
        td.check(SPHERE, np.zeros((0, 4, 3)))


def test_tokens_at_rest_at_zero_in_free_space_are_judged_like_any_others():
    flow = td.Flow(td.Attention(np.eye(3), -np.eye(3)), td.Free())
    names = {entry.statement for entry in td.check(flow, np.zeros((3, 3))) if entry.applies}
    assert "positional-3.4" in names
    run = td.simulate(flow, np.zeros((3, 3)), [0.0, 1.0, 100.0])
    assert {entry.outcome for entry in td.certify(run)} <= {"holds", "undecided"}


def test_a_circuit_that_varies_is_judged_for_that_and_not_for_its_signs_at_one_moment():
    matrix = np.diag([1.0, 2.0, 3.0])
    flow = td.Flow(td.Attention(td.Sinusoidal(matrix, 1.0, 0.5, 0.0), np.eye(3)), td.Ellipsoid(matrix))
    result = next(one for one in td.check(flow, np.eye(3)) if one.statement == "asymptotic-3.1")
    assert [reason.split(":")[0] for reason in result.reasons] == ["qk constant in time"]


@pytest.mark.long
def test_a_certificate_says_when_rounding_carried_a_token_off_the_antipode():
    angles = np.array([0.0, 2.0, 3.7852751016621813])  # token 2 drags the third to the antipode of the first
    start = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    flow = td.Flow(td.Attention(np.eye(2), np.eye(2), causal=True), td.Sphere())
    run = td.simulate(flow, start, np.linspace(0, 200, 401), rtol=1e-10, atol=1e-12)
    (computed,) = td.certify(run, ["asymptotic-5.1"])
    assert any("antipode of token 1, which the exact flow may never leave" in one.text for one in computed.conditions)


@pytest.mark.parametrize(("size", "space"), [(1e300, td.Free()), (1.7e308, td.Sphere()), (1.7e308, td.Free())])
def test_matrices_beyond_the_range_are_refused(size: float, space: Space) -> None:
    flow = td.Flow(td.Attention(size * np.eye(3), 1e-300 * np.eye(3)), space)
    with pytest.raises(ArgumentValueError, match="flow: expected matrices whose sums and products are finite"):
        td.check(flow, np.eye(3))
