"""Remedies and joint levers in a diagnosis: the numbers of their functions, in words, on the page and in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr

import tokendynamics as td
from diagnosis.test_heads import ids_of, network_of
from report.reading import page_of
from tokendynamics.diagnosis import Diagnosis, Levers
from tokendynamics.diagnosis.result import further_in_words
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError

PROMPTS = ids_of(9)
SMALL: dict[str, Any] = {"baseline": None, "heads": False, "directions": False}


@pytest.fixture(scope="module")
def network() -> Any:
    return network_of("llama")


@pytest.fixture(scope="module")
def measured(network: Any) -> Diagnosis:
    return td.diagnose(network, PROMPTS, remedies=True, joint=True, **SMALL)


def tables_of(result: Diagnosis) -> tuple[xr.Dataset, xr.Dataset]:
    assert isinstance(result.remedies, xr.Dataset)
    assert isinstance(result.joint, xr.Dataset)
    return result.remedies, result.joint


@pytest.mark.long
def test_the_numbers_are_those_of_the_functions(network: Any, measured: Diagnosis) -> None:
    remedies, joint = tables_of(measured)
    alone, sets = td.remedies(network, PROMPTS), td.joint_levers(network, PROMPTS)
    xr.testing.assert_allclose(remedies.drop_vars("recommended"), alone.drop_vars("recommended"), rtol=0, atol=1e-9)
    xr.testing.assert_allclose(joint.drop_vars("reported"), sets.table.drop_vars("reported"), rtol=0, atol=1e-9)
    assert (joint.attrs["singles"], joint.attrs["sets"]) == (sets.singles, sets.sets)


@pytest.mark.long
def test_words_and_page_have_them(measured: Diagnosis) -> None:
    remedies, joint = tables_of(measured)
    assert bool(remedies.recommended.any()) == (measured.verdict.state in ("drawing together", "consensus"))
    for sentence in (remedies.attrs["summary"], joint.attrs["summary"]):
        assert sentence in further_in_words(measured)
    assert f"{joint.attrs['singles']} single changes and {joint.attrs['sets']} larger sets" in joint.attrs["summary"]
    page = page_of(measured)
    assert "Command or call that made this report" in page  # which its first argument alone does not reproduce
    assert str(measured.manifest["command"]).endswith("', …)")
    for words in ("Remedies tried without training", "Sets of parts and heads, one change added a row"):
        assert words in page
    assert isinstance(measured.levers, Levers)
    assert "Combinations of parts were not tried" not in page + measured.levers.text + measured.levers.advice


@pytest.mark.long
def test_they_are_not_tried_unless_requested(network: Any) -> None:
    without = td.diagnose(network, PROMPTS[:2], levers=False, **SMALL)
    assert without.remedies_refused == without.joint_refused == "it was not requested"
    assert not any("No remedy" in words or "No set" in words for words in further_in_words(without))
    few = td.diagnose(network, PROMPTS[:2], levers=False, remedies=True, **SMALL)
    assert "at least 5 texts" in few.remedies_refused
    assert any(words.startswith("No remedy was tried: this needs at least 5 ") for words in further_in_words(few))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["zarr", "netcdf"])
def test_they_are_saved_and_older_folders_open(measured: Diagnosis, tmp_path: Path, format: Any) -> None:
    measured.save(tmp_path, format=format)
    for opened, table in zip(tables_of(td.Diagnosis.open(tmp_path)), tables_of(measured), strict=True):
        xr.testing.assert_identical(opened, table)
    summary = json.loads((tmp_path / "diagnosis.json").read_text())
    for name in ("remedies", "joint"):
        del summary[name], summary[f"{name}_refused"]
    (tmp_path / "diagnosis.json").write_text(json.dumps(summary))
    (tmp_path / "manifest.json").unlink()  # it has the checksums of the files before
    older = td.Diagnosis.open(tmp_path)
    assert older.remedies is older.joint is None


@pytest.mark.slow
def test_a_search_without_a_set_is_saved(tmp_path: Path) -> None:
    network = network_of("llama")
    with torch.no_grad():
        for block in network.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.mul_(1e-3)
    diagnosis = td.diagnose(network, PROMPTS, levers=False, joint=True, **SMALL)
    assert isinstance(diagnosis.joint, xr.Dataset)
    assert diagnosis.joint.sizes["step"] == 0
    diagnosis.save(tmp_path)
    opened = td.Diagnosis.open(tmp_path).joint
    assert isinstance(opened, xr.Dataset)
    assert opened.attrs["summary"].startswith("No change is needed to avoid consensus")
    assert opened.attrs["summary"] in page_of(diagnosis)


@pytest.mark.slow
def test_a_loss_that_is_passed_reaches_everything(network: Any) -> None:
    diagnosis = td.diagnose(network, PROMPTS, remedies=True, joint=True, loss=lambda network: 1.0, baseline=None)
    assert isinstance(diagnosis.levers, Levers)
    assert isinstance(diagnosis.heads, xr.Dataset)
    remedies, joint = tables_of(diagnosis)
    for changes in (diagnosis.levers.loss_change, remedies.loss_change, joint.loss_change, diagnosis.heads.loss_effect):
        assert bool((changes.dropna(changes.dims[0], how="all").fillna(0.0) == 0).all())
    for table in (diagnosis.levers.table, remedies, joint, diagnosis.heads):
        assert table.attrs["loss_unit"] == ""
    assert "a loss that is passed has no derivative" in page_of(diagnosis)


@pytest.mark.parametrize(
    ("chosen", "error", "words"),
    [
        ({"loss": lambda network: float("nan")}, ArgumentValueError, "a finite number for the network as it is"),
        ({"loss": lambda network: torch.ones(3)}, ArgumentTypeError, "one number"),
        ({"budget": -1.0}, ArgumentValueError, "budget"),
    ],
)
def test_what_is_no_loss_is_refused(network: Any, chosen: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        td.diagnose(network, PROMPTS, **SMALL, **chosen)
