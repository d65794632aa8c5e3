"""A live network: what is read is its weights as they stand, and a layout that is not its own does not pass."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import tokendynamics as td
from pretrained.families import inputs_of, network_of
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.discovery._columns import Part

IDS = {"input_ids": torch.tensor([[5, 9, 33, 21, 7, 50]])}


def numbers(table: Any) -> dict[str, np.ndarray]:
    return {name: table[name].values for name in table if table[name].dtype.kind == "f"}


def assert_same(one: Any, other: Any, tolerance: float = 1e-6) -> None:
    reference = numbers(other)
    for name, values in numbers(one).items():
        np.testing.assert_allclose(values, reference[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.long
def test_a_live_network_gives_the_numbers_of_its_files(tmp_path: Any) -> None:
    network, _ = network_of("llama")
    network.save_pretrained(tmp_path)
    live, stored = load(network), load(tmp_path)
    assert live.layout.found_on == "the network itself"
    assert_same(td.audit(live, value="VO"), td.audit(stored, value="VO"), 0.0)
    assert torch.equal(live.states(IDS).feed_forward, stored.states(IDS).feed_forward)


@pytest.mark.long
def test_a_change_in_place_is_seen_by_audit_and_states() -> None:
    network, _ = network_of("gpt_neox")
    live = load(network)
    before, states = td.audit(live, value="VO"), live.states(IDS)
    with torch.no_grad():
        network.layers[1].attention.query_key_value.weight.mul_(-2.0)
    after, shifted = td.audit(live, value="VO"), live.states(IDS)
    assert_same(before.sel(layer=[1, 3]), after.sel(layer=[1, 3]), 0.0)
    assert float(abs(before.ov_balance - after.ov_balance).sel(layer=2).max()) > 0.1
    assert torch.equal(states.feed_forward[1], shifted.feed_forward[1])
    assert not torch.equal(states.feed_forward[2], shifted.feed_forward[2])


@pytest.mark.long
def test_a_network_with_an_output_head_is_read_below_it() -> None:
    from transformers import AutoModelForCausalLM

    base, _ = network_of("qwen3")
    headed = AutoModelForCausalLM.from_config(base.config).eval()
    headed.model.load_state_dict(base.state_dict())
    assert_same(td.audit(load(headed), value="VO"), td.audit(load(base), value="VO"), 0.0)
    assert torch.equal(load(headed).states(IDS).feed_forward, load(base).states(IDS).feed_forward)


def test_a_network_in_training_is_evaluated_and_left_in_training() -> None:
    network, _ = network_of("bert")
    network.train()
    network.encoder.layer[1].eval()
    live = load(network)
    first, second = live.states(IDS), live.states(IDS)
    assert torch.equal(first.feed_forward, second.feed_forward)
    assert network.training
    assert not network.encoder.layer[1].training
    assert network.encoder.layer[0].attention.self.dropout.training


def test_half_precision_is_read_as_it_is() -> None:
    network, _ = network_of("llama")
    live = load(network.to(torch.bfloat16))
    assert live.dtype == torch.bfloat16
    assert live.attention(1).query.dtype == torch.float32
    assert live.states(IDS).feed_forward.dtype == torch.bfloat16
    assert next(network.parameters()).dtype == torch.bfloat16


@pytest.mark.long
@pytest.mark.parametrize("fresh", [True, False])
def test_the_audit_of_an_adapter_is_that_of_the_merged_weights(fresh: bool) -> None:
    peft = pytest.importorskip("peft")
    network, _ = network_of("llama")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=fresh)
    adapted = peft.get_peft_model(network, config).eval()
    live = load(adapted)
    if fresh:
        # B = 0: the adapter does nothing yet, and is to be seen as soon as it does.
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(generator=torch.Generator().manual_seed(1))
    computed, states = td.audit(live, value="VO"), live.states(IDS)
    merged = load(adapted.merge_and_unload())
    assert_same(computed, td.audit(merged, value="VO"), 1e-4)
    torch.testing.assert_close(states.feed_forward, merged.states(IDS).feed_forward, rtol=1e-4, atol=1e-4)
    plain = load(network_of("llama")[0])
    assert float(abs(computed.ov_balance - td.audit(plain, value="VO").ov_balance).max()) > 0.01


@pytest.fixture
def adapter(tmp_path: Path) -> Callable[..., Path]:
    """Saves a LoRA of a headed network, with weights that are not the initial ones."""

    def make(family: str, **settings: Any) -> Path:
        from transformers import AutoModelForCausalLM

        peft = pytest.importorskip("peft")
        base, _ = network_of(family)
        headed = AutoModelForCausalLM.from_config(base.config)
        headed.get_decoder().load_state_dict(base.state_dict())
        config = peft.LoraConfig(
            **{"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"} | settings
        )
        adapted = peft.get_peft_model(headed, config)
        generator = torch.Generator().manual_seed(4)
        for name, parameter in adapted.named_parameters():
            if "lora" in name:
                parameter.data.normal_(std=0.3, generator=generator)
        adapted.save_pretrained(tmp_path / "adapter")
        base.save_pretrained(tmp_path / "base")
        return tmp_path

    return make


@pytest.mark.long
def test_an_adapter_in_a_folder_is_applied_below_the_head(adapter: Callable[..., Path]) -> None:
    folder = adapter("llama")
    loaded = load(folder / "base", adapter=folder / "adapter")
    assert loaded.name == "base with adapter"
    tensors = load_file(folder / "adapter" / "adapter_model.safetensors")
    base = load(folder / "base")
    for layer in (1, 2, 3):
        stem = f"base_model.model.model.layers.{layer - 1}.self_attn.v_proj.lora_"
        change = tensors[f"{stem}B.weight"] @ tensors[f"{stem}A.weight"] * (8 / 4)  # alpha / r
        actual = loaded.attention(layer).value.transpose(1, 2).flatten(0, 1)
        reference = base.attention(layer).value.transpose(1, 2).flatten(0, 1)
        torch.testing.assert_close(actual, reference + change, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(loaded.attention(layer).key, base.attention(layer).key)
    assert not torch.allclose(loaded.states(IDS).feed_forward[-1], base.states(IDS).feed_forward[-1], atol=1e-2)


@pytest.mark.parametrize(
    ("other", "words"),
    [("mistral", "does not fit"), ("gpt2", "does not fit"), ("missing", "a folder with adapter_config.json")],
)
def test_an_adapter_of_another_base_is_refused_in_one_line(
    other: str, words: str, adapter: Callable[..., Path], tmp_path: Path
) -> None:
    folder = adapter("llama")
    if other == "missing":
        path, network = tmp_path / "nothing", network_of("llama")[0]
    else:
        path, network = folder / "adapter", network_of(other)[0]
    with pytest.raises(CheckpointError, match=f"adapter: expected .*{words}") as raised:
        load(network, adapter=path)
    assert "\n" not in str(raised.value)


@pytest.mark.long
def test_an_adapter_whose_tensors_have_no_place_is_refused(adapter: Callable[..., Path]) -> None:
    folder = adapter("llama")
    path = folder / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({name.replace("layers.2.", "layers.7."): value for name, value in tensors.items()}, path)
    with pytest.raises(CheckpointError, match=r"no place for .*layers\.7\."):
        load(folder / "base", adapter=folder / "adapter")
    save_file({name: value for name, value in tensors.items() if "layers.2." not in name}, path)
    with pytest.raises(CheckpointError, match=r"nothing for .*layers\.2\."):
        load(folder / "base", adapter=folder / "adapter")


def _changed(checkpoint: Checkpoint, layer: int, **changes: Any) -> None:
    """Put another record in the place of the one that was found."""
    layers = list(checkpoint.layout.layers)
    attention = layers[layer - 1].attention
    assert attention is not None
    made = {name: change(attention) for name, change in changes.items()}
    layers[layer - 1] = dataclasses.replace(layers[layer - 1], attention=dataclasses.replace(attention, **made))
    checkpoint.layout = dataclasses.replace(checkpoint.layout, layers=tuple(layers))


def _two_heads_swapped(attention: Any) -> tuple[Part, ...]:
    (part,) = attention.query
    width = attention.d_head
    rows = (*part.rows[width : 2 * width], *part.rows[:width], *part.rows[2 * width :])
    return (dataclasses.replace(part, rows=rows),)


WRONG = {
    "two heads' rows swapped": {"query": _two_heads_swapped},
    "key and value swapped": {"key": lambda a: a.value, "value": lambda a: a.key},
    "no rotation": {"rotation": lambda a: None},
    "neighbours turned instead of halves": {
        "rotation": lambda a: dataclasses.replace(
            a.rotation, first=tuple(range(0, a.d_head, 2)), second=tuple(range(1, a.d_head, 2))
        )
    },
    "a factor of two": {
        "value": lambda a: tuple(dataclasses.replace(p, factor=tuple(2 * f for f in p.factor)) for p in a.value)
    },
    "keys of another module": {
        "key": lambda a: tuple(dataclasses.replace(p, module="self_attn.v_proj") for p in a.key)
    },
}


@pytest.mark.long
@pytest.mark.few(5)
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("source", ["live", "stored"])
def test_a_wrong_layout_is_refused_for_that_layer_and_the_states_are_still_there(
    name: str, source: str, tmp_path: Any
) -> None:
    network, _ = network_of("llama")
    network.save_pretrained(tmp_path)
    checkpoint = load(network) if source == "live" else load(tmp_path)
    _changed(checkpoint, 2, **WRONG[name])
    with pytest.raises(CheckpointError, match="layer 2: expected the layer's own attention from its factors") as raised:
        td.audit(checkpoint, value="VO")
    assert "\n" not in str(raised.value)
    assert td.audit(checkpoint, value="VO", layers=[1, 3]).sizes["layer"] == 2
    assert checkpoint.states(IDS).feed_forward.shape == (4, 6, 48)


def test_a_bias_that_is_dropped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokendynamics.pretrained import _attention_weights as _factors

    network, _ = network_of("gpt_neox")
    checkpoint, original = load(network), _factors.affine_of
    without = lambda *arguments: dataclasses.replace(original(*arguments), bias=None)  # noqa: E731
    assert checkpoint.attention(1).query_bias is not None
    monkeypatch.setattr(_factors, "affine_of", without)
    with pytest.raises(CheckpointError, match="layer 1: expected the layer's own attention"):
        checkpoint.attention(1)


class Quantised(nn.Module):
    """A linear map whose weights are eight bits and a scale."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.scale = nn.Parameter(linear.weight.abs().max() / 127, requires_grad=False)
        self.weight = nn.Parameter((linear.weight / self.scale).round().to(torch.int8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.to(x) * self.scale).T


class Rounded(Quantised):
    """One whose input is rounded as well, as dynamic quantisation does: no linear map."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = x.abs().amax() / 15
        return super().forward((x / step).round() * step)


@pytest.mark.long
def test_quantised_weights_are_read_where_they_act_linearly() -> None:
    network, _ = network_of("llama")
    dense = copy.deepcopy(network)
    for layer, plain in zip(network.layers, dense.layers, strict=True):
        layer.self_attn.q_proj = Quantised(layer.self_attn.q_proj)
        rounded = layer.self_attn.q_proj
        plain.self_attn.q_proj.weight.data = rounded.weight * rounded.scale
    live = load(network)
    np.testing.assert_allclose(td.audit(live).qk_balance, td.audit(load(dense)).qk_balance, atol=1e-5)
    for layer in network.layers:
        layer.self_attn.q_proj.__class__ = Rounded
    live = load(network)
    with pytest.raises(CheckpointError, match=r"self_attn.q_proj holds its weights as int8"):
        td.audit(live)
    assert live.states(IDS).feed_forward.shape == (4, 6, 48)


def test_what_is_no_network_of_blocks_is_refused_in_one_line() -> None:
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with pytest.raises(
        CheckpointError, match=r"Sequential: expected a transformers network, or an example of its input, got .*inputs="
    ):
        load(plain)
    with pytest.raises(CheckpointError, match=r"a list of blocks .*, got none"):
        load(plain, inputs=lambda count: {"input": torch.randn(count, 5, 3)})
    with pytest.raises(CheckpointError, match="weights that are parameters, got neither parameters nor buffers"):
        load(nn.Identity())
    with pytest.raises(CheckpointError, match=r"wte.weight and others on the meta device"):
        load(network_of("gpt2")[0].to("meta"))


class OwnBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.inner, self.outer = nn.Linear(dim, 20), nn.Linear(20, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.outer(self.inner(self.between(x)).relu())


class OwnNetwork(nn.Module):
    """Somebody's own transformer, which knows nothing of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30, 16), nn.Embedding(12, 16)
        self.blocks = nn.ModuleList(OwnBlock(16, 2) for _ in range(3))
        self.end = nn.LayerNorm(16)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.end(x)


def test_a_network_of_ones_own_needs_nothing_but_its_inputs() -> None:
    torch.manual_seed(3)
    network = OwnNetwork()
    live = load(network, inputs=lambda count: {"idx": torch.randint(0, 30, (count, 7))})
    facts = live.architecture
    assert (facts.layers, facts.heads, facts.causal, facts.positions) == (3, 2, True, "learned")
    assert live.layout.layers[0].residual is not None
    assert live.layout.layers[0].residual.feed_forward == "outer"
    block = network.blocks[1]
    qk = live.attention(2).query[1] @ live.attention(2).key[1].T
    torch.testing.assert_close(qk, block.qkv.weight[8:16].T @ block.qkv.weight[24:32])
    idx = torch.randint(0, 30, (1, 9), generator=torch.Generator().manual_seed(1))
    states = live.states({"idx": idx})
    assert states.final_norm is not None
    with torch.inference_mode():  # as the states are computed: elsewhere PyTorch may take another kernel
        assert torch.equal(states.final_norm, network(idx)[0])
    assert td.audit(live, value="VO").sizes["layer"] == 3


@pytest.mark.long
def test_halves_are_asked_for_by_name(tmp_path: Any) -> None:
    network, _ = network_of("t5")
    with pytest.raises(ArgumentValueError, match=r"half: expected 'encoder' or 'decoder', got None .*two halves"):
        load(network)
    with pytest.raises(ArgumentValueError, match=r"half: expected 'encoder' or 'decoder', got 'text'"):
        load(network, half="text")
    assert load(network, half="decoder").architecture.causal
    assert not load(network, half="encoder").architecture.causal
    with pytest.raises(ArgumentValueError, match=r"half: expected None, got 'encoder' .* no halves"):
        load(network_of("gpt2")[0], half="encoder")


@pytest.mark.long
def test_texts_for_a_network_of_images_and_images_for_one_of_texts() -> None:
    vision, text = load(network_of("vit")[0]), load(network_of("gpt2")[0])
    with pytest.raises(ArgumentTypeError, match="expected pixel_values, no text"):
        td.trace(vision, "a text")
    with pytest.raises(ArgumentValueError, match="expected pixel_values by name, got input_ids"):
        vision.states(IDS)
    with pytest.raises(ArgumentValueError, match="expected input_ids by name, got pixel_values"):
        text.states(inputs_of(network_of("vit")[0]))


def test_a_network_of_ones_own_may_call_its_tokens_input_ids() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(20, 8)
            self.blocks = torch.nn.ModuleList(
                torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in "ab"
            )

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            x = self.words(input_ids)
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    network = Own().eval()
    ckpt = load(network, inputs=lambda count: {"input_ids": torch.randint(0, 20, (count, 7))})
    ids = torch.tensor([[3, 4, 5, 6]])
    torch.testing.assert_close(ckpt.states({"input_ids": ids}).feed_forward[-1], network(ids)[0].detach())


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda states: {"loss": None, "states": states},
        lambda states: SimpleNamespace(loss=None, states=states),
        lambda states: (states.mean(), states),
        lambda states: states.mean(),
        lambda states: None,
    ],
)
def test_a_network_may_give_its_outputs_in_any_container(wrapped: Callable[[torch.Tensor], Any]) -> None:
    class Wrapping(OwnNetwork):
        def forward(self, idx: torch.Tensor) -> Any:
            return wrapped(super().forward(idx))

    torch.manual_seed(3)
    plain, wrapping = OwnNetwork(), Wrapping()
    wrapping.load_state_dict(plain.state_dict())
    states = [
        load(network, inputs=torch.arange(14).reshape(2, 7)).states({"idx": torch.tensor([[3, 9, 4]])})
        for network in (plain, wrapping)
    ]
    assert torch.equal(states[0].feed_forward, states[1].feed_forward)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_live_network_with_a_weight_that_is_not_finite_is_refused_by_name(value: float) -> None:
    network, _ = network_of("gpt2")
    network.h[1].mlp.c_proj.bias.data[3] = value
    with pytest.raises(
        CheckpointError, match=r"h\.1\.mlp\.c_proj\.bias: expected finite numbers, .* index \(3,\)"
    ) as raised:
        load(network)
    assert "training diverged" in str(raised.value)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_a_live_network_runs_three_times_to_the_end(family: str) -> None:
    network, _ = network_of(family)
    blocks: Any = next(module for module in network.modules() if isinstance(module, nn.ModuleList) and len(module) > 1)
    rows: list[int] = []
    hook = blocks[-1].register_forward_hook(lambda module, given, y: rows.append(len(given[0] if given else y[0])))
    ckpt = td.load(network)
    hook.remove()
    assert ckpt.layout.layers[-1].attention is not None
    assert rows[:2] == [2, 2]
    assert len(rows) == 3


@pytest.mark.slow
def test_a_vocabulary_that_a_network_of_sounds_writes_is_none_that_it_reads() -> None:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    convolutions: dict[str, Any] = {"conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3)}
    positions: dict[str, Any] = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    torch.manual_seed(1)
    ckpt = td.load(Wav2Vec2Model(Wav2Vec2Config(vocab_size=32, **sizes, **convolutions, **positions)).eval())
    assert (ckpt.architecture.vocabulary, ckpt.ids_name) == (None, None)
    waves = [{"input_values": torch.randn(1, 160)} for _ in range(5)]
    assert "prompt" in str(td.diagnose(ckpt, texts=waves).verdict)
    assert td.head_effects(ckpt, waves, candidates=1).sizes["head"] == 2
    with pytest.raises(ArgumentTypeError, match="input_values, no text"):
        td.trace(ckpt, ["a text"])


@pytest.mark.long
def test_a_network_in_memory_is_read_in_its_own_format_and_place() -> None:
    network = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    )
    with pytest.raises(ArgumentValueError, match="dtype: expected float32, that of TransformerEncoder, which is read"):
        td.load(network, inputs=torch.randn(1, 5, 8), dtype="bfloat16")
    with pytest.raises(ArgumentValueError, match="dtype: expected float32 or"):
        td.load(network, inputs=torch.randn(1, 5, 8), dtype="int8")
    assert td.load(network, inputs=torch.randn(1, 5, 8), dtype="float32").dtype == torch.float32
    double = network.double()
    ckpt = td.load(double, inputs=torch.randn(1, 5, 8).double(), dtype="float64")
    assert ckpt.dtype == torch.float64
    with pytest.raises(ArgumentValueError, match=r"dtype: expected float64, that of .*load it with that one"):
        td.diagnose(ckpt, dtype="float16")
