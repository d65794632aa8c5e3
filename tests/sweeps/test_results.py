"""What a sweep finds of a system is what a simulation of it finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from distributed import Client

from sweeps.conftest import SMALL
from tokendynamics import observables
from tokendynamics.dynamics import simulate
from tokendynamics.specification.build import build
from tokendynamics.specification.draws import OfSystems
from tokendynamics.sweeps import Plan, fractions, open_store, parse_plan, sweep
from tokendynamics.sweeps.systems.running import joined, selected

GROWTH = """
[attention]
qk = { identity = 1.0 }
ov = { identity = 1.0 }

[space]
kind = "free"

[start]
tokens = [[1.0]]

[time]
end = 3.0
points = 7

[solver]
engine = "batched"
atol = 1e-40

[sweep]
seed = 0
measure = ["outcome", "log_norm"]
over_time = ["log_norm"]
keep = "states"

[[sweep.axis]]
key = "attention.ov.identity"
name = "rate"
low = -20.0
high = 20.0
points = 5
"""


@pytest.mark.long
def test_one_free_token_grows_by_its_rate(client: Client, tmp_path: Path) -> None:
    dataset = sweep(parse_plan(GROWTH, "growth.toml"), tmp_path / "new" / "growth.zarr", client)
    logs = np.outer([-20.0, -10.0, 0.0, 10.0, 20.0], np.linspace(0.0, 3.0, 7))
    np.testing.assert_allclose(dataset.log_norm.values[:, 0], logs[:, -1], atol=1e-6)
    np.testing.assert_allclose(dataset.log_norm_over_time.values[:, 0], logs, atol=1e-6)
    np.testing.assert_allclose(dataset.states.values[:, 0, :, 0, 0], np.exp(logs), rtol=1e-6)
    words = np.array(dataset.outcome.attrs["flag_meanings"].split())[dataset.outcome[:, 0]]
    assert words.tolist() == ["zero", "zero", "undecided", "diverged", "diverged"]  # ov = 0 has no time to be long in


def test_rescaled_tokens_of_a_sweep_keep_their_place(client: Client, tmp_path: Path) -> None:
    """One free token is exp(t ov) x: rescaled it does not move, where its logarithm would be up to 20 more."""
    text = GROWTH.replace('"outcome", ', "").replace("[solver]", "[solver]\nframe = 'rescaled'")
    dataset = sweep(parse_plan(text, "growth.toml"), tmp_path / "rescaled.zarr", client)
    np.testing.assert_allclose(dataset.log_norm_over_time.values, 0.0, atol=1e-12)
    assert (dataset.end_time.values == 3.0).all()


@pytest.mark.long
def test_a_system_of_a_sweep_is_that_of_a_simulation_of_its_own(client: Client, tmp_path: Path) -> None:
    plan = parse_plan(SMALL.replace("rtol = 1e-4", "rtol = 1e-9").replace("task = 2", "task = 24"), "small.toml")
    dataset = sweep(plan, tmp_path / "sweep.zarr", client)
    for point in ((0, 0), (1, 2)):
        setup = build(plan.file(point), OfSystems(plan._key(point), 2, 1))
        run = simulate(setup.flow, setup.start, setup.times, rtol=1e-11, atol=1e-12)
        alone = observables.consensus(run.tensor[0, -1]).item()
        assert dataset.consensus[*point, 2].item() == pytest.approx(alone, abs=1e-7)


def test_joined_points_move_as_each_does_alone(small: Plan) -> None:
    rotary = '[positions]\nkind = "rotary"\nquery = { law = "normal" }\nkey = { law = "normal" }\n\n[space]'
    plan = parse_plan(SMALL.replace("[space]", rotary), "rotary.toml")
    points = [(tokens, scale) for tokens in range(2) for scale in range(3)]
    setups = [build(plan.file(point), OfSystems(str(point), 0, 2)) for point in points]
    batches = list(joined(setups))
    assert [len(batch.start) for batch in batches] == [6, 6]  # one for each number of tokens
    alone = [setup.flow.velocity(setup.start) for setup in setups]
    together = [part for batch in batches for part in batch.flow.velocity(batch.start).split(2)]
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    chosen = selected(batches[1], torch.tensor([4, 1]))
    torch.testing.assert_close(chosen.flow.velocity(chosen.start)[1], together[3][1], rtol=1e-12, atol=1e-13)


@pytest.mark.long
def test_systems_that_spend_their_steps_are_tried_again_and_counted(client: Client, tmp_path: Path) -> None:
    large = SMALL.replace("task = 2", "task = 24")
    short = large.replace("rtol = 1e-4", "rtol = 1e-4\nmax_steps = 3")
    dataset = sweep(parse_plan(short, "short.toml"), tmp_path / "twice.zarr", client)
    once = sweep(
        parse_plan(short.replace("task = 24", 'task = 24\nretry = "none"'), "a"), tmp_path / "once.zarr", client
    )
    enough = sweep(parse_plan(large, "enough.toml"), tmp_path / "enough.zarr", client)
    statuses = dataset.status.attrs["flag_meanings"].split()
    spent = once.status.values == statuses.index("step_budget_spent")
    undecided = once.outcome.values == once.outcome.attrs["flag_meanings"].split().index("undecided")
    assert spent.any()
    assert (once.tries.values == 1).all()
    assert ((dataset.tries.values == 2) == (spent & undecided)).all()
    again = dataset.tries.values == 2
    assert again.any()
    assert (dataset.status.values[again] == statuses.index("reached_the_horizon")).all()
    assert (dataset.right_hand_sides.values[again] > once.right_hand_sides.values[again]).all()
    np.testing.assert_allclose(dataset.consensus.values[again], enough.consensus.values[again], atol=1e-2)


def test_fractions_are_those_of_the_systems_that_were_run(whole: Path) -> None:
    loaded = open_store(whole).load()
    loaded.outcome[0, 1, :] = -1
    shares = fractions(loaded)
    assert shares.total.values.tolist() == [[4, 0, 4], [4, 4, 4]]
    assert np.isnan(shares.fraction[0, 1]).all()
    whole = shares.sel(scale=0.5)
    np.testing.assert_allclose(whole.fraction.sum("outcome"), 1.0)
    assert ((whole.low <= whole.fraction) & (whole.fraction <= whole.high)).all()
