"""What `python -m bench --against FILE` says of ratios that differ from those of an earlier run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from bench import baseline
from bench.measure import Comparison


def row(workload: str, ratio: float, low: float, high: float) -> Comparison:
    return Comparison(workload, 1.0, ratio, ratio, (low, high), "≥ 1", True, "none")


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        ((3.0, 2.6, 4.0), "higher, beyond both spreads"),
        ((1.0, 0.5, 1.4), "lower, beyond both spreads"),
        ((2.0, 1.0, 3.0), "within the spreads"),
        ((3.0, 2.5, 4.0), "within the spreads"),
    ],
)
def test_a_ratio_differs_only_beyond_both_spreads(tmp_path: Path, ratio: tuple[float, float, float], verdict: str):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"comparisons": [{"workload": "one", "ratio": 2.0, "spread": [1.5, 2.5]}]}))
    (cells,) = baseline.against(baseline.ratios_of(file), [row("one", *ratio)])
    assert cells[0] == "one"
    assert cells[-1] == verdict


def test_what_was_not_measured_has_no_verdict(tmp_path: Path):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"comparisons": [{"workload": "one", "ratio": None, "spread": [None, None]}]}))
    rows = [row("one", 2.0, 1.0, 3.0), row("other", math.nan, math.nan, math.nan)]
    (cells,) = baseline.against(baseline.ratios_of(file), rows)
    assert cells[-1] == "not in the earlier run"


@pytest.mark.parametrize("text", [None, "no JSON", "[]", '{"comparisons": [{}]}'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str | None):
    file = tmp_path / "bench.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit, match=r"expected the bench\.json of an earlier run"):
        baseline.ratios_of(file)
