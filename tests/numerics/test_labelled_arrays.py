"""xarray and pandas in: arrays out, never lists, and the dtype that came."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from tokendynamics import observables, spectra
from tokendynamics.attention import Attention, Sinusoidal
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.spaces import Ellipsoid, Sphere

RNG = np.random.default_rng(3)
STATES, MATRIX = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 3))
LABELS = {
    "xarray": lambda array: xr.DataArray(array, dims=[f"axis_{i}" for i in range(array.ndim)]),
    "pandas": lambda array: pd.DataFrame(array) if array.ndim == 2 else pd.Series(array),
    "index": lambda array: pd.DataFrame(array) if array.ndim == 2 else pd.Index(array),
}


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_a_simulation_of_labelled_arrays_is_that_of_arrays(label):
    times = np.array([0.0, 0.5, 1.0])
    plain = simulate(Flow(Attention(MATRIX, -MATRIX), Sphere()), STATES, times)
    flow = Flow(Attention(label(MATRIX), label(-MATRIX)), Sphere())
    for moments in (label(times), label(np.array([0, 1, 2]))):
        run = simulate(flow, label(STATES), moments)
        assert isinstance(run.states, np.ndarray)
        if moments.dtype == float:
            np.testing.assert_array_equal(run.states, plain.states)
    single = simulate(flow, label(STATES.astype(np.float32)), times)
    assert single.states.dtype == np.float32


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_what_is_made_of_labelled_states_is_an_array(label):
    states, flow = label(STATES), Flow(Attention(label(MATRIX), MATRIX), Sphere())
    results = {
        "velocity": flow.velocity(states),
        "step": flow.step(states),
        "logits": flow.attention.logits(states),
        "pattern": flow.attention.pattern(states),
        "projection": Sphere().project(states),
        "norms": observables.norms(states),
        "distances": observables.pairwise_distances(states),
        "rank": observables.effective_rank(states),
        "potential": observables.potential(states, label(MATRIX)),
        "form": observables.quadratic_form(label(MATRIX), states),
        "consensus": observables.consensus(states),
    }
    for name, result in results.items():
        assert isinstance(result, np.ndarray), name
    np.testing.assert_array_equal(results["velocity"], flow.velocity(STATES))
    np.testing.assert_array_equal(results["consensus"], observables.consensus(STATES))
    assert spectra.inertia(label(MATRIX)) == spectra.inertia(MATRIX)
    metric = MATRIX @ MATRIX.T + np.eye(3)
    np.testing.assert_array_equal(Ellipsoid(label(metric)).project(STATES), Ellipsoid(metric).project(STATES))
    gates = Sinusoidal(label(MATRIX), label(np.ones(3)), 1.0, label(np.zeros(3)))
    np.testing.assert_array_equal(gates.matrix_at(1.0), Sinusoidal(MATRIX, np.ones(3), 1.0, np.zeros(3)).matrix_at(1.0))


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_labelled_integers_and_words_are_refused_as_those_of_arrays(label):
    for wrong in (np.ones((4, 3), dtype=int), np.full((4, 3), "a"), np.full((4, 3), 1j)):
        with pytest.raises(ArgumentTypeError):
            observables.norms(label(wrong))


def test_a_trajectory_reads_its_own_dataset():
    flow = Flow(Attention(MATRIX, MATRIX), Sphere())
    run = simulate(flow, STATES, [0.0, 1.0])
    last = run.dataset["states"].isel(system=0, time=-1)
    on = simulate(flow, last, run.dataset["time"] + 1.0)
    assert isinstance(on.states, np.ndarray)
    np.testing.assert_allclose(on.states[0], run.states[-1], atol=1e-15)


@pytest.mark.parametrize("dims", [("feature", "token"), ("token", "feature", "time"), ("token", "time", "feature")])
def test_states_whose_names_say_another_order_of_axes_are_refused(dims: tuple[str, ...]) -> None:
    states = xr.DataArray(RNG.normal(size=(3,) * len(dims)), dims=dims)  # any order fits the shape
    ordered = states.transpose(..., "token", "feature")
    flow = Flow(Attention(MATRIX, MATRIX), Sphere())
    for measure in (observables.consensus, observables.norms, observables.effective_rank, flow.velocity):
        with pytest.raises(ArgumentValueError, match="expected the last axes to be token and feature"):
            measure(states)
        np.testing.assert_array_equal(measure(ordered), measure(ordered.values))
    with pytest.raises(ArgumentValueError, match="x0: expected the last axes to be token and feature"):
        simulate(flow, states, [0.0, 1.0])
