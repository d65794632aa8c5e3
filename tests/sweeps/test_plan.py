"""What a file's design says: points, tasks, and draws that belong to a system and to nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import kstest

from sweeps.conftest import SMALL
from tokendynamics.specification import SpecificationError
from tokendynamics.specification.build import build
from tokendynamics.specification.draws import OfSystems, normal_of_systems, uniform_of_systems
from tokendynamics.sweeps import Plan, fractions, parse_plan
from tokendynamics.sweeps.systems._plan import RESERVED
from tokendynamics.sweeps.systems._store import layout
from tokendynamics.sweeps.systems.measures import MEASURES


def plan_of(old: str = "", new: str = "") -> Plan:
    assert old in SMALL
    return parse_plan(SMALL.replace(old, new), "small.toml")


def systems(plan: Plan) -> Iterator[tuple[tuple[int, ...], torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Index, start, qk and ov of every system, task by task."""
    for task in product(*map(range, plan.tasks)):
        for block in plan.blocks(task):
            setup = build(plan.file(block.point), block.draws)
            attention = setup.flow.attention
            for row in range(len(setup.start)):
                matrices = (entry.matrix_at(0.0)[row] for entry in (attention.qk, attention.ov))
                yield (*block.point, block.draws.first + row), setup.start[row], *matrices


@pytest.mark.long
def test_every_system_is_in_one_task() -> None:
    for draws, task in product((1, 3, 7), (1, 2, 3, 5, 100)):
        plan = plan_of("draws = 4\ntask = 2", f"draws = {draws}\ntask = {task}")
        values = [index for index, *_ in systems(plan)]
        assert sorted(values) == sorted(np.ndindex(*plan.shape))
        assert max(plan.chunks) <= max(task, 1)
        assert np.prod(plan.chunks) <= task


def test_a_system_does_not_depend_on_the_task_that_it_is_in() -> None:
    one = {index: rest for index, *rest in systems(plan_of())}
    other = {index: rest for index, *rest in systems(plan_of("task = 2", "task = 100"))}
    assert one.keys() == other.keys()
    assert all(torch.equal(a, b) for index in one for a, b in zip(one[index], other[index], strict=True))


def test_a_system_does_not_depend_on_further_draws_and_points() -> None:
    few = {index: rest for index, *rest in systems(plan_of())}
    many = {index: rest for index, *rest in systems(plan_of("draws = 4", "draws = 9"))}
    assert all(torch.equal(few[index][0], many[index][0]) for index in few)
    wider = {index: rest for index, *rest in systems(plan_of("values = [2, 3]", "values = [5, 3]"))}
    assert all(torch.equal(few[index][1], wider[index][1]) for index in few if index[0] == 1)


def test_no_two_systems_are_alike_and_other_seeds_are_others() -> None:
    plans = (plan_of(), plan_of("seed = 7", "seed = 8"))
    matrices = [qk for plan in plans for _, _, qk, _ in systems(plan)]
    scaled = torch.stack([matrix.flatten() / matrix.norm() for matrix in matrices])
    assert len(torch.unique(scaled, dim=0)) == len(scaled)


def test_a_law_with_a_seed_is_the_same_in_every_system() -> None:
    plan = plan_of('qk = { law = "normal", scale = 0.5 }', 'qk = { law = "normal", scale = 0.5, seed = 3 }')
    setup = build(plan.file((0, 1)), OfSystems("key", 0, 4))
    assert setup.flow.attention.qk.shape == (1, 2, 2)
    assert setup.flow.attention.ov.shape == (4, 1, 2, 2)


def test_streams_are_uniform_normal_and_independent() -> None:
    numbers = uniform_of_systems("key", 0, 20_000, 5)
    assert kstest(numbers.ravel(), "uniform").pvalue > 1e-3
    assert kstest(normal_of_systems("key", 0, 20_000, 5).ravel(), "norm").pvalue > 1e-3
    others = uniform_of_systems("another key", 0, 20_000, 5)
    table = np.corrcoef(np.concatenate([numbers, others], axis=1).T) - np.eye(10)
    assert np.abs(table).max() < 5 / np.sqrt(20_000)


@pytest.mark.parametrize("skew", [0.0, 1.5])
@pytest.mark.parametrize(("sign", "negative"), [("positive", 0), ("negative", 5), ("mixed", 2)])
def test_definite_matrices_have_the_signs_and_the_skew_part(sign: str, negative: int, skew: float) -> None:
    spec = SMALL.replace('{ definite = "mixed", skew = 0.5 }', f'{{ definite = "{sign}", skew = {skew} }}')
    plan = parse_plan(spec.replace("dim = 2", "dim = 5"), "definite.toml")
    ov = build(plan.file((0, 0)), OfSystems("key", 0, 200)).flow.attention.ov.matrix_at(0.0)[:, 0]
    values = torch.linalg.eigvalsh((ov + ov.mT) / 2)
    assert ((values < 0).sum(dim=-1) == negative).all()
    turning = (ov - ov.mT) / 2
    # Entries of T − T^T have variance 2/dim.
    spread = turning[:, *np.triu_indices(5, 1)].std().item()
    assert spread == pytest.approx(skew * np.sqrt(2 / 5), rel=0.1, abs=1e-12)


def test_ov_comes_from_the_contraction_form_of_the_same_system() -> None:
    spec = SMALL.replace(
        '{ definite = "mixed", skew = 0.5 }', '{ contraction = { definite = "negative" }, norm = 2.0 }'
    )
    setup = build(parse_plan(spec, "a.toml").file((0, 0)), OfSystems("key", 0, 20))
    qk, ov = (entry.matrix_at(0.0)[:, 0] for entry in (setup.flow.attention.qk, setup.flow.attention.ov))
    form = qk @ torch.linalg.inv(ov)
    assert torch.linalg.matrix_norm(ov, 2) == pytest.approx(2.0)
    assert (form - form.mT).abs().max() < 1e-9 * form.abs().max()
    assert (torch.linalg.eigvalsh((form + form.mT) / 2) < 0).all()


def test_random_designs_have_points_within_their_bounds() -> None:
    spec = SMALL.replace("seed = 7", 'design = "random"\npoints = 400\nseed = 7').replace("points = 3\n", "")
    plan = parse_plan(spec.replace("low = 0.5", 'spacing = "log"\nlow = 0.01'), "random.toml")
    assert plan.dims == ("point", "draw")
    assert plan.shape == (400, 4)
    tokens, scale = (axis.labels for axis in plan.axes)
    assert set(tokens) == {2, 3}
    share = np.log(scale / 0.01) / np.log(1.5 / 0.01)
    assert kstest(share, "uniform").pvalue > 1e-3
    assert plan.file((17,)).tables.attention.qk.scale == scale[17]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"start.tokens"', '"start.tokns"', r"line 29: start.tokns: unknown key; did you mean 'tokens'"),
        ('"start.tokens"', '"begin.tokens"', r"line 29: begin: unknown key; valid: attention"),
        ("values = [2, 3]", "values = [2, -3]", r"line \d+: start.tokens: expected"),
        ("values = [2, 3]", "values = [2, 3]\nname = 'draw'", r"expected a name that the store .*, got 'draw'"),
        ('"attention.qk.scale"', '"start.tokens"', r"sweep.axis\[1\]: expected a name that no other axis has"),
        ("points = 3", "points = 1", r"expected points = 2 or more"),
        ("values = [2, 3]", "values = [2, 3]\nlabels = ['two']", r"expected a label for each of the values"),
        ("low = 0.5", "low = 2.5", r"low < high, got 2.5 and 1.5"),
        ("draws = 4", "drws = 4", r"sweep.drws: unknown key; did you mean 'draws'"),
        ('measure = ["outcome"', 'measure = ["outcme"', r"unknown measure 'outcme'; did you mean 'outcome'"),
        ("rtol = 1e-4", "rtol = 1e-4\nframe = 'rescaled'", r"'outcome' is that of x, not of rescaled tokens"),
        ("tokens = 3", "tokens = 3\nsystems = 4", r"start.systems: a sweep has draws"),
        ("seed = 7\n", "", r"missing key 'seed'"),
        ("[space]", "[output]\nformats = ['png']\n[space]", r"output: a sweep draws no trajectories"),
        ('{ definite = "mixed", skew = 0.5 }', '{ definite = "mixd" }', r"unknown name 'mixd'; did you mean 'mixed'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        plan_of(old, new).check()


def test_values_go_by_their_labels() -> None:
    plan = plan_of("values = [2, 3]", "values = [2, 3]\nlabels = ['two', 'three']")
    assert ["two", "three"] in [list(axis.labels) for axis in plan.axes]


def test_draws_that_would_all_be_the_same_are_refused() -> None:
    spec = SMALL.replace("scale = 0.5 }", "scale = 0.5, seed = 1 }").replace("skew = 0.5 }", "skew = 0.5, seed = 2 }")
    parse_plan(spec, "a.toml").check()
    with pytest.raises(SpecificationError, match="every draw of a point would be the same system"):
        parse_plan(spec.replace("dim = 2", "dim = 2\nseed = 3"), "a.toml").check()


def test_a_simulation_needs_the_seeds_that_a_sweep_does_not() -> None:
    from tokendynamics.specification import parse

    simulation = SMALL[: SMALL.index("[sweep]")]
    with pytest.raises(SpecificationError, match=r"line 3: attention.qk: missing key 'seed'"):
        parse(simulation, "a.toml")


HOSTILE_NAMES = (
    "",
    "a/b",
    "../../evil",
    "..",
    ".",
    r"a\u0000b",
    r"\u001b[31m",
    "a" * 400,
    "1st",
    "a b",
    "a-b",
    "é",
    "a.b",
    r"a\n",
)


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, *sorted(RESERVED), "Status", "OUTCOME"])
@pytest.mark.parametrize("design", ["grid", "random"])
def test_a_name_that_the_store_cannot_have_is_refused_with_its_line(name: str, design: str) -> None:
    spec = SMALL.replace("values = [2, 3]", f'values = [2, 3]\nname = "{name}"')
    if design == "random":
        spec = spec.replace("seed = 7", 'design = "random"\npoints = 4\nseed = 7').replace("points = 3\n", "")
    line = next(number for number, text in enumerate(spec.splitlines(), 1) if text.startswith("name ="))
    with pytest.raises(
        SpecificationError, match=rf"small.toml line {line}: sweep.axis\[\d\]: expected a name"
    ) as raised:
        parse_plan(spec, "small.toml")
    assert len(str(raised.value)) < 300
    assert str(raised.value).isprintable()


def test_two_axes_whose_names_differ_in_case_only_are_refused() -> None:
    with pytest.raises(SpecificationError, match="expected a name that no other axis has, got 'SCALE_2'"):
        plan_of(
            "values = [2, 3]",
            'values = [2, 3]\nname = "scale_2"\n[[sweep.axis]]\nkey = "solver.rtol"\nvalues = [1e-3]\nname = "SCALE_2"',
        )


def test_every_name_of_a_store_is_reserved() -> None:
    over_time = [name for name in MEASURES if MEASURES[name].of_states]
    spec = SMALL.replace("seed = 7", f"keep = 'states'\nover_time = {over_time}\nseed = 7")
    spec = spec.replace('["outcome", "consensus", "log_norm"]', str(list(MEASURES))).replace(
        "values = [2, 3]", "values = [3]"
    )
    plan = parse_plan(spec, "small.toml")
    variables = layout(plan)
    used = {*variables, *(dim for variable in variables.values() for dim in variable.dims)}
    assert used - {axis.name for axis in plan.axes} <= RESERVED
    counted = fractions(xr.Dataset({"outcome": ("draw", [0])}))
    assert {*map(str, counted.variables)} <= RESERVED


@pytest.mark.parametrize("name", ["_", "beta_1", "Scale2", "statuses"])
def test_other_names_are_taken(name: str) -> None:
    plan = plan_of("values = [2, 3]", f'values = [2, 3]\nname = "{name}"')
    assert name in plan.dims
