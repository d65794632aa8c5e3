"""The page of a sweep: each sentence in each of its ways, from counts that are known."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from report.reading import plain_spaces, saved
from tokendynamics.numerics import ArgumentTypeError
from tokendynamics.numerics.intervals import wilson
from tokendynamics.report._sweep import SystemShare
from tokendynamics.sweeps import report
from tokendynamics.sweeps.systems.results import _drawn, parameters
from tokendynamics.words import percent

ZERO, CONSENSUS, UNDECIDED = 0, 3, 5
HORIZON, BUDGET = "reached the horizon", "step budget spent"


def statuses() -> tuple[str, ...]:
    from tokendynamics.dynamics import Status

    return tuple(str(status) for status in Status)


def swept(codes: Any, status: Any = HORIZON, tries: Any = 1, **parameters: Any) -> xr.Dataset:
    """The dataset of a grid: outcome codes (…, draw) over the parameters."""
    codes = np.asarray(codes)
    dims = (*parameters, "draw")
    ended = np.vectorize(statuses().index)(np.broadcast_to(status, codes.shape))
    ended[codes < 0] = -1
    variables = {"outcome": codes, "status": ended, "tries": np.broadcast_to(tries, codes.shape)}
    return xr.Dataset({name: (dims, values) for name, values in variables.items()}, parameters)


def page_of(dataset: xr.Dataset, tmp_path: Path, **options: Any) -> str:
    return plain_spaces(report(dataset, tmp_path / "page.html", **options).read_text(encoding="utf-8"))


def findings(page: str) -> list[str]:
    part = page[page.index('<ol class="findings">') :]
    return [unescape(one) for one in re.findall(r"<li>(.*?)</li>", part[: part.index("</ol>")])]


def test_how_often_each_outcome_was_is_said_with_its_interval(tmp_path: Path) -> None:
    sentences = findings(page_of(swept([[3, 3, 3, 3, 3, 3, 0, 0, 0, 5]], scale=[1.0]), tmp_path))
    assert sentences[0].startswith("Of 10 systems, 6 ended as “consensus”, 60 % (95 % CI 31–83 %); 3 as “zero”, ")
    assert "1 as “undecided”, 10.0 % (95 % CI 1.8–40.4 %)." in sentences[0]
    assert [f"{100 * end:.0f}" for end in wilson(6, 10)] == ["31", "83"]
    assert sentences[1].startswith("“Undecided” systems had reached no outcome when their runs ended")
    sentences = findings(page_of(swept(np.full((1, 20), ZERO), scale=[1.0]), tmp_path))
    assert sentences[0] == f"All 20 systems ended as “zero” (95 % CI {100 * wilson(20, 20)[0]:.0f} % or more)."
    assert not any("Undecided" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("codes", "sentence"),
    [
        ([[0, 0], [3, 3]], "All systems had the same outcome at each of the 2 points of the design."),
        ([[0, 3], [3, 3]], "All systems had the same outcome at 1 of the 2 points of the design."),
        ([[0, 3], [3, 0]], "Systems had different outcomes at each of the 2 points of the design."),
    ],
)
def test_at_how_many_points_all_ended_alike(codes: list, sentence: str, tmp_path: Path) -> None:
    assert sentence in findings(page_of(swept(codes, scale=[0.5, 1.0]), tmp_path))


def test_points_of_one_system_do_not_agree_with_themselves(tmp_path: Path) -> None:
    assert "the same outcome" not in page_of(swept([[0], [3]], scale=[0.5, 1.0]), tmp_path)


def test_what_moves_along_a_parameter_is_named_with_its_extremes(tmp_path: Path) -> None:
    codes = np.array([[ZERO] * 20, [CONSENSUS] * 10 + [ZERO] * 10, [CONSENSUS] * 20])
    (text,) = (one for one in findings(page_of(swept(codes, scale=[2.0, 1.0, 0.5]), tmp_path)) if "With scale" in one)
    low, high = (100 * end for end in (wilson(20, 20)[0], wilson(0, 20)[1]))
    assert text == (
        f"With scale, the share of “zero” changes most: 0 % (95 % CI 0–{high:.0f} %) at 0.5 and 100 % (95 % CI "
        f"{low:.0f}–100 %) at 2; the intervals do not overlap."
    )


def test_a_change_within_the_intervals_may_be_chance(tmp_path: Path) -> None:
    codes = [[ZERO, ZERO, ZERO, CONSENSUS], [ZERO, ZERO, CONSENSUS, CONSENSUS]]
    (text,) = (one for one in findings(page_of(swept(codes, scale=[0.5, 1.0]), tmp_path)) if "With scale" in one)
    assert text.endswith("the intervals overlap, so the change may be chance.")


def test_no_change_is_said_to_be_none(tmp_path: Path) -> None:
    sentences = findings(page_of(swept([[ZERO, CONSENSUS], [CONSENSUS, ZERO]], scale=[0.5, 1.0]), tmp_path))
    assert "No share changes with scale (pooled over the other parameters)." in sentences


@pytest.mark.parametrize(
    ("status", "tries", "sentence"),
    [
        (HORIZON, 1, "All 4 systems reached the horizon."),
        (HORIZON, [1, 1, 2, 2], "All 4 systems reached the horizon; 2 systems spent the first step budget"),
        ([HORIZON, BUDGET, HORIZON, HORIZON], [1, 2, 1, 1], f"3 “{HORIZON}”; 1 “{BUDGET}”; 1 system spent"),
    ],
)
def test_how_the_runs_ended(status: Any, tries: Any, sentence: str, tmp_path: Path) -> None:
    assert sentence in findings(page_of(swept([[3, 3, 0, 0]], status, tries, scale=[1.0]), tmp_path))[-1]


def test_systems_that_were_not_run_are_counted_as_missing(tmp_path: Path) -> None:
    sentences = findings(page_of(swept([[3, 3], [-1, -1]], scale=[0.5, 1.0]), tmp_path))
    assert sentences[0] == "Of 4 systems 2 were run so far."
    assert sentences[1].startswith("All 2 systems ended as “consensus”")
    nothing = page_of(swept([[-1, -1]], scale=[1.0]), tmp_path)
    assert findings(nothing) == ["Of 2 systems 0 were run so far."]


@pytest.mark.long
def test_a_map_has_every_cell_and_its_numbers(tmp_path: Path) -> None:
    codes = np.full((3, 2, 10), ZERO)
    for place, count in np.ndenumerate(np.array([[0, 2], [5, 7], [9, 10]])):
        codes[place][:count] = CONSENSUS
    page = page_of(swept(codes, scale=[0.1, 1.0, 10.0], tokens=[2, 4]), tmp_path)
    columns, *rows = saved(page, "share-of-consensus")
    assert columns == ["scale", "tokens", "consensus", "Systems", "Share", "Low", "High"]
    assert [row[2] for row in rows] == ["0", "2", "5", "7", "9", "10"]
    for row in rows:
        np.testing.assert_allclose([float(row[5]), float(row[6])], wilson(int(row[2]), 10))
    tips = set(re.findall(r"<title>(scale = [^<]*)</title>", page))
    assert "scale = 1, tokens = 4: consensus 7 of 10: 70 % (95 % CI 40–89 %)" in tips
    assert len(tips) == 6 * 2  # for both outcomes
    assert "share 1/2" in page
    flat = page_of(swept(np.full((2, 2, 5), ZERO), scale=[0.1, 1.0], tokens=[2, 4]), tmp_path)
    assert "share 1/2" not in flat
    assert "The line shows where" not in flat


@pytest.mark.long
def test_further_parameters_are_counted_together_and_that_is_said(tmp_path: Path) -> None:
    codes = np.full((2, 2, 2, 5), ZERO)
    codes[0, 0, 0] = CONSENSUS
    page = page_of(swept(codes, scale=[0.1, 1.0], tokens=[2, 4], dim=[2, 3]), tmp_path)
    assert "Systems of all values of dim are counted together here." in page
    _, first, *_ = saved(page, "share-of-consensus")
    assert first[:4] == ["0.1", "2", "5", "10"]
    assert "counted together here" not in page_of(swept(codes[0], tokens=[2, 4], dim=[2, 3]), tmp_path)


@pytest.mark.long
def test_one_parameter_has_curves_and_none_has_neither(tmp_path: Path) -> None:
    page = page_of(swept([[0, 3], [3, 3]], scale=[0.5, 1.0]), tmp_path)
    _, *rows = saved(page, "shares")
    assert [row[:4] for row in rows] == [
        ["0.5", "consensus", "1", "2"],
        ["0.5", "zero", "1", "2"],
        ["1.0", "consensus", "2", "2"],
        ["1.0", "zero", "0", "2"],
    ]
    assert "Where does each outcome occur" not in page_of(swept([[0, 3]], scale=[1.0]), tmp_path)


def test_a_random_design_is_shown_over_the_first_two_parameters_that_vary(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    drawn = {
        "kept": np.ones(40),
        "twice": np.repeat([1.0, 2.0], 20),
        "scale": random.random(40),
        "last": random.random(40),
    }
    of_point = {name: ("point", values) for name, values in drawn.items()}
    codes = np.zeros(40, dtype=int)
    variables = {"outcome": codes, "status": np.full(40, statuses().index(HORIZON)), "tries": np.ones(40, dtype=int)}
    dataset = xr.Dataset({name: ("point", values) for name, values in variables.items()}, of_point)
    assert parameters(dataset) == ("twice", "scale")
    assert {"twice", "scale"} <= set(re.findall(r"<th[^>]*>(\w+)", page_of(dataset, tmp_path)))


def test_what_is_no_sweep_has_no_page(tmp_path: Path) -> None:
    whole = swept([[3, 3]], scale=[1.0])
    for part in (whole.drop_vars("tries"), whole.drop_vars("status"), xr.Dataset()):
        with pytest.raises(ArgumentTypeError, match="dataset: expected the result of `sweep` or `open_store`"):
            report(part, tmp_path / "page.html")


def test_what_users_wrote_is_escaped(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    page = page_of(swept([[0, 3], [3, 3]], **{hostile: ["<b>", "a"]}), tmp_path, title=hostile)
    assert "<script>alert" not in page
    assert "<b>" not in page


def test_shares_are_written_with_the_digits_that_they_have() -> None:
    assert str(SystemShare(3, 1_000_000)) == "0.00030 % (95 % CI 0.00010–0.00088 %)"
    assert str(SystemShare(658_860, 1_000_000)) == "65.9 % (95 % CI 65.8–66.0 %)"
    assert percent(0.9999961) == "99.99961 %"


def test_no_line_ends_between_a_number_and_its_unit(tmp_path: Path) -> None:
    path = report(swept(np.full((1, 20), ZERO), scale=[1.0]), tmp_path / "page.html")
    (first, *_) = findings(path.read_text(encoding="utf-8"))
    assert first == f"All 20 systems ended as “zero” (95\u00a0% CI\u00a0{100 * wilson(20, 20)[0]:.0f}\u00a0% or more)."


@pytest.mark.parametrize("points", [1, 3])
def test_a_random_design_whose_parameters_do_not_vary_has_one_share(points: int, tmp_path: Path) -> None:
    codes = (("point", "draw"), np.zeros((points, 1), dtype=int))
    ended = xr.Dataset({"status": codes, "outcome": codes, "tries": codes}, {"qk": ("point", np.full(points, 0.5))})
    shares = _drawn(ended)
    assert (shares.total.ndim, int(shares.total)) == (0, points)
    text = report(ended, tmp_path / "sweep.html").read_text()
    assert f"{points} system" in text
