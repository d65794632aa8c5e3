"""Every family is read without a table of families: states, factors and audit are those of the network itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from pretrained.families import _TEXT, ALL, BY_FUNCTIONS, FAMILIES, UNSEEN, half_of_network, inputs_of, network_of
from pretrained.test_attention_factors import _attention_by_hand
from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.other_libraries import silenced


class Case:
    """A network, its half, and the checkpoint of its files."""

    def __init__(self, family: str, folder: Path) -> None:
        self.whole, self.half = network_of(family)
        self.network = half_of_network(self.whole, self.half)
        with silenced():
            self.whole.save_pretrained(folder)
        self.checkpoint = load(folder, half=self.half)
        self.inputs = inputs_of(self.network)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Case] = {}

    def case(family: str) -> Case:
        if family not in made:
            made[family] = Case(family, tmp_path_factory.mktemp(family))
        return made[family]

    return case


@pytest.mark.few(8)
@pytest.mark.parametrize("family", [name for name in ALL if name != "mamba"])
def test_states_are_those_that_the_network_returns_bit_for_bit(cases: Any, family: str) -> None:
    case = cases(family)
    with torch.inference_mode(), silenced():
        # The checkpoint's own copy: another one in memory may be aligned otherwise, and round otherwise.
        reference = case.checkpoint.model(**case.inputs, output_hidden_states=True).hidden_states
    states = case.checkpoint.states(case.inputs)
    *inner, last = [state[0] for state in reference]
    assert len(states.feed_forward) == len(reference)
    assert all(torch.equal(actual, state) for actual, state in zip(states.feed_forward, inner, strict=False))
    assert any(
        torch.equal(actual, last) for actual in (states.feed_forward[-1], states.final_norm) if actual is not None
    )
    assert bool(states.attention[1:].isfinite().all())


def test_a_network_without_any_attention_is_traced_block_by_block(cases: Any) -> None:
    case = cases("mamba")
    with torch.inference_mode(), silenced():
        *outputs, last = case.checkpoint.model(**case.inputs, output_hidden_states=True).hidden_states
    states = case.checkpoint.states(case.inputs)
    assert all(
        torch.equal(actual, reference[0]) for actual, reference in zip(states.feed_forward[1:], outputs, strict=True)
    )
    assert states.final_norm is not None
    assert torch.equal(states.final_norm, last[0])


def _seen(case: Case, layer: int) -> tuple[Tensor, Tensor]:
    """What block `layer` reads, and what its output projection gives, from the network's own modules."""
    values: list[Tensor] = []
    layout = case.checkpoint.layout
    block = case.network.get_submodule(layout.blocks[layer - 1])
    projection = block.get_submodule(layout.layers[layer - 1].attention.output[0])
    before = block.register_forward_pre_hook(
        lambda m, a, k: values.append((a or tuple(k.values()))[0][0]), with_kwargs=True
    )
    after = projection.register_forward_hook(lambda m, a, y: values.append(y[0]))
    with torch.no_grad(), silenced():
        case.network(**case.inputs)
    before.remove(), after.remove()
    number = layout.blocks[: layer - 1].count(layout.blocks[layer - 1])
    return values[2 * number], values[2 * number + 1]


def _plain(layout: Any) -> bool:
    """Whether softmax of a bilinear form is all there is."""
    return not (layout.normed or layout.soft_cap or layout.sinks or layout.relative_bias or layout.token_bias)


@pytest.mark.long
@pytest.mark.few(8)
@pytest.mark.parametrize("family", FAMILIES | BY_FUNCTIONS)
def test_factors_give_the_attention_of_the_network(cases: Any, family: str) -> None:
    case = cases(family)
    checkpoint: Checkpoint = case.checkpoint
    for layer, computed in enumerate(checkpoint.layout.layers, 1):
        assert computed.attention is not None, computed.problem
        assert computed.attention.error <= 1e-5
        weights = checkpoint.attention(layer)
        assert weights.query.shape == (computed.attention.heads, 48, computed.attention.d_head)
        unrotated = computed.attention.rotation is None or computed.attention.rotation.frequencies is not None
        if _plain(computed.attention) and unrotated:
            state, reference = _seen(case, layer)
            actual = _attention_by_hand(state, weights, computed.attention.causal)
            assert float((actual - reference).abs().max() / reference.abs().max()) < 1e-5


@pytest.mark.long
def test_what_is_not_a_plain_softmax_is_known_to_be_none(cases: Any) -> None:
    facts = {
        family: cases(family).checkpoint.layout.layers[0].attention
        for family in ("gemma2", "gpt_oss", "t5", "qwen3", "deepseek_v3", "dinov3", "llama", "mistral", *BY_FUNCTIONS)
    }
    assert facts["gemma2"].soft_cap == 50.0
    assert facts["gpt_oss"].sinks == "self_attn.sinks"
    for family in ("t5", *BY_FUNCTIONS):
        assert facts[family].relative_bias is (family in ("t5", "bloom", "mpt", "mpnet")), family
        assert facts[family].token_bias is (family == "deberta-v2"), family
    assert facts["qwen3"].normed == ("query", "key")
    assert facts["deepseek_v3"].normed == ("query", "key", "value")
    assert facts["dinov3"].rotation.frequencies is None
    assert facts["mistral"].window == 4096
    assert _plain(facts["llama"])
    assert facts["llama"].window is None


_BY_HAND = {
    "gpt_neox": ("layers.1.attention.query_key_value.weight", "layers.1.attention.dense.weight"),
    "phi3": ("layers.1.self_attn.qkv_proj.weight", "layers.1.self_attn.o_proj.weight"),
    "gemma3": ("layers.1.self_attn.{}_proj.weight", "layers.1.self_attn.o_proj.weight"),
    "vit": ("layers.1.attention.{}_proj.weight", "layers.1.attention.o_proj.weight"),
    "mixtral": ("layers.1.self_attn.{}_proj.weight", "layers.1.self_attn.o_proj.weight"),
}


def _factors_by_hand(
    family: str, network: Any
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Queries, keys and values of each query head, (dim, d_head), and the output factors, from the weights' names."""
    tensors = {name: value.double().numpy() for name, value in network.state_dict().items()}
    first, output = _BY_HAND[family]
    d = 16 if family == "gemma3" else 12
    if family == "gpt_neox":
        per_head = tensors[first].reshape(4, 3, d, 48)  # each head's query, key and value stand together
        query, key, value = ([per_head[h, part].T for h in range(4)] for part in range(3))
    elif family == "phi3":
        rows = np.split(tensors[first], [48, 72])
        query, key, value = ([part[i : i + d].T for i in range(0, len(part), d)] for part in rows)
    else:
        query, key, value = (
            [tensors[first.format(part)][i : i + d].T for i in range(0, len(tensors[first.format(part)]), d)]
            for part in "qkv"
        )
    if family == "gemma3":
        query = [one * (1 + tensors["layers.1.self_attn.q_norm.weight"]) for one in query]
        key = [one * (1 + tensors["layers.1.self_attn.k_norm.weight"]) for one in key]
    repeats = 4 // len(key)
    key, value = ([one for one in entry for _ in range(repeats)] for entry in (key, value))
    return query, key, value, tensors[output].T.reshape(4, d, 48)


@pytest.mark.parametrize("family", _BY_HAND)
def test_balances_and_inertia_are_those_of_the_weights_by_hand(cases: Any, family: str) -> None:
    case = cases(family)
    query, key, value, output = _factors_by_hand(family, case.network)
    table = td.audit(case.checkpoint, value="VO", fold_norms=False, layers=[2])
    for head in range(4):
        qk = query[head] @ key[head].T
        symmetric = np.linalg.eigvalsh((qk + qk.T) / 2)
        assert float(table.qk_balance[0, head]) == pytest.approx(symmetric.sum() / np.abs(symmetric).sum(), abs=1e-6)
        eigenvalues = np.linalg.eigvals(value[head] @ output[head])
        balance = eigenvalues.real.sum() / np.abs(eigenvalues).sum()
        assert float(table.ov_balance[0, head]) == pytest.approx(balance, abs=1e-6)
    whole = sum(q @ k.T for q, k in zip(query, key, strict=True))
    signs = np.sign(np.linalg.eigvalsh((whole + whole.T) / 2))
    assert table.W_inertia[0].values.tolist() == [(signs > 0).sum(), (signs < 0).sum(), 0]


@pytest.mark.parametrize("family", UNSEEN)
def test_where_no_attention_is_seen_the_audit_is_refused_in_one_line_and_the_trace_runs(
    cases: Any, family: str
) -> None:
    case = cases(family)
    with pytest.raises(
        CheckpointError, match=r"layer 1: .* \(no softmax of products of queries and keys was seen in it.* trace"
    ) as raised:
        td.audit(case.checkpoint)
    assert "\n" not in str(raised.value)
    facts = case.checkpoint.architecture
    assert (facts.layers, facts.heads, facts.kv_heads, facts.d_head) == (3, 0, 0, 0)


def test_an_albert_is_one_block_that_runs_again(cases: Any) -> None:
    layout = cases("albert").checkpoint.layout
    assert len(layout.blocks) == 3
    assert len(set(layout.blocks)) == 1


@pytest.mark.parametrize(
    ("family", "placement", "positions", "parallel"),
    [
        ("gpt_neox", "pre", "rotary", True),
        ("olmo2", "branch", "rotary", False),
        ("gemma2", "pre and branch", "rotary", False),
        ("bert", "post", "absolute", False),
        ("opt-post-norm", "post", "learned", False),
        ("t5", "pre", "relative bias", False),
        ("beit", "pre", "relative bias", False),
        ("vit", "pre", "learned", False),
        ("clip-vision", "pre", "absolute", False),
    ],
)
def test_where_norms_stand_and_how_positions_enter(
    cases: Any, family: str, placement: str, positions: str, parallel: bool
) -> None:
    checkpoint = cases(family).checkpoint
    assert checkpoint.architecture.norm_placement == placement
    assert checkpoint.architecture.positions == positions
    assert checkpoint.layout.layers[1].residual.parallel == parallel


def test_a_layer_without_positions_reads_every_distance_alike(cases: Any) -> None:
    checkpoint = cases("smollm3").checkpoint
    assert [layer.attention.rotation is None for layer in checkpoint.layout.layers] == [False, True, False]
    table = td.audit(checkpoint, value="VO", fold_norms=False)
    at = table.qk_balance_at_offset
    np.testing.assert_allclose(at.sel(layer=2), table.qk_balance.sel(layer=2).expand_dims(offset=5, axis=-1))
    assert float(abs(at.sel(layer=1, offset=16) - table.qk_balance.sel(layer=1)).max()) > 1e-3


@pytest.mark.parametrize(
    ("family", "what"),
    [
        ("qwen3", "layer 1 with query and key normalized"),
        ("gemma2", "a soft cap"),
        ("gpt_oss", "sinks"),
        ("t5", "a bias by position"),
        ("dinov3", "rotations by place"),
        ("bloom", "a bias by position"),
        ("deberta-v2", "further terms of tokens and positions"),
        ("mamba", "no softmax of products of queries and keys was seen in it"),
    ],
)
def test_what_is_no_softmax_of_a_bilinear_form_is_no_flow(cases: Any, family: str, what: str) -> None:
    with pytest.raises((ArgumentValueError, CheckpointError), match=what):
        td.flow_of(cases(family).checkpoint)


@pytest.mark.parametrize("family", ["gpt_neox", "phi3", "cohere", "mixtral", "opt-post-norm"])
def test_a_flow_of_any_family_steps_like_the_network_attends(cases: Any, family: str) -> None:
    checkpoint = cases(family).checkpoint
    weights, causal = checkpoint.attention(2), checkpoint.layout.layers[1].attention.causal
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    bare = dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias", "norm_gain"))
    attended = _attention_by_hand(x, dataclasses.replace(weights, **bare), causal)
    flow = td.flow_of(checkpoint, 2, space=td.Free())
    torch.testing.assert_close(flow.step(x, 0) - x, attended, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["smollm3", "modernbert"])
def test_layers_that_turn_differently_are_no_one_flow(cases: Any, family: str) -> None:
    checkpoint = cases(family).checkpoint
    with pytest.raises(ArgumentValueError, match="layers that turn queries and keys alike"):
        td.flow_of(checkpoint)
    assert td.flow_of(checkpoint, layers=[1, 3]).heads == 4
    assert td.flow_of(checkpoint, 2).heads == 4


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "bert"])
def test_large_weights_are_verified_one_at_a_time_with_the_same_result(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokendynamics.pretrained import _attention_weights as _factors

    network = half_of_network(*network_of(family))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    plain = td.load(network).attention(1)
    monkeypatch.setattr(_factors, "_LARGE", 0)
    attended = td.load(network).attention(1)
    assert attended.scale == plain.scale
    torch.testing.assert_close(attended.query, plain.query, atol=0, rtol=0)
    for key, value in network.state_dict().items():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


_ROUTED = _TEXT | {"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2}
_ROUTED |= {"topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "kv_lora_rank": 8}
_ROUTED |= {"q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
_T5 = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 40, "num_layers": 2}
_FORMATS: dict[str, tuple[dict[str, Any], str | None, tuple[str, ...]]] = {
    "llama": (_TEXT | {"max_position_embeddings": 1024}, None, ("bfloat16", "float16")),  # frequencies in float32
    "recurrent_gemma": (_TEXT | {"num_key_value_heads": 2}, None, ("float32",)),  # a scale in bfloat16
    "deepseek_v3": (_ROUTED, None, ("bfloat16",)),  # biases that choose experts in float32
    "t5": (_T5, "encoder", ("bfloat16", "float16")),  # a matrix that stays in float32 in float16 alone
}


@pytest.mark.long
@pytest.mark.parametrize("name", _FORMATS)
def test_every_format_is_that_of_the_network_that_transformers_loads(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModel

    settings, half, formats = _FORMATS[name]
    torch.manual_seed(0)
    with silenced():
        network = AutoModel.from_config(AutoConfig.for_model(name, **settings))
        for parameter in network.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        for label, buffer in network.named_buffers():
            if label.endswith("correction_bias"):
                buffer += torch.randn_like(buffer)
        network.save_pretrained(tmp_path)
    ids = torch.randint(3, 60, (1, 400 if name == "llama" else 60), generator=torch.Generator().manual_seed(1))
    for dtype in formats:
        with torch.inference_mode(), silenced():
            loaded = AutoModel.from_pretrained(tmp_path, dtype=getattr(torch, dtype)).eval()
            loaded = loaded.get_encoder() if half else loaded
            reference = loaded(ids, output_hidden_states=True, **({} if half else {"use_cache": False})).hidden_states
        for stream in (None, True):
            checkpoint = td.load(tmp_path, half=half, dtype=dtype, stream=stream)
            states = checkpoint.states(ids).feed_forward[:-1]
            assert all(torch.equal(*pair) for pair in zip(states, (one[0] for one in reference), strict=False))
        tensors = {label: tensor.dtype for label, tensor in (*loaded.named_parameters(), *loaded.named_buffers())}
        read = (*checkpoint.model.named_parameters(), *checkpoint.model.named_buffers())
        assert all(tensors[label] == tensor.dtype for label, tensor in read)
