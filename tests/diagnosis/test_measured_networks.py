"""The table of trained networks that a diagnosis is compared with: what it says, and what is no table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

import tokendynamics as td
from command_line import call
from pretrained.families import network_of
from tokendynamics.diagnosis import Diagnosis, yardstick
from tokendynamics.diagnosis.yardstick import MeasuredNetwork, measured_networks, yardstick_finding
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.pretrained import Checkpoint

SHIPPED = files("tokendynamics.diagnosis").joinpath("measured_networks.json").read_text()
PROMPTS = {"one": [5, 9, 33, 21, 8], "two": [7, 12, 4], "three": [40, 41, 3, 17], "four": [11, 30, 25, 50]}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave whatever table the user has alone."""
    monkeypatch.setattr(yardstick, "own_table", lambda: tmp_path / "own" / "reference.json")


@pytest.fixture(scope="module")
def ckpt() -> Checkpoint:
    return td.load(network_of("llama")[0])


@pytest.fixture(scope="module")
def diagnosis(ckpt: Checkpoint) -> Diagnosis:
    return td.diagnose(ckpt, PROMPTS, levers=False, baseline=None)


def test_the_table_of_the_package() -> None:
    rows = measured_networks()
    assert [row.name for row in rows] == ["smollm2", "minilm", "IgLM", "IgLM-S", "RXNMapper"]
    assert len(SHIPPED) < 50_000
    for row in rows:
        assert row.interval[0] < row.consensus_relative < row.interval[1]
        assert row.share_common + row.share_prompt + row.share_own == pytest.approx(1, abs=1e-5)
        assert row.consensus_within == pytest.approx(row.share_prompt / (1 - row.share_common), abs=1e-5)


@pytest.mark.long
@pytest.mark.pretrained
def test_a_row_is_what_the_states_of_the_network_give() -> None:
    """Recomputed from `output_hidden_states`, by pairs of tokens."""
    from itertools import permutations

    from tokendynamics.diagnosis.texts import default_texts

    ckpt = td.load("minilm")
    given = [ckpt.encode(text).ids for text in default_texts().values()]
    kappas = []
    for layer in (0, -1):
        means, within = [], []
        for ids in given:
            with torch.no_grad():
                state = ckpt.model(ids, output_hidden_states=True).hidden_states[layer][0].double()
            rows = state / state.norm(dim=-1, keepdim=True)
            means.append(rows.mean(0))
            products = rows @ rows.T
            within.append(float((products.sum() - products.trace()) / (len(rows) * (len(rows) - 1))))
        common = sum(float(one @ two) for one, two in permutations(means, 2)) / (len(means) * (len(means) - 1))
        kappas.append((sum(within) / len(within) - common) / (1 - common))
    row = next(row for row in measured_networks() if row.name == "minilm")
    # The row leaves out the two massive tokens of all texts: 0.2924 instead of 0.2919.
    assert row.consensus_within == pytest.approx(kappas[1], abs=6e-4)
    assert row.consensus_relative == pytest.approx((kappas[1] - kappas[0]) / (1 - kappas[0]), abs=6e-4)


def rows_at(*ends: float) -> list[MeasuredNetwork]:
    """Rows that end at these κ′."""
    first = measured_networks()[0]
    return [replace(first, name=str(place), layers=99, consensus_relative=end) for place, end in enumerate(ends)]


def said(result: Diagnosis, ckpt: Checkpoint, rows: list[MeasuredNetwork]) -> str:
    finding = yardstick_finding(result.trace, result.baseline, ckpt, rows)
    return "" if finding is None else finding.text


@pytest.mark.long
def test_the_sentence_says_where_a_network_lies(diagnosis: Diagnosis, ckpt: Checkpoint) -> None:
    end = float(diagnosis.trace.consensus_relative.sel(site="feed_forward")[-1])
    low, high = diagnosis.trace.consensus_relative_interval.sel(site="feed_forward")[-1].values
    inside = said(diagnosis, ckpt, rows_at(end - 0.1, end + 0.1, end))
    assert inside.startswith("This is within the range of the 3 trained networks measured (")
    above = said(diagnosis, ckpt, rows_at(low - 0.1, low - 0.2, low - 0.3))
    assert above.startswith("This is higher than in the 3 trained networks measured (")
    assert above.endswith("each on texts of its kind).")
    below = said(diagnosis, ckpt, rows_at(high + 0.1, high + 0.2, high + 0.3))
    assert below.startswith("This is lower than in the 3 trained networks")
    perhaps = said(diagnosis, ckpt, rows_at(low + 1e-9, low - 0.2, low - 0.3))
    assert perhaps.startswith("This is not significantly higher than in the 3 trained")
    equal_as_printed = said(diagnosis, ckpt, rows_at(end - 1e-6, low - 0.2, low - 0.3))
    assert equal_as_printed.startswith("This is within the range of the 3 trained")
    assert "The within-text similarity is higher than in the 5 trained networks" in diagnosis.verdict.sentences[0].text


@pytest.mark.long
def test_too_few_networks_or_others_are_no_range(diagnosis: Diagnosis, ckpt: Checkpoint) -> None:
    assert said(diagnosis, ckpt, rows_at(0.1, 0.2)) == ""
    images = [replace(row, noun="image") for row in rows_at(0.1, 0.2, 0.3)]
    assert said(diagnosis, ckpt, images) == ""
    facts = ckpt.architecture
    sizes = {"layers": facts.layers, "heads": facts.heads, "dim": facts.dim, "parameters": facts.parameters}
    replaced = replace(rows_at(0.3)[0], **sizes)
    assert said(diagnosis, ckpt, [*rows_at(0.1, 0.2), replaced]) == ""
    assert "3 other trained networks" in said(diagnosis, ckpt, [*rows_at(0.1, 0.2, 0.25), replaced])


def test_a_diagnosis_is_added_and_replaced(diagnosis: Diagnosis, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    diagnosis.save(tmp_path / "saved")
    table = tmp_path / "mine" / "table.json"
    for texts in ("some", "others"):
        arguments = ["reference", "add", str(tmp_path / "saved"), "--texts", texts, "--name", "mine"]
        assert call([*arguments, "--table", str(table)]) == 0
    capsys.readouterr()
    assert call(["reference", "--table", str(table), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows][-2:] == ["RXNMapper", "mine"]
    assert rows[-1]["texts"] == "others"
    end = diagnosis.trace.consensus_relative.sel(site="feed_forward")[-1]
    assert rows[-1]["consensus_relative"] == pytest.approx(float(end), abs=1e-6)
    assert call(["reference", "--table", str(table)]) == 0
    assert "smollm2" in capsys.readouterr().out
    assert call(["reference", "add", str(tmp_path / "saved")]) == 0
    assert len(measured_networks()) == 6


@pytest.mark.long
def test_what_is_no_trained_network_is_refused(tiny: Callable[..., Checkpoint], diagnosis: Diagnosis) -> None:
    untrained = td.diagnose(tiny("llama"), PROMPTS, levers=False)
    with pytest.raises(ArgumentValueError, match="expected a diagnosis of a trained network, got untrained"):
        yardstick.measured_network(untrained, "texts")
    two = td.diagnose(network_of("llama")[0], dict(list(PROMPTS.items())[:2]), levers=False, baseline=None)
    with pytest.raises(ArgumentValueError, match="an interval of κ′"):
        yardstick.measured_network(two, "texts")


def changed(**changes: Any) -> str:
    values = json.loads(SHIPPED)
    return json.dumps(values | {"networks": [values["networks"][0] | changes]})


HOSTILE = {
    "another version": (json.dumps({"version": 2, "networks": []}), r"a table of version 1, got version 2"),
    "no version": (json.dumps({"networks": []}), "a table of version 1, got version None"),
    "no table": ("[]", "without networks"),
    "no JSON": ("{", "expected JSON"),
    "a number that is none": (changed(consensus_relative="0.1"), "consensus_relative"),
    "infinite": (SHIPPED.replace("0.249106", "1e999"), "consensus_relative"),
    "not a number": (SHIPPED.replace("0.249106", "NaN"), "NaN"),
    "a state of another": (changed(state="<b>"), "state"),
    "no name": (changed(name=3), "name"),
    "half an interval": (changed(interval=[0.1]), "reference"),
    "missing": (json.dumps({"version": 1, "networks": [{}]}), "no 'name'"),
    "networks by name": (json.dumps({"version": 1, "networks": 3}), "reference"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_table_is_refused_by_name(case: str, tmp_path: Path) -> None:
    text, match = HOSTILE[case]
    path = tmp_path / "own" / "reference.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ArgumentValueError, match=match) as error:
        measured_networks()
    assert str(error.value).startswith("reference: expected ")
    assert "reference.json" in str(error.value)
    with pytest.raises(ArgumentValueError, match="reference: expected"):
        td.diagnose("random:distilgpt2", PROMPTS)
