"""The ledger: every numbered claim of the papers with its verdict, from docs/ledger.toml, the records and the tests."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reproductions.figures import FIGURES
from reproductions.kept import stored_records
from reproductions.record import Quantity, Record
from reproductions.tried import Test, cases
from tokendynamics.theorems import ATLAS, PAPERS, STATEMENTS
from tokendynamics.words import plural

ROOT = Path(__file__).parents[1]
TESTS, RECORDS = ROOT / "tests", ROOT / "docs" / "papers"

Stated = Literal["", "holds", "corrected", "counterexample", "undecided", "conjecture", "not run"]
VERDICTS: Mapping[str, str] = {
    "holds": "holds",
    "corrected": "holds as corrected",
    "counterexample": "counterexample",
    "undecided": "cannot be decided at this size",
    "conjecture": "conjecture, no counterexample",
    "not run": "not run",
}
"""What a verdict is called, by its name in the file."""


@dataclass(frozen=True)
class Row:
    """One claim; docs/ledger.toml says what its entries hold.

    Attributes:
        paper: Key of its source.
        key: Of the row, the anchor of its section.
        number: As the paper prints it.
        says: The claim.
        given: Its hypotheses.
        verdict: As the file states it; empty where the record alone decides.
        because: Why the verdict is not that the claim holds as printed.
        measured: What the tests compare with which threshold.
        record: Name of the record that decides it, or empty.
        rows: Which quantities of the record count, a regular expression.
        tests: That hold the claim.
        against: Tests that show where it, or its print, fails.
    """

    paper: str
    key: str
    number: str
    says: str
    given: str
    verdict: Stated = ""
    because: str = ""
    measured: str = ""
    record: str = ""
    rows: str = ""
    tests: Sequence[Test] = ()
    against: Sequence[Test] = ()
    statement: str = field(default="", kw_only=True)

    @property
    def part(self) -> str:
        """Which part of the ledger it is in: that of its paper, or that of all other sources."""
        return self.paper if self.paper in PAPERS else "atlas"

    def quantities(self, records: Mapping[str, Record]) -> tuple[Quantity, ...]:
        """Return what the record compares for this claim."""
        if not self.record:
            return ()
        return tuple(one for one in records[self.record].compared if re.search(self.rows, one.name))

    def decided(self, records: Mapping[str, Record]) -> str:
        """Return the verdict by its name in the file; the record decides where none is stated.

        Raises:
            ValueError: Some quantity does not come out, and the file does not say what that means.
        """
        if self.verdict:
            return self.verdict
        outcomes = {one.verdict for one in self.quantities(records)}
        if not outcomes or "no" in outcomes:
            raise ValueError(f"{self.key}: docs/ledger.toml has to state a verdict; the record does not decide it")
        return "undecided" if "cannot tell" in outcomes else "holds"

    def words(self, records: Mapping[str, Record]) -> str:
        """Return the verdict in words; for a claim that holds, in how many cases."""
        decided = self.decided(records)
        if decided == "conjecture":
            return f"{VERDICTS[decided]} in {plural(self.tried, 'case')}"
        if decided != "holds":
            return VERDICTS[decided]
        came_out = sum(one.verdict == "yes" for one in self.quantities(records))
        return f"holds in {plural(came_out or self.tried, 'case')}"

    @property
    def tried(self) -> int:
        """How many cases the tests that hold the claim try."""
        return sum(cases(test, TESTS) for test in self.tests)


def ledger_rows() -> tuple[Row, ...]:
    """Return every row in the order of the papers.

    Raises:
        TypeError: An entry that no row has.
    """
    papers = tomllib.loads((ROOT / "docs" / "ledger.toml").read_text(encoding="utf-8"))
    return tuple(_row(paper, entry) for paper, entries in papers.items() for entry in entries)


def _row(paper: str, entry: Mapping[str, Any]) -> Row:
    key = entry["key"]
    named = {
        "statement": key if key in {statement.name for statement in (*STATEMENTS, *ATLAS)} else "",
        "record": key if key in FIGURES else "",
    }
    listed = {name: tuple(map(Test.of, entry.get(name, ()))) for name in ("tests", "against")}
    return Row(paper, **{**named, **entry, **listed})


def ledger_records() -> dict[str, Record]:
    """Return the records that decide rows."""
    return stored_records(RECORDS)
