"""Studies whose runs end by a planted law: what is found, what is chosen, what becomes of runs that fail."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from distributed import Client

from sweeps.study.conftest import TUNED, TWO_ARMS, Planted, starts
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.sweeps._store import own_versions
from tokendynamics.sweeps.study import StudyResult, open_study, parse_plan, study
from tokendynamics.training.experiment import PRESETS

PLAN = parse_plan(TWO_ARMS, "two.toml")
TUNED_PLAN = parse_plan(TUNED, "tuned.toml")


@pytest.fixture
def store(tmp_path: Path, planted: Planted) -> Path:
    planted()
    return tmp_path / "studies" / "store"  # the first of its parents is there, no more


@pytest.mark.long
def test_a_planted_difference_is_found_through_noise_that_arms_share(
    store: Path, planted: Planted, client: Client
) -> None:
    planted(means={"divergence": -0.1}, shared=1.0, own=0.01)
    study_result = study(PLAN, store, client)
    (only,) = study_result.comparisons
    assert only.verdict == "separated"
    assert only.better is True
    assert only.low is not None
    assert only.high is not None
    assert only.low < -0.1 < only.high
    assert study_result.claims[0].decision == "holds"
    values = study_result.dataset["measure"].values
    np.testing.assert_array_equal(only.differences, values[1] - values[0])
    assert np.std(values[0]) > 10 * np.std(only.differences)  # what a pair shares is no noise of its difference
    assert starts(store) == {f"runs/{arm}/{seed}": 1 for arm in ("baseline", "divergence") for seed in (1, 2, 3)}


@pytest.mark.long
def test_the_dataset_has_what_the_records_have(store: Path, client: Client) -> None:
    computed = study(PLAN, store, client).dataset
    record = json.loads((store / "runs/divergence/3/record.json").read_text())
    one = computed.sel(arm="divergence", seed=3)
    assert one["measure"] == record["measures"]["test"]["bits_per_byte"]
    assert one["final_validation"] == record["measures"]["validation"]["bits_per_byte"]
    assert one["validation"].values.tolist() == [entry["bits_per_byte"] for entry in record["validation"]]
    assert computed["step"].values.tolist() == [100, 200]
    assert one["token_norm"].sel(state="full").values.tolist() == record["layers"]["full"]["norm"]
    assert one["token_distance"].sel(state="bare").values.tolist() == record["layers"]["bare"]["distance"]
    assert one["status"] == "finished"
    assert computed["learning_rate"].values.tolist() == [PRESETS["bytes-small"].recipe.learning_rate] * 2
    assert record["experiment"]["seed"] == 3
    assert computed.identical(open_study(store).dataset)


def test_learning_rates_are_chosen_by_the_validation_split_on_seeds_of_their_own(
    store: Path, planted: Planted, client: Client
) -> None:
    planted(best={"baseline": 2e-3, "divergence": 4e-3}, test=-1.0)  # the test split would choose otherwise
    study_result = study(TUNED_PLAN, store, client)
    assert study_result.dataset["learning_rate"].values.tolist() == [2e-3, 4e-3]
    tuning = study_result.dataset["tuning"]
    assert tuning.sizes == {"arm": 2, "rate": 3, "tuning_seed": 2}
    assert tuning.mean("tuning_seed").idxmin("rate").values.tolist() == [2e-3, 4e-3]
    assert set(starts(store).values()) == {1}
    assert len(starts(store)) == 2 * 3 * 2 + 2 * 3
    assert {record_of(store, f"runs/divergence/{seed}")["recipe"]["learning_rate"] for seed in (1, 2, 3)} == {4e-3}
    edges = [sentence for sentence in study_result.sentences if "tried" in sentence]
    assert edges == ["A better learning rate may lie beyond the grid for divergence (0.004, the largest tried)."]


@pytest.mark.slow
def test_a_choice_at_the_lower_end_is_said_and_one_within_is_not(store: Path, planted: Planted, client: Client) -> None:
    planted(best={"baseline": 1e-3, "divergence": 2e-3})
    edges = [sentence for sentence in study(TUNED_PLAN, store, client).sentences if "tried" in sentence]
    assert edges == ["A better learning rate may lie beyond the grid for baseline (0.001, the smallest tried)."]


def record_of(store: Path, place: str) -> dict[str, dict[str, float]]:
    return json.loads((store / place / "record.json").read_text())["experiment"]


@pytest.mark.long
def test_a_learning_rate_that_failed_on_a_seed_is_not_chosen_and_is_named(
    store: Path, planted: Planted, client: Client
) -> None:
    best = {"baseline": 2e-3, "divergence": 2e-3}
    planted(best=best, acts={"divergence 102 0.002": "not finite"})
    study_result = study(TUNED_PLAN, store, client)
    assert study_result.dataset["learning_rate"].values.tolist() == [2e-3, 1e-3]  # |1e-3/2e-3 − 1| < |4e-3/2e-3 − 1|
    (message,) = [sentence for sentence in study_result.sentences if "tuning runs" in sentence]
    assert message.startswith("11 of 12 tuning runs finished")
    assert "divergence at 0.002 with seed 102 not finite" in message


def test_a_study_that_was_stopped_while_tuning_says_what_it_lacks(
    store: Path, planted: Planted, client: Client
) -> None:
    def stop(done: float, total: float, what: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(TUNED_PLAN, store, client, progress=stop)
    message = open_study(store).sentences
    assert "Arm divergence has no learning rate and was not run: its tuning is not complete." in message
    assert message[0] == "No comparison is possible: no arm shares two finished seeds with the reference."
    assert sum(sentence.startswith("6 of 6 runs did not finish: ") for sentence in message) == 1
    assert (
        sum(
            sentence.endswith("cannot be decided at this size: fewer than two seeds finished in both arms.")
            for sentence in message
        )
        == 1
    )
    assert not (store / "tuning" / "chosen.json").exists()


@pytest.mark.slow
def test_an_arm_without_a_learning_rate_is_not_run_and_is_tuned_again_when_resumed(
    store: Path, planted: Planted, client: Client
) -> None:
    planted(best={"baseline": 2e-3, "divergence": 2e-3}, acts={"divergence 101": "fail"})
    study_result = study(TUNED_PLAN, store, client)
    assert study_result.dataset["status"].sel(arm="divergence").values.tolist() == ["not run"] * 3
    assert study_result.comparisons[0].verdict == "undecided"
    assert study_result.claims[0].decision == "cannot be decided at this size"
    assert (
        "Arm divergence has no learning rate and was not run: no learning rate finished on every seed."
        in study_result.sentences
    )
    planted(best={"baseline": 4e-3, "divergence": 2e-3})
    again = study(TUNED_PLAN, store, client, resume=True)
    assert again.dataset["learning_rate"].values.tolist() == [2e-3, 2e-3]  # the baseline's was chosen for good
    assert again.comparisons[0].verdict != "undecided"
    assert starts(store)["tuning/baseline/0.002/101"] == 1
    assert starts(store)["tuning/divergence/0.002/101"] == 2


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        ("fail", "failed", "RuntimeError: the planted failure"),
        ("silent", "failed", "exit code 3, without output"),
        ("killed", "failed", "ended by SIGKILL"),
        ("not finite", "not finite", "the planted blow-up"),
    ],
)
def test_a_run_that_fails_is_its_status_and_leaves_its_pair_out(
    store: Path, planted: Planted, client: Client, act: str, status: str, reason: str
) -> None:
    planted(means={"divergence": 0.3}, acts={"divergence 2": act})
    study_result = study(PLAN, store, client)
    one = study_result.dataset.sel(arm="divergence", seed=2)
    assert (one["status"].item(), one["reason"].item()) == (status, reason)
    assert math.isnan(one["measure"])
    (only,) = study_result.comparisons
    assert (only.seeds, only.left_out) == ((1, 3), (2,))
    assert only.better is False
    assert study_result.claims[0].decision == "does not hold"
    assert f"1 of 6 runs did not finish: divergence with seed 2 {status} ({reason})." in study_result.sentences
    assert study_result.answer == "divergence is significantly worse than baseline."
    assert "2 paired seeds, without seed 2" in study_result.findings[0]


def test_a_run_that_failed_is_tried_again_when_resumed_and_one_that_blew_up_is_not(
    store: Path, planted: Planted, client: Client
) -> None:
    planted(acts={"divergence 2": "fail", "divergence 3": "not finite"})
    study(PLAN, store, client)
    planted()
    study_result = study(PLAN, store, client, resume=True)
    assert study_result.dataset["status"].sel(arm="divergence").values.tolist() == [
        "finished",
        "finished",
        "not finite",
    ]
    assert {place: count for place, count in starts(store).items() if count > 1} == {"runs/divergence/2": 2}
    assert not (store / "runs/divergence/2/failure.json").exists()


@pytest.mark.long
def test_a_finished_study_is_resumed_without_a_worker(store: Path, client: Client) -> None:
    first = study(PLAN, store, client)
    again = study(PLAN, store, "tcp://127.0.0.1:1", resume=True)  # nothing answers there, and nothing is asked
    assert again.dataset.drop_attrs().identical(first.dataset.drop_attrs())
    assert len(again.manifest["runs"]) == 2


@pytest.mark.long
def test_progress_counts_what_was_there(store: Path, client: Client) -> None:
    study(PLAN, store, client)
    (store / "runs/baseline/3/record.json").unlink()
    message: list[tuple[float, float, str]] = []
    study(PLAN, store, client, resume=True, progress=lambda *entry: message.append(entry))
    assert message == [(5, 6, "Training two"), (6, 6, "Training two")]


@pytest.mark.long
def test_another_study_s_folder_is_refused_with_the_difference(store: Path, client: Client) -> None:
    study(PLAN, store, client)
    with pytest.raises(ArgumentValueError, match="store: expected a name where nothing is"):
        study(PLAN, store, client)
    for old, new, message in (
        ("3]", "3, 4]", r"seeds is \[1, 2, 3\] in the store and \[1, 2, 3, 4\] here"),
        ('"divergence"\n\n[[', '"tied"\n\n[[', 'arms.divergence.model.regime is "divergence" in the store and "tied"'),
        ('worse = "baseline"', 'worse = "baseline"\ndifference = 0.1', r"claims.0.difference is null .* and 0.1 here"),
    ):
        with pytest.raises(ArgumentValueError, match=message):
            study(parse_plan(TWO_ARMS.replace(old, new), "two.toml"), store, client, resume=True)


def test_a_folder_begun_with_other_versions_is_refused(
    store: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(PLAN, store, client)
    monkeypatch.setattr("tokendynamics.sweeps.study._store.own_versions", lambda: own_versions() | {"torch": "99.0"})
    with pytest.raises(ArgumentValueError, match=r'torch is ".*" in the store and "99.0" here; install the versions'):
        study(PLAN, store, client, resume=True)


@pytest.mark.long
def test_a_store_is_read_as_it_was_begun_whatever_its_preset_is_now(
    store: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = study(PLAN, store, client)
    monkeypatch.setattr("tokendynamics.sweeps.study._plan.PRESETS", {})
    assert open_study(store).dataset.identical(first.dataset)


def test_what_is_no_study_or_a_damaged_one_is_refused(store: Path, client: Client, tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="store: expected the folder of a study"):
        open_study(tmp_path)
    study(PLAN, store, client)
    described = (store / "study.json").read_text()
    for text in ("{", "[]", "{}", described.replace('"arms"', '"legs"'), described.replace("0.95", "0.9")):
        (store / "study.json").write_text(text)
        with pytest.raises(ArgumentValueError, match="store: expected"):
            open_study(store)


@pytest.mark.long
def test_a_record_that_is_damaged_or_of_another_run_is_never_taken_for_data(store: Path, client: Client) -> None:
    study(PLAN, store, client)
    other = (store / "runs/baseline/1/record.json").read_text()
    (store / "runs/baseline/2/record.json").write_text(other)
    (store / "runs/baseline/3/record.json").write_text(other[: len(other) // 2])
    status = open_study(store).dataset["status"].sel(arm="baseline").values.tolist()
    assert status == ["finished", "not run", "not run"]


@pytest.mark.long
def test_a_run_s_folder_with_another_experiment_in_it_is_left_alone(store: Path, client: Client) -> None:
    study(PLAN, store, client)
    folder = store / "runs/baseline/1"
    (folder / "record.json").unlink()
    (folder / "experiment.json").write_text((store / "runs/baseline/2/experiment.json").read_text())
    selected = study(PLAN, store, client, resume=True).dataset.sel(arm="baseline", seed=1)
    assert selected["status"] == "failed"
    assert selected["reason"] == "its folder belongs to another experiment (seed: 2 then, 1 now): remove it"
    assert starts(store)["runs/baseline/1"] == 1


@pytest.mark.slow
def test_files_hold_every_digit_and_the_dataset_gives_the_same_result(
    store: Path, planted: Planted, client: Client, tmp_path: Path, undrawn: None
) -> None:
    planted(means={"divergence": 0.3})
    result = study(PLAN, store, client)
    paths = result.save(tmp_path / "out")
    assert [path.name for path in paths] == [
        "claims.csv", "comparisons.csv", "report.html", "runs.csv", "study.json", "study.zarr",
    ]  # fmt: skip
    (again,) = [StudyResult(xr.open_zarr(path, consolidated=False)) for path in paths if path.suffix == ".zarr"]
    assert again.sentences == result.sentences
    summary = json.loads((tmp_path / "out" / "study.json").read_text())
    assert summary["comparisons"][0]["differences"] == list(result.comparisons[0].differences)
    assert summary["claims"][0]["decision"] == "does not hold"
    header, *rows = (tmp_path / "out" / "runs.csv").read_text().splitlines()
    place = header.split(",").index("measure")
    assert [float(row.split(",")[place]) for row in rows] == result.dataset["measure"].values.ravel().tolist()
    (tmp_path / "out" / "runs.csv").write_text("mine")
    with pytest.raises(ArgumentValueError, match=r"runs\.csv"):
        result.save(tmp_path / "out")
    result.save(tmp_path / "out", overwrite=True)


@pytest.mark.slow
@pytest.mark.parametrize("content", [b'{"runs": ["\xa0"]}', b'{"runs": ', b"[]"])
def test_a_manifest_that_is_damaged_is_named_and_written_anew(content: bytes, store: Path, client: Client) -> None:
    """It ended in a UnicodeDecodeError, or later, when the page was drawn."""
    study(PLAN, store, client)
    (store / "manifest.json").write_bytes(content)
    with pytest.raises(ArgumentValueError, match=re.escape(str(store / "manifest.json"))):
        open_study(store)
    study(PLAN, store, client, resume=True)
    assert open_study(store).manifest["runs"]
