"""The studies: every sentence can say the opposite, numbers are what they are called, what is kept is what was run."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from distributed import Client
from torch import Tensor

from reproductions.studies import (
    consensus_time,
    metastability,
    remark_3_2,
    remark_3_5,
    rotary_strength,
    wendel,
)
from reproductions.studies.__main__ import main
from reproductions.studies.design import design, text_of
from reproductions.studies.record import Estimate, StudyRecord, Table
from reproductions.studies.remark_3_5 import RATES, curves, roc_picture
from reproductions.studies.statistics import (
    area,
    bootstrap,
    bootstrap_groups,
    change,
    power,
    sensitivity,
    share,
    share_of,
    slope,
)
from reproductions.studies.study import STUDIES, Study
from tokendynamics import observables
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.sweeps.systems.measures import OUTCOMES, STATUSES

FOLDER = Path(__file__).parents[2] / "docs" / "studies"


# What is kept


def test_every_study_has_a_record_and_there_are_no_others() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(STUDIES)
    assert {path.stem for path in FOLDER.glob("*.md")} == set(STUDIES)
    drawn = {study._file(table) for study in STUDIES.values() for table in study.pictures}
    assert {path.name for path in FOLDER.glob("*.svg")} == drawn


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_is_what_the_record_gives_and_the_record_is_of_the_designs_that_are_there(name: str) -> None:
    study = STUDIES[name]
    record = study.kept(FOLDER)
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == study.page(record)
    assert record.size == "full"
    assert tuple(record.designs) == study.specs
    for spec, message in record.designs.items():
        assert message["sha256"] == hashlib.sha256(text_of(spec).encode()).hexdigest()[:16]
        assert message == design(spec, "full", Path("nowhere")).told()


@pytest.mark.parametrize("name", STUDIES)
def test_a_record_is_small_says_nothing_of_the_machine_and_loses_nothing_on_the_way(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert len(text) < 100_000
    assert not re.search(r"(/[a-z_.]+){2,}|[A-Z]:\\|file:", text)
    assert StudyRecord.from_json(json.loads(text)).as_json() == json.loads(text)


@pytest.mark.parametrize("name", STUDIES)
def test_every_estimate_that_is_kept_stands_inside_its_interval(name: str) -> None:
    cells = [cell for table in STUDIES[name].kept(FOLDER).tables for row in table.rows for cell in row]
    estimates = [cell for cell in cells if isinstance(cell, Estimate) and not math.isnan(cell.value)]
    assert estimates
    assert all(estimate.low - 1e-6 <= estimate.value <= estimate.high + 1e-6 for estimate in estimates)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "heading"), [("wendel", "share"), ("remark-3-2", "states with a distance that falls")]
)
def test_a_twentieth_of_the_draws_agrees_with_the_shares_that_are_kept(name: str, heading: str, tmp_path: Path) -> None:
    study = STUDIES[name]
    record = study.run(tmp_path, "quick")
    pairs = [entry.tables[0].column(heading) for entry in (record, study.kept(FOLDER))]
    decided = [change(few, many) for few, many in zip(*pairs, strict=True)]
    # The quick draws are the first of the full ones, so they agree better than independent ones would.
    assert sum(entry != "not decided" for entry in decided) <= 0.1 * len(decided)
    assert all(message["draws"] < study.kept(FOLDER).designs[spec]["draws"] for spec, message in record.designs.items())


def test_a_record_that_is_not_there_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="the record of wendel"):
        STUDIES["wendel"].kept(tmp_path)
    (tmp_path / "wendel.json").write_text('{"study": "wendel"}')
    with pytest.raises(ArgumentValueError, match="the record of wendel"):
        STUDIES["wendel"].kept(tmp_path)


# Runs


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None, set_as_default=False
    ) as made:
        yield made


@pytest.mark.slow
def test_a_study_runs_from_its_design_to_its_page_and_goes_on_with_its_store(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reproductions.studies.design._PART", 60)
    monkeypatch.setattr("reproductions.studies.design._FEWEST", 1)
    study = STUDIES["metastability"]
    first = study.run(tmp_path, "quick", scheduler=client)
    assert [table.rows for table in study.run(tmp_path, "quick", scheduler=client).tables] == [
        table.rows for table in first.tables
    ]
    study.write(first, tmp_path / "out")
    page = (tmp_path / "out" / "metastability.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {study.title}\n\n**Quick run**")
    assert all(sentence in page for sentence in study.conclusions(study.kept(tmp_path / "out")))
    counts = first.tables[0].each()
    # 24 uniform tokens on the circle are several clusters at an angle of 0.05, and one in the end where β is small.
    assert all(row["t = 0"].value > 5 for row in counts)
    assert counts[0]["one cluster at the end"].value == 1


def test_the_command_lists_and_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--list"]) == 0
    assert all(name in capsys.readouterr().out for name in ["wendel"])
    with pytest.raises(SystemExit):
        main(["wendel", "--quick", "--records", str(tmp_path)])
    assert "not of --quick ones" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["no-such-study"])


def test_quick_is_a_twentieth_of_the_draws_and_eight_at_least() -> None:
    full, quick = (design("remark-3-2", size, Path("nowhere")).plan.table.draws for size in ("full", "quick"))
    assert quick == full // 20
    assert design("remark-3-5-check", "quick", Path("nowhere")).plan.table.draws == 8


def test_the_longer_runs_are_of_the_first_systems_of_the_shorter_ones() -> None:
    short, long = (
        next(design(name, "quick", Path("nowhere")).built()) for name in ("remark-3-5-normal", "remark-3-5-check")
    )
    count = min(len(short[1].start), len(long[1].start))
    assert short[0] == long[0]
    assert short[1].start[:count].equal(long[1].start[:count])
    matrices = [setup.flow.attention.ov.matrix_at(0.0)[:count] for _, setup in (short, long)]
    assert matrices[0].equal(matrices[1])


# Statistics


def test_the_area_is_the_share_of_pairs_in_order() -> None:
    random = np.random.default_rng(5)
    score, positive = random.integers(0, 6, 60).astype(float), random.random(60) < 0.4
    pairs = itertools.product(score[positive], score[~positive])
    order = [1.0 if high > low else 0.5 if high == low else 0.0 for high, low in pairs]
    assert area(score, positive) == pytest.approx(np.mean(order))
    assert area(-score, positive) == pytest.approx(1 - np.mean(order))
    assert math.isnan(area(score, np.ones(60, dtype=bool)))


def test_the_curve_s_points_enclose_the_area() -> None:
    random = np.random.default_rng(6)
    positive = random.random(4000) < 0.5
    score = random.standard_normal(4000) + positive
    rates = np.linspace(0.0, 1.0, 201)
    curve = [sensitivity(score, positive, rate) for rate in rates]
    assert np.all(np.diff(curve) >= 0)
    assert np.trapezoid(curve, rates) == pytest.approx(area(score, positive), abs=0.005)
    # Two unit normals one apart: Φ(1/√2).
    assert area(score, positive) == pytest.approx(0.7602, abs=0.03)


def test_the_picture_of_the_curves_has_a_line_for_each_dim_with_its_points() -> None:
    random = np.random.default_rng(7)

    def systems(gap: float) -> dict[str, np.ndarray]:
        diverged = random.random(900) < 0.5
        return {"diverged": diverged} | {
            name: random.standard_normal(900) + shift * diverged for name, shift in (("a", gap), ("b", -gap))
        }

    table = curves([("few", systems(1.0), 2), ("few", systems(2.0), 16), ("all", systems(0.0), 16)], ("a", "b"))
    drawn = roc_picture(table)
    assert [ax.get_title(loc="left") for ax in drawn.axes] == ["few\na", "few\nb", "all\na", "all\nb"]
    for row in table.each():
        ax = next(ax for ax in drawn.axes if ax.get_title(loc="left") == f"{row['draws']}\n{row['score']}")
        line = next(line for line in ax.lines if line.get_label() == str(row["dim"]))
        assert list(line.get_ydata()) == [row[f"at {rate:g}"] for rate in RATES]
        # Of unit normals `gap` apart: Φ(gap/√2); the other score has the other sign.
        known = {("few", 2): 0.760, ("few", 16): 0.921, ("all", 16): 0.5}[row["draws"], row["dim"]]
        enclosed = np.trapezoid(line.get_ydata(), RATES)
        assert enclosed == pytest.approx(known if row["score"] == "a" else 1 - known, abs=0.06)
    colours = {line.get_label(): line.get_color() for line in drawn.axes[0].lines[1:]}
    assert len(set(colours.values())) == 2
    assert drawn.axes[2].lines[1].get_color() == colours["16"]
    (legend,) = [ax.get_legend() for ax in drawn.axes if ax.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == ["2", "16"]  # every dim, though some draws have fewer


def test_a_difference_of_shares_is_decided_as_newcombe_has_it() -> None:
    # Newcombe (1998), table II (a): 56 of 70 and 48 of 80, the difference 0.2 has the interval 0.0524 … 0.3339.
    more, fewer = share_of(56, 70), share_of(48, 80)
    difference = more.value - fewer.value
    low = difference - math.hypot(more.value - more.low, fewer.high - fewer.value)
    assert low == pytest.approx(0.0524, abs=1e-4)
    assert (change(fewer, more), change(more, fewer)) == ("more", "fewer")
    assert change(share_of(9, 10), share_of(3, 10)) == "fewer"
    assert change(share_of(9, 10), share_of(7, 10)) == "not decided"


@pytest.mark.slow
def test_bootstrap_intervals_hold_the_mean_as_often_as_they_say() -> None:
    random = np.random.default_rng(7)
    samples = random.standard_normal((200, 60)) + 3
    held = 0
    for seed, sample in enumerate(samples):
        both = (
            bootstrap(lambda chosen, s=sample: float(s[chosen].mean()), 60, seed, resamples=200),
            bootstrap_groups(lambda groups: float(groups[0].mean()), [sample], seed, resamples=200),
        )
        assert both[0] == both[1]
        held += both[0].low <= 3 <= both[0].high
    assert 0.88 <= held / 200 <= 0.99


def test_exponents_are_those_of_the_law() -> None:
    x = np.array([2.0, 4.0, 8.0, 16.0])
    assert power(x, 5 * x**0.7) == pytest.approx(0.7)
    assert slope(x, np.log(3 * np.exp(1.5 * x))) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.9187, 0.9002, 0.9341), "0.919 (0.900 … 0.934)"),
        (Estimate(0.9187, 0.8502, 0.9641), "0.92 (0.85 … 0.96)"),
        (Estimate(0.0, 0.0, 0.0011), "0 (0 … 0.0011)"),
        (Estimate(123456.0, 1000.0, 900000.0), "123456 (1000 … 900000)"),
        (Estimate(math.nan, math.nan, math.nan), "–"),
        (Estimate(2.5, 2.5, math.inf), "2.5"),
        (Estimate(1.0, 1.0, 1.0), "1 (1 … 1)"),
    ],
)
def test_estimates_have_the_digits_that_their_intervals_leave(estimate: Estimate, text: str) -> None:
    assert str(estimate) == text


# Sentences that must be able to say the opposite


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (consensus_time, metastability):
        monkeypatch.setattr(module, "bootstrap_groups", partial(bootstrap_groups, resamples=100))
    monkeypatch.setattr(remark_3_5, "bootstrap", partial(bootstrap, resamples=100))


def tables_of(*tables: Table) -> dict[str, Table]:
    return {table.name: table for table in tables}


def outcomes(axis: str, shares: dict[float, dict[str, int]], seed: int = 0) -> xr.Dataset:
    """A dataset with so many of each outcome at each value of an axis; the spectrum parts what diverged."""
    random = np.random.default_rng(seed)
    codes = np.array(
        [np.repeat([OUTCOMES.index(word) for word in entry], list(entry.values())) for entry in shares.values()]
    )
    grows = codes == OUTCOMES.index("diverged")
    dims = (axis, "draw")
    data = {
        "outcome": (dims, codes),
        "value_growth": (dims, np.where(grows, 1.0, -1.0) * random.uniform(0.1, 1.0, codes.shape)),
        "contraction_growth": (dims, -random.uniform(0.1, 1.0, codes.shape)),
        "tries": (dims, np.ones_like(codes)),
    }
    return xr.Dataset(data, {axis: list(shares)})


def conclusions_of_3_5(normal: xr.Dataset, skew: xr.Dataset | None = None, long: xr.Dataset | None = None) -> str:
    skew = outcomes("skew", {0.0: {"zero": 40}, 1.0: {"zero": 40}}) if skew is None else skew
    cuts = {"dim": outcomes("dim", {2.0: {"zero": 9}}), "tokens": outcomes("tokens", {2.0: {"zero": 9}}), "skew": skew}
    everything = [normal, *cuts.values()]
    systems = [("drawn", remark_3_5._systems(normal.sel(dim=dim)), int(dim)) for dim in normal["dim"].values]
    tables = [
        remark_3_5.frequencies("normal law", normal, "dim"),
        *(remark_3_5.frequencies(name, dataset, name) for name, dataset in cuts.items()),
        remark_3_5.below_zero(everything),
        remark_3_5.areas(systems),
        curves(systems, tuple(remark_3_5._SCORES)),
        remark_3_5.undecided(everything),
        remark_3_5.longer(normal, normal if long is None else long),
    ]
    return "\n".join(remark_3_5.conclude(tables_of(*tables)))


def test_remark_3_5_is_called_false_only_by_draws_that_diverge() -> None:
    false = conclusions_of_3_5(outcomes("dim", {2.0: {"zero": 90, "diverged": 10}, 4.0: {"zero": 60, "diverged": 40}}))
    assert "The remark is false: 50 of 200 random draws" in false
    assert "Fewer systems go to zero between dim 2 and 4 (the normal law)" in false
    right = conclusions_of_3_5(outcomes("dim", {2.0: {"zero": 100}, 4.0: {"zero": 100}}))
    assert "No draw of 200 contradicts the remark" in right
    assert "do not decide whether fewer go to zero between dim 2 and 4" in right
    assert "no predictor can be judged" in right
    other = conclusions_of_3_5(outcomes("dim", {2.0: {"zero": 60, "diverged": 40}, 4.0: {"zero": 90, "diverged": 10}}))
    assert "More systems go to zero between dim 2 and 4 (the normal law)" in other


@pytest.mark.long
def test_remark_3_5_judges_the_spectrum_by_what_diverged() -> None:
    data = outcomes("dim", {2.0: {"zero": 50, "diverged": 50}})
    assert "none diverged" in conclusions_of_3_5(data)
    assert "the spectrum of V foretells divergence better" in conclusions_of_3_5(data)
    assert re.search(r"Of 50 with some Re λ\(V\) > 0.* 0 fell to zero and 0 are undecided", conclusions_of_3_5(data))
    turned = data.assign(value_growth=-data["value_growth"])
    assert "50 diverged" in conclusions_of_3_5(turned)
    assert "is no guarantee" in conclusions_of_3_5(turned)
    assert re.search(r"Of 50 with some Re λ\(V\) > 0.* 50 fell to zero and 0 are undecided", conclusions_of_3_5(turned))
    swapped = data.assign(value_growth=data["contraction_growth"], contraction_growth=data["value_growth"])
    assert "A_sym foretells divergence better than the spectrum" in conclusions_of_3_5(swapped)
    alike = data.assign(contraction_growth=data["value_growth"])
    assert "do not decide which of both" in conclusions_of_3_5(alike)


def test_remark_3_5_says_how_much_is_undecided_and_whether_longer_runs_change_it() -> None:
    data = outcomes("dim", {2.0: {"zero": 2000}})
    assert "below 0.5%" in conclusions_of_3_5(data)
    assert "not shown" not in conclusions_of_3_5(data)
    assert "ends otherwise" in conclusions_of_3_5(data)
    some = outcomes("dim", {2.0: {"zero": 1980, "undecided": 20}})
    assert "Undecided are 20 of 2,098 systems" in conclusions_of_3_5(some)
    assert "not shown to be below" in conclusions_of_3_5(some)
    long = data.isel(draw=slice(100)).copy(deep=True)
    long["outcome"][0, :3] = OUTCOMES.index("diverged")
    assert "Of 100 systems decided by few steps 3 end otherwise" in conclusions_of_3_5(data, long=long)


def test_remark_3_5_reports_a_symmetric_system_that_does_not_go_to_zero() -> None:
    data = outcomes("dim", {2.0: {"zero": 20}})
    assert "all 40 of 40 go to zero, as theorem 3.4 has it" in conclusions_of_3_5(data)
    skew = outcomes("skew", {0.0: {"zero": 39, "diverged": 1}, 1.0: {"zero": 40}})
    assert "39 of 40 go to zero, and theorem 3.4 has all: look into it" in conclusions_of_3_5(data, skew)


def test_remark_3_2_follows_its_counts() -> None:
    heads = ("dim", "tokens", "skew", "states", "states with a distance that falls", "pairs that fall")

    def said(*counts: int) -> str:
        rows = tuple(
            (2, 4, skew, 100, share_of(count, 100), 0.0) for skew, count in zip((0, 0.1, 1), counts, strict=True)
        )
        return "\n".join(remark_3_2.conclude(tables_of(Table("wrong way", "", heads, rows))))

    assert "The claim is false: in 60 of 200" in said(0, 10, 50)
    assert "falls in none of 100 states, as theorem 3.1 has it" in said(0, 10, 50)
    assert "more states go the wrong way the further" in said(0, 10, 50)
    assert "None of 200 states contradicts" in said(0, 0, 0)
    assert "no change with the distance" in said(0, 0, 0)
    assert "fewer states go the wrong way" in said(0, 50, 10)
    assert "in 3 of 100 states, and theorem 3.1 has none: look into it" in said(3, 10, 50)


def test_a_wrong_pair_is_one_whose_form_falls_over_a_short_time() -> None:
    at, setup = next(design("remark-3-2", "quick", Path("nowhere")).built())
    later = setup.start + 1e-6 * setup.flow.velocity(setup.start)
    ov, qk = (entry.matrix_at(0.0)[:, 0] for entry in (setup.flow.attention.ov, setup.flow.attention.qk))
    contraction = qk @ ov.inverse()

    def form(x: Tensor) -> Tensor:
        difference = x[:, 0] - x[:, 1]
        return (difference * (contraction @ difference[..., None]).squeeze(-1)).sum(-1)

    assert at == {"dim": 2, "tokens": 2, "skew": 0.0}
    falls = (form(later) < form(setup.start)).numpy()
    assert (remark_3_2.wrong_pairs(setup)[:, 0] == falls).all()


def test_wendel_rejects_the_formula_that_the_draws_contradict() -> None:
    random = np.random.default_rng(3)

    def said(formula: str) -> str:
        cases = [(dim, tokens) for dim in (2, 3) for tokens in (2, 4, 8)]
        chances = {case: observables.wendel_probability(case[1], case[0], formula=formula) for case in cases}
        return "\n".join(
            wendel.conclude(tables_of(wendel.table({case: random.random(2000) < p for case, p in chances.items()})))
        )

    right, wrong = said("corrected"), said("printed")
    assert "The sum to n agrees with the draws in all 6 cases" in right
    assert "The sum to n − 1 (printed) is rejected" in right
    assert "all 4,000 draws share a half space" in right
    assert "The sum to n is rejected" in wrong
    assert "The sum to n − 1 (printed) agrees" in wrong
    assert "share none: look into it" in wrong


def consensus(
    law: str, exponent: float, spread: float = 0.1, missing: int = 0, bend: float = 0.0, short: int = 0
) -> str:
    """What is said of times that follow a law along one cut, the other cuts being flat."""
    random = np.random.default_rng(11)
    statuses = {name: STATUSES.index(name) for name in ("consensus", "reached the horizon", "step budget spent")}
    tables, rows = [], []
    for cut in consensus_time.CUTS.values():
        values = np.array([1.0, 2.0, 4.0, 8.0])
        steady = np.zeros(4) if cut.law != law else exponent * (values if law == "exponential" else np.log(values))
        bent = steady + bend * np.log(values) ** 2
        end = np.exp(bent[:, None] + spread * random.standard_normal((4, 80)))
        status = np.full(end.shape, statuses["consensus"])
        status[-1, :missing] = statuses["reached the horizon"]
        status[-1, :short] = statuses["step budget spent"]
        data = xr.Dataset(
            {"end_time": ((cut.axis, "draw"), end), "status": ((cut.axis, "draw"), status)}, {cut.axis: values}
        )
        tables.append(consensus_time.table(cut, data))
        rows.append(consensus_time.fitted(cut, data))
    heads = ("theorem", "time against", "law", "p", "p of the first two", "p of the last two", "change of p")
    return "\n".join(consensus_time.conclude(tables_of(*tables, Table("growth laws", "", heads, tuple(rows)))))


@pytest.mark.slow
def test_consensus_times_grow_fall_or_stand_as_they_are() -> None:
    grows = consensus("power", 0.7)
    assert re.search(r"grows with tokens, fitted by tokens\^p with p = 0\.[67]\d* .*nothing contradicts", grows)
    assert "No growth of the time with beta is seen" in grows
    assert "The time falls with depth" in consensus("power", -0.7)
    assert "The time grows with beta, fitted by e^(p · beta)" in consensus("exponential", 0.5)
    assert "but no single such law holds" in consensus("power", 0.7, bend=0.4)
    assert "all 320 systems came to consensus" in grows
    some = consensus("power", 0.7, missing=10)
    assert "10 of 320 systems did not come to consensus by t = 10^9; their time" in some
    assert "6 of 320 systems did not come to consensus by t = 10^9 and 4 were not followed so far" in consensus(
        "power", 0.7, missing=10, short=4
    )
    assert "grows with tokens" in some
    assert "no law can be fitted" in consensus("power", 0.7, missing=60)


def rotary(*points: tuple[int, int, int]) -> str:
    """What is said of (zero, diverged, undecided) at growing strengths."""
    rows = []
    for strength, (zero, diverged, open_) in zip((1e-6, 0.3, 3.0), points, strict=True):
        result = np.repeat(["zero", "diverged", "undecided"], [zero, diverged, open_])
        rows.append((2, strength, *rotary_strength.counted(result, np.ones(len(result), dtype=bool))))
    outcomes_ = ("zero", "zero, at most", "diverged", "diverged, at most", "nonzero equilibrium", "undecided")
    heads = ("dim", "σ", "draws", *outcomes_, "moving at the end")
    return "\n".join(rotary_strength.conclude(tables_of(Table("strength", "", heads, tuple(rows)))))


def test_a_rotary_term_is_said_to_matter_only_if_the_undecided_cannot_change_it() -> None:
    clear = rotary((90, 10, 0), (88, 12, 0), (30, 65, 5))
    assert "with a rotary term of σ ≥ 3 more systems diverge (10.0% at σ = 1e-06, 65.0% to 70.0% at 3)" in clear
    assert "with a rotary term of σ ≥ 3 fewer systems go to zero" in clear
    assert "Undecided are 5 of 300" in clear
    hidden = rotary((90, 10, 0), (88, 12, 0), (30, 12, 58))
    assert "at no σ up to 3 do these draws show that more systems diverge" in hidden
    both_ways = rotary((30, 10, 60), (30, 60, 10), (30, 60, 10))
    assert "at no σ up to 3 do these draws show that more systems diverge" in both_ways
    against = rotary((30, 70, 0), (60, 40, 0), (90, 10, 0))
    assert "with a rotary term fewer systems diverge, at σ = 0.3, 3: the remark has it the other way" in against
    assert "with a rotary term more systems go to zero" in against


def clusters(*counts: list[list[int]]) -> str:
    """What is said of numbers of clusters at t = 0, 1, 10, … 1e9 at growing β."""
    saved = np.r_[0.0, 10.0 ** np.arange(10)]
    betas = [float(number + 1) for number in range(len(counts))]
    data = xr.Dataset(
        {"clusters_over_time": (("beta", "draw", "time"), np.array(counts))}, {"beta": betas, "time": saved}
    )
    return "\n".join(metastability.conclude(tables_of(metastability.by_time(data), metastability.plateaus(data))))


def test_clusters_are_metastable_where_their_number_stands() -> None:
    quick = [9, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    slow = [9, 5, 3, 3, 3, 3, 3, 2, 2, 2, 2]
    result = clusters([quick] * 9, [slow] * 9)
    assert "β = 1: a number of clusters above one stands for 0 (0 … 0) decades" in result
    assert "β = 1: all 9 draws are one cluster" in result
    assert (
        "β = 2: a number of clusters above one stands for 4 (4 … 4) decades of time on average: clusters are" in result
    )
    assert "β = 2: 9 of 9 draws still have several clusters at t = 10^9" in result
    assert "stand longer as β grows" in result
    assert "stand shorter as β grows" in clusters([slow] * 9, [quick] * 9)
    assert "do not decide whether numbers of clusters stand longer" in clusters([slow] * 9, [slow] * 9)


def test_every_study_asks_a_question_and_a_share_of_nothing_is_none() -> None:
    assert all(isinstance(study, Study) and study.title.endswith("?") for study in STUDIES.values())
    assert math.isnan(share(np.array([], dtype=bool)).value)
