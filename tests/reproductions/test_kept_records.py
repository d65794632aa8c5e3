"""The records in docs/papers: readable, of figures that exist, and what the code still computes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from reproductions.__main__ import main
from reproductions.figures import FIGURES
from reproductions.kept import PAGE, store_record, stored_records, summary
from reproductions.record import Quantity, Record, measured
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.numerics.intervals import T_COVERAGE

FOLDER = Path(__file__).parents[2] / "docs" / "papers"
QUICK_AT_FULL_SIZE = (
    "asymptotic-fig1",
    "asymptotic-fig2",
    "logical-worked-examples",
    "logical-2-18",
    "logical-equivalence",
    "positional-fig9b",
    "positional-remark-3-2",
)
"""Figures that take a second or two at the size of the paper."""

LEARNED = {"logical-fig1", "logical-fig2", "logical-weights"}
"""Hours at the size of the paper."""

KEPT = {path.stem for path in FOLDER.glob("*.json")}


def test_every_figure_has_a_record() -> None:
    assert set(FIGURES) == KEPT
    assert list(stored_records(FOLDER)) == [name for name in FIGURES if name in KEPT]


def test_the_records_are_of_full_size_and_their_page_is_the_one_they_make() -> None:
    records = stored_records(FOLDER)
    assert [name for name, record in records.items() if record.quick is not None] == []
    assert (FOLDER / PAGE).read_text(encoding="utf-8") == summary(records)
    for name, record in records.items():
        assert name.startswith(record.paper)
        written = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        # What was written is what would be written again: nothing is lost on the way in, verdicts follow from numbers.
        assert json.loads(json.dumps(record.as_json())) == written


T_INTERVALS = re.compile(r"95 % interval \S+ … \S+ over \d+ seeds|end of its \d+ % interval")


def test_where_t_intervals_over_seeds_are_printed_it_is_said_what_they_cover() -> None:
    printed = {
        name: record.statement
        for name, record in stored_records(FOLDER).items()
        if any(T_INTERVALS.search(f"{row.name}; {row.unsettled}") for row in record.quantities)
    }
    assert {"positional-fig6", "positional-fig7", "positional-table1"} <= set(printed)
    assert [name for name, statement in printed.items() if T_COVERAGE not in statement] == []


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_what_is_kept_is_small_and_says_nothing_of_the_machine_but_versions(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < (200_000 if path.name == PAGE else 40_000)
    assert not re.search(r"(/[a-z_.]+){2,}|[A-Z]:\\|\.png|file:", text)
    if path.suffix == ".json":
        versions = {"tokendynamics", "python", "torch", "numpy", "system", "processors", "threads"}
        assert set(json.loads(text)["ran_on"]) == versions


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("name", QUICK_AT_FULL_SIZE)
def test_a_figure_run_again_gives_the_numbers_that_are_kept(name: str) -> None:
    before, now = stored_records(FOLDER)[name], FIGURES[name].reproduce()
    assert now.arguments == before.arguments
    rows = zip(before.quantities, now.quantities, strict=True)
    for old, new in rows:
        claims = [(one.name, one.source, one.relation, one.expected, one.tolerance, one.reason) for one in (old, new)]
        assert repr(claims[0]) == repr(claims[1])
        assert new.verdict == old.verdict
        # Solvers run at 1e-10 and statistics are seeded: what differs between processors is far below six digits.
        room = 0.0 if math.isnan(old.tolerance) else old.tolerance
        assert new.ours == pytest.approx(old.ours, rel=1e-6, abs=max(room, 1e-9))


@pytest.mark.parametrize("name", sorted(KEPT - LEARNED - set(QUICK_AT_FULL_SIZE)))
def test_longer_figures_are_kept_at_the_size_that_the_code_would_run(name: str) -> None:
    record, figure = stored_records(FOLDER)[name], FIGURES[name]
    assert json.dumps(record.arguments) == json.dumps(figure.arguments())
    assert record.seed == record.arguments.get("seed", record.seed)


@pytest.mark.parametrize("name", sorted(LEARNED))
def test_learned_figures_are_kept_at_the_size_of_the_paper(name: str) -> None:
    record = stored_records(FOLDER)[name]
    assert json.dumps(record.arguments) == json.dumps(FIGURES[name].arguments())
    assert (record.arguments["categories"], record.arguments["positions"], record.arguments["batch"]) == (10, 50, 1000)


def example(**changed: object) -> Record:
    rows = (Quantity("rate | slope", 1.0, 0.75, 0.5, reason="a misprint"), measured("share", 1.0 / 3.0))
    record = Record("positional", "Figure 2b", "A line.", rows, "nothing", 7, results={"big": object()})
    return replace(record, arguments={"draws": 3, "depths": (2.0, 4.0)}, seconds=1.25, **changed)


def test_a_record_is_read_back_to_the_last_digit(tmp_path: Path) -> None:
    store_record("positional-fig2b", example(), tmp_path)
    back = stored_records(tmp_path)["positional-fig2b"]
    assert [quantity.ours for quantity in back.quantities] == [0.75, 1.0 / 3.0]
    assert math.isnan(back.quantities[1].expected)
    assert [quantity.verdict for quantity in back.quantities] == ["yes", "measured"]
    assert (back.seed, back.seconds, back.results) == (7, 1.25, {})
    assert back.arguments == {"draws": 3, "depths": [2.0, 4.0]}
    assert sorted(path.name for path in tmp_path.iterdir()) == [PAGE, "positional-fig2b.json"]


@pytest.mark.parametrize(
    ("actual", "verdict", "written"), [(math.inf, "yes", "inf"), (-math.inf, "no", "-inf"), (math.nan, "no", None)]
)
def test_a_number_that_is_not_finite_keeps_its_verdict(
    actual: float, verdict: str, written: object, tmp_path: Path
) -> None:
    # Such as the ratio of losses of which one stopped being finite.
    record = replace(example(), quantities=(Quantity("ratio", 1.0, actual, 0.0, "≥"),))
    store_record("positional-fig1", record, tmp_path)
    row = json.loads((tmp_path / "positional-fig1.json").read_text(encoding="utf-8"))["quantities"][0]
    assert (row["ours"], row["verdict"]) == (written, verdict)
    back = stored_records(tmp_path)["positional-fig1"].quantities[0]
    assert repr(back.ours) == repr(actual)
    assert back.verdict == verdict


def test_a_record_is_added_to_those_that_are_there(tmp_path: Path) -> None:
    store_record("positional-fig2b", example(), tmp_path)
    store_record("positional-fig1", example(), tmp_path)
    store_record("positional-fig2b", example(), tmp_path)
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert page.index("## positional-fig1") < page.index("## positional-fig2b")
    assert "2 of 2 quantities" in page
    assert ".png" not in page


def test_quick_runs_are_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArgumentValueError, match="record: expected a run at full size, got quick run: draws = 3"):
        store_record("positional-fig2b", example(quick={"draws": 3}), tmp_path)
    with pytest.raises(SystemExit):
        main(["positional-fig9b", "--quick", "--records", str(tmp_path / "kept"), "--out", str(tmp_path)])
    assert "--records: are kept of runs at full size" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"quantities": [{"name": 3}]}'])
def test_a_damaged_record_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "positional-fig1.json").write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentValueError, match=r"records: expected a record in .*positional-fig1\.json"):
        stored_records(tmp_path)


@pytest.mark.slow
def test_the_command_keeps_what_it_ran(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    assert main(["positional-remark-3-2", "--out", str(tmp_path / "out"), "--records", str(folder)]) == 0
    record = json.loads((folder / "positional-remark-3-2.json").read_text(encoding="utf-8"))
    assert record["arguments"] == {"draws": 1500, "seed": 32}
    assert record == json.loads((tmp_path / "out" / "positional-remark-3-2.json").read_text(encoding="utf-8"))
    assert stored_records(folder).keys() == {"positional-remark-3-2"}


def test_words_that_a_network_said_are_kept_and_shown_as_they_are(tmp_path: Path) -> None:
    texts = {"after 1 pass": "a | `b`\n*c*", "after 2 passes": ""}
    store_record("positional-fig2b", example(texts=texts), tmp_path)
    assert stored_records(tmp_path)["positional-fig2b"].texts == texts
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert "| when | words |\n|---|---|\n| after 1 pass | `` a \\| `b` ⏎ *c* `` |\n" in page
    assert "texts" not in example().as_json()
