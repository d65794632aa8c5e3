"""What a network says after k passes and after each layer: against its own head, greedy generation and sums by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tokendynamics as td
from pretrained.families import FAMILIES, network_of
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.observables import repetition
from tokendynamics.pretrained.other_libraries import silenced

IDS = torch.tensor([7, 21, 3, 40, 55, 12, 9, 33, 4])


def _with_head(family: str) -> Any:
    """A network of the family with its language head, and weights far from any default."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, settings, _ = FAMILIES[family]
    torch.manual_seed(12)
    with silenced():
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings)).eval()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return network


def _logits(network: Any, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        return network(input_ids=ids[None]).logits[0]


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize(
    "family", ["gpt2", "llama", "gemma2", "cohere", "granite", "mixtral", "phi", "gpt_neox", "opt"]
)
def test_one_pass_says_what_the_network_says(family: str) -> None:
    """With what stands before the logits: scales (Cohere, Granite), a soft cap (Gemma 2), a bias (Phi)."""
    network = _with_head(family)
    decoded = td.decode(td.load(network), IDS, (1,))
    logits = _logits(network)
    assert decoded.token_id.values[0].tolist() == logits.argmax(dim=-1).tolist()
    p = logits.double().softmax(dim=-1)
    np.testing.assert_allclose(decoded.prediction_entropy.values[0], -(p * p.log()).sum(dim=-1), rtol=1e-4)


def test_further_passes_are_those_of_the_blocks() -> None:
    network = _with_head("llama")
    decoded = td.decode(td.load(network), IDS, (2, 0))
    base, places = network.model, torch.arange(len(IDS))[None]
    with torch.no_grad():
        x = base.embed_tokens(IDS)[None]
        embedding = network.lm_head(base.norm(x))[0].argmax(dim=-1)
        for _ in range(2):
            angles = base.rotary_emb(x, places)
            for block in base.layers:
                x = block(x, attention_mask=None, position_embeddings=angles)
            x = base.norm(x)
        expected = network.lm_head(x)[0].argmax(dim=-1)
    assert decoded["pass"].values.tolist() == [2, 0]
    assert decoded.token_id.values.tolist() == [expected.tolist(), embedding.tolist()]
    fed_before = td.decode(td.load(network), IDS, (2,), feed_back="before_norm")
    assert not np.allclose(fed_before.prediction_entropy[0], decoded.prediction_entropy[0], rtol=1e-3)


def test_a_variant_is_read_as_it_is() -> None:
    network = _with_head("llama")
    ckpt = td.load(network)
    decoded = td.decode(ckpt, IDS, (1,), variant={"final_norm": 0, "layer 2 attention": 0})
    with ckpt.varied({"final_norm": 0, "layer 2 attention": 0}):
        expected = _logits(network).argmax(dim=-1)
    assert decoded.token_id.values[0].tolist() == expected.tolist()
    assert decoded.token_id.values[0].tolist() != _logits(network).argmax(dim=-1).tolist()
    under = ckpt.under({"final_norm": 0, "layer 2 attention": 0})
    assert td.decode(under, IDS, (1,)).token_id.values[0].tolist() == expected.tolist()
    assert td.logit_lens(under, IDS).token_id.values[-1].tolist() == expected.tolist()


@pytest.mark.long
def test_generated_tokens_are_those_of_greedy_generation() -> None:
    network = _with_head("llama")
    decoded = td.decode(td.load(network), IDS, (1,), how="generate", new_tokens=6)
    ids = IDS
    for _ in range(6):
        ids = torch.cat([ids, _logits(network, ids)[-1:].argmax(dim=-1)])
    assert decoded.token_id.values[0].tolist() == ids[len(IDS) :].tolist()
    twice = td.decode(td.load(network), IDS, (1, 3), how="generate", new_tokens=6)
    assert twice.token_id.values[0].tolist() == decoded.token_id.values[0].tolist()
    assert twice.sizes == {"pass": 2, "token": 6}


def test_the_measures_are_of_what_was_decoded() -> None:
    decoded = td.decode(td.load(_with_head("gpt2")), IDS, (0, 1, 4))
    for place in range(3):
        expected = repetition(decoded.token_id.values[place].tolist())
        for name in ("distinct_1", "distinct_2", "entropy", "longest_run"):
            assert float(decoded[name][place]) == pytest.approx(getattr(expected, name))


def test_repetition_by_hand() -> None:
    result = repetition([5, 5, 5, 2, 5])
    assert (result.distinct_1, result.distinct_2, result.longest_run) == (2 / 5, 3 / 4, 3)
    assert result.entropy == pytest.approx(-0.8 * np.log(0.8) - 0.2 * np.log(0.2))
    alike = repetition([1, 1, 1])
    assert (alike.distinct_1, alike.entropy, alike.longest_run) == (1 / 3, 0.0, 3)
    assert repetition("abc").distinct_1 == repetition("abc").distinct_2 == 1.0
    assert np.isnan(repetition([1]).distinct_2)
    with pytest.raises(ArgumentValueError, match="at least one"):
        repetition([])


def test_the_lens_reads_each_layer_by_norm_and_head() -> None:
    network = _with_head("llama")
    ckpt = td.load(network)
    result = td.logit_lens(ckpt, IDS)
    states = ckpt.states(IDS).feed_forward
    with torch.no_grad():
        logits = torch.stack([network.lm_head(network.model.norm(state)) for state in states])
    np.testing.assert_array_equal(result.token_id.values, logits.argmax(dim=-1).numpy())
    log_p = logits.double().log_softmax(dim=-1)
    np.testing.assert_allclose(result.prediction_entropy.values, -(log_p.exp() * log_p).sum(-1), rtol=1e-4)
    divergence = (log_p[-1].exp() * (log_p[-1] - log_p)).sum(dim=-1)
    np.testing.assert_allclose(result.divergence.values, divergence, atol=1e-4)
    same = (logits.argmax(-1) == logits[-1].argmax(-1)).double()
    np.testing.assert_array_equal(result.agreement.values, same.mean(dim=-1).numpy())
    assert result.agreement.values[-1] == 1.0
    assert result.agreement.values[0] < 1.0
    assert result.read_text.values.tolist() == [f"<id {token}>" for token in IDS.tolist()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"passes": ()}, ArgumentValueError, "from 0 on"),
        ({"passes": (-1,)}, ArgumentValueError, "from 0 on"),
        ({"passes": (1, 1)}, ArgumentValueError, "different numbers"),
        ({"passes": (1.5,)}, ArgumentTypeError, "passes"),
        ({"how": "sample"}, ArgumentValueError, "'positions'"),
        ({"new_tokens": 0}, ArgumentValueError, "new_tokens"),
        ({"how": "generate", "new_tokens": 60}, ArgumentValueError, "1 to 64 tokens"),
        ({"text": [IDS, IDS]}, ArgumentTypeError, "one prompt"),
        ({"text": {"a": IDS}}, ArgumentTypeError, "one prompt"),
        ({"text": torch.zeros(70, dtype=torch.int64)}, ArgumentValueError, "1 to 64 tokens"),
        ({"weights": "new"}, ArgumentValueError, "'fixed'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_input(given: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {"text": IDS} | given
    with pytest.raises(error, match=words):
        td.decode(td.load(_with_head("gpt2")), arguments.pop("text"), **arguments)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_network_without_a_language_head_is_not_decoded(family: str) -> None:
    network, _ = network_of(family)
    for function in (td.decode, td.logit_lens):
        with pytest.raises(CheckpointError, match="a network with a language head"):
            function(td.load(network), IDS)
