"""Sweeps with noise: its law, whose noise is whose, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from tokendynamics.dynamics import Noise, simulate
from tokendynamics.specification import SpecificationError
from tokendynamics.sweeps import parse_plan, sweep

TEXT = """
[attention]
qk = { identity = 0.0 }
ov = { identity = -1.0 }

[space]
kind = "free"

[start]
tokens = [[0.3, 0.0]]

[time]
end = 1.0
points = 3

[solver]
step = 0.05
noise = { strength = 0.5 }

[sweep]
seed = 11
draws = 600
task = 500
measure = ["log_norm"]
keep = "states"

[[sweep.axis]]
key = "solver.noise.strength"
values = [0.0, 0.5, 2.0]
"""


@pytest.mark.long
def test_one_free_token_has_the_law_of_ornstein_and_uhlenbeck(client: Client, tmp_path: Path) -> None:
    """dx = −x dt + σ dB: mean e^{−t} x(0), variance σ²(1 − e^{−2t})/2 of each coordinate, independent draws."""
    stored = sweep(parse_plan(TEXT, "noise.toml"), tmp_path / "noise.zarr", client)
    states = stored.states.values[:, :, :, 0]
    for place, time in enumerate((0.0, 0.5, 1.0)):
        for row, strength in enumerate((0.0, 0.5, 2.0)):
            deviations = states[row, :, place] - np.exp(-time) * np.array([0.3, 0.0])
            variance = strength**2 * (1 - np.exp(-2 * time)) / 2
            room = 4.5 / np.sqrt(1200)
            assert deviations.mean() == pytest.approx(0.0, abs=room * np.sqrt(variance) + 1e-3)
            assert deviations.var() == pytest.approx(variance, rel=room * np.sqrt(2) + 0.01, abs=1e-6)
    last = states[1:, :, -1].reshape(2, -1)
    assert abs(np.corrcoef(last)[0, 1]) < 4.5 / np.sqrt(1200)
    assert len(np.unique(last)) == last.size


@pytest.mark.long
def test_the_noise_of_a_system_depends_on_its_point_and_draw_alone(client: Client, tmp_path: Path) -> None:
    """Whatever the tasks are, however many points there are beside it, and as in a run of its own."""
    few = TEXT.replace("draws = 600", "draws = 7")
    by_tasks = [
        sweep(parse_plan(few.replace("task = 500", f"task = {task}"), "a.toml"), tmp_path / str(task), client)
        for task in (2, 500)
    ]
    np.testing.assert_array_equal(by_tasks[0].states, by_tasks[1].states)
    fewer = few.replace("values = [0.0, 0.5, 2.0]", "values = [2.0]").replace("draws = 7", "draws = 4")
    alone = sweep(parse_plan(fewer, "b.toml"), tmp_path / "fewer", client)
    np.testing.assert_array_equal(alone.states[0], by_tasks[0].states[2, :4])
    plan = parse_plan(few.replace("task = 500", "task = 2"), "a.toml")
    setup = plan.setup(next(plan.blocks((2, 1))))
    noise = setup.options["noise"]
    assert (noise.strength, noise.first) == (2.0, 2)
    run = simulate(setup.flow, setup.start[1:], setup.times, step=0.05, noise=Noise(2.0, noise.seed, first=3))
    np.testing.assert_array_equal(run.states[0], by_tasks[0].states[2, 3])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('measure = ["log_norm"]', 'measure = ["outcome"]', r"sweep.measure: 'outcome', the default, needs a flow"),
        ("strength = 0.5 }", "strength = 0.5, seed = 1 }", r"line 18: solver.noise.seed: noise of a sweep has no seed"),
        ('"solver.noise.strength"', '"solver.noise.seed"', r"noise of a sweep has no seed"),
        ("step = 0.05\n", "", r"noise needs 'step'"),
        ("values = [0.0, 0.5, 2.0]", "values = [0.5, -1.0]", r"solver.noise.strength: expected"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        parse_plan(TEXT.replace(old, new), "noise.toml").check()


def test_outcomes_are_refused_also_where_only_an_axis_brings_noise() -> None:
    text = TEXT.replace("noise = { strength = 0.5 }\n", "").replace('measure = ["log_norm"]', 'measure = ["outcome"]')
    with pytest.raises(SpecificationError, match="needs a flow without noise"):
        parse_plan(text, "noise.toml")
