"""A network's circuits as a flow: the same attention as the network's own, layer after layer."""

from __future__ import annotations

import math

import pytest
import torch
import xarray as xr

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.pretrained import load
from tokendynamics.pretrained.other_libraries import silenced

ROTARY = {
    "model_type": "llama",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 101,
}


@pytest.fixture(scope="module")
def rotary_checkpoint(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(0)
    network = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in ROTARY.items() if k != "model_type"}))
    with torch.no_grad(), silenced():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.3)
        network.save_pretrained(folder, safe_serialization=True)
    return load(str(folder))


def attention_of_the_network(checkpoint, layer, normed):
    """What the block's attention module makes of states after its norm's scaling to √dim (gain still to come)."""
    network = checkpoint.model
    block = network.layers[layer]
    with torch.no_grad():
        hidden = block.input_layernorm(normed.float()[None])
        places = torch.arange(len(normed))[None]
        turned = network.rotary_emb(hidden, places)
        mask = torch.full((len(normed), len(normed)), -torch.inf).triu(1)[None, None]
        return block.self_attn(hidden, position_embeddings=turned, attention_mask=mask)[0][0].double()


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_on_the_sphere_the_field_is_the_tangent_part_of_the_networks_own_attention(rotary_checkpoint, layer):
    flow = td.flow_of(rotary_checkpoint)
    y = td.Sphere().sample(7, 24, seed=3)
    direct = attention_of_the_network(rotary_checkpoint, layer, math.sqrt(24) * y) / math.sqrt(24)
    expected = direct - (direct * y).sum(dim=-1, keepdim=True) * y
    result = flow.velocity(y, t=layer + 0.5)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5 * float(direct.abs().max()))
    # Period: the first layer comes again after the last.
    torch.testing.assert_close(flow.velocity(y, t=layer + 3.25), result, rtol=1e-12, atol=1e-12)


def test_layers_are_taken_in_the_order_asked_for(rotary_checkpoint):
    whole, some = td.flow_of(rotary_checkpoint), td.flow_of(rotary_checkpoint, layers=[3, 1])
    y = td.Sphere().sample(5, 24, seed=4)
    torch.testing.assert_close(some.velocity(y, 0.5), whole.velocity(y, 2.5))
    torch.testing.assert_close(some.velocity(y, 1.5), whole.velocity(y, 0.5))
    torch.testing.assert_close(td.flow_of(rotary_checkpoint, layers=2).velocity(y), whole.velocity(y, 1.0))


@pytest.mark.long
def test_a_layer_norm_takes_the_mean_off_before_attention_reads():
    checkpoint = load("random:distilgpt2:7")
    flow = td.flow_of(checkpoint, layers=1)
    y = td.Sphere().sample(4, 768, seed=5)
    block = checkpoint.model.h[0]
    centred = y - y.mean(dim=-1, keepdim=True)
    with torch.no_grad():
        block.ln_1.weight.fill_(1.0)
        block.attn.c_attn.bias.zero_()
        block.attn.c_proj.bias.zero_()
        direct = block.attn((math.sqrt(768) * centred).float()[None])[0][0].double() / math.sqrt(768)
    expected = direct - (direct * y).sum(dim=-1, keepdim=True) * y
    torch.testing.assert_close(flow.velocity(y), expected, rtol=1e-3, atol=1e-5 * float(direct.abs().max()))


def test_in_free_space_a_step_adds_the_attention_of_the_states_themselves(rotary_checkpoint):
    flow = td.flow_of(rotary_checkpoint, space=td.Free())
    weights = rotary_checkpoint.attention(2)
    x = td.Free().sample(1, 24, seed=6)
    # One token attends to itself alone: what is left is W_V W_O, and no position matters.
    total = sum(
        x @ weights.value_per_head[head].double() @ weights.output[head].double() for head in range(len(weights.groups))
    )
    torch.testing.assert_close(flow.step(x, k=1), x + total, rtol=1e-10, atol=1e-10)


def test_under_a_norm_before_attention_a_step_is_that_of_the_network(rotary_checkpoint):
    flow = td.flow_of(rotary_checkpoint, space=td.Normalized("pre"))
    start = td.Normalized("pre").at_radius(td.Sphere().sample(7, 24, seed=3), torch.linspace(2.0, 9.0, 7))
    x = start
    for layer in range(3):
        next_state = x + attention_of_the_network(rotary_checkpoint, layer, x)
        torch.testing.assert_close(flow.step(x, k=layer), next_state, rtol=1e-4, atol=1e-4)
        x = next_state
    run = td.simulate(flow, start, range(4), engine="layers")
    torch.testing.assert_close(run.tensor[-1], x, rtol=1e-3, atol=1e-3)


@pytest.mark.long
def test_a_network_without_a_norm_before_attention_has_no_such_flow():
    with pytest.raises(
        ArgumentValueError, match=r"space: expected Sphere\(\) or Free\(\) for a network without a norm"
    ):
        td.flow_of("random:minilm:1", layers=1, space=td.Normalized("pre"))
    with pytest.raises(ArgumentValueError, match=r"space: expected Sphere\(\), Free\(\) or Normalized\('pre'\)"):
        td.flow_of("random:distilgpt2:7", layers=1, space=td.Normalized("peri"))


def test_layers_that_do_not_exist_are_named(rotary_checkpoint):
    with pytest.raises(ArgumentValueError, match="layers: expected a layer from 1 to 3, got 4"):
        td.flow_of(rotary_checkpoint, layers=[1, 4])
    with pytest.raises(ArgumentValueError, match="layers: expected layers from 1 to 3, got none"):
        td.flow_of(rotary_checkpoint, layers=[])


def test_one_number_means_one_layer_everywhere(rotary_checkpoint):
    weights = rotary_checkpoint.model.layers[1].self_attn.v_proj.weight
    read = rotary_checkpoint.attention(2).value
    torch.testing.assert_close(read.mT.reshape(weights.shape), weights, rtol=0, atol=0)
    assert torch.equal(next(iter(rotary_checkpoint.iter_attention([2]))).value, read)
    flow, circuits = td.flow_of(rotary_checkpoint, layers=[2], space=td.Free()), rotary_checkpoint.attention(2)
    ov = torch.stack(
        [
            (circuits.value_per_head[head].double() @ circuits.output[head].double()).T
            for head in range(len(circuits.groups))
        ]
    )
    torch.testing.assert_close(flow.attention.ov.matrix_at(0.0), ov)
    norms = torch.linalg.matrix_norm(ov.sum(dim=0), 2)
    whole, second = td.audit(rotary_checkpoint, value="VO"), td.audit(rotary_checkpoint, value="VO", layers=[2])
    assert second.layer.values.tolist() == [2]
    xr.testing.assert_identical(whole.sel(layer=[2]), second)
    assert float(second.V_radius[0]) <= float(norms) * (1 + 1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.attention(0),
        lambda c: list(c.iter_attention([0])),
        lambda c: td.audit(c, layers=[1, 0]),
        lambda c: td.diagnose(c, "a text", layers=[0]),
        lambda c: td.flow_of(c, layers=0),
        lambda c: td.flow_of(c, layers=range(2)),
    ],
)
def test_layer_0_is_the_embedding_and_no_block(call, rotary_checkpoint):
    with pytest.raises(ArgumentValueError, match="a layer from 1 to 3, got 0; layers count from 1; 0 is the embedding"):
        call(rotary_checkpoint)


@pytest.mark.slow
@pytest.mark.pretrained
def test_the_continuous_model_runs_on_smollm2s_own_weights_from_a_real_prompt():
    checkpoint = load("smollm2")
    flow = td.flow_of(checkpoint)
    ids = checkpoint.encode("The museum opened its doors to the public on a rainy Sunday.").ids
    start = checkpoint.states(ids).feed_forward[0].double()
    run = td.simulate(flow, start, [0.0, 0.5, 2.0, 3.0], rtol=1e-4, atol=1e-6)
    assert str(run.status) == "reached the horizon"
    assert flow.space.defect(run.states) < 1e-14
    # Token 1 sees only itself; the first layers barely move the mean cosine, the third draws the tokens together.
    cosine = td.observables.mean_pair_cosine(run.tensor)
    assert cosine[0] == pytest.approx(0.0551, abs=2e-3)
    assert cosine[3] > cosine[1]
    # With span and rotary positions, by another route: the whole run again in float32, layers of a finer Euler.
    fine = td.simulate(flow, start, [0.0, 0.5], step=1 / 64, method="rk4")
    torch.testing.assert_close(fine.states[1], run.states[1], rtol=0, atol=2e-4)


@pytest.fixture(scope="module")
def windowed():
    from transformers import MistralConfig, MistralModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return load(MistralModel(MistralConfig(vocab_size=60, num_key_value_heads=2, sliding_window=4, **sizes)))


def test_a_flow_of_more_tokens_than_a_window_is_wide_is_refused(windowed):
    assert td.flow_of(windowed, 1, tokens=4).heads == td.flow_of(windowed, 1).heads == 2
    wanted = r"layers: .* got layer 1 with windows of 4 tokens, where there are 5"
    with pytest.raises(ArgumentValueError, match=wanted):
        td.flow_of(windowed, 1, tokens=5)
    with pytest.raises(ArgumentValueError, match=wanted):
        td.nearest_statements(windowed, [3, 1, 4, 1, 5], 1, statements=["asymptotic-5.1"])
    assert td.nearest_statements(windowed, [3, 1, 4, 1], 1, statements=["asymptotic-5.1"])
    with pytest.raises(ArgumentValueError, match="tokens: expected at least 1"):
        td.flow_of(windowed, 1, tokens=0)


@pytest.mark.parametrize("choice", ["add_bias_kv", "add_zero_attn"])
def test_keys_that_come_from_no_token_are_no_flow(choice):
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(40, 16)
            layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
            layer.self_attn = torch.nn.MultiheadAttention(16, 2, batch_first=True, **{choice: True})
            self.layers = torch.nn.ModuleList([layer])

        def forward(self, input_ids):
            state = self.table(input_ids)
            for layer in self.layers:
                state = layer(state)
            return state

    torch.manual_seed(0)
    network = load(Network().eval(), inputs=torch.randint(0, 40, (1, 7)))
    with pytest.raises(ArgumentValueError, match="layer 1 with keys and values that come from no token"):
        td.flow_of(network, 1)


def test_each_layer_has_the_mask_of_its_own_and_layers_of_two_masks_are_no_flow():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(40, 16)
            one = {"batch_first": True, "dropout": 0.0}
            self.layers = torch.nn.ModuleList([torch.nn.TransformerEncoderLayer(16, 2, 32, **one) for _ in range(2)])

        def forward(self, input_ids):
            state = self.layers[0](self.table(input_ids))
            mask = torch.nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1])
            return self.layers[1](state, src_mask=mask)

    torch.manual_seed(0)
    network = load(Network().eval(), inputs=torch.randint(0, 40, (1, 7)))
    assert [td.flow_of(network, layer).attention.causal for layer in (1, 2)] == [False, True]
    with pytest.raises(
        ArgumentValueError, match=r"layers: expected layers with one mask, .* got causal and full masks"
    ):
        td.flow_of(network)
    (first,), (second,) = (
        td.nearest_statements(network, [3, 1, 4, 1, 5], layer, statements=["asymptotic-5.1"]) for layer in (1, 2)
    )
    assert "later tokens unseen" in first.relaxations
    assert "later tokens unseen" not in second.relaxations
