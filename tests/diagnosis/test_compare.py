"""A comparison finds planted damage in every layer and part, and nothing where there is nothing."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t as student

import tokendynamics as td
from diagnosis.planted_damage import DAMAGES, FAMILIES, LAYERS, blocks_of, damaged, first_part_of, network
from report.reading import page_of
from tokendynamics.diagnosis import Comparison
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.loading import untrained_twin

PROMPTS = {
    "one": [5, 9, 33, 21, 7, 50], "two": [12, 3, 44, 18, 40],
    "three": [20, 31, 8, 6, 11, 2, 55], "four": [9, 9, 41, 30],
}  # fmt: skip


POWER = "⁻[⁰¹²³⁴-⁹]+"

QUICK = [(2, name, FAMILIES[number % len(FAMILIES)]) for number, name in enumerate(DAMAGES)]
"""Each damage once, and each family with two."""


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("layer", "name", "family"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in itertools.product(range(1, LAYERS + 1), DAMAGES, FAMILIES)
    ],
)
def test_the_first_damaged_layer_and_part_are_named(family: str, name: str, layer: int) -> None:
    whole = network(family)
    comparison = td.compare(whole, damaged(whole, name, tuple(range(layer, LAYERS + 1))), texts=PROMPTS, weights=False)
    first = comparison.first_difference
    if layer == 1 and DAMAGES[name][1] == "attention":  # the attention of every layer is damaged alike
        assert first is None
        assert "No layer stands out" in str(comparison)
        return
    assert first is not None
    assert (first.layer, first.part, first.before) == (layer, DAMAGES[name][1], 0.0)
    assert (comparison.first_layer, comparison.first_part) == (layer, first_part_of(name))
    norm = "the norm of " if first_part_of(name) == "norm" else ""
    assert f"the first difference is in {norm}the {first.part} of layer {layer}: " in str(comparison)
    assert "All earlier states are equal to the last bit" in str(comparison)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_of_two_that_are_the_same_nothing_is_said_to_differ(family: str) -> None:
    whole = network(family)
    comparison = td.compare(whole, copy.deepcopy(whole), texts=PROMPTS)
    assert comparison.first_difference is comparison.first_layer is comparison.first_part is None
    assert comparison.partings[0] is not None
    assert comparison.partings[0].kind == "equal"
    assert "all states are equal to the last bit" in str(comparison)
    assert "Within-text similarity κ′ is identical" in str(comparison)
    assert "differ " not in str(comparison)


@pytest.mark.long
@pytest.mark.parametrize("noise", [1e-14, 1e-10, 1e-6])
def test_weights_that_differ_by_little_are_not_called_equal_nor_closer_to_collapse(noise: float) -> None:
    whole = network("llama").double()
    other = copy.deepcopy(whole)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1 + noise * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    comparison = td.compare(whole, other, texts=PROMPTS, names=["a", "b"])
    text = str(comparison)
    assert "collapse" not in text
    assert "significant" not in text
    assert re.search(rf"similarity κ′ is the same to within [\d.]+ × 10{POWER}\.", text)
    products = "equal in all compared layers" + (", but for at most" if noise > 1e-12 else ".")
    for subject in ("QK and OV products", "feed-forward matrices"):
        assert f"The {subject} of b and a are {products}" in text
    assert "of b and a are equal, including biases and norms, but for at most" in text


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_changes_no_function_is_rounding_and_no_difference_of_weights(family: str) -> None:
    """The gain of a norm moved into the matrices behind it, and heads in another order."""
    whole = network(family)
    shifted = copy.deepcopy(whole)
    for block in blocks_of(shifted):
        norm = block.input_layernorm if family == "llama" else block.ln_1
        gain = norm.weight.data.clone()
        norm.weight.data.fill_(1.0)
        if family == "llama":
            for part in (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj):
                part.weight.data *= gain
        else:
            attention, dim = block.attn, len(gain)
            attention.c_attn.bias.data += norm.bias.data @ attention.c_attn.weight.data
            norm.bias.data.zero_()
            attention.c_attn.weight.data *= gain[:, None]
            order = torch.arange(dim).unflatten(0, (4, -1)).flip(0).flatten()
            columns = torch.cat([order, dim + order, 2 * dim + order])
            attention.c_attn.weight.data = attention.c_attn.weight.data[:, columns].contiguous()
            attention.c_attn.bias.data = attention.c_attn.bias.data[columns].contiguous()
            attention.c_proj.weight.data = attention.c_proj.weight.data[order].contiguous()
    comparison = td.compare(whole, shifted, texts=PROMPTS)
    assert comparison.partings[0] is not None
    assert comparison.partings[0].kind == "rounding"
    assert comparison.weights is not None
    for name in ("qk_difference", "ov_difference"):
        assert float(comparison.weights[name].max()) < 1e-5
    for name in ("qk_angle", "ov_angle"):
        assert float(comparison.weights[name].max()) < 0.01


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_differs_everywhere_by_rounding_and_no_layer_is_named(family: str) -> None:
    whole = network(family)
    comparison = td.compare(whole, copy.deepcopy(whole).to(torch.bfloat16), texts=PROMPTS, names=["single", "half"])
    assert comparison.first_difference is None
    assert comparison.partings[0] is not None
    assert comparison.partings[0].kind == "rounding"
    assert "half vs single: the states differ only by rounding in bfloat16: by " in str(comparison)
    assert "No layer stands out" in str(comparison)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_damage_is_found_beneath_the_rounding_of_half_precision(family: str) -> None:
    whole = network(family)
    broken = damaged(whole, "down_proj × 3", (2,))
    scale = blocks_of(broken)[1]
    down = {"llama": "mlp.down_proj", "gpt2": "mlp.c_proj", "bert": "output.dense"}[family]
    scale.get_submodule(down).weight.data *= 20.0
    comparison = td.compare(whole, broken.to(torch.bfloat16), texts=PROMPTS)
    first = comparison.first_difference
    assert first is not None
    assert (first.layer, first.part) == (2, "feed-forward part")


@pytest.mark.long
def test_weights_rounded_and_run_in_single_precision_differ_from_the_embedding_on() -> None:
    whole = network("llama")
    rounded = copy.deepcopy(whole).to(torch.bfloat16).to(torch.float32)
    comparison = td.compare(whole, rounded, texts=PROMPTS)
    parting, first = comparison.partings[0], comparison.first_difference
    assert parting is not None
    assert first is not None
    assert (parting.kind, first.part) == ("from the start", "embedding")
    assert "which is typical of weights that were rounded or trained slightly further" in str(comparison)
    assert "in every layer" in str(comparison)


@pytest.mark.long
def test_training_on_names_the_layer_that_differs_unlike_its_neighbours() -> None:
    whole = network("gpt2")
    tuned, generator = copy.deepcopy(whole), torch.Generator().manual_seed(1)
    for number, block in enumerate(tuned.h):
        for parameter in block.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data += (0.1 if number == 1 else 0.001) * float(parameter.data.std().nan_to_num()) * noise
    comparison = td.compare(whole, tuned, texts=PROMPTS)
    parting = comparison.partings[0]
    assert parting is not None
    assert parting.first is not None
    assert parting.largest is not None
    assert (parting.first.layer, parting.first.part) == (2, "attention")
    assert parting.largest.layer == 2
    assert "differ in every layer, most for OV in layer 2 (by " in str(comparison)


@pytest.mark.long
def test_weights_are_named_by_the_layers_that_differ() -> None:
    whole = network("llama")
    comparison = td.compare(whole, damaged(whole, "o_proj × 6", (2, 3)), texts=PROMPTS)
    assert comparison.weights is not None
    np.testing.assert_allclose(comparison.weights.ov_difference[0], [0, 5, 5], rtol=1e-6)
    np.testing.assert_allclose(comparison.weights.qk_difference[0], 0, atol=1e-12)
    np.testing.assert_allclose(comparison.weights.ov_angle[0], 0, atol=1e-5)
    np.testing.assert_allclose(comparison.weights.ov_norm[1] / comparison.weights.ov_norm[0], [1, 6, 6], rtol=1e-6)
    assert "only in layers 2–3" in str(comparison)
    assert "Later updates" not in str(comparison) or "attention of layer 3" in str(comparison)


@pytest.mark.long
def test_products_are_those_of_the_factors() -> None:
    one, other = network("llama", 0), network("llama", 0)
    for parameter in other.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    computed = td.compare(one, other, texts=PROMPTS).weights
    a, b = td.load(one).attention(2), td.load(other).attention(2)

    def products(weights: Any) -> tuple[torch.Tensor, torch.Tensor]:
        gain = weights.norm_gain.double()[:, None]
        query, key = gain * weights.query.double(), gain * weights.key_per_head.double()
        return weights.scale * query @ key.mT, gain * weights.value_per_head.double() @ weights.output.double()

    assert computed is not None
    for name, first, second in zip(("qk", "ov"), products(a), products(b), strict=True):
        expected = float((first - second).norm() / first.norm())
        assert float(computed[f"{name}_difference"].sel(layer=2)[0]) == pytest.approx(expected, rel=1e-9)
        sides = [entry.sum(0) for entry in (first, second)]
        one_basis, other_basis = (torch.linalg.svd(side)[0][:, :8] for side in sides)
        cosines = torch.linalg.svdvals(one_basis.mT @ other_basis)
        angle = np.degrees(np.arcsin(float((1 - cosines.square().clamp(max=1)).mean().sqrt())))
        assert float(computed[f"{name}_angle"].sel(layer=2)[0]) == pytest.approx(angle, rel=0.05)
    assert 0 < float(computed.ov_angle.sel(layer=2)[0]) < 90


@pytest.fixture(scope="module")
def several() -> Comparison:
    whole = network("gpt2")
    models = (whole, damaged(whole, "o_proj × 6", (2,)), damaged(whole, "head silenced", (3,)))
    return td.compare(*models, texts=PROMPTS, names=["whole", "loud", "silent"])


@pytest.mark.long
def test_three_models_are_each_held_against_the_first(several: Comparison) -> None:
    assert several.models == ("whole", "loud", "silent")
    firsts = [parting.first for parting in several.partings if parting is not None]
    assert [(first.layer, first.part) for first in firsts if first] == [(2, "attention"), (3, "attention")]
    assert several.table.sizes["model"] == 3
    assert several.difference.other.values.tolist() == ["loud", "silent"]
    assert several.gaps is not None
    assert several.gaps.sizes["other"] == 2
    for name in ("consensus_within", "consensus_relative", "centred_cos2", "line_excess", "shares"):
        gap = several.table[name].isel(model=slice(1, None)).values - several.table[name].isel(model=0).values
        np.testing.assert_allclose(several.difference[name], gap, atol=1e-12)


def consensus(states: list[np.ndarray]) -> float:
    """κ of one site by its definition: mean products of tokens of one prompt and of different ones."""
    units = [state / np.linalg.norm(state, axis=-1, keepdims=True) for state in states]
    within = np.mean([(unit @ unit.T)[~np.eye(len(unit), dtype=bool)].mean() for unit in units])
    between = np.mean([(units[p] @ units[q].T).mean() for p in range(len(units)) for q in range(len(units)) if p != q])
    return (within - between) / (1 - between)


@pytest.mark.long
def test_intervals_leave_the_same_prompt_out_of_both() -> None:
    whole = network("gpt2")
    models = [td.load(entry) for entry in (whole, damaged(whole, "o_proj × 6", (2,)))]
    comparison = td.compare(*models, texts=PROMPTS, sinks=())
    states = [
        [model.states(torch.tensor(ids)).feed_forward.double().numpy() for ids in PROMPTS.values()] for model in models
    ]
    count = len(PROMPTS)

    def difference(chosen: list[int], layer: int) -> float:
        a, b = (consensus([state[place][layer] for place in chosen]) for state in states)
        return b - a

    for layer in range(1, LAYERS + 1):
        everything = difference(list(range(count)), layer)
        pseudo = [
            count * everything - (count - 1) * difference([place for place in range(count) if place != out], layer)
            for out in range(count)
        ]
        half = student.ppf(0.95, count - 1) * np.std(pseudo, ddof=1) / np.sqrt(count)
        selected = comparison.difference.sel(site="feed_forward", layer=layer, other=comparison.models[1])
        assert float(selected.consensus_within) == pytest.approx(everything, abs=1e-5)
        ends = [np.mean(pseudo) - half, np.mean(pseudo) + half]
        np.testing.assert_allclose(selected.consensus_within_interval, ends, atol=1e-4)


@pytest.mark.long
def test_a_token_that_is_massive_in_one_is_left_out_in_all() -> None:
    whole = network("gpt2")
    loud = copy.deepcopy(whole)
    loud.wte.weight.data[33] *= 1000.0
    comparison = td.compare(whole, loud, texts=PROMPTS, names=["whole", "loud"])
    counts = [trace.token_count.sel(sinks="removed", prompt="one").values for trace in comparison.traces]
    assert (counts[0] == 5).all()
    assert (counts[1] == 5).all()
    assert int(comparison.traces[0].massive_count.sum()) == 0
    assert "1 token massive in one of them is excluded in all" in str(comparison)


def test_depths_are_compared_by_relative_depth(tiny: Callable[..., Checkpoint]) -> None:
    short = tiny("gpt2")
    long = tiny("gpt2", 1, n_layer=6)
    comparison = td.compare(short, long, texts=PROMPTS, names=["short", "long"])
    assert "Depths differ (3 and 6 layers)" in str(comparison)
    assert "The weights of long and short were not compared because their depths differ (6 and 3)." in str(comparison)
    a, b = (trace.consensus_within.sel(site="feed_forward").values for trace in comparison.traces)
    np.testing.assert_allclose(
        comparison.difference.consensus_within.sel(site="feed_forward")[0], b[::2] - a, atol=1e-12
    )
    assert comparison.table.relative_depth.sel(model="long", layer=3) == 0.5
    assert bool(comparison.table.consensus_within.sel(model="short", layer=6).isnull().all())


@pytest.mark.long
def test_widths_that_differ_leave_shares_and_ratios(tiny: Callable[..., Checkpoint], several: Comparison) -> None:
    comparison = td.compare(tiny("gpt2"), tiny("gpt2", n_embd=16), texts=PROMPTS, names=["narrow", "wide"])
    assert comparison.partings == (None,)
    assert comparison.gaps is None
    assert "The weights of wide and narrow were not compared because their widths differ (16 and 8)." in str(comparison)
    assert str(comparison).count("were not compared") == 1  # one sentence, and no table of what is undefined
    page = page_of(comparison)
    assert "Differences of products and matrices" not in page
    assert "Differences of products and matrices" in page_of(several)
    assert bool(comparison.difference.consensus_within.sel(site="feed_forward").notnull().all())
    assert bool(comparison.difference.update_quotient.sel(component="attention")[0, 1:].notnull().all())


@pytest.mark.long
def test_tokenizers_that_differ_leave_each_model_its_own_tokens(tiny: Callable[..., Checkpoint]) -> None:
    """Bytes modulo the vocabulary stand for two tokenizers."""
    texts = {"one": "a cat sat on the mat", "two": "0123456789 and more", "three": "dogs ran over a hill"}
    comparison = td.compare(tiny("gpt2"), tiny("gpt2", vocab_size=101), texts=texts, names=["a", "b"])
    assert "split the texts into different tokens" in str(comparison)
    assert "because their tokens differ" in str(comparison)
    assert comparison.first_difference is None
    assert bool(comparison.difference.consensus_relative.sel(site="feed_forward")[0, 1:].notnull().all())


@pytest.mark.long
def test_the_baseline_is_the_same_architecture_with_initial_weights(tiny: Callable[..., Checkpoint]) -> None:
    trained = tiny("llama", 5)
    comparison = td.compare(trained, baseline="untrained", seed=2, texts=PROMPTS)
    assert comparison.models == (trained.name, f"{trained.name} untrained")
    assert comparison.descriptions[1]["parameters"] == comparison.descriptions[0]["parameters"]
    assert (comparison.manifest["seed"], comparison.descriptions[1]["random_seed"]) == (2, 2)
    drawn = tiny("llama", 2)
    twin = untrained_twin(trained, 2)
    for (name, a), (_, b) in zip(drawn.model.named_parameters(), twin.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert comparison.first_difference is not None
    assert comparison.first_difference.part == "embedding"


def test_a_twin_with_matrices_of_one_deviation(tiny: Callable[..., Checkpoint]) -> None:
    """All matrices together, embeddings too: mean and deviation within five standard errors; vectors as initialised."""
    twin = untrained_twin(tiny("gpt2", 5, n_embd=32), 2, 0.1)
    values = dict(twin.model.named_parameters())
    matrices = torch.cat([value.detach().flatten() for value in values.values() if value.ndim == 2])
    error = 5 * 0.1 / len(matrices) ** 0.5
    assert abs(float(matrices.mean())) < error
    assert abs(float(matrices.std()) - 0.1) < error
    vectors = {name: set(value.tolist()) for name, value in values.items() if value.ndim == 1}
    assert all(computed == ({1.0} if name.endswith("weight") else {0.0}) for name, computed in vectors.items())
    assert twin.name.endswith("with matrices drawn from N(0, 0.1^2)")


@pytest.mark.long
def test_one_model_in_several_formats(tiny: Callable[..., Checkpoint]) -> None:
    spec = tiny("llama").name
    comparison = td.compare(spec, dtypes=["float64", "float32"], texts=PROMPTS)
    assert comparison.models == (f"{spec} (float64)", f"{spec} (float32)")
    assert "the states differ only by rounding in float32: " in str(comparison)


@pytest.mark.long
def test_training_modes_are_as_they_were() -> None:
    model = network("gpt2").train()
    td.compare(model, model, texts=PROMPTS, weights=False)
    assert all(module.training for module in model.modules())


@pytest.mark.slow
def test_what_is_saved_is_plain(several: Comparison, tmp_path: Path) -> None:
    paths = several.save(tmp_path)
    text = (tmp_path / "comparison.json").read_text()
    summary = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert summary["models"] == list(several.models)
    assert [entry["text"] for entry in summary["sentences"]] == [sentence.text for sentence in several.sentences]
    assert summary["partings"]["loud"]["first"]["layer"] == 2
    assert summary["verdicts"]["whole"]["state"] == several.verdicts[0].state
    assert {path.name for path in tmp_path.iterdir()} == {*(path.name for path in paths), "manifest.json"}
    several.save(tmp_path)  # over its own files
    (tmp_path / "table.zarr" / "extra").write_text("mine")
    with pytest.raises(ArgumentValueError, match="no file in the way"):
        several.save(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"models": []}, ArgumentValueError, "models: expected at least two to compare, got 0"),
        ({"models": 1}, ArgumentValueError, "models: expected at least two to compare, got 1"),
        ({"baseline": "zero"}, ArgumentValueError, "baseline: expected None or 'untrained', got 'zero'"),
        ({"names": ["a"]}, ArgumentValueError, "names: expected 2 different names"),
        ({"names": ["a", "a"]}, ArgumentValueError, "names: expected 2 different names"),
        ({"dtypes": ["float32"] * 3}, ArgumentValueError, "dtypes: expected one for all, or one for each of 2 models"),
        ({"models": 1, "dtypes": ["float32", "float64"]}, ArgumentTypeError, "models: expected a name or a path"),
        ({"texts": {}}, ArgumentValueError, "texts: expected at least one prompt"),
        ({"texts": {"a": [9999]}}, ArgumentValueError, "a: expected ids from 0 to"),
        ({"sinks": (99,)}, ArgumentValueError, "sinks: expected positions"),
        ({"sink_ratio": 1.0}, ArgumentValueError, "sink_ratio: expected a number above 1"),
        ({"models": ["no/such/folder"] * 2}, CheckpointError, "no/such/folder"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unchecked")
def test_wrong_input_is_refused_in_one_line(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    model = network("gpt2")
    models = arguments.pop("models", 2)
    with pytest.raises(error) as refused:
        td.compare(*([model] * models if isinstance(models, int) else models), **({"texts": PROMPTS} | arguments))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.pretrained
@pytest.mark.parametrize(
    ("name", "layers", "layer"),
    [
        ("o_proj × 6", tuple(range(11, 21)), 11),
        ("OV = 3 × identity", (15,), 15),
        ("attention norm × 10", (8,), 8),
        ("head silenced", (22,), 22),
    ],
)
def test_damage_of_smollm2_is_found(name: str, layers: tuple[int, ...], layer: int) -> None:
    whole = td.load("smollm2")
    comparison = td.compare(whole, damaged(whole.model, name, layers), weights=name == "o_proj × 6")
    first = comparison.first_difference
    assert first is not None
    assert (first.layer, first.part, first.before) == (layer, "attention", 0.0)
    if comparison.weights is not None:
        assert "only in layers 11–20" in str(comparison)
        np.testing.assert_allclose(comparison.weights.ov_difference[0, 10:20], 5, rtol=1e-5)


def test_a_network_without_configuration_has_no_untrained_twin() -> None:
    ckpt = td.load(network("gpt2"))
    ckpt.config = None
    with pytest.raises(CheckpointError, match="expected a model with a transformers configuration"):
        td.compare(ckpt, baseline="untrained", texts=PROMPTS)
