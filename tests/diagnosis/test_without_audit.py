"""A network whose attention has no factors that are known is diagnosed by its states, and every place says so once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from safetensors.torch import load_file, save_file

import tokendynamics as td
from command_line import call
from pretrained.families import network_of
from report.reading import page_of
from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.result import data_file_names
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.numerics import extras as extras
from tokendynamics.results import Refused

PROMPTS = {"one": [5, 9, 33, 21, 7, 50], "other": [12, 3, 44]}
REASON = (
    "layer 1: no softmax of products of queries and keys was seen in it; it may have no attention, one without a "
    "softmax, or one that runs as one function"
)
WORDS = f"The weights were not audited ({REASON}), so nothing is predicted from them"
FORMATS = ["zarr", pytest.param("netcdf", marks=pytest.mark.skipif(bool(extras.missing("netcdf")), reason="no extra"))]


@pytest.fixture(scope="module", params=["mamba", "fnet"])
def result(request: pytest.FixtureRequest) -> Diagnosis:
    return td.diagnose(network_of(request.param)[0], PROMPTS)


def text_of(page: str) -> str:
    """What a reader sees."""
    return re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", page)).replace("&#39;", "'")


@pytest.mark.long
def test_the_diagnosis_has_the_trace_and_the_reason(result: Diagnosis) -> None:
    assert isinstance(result.audit, Refused)
    assert result.audit_refused == REASON
    assert result.trace.sizes["layer"] == 4
    about_weights = [finding for finding in result.verdict.details if finding.figure == "weights"]
    assert [finding.text.startswith(WORDS) for finding in about_weights] == [True]
    assert "Prediction" not in str(result.verdict)
    assert result.verdict.state != "undetermined"
    names = {convention.name for convention in result.conventions}
    assert "Sinks" in names
    assert not names & {"Value map", "Norm folding", "Singular value maps", "Scaling", "Near zero", "Balance"}
    assert not {"layers", "value_map", "fold_norms", "singular"} & result.manifest["parameters"].keys()


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("format", FORMATS)
def test_what_is_saved_has_no_audit_and_says_why(result: Diagnosis, format: Any, tmp_path: Path) -> None:
    paths = result.save(tmp_path, format=format)
    further = tuple(result.tables)
    assert {"trace", "paths"} <= set(further) <= {"trace", "paths", "baseline", "directions"}
    names = data_file_names(format, tables=further)
    assert tuple(path.name for path in paths) == names
    assert {path.name for path in tmp_path.iterdir()} == {*names, "manifest.json"}
    text = (tmp_path / "diagnosis.json").read_text()
    summary = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (summary["audit"], summary["audit_refused"]) == (None, REASON)
    engine = {"zarr": "zarr", "netcdf": "h5netcdf"}[format]
    xr.testing.assert_equal(xr.open_dataset(paths[0], engine=engine).load(), result.trace)


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_the_page_says_it_once_and_draws_nothing_of_the_weights(result: Diagnosis) -> None:
    page = page_of(result)
    text = text_of(page)
    assert text.count(WORDS) == 1
    assert text.count("The weights were not audited; the verdict gives the reason.") == 1
    part = page[page.index('<section id="weights"') : page.index('<section id="paths"')]
    assert not re.search("<figure|<table|<dl|<svg", part)
    assert not re.search(r"\b(nan|inf|null)\b", text, re.IGNORECASE)
    assert "0 heads" not in text
    assert "no positions" not in text
    assert "3 layers × dim 48" in text


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_a_network_with_factors_says_nothing_of_it() -> None:
    diagnosis = td.diagnose(network_of("llama")[0], PROMPTS)
    assert isinstance(diagnosis.audit, xr.Dataset)
    assert diagnosis.audit_refused == ""
    text = text_of(page_of(diagnosis))
    assert "not audited" not in text
    assert "3 layers × 4 heads" in text


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_the_reason_once_and_replaces_an_older_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for family in ("llama", "fnet"):
        (tmp_path / family).mkdir()
        network_of(family)[0].config.save_pretrained(tmp_path / family)
    assert call(["diagnose", "random:llama", "--prompt", "a cat", "--out", "out"]) == 0
    assert "not audited" not in capsys.readouterr().out
    assert (tmp_path / "out" / "audit.zarr").is_dir()
    assert call(["diagnose", "random:fnet", "--prompt", "a cat", "--out", "out"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count(WORDS) == 1
    assert "3 layers × dim 48" in printed
    assert "audit.zarr" not in printed
    assert not (tmp_path / "out" / "audit.zarr").exists()
    assert "audit.zarr" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert call(["diagnose", "random:fnet", "--prompt", "a cat", "--out", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["audit_refused"] == REASON


def test_factors_that_do_not_give_the_attention_back_lead_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokendynamics.pretrained import _attention_weights as _factors

    monkeypatch.setattr(_factors, "recomputed_error", lambda *arguments: 0.25)
    diagnosis = td.diagnose(network_of("llama")[0], PROMPTS, layers=[2])
    assert isinstance(diagnosis.audit, Refused)
    assert diagnosis.audit_refused == "layer 2: its factors miss its own attention by 0.25"


@pytest.mark.parametrize("family", ["llama", "gptj"])
@pytest.mark.parametrize("name", ["q_proj", "out_proj|o_proj", "fc_in|up_proj"])
def test_a_damaged_checkpoint_is_still_an_error(family: str, name: str, tmp_path: Path) -> None:
    network_of(family)[0].save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    damaged = next(tensor for tensor in tensors if re.search(rf"1\..*({name})\.weight", tensor))
    tensors[damaged][3, 5] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layer 2: tensor .*finite numbers, got nan") as raised:
        td.diagnose(tmp_path, PROMPTS)
    assert not isinstance(raised.value, AttentionFactorsError)
    del tensors[damaged]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="no such tensor") as raised:
        td.diagnose(tmp_path, PROMPTS)
    assert not isinstance(raised.value, AttentionFactorsError)


@pytest.mark.parametrize("family", ["llama", "gptj"])
def test_a_live_network_with_a_nan_is_an_error(family: str) -> None:
    network, _ = network_of(family)
    checkpoint = td.load(network)
    next(parameter for name, parameter in network.named_parameters() if "v_proj" in name).data[2, 2] = torch.nan
    with pytest.raises((ArgumentValueError, CheckpointError), match=r"finite|NaN"):
        td.diagnose(checkpoint, PROMPTS)
    if family == "llama":
        with pytest.raises(CheckpointError, match=r"layer 1: .*expected finite numbers") as raised:
            td.audit(checkpoint)
        assert not isinstance(raised.value, AttentionFactorsError)


def test_an_impossible_argument_is_an_error_of_any_network() -> None:
    network, _ = network_of("gptj")
    with pytest.raises(ArgumentValueError, match="layers: expected a layer from 1 to 3, got 4"):
        td.diagnose(network, PROMPTS, layers=[4])
    with pytest.raises(ArgumentValueError, match="sink_ratio: expected a number above 1"):
        td.diagnose(network, PROMPTS, sink_ratio=0.5)
