"""Which engine `auto` takes, what it says of it, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics.attention._positions import Positions
from tokendynamics.numerics import extras as extras
from tokendynamics.numerics.errors import ArgumentValueError

RNG = np.random.default_rng(1)
TOKENS = RNG.normal(size=(4, 3))
SPHERE = td.Flow(td.Attention(np.eye(3), np.eye(3)), td.Sphere())
SHRINKING = td.Flow(td.Attention(np.eye(3), -np.eye(3)), td.Free())


@pytest.mark.long
def test_short_horizons_go_to_the_batched_engine_and_long_ones_to_the_stiff_one():
    assert td.simulate(SPHERE, TOKENS, [0.0, 1.0]).engine == "batched"
    assert td.simulate(SPHERE, TOKENS, [0.0, 1e6]).engine == "stiff"
    assert td.simulate(SPHERE, np.stack([TOKENS] * 65), [0.0, 10.0]).engine == "batched"
    assert td.simulate(SPHERE, np.stack([TOKENS] * 64), [0.0, 1e6], max_steps=3).engine == "stiff"
    assert td.simulate(SPHERE, TOKENS, [0.0, 1.0], step=0.1).engine == "fixed"


@pytest.mark.parametrize(
    ("systems", "horizon", "engine"),
    [(1, 300.0, "batched"), (1, 1000.0, "stiff"), (8, 3000.0, "batched"), (8, 2e4, "stiff"), (64, 2e4, "batched")],
)
def test_the_more_systems_the_longer_is_a_long_horizon(systems: int, horizon: float, engine: str):
    """The stiff engine runs one after the other: where it was slower as measured, it is not taken."""
    assert td.simulate(SPHERE, np.stack([TOKENS] * systems), [0.0, horizon], max_steps=3).engine == engine


def test_a_sharp_softmax_is_stiff_however_short_the_horizon():
    run = td.simulate(SHRINKING, 1e3 * TOKENS, [0.0, 1.0])
    assert run.engine == "stiff"
    assert str(run.status) == "reached the horizon"
    assert int(run.counts["right_hand_sides"]) < 2000
    # The largest token sees itself alone until the end: it shrinks like e^(−t) to the precision of its softmax.
    largest = np.argmax(np.linalg.norm(TOKENS, axis=1))
    np.testing.assert_allclose(run.states[1, largest], 1e3 * TOKENS[largest] * np.exp(-1.0), rtol=1e-5)


def test_single_precision_at_rest_costs_nothing_over_long_horizons():
    run = td.simulate(SPHERE, TOKENS.astype(np.float32), [0.0, 1e6])
    assert run.engine == "stiff"
    assert run.states.dtype == np.float32
    assert int(run.counts["right_hand_sides"]) < 2000


def test_a_schedule_with_many_jumps_is_not_given_to_a_method_that_starts_anew_at_each():
    jumping = td.Flow(td.Attention(td.Periodic(RNG.normal(size=(2, 3, 3)), 1.0), np.eye(3)), td.Sphere())
    run = td.simulate(jumping, TOKENS, [0.0, 3000.0], max_steps=50)
    assert run.engine == "batched"


def test_gradients_are_refused_where_they_would_be_lost_and_pass_elsewhere():
    start = torch.tensor(TOKENS, requires_grad=True)
    with pytest.raises(ArgumentValueError, match=r"expected .fixed. .* where gradients are wanted, got .stiff."):
        td.simulate(SPHERE, start, [0.0, 1.0], engine="stiff")
    matrix = torch.eye(3, dtype=torch.float64, requires_grad=True)
    flow = td.Flow(td.Attention(matrix, torch.eye(3, dtype=torch.float64)), td.Sphere())
    with pytest.raises(ArgumentValueError, match="where gradients are wanted"):
        td.simulate(flow, TOKENS, [0.0, 1.0], engine="stiff")
    assert td.simulate(flow, torch.tensor(TOKENS), [0.0, 1e5], max_steps=3).engine == "batched"
    layered = td.simulate(SPHERE, start, [0, 3], engine="layers").states
    (slope,) = torch.autograd.grad(layered[-1].pow(3).sum(), start)
    shifted, h = torch.zeros_like(start), 1e-6
    shifted[1, 2] = h
    ends = [
        td.simulate(SPHERE, start.detach() + s * shifted, [0, 3], engine="layers").states[-1].pow(3).sum()
        for s in (1, -1)
    ]
    assert float(slope[1, 2]) == pytest.approx(float(ends[0] - ends[1]) / (2 * h), rel=1e-7)


@pytest.mark.parametrize("options", [{"step": 0.01}, {"engine": "layers"}])
def test_every_engine_keeps_to_the_budget(options):
    run = td.simulate(SPHERE, TOKENS, [0, 1, 10], max_steps=3, **options)
    assert str(run.status) == "step budget spent"
    assert int(run.counts["accepted"]) == 3
    assert run.reached.tolist()[-1] is False


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize("options", [{"step": 1.0, "method": "rk4"}, {"engine": "layers"}, {"rtol": 1e-3}])
def test_growth_without_end_is_divergence_in_every_engine(options):
    growing = td.Flow(td.Attention(np.eye(1), np.eye(1)), td.Free())
    run = td.simulate(growing, [[1.0]], [0, 200, 400, 1200], **options)
    assert str(run.status) == "diverged"
    assert np.isfinite(run.states).all()
    assert np.abs(run.states).max() > 1e86
    # Per step: e, the four terms of its series, or 1 + 1.
    grows = {"batched": 1.0, "stiff": 1.0, "fixed": np.log(65 / 24), "layers": np.log(2.0)}[run.engine]
    assert float(run.end_times) == pytest.approx(100 * np.log(10) / grows, abs=1.0)


def test_whole_numbers_as_times_are_fine():
    for times in (np.arange(3), torch.arange(3), range(3), [0, 1, 2]):
        run = td.simulate(SPHERE, TOKENS, times)
        np.testing.assert_array_equal(run.times, [0.0, 1.0, 2.0])


@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff", "layers", "auto"])
def test_no_systems_give_no_results(engine, tmp_path):
    run = td.simulate(SPHERE, np.zeros((0, 4, 3)), [0, 1], engine=engine)
    assert run.states.shape == (0, 2, 4, 3)
    assert run.status.shape == (0,)
    run.save(tmp_path / "none.zarr")
    assert td.Trajectory.open(tmp_path / "none.zarr").states.shape == (0, 2, 4, 3)


@pytest.mark.parametrize("engine", ["batched", "stiff"])
def test_a_function_of_time_that_turns_nan_ends_the_run_and_what_was_reached_is_kept(engine):
    flow = td.Flow(td.Attention(lambda t: np.eye(3) * (np.nan if t > 0.5 else 1.0), np.eye(3)), td.Sphere())
    run = td.simulate(flow, TOKENS, [0.0, 0.25, 2.0], engine=engine)
    assert str(run.status) == "not finite"
    assert run.reached.tolist() == [True, True, False]
    assert np.isfinite(run.states).all()
    np.testing.assert_allclose(run.states[1], td.simulate(SPHERE, TOKENS, [0.0, 0.25]).states[1], atol=1e-8)


def many(systems: int, dim: int = 3) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(systems, 2, dim))


@pytest.mark.long
def test_very_many_small_systems_are_compiled_where_that_is_installed(monkeypatch):
    assert td.simulate(SPHERE, many(70_000), [0.0, 0.1], rtol=1e-6).engine == "compiled"
    assert td.simulate(SPHERE, many(69_000), [0.0, 0.1], rtol=1e-6).engine == "batched"
    assert td.simulate(SPHERE, many(70_000), [0.0, 0.1], rtol=1e-6, dtype="float32").engine == "batched"
    assert td.simulate(SPHERE, many(70_000), [0.0, 0.1], step=0.1).engine == "fixed"
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert td.simulate(SPHERE, many(70_000), [0.0, 0.1], rtol=1e-6).engine == "batched"
    with pytest.raises(ArgumentValueError, match=r"engine: expected the packages for .* got no numba; .*\[fast\]"):
        td.simulate(SPHERE, TOKENS, [0.0, 1.0], engine="compiled")


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("systems", "tokens"), [(9_616, 10), (1_628, 32)])
def test_fewer_systems_are_compiled_where_each_is_more_work(systems: int, tokens: int) -> None:
    start = np.random.default_rng(2).normal(size=(systems, tokens, 3))
    assert td.simulate(SPHERE, start, [0.0, 0.01], rtol=1e-6).engine == "compiled"
    assert td.simulate(SPHERE, start[1:], [0.0, 0.01], rtol=1e-6).engine == "batched"


class Box(td.spaces.Space):
    name = "box"
    bounded = False

    def project(self, x):
        return x

    def tangent(self, y, vectors):
        return vectors


class OwnPositions(Positions):
    pass


class Sooner(td.events.Consensus):
    pass


@pytest.mark.parametrize(
    ("flow", "events", "reason"),
    [
        (td.Flow(td.Attention(np.eye(3), np.eye(3)), Box()), (), "a space of your own"),
        (td.Flow(td.Attention(np.eye(3), np.eye(3), positions=OwnPositions()), td.Sphere()), (), "positions of your"),
        (td.Flow(td.Attention(lambda t: np.eye(3) * t, np.eye(3)), td.Sphere()), (), "a function of time of your own"),
        (SPHERE, (Sooner(1e-3),), "events of your own"),
        (td.Flow(td.Attention(np.eye(17), np.eye(17)), td.Sphere()), (), "more than 16 features"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_engine_that_runs_it(flow, events, reason, unchecked):
    start = np.random.default_rng(3).normal(size=(2, flow.dim))
    with pytest.raises(ArgumentValueError, match=f"engine: expected 'batched', .* for .*{reason}.*, got 'compiled'"):
        td.simulate(flow, start, [0.0, 1.0], engine="compiled", events=events)
    assert td.simulate(flow, start, [0.0, 1e-3], engine="batched", events=events).engine == "batched"


@pytest.mark.long
def test_the_budget_of_steps_is_one_for_all_the_pieces_of_a_schedule():
    pieces = td.Periodic(np.random.default_rng(4).normal(size=(2, 3, 3)), 1.0)
    flow = td.Flow(td.Attention(pieces, np.eye(3)), td.Sphere())
    run_result = td.simulate(flow, many(3), [0.0, 20.0], engine="compiled", max_steps=40)
    assert set(run_result.status.tolist()) == {"step budget spent"}
    np.testing.assert_array_equal(run_result.counts["accepted"] + run_result.counts["rejected"], 40)
    assert (run_result.end_times > 1.0).all()


def test_a_compiled_run_records_what_compiled_it():
    computed = td.simulate(SPHERE, many(2), [0.0, 0.1], engine="compiled", rtol=1e-6).parameters
    assert {"numba", "llvmlite", "torch"} <= set(computed)
    assert "numba" not in td.simulate(SPHERE, many(2), [0.0, 0.1], engine="batched").parameters


SMOOTH = td.Flow(td.Attention(td.Sinusoidal(np.eye(3), np.ones(3), np.ones(3), np.zeros(3)), np.eye(3)), td.Sphere())
FREE = td.Flow(td.Attention(np.eye(3), np.eye(3)), td.Free())


@pytest.mark.long
@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("flow", "options", "method", "why"),
    [
        (SPHERE, {}, "dop853", "rtol = 1e-08 is at most 1e-07"),
        (SPHERE, {"rtol": 1e-7}, "dop853", "rtol = 1e-07 is at most 1e-07"),
        (SPHERE, {"rtol": 1.1e-7}, "dopri5", "rtol = 1.1e-07 is above 1e-07"),
        (SMOOTH, {"rtol": 1e-8}, "dopri5", "rtol = 1e-08 is above 1e-09"),
        (SMOOTH, {"rtol": 1e-9}, "dop853", "for matrices that depend on time"),
        (SPHERE, {"dtype": "float32"}, "dopri5", "states are not float64"),
        (SPHERE, {"max_step": 0.1}, "dopri5", "the length of steps is bounded"),
        (FREE, {"frame": "rescaled"}, "dopri5", "the length of steps is bounded"),
        (SPHERE, {"engine": "compiled", "rtol": 1e-8}, "dop853", "rtol = 1e-08 is at most 1e-08"),
        (SPHERE, {"engine": "compiled", "rtol": 1e-7}, "dopri5", "rtol = 1e-07 is above 1e-08"),
        pytest.param(
            SMOOTH,
            {"engine": "compiled", "rtol": 1e-9},
            "dopri5",
            "rtol = 1e-09 is above 1e-10",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_method_follows_the_tolerance_and_the_notes_say_why(flow, options, method, why):
    run = td.simulate(flow, TOKENS, [0.0, 1.0], **options)
    assert run.parameters["method"] == method
    (note,) = [note for note in run.notes if note.startswith("method ")]
    assert note.startswith(f"method {method} (order {8 if method == 'dop853' else 5}): ")
    assert why in note


@pytest.mark.parametrize(
    "options", [{"method": "dopri5"}, {"method": "dop853"}, {"engine": "stiff"}, {"step": 0.1}, {"engine": "layers"}]
)
def test_a_method_that_is_given_or_not_chosen_by_tolerance_has_no_note(options):
    run = td.simulate(SPHERE, TOKENS, [0.0, 1.0], **options)
    assert not any(note.startswith("method ") for note in run.notes)
    assert run.parameters["method"] == options.get("method", "dopri5")


@pytest.mark.long
def test_the_method_that_is_taken_is_no_less_accurate_and_needs_less_work_than_the_other():
    attention = td.Attention(RNG.normal(size=(3, 3)), RNG.normal(size=(3, 3)))
    flow, start, times = td.Flow(attention, td.Sphere()), RNG.normal(size=(8, 6, 3)), [0.0, 8.0]
    exact = td.simulate(flow, start, times, rtol=1e-13, atol=1e-15, method="dopri5", engine="batched").states
    for rtol in (1e-7, 1e-8, 1e-10):
        chosen, other = (
            td.simulate(flow, start, times, rtol=rtol, atol=rtol / 100, method=method, engine="batched")
            for method in (None, "dopri5")
        )
        errors = [np.linalg.norm(run.states - exact) for run in (chosen, other)]
        assert errors[0] <= errors[1]
        assert chosen.counts["right_hand_sides"].sum() < other.counts["right_hand_sides"].sum()
