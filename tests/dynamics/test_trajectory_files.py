"""A saved trajectory comes back whole: states, how it ended, and the flow itself."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
import xarray as xr

from dynamics.products import PERIOD
from tokendynamics.attention import AbsolutePositions, Attention, FactoredMatrix, Periodic, RotaryPositions, Sinusoidal
from tokendynamics.dynamics import Flow, Trajectory, events, simulate
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spaces import Ellipsoid, Free, Sphere


def normal(*shape: int, seed: int) -> torch.Tensor:
    return 0.5 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


ROOT = normal(4, 4, seed=1)
SPACES = {"free": Free(), "sphere": Sphere(), "ellipsoid": Ellipsoid(ROOT @ ROOT.mT + torch.eye(4))}
SCHEDULES = {
    "constant": normal(2, 4, 4, seed=2),
    "factored": FactoredMatrix(normal(2, 4, 2, seed=3), normal(2, 4, 2, seed=4)),
    "sinusoidal": Sinusoidal(normal(2, 4, 4, seed=5), normal(2, 4, seed=6), 2.0, [0.1, 0.2, 0.3, 0.4]),
    "absolute": Sinusoidal(normal(2, 4, 4, seed=5), 1.5, normal(4, seed=6), 0.3, absolute=True),
    "periodic": Periodic(normal(3, 2, 4, 4, seed=7), PERIOD),
    "periodic_factored": Periodic(FactoredMatrix(normal(3, 2, 4, 1, seed=8), normal(3, 2, 4, 1, seed=9)), PERIOD),
}
POSITIONS = {
    "none": None,
    "given": AbsolutePositions(normal(5, 4, seed=10)),
    "sinusoidal": AbsolutePositions.sinusoidal(5, 4),
    "rotary": RotaryPositions(normal(2, 4, 2, seed=11), normal(2, 4, 2, seed=12), base=30.0, scale=0.6),
    "rotary_periodic": RotaryPositions(
        Periodic(normal(3, 2, 4, 2, seed=13), PERIOD), Periodic(normal(3, 2, 4, 2, seed=14), PERIOD)
    ),
}
FLOWS = list(itertools.product(SPACES, SCHEDULES, POSITIONS))


def same(opened: Trajectory, saved: Trajectory) -> None:
    np.testing.assert_array_equal(opened.states, np.asarray(saved.states))
    np.testing.assert_array_equal(opened.tensor, saved.tensor)
    for name in ("times", "status", "reached", "end_times"):
        computed, wanted = getattr(opened, name), getattr(saved, name)
        np.testing.assert_array_equal(computed, wanted)
        assert computed.shape == wanted.shape
        assert computed.dtype.kind == wanted.dtype.kind
    assert (opened.engine, opened.notes, opened.parameters) == (saved.engine, saved.notes, saved.parameters)
    assert set(opened.counts) == set(saved.counts)
    for name, count in saved.counts.items():
        np.testing.assert_array_equal(opened.counts[name], count)


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("number", range(0, len(FLOWS), 4))
def test_states_and_flow_come_back_whatever_the_flow(number, tmp_path, unchecked):
    space, schedule, positions = FLOWS[number]
    other = list(SCHEDULES)[(number // 3) % len(SCHEDULES)]
    attention = Attention(
        SCHEDULES[schedule],
        SCHEDULES[other],
        causal=number % 8 == 0,
        weights=("linear", "softmax", "exponential")[number % 3],
        offset=0.5 * (number % 3 == 2),
        normalization=(None, "plain", "paper")[number % 5 % 3],
        positions=POSITIONS[positions],
    )
    flow, start = Flow(attention, SPACES[space]), normal(5, 4, seed=20)
    run = simulate(flow, start, [0.0, 0.1, 0.3], rtol=1e-4)
    suffix = "nc" if number % 8 else "zarr"
    opened = Trajectory.open(run.save(tmp_path / f"run.{suffix}"))
    same(opened, run)
    assert opened.flow is not None
    for name in ("projection", "normalization", "weight_factor", "heads", "dim"):
        assert getattr(opened.flow, name) == getattr(flow, name)
    assert opened.flow.space.name == flow.space.name
    for t in (0.0, 0.4, 1.7):
        torch.testing.assert_close(opened.flow.velocity(start, t), flow.velocity(start, t), rtol=0, atol=1e-14)


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["zarr", "nc"])
def test_remark_5_1_batches_and_matrices_of_each_system_come_back(suffix, tmp_path):
    ov = torch.eye(4).double() + 0.3 * normal(2, 3, 1, 4, 4, seed=30)
    flow = Flow(Attention(normal(2, 3, 1, 4, 4, seed=31), ov), Ellipsoid((ov.mT @ ov).squeeze(-3)), "remark_5_1")
    start = normal(2, 3, 5, 4, seed=32)
    run = simulate(flow, start, [0.0, 0.5, 20.0], events=[events.Consensus(0.5)])
    assert len(set(run.end_times.ravel().tolist())) > 1
    opened = Trajectory.open(run.save(tmp_path / f"run.{suffix}"))
    same(opened, run)
    assert opened.flow is not None
    torch.testing.assert_close(opened.flow.velocity(start), flow.velocity(start), rtol=0, atol=1e-14)


@pytest.mark.every_value_once
@pytest.mark.parametrize("suffix", ["zarr", "nc"])
@pytest.mark.parametrize("where", ["qk", "ov", "rotary"])
def test_a_function_of_time_does_not_come_back_and_the_states_do(suffix, where, tmp_path):
    def gate(t: float) -> torch.Tensor:
        return (1 + t) * torch.eye(2).double()

    eye = torch.eye(2).double()
    positions = RotaryPositions(gate, eye) if where == "rotary" else None
    attention = Attention(gate if where == "qk" else eye, gate if where == "ov" else eye, positions=positions)
    run = simulate(Flow(attention, Sphere()), [[1.0, 0.0], [0.6, 0.8]], [0.0, 1.0])
    opened = Trajectory.open(run.save(tmp_path / f"run.{suffix}"))
    same(opened, run)
    assert opened.flow is None
    # And once more: what was opened can be saved.
    again = Trajectory.open(opened.save(tmp_path / f"again.{suffix}"))
    same(again, run)


def test_single_precision_stays_single_precision(tmp_path):
    flow = Flow(Attention(np.eye(2), np.eye(2)), Sphere())
    run = simulate(flow, np.array([[1.0, 0.0], [0.6, 0.8]], dtype=np.float32), [0.0, 1.0])
    opened = Trajectory.open(run.save(tmp_path / "run.zarr"))
    assert opened.states.dtype == np.float32
    same(opened, run)


def test_a_trajectory_with_gradients_can_be_saved(tmp_path):
    start = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    run = simulate(Flow(Attention(np.eye(2), np.eye(2)), Sphere()), start, [0.0, 1.0], step=0.5)
    opened = Trajectory.open(run.save(tmp_path / "run.zarr"))
    np.testing.assert_array_equal(opened.states, run.states.detach())


def test_the_dataset_names_its_axes_and_holds_observables_and_parameters(tmp_path):
    flow = Flow(Attention(np.eye(3), np.eye(3), causal=True), Sphere())
    start = np.stack([Sphere().sample(4, 3, seed=seed).numpy() for seed in (0, 1)])
    run = simulate(flow, start, [0.0, 1.0, 2.0], rtol=1e-6)
    data = run.dataset
    assert data["states"].dims == ("system", "time", "token", "feature")
    assert data["states"].shape == (2, 3, 4, 3)
    np.testing.assert_array_equal(data["time"], run.times)
    np.testing.assert_allclose(data["norm"], 1.0, rtol=1e-14)
    apart = np.linalg.norm(run.states[:, :, :, None] - run.states[:, :, None], axis=-1).max(axis=(-1, -2))
    np.testing.assert_allclose(data["diameter"], apart, rtol=1e-12)
    agreement = np.abs(np.einsum("std,stid->sti", run.states[:, :, 0], run.states)).mean(axis=-1)
    np.testing.assert_allclose(data["consensus"], 1 - agreement, atol=1e-14)
    parameters = json.loads(data.attrs["parameters"])
    assert parameters["rtol"] == 1e-6
    assert {"torch", "numpy", "scipy", "tokendynamics", "python"} <= set(parameters)
    assert xr.load_dataset(run.save(tmp_path / "a.nc"), engine="h5netcdf").attrs["engine"] == "batched"


def test_saving_replaces_a_store_and_nothing_else(tmp_path):
    run = simulate(Flow(Attention(np.eye(2), np.eye(2)), Sphere()), [[1.0, 0.0], [0.6, 0.8]], [0.0, 1.0])
    longer = simulate(Flow(Attention(np.eye(2), np.eye(2)), Sphere()), [[1.0, 0.0], [0.6, 0.8]], [0.0, 1.0, 2.0])
    for name in ("run.zarr", "run.nc"):
        run.save(tmp_path / name)
        same(Trajectory.open(longer.save(tmp_path / name)), longer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.nc", "run.zarr"]
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "kept.txt").write_text("mine")
    with pytest.raises(ArgumentValueError, match="path: expected a new name"):
        run.save(folder)
    assert (folder / "kept.txt").read_text() == "mine"


@pytest.mark.long
@pytest.mark.parametrize("name", ["run.zarr", "run.nc"])
def test_something_else_is_replaced_only_on_request(tmp_path, name):
    run = simulate(Flow(Attention(np.eye(2), np.eye(2)), Sphere()), [[1.0, 0.0], [0.6, 0.8]], [0.0, 1.0])
    path = tmp_path / name
    other = xr.Dataset({"a": ("x", [1.0])})
    if name == "run.nc":
        other.to_netcdf(path, engine="h5netcdf")
    else:
        other.to_zarr(path, zarr_format=2, consolidated=False)
    before = {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    with pytest.raises(ArgumentValueError, match=f"path: expected a new name.*{name}; overwrite=True"):
        run.save(path)
    assert {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()} == before
    same(Trajectory.open(run.save(path, overwrite=True)), run)
    if name == "run.zarr":
        for foreign in ("thesis.txt", "states/thesis.txt", "deep/er/thesis.txt", "0.0"):
            (path / foreign).parent.mkdir(parents=True, exist_ok=True)
            (path / foreign).write_text("mine")
            with pytest.raises(ArgumentValueError, match=f"path: expected a new name.*run.zarr/{foreign}; overwrite"):
                run.save(path)
            assert (path / foreign).read_text() == "mine"
            same(Trajectory.open(run.save(path, overwrite=True)), run)
            assert not (path / foreign).exists()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    path = tmp_path / "other.zarr"
    path.write_text("a file")
    with pytest.raises(ArgumentValueError, match="path: expected a new name"):
        run.save(path)
    same(Trajectory.open(run.save(path, overwrite=True)), run)


def test_what_is_no_trajectory_is_refused(tmp_path):
    with pytest.raises(ArgumentValueError, match="path: expected a saved trajectory, got nothing at"):
        Trajectory.open(tmp_path / "absent.zarr")
    text = tmp_path / "text.nc"
    text.write_text("no file of numbers")
    with pytest.raises(ArgumentValueError, match="path: expected a saved trajectory"):
        Trajectory.open(text)
    xr.Dataset({"a": ("x", [1.0])}).to_zarr(tmp_path / "other.zarr", zarr_format=2, consolidated=False)
    with pytest.raises(
        ArgumentValueError, match=r"path: expected a saved trajectory, .*variables: expected states, time and a flow"
    ):
        Trajectory.open(tmp_path / "other.zarr")
