"""What the page says of levers is what was measured, or why nothing was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from report.conftest import HOSTILE, synthetic
from report.reading import page_of
from tokendynamics.diagnosis import Diagnosis, Levers
from tokendynamics.figures.figure import Section
from tokendynamics.report.diagnosis._levers import section
from tokendynamics.results import Refused


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return synthetic(layers=3, heads=2)


def _with_table(result: Diagnosis, **changes: Any) -> Diagnosis:
    assert isinstance(result.levers, Levers)
    return replace(result, levers=replace(result.levers, table=result.levers.table.assign(changes)))


def test_the_trials_stand_in_a_table_with_their_intervals(diagnosis: Diagnosis) -> None:
    (table,) = section(diagnosis).tables
    first, second = ([cell.text for cell in row] for row in table.rows)
    assert first == [
        "feed-forward part, layer 2", "0.5", "−0.123", "−0.200", "−0.050", "+0.062", "+0.010", "+0.115", "yes",
    ]  # fmt: skip
    assert second == [
        "attention, layer 1", "0", "+0.010", "−0.400", "+0.420", "undefined", "undefined", "undefined",
        "not significant",
    ]  # fmt: skip
    assert len(table.columns) == len(first)
    assert table.rows[0][2].value == -0.1234  # the file has every digit


@pytest.mark.parametrize(
    ("interval", "verified", "words"),
    [([0.01, 0.2], False, "no, it rises"), ([-0.2, 0.01], False, "not significant"), ([-0.2, -0.01], True, "yes")],
)
def test_a_part_whose_removal_raises_consensus_is_not_called_insignificant(
    diagnosis: Diagnosis, interval: list[float], verified: bool, words: str
) -> None:
    changed = {
        "kappa_interval": (("candidate", "bound"), [interval, interval]),
        "verified": ("candidate", [verified] * 2),
    }
    assert section(_with_table(diagnosis, **changed)).tables[0].rows[0][-1].text == words


def test_the_largest_derivative_is_named_where_it_is(diagnosis: Diagnosis) -> None:
    values = np.array([[0.1, 0.2], [0.05, -0.4], [0.7, 0.0]])
    kappa, _ = section(_with_table(diagnosis, consensus_sensitivity=(("layer", "component"), values))).variants
    assert "∂κ/∂α is largest for the attention of layer 3 (0.7)" in kappa.svg
    assert "smallest for the feed-forward part of layer 2 (−0.4)" in kappa.svg
    assert [[cell.value for cell in row] for row in kappa.table.rows] == [[1, 0.1, 0.2], [2, 0.05, -0.4], [3, 0.7, 0.0]]


def test_a_part_that_is_not_there_is_undefined_in_the_table(diagnosis: Diagnosis) -> None:
    values = np.array([[0.1, np.nan], [0.05, -0.4], [0.7, 0.0]])
    kappa, _ = section(_with_table(diagnosis, consensus_sensitivity=(("layer", "component"), values))).variants
    assert [cell.text for cell in kappa.table.rows[0]] == ["1", "0.10", "undefined"]


def test_a_network_without_loss_shows_none(diagnosis: Diagnosis) -> None:
    nowhere = (("layer", "component"), np.full((3, 2), np.nan))
    _, loss = section(_with_table(diagnosis, loss_sensitivity=nowhere)).variants
    assert not loss.svg
    assert "no head that predicts the next token was found" in loss.caption
    _, loss = section(diagnosis).variants
    assert loss.svg
    assert "no head" not in loss.caption


@pytest.mark.slow
def test_what_the_named_lever_changes_stands_beside_the_network_as_it_is(diagnosis: Diagnosis) -> None:
    assert isinstance(diagnosis.levers, Levers)
    grid, layers, sites = ("layer", "site"), [0, 1, 2, 3], ["attention", "feed_forward", "final_norm"]
    deep = np.arange(4.0)[:, None] * np.ones(3)
    variables: dict[str, Any] = {}
    for name in ("consensus_within", "consensus_relative", "centred_cos2", "effective_rank"):
        variables[name] = (("model", *grid), np.stack([deep, deep + 0.25]))
        variables[f"{name}_difference"] = (grid, deep + 0.5)
        variables[f"{name}_difference_interval"] = ((*grid, "bound"), np.stack([deep, deep + 1], axis=-1))
    of_shares = np.array([0.1, 0.2, 0.7]) * np.ones((4, 3, 3))
    variables["shares"] = (("model", *grid, "share"), np.stack([of_shares, 0.5 * of_shares]))
    variables["shares_difference"] = ((*grid, "share"), -0.5 * of_shares)
    variables["shares_difference_interval"] = ((*grid, "share", "bound"), np.zeros((4, 3, 3, 2)))
    variables["loss"], variables["loss_difference"] = ("model", [2.0, 2.5]), ((), 0.5)
    variables["loss_difference_interval"] = ("bound", [np.nan, np.nan])
    coords = {
        "layer": layers, "site": sites, "share": ["common", "prompt", "own"], "model": ["as it is", "changed"]
    }  # fmt: skip
    effect = xr.Dataset(variables, coords=coords, attrs={"changes": f"layer 2 feed_forward × 0.5 {HOSTILE}"})
    of_two = replace(diagnosis, levers=replace(diagnosis.levers, where=2, best=0, effect=effect))
    _, table = section(of_two).tables
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert "after layer 2" in table.caption
    assert rows["κ"] == ["2.0", "2.25", "+2.500", "+2.000", "+3.000"]
    assert rows["share of the token alone"] == ["0.7", "0.35", "−0.350", "0.000", "0.000"]
    assert rows["loss (nats)"] == ["2.0", "2.50", "+0.500", "undefined", "undefined"]
    assert HOSTILE not in page_of(of_two)


def test_without_a_candidate_no_table_of_trials_is_shown(diagnosis: Diagnosis) -> None:
    assert isinstance(diagnosis.levers, Levers)
    none = replace(diagnosis, levers=replace(diagnosis.levers, table=diagnosis.levers.table.isel(candidate=[])))
    assert not section(none).tables
    assert section(diagnosis).tables


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("rank collapse", "does not measure a collapse onto a line"),
        ("anisotropic", "does not measure the common direction"),
    ],
)
def test_what_consensus_does_not_measure_is_not_said_to_need_nothing(
    diagnosis: Diagnosis, state: str, words: str
) -> None:
    assert words not in section(diagnosis).sentences[0]
    other = replace(diagnosis, verdict=replace(diagnosis.verdict, state=state))  # type: ignore[arg-type]
    assert words in section(other).sentences[0]


def test_a_refusal_stands_where_the_answer_would(diagnosis: Diagnosis) -> None:
    refused = replace(diagnosis, levers=Refused(f"too few {HOSTILE}"))
    assert section(refused) == Section("levers", "What can you try?", (f"Nothing was tried: too few {HOSTILE}.",))


def test_columns_of_an_unknown_loss_are_left_out(diagnosis: Diagnosis) -> None:
    assert isinstance(diagnosis.levers, Levers)
    unknown = {name: diagnosis.levers.table[name] * np.nan for name in ("loss_change", "loss_interval")}
    (table,) = section(_with_table(diagnosis, **unknown)).tables
    assert table.columns == ("Part turned down", "α", "Change of κ", "from", "to", "κ falls")
    assert [cell.text for cell in table.rows[0]] == [
        "feed-forward part, layer 2", "0.5", "−0.123", "−0.200", "−0.050", "yes",
    ]  # fmt: skip
    assert table.caption == "Effect of turning one part down on κ, with 95 % confidence intervals over 3 texts"
    known = section(diagnosis).tables[0]
    assert "Change of loss" in known.columns
    assert known.caption.startswith("Effect of turning one part down on κ and on the loss in nats, with 95 %")
