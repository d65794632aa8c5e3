"""What the papers print, from published.toml: rows are what the file says, and none is forgotten."""

from __future__ import annotations

import math
import re

import pytest

from reproductions.published import Published

ENTRY = {
    "figure": "Figure 0",
    "statement": "{count} tokens.",
    "invented": "seed {seed}",
    "A": [[1, 2], [3, 4]],
    "reasons": {"known": "it is known why"},
    "rows": {
        "bound": {"name": "bound of {what}", "at_most": 1, "within": 0},
        "several": {
            "name": "{k} at t = {t:g}",
            "t": [5.0, 7.0],
            "equals": [0.5, 0.6],
            "within": 0.1,
            "reason": "known",
        },
        "free": {"name": "measured"},
    },
}
TABLE = Published("asymptotic", ENTRY)


def test_rows_come_in_the_order_of_the_file_with_what_it_says_of_them() -> None:
    rows = TABLE.quantities({"free": 3, "several": [0.55, 0.9], "bound": 2}, {"bound": "few"}, what="x")
    assert [row.name for row in rows] == ["bound of x", "1 at t = 5", "2 at t = 7", "measured"]
    assert [row.verdict for row in rows] == ["cannot tell", "yes", "no", "measured"]
    assert [row.relation for row in rows] == ["≤", "=", "=", "measured"]
    assert [row.reason for row in rows] == ["", "it is known why", "it is known why", ""]
    assert (type(rows[0].ours), type(rows[3].ours), math.isnan(rows[3].expected)) == (int, float, True)


def test_rows_that_are_missing_unknown_or_of_another_count_are_refused() -> None:
    with pytest.raises(KeyError, match=re.escape("missing or unknown: ['bound', 'least', 'several']")):
        TABLE.quantities({"least": 1.0, "free": 1.0})
    with pytest.raises(KeyError, match=re.escape("Figure 0; missing or unknown: ['least']")):
        TABLE.quantities({"least": 1.0}, some=True)
    with pytest.raises(ValueError, match="shorter"):
        TABLE.quantities({"several": [0.5]}, some=True)


def test_a_record_has_the_words_of_the_file() -> None:
    record = TABLE.record(TABLE.quantities({"free": 1.0}, some=True), {}, seed=3, count=8)
    assert (record.statement, record.invented, record.seed) == ("8 tokens.", "seed 3", 3)
    assert TABLE.matrix("A").tolist() == [[1.0, 2.0], [3.0, 4.0]]
