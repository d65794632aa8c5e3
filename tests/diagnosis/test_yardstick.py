"""Whether the similarity of a network is usual: beside an untrained network of its architecture."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import tokendynamics as td
from pretrained.families import network_of
from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.yardstick import MEASURES, _beside, measured_networks
from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.pretrained import Checkpoint, loading
from tokendynamics.pretrained.loading import untrained_twin
from tokendynamics.results import Refused
from tokendynamics.words import fixed

PROMPTS = {"one": [5, 9, 33, 21, 8], "two": [7, 12, 4], "three": [40, 41, 3, 17], "four": [11, 30, 25, 50]}
ALONE: Any = {"levers": False, "heads": False, "directions": False}


@pytest.fixture(scope="module")
def result() -> Diagnosis:
    """A diagnosis of a network whose weights differ from their initialisation."""
    return td.diagnose(network_of("llama")[0], PROMPTS, **ALONE)


@pytest.mark.long
def test_the_untrained_network_is_traced_on_the_same_texts(result: Diagnosis) -> None:
    twin = untrained_twin(td.load(network_of("llama")[0]), 0)
    traced = td.trace(twin, PROMPTS)
    assert isinstance(result.baseline, xr.Dataset)
    assert result.baseline.attrs["random_seed"] == 0
    measures = [*MEASURES, *(f"{name}_interval" for name in MEASURES)]
    assert set(result.baseline.data_vars) == set(measures)
    for name in measures:
        xr.testing.assert_equal(result.baseline[name], traced[name])
        assert result.baseline[name].attrs == traced[name].attrs
    assert result.baseline.attrs["intervals"] == traced.attrs["intervals"]
    end = float(traced.consensus_relative.sel(site="feed_forward")[-1])
    (what, *_), text = result.verdict.sentences, result.verdict.sentences[0].text
    assert f"Untrained, this architecture ends at {fixed(end)} (90 % CI" in text
    assert what.values["untrained"] == pytest.approx(end)
    assert result.manifest["parameters"]["baseline_seed"] == 0


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "bert"])
def test_states_of_the_untrained_network_are_those_that_it_gives(family: str) -> None:
    """Its layout is that of the trained network."""
    twin, ids = untrained_twin(td.load(network_of(family)[0]), 0), torch.tensor([5, 9, 33, 21, 8])
    hidden = twin.model(input_ids=ids[None], output_hidden_states=True).hidden_states
    # Behind the last block the network's own states are those after its final norm.
    for layer, states in enumerate(hidden[:-1]):
        torch.testing.assert_close(twin.states(ids).feed_forward[layer], states[0], rtol=1e-5, atol=1e-6)


def _hooked(network: Any) -> None:
    network.layers[1].mlp.register_forward_hook(lambda module, given, output: 2 * output)


def _patched(network: Any) -> None:
    mlp = network.layers[1].mlp
    mlp.forward = lambda states: type(mlp).forward(mlp, states)


def _wider(network: Any) -> None:
    mlp, dim = network.layers[1].mlp, network.config.hidden_size
    mlp.gate_proj, mlp.up_proj, mlp.down_proj = (
        torch.nn.Linear(*sizes, bias=False) for sizes in ((dim, 7), (dim, 7), (7, dim))
    )


@pytest.mark.parametrize(("change", "times"), [(None, 0), (_hooked, 1), (_patched, 1), (_wider, 1)])
def test_the_layout_of_a_network_that_runs_other_code_is_not_that_of_the_untrained_one(
    change: Callable[[Any], None] | None, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of("llama")[0]
    if change is not None:
        change(network)
    ckpt, calls = td.load(network), []
    discover_in = loading.discover_in
    monkeypatch.setattr(loading, "discover_in", lambda *given: calls.append(given) or discover_in(*given))
    twin = untrained_twin(ckpt, 0)
    assert len(calls) == times
    assert twin.layout.blocks == ckpt.layout.blocks


@pytest.mark.long
def test_a_network_under_a_change_is_compared_with_an_untrained_one_under_it() -> None:
    ckpt = td.load(network_of("llama")[0])
    diagnosis = td.diagnose(ckpt.under({"layer 1 attention": 0}), PROMPTS, **ALONE)
    traced = td.trace(untrained_twin(ckpt, 0).under({"layer 1 attention": 0}), PROMPTS)
    assert isinstance(diagnosis.baseline, xr.Dataset)
    np.testing.assert_array_equal(diagnosis.baseline.shares.values, traced.shares.values)


def test_nothing_is_traced_where_that_was_not_requested() -> None:
    diagnosis = td.diagnose(network_of("llama")[0], PROMPTS, **ALONE, baseline=None)
    assert diagnosis.baseline == Refused("it was not requested")
    assert "untrained" not in str(diagnosis).lower()


@pytest.mark.long
def test_an_untrained_network_has_no_baseline_unless_it_is_asked_for(tiny: Callable[..., Checkpoint]) -> None:
    ckpt = tiny("llama", 4)
    diagnosis = td.diagnose(ckpt, PROMPTS, **ALONE)
    assert diagnosis.baseline_refused == "this network is itself untrained"
    assert "No untrained network was measured for comparison: this network is itself untrained." in diagnosis.summary()
    other = td.diagnose(ckpt, PROMPTS, **ALONE, baseline="untrained")
    assert isinstance(other.baseline, xr.Dataset)
    assert other.baseline.attrs["random_seed"] == 5


def test_a_token_that_is_zero_at_the_embedding_is_named_by_its_prompt() -> None:
    """An untrained network has zeros for the padding token: the note names the prompt, in every order of lengths."""
    network = network_of("llama")[0]
    network.config.pad_token_id = 0
    prompts = PROMPTS | {"padded": [9, 0, 8]}
    diagnosis = td.diagnose(network, prompts, **ALONE)
    assert diagnosis.baseline_refused == (
        "this needs tokens with a direction, not a zero vector at token 1 of prompt 5, before the first layer; "
        "leave that token out of the prompt"
    )
    twin = untrained_twin(td.load(network), 0)
    words = "states: expected tokens with a direction, got a zero vector at token 1 of prompt 5, before the first layer"
    with pytest.raises(ArgumentValueError, match=words):
        td.trace(twin, list(prompts.values()))


@pytest.mark.long
def test_a_network_without_a_configuration_says_so() -> None:
    ckpt = td.load(network_of("llama")[0])
    ckpt.config = None
    diagnosis = td.diagnose(ckpt, PROMPTS, **ALONE)
    assert diagnosis.baseline_refused.startswith("this needs a model with a transformers configuration")
    assert "No untrained network was measured for comparison: this needs a model with" in diagnosis.summary()
    with pytest.raises(CheckpointError, match="baseline: expected a model with a transformers configuration"):
        td.diagnose(ckpt, PROMPTS, **ALONE, baseline="untrained")


@pytest.mark.long
def test_a_configuration_of_another_network_is_no_baseline() -> None:
    network = network_of("llama")[0]
    network.config.num_hidden_layers += 1
    ckpt = td.load(network)
    assert "their depths differ" in td.diagnose(ckpt, PROMPTS, **ALONE).baseline_refused
    with pytest.raises(CheckpointError, match="their depths differ"):
        td.diagnose(ckpt, PROMPTS, **ALONE, baseline="untrained")


def test_one_text_has_nothing_to_compare() -> None:
    diagnosis = td.diagnose(network_of("llama")[0], [5, 9, 33, 21], **ALONE)
    assert diagnosis.baseline_refused == "κ′ of this network is undefined"


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("format", ["zarr", "netcdf"])
def test_it_is_saved_and_opened(result: Diagnosis, tmp_path: Path, format: str) -> None:
    result.save(tmp_path, format=format)  # type: ignore[arg-type]
    back = Diagnosis.open(tmp_path)
    assert isinstance(result.baseline, xr.Dataset)
    assert isinstance(back.baseline, xr.Dataset)
    xr.testing.assert_identical(back.baseline, result.baseline)
    summary = json.loads((tmp_path / "diagnosis.json").read_text())
    assert summary["baseline"]["random_seed"] == 0


@pytest.mark.long
def test_folders_written_before_open_without_it(result: Diagnosis, tmp_path: Path) -> None:
    result.save(tmp_path)
    summary = json.loads((tmp_path / "diagnosis.json").read_text())
    del summary["baseline"], summary["baseline_refused"]
    (tmp_path / "diagnosis.json").write_text(json.dumps(summary))
    (tmp_path / "manifest.json").unlink()  # it has the checksums of the files before
    shutil.rmtree(tmp_path / "baseline.zarr")
    assert Diagnosis.open(tmp_path).baseline is None


@pytest.mark.long
def test_a_baseline_of_another_depth_is_refused(result: Diagnosis, tmp_path: Path) -> None:
    result.save(tmp_path)
    table = xr.open_zarr(tmp_path / "baseline.zarr").load()
    shutil.rmtree(tmp_path / "baseline.zarr")
    table.isel(layer=slice(2)).drop_encoding().to_zarr(tmp_path / "baseline.zarr", zarr_format=2)
    with pytest.raises(ArgumentValueError, match="baseline: expected layers 0 to"):
        Diagnosis.open(tmp_path)


def test_what_has_no_interval_is_not_denied_to_be_significant() -> None:
    for interval, words in (([0.5, 0.9], "higher than"), ([0.2, 1.0], "not significantly higher than")):
        assert _beside(0.7, interval, [0.1, 0.3], "", "text").startswith(words)
    unknown = _beside(0.7, [float("nan")] * 2, [0.1, 0.3], "", "text")
    assert unknown == (
        "higher than in the 2 trained networks measured (0.10 to 0.30, each on texts of its kind), without a "
        "confidence interval."
    )


def test_the_common_share_is_compared_where_it_decides_the_state() -> None:
    """Of one point the similarity within texts is no measure: it is low although nothing is left apart."""
    network, _ = network_of("gpt2")
    network.h[-1].mlp.c_proj.bias.data += 300.0 * torch.randn(network.config.n_embd)
    diagnosis = td.diagnose(network, PROMPTS, **ALONE)
    assert diagnosis.verdict.state in ("one point", "anisotropic")
    assert isinstance(diagnosis.baseline, xr.Dataset)
    end = diagnosis.baseline.shares.sel(site="feed_forward", share="common").isel(layer=-1)
    what = diagnosis.verdict.sentences[0].text
    rows = [row.share_common for row in measured_networks()]
    between = f"({fixed(min(rows))} to {fixed(max(rows))}, each on texts of its kind)"
    assert f"The common share is higher than in the {len(rows)} trained networks measured {between}." in what
    assert f"Untrained, this architecture has a common share of {fixed(float(end))}" in what
    assert "This is" not in what
    assert "ends at" not in what


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("family", "half"), [("T5", "encoder"), ("T5", "decoder"), ("Bart", "encoder"), ("Bart", "decoder")]
)
def test_a_half_is_compared_with_the_same_half_untrained(family: str, half: str) -> None:
    import transformers

    small: dict[str, dict[str, int]] = {
        "T5": {"vocab_size": 200, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
        "Bart": {
            "vocab_size": 200, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
        },
    }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**small[family])
    whole = getattr(transformers, f"{family}Model")(config).eval()
    ckpt = td.load(whole, half=half)
    twin = untrained_twin(ckpt)
    assert twin.causal == ckpt.causal == (half == "decoder")
    assert twin.architecture.layers == ckpt.architecture.layers
    torch.manual_seed(1)
    texts = torch.randint(3, 200, (4, 9)).tolist()
    result = td.diagnose(ckpt, texts, levers=False, heads=False, directions=False)
    assert "Untrained, this architecture" in result.verdict.lines[0][1]


@pytest.mark.long
def test_an_encoder_that_stands_alone_has_an_untrained_twin() -> None:
    from transformers import T5Config, T5EncoderModel

    sizes: dict[str, Any] = {"vocab_size": 200, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    ckpt = td.load(T5EncoderModel(T5Config(**sizes)).eval())
    assert not untrained_twin(ckpt).causal
