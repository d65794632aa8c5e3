"""Which engine runs a task follows from the file and from what is installed where the sweep began."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from sweeps.conftest import SMALL, files
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.specification.draws import OfSystems
from tokendynamics.sweeps import Plan, open_store, parse_plan, sweep
from tokendynamics.sweeps._store import own_versions
from tokendynamics.sweeps.systems import running as module
from tokendynamics.sweeps.systems._plan import DrawBlock
from tokendynamics.sweeps.systems.running import first_engine, run_task, simulated

pytest.importorskip("numba")

FREE_CHOICE = SMALL.replace('engine = "batched"\n', "")


def engine_of(text: str, wanted: str) -> str:
    plan = parse_plan(text, "a.toml")
    return simulated(plan.setup(DrawBlock((0, 0), OfSystems("key", 0, 2))), wanted).engine


def task_of(plan: Plan, task: tuple[int, ...], engine: str) -> dict[str, np.ndarray]:
    return run_task(plan.text, plan.name, task, own_versions(), engine)


def test_the_fastest_engine_runs_what_the_file_leaves_open() -> None:
    assert first_engine() == "compiled"
    assert engine_of(FREE_CHOICE, "compiled") == "compiled"
    assert engine_of(FREE_CHOICE, "batched") == "batched"
    assert engine_of(FREE_CHOICE.replace("rtol = 1e-4", "rtol = 1e-4\nengine = 'auto'"), "compiled") == "compiled"


@pytest.mark.parametrize(
    ("old", "new", "engine"),
    [
        ("rtol = 1e-4", "rtol = 1e-4\nengine = 'batched'", "batched"),
        ("rtol = 1e-4", "rtol = 1e-4\nengine = 'stiff'", "stiff"),
        ("rtol = 1e-4", "step = 0.5", "fixed"),
        ("rtol = 1e-4", "rtol = 1e-4\ndtype = 'float32'", "batched"),
        ("dim = 2", "dim = 17", "batched"),  # more features than the loop takes
        ("values = [2, 3]", "values = [300, 3]", "batched"),  # 300 tokens of dim 2: matrix products are faster
    ],
)
def test_another_engine_runs_what_the_file_says_or_the_fastest_cannot(old: str, new: str, engine: str) -> None:
    assert old in FREE_CHOICE
    short = FREE_CHOICE.replace("end = 2.0", "end = 0.5")
    assert engine_of(short.replace(old, new), "compiled") == engine


@pytest.mark.long
def test_a_system_of_the_compiled_engine_does_not_depend_on_its_task(tmp_path: Path) -> None:
    alone, together = (parse_plan(FREE_CHOICE.replace("task = 2", f"task = {n}"), "a.toml") for n in (2, 24))
    (whole,) = [task_of(together, (0, 0, 0), "compiled")]
    for task in np.ndindex(*alone.tasks):
        part, region = task_of(alone, task, "compiled"), alone.region(task)
        for name, values in part.items():
            np.testing.assert_array_equal(values, whole[name][region], err_msg=name)
    slow = task_of(together, (0, 0, 0), "batched")
    assert (whole["outcome"] == slow["outcome"]).all()
    np.testing.assert_allclose(whole["consensus"], slow["consensus"], atol=1e-2)  # rtol 1e-4 over two units of time


def test_the_engine_is_recorded_and_another_one_does_not_go_on(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, store = parse_plan(FREE_CHOICE.replace("task = 2", "task = 12"), "a.toml"), tmp_path / "sweep.zarr"
    outcomes = sweep(plan, store, client)
    assert outcomes.attrs["engine"] == "compiled"
    np.testing.assert_array_equal(outcomes.consensus[0], task_of(plan, (0, 0, 0), "compiled")["consensus"][0])
    before = files(store)
    monkeypatch.setattr(module, "first_engine", lambda: "batched")
    with pytest.raises(
        ArgumentValueError, match=r"the engine 'compiled' with which the store was created, got 'batched'"
    ):
        sweep(plan, store, client, resume=True)
    assert files(store) == before
    monkeypatch.undo()
    sweep(plan, store, client, resume=True)
    assert open_store(store).identical(outcomes)


@pytest.mark.long
def test_an_engine_of_the_file_is_recorded_and_goes_on_whatever_is_installed(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, store = parse_plan(SMALL.replace("task = 2", "task = 12"), "a.toml"), tmp_path / "sweep.zarr"
    outcomes = sweep(plan, store, client)
    assert outcomes.attrs["engine"] == "batched" != first_engine()
    monkeypatch.setattr(module, "first_engine", lambda: "another")
    assert sweep(plan, store, client, resume=True).identical(outcomes)
    assert repr(plan) == "Plan('a.toml': 24 systems over tokens, scale, draw)"
