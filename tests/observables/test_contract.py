"""What every observable has in common: types, dtypes, batches, invariances, refusals."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from tokendynamics import observables
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError

QK = np.array([[0.5, 0.2, 0.0], [0.1, -0.3, 0.4], [0.0, 0.2, 0.1]])
METRIC = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 3.0]])
DIRECTION = np.array([0.6, 0.0, 0.8])
POINTS = np.array([[0.3, -0.2, 0.1], [1.0, 0.0, -0.5]])

DIRECTIONAL = {
    "angles": partial(observables.pairwise_distances, geometry="sphere"),
    "largest_angle": partial(observables.diameter, geometry="sphere"),
    "consensus": observables.consensus,
    "consensus_last": partial(observables.consensus, reference=-1),
    "consensus_signed": partial(observables.consensus, signed=True),
    "mean_pair_cosine": observables.mean_pair_cosine,
    "effective_rank_unit_rows": partial(observables.effective_rank, unit_rows=True),
    "stable_rank_unit_rows": partial(observables.stable_rank, unit_rows=True),
    "clusters": partial(observables.clusters, angle=0.7),
    "hemisphere_margin": lambda x: observables.hemisphere(x).margin,
}
RELATIVE = {
    "effective_rank": observables.effective_rank,
    "effective_rank_amplitudes": partial(observables.effective_rank, exponent=1),
    "stable_rank": observables.stable_rank,
    "rank_one_distance": observables.rank_one_distance,
}
ABSOLUTE = {
    "norms": observables.norms,
    "distances": observables.pairwise_distances,
    "diameter": observables.diameter,
}
PER_TOKEN = {
    "interaction_sums": partial(observables.interaction_sums, qk=QK),
    "log_interaction_sums": partial(observables.log_interaction_sums, qk=QK),
    "quadratic_form": partial(observables.quadratic_form, QK),
    "quadratic_form_rate": lambda x: observables.quadratic_form_rate(QK, x, x),
    "quadratic_form_rate_bound": partial(observables.quadratic_form_rate_bound, qk=QK),
    "coordinate_along": partial(observables.coordinate_along, direction=DIRECTION),
    "direction_deficit": partial(observables.direction_deficit, direction=DIRECTION),
    "direction_deficit_in_a_metric": partial(observables.direction_deficit, direction=DIRECTION, metric=METRIC),
}
PER_PAIR = {
    "pair_quadratic_form": partial(observables.pair_quadratic_form, QK),
    "pair_quadratic_form_rate": lambda x: observables.pair_quadratic_form_rate(QK, x, x),
}
ORDERED = {
    "agreement_with_first": observables.agreement_with_first,
    "causal_interaction_sums": partial(observables.interaction_sums, qk=QK, causal=True),
}
GEOMETRIC = {**DIRECTIONAL, **RELATIVE, **ABSOLUTE, "agreement_with_first": observables.agreement_with_first}
ALL = {
    **GEOMETRIC,
    **PER_TOKEN,
    **PER_PAIR,
    **ORDERED,
    "potential": partial(observables.potential, qk=QK),
    "log_potential": partial(observables.log_potential, qk=QK),
    "interaction_energy": partial(observables.interaction_energy, qk=QK),
    "log_interaction_energy": partial(observables.log_interaction_energy, qk=QK),
    "log_interaction": lambda x: observables.log_interaction(POINTS, x, QK),
    "log_interaction_gradient": lambda x: observables.log_interaction_gradient(POINTS, x, QK),
    "riemannian_metric": lambda x: observables.riemannian_metric(x, x, x, QK),
    "hemisphere_function": partial(observables.hemisphere_function, direction=DIRECTION),
    "hemisphere_function_in_a_metric": partial(observables.hemisphere_function, direction=DIRECTION, metric=METRIC),
    "hemisphere_direction": lambda x: observables.hemisphere(x).direction,
}


def states(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape) + np.array([1.5, 0.0, 0.0])


def parametrize(functions):
    return pytest.mark.parametrize("function", list(functions.values()), ids=list(functions))


@parametrize(ALL)
def test_what_comes_out_has_the_type_that_came_in(function):
    x = states(6, 3)
    array, tensor, numbers = function(x), function(torch.as_tensor(x)), function(x.tolist())
    assert isinstance(array, np.ndarray)
    assert isinstance(tensor, torch.Tensor)
    assert isinstance(numbers, list | float | int)
    np.testing.assert_array_equal(tensor.numpy(), array)
    np.testing.assert_array_equal(np.asarray(numbers), array)


@parametrize({name: function for name, function in ALL.items() if name != "clusters"})
def test_the_dtype_is_kept_and_single_precision_is_measured_in_double(function):
    x = states(6, 3).astype(np.float32)
    single = function(x)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, function(x.astype(np.float64)).astype(np.float32))


@parametrize(ALL)
def test_a_batch_equals_its_systems_one_by_one(function):
    x = states(2, 3, 5, 3)
    looped = np.stack([np.stack([function(system) for system in row]) for row in x])
    np.testing.assert_allclose(function(x), looped, rtol=1e-12, atol=1e-14)


@parametrize(ALL)
def test_an_empty_batch_gives_an_empty_result(function):
    result = function(states(0, 5, 3))
    assert result.shape[0] == 0


@parametrize(GEOMETRIC)
def test_rotations_of_space_change_nothing(function):
    rotation = np.linalg.qr(states(3, 3, seed=1))[0]
    x = states(6, 3)
    np.testing.assert_allclose(function(x @ rotation), function(x), rtol=1e-11, atol=1e-14)


@parametrize({**RELATIVE, **DIRECTIONAL})
def test_one_factor_for_all_tokens_changes_nothing(function):
    x = states(6, 3)
    np.testing.assert_allclose(function(37.0 * x), function(x), rtol=1e-11, atol=1e-14)


@parametrize(DIRECTIONAL)
def test_a_positive_factor_per_token_changes_nothing(function):
    x = states(6, 3)
    factors = np.array([1.0, 2e5, 3e-7, 4.0, 1e-100, 1e200])[:, None]
    np.testing.assert_allclose(function(factors * x), function(x), rtol=1e-11, atol=1e-14)


@parametrize(ABSOLUTE)
def test_lengths_scale_with_the_states(function):
    x = states(6, 3)
    np.testing.assert_allclose(function(8.0 * x), 8.0 * function(x), rtol=1e-15)


SYMMETRIC = {
    name: function
    for name, function in ALL.items()
    if not name.startswith("consensus")
    and name not in ("angles", "distances", "norms")
    and name not in {**PER_TOKEN, **PER_PAIR, **ORDERED}
}


@parametrize(SYMMETRIC)
def test_the_order_of_the_tokens_does_not_matter(function):
    x = states(6, 3)
    np.testing.assert_allclose(function(x[[4, 2, 0, 5, 1, 3]]), function(x), rtol=1e-11, atol=1e-14)


def test_per_token_results_follow_the_order_of_the_tokens():
    x, order = states(6, 3), [4, 2, 0, 5, 1, 3]
    for name in ("norms", *PER_TOKEN):
        np.testing.assert_allclose(ALL[name](x[order]), ALL[name](x)[order], rtol=1e-13, atol=1e-15)
    for name in ("distances", "angles", *PER_PAIR):
        np.testing.assert_allclose(ALL[name](x[order]), ALL[name](x)[order][:, order], rtol=1e-12, atol=1e-15)
    values = [observables.consensus(x[order], reference) for reference in range(6)]
    np.testing.assert_allclose(values, [observables.consensus(x, reference) for reference in order], rtol=1e-12)


@parametrize(DIRECTIONAL)
def test_a_zero_token_has_no_direction_and_is_named(function):
    x = states(2, 4, 3)
    x[1, 2] = 0
    message = r"x: expected tokens with a direction, got a zero vector at token 2 of system \(1,\); remove or mask"
    with pytest.raises(ArgumentValueError, match=message):
        function(x)
    with pytest.raises(ArgumentValueError, match="got a zero vector at token 2; remove"):
        function(x[1])


@parametrize(DIRECTIONAL)
@pytest.mark.parametrize("size", [1e-300, 1e-310, 1e300])
def test_a_token_next_to_zero_or_infinity_still_has_a_direction(function, size):
    x = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.25], [0.25, 0.0, 1.0]])
    tiny = x * np.array([1.0, size, 1.0])[:, None]
    np.testing.assert_allclose(function(tiny), function(x), rtol=1e-11, atol=1e-12)


@parametrize(ALL)
def test_states_that_cannot_be_used_are_refused(function):
    with pytest.raises(ArgumentValueError, match=r"x: expected at least 2 axes \(…, token, dim\), got shape \(3,\)"):
        function(np.ones(3))
    with pytest.raises(ArgumentValueError, match=r"x: expected at least one token .* got shape \(0, 3\)"):
        function(np.ones((0, 3)))
    with pytest.raises(ArgumentValueError, match=r"x: expected finite numbers, got nan at index \(1, 2\)"):
        function(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, np.nan]]))
    with pytest.raises(ArgumentTypeError, match="x: expected real floating-point numbers, got dtype int64"):
        function(np.ones((2, 3), dtype=np.int64))
    with pytest.raises(ArgumentTypeError, match="x: expected real floating-point numbers, got dtype complex128"):
        function(np.ones((2, 3), dtype=complex))
