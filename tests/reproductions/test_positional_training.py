"""What `positional` says of trained networks: printed numbers, planted studies and curves, and short trainings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import xarray as xr

from reproductions.drawing import layer_lines
from reproductions.figures import FIGURES
from reproductions.positional import fig3, fig6, fig7
from reproductions.positional.by_seed import curves_of, falls, lowest_of_values, mean_of_seeds, rises, why_not
from reproductions.positional.printed import Column, as_printed, both_prints, in_the_text, least_favourable, welch
from reproductions.positional.study_table import (
    TABLES,
    Table,
    about_gap,
    about_print,
    drawn,
    plan_of,
    quantities,
    said,
    short,
)
from reproductions.positional.trained import place_of, short_training, texts_of_test, working_folder
from reproductions.record import Quantity, Record, Verdict
from tokendynamics import figures
from tokendynamics.numerics.errors import CheckpointError
from tokendynamics.numerics.intervals import T_COVERAGE
from tokendynamics.sweeps.study import StudyResult
from tokendynamics.training import Record as Training

# --- printed numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"), [((31.37, 0.14), (31.10, 0.16)), ((1.0, 0.5), (3.0, 0.01)), ((2.0, 1.0), (2.0, 3.0))]
)
def test_welch_is_scipys_test_of_the_same_summaries(one: tuple[float, float], other: tuple[float, float]) -> None:
    for runs in (2, 5, 30):
        result = scipy.stats.ttest_ind_from_stats(*one, runs, *other, runs, equal_var=False)
        assert welch(one, other, runs) == pytest.approx(result.pvalue, rel=1e-10)
    assert (welch((1.0, 0.0), (1.0, 0.0)), welch((1.0, 0.0), (2.0, 0.0))) == (1.0, 0.0)


def test_no_numbers_that_round_to_the_printed_ones_have_a_larger_p() -> None:
    random, (one, other) = np.random.default_rng(1), ((1.345, 0.002), (1.350, 0.003))
    most = least_favourable(one, other, 3)
    for _ in range(200):
        shifted = [tuple(np.array(row) + random.uniform(-5e-4, 5e-4, 2)) for row in (one, other)]
        assert [tuple(np.round(row, 3)) for row in shifted] == [one, other]
        assert welch(*shifted) <= most  # pyright: ignore[reportArgumentType]
    assert least_favourable((1.0, 0.1), (1.0, 0.1), 1) == 1.0


CALLED = {"a": "A", "b": "B"}


@pytest.mark.parametrize(
    ("a", "b", "verdict", "words"),
    [
        ((1.00, 0.02), (1.20, 0.02), "yes", ""),
        ((1.20, 0.02), (1.00, 0.02), "no", ""),
        ((1.00, 0.20), (1.20, 0.20), "cannot tell", "p = 0.15 by the printed ± over 5 runs (Welch)"),
        ((1.00, 0.015), (1.03, 0.015), "cannot tell", "but up to 0.15 for numbers that round to the printed ones"),
    ],
)
def test_a_printed_difference_holds_only_where_the_printed_deviations_separate_it(
    a: tuple[float, float], b: tuple[float, float], verdict: Verdict, words: str
) -> None:
    for lower in (True, False):
        rows = {"a": a, "b": b} if lower else {"a": b, "b": a}
        result = as_printed(Column("x", rows, 2, lower), "a", "b", CALLED)
        assert result.verdict == verdict
        assert words in result.unsettled
        assert result.name == "x, as printed: A − B"
        assert result.ours == pytest.approx((a[0] - b[0]) * (1 if lower else -1))


def test_what_the_paper_prints_separates_most_regimes_and_not_the_two_remedies_on_words() -> None:
    assert about_print(TABLES["table1"]) == (
        "What the paper prints of five runs does not tell intermediate from convergence (EnWik8, test bits per "
        "character)."
    )
    assert "(WikiText-103, test perplexity)" in about_print(TABLES["table3"])
    words = as_printed(TABLES["table3"].columns[1], "diagonal", "identity", TABLES["table3"].called)
    assert (words.verdict, words.unsettled) == ("cannot tell", "p = 0.66 by the printed ± over 5 runs (Welch)")
    assert as_printed(TABLES["table3"].columns[0], "diagonal", "identity", TABLES["table3"].called).ok
    apart = replace(
        TABLES["table1"], columns=(Column("x", {arm: (rank, 0.1) for rank, arm in enumerate(BEST_FIRST)}, 1),)
    )
    assert about_print(apart) == "What the paper prints of five runs tells all arms apart."


def test_the_text_and_its_tables_and_both_prints_of_a_table_are_held_against_each_other() -> None:
    assert [row.ok for row in (*TABLES["table1"].arithmetic, *TABLES["table3"].arithmetic)] == [True] * 4
    assert not in_the_text("x", 0.51, 0.52).ok
    both = both_prints(TABLES["table2"].columns)
    assert both.verdict == "no"
    assert both.ours == pytest.approx(0.03)
    assert both.reason == "8 of 8 entries differ between the two prints"


PRINTED = """
rotary 1.295±0.003 31.37±0.14 32.35±0.18
identity 1.288±0.002 31.10±0.16 32.09±0.17
diagonal 1.281±0.002 31.06±0.11 32.04±0.14
baseline 1.331±0.002 31.63±0.12 32.37±0.10
convergence 1.350±0.003 32.24±0.15 33.05±0.13
intermediate 1.345±0.002 31.91±0.11 32.78±0.12
divergence 1.324±0.002 31.12±0.11 32.07±0.13
baseline 71.79±0.02 90.99±0.02
convergence 71.37±0.02 90.65±0.01
intermediate 71.62±0.03 90.94±0.02
divergence 71.93±0.02 91.03±0.03
"""  # Tables 4, 5 and 6, row by row


def test_every_number_of_the_tables_is_the_printed_one() -> None:
    rows = [line.split() for line in PRINTED.strip().splitlines()]
    for table, block in ((TABLES["table3"], rows[:3]), (TABLES["table1"], rows[3:7]), (TABLES["table2"], rows[7:])):
        held = {
            arm: [f"{mean:.{column.digits}f}±{std:.{column.digits}f}" for column in table.columns
                  for mean, std in [column.rows[arm]]]
            for arm in table.columns[0].rows
        }  # fmt: skip
        assert held == {arm: cells for arm, *cells in block}


# --- planted studies -----------------------------------------------------------------------------------------------

BEST_FIRST = ("divergence", "baseline", "intermediate", "convergence")
CLAIMS = [("divergence", "baseline"), ("baseline", "convergence"), ("intermediate", "convergence")]


def planted(
    means: Mapping[str, float],
    *,
    claims: Sequence[tuple[str, str]] = CLAIMS,
    noise: float = 0.01,
    lost: Sequence[str] = (),
) -> StudyResult:
    """Return a study of five seeds, whose noise is shared by the arms of a seed but for a hundredth of `noise`."""
    random = np.random.default_rng(7)
    shared, direct = random.normal(0, 1, 5), {arm: random.normal(0, noise, 5) for arm in means}
    values = np.array([mean + shared + direct[arm] for arm, mean in means.items()])
    status = np.array([["failed" if arm in lost else "finished"] * 5 for arm in means])
    dataset = xr.Dataset(
        {
            "measure": (("arm", "seed"), np.where(status == "finished", values, np.nan)),
            "status": (("arm", "seed"), status),
            "seconds": (("arm", "seed"), np.where(status == "finished", 60.0, np.nan)),
            "learning_rate": (("arm",), np.full(len(means), 0.004)),
        },
        {"arm": list(means), "seed": [1, 2, 3, 4, 5]},
        {
            "name": "planted",
            "measure": "bits_per_byte",
            "better": "lower",
            "reference": "baseline",
            "confidence": 0.95,
            "claims": json.dumps([{"better": better, "worse": worse, "difference": None} for better, worse in claims]),
        },
    )
    return StudyResult(dataset)


ORDERED = {"divergence": 1.0, "baseline": 1.1, "intermediate": 1.2, "convergence": 1.3}


def claimed_rows(table: Table, result: StudyResult) -> dict[tuple[str, str], Quantity]:
    rows = [row for row in quantities(table, result) if "(printed for " in row.name]
    return {
        (computed.claim.better, computed.claim.worse): row for computed, row in zip(result.claims, rows, strict=True)
    }


def test_the_paper_s_order_is_found_where_it_was_planted_and_denied_where_it_was_turned_round() -> None:
    right, turned = planted(ORDERED), planted({arm: -mean for arm, mean in ORDERED.items()})
    for result, verdict, word in ((right, "yes", "holds"), (turned, "no", "does not hold")):
        rows = claimed_rows(TABLES["table1"], result)
        assert {row.verdict for row in rows.values()} == {verdict}
        assert said(TABLES["table1"], result).count(f": {word}") == len(CLAIMS)
    first = claimed_rows(TABLES["table1"], turned)[CLAIMS[0]]
    assert first.name == "bits per byte: divergence − baseline (printed for EnWik8, test bits per character: −0.007)"
    assert first.reason.startswith("it is the other way round, p = ")


def test_an_order_that_noise_hides_is_not_decided_and_the_size_that_would_decide_it_is_told() -> None:
    result = planted(ORDERED, noise=0.3)
    rows = claimed_rows(TABLES["table1"], result)
    assert {row.verdict for row in rows.values()} == {"cannot tell"}
    assert said(TABLES["table1"], result).count("cannot be decided at this size") == len(CLAIMS)
    computed, every = result.claims[0].comparison, {row.name: row.ours for row in quantities(TABLES["table1"], result)}
    words = "bits per byte: divergence − baseline"
    assert every[f"{words}: lower end of its 95 % interval"] == computed.low
    assert every[f"{words}: upper end of its 95 % interval"] == computed.high
    assert every[f"{words}: smallest difference detectable with 80 % probability"] == computed.detectable
    assert every[f"{words}: seeds that separate one as large as ours at 80 %"] == computed.needed
    assert f"5 seeds separate {computed.detectable:.2g}" in rows[CLAIMS[0]].unsettled
    assert f"takes {computed.needed:,} seeds" in rows[CLAIMS[0]].unsettled


def test_an_arm_without_a_finished_run_leaves_its_claims_open() -> None:
    result = planted(ORDERED, lost=["divergence"])
    rows = {row.name: row for row in quantities(TABLES["table1"], result)}
    assert rows["runs that did not finish"].ours == 5
    assert claimed_rows(TABLES["table1"], result)[CLAIMS[0]].unsettled == "0 paired seeds finished"
    assert claimed_rows(TABLES["table1"], result)[CLAIMS[1]].ok
    record = Record(
        "positional", "Table 1", "", (), "", 1, results={"found": result, "called": TABLES["table1"].called}
    )
    assert len(drawn(record).axes) == 2


def test_means_stand_beside_printed_ones_of_other_data_without_a_verdict() -> None:
    result = planted(ORDERED)
    values = list(result.values["divergence"].values())
    mean, deviation = (
        row for row in quantities(TABLES["table1"], result) if row.name.startswith("divergence: bits per")
    )
    assert (mean.expected, deviation.expected) == (1.324, 0.002)
    assert (mean.verdict, mean.source) == ("measured", "paper")
    assert mean.ours == pytest.approx(np.mean(values))
    assert deviation.ours == pytest.approx(np.std(values, ddof=1))


@pytest.mark.parametrize(
    ("tied", "w_only", "divergence", "words"),
    [
        (1.2, 1.0, 1.2, "worse|not separated|is not separated"),
        (1.2, 1.1, 1.3, "worse|worse|is separated (divergence worse)"),
        (1.0, 1.0, 1.1, "not separated|not separated|is separated (divergence worse)"),
        (0.8, 0.9, 0.7, "better|better|is separated (divergence better)"),
    ],
)
def test_controls_tell_the_tie_from_the_signs(tied: float, w_only: float, divergence: float, words: str) -> None:
    means = {"baseline": 1.0, "tied": tied, "w_only": w_only, "divergence": divergence}
    result = planted(means, claims=CLAIMS[:1])
    tie, sign, added = words.split("|")
    assert about_gap(TABLES["table1"], result) == (
        f"Beside baseline the tie of V to W without any sign is {tie}; the sign of W alone is {sign}; what signs add "
        f"to the tie {added}."
    )
    rows = {row.name: row for row in quantities(TABLES["table1"], result)}
    assert rows["bits per byte: divergence − tied"].ours == pytest.approx(divergence - tied, abs=0.03)
    assert rows["bits per byte: tied − baseline: lower end of its 95 % interval"].ours < tied - 1.0


def test_without_controls_nothing_is_said_of_them_and_what_no_claim_tests_is_measured() -> None:
    result = planted(ORDERED, claims=CLAIMS[:1])
    assert about_gap(TABLES["table1"], result) == ""
    rows = {row.name: row for row in quantities(TABLES["table1"], result)}
    assert rows["bits per byte: baseline − intermediate"].verdict == "measured"
    assert rows["bits per byte: baseline − intermediate"].ours == pytest.approx(-0.1, abs=0.03)


@pytest.mark.parametrize(
    "table", [TABLES["table1"], TABLES["table2"], TABLES["table3"]], ids=lambda table: table.example
)
def test_the_study_of_a_table_has_its_arms_and_claims_and_its_measure_points_the_same_way(table: Table) -> None:
    plan = plan_of(table.example)
    assert set(plan.arms) <= set(table.called)
    assert {(claim.better, claim.worse) for claim in plan.claims} <= set(table.orders)
    assert all(claim.difference is None for claim in plan.claims)
    assert all(column.lower_is_better == plan.lower_is_better for column in table.columns)
    assert all({arm for pair in table.orders for arm in pair} == set(column.rows) for column in table.columns)
    # What is printed is in the order that is claimed.
    signs = {np.sign(column.difference(*pair)) for column in table.columns for pair in table.orders}
    assert signs == {-1.0 if plan.lower_is_better else 1.0}
    brief = short(plan, 2, 3)
    assert brief.seeds == plan.seeds[:3]
    assert list(brief.arms) == list(plan.arms)
    assert {arm.recipe.steps for arm in brief.arms.values()} == {2}
    assert {arm.model["hidden_size"] for arm in brief.arms.values()} == {16}
    assert brief.tuning_runs(next(iter(plan.arms))) == {}


# --- planted curves ------------------------------------------------------------------------------------------------

DOWN, UP, LESS = np.array([0.0, -0.1, -0.3, -0.4]), np.array([0.0, 0.2, 0.3, 0.6]), np.array([0.0, 0.0, 0.1, 0.2])


def seeds_of(curve: np.ndarray, count: int = 4) -> np.ndarray:
    """Return curves of several seeds: the curve, and a hundredth more slope for each seed."""
    return curve + 0.001 * np.arange(count)[:, None] * np.arange(len(curve))


def test_every_seed_and_layer_must_fall_or_rise() -> None:
    assert [falls("x", seeds_of(curve)).verdict for curve in (DOWN, UP, LESS)] == ["yes", "no", "no"]
    assert [rises("x", seeds_of(curve)).verdict for curve in (DOWN, UP, LESS)] == ["no", "yes", "yes"]
    one_off = seeds_of(DOWN)
    one_off[2, 2] = one_off[2, 1] + 0.05
    assert falls("x", one_off).ours == pytest.approx(0.05)
    assert falls("x", one_off, "a reason").reason == "a reason"
    assert falls("x", seeds_of(DOWN), "a reason").reason == ""


def test_trainings_that_did_not_finish_are_left_out_and_numbers_that_are_too_large_are_not_decided() -> None:
    lost = np.vstack([seeds_of(UP), np.full(4, np.nan)])
    assert rises("x", lost).ok
    assert mean_of_seeds("x", lost[:, -1] - lost[:, 0], "≥").ok
    assert rises("x", lost[-1:]).unsettled == "no training finished"
    beyond = seeds_of(UP)
    beyond[0, -1] = np.nan
    assert rises("x", beyond).unsettled == "states are beyond what a number can hold"


def test_a_mean_of_seeds_is_decided_by_students_interval() -> None:
    random = np.random.default_rng(2)
    for shift in (0.0, 0.5, 1.0, 2.0, 4.0):
        values = random.normal(shift, 1.0, 4)
        result = scipy.stats.ttest_1samp(values, 0.0)
        decided = mean_of_seeds("x", values, "≥").verdict != "cannot tell"
        assert decided == (result.pvalue < 0.05)
    assert mean_of_seeds("x", np.array([1.0]), "≥").unsettled == "1 of 1 seeds have a number"
    assert mean_of_seeds("x", np.array([-1.0, -1.1]), "≥", "why").reason == "why"


def test_figure_7_says_of_each_projection_which_claims_hold() -> None:
    right = {"convergence": DOWN, "intermediate": LESS, "divergence": UP, "baseline": LESS}
    right = {regime: seeds_of(curve) for regime, curve in right.items()}
    turned = {**right, "convergence": seeds_of(UP), "intermediate": seeds_of(DOWN), "baseline": seeds_of(2 * UP)}
    rows = {
        "identity": fig7.compared("identity", dict.fromkeys(("norm", "distance"), right), -1.0),
        "free": fig7.compared("free", dict.fromkeys(("norm", "distance"), turned), -1.0),
    }
    assert fig7.said(rows) == (
        "Norms and distances, without norms and feed-forward parts. Identity projection: fall in every layer under "
        "convergence: so; rise under the intermediate regime, and in every layer under divergence: so; rise more under "
        "divergence than under the intermediate regime: so; and than in the baseline: so. Free projection: fall in "
        "every layer under convergence: not so; rise under the intermediate regime, and in every layer under "
        "divergence: not so; rise more under divergence than under the intermediate regime: so; and than in the "
        "baseline: not so."
    )
    fall = rows["free"][fig7.FALLS][0]
    assert (fall.verdict, fall.reason) == ("no", why_not("free", -1.0))
    too_far_rows = fig7.compared("identity", dict.fromkeys(("norm", "distance"), turned), -2.8)
    too_far = too_far_rows[fig7.FALLS][0]
    assert too_far.reason == "Re λ(V) reaches -2.8: below −2 a layer of size 1 overshoots"
    assert why_not("identity", -1.9) == why_not("identity", math.nan) == ""
    other = [row for claim in (fig7.RISE, fig7.STEEPEST) for row in too_far_rows[claim]]
    assert {row.verdict for row in other} >= {"no"}
    assert {row.reason for row in other} == {""}  # an overshooting convergence says nothing of divergence
    gained = {row.name: row.ours for row in rows["identity"][""]}
    assert gained["identity projection, mean norm, divergence: gain of ln over all layers, mean of seeds"] == (
        pytest.approx(0.6 + 0.001 * 1.5 * 3)
    )


def test_figure_6_compares_what_rotary_and_sinusoidal_positions_gain_seed_by_seed() -> None:
    faster = {"rotary": seeds_of(UP), "sinusoidal": seeds_of(LESS)}
    slower = {"rotary": seeds_of(LESS), "sinusoidal": seeds_of(UP)}
    noise = np.array([0.3, -0.4, 0.1, 0.0])[:, None] * np.arange(4)
    unclear = {"rotary": seeds_of(UP) + noise, "sinusoidal": seeds_of(UP)}
    for curves, word in ((faster, "so"), (slower, "not so"), (unclear, "not decided by these seeds")):
        rows = fig6.compared("identity", dict.fromkeys(("norm", "distance"), curves))
        assert fig6.said({"identity": rows}).endswith(f"sinusoidal ones: identity projection {word}.")
    assert fig6.compared("identity", dict.fromkeys(("norm", "distance"), faster))[0].ours == pytest.approx(0.4)


def test_figure_3_holds_norms_against_the_regimes() -> None:
    right = fig3.compared("identity", {"convergence": seeds_of(DOWN), "divergence": seeds_of(UP)}, -1.0)
    wrong = fig3.compared("free", {"convergence": seeds_of(UP), "divergence": seeds_of(DOWN)}, -1.0)
    words = fig3.said(24, {"identity": right, "free": wrong}, {})
    assert "(a) norms fall in every layer under convergence: identity projection so, free projection not so" in words
    assert "(b) they grow in every layer under divergence: identity projection so, free projection not so" in words


def test_curves_are_logarithms_by_projection_measure_and_name_paired_by_seed() -> None:
    experiment = short_training("baseline", output="free", seed=1, layers=2, steps=4)

    def ended(status: str, *norms: float | None) -> Training:
        layers = {"bare": {"norm": list(norms), "distance": [1.0] * len(norms)}} if norms else {}
        course = ({"step": 2.0, "value_real_lowest": -9.0}, {"step": 4.0, "value_real_lowest": -0.5})
        return Training(experiment, status, 4, (), course, layers=layers)  # pyright: ignore[reportArgumentType]

    e = math.e
    trainings = {
        ("free", "a", 1): ended("finished", 1.0, e, e**2),
        ("free", "a", 2): ended("not finite"),
        ("free", "b", 1): ended("finished", e, 1.0, None),
        ("free", "b", 2): ended("finished", 1.0, 1.0, 1.0),
    }
    assert lowest_of_values(trainings, "free", "a") == -0.5
    assert math.isnan(lowest_of_values(trainings, "identity", "a"))
    norms = curves_of(trainings)["free"]["norm"]
    np.testing.assert_allclose(norms["a"], [[0, 1, 2], [np.nan] * 3], atol=1e-15)
    np.testing.assert_allclose(norms["b"], [[1, 0, np.nan], [0, 0, 0]], atol=1e-15)


# --- short trainings -----------------------------------------------------------------------------------------------


def test_figures_that_want_the_same_training_share_it(tmp_path: Path) -> None:
    one = short_training("baseline", output="identity", seed=1, layers=4, steps=300)
    assert one == short_training("baseline", output="identity", seed=1, layers=4, steps=300, positions="sinusoidal")
    same, other = place_of(one, tmp_path), place_of(one.changed(recipe={"steps": 400}), tmp_path)
    assert same == place_of(one.changed(), tmp_path)
    assert same != other


def test_texts_are_of_the_split_that_nothing_is_trained_on() -> None:
    from tokendynamics.training.networks import task_of

    experiment = short_training("baseline", output="free", seed=1, layers=2, steps=4)
    drawn_texts = texts_of_test(experiment, 20, 6, seed=3).numpy().astype(np.uint8)
    test = b"\n".join(bytes(window["ids"]) for window in task_of(experiment, 1).test)  # pyright: ignore
    assert drawn_texts.shape == (6, 20)
    assert all(bytes(text) in test for text in drawn_texts)
    assert len({bytes(text) for text in drawn_texts}) == 6


def test_without_the_packages_for_training_a_figure_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokendynamics.numerics.extras.missing", lambda extra: ("accelerate",))
    with pytest.raises(CheckpointError, match="no accelerate"), working_folder(None):
        pass
    with pytest.raises(CheckpointError):
        FIGURES["positional-table3"].reproduce(quick=True)


@pytest.mark.slow
def test_a_figure_goes_on_with_the_trainings_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = FIGURES["positional-fig3"].reproduce(quick=True, folder=tmp_path)
    trained = sorted(path.name for path in (tmp_path / "trained").iterdir())
    assert len(trained) == 4
    taken = [json.loads((tmp_path / "trained" / name / "record.json").read_text())["seconds"] for name in trained]
    monkeypatch.setattr("tokendynamics.training._training_run.TrainingRun", None)  # nothing can be trained any more
    later = FIGURES["positional-fig4"].reproduce(quick=True, folder=tmp_path)  # its networks are among them
    assert sorted(path.name for path in (tmp_path / "trained").iterdir()) == trained
    assert before["seconds of training in all"].ours == pytest.approx(sum(taken), rel=1e-12)
    for name, record in (("positional-fig3", before), ("positional-fig4", later)):
        figures.save(FIGURES[name].draw(record), tmp_path / f"{name}.svg")
        assert record.quick == dict(FIGURES[name].quick)
        assert record["trainings that did not finish"].ours == 0


@pytest.mark.slow
def test_a_short_table_is_trained_drawn_and_marked_as_reduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = TABLES["table3"].reproduce(steps=2, seeds=1, folder=tmp_path)
    assert record.statement.startswith("Reduced: 2 layers of 16, 2 steps of ")
    assert T_COVERAGE in record.statement
    assert record["runs that did not finish"].ours == 0
    assert record["seconds of a run, median"].ours > 0
    assert [row.name for row in record.quantities if row.name.startswith("bits per byte: (RoPE + λA) − (RoPE + λI)")]
    assert record.quantities[0].unsettled == "1 paired seeds finished"
    assert len(json.dumps(record.as_json(), indent=2)) < 40_000
    figures.save(TABLES["table3"].draw(record), tmp_path / "table.svg")
    monkeypatch.setattr("tokendynamics.training._training_run.TrainingRun", None)
    again = TABLES["table3"].reproduce(steps=2, seeds=1, folder=tmp_path)
    assert [row.ours for row in again.quantities] == pytest.approx([row.ours for row in record.quantities], nan_ok=True)


def test_ticks_of_layers_are_whole_and_those_of_a_narrow_axis_round_numbers() -> None:
    figure, (narrow, wide, between) = figures.panels(3)
    layer_lines(narrow, {"one": np.log(np.linspace(11.7, 12.3, 5))[None]}, "distance")
    layer_lines(wide, {"one": np.log(np.geomspace(1e-3, 1e3, 5))[None]}, "norm")
    layer_lines(between, {"one": np.log(np.geomspace(0.1, 25.0, 5))[None]}, "norm")  # 2.4 powers of ten
    figure.canvas.draw()
    assert all(float(tick).is_integer() for tick in narrow.get_xticks())
    steps = np.diff([10**tick for tick in narrow.get_yticks()])
    assert len(steps) >= 2
    np.testing.assert_allclose(steps, steps[0], rtol=1e-9)
    assert all(float(tick).is_integer() for panel in (wide, between) for tick in panel.get_yticks())
