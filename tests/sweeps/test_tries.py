"""Later tries of systems that spent their steps, and what is measured of the matrices of a system."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from distributed import Client

from sweeps.conftest import SMALL
from tokendynamics.specification.build import build
from tokendynamics.specification.draws import OfSystems
from tokendynamics.sweeps import parse_plan, sweep
from tokendynamics.sweeps.systems.measures import OUTCOMES
from tokendynamics.sweeps.systems.running import _further, _measured

FREE = """
[attention]
qk = { definite = "positive", by = "rejection", skew = 1.0 }
ov = { contraction = { definite = "negative", by = "rejection", skew = 1.0 } }

[space]
kind = "free"

[start]
law = "normal"
tokens = 3
dim = 2

[time]
end = 1.0
points = 3

[solver]
engine = "batched"

[sweep]
seed = 3
draws = 6
measure = ["value_growth", "contraction_growth", "qk_lowest"]

[[sweep.axis]]
key = "start.tokens"
values = [2, 3]
"""


@pytest.mark.slow
def test_many_explicit_steps_decide_what_few_of_either_kind_do_not(client: Client, tmp_path: Path) -> None:
    few = SMALL.replace("rtol = 1e-4", "rtol = 1e-4\nmax_steps = 3").replace("task = 2", "task = 2\nretry_steps = 2")
    twice = sweep(parse_plan(few, "few.toml"), tmp_path / "twice.zarr", client)
    thrice = sweep(
        parse_plan(few.replace("task = 2", "task = 2\nlast_steps = 500"), "a"), tmp_path / "thrice.zarr", client
    )
    enough = sweep(parse_plan(SMALL, "enough.toml"), tmp_path / "enough.zarr", client)
    again = thrice.tries.values == 3
    # What the second try left without an answer is what the third one takes up, and nothing else.
    left = (twice.tries.values == 2) & (twice.status.values != enough.status.values)
    assert again.any()
    assert (again == left).all()
    assert (thrice.status.values[again] == enough.status.values[again]).all()
    np.testing.assert_allclose(thrice.consensus.values[again], enough.consensus.values[again], atol=1e-3)
    assert (thrice.right_hand_sides.values[again] > twice.right_hand_sides.values[again]).all()
    np.testing.assert_array_equal(thrice.consensus.values[~again], twice.consensus.values[~again])


@pytest.mark.parametrize(("engine", "order"), [("batched", [2, 3]), ("compiled", [3, 2])])
def test_the_cheaper_try_comes_first(engine: str, order: list[int]) -> None:
    plan = parse_plan(SMALL.replace("task = 2", "task = 2\nretry_steps = 7\nlast_steps = 500"), "a")
    setup = plan.setup(next(iter(plan.blocks(tuple(0 for _ in plan.tasks)))))
    tries = list(_further(plan, setup, engine))
    assert [number for number, _ in tries] == order
    options = dict(tries)
    assert (options[2]["engine"], options[2]["max_steps"]) == ("stiff", 7)
    assert (options[3]["engine"], options[3]["max_steps"]) == (engine, 500)


CLUSTERS = """
[attention]
qk = { identity = 9.0 }
ov = "identity"
normalization = "plain"

[space]
kind = "sphere"

[start]
law = "uniform"
tokens = 8
dim = 2

[time]
end = 1e9
spacing = "log"
first = 1e-1
points = 41

[solver]
engine = "batched"
rtol = 1e-6
max_steps = 400

[sweep]
seed = 8
draws = 8
measure = ["outcome"]
retry = "none"
"""


@pytest.mark.slow
def test_clusters_at_rest_are_followed_further_for_they_may_merge(client: Client, tmp_path: Path) -> None:
    once = sweep(parse_plan(CLUSTERS, "once.toml"), tmp_path / "once.zarr", client)
    followed = sweep(
        parse_plan(CLUSTERS.replace('retry = "none"', "retry_steps = 20_000"), "a"), tmp_path / "further.zarr", client
    )
    resting, together = OUTCOMES.index("nonzero equilibrium"), OUTCOMES.index("consensus")
    deceived = (once.outcome == resting).values
    assert deceived.any()
    assert (followed.tries.values[deceived] == 2).all()
    # One head, ov = I, qk symmetric and positive: consensus from almost everywhere (`asymptotic` 3.2).
    assert (followed.outcome == together).all()


def test_growths_are_those_of_the_matrices(client: Client, tmp_path: Path) -> None:
    plan = parse_plan(FREE, "free.toml")
    dataset = sweep(plan, tmp_path / "free.zarr", client)
    blocks = [block for task in np.ndindex(*plan.tasks) for block in plan.blocks(task)]
    for block in blocks:
        setup = build(plan.file(block.point), block.draws)
        qk, ov = (entry.matrix_at(0.0)[:, 0].numpy() for entry in (setup.flow.attention.qk, setup.flow.attention.ov))
        contraction = qk @ np.linalg.inv(ov)
        rows = slice(block.draws.first, block.draws.first + block.draws.systems)
        here = dataset.isel(tokens=block.point[0], draw=rows)
        sizes = np.linalg.norm(ov, 2, axis=(1, 2))
        np.testing.assert_allclose(here.value_growth, np.linalg.eigvals(ov).real.max(axis=1) / sizes, rtol=1e-9)
        highest = np.linalg.eigvalsh(contraction + contraction.mT)[:, -1] / 2
        np.testing.assert_allclose(
            here.contraction_growth, highest / np.linalg.norm(contraction, 2, axis=(1, 2)), rtol=1e-9
        )
        lowest = np.linalg.eigvalsh(qk + qk.mT)[:, 0] / 2
        np.testing.assert_allclose(here.qk_lowest, lowest / np.linalg.norm(qk, 2, axis=(1, 2)), rtol=1e-9)
    assert (dataset.contraction_growth < 0).all()
    assert (dataset.qk_lowest > 0).all()


def rejected(first: int, systems: int, dim: int, skew: float = 1.0) -> torch.Tensor:
    text = FREE.replace("dim = 2", f"dim = {dim}").replace("skew = 1.0", f"skew = {skew}")
    plan = parse_plan(text, "free.toml")
    setup = build(plan.file((0,)), OfSystems("a key", first, systems))
    return setup.flow.attention.qk.matrix_at(0.0)[:, 0]


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_matrices_by_rejection_are_definite_and_those_of_a_system_are_its_own(dim: int) -> None:
    together = rejected(0, 6, dim)
    assert float(torch.linalg.eigvalsh((together + together.mT) / 2).min()) > 0
    assert torch.equal(together[4:], rejected(4, 2, dim))
    symmetric, steeper = rejected(0, 6, dim, skew=0.0), rejected(0, 6, dim, skew=3.0)
    assert torch.equal(symmetric, symmetric.mT)
    torch.testing.assert_close(symmetric, (together + together.mT) / 2)
    torch.testing.assert_close(steeper - symmetric, 3 * (together - symmetric))


@pytest.mark.slow
def test_the_law_by_rejection_is_the_normal_law_given_the_sign() -> None:
    drawn = rejected(0, 4000, 2)
    random = torch.randn(60_000, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kept = random[torch.linalg.eigvalsh((random + random.mT) / 2)[:, 0] > 0]
    for quantity in (
        lambda m: m.diagonal(dim1=-2, dim2=-1).sum(-1),
        torch.linalg.det,
        lambda m: m[:, 0, 1] - m[:, 1, 0],
    ):
        actual, reference = quantity(drawn), quantity(kept)
        error = (actual.var() / len(actual) + reference.var() / len(reference)).sqrt()
        assert abs(float(actual.mean() - reference.mean())) < 4 * float(error)
        assert float(actual.std() / reference.std()) == pytest.approx(1, abs=0.06)


def test_what_cannot_be_drawn_by_rejection_is_named() -> None:
    with pytest.raises(Exception, match="at most 5 dimensions by rejection, got 6"):
        rejected(0, 1, 6)
    with pytest.raises(Exception, match="expected definite = 'positive' or 'negative' by rejection, got 'mixed'"):
        parse_plan(FREE.replace('"positive"', '"mixed"'), "mixed.toml").file((0,))


def test_where_implicit_steps_are_refused_many_explicit_ones_follow() -> None:
    """Of exponential weights in free space: before, the refusal of the one try was the end of all."""
    text = SMALL.replace('kind = "sphere"', 'kind = "free"').replace(
        "[attention]", '[attention]\nweights = "exponential"'
    )
    text = text.replace("rtol = 1e-4", "rtol = 1e-4\nmax_steps = 3").replace("uniform", "normal")
    numbers = {}
    for name, further in (("few", ""), ("many", "\nlast_steps = 500"), ("enough", None)):
        steps = text.replace("max_steps = 3", "max_steps = 500") if further is None else text
        plan = parse_plan(steps.replace("task = 2", f"task = 2{further or ''}"), "a")
        setup = plan.setup(next(iter(plan.blocks(tuple(0 for _ in plan.tasks)))))
        numbers[name] = _measured(plan, setup, "batched")
    again = numbers["many"]["tries"] == 3
    assert again.any()
    assert (numbers["few"]["tries"] == 1).all()
    np.testing.assert_array_equal(again, numbers["few"]["consensus"] != numbers["many"]["consensus"])
    np.testing.assert_allclose(numbers["many"]["consensus"], numbers["enough"]["consensus"], rtol=1e-3)
