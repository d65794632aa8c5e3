"""States as small as the tolerances: right to rtol in the space's own metric, and a warning in free space."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokendynamics.attention import AbsolutePositions, Attention
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.spaces import Ellipsoid, Free, Sphere

pytestmark = pytest.mark.usefixtures("unchecked")

RNG = np.random.default_rng(21)
QK, OV, START = RNG.normal(size=(2, 3, 3)), RNG.normal(size=(2, 3, 3)), RNG.normal(size=(3, 4, 3))
EYE, TIMES = np.eye(3), np.array([0.0, 1.0, 4.0])


def in_coordinates(root):
    """The flow on the sphere as it is seen after ``x = root^(−1) z``: the same one, on the ellipsoid root^T root."""
    back = np.linalg.inv(root)
    attention = Attention(root.T @ QK @ root, back @ OV @ root)
    return Flow(attention, Ellipsoid(root.T @ root)), START @ back.T


SEMI_AXES = {"round": [1e-8, 1e-8, 1e-8], "large": [1e8, 1e8, 1e8], "long": [1e-8, 1.0, 1e3], "turned": None}


def root_of(name):
    if SEMI_AXES[name] is None:
        turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
        # Not more: M itself, turned, keeps the short axis only to its condition, 1e5 here, times rounding.
        return np.diag([30.0, 1.0, 0.1]) @ turn
    return np.diag(1 / np.array(SEMI_AXES[name]))


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
@pytest.mark.parametrize("name", SEMI_AXES)
def test_an_ellipsoid_is_the_sphere_in_other_coordinates(engine, name):
    root = root_of(name)
    flow, start = in_coordinates(root)
    here = simulate(Flow(Attention(QK, OV), Sphere()), START, TIMES, engine=engine, rtol=1e-7, atol=1e-9)
    there = simulate(flow, start, TIMES, engine=engine, rtol=1e-7, atol=1e-9)
    # LSODA weighs each coordinate by itself and stands only in units of the axes.
    tolerance = 1e-7 if engine == "batched" else 1e-4
    np.testing.assert_allclose(there.states @ root.T, here.states, rtol=0, atol=tolerance)
    assert not any(note.startswith("warning") for note in there.notes)
    if engine == "batched":
        np.testing.assert_allclose(there.counts["accepted"], here.counts["accepted"], rtol=0.02, atol=1)


def decay(size, **options):
    return simulate(Flow(Attention(EYE, -EYE), Free()), [[[size, 0.0, 0.0]], [[1.0, 0.0, 0.0]]], [0.0, 1.0], **options)


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
@pytest.mark.parametrize(("size", "atol"), [(1e-12, 1e-10), (1e-9, 1e-10), (1e-200, 1e-180), (1e-3, 1e-4)])
def test_states_near_atol_are_named_with_what_to_do(engine, size, atol, tmp_path):
    run = decay(size, engine=engine, atol=atol)
    (warning,) = [note for note in run.notes if note.startswith("warning: ")]
    assert "1 of 2 systems" in warning
    assert f"atol = {atol:.3g}" in warning
    assert warning in Trajectory.open(run.save(tmp_path / "run.zarr")).notes
    advised = float(warning.split("take an atol of ")[1].split()[0])
    better = decay(size, engine=engine, atol=advised)
    assert not any(note.startswith("warning: ") for note in better.notes)
    np.testing.assert_allclose(np.asarray(better.states)[0, -1, 0, 0], size * np.exp(-1), rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff", "fixed", "layers"])
def test_states_well_above_atol_or_without_an_atol_are_not_warned_of(engine):
    size = 1e-6 if engine in ("batched", "compiled", "stiff") else 1e-12
    run = decay(size, engine=engine, **({"step": 0.1} if engine == "fixed" else {}))
    assert not any(note.startswith("warning: ") for note in run.notes)


def test_a_state_that_becomes_small_on_the_way_is_warned_of_and_zero_is_not():
    flow = Flow(Attention(EYE, -EYE), Free())
    run = simulate(flow, [[1.0, 0.0, 0.0]], [0.0, 10.0, 20.0])
    assert any(note.startswith("warning: 1 of 1 systems") for note in run.notes)
    still = simulate(Flow(Attention(EYE, 0 * EYE), Free()), [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [0.0, 1.0])
    assert not any(note.startswith("warning") for note in still.notes)
    placed = Attention(EYE, -EYE, positions=AbsolutePositions(EYE))
    shifted = simulate(Flow(placed, Free()), 1e-12 * np.ones((3, 3)), [0.0, 0.1])
    assert not any(note.startswith("warning") for note in shifted.notes)


def test_gradients_are_not_touched_by_the_warning():
    start = torch.full((1, 3), 1e-12, dtype=torch.float64, requires_grad=True)
    run = simulate(Flow(Attention(EYE, -EYE), Free()), start, [0.0, 1.0], engine="batched")
    assert any(note.startswith("warning") for note in run.notes)
