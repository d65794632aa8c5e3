"""Every stored functional of states and matrices, at every time of every reference solution."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tokendynamics import observables

FOLDER = Path(__file__).parents[1] / "golden" / "dynamics"
CASES = sorted(path for path in FOLDER.glob("*.json") if "functionals" in json.loads(path.read_text()))
SCALARS = json.loads((FOLDER / "misc_scalars.json").read_text())

BEYOND_OBSERVABLES = {"rhs", "alpha", "attention"}
"""Velocities and weights belong to a flow; its tests compare them."""


def qk_at(specification, time):
    if specification["kind"] == "const":
        return np.array(specification["P"])
    amplitude, frequency, phase = (np.array(specification[key]) for key in ("amp", "omega", "phase"))
    factors = amplitude * np.sin(frequency * time + phase)
    return (np.abs(factors) if specification["abs"] else factors)[:, None] * np.array(specification["Pp"])


def constrained(case, k):
    """Return ours, by stored name, for a flow on the sphere or an ellipsoid."""
    y, v, metric = np.array(case["Y"][k]), np.array(case["v"]), np.array(case["W"])
    velocity = np.array(case["functionals"][k]["rhs"])
    heads = [qk_at(specification, case["times"][k]) for specification in case["P_specs"]]
    normalization = "paper" if case["sqrt_factor"] else "plain"
    agreement = observables.agreement_with_first(y)
    return {
        "Z": [observables.interaction_sums(y, qk, normalization=normalization, causal=case["causal"]) for qk in heads],
        "V10": [observables.potential(y, qk) for qk in heads],
        "metric9_rhs_rhs_fullZ_head0": observables.riemannian_metric(
            velocity, velocity, y, heads[0], normalization=normalization
        ),
        "E25": observables.consensus(y),
        "diam": observables.diameter(y),
        "lyap13_vTy": observables.hemisphere_function(y, v),
        "lyap13_vTWy": observables.hemisphere_function(y, v, metric),
        "a_i": agreement,
        "lyap17_a": observables.first_token_function(agreement),
        "V61_1_minus_vTy": observables.direction_deficit(y, v),
        "constraint_defect": np.abs(observables.quadratic_form(metric, y) - 1).max(),
    }


def free(case, k):
    """Return ours, by stored name, for the free flow without and with positions."""
    x = np.array(case["X"][k])
    z = x + np.array(case.get("p", 0.0))
    qk, a, velocity = np.array(case["W"]), np.array(case["A"]), np.array(case["functionals"][k]["rhs"])
    return {
        "norms": observables.norms(x),
        "pair_dist": observables.pairwise_distances(x),
        "qA_pairs": observables.pair_quadratic_form(a, z),
        "qA": observables.quadratic_form(a, z),
        "qW": observables.quadratic_form(qk, z),
        "h_B4": observables.interaction_energy(z, qk),
        "log_h_B4": observables.log_interaction_energy(z, qk),
        "f3": observables.log_interaction(z, z, qk),
        "gradf3": observables.log_interaction_gradient(z, z, qk),
        "ddt_qA": observables.quadratic_form_rate(a, z, velocity),
        "prop33_bound": observables.quadratic_form_rate_bound(z, qk),
        "n_dot_x": observables.coordinate_along(z, case["n"]) if "n" in case else None,
    }


def test_the_reference_solutions_are_there():
    assert len(CASES) >= 18


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_stored_functional_is_reproduced_at_every_time(path):
    case = json.loads(path.read_text())
    compute = constrained if case["paper"] == "A" else free
    for k, stored in enumerate(case["functionals"]):
        result = compute(case, k)
        unknown = set(stored) - set(result) - BEYOND_OBSERVABLES
        assert not unknown, unknown
        for name in set(stored) - BEYOND_OBSERVABLES:
            message = f"{name} at time {case['times'][k]}"
            np.testing.assert_allclose(result[name], stored[name], rtol=1e-11, atol=1e-12, err_msg=message)


@pytest.mark.parametrize("path", [path for path in CASES if '"gradf3"' in path.read_text()], ids=lambda path: path.stem)
def test_the_gradient_of_the_interaction_is_a_times_the_stored_velocity(path):
    case = json.loads(path.read_text())
    for k, stored in enumerate(case["functionals"]):
        z = np.array(case["X"][k]) + np.array(case.get("p", 0.0))
        result = observables.log_interaction_gradient(z, z, case["W"])
        np.testing.assert_allclose(result, np.array(stored["rhs"]) @ np.array(case["A"]).T, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("entry", SCALARS["wendel"], ids=lambda entry: f"dim{entry['n'] + 1}-tokens{entry['ell']}")
def test_wendels_probability_is_exactly_the_stored_one(entry):
    tokens, dim = entry["ell"], entry["n"] + 1
    assert observables.wendel_probability(tokens, dim) == entry["corrected"]
    assert observables.wendel_probability(tokens, dim, formula="printed") == entry["printed"]


def test_the_first_token_function_has_its_stored_values_and_never_dips_below_zero():
    for a, stored in SCALARS["lyap17"].items():
        result = observables.first_token_function(float(a))
        assert result == pytest.approx(stored, rel=1e-14, abs=1e-16)
        assert result >= 0


def test_the_potential_at_consensus_has_its_stored_values():
    for tokens, stored in SCALARS["V_consensus_per_l"].items():
        x = np.repeat([[0.6, 0.0, 0.8]], int(tokens), axis=0)
        assert observables.potential(x, np.eye(3)) == pytest.approx(stored, rel=1e-14)
