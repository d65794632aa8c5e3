"""A study's file: what it becomes, and what is wrong in it, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.study.conftest import TUNED, TWO_ARMS
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.specification import SpecificationError
from tokendynamics.specification.examples import example_names, example_text
from tokendynamics.sweeps.study import Claim, parse_plan, read_plan, study
from tokendynamics.sweeps.study._plan import BETTER
from tokendynamics.sweeps.study.words import about_plan
from tokendynamics.training import TASKS
from tokendynamics.training.experiment import PRESETS

FULL = """
[study]
name = "layers of changes"
preset = "bytes-small"
seeds = [1, 2]
reference = "one"
confidence = 0.9
data = "elsewhere"

[study.recipe]
steps = 7
multipliers = { lower = 3.0 }

[study.model]
num_hidden_layers = 2
form = "solve"

[study.options]
context = 32

[arms.one]
regime = "tied"

[arms.two]
regime = "divergence"
remedy = "identity"
data = "there"
recipe = { learning_rate = 0.5 }
model = { num_hidden_layers = 3, value_start = "like_w" }
options = { held_out = 0.2 }

[[claims]]
better = "two"
worse = "one"
difference = 0.25
"""


def test_an_arm_is_the_preset_changed_by_the_study_and_then_by_itself() -> None:
    plan = parse_plan(FULL, "full.toml")
    preset = PRESETS["bytes-small"]
    one, two = plan.arms.values()
    shared = {"recipe": {"steps": 7, "multipliers": {"lower": 3.0}}, "options": {"context": 32}}
    model = {"num_hidden_layers": 2, "form": "solve"}
    assert one == preset.changed(regime="tied", data="elsewhere", model=model, **shared)
    assert two == preset.changed(
        regime="divergence",
        remedy="identity",
        data="there",
        model=model | {"num_hidden_layers": 3, "value_start": "like_w"},
        options={"context": 32, "held_out": 0.2},
        recipe={**shared["recipe"], "learning_rate": 0.5},
    )
    assert (plan.name, plan.seeds, plan.claims) == ("layers of changes", (1, 2), (Claim("two", "one", 0.25),))
    assert about_plan(plan) == "layers of changes: 2 arms × 2 seeds = 4 runs of the preset bytes-small"


def test_every_arm_runs_every_seed_with_the_rate_that_was_chosen() -> None:
    plan = parse_plan(TUNED, "tuned.toml")
    runs = plan.runs("divergence", 4e-3)
    assert [run.place for run in runs] == [f"runs/divergence/{seed}" for seed in (1, 2, 3)]
    assert [run.experiment.seed for run in runs] == [1, 2, 3]
    assert {run.experiment.recipe.learning_rate for run in runs} == {4e-3}
    tuning = plan.tuning_runs("divergence")
    assert {rate: {run.experiment.recipe.learning_rate for run in row} for rate, row in tuning.items()} == {
        1e-3: {1e-3}, 2e-3: {2e-3}, 4e-3: {4e-3},
    }  # fmt: skip
    assert [run.experiment.seed for run in tuning[2e-3]] == [101, 102]
    assert tuning[2e-3][0].place == "tuning/divergence/0.002/101"
    assert "after 2 × 3 learning rates × 2 seeds = 12 runs of tuning" in about_plan(plan)


WRONG = [
    ('preset = "bytes-small"', 'preset = "bytes-smal"', r"line 3: study.preset: unknown preset .* mean 'bytes-small'"),
    ("seeds = [1, 2, 3]", "seeds = []", r"line 4: study.seeds: .* at least 1 item"),
    ("seeds = [1, 2, 3]", "seeds = [1, 2, 1]", r"line 4: study.seeds\[2\]: expected each once, got 1 for the"),
    ("seeds = [1, 2, 3]", "seeds = [1, -2]", r"line 4: study.seeds\[1\]: .*greater than or equal to 0, got -2"),
    ("seeds = [1, 2, 3]", "seeds = [1, 2.5]", r"line 4: study.seeds\[1\]: expected a valid integer, got 2.5"),
    ("seeds = [1, 2, 3]", "", r"line 2: study: missing key 'seeds'"),
    ("seeds = [1, 2, 3]", "seed = [1]", r"line 4: study.seed: unknown key; did you mean 'seeds'\?"),
    ('reference = "baseline"', 'reference = "base"', r"line 5: study.reference: unknown arm 'base'; .* 'baseline'"),
    ('reference = "baseline"', 'reference = "baseline"\nconfidence = 95', r"line 6: study.confidence: .*less than 1"),
    ('regime = "baseline"', 'regime = "base"', r"line 8: arms.baseline.regime: unknown regime 'base'; .* 'baseline'"),
    ("[arms.divergence]", '[arms."../up"]', r"line 10: arms.../up: expected a name of up to 64 letters"),
    ("[arms.divergence]", "[arms.baseline.more]", r"line 10: arms.baseline.more: unknown key"),
    (
        'regime = "divergence"',
        'regime = "baseline"',
        r"line 10: arms.divergence: expected an arm that differs from the others.*'baseline'",
    ),
    (
        'regime = "divergence"',
        "recipe = { stepz = 3 }",
        r"line 11: arms.divergence.recipe.stepz: .*entries among steps",
    ),
    ('regime = "divergence"', "recipe = { steps = 0 }", r"line 11: arms.divergence.recipe.steps: expected .*got 0"),
    (
        'regime = "divergence"',
        'recipe = { batch = "4" }',
        r"line 11: arms.divergence.recipe.batch: expected an integer",
    ),
    ('regime = "divergence"', "recipe = { learning_rate = 1e-3 }", r"line 11: .*expected none beside \[tuning\]"),
    (
        'better = "divergence"',
        'better = "diverge"',
        r"line 14: claims\[0\].better: unknown arm 'diverge'; .*'divergence'",
    ),
    (
        'worse = "baseline"',
        'worse = "divergence"',
        r"line 15: claims\[0\].worse: expected another arm than 'divergence'",
    ),
    ('worse = "baseline"', 'worse = "baseline"\ndifference = 0', r"line 16: claims\[0\].difference: .*greater than 0"),
    (
        'worse = "baseline"',
        'worse = "baseline"\n[[claims]]\nbetter = "divergence"\nworse = "baseline"',
        r"line 16: claims\[1\]: expected each claim once",
    ),
    ("[1e-3, 2e-3, 4e-3]", "[]", r"line 18: tuning.learning_rate: .* at least 2 items"),
    ("[1e-3, 2e-3, 4e-3]", "[1e-3]", r"line 18: tuning.learning_rate: .* at least 2 items"),
    ("[1e-3, 2e-3, 4e-3]", "[1e-3, 1e-3]", r"line 18: tuning.learning_rate\[1\]: expected each once"),
    ("[1e-3, 2e-3, 4e-3]", "[1e-3, 0.0]", r"line 18: tuning.learning_rate\[1\]: .*greater than 0"),
    ("[1e-3, 2e-3, 4e-3]", "[1e-3, nan]", r"line 18: tuning.learning_rate\[1\]: .*finite"),
    ("[101, 102]", "[101, 3]", r"line 19: tuning.seeds\[1\]: expected separate seeds, got 3, .* study.seeds"),
    ("[101, 102]", "[101, 101]", r"line 19: tuning.seeds\[1\]: expected each once"),
]


@pytest.mark.parametrize(("right", "wrong", "message"), WRONG)
def test_what_is_wrong_is_told_with_its_line(right: str, wrong: str, message: str) -> None:
    assert right in TUNED
    with pytest.raises(SpecificationError, match=f"^tuned.toml {message}"):
        parse_plan(TUNED.replace(right, wrong, 1), "tuned.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"missing table \[study\]"),
        (TWO_ARMS[: TWO_ARMS.index("[arms.div")], r"line 7: arms: expected two arms or more, got baseline"),
        (TWO_ARMS[: TWO_ARMS.index("[arms")], r"missing table \[arms\]"),
        (TWO_ARMS + "[extra]", r"line 16: extra: unknown key"),
        (TWO_ARMS + "[study]", r"line 16"),
    ],
)
def test_a_file_that_lacks_a_table_or_has_another_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        parse_plan(text, "wrong.toml")


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('regime = "divergence"', "model = { hidden_sizes = 3 }", r"line 11: arms.divergence.model.hidden_sizes: "),
        ('regime = "divergence"', 'model = { form = "solved" }', r"line 11: arms.divergence.model.form: .*'solved'"),
        (
            'regime = "divergence"',
            "model = { vocab_size = 3 }",
            r"line 11: arms.divergence.model.vocab_size: .*the data",
        ),
        ('regime = "divergence"', 'remedy = "diagonals"', r"line 11: arms.divergence.remedy: .*'diagonals'"),
        ('regime = "divergence"', 'data = "/nowhere/text"', r"line 11: arms.divergence.data: .*/nowhere/text"),
        ('regime = "divergence"', "options = { contexts = 3 }", r"line 11: arms.divergence.options.contexts: "),
        (
            'reference = "baseline"',
            'reference = "baseline"\nmodel = { num_attention_heads = 5 }',
            r"line 6: study.model",
        ),
    ],
)
def test_what_no_network_or_task_can_be_made_of_is_told_with_its_line_before_anything_runs(
    right: str, wrong: str, message: str, tmp_path: Path
) -> None:
    plan = parse_plan(TWO_ARMS.replace(right, wrong, 1), "two.toml")
    with pytest.raises(SpecificationError, match=f"^two.toml {message}"):
        study(plan, tmp_path / "store", "tcp://127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []


def test_files_are_read_and_other_things_refused(tmp_path: Path, unchecked: None) -> None:
    (tmp_path / "mine.toml").write_text(TWO_ARMS)
    assert read_plan(tmp_path / "mine.toml").name == "mine"
    with pytest.raises(FileNotFoundError):
        read_plan(tmp_path / "none.toml")
    with pytest.raises(ArgumentTypeError, match="spec: expected a str or Path or StudyPlan, got 3"):
        study(3, tmp_path / "store")  # pyright: ignore[reportArgumentType]


def test_the_direction_of_every_task_s_measure_is_known() -> None:
    assert {task.measure for task in TASKS.values()} <= BETTER.keys()
    for name, lower in (("table1", True), ("table2", False)):
        assert parse_plan(example_text(name, "study"), name).lower_is_better is lower


@pytest.mark.long
@pytest.mark.parametrize("name", example_names("study"))
def test_every_example_is_a_study_whose_networks_can_be_made(name: str) -> None:
    plan = parse_plan(example_text(name, "study"), f"{name}.toml")
    plan.check()
    assert len(plan.seeds) >= 5
    assert plan.tables.tuning is not None
    assert plan.claims


def test_table_1_has_the_controls_that_tell_the_tie_from_the_signs() -> None:
    plan = parse_plan(example_text("table1", "study"), "table1.toml")
    regimes = [experiment.model["regime"] for experiment in plan.arms.values()]
    assert regimes == ["baseline", "tied", "w_only", "convergence", "intermediate", "divergence"]
    assert {experiment.model["form"] for experiment in plan.arms.values()} == {"solve"}


def test_the_file_of_the_documents_is_one() -> None:
    text = (Path(__file__).parents[3] / "docs" / "study.md").read_text(encoding="utf-8")
    plan = parse_plan(text.split("```toml\n")[1].split("```")[0], "docs.toml")
    assert list(plan.arms) == ["baseline", "divergence"]


def test_a_number_of_workers_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="workers: expected"):
        study(parse_plan(TWO_ARMS, "two.toml"), tmp_path / "store", workers=0)
