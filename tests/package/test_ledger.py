"""The ledger has every claim, each with tests or a reason, and no verdict older than the code it rests on."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from reproductions.figures import FIGURES
from reproductions.kept import explained, why
from reproductions.ledger import TESTS, VERDICTS, Row, ledger_records, ledger_rows
from reproductions.rests_on import code_of
from reproductions.tried import Test, cases, exists
from tokendynamics.theorems import ATLAS, STATEMENTS

ROWS = ledger_rows()
RECORDS = ledger_records()
ROOT = Path(__file__).parents[2]
WORDS = 25


def test_every_statement_and_every_record_has_a_row_and_no_row_stands_twice() -> None:
    assert Counter(row.statement for row in ROWS if row.statement) == Counter(one.name for one in (*STATEMENTS, *ATLAS))
    assert {row.record for row in ROWS if row.record} == set(FIGURES) == set(RECORDS)
    assert max(Counter(row.key for row in ROWS).values()) == 1
    assert max(Counter((row.paper, row.number) for row in ROWS).values()) == 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_row_names_tests_that_exist_or_says_why_nothing_runs(row: Row) -> None:
    assert [str(test) for test in (*row.tests, *row.against) if not exists(test, TESTS)] == []
    if row.verdict == "not run":
        assert not [*row.tests, *row.against]
        assert not row.record
        assert row.because
    else:
        assert row.tests or row.against
        assert row.record or row.measured
    assert row.key.startswith(f"{row.paper}-")


def test_only_tests_of_the_ledger_have_a_time() -> None:
    times = json.loads((ROOT / "docs" / "ledger_seconds.json").read_text(encoding="utf-8"))
    assert set(times) <= {str(test) for row in ROWS for test in (*row.tests, *row.against)}
    assert min(times.values()) >= 0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_verdict_is_a_known_one_and_agrees_with_its_record(row: Row) -> None:
    decided = row.decided(RECORDS)
    assert decided in VERDICTS
    outcomes = Counter((one.verdict, one.source) for one in row.quantities(RECORDS))
    if row.record:
        assert outcomes, "no quantity of the record counts"
    if decided == "holds":  # then nothing that the paper itself prints or claims fails
        assert not outcomes["no", "paper"]
        assert not any(verdict == "cannot tell" for verdict, _ in outcomes)
        assert not row.against or row.because
    if decided == "counterexample":
        assert row.against
    if decided in ("corrected", "counterexample") or any(verdict == "no" for verdict, _ in outcomes):
        assert row.because


def test_a_statement_with_an_erratum_does_not_hold_as_printed() -> None:
    verdicts = {row.statement: row.decided(RECORDS) for row in ROWS if row.statement}
    for statement in (*STATEMENTS, *ATLAS):
        only_adds = statement.name == "positional-3.4"  # a rate that the paper does not give
        if statement.standing == "conjecture":
            assert verdicts[statement.name] == "conjecture"
            continue
        assert (verdicts[statement.name] == "holds") is (not statement.erratum or only_adds), statement.name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_rows_are_short_and_never_say_proved(row: Row) -> None:
    for text in (row.says, row.given, row.because, row.measured):
        for sentence in re.split(r"(?<=\.) (?=[A-Z])", text):
            assert len(sentence.split()) <= WORDS, sentence
        assert not re.search(r"\bprove", text)
    assert row.says.endswith(".")


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_no_record_is_older_than_thecode_of_it_rests_on(name: str) -> None:
    record = RECORDS[name]
    digest = FIGURES[name].code(record.paper, record.figure)
    again = f"python -m reproductions {name} --records docs/papers"
    assert record.code == digest, f"what {name} rests on changed, the digest is {digest}: run {again}"


def test_a_digest_sees_what_is_computed_and_not_how_it_is_written() -> None:
    plain = "import math\nLIMIT = 3\ndef reproduce(count: int = 5):\n    total = count + LIMIT\n    return total\n"
    other = (
        '"""Words."""\nfrom math import pi\nLIMIT = 3\ndef reproduce(number=5):\n    """More."""\n    found = number + '
        "LIMIT  # why\n    return found\ndef draw(record):\n    return record\n"
    )
    assert code_of(plain) == code_of(other)
    for old, new in (
        ("LIMIT = 3", "LIMIT = 4"),
        ("= 5", "= 6"),
        ("count + LIMIT", "count - LIMIT"),
        ("total\n", "count\n"),
    ):
        assert code_of(plain) != code_of(plain.replace(old, new)), old


def test_every_quantity_that_does_not_come_out_has_a_reason_and_no_reason_is_left_over() -> None:
    failed = {(name, quantity.name): quantity for name, record in RECORDS.items() for quantity in record.failures}
    assert [key for key, quantity in failed.items() if not why(key[0], quantity)] == []
    for name, reasons in explained().items():
        for quantity in reasons:
            assert not failed[name, quantity].reason, "the figure itself says why"


def test_cases_are_counted_as_pytest_collects_them_times_systems_and_examples(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "SYSTEMS, DIM = 200, 3\nKINDS = [1, 2, 3]\n"
        "def flows():\n    return SYSTEMS\n"
        '@pytest.mark.parametrize("kind", KINDS)\n@pytest.mark.parametrize("n", range(2, 4))\n'
        "def test_a(kind, n):\n    flows()\n"
        "@settings(max_examples=15)\n@given(st.integers())\ndef test_b(n):\n    pass\n"
        '@pytest.mark.parametrize("n", sorted(KINDS))\ndef test_c(n):\n    pass\n'
        '@pytest.mark.parametrize("n", IMPORTED)\ndef test_e(n):\n    pass\n'
    )
    counted = [cases(Test("test_x.py", f"test_{letter}"), tmp_path) for letter in "abce"]
    assert counted == [3 * 2 * 200, 15, 1, 1]
    assert not exists(Test("test_x.py", "test_d"), tmp_path)
    assert not exists(Test("test_y.py", "test_a"), tmp_path)


def test_an_undecided_or_failed_record_is_never_said_to_hold_by_itself() -> None:
    row = next(row for row in ROWS if row.key == "positional-fig1")
    unstated = Row(row.paper, row.key, row.number, row.says, row.given, record=row.record)
    with pytest.raises(ValueError, match=r"positional-fig1: .* has to state a verdict"):
        unstated.decided(RECORDS)
    assert Row("positional", "x", "x", "x.", "", record="positional-table3").decided(RECORDS) == "undecided"
    assert Row("positional", "x", "x", "x.", "", record="positional-fig5").words(RECORDS) == "holds in 9 cases"
