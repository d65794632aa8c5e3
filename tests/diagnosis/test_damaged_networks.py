"""A planted damage begins where it is said to begin, and leaves the network that was passed alone."""

from __future__ import annotations

import pytest
import torch

import tokendynamics as td
from diagnosis.damaged_networks import (
    DAMAGES,
    larger_gain,
    llama_like,
    louder_attention,
    parts_written,
    scaled_identity,
)

IDS = torch.randint(0, 200, (2, 24), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def healthy():
    return llama_like()


@pytest.mark.parametrize("name", DAMAGES)
def test_nothing_differs_before_the_damage_and_something_at_it(healthy, name):
    before = {key: value.clone() for key, value in healthy.state_dict().items()}
    damaged, place = DAMAGES[name](healthy)
    sound, ill = parts_written(healthy, IDS), parts_written(damaged, IDS)
    differing = [entry for entry in sound if not torch.equal(sound[entry], ill[entry])]
    assert differing[0] == place
    assert (sound[place] - ill[place]).norm() > 0.1 * sound[place].norm()
    assert all(torch.equal(value, before[key]) for key, value in healthy.state_dict().items())


def test_a_louder_part_writes_what_it_wrote_times_the_factor(healthy):
    damaged, place = louder_attention(healthy, 3, 4)
    sound, ill = parts_written(healthy, IDS)[place], parts_written(damaged, IDS)[place]
    torch.testing.assert_close(ill, 6 * sound)


@pytest.mark.parametrize("heads", [2, 4])
def test_the_sum_over_heads_is_the_multiple_of_a_projection(heads):
    """With as many values as heads that is the identity."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=heads)
    config.vocab_size, config.intermediate_size = 50, 40
    attention = scaled_identity(LlamaModel(config), 1)[0].layers[0].self_attn
    values = attention.v_proj.weight.unflatten(0, (heads, -1)).repeat_interleave(4 // heads, dim=0).flatten(0, 1)
    product = attention.o_proj.weight @ values / 3
    torch.testing.assert_close(product @ product, product, atol=1e-5, rtol=0)
    assert float(product.trace()) == pytest.approx(8 * heads, abs=1e-3)


def test_a_gain_of_ten_is_seen_by_the_part_behind_it_alone(healthy):
    damaged, place = larger_gain(healthy, 4, "feed_forward")
    attention = (4, "attention")
    assert torch.equal(parts_written(healthy, IDS)[attention], parts_written(damaged, IDS)[attention])
    assert parts_written(damaged, IDS)[place].norm() > 10 * parts_written(healthy, IDS)[place].norm()


@pytest.mark.long
def test_the_library_reads_a_damaged_copy(healthy):
    damaged, _ = DAMAGES["O V = 3 I in layer 5"](healthy)
    states = td.load(damaged).states(IDS[:1])
    assert states.feed_forward.shape == (9, 24, 48)
    assert not states.attention[1:].isnan().any()
