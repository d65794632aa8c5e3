"""Saved decoders with their tokenizers are read by every measure of networks, and say there what they compute."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import tokendynamics as td
from tokendynamics.cli import commands
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig, byte_tokenizer, word_tokenizer

TEXT = "Zürich: é?"
TEXTS = [TEXT, "a queen, once upon a time", "def f(x): return x", "it rained, and then it snowed", "1, 2, 3, 4, 5"]
CHOICES = {
    "sinusoidal": {"regime": "divergence"},
    "rotary": {"positions": "rotary", "regime": "intermediate", "remedy": "identity"},
    "decoupled": {"positions": "decoupled", "regime": "convergence", "remedy": "diagonal"},
    "attention alone": {"norms": "none", "intermediate_size": 0, "positions": "learned", "regime": "contracting"},
    "a norm after attention alone": {"norms": "post", "intermediate_size": 0, "positions": "none"},
}


def saved(folder: Path, **choices) -> LanguageModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = LanguageModel(LanguageModelConfig(**{**sizes, **choices})).eval()
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return model


@pytest.mark.few(2)
@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_what_is_decoded_is_what_the_model_foretells(choices, tmp_path):
    model = saved(tmp_path, **choices)
    network = td.load(tmp_path)
    ids = torch.tensor([list(TEXT.encode())])
    with torch.no_grad():
        log_p = model(ids).logits[0].double().log_softmax(-1)
    best = log_p.argmax(-1).numpy()
    decoded = td.decode(network, TEXT, passes=(1,))
    assert decoded["token_id"].values.tolist() == [best.tolist()]
    assert str(decoded["decoded"].values[0]) == bytes(best.tolist()).decode(errors="replace")
    entropy = -(log_p.exp() * log_p).sum(-1).numpy()
    np.testing.assert_allclose(decoded["prediction_entropy"].values[0], entropy, atol=1e-5)
    lens = td.logit_lens(network, TEXT)
    assert lens["token_id"].values[-1].tolist() == best.tolist()
    assert lens["read_text"].values.tolist()[:4] == ["Z", "<0xC3>", "<0xBC>", "r"]
    levers = td.levers(network, TEXTS)
    assert np.isfinite(levers["loss_sensitivity"].sel(component="attention")).all()


def test_states_of_layers_that_are_an_attention_and_the_norm_of_its_sum(tmp_path):
    model = saved(tmp_path, norms="post", intermediate_size=0)
    ids = torch.arange(30)
    with torch.no_grad():
        hidden = torch.stack(model(ids[None], output_hidden_states=True).hidden_states)[:, 0]
    network = td.load(tmp_path)
    states = network.states(ids)
    torch.testing.assert_close(states.feed_forward, hidden, rtol=0, atol=1e-6)
    torch.testing.assert_close(states.attention[1:], hidden[1:], rtol=0, atol=1e-6)
    assert (network.architecture.norm_placement, network.architecture.feed_forward_dim) == ("post", 0)


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("positions", ["none", "rotary", "decoupled"])
@pytest.mark.parametrize("remedy", ["identity", "diagonal"])
def test_a_remedy_is_part_of_the_w_that_is_audited(remedy, positions, tmp_path):
    model = saved(tmp_path, remedy=remedy, positions=positions, norms="none", regime="divergence")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attention.terms[-1].rho.fill_(1.0)
    model.save_pretrained(tmp_path)
    attended = td.load(tmp_path).attention(2)
    layer = model.model.layers[1].attention
    qk = attended.scale * (attended.query @ attended.key.mT).sum(0)
    wanted = layer.circuits()[0] + torch.diag(layer.terms[-1].coefficients())
    if positions == "decoupled":
        wanted = wanted + layer.terms[0].query.weight.T @ layer.terms[0].key.weight / np.sqrt(8)
    torch.testing.assert_close(qk, wanted.detach(), rtol=0, atol=1e-5)
    assert not (torch.linalg.eigvalsh(qk + qk.T) > 0).any()  # as W alone is not


@pytest.mark.slow
def test_diagnose_reads_a_folder_with_its_tokenizer(tmp_path):
    saved(tmp_path / "model", **CHOICES["rotary"])
    prompts = [part for text in TEXTS for part in ("--prompt", text)]
    command = ["diagnose", str(tmp_path / "model"), *prompts, "--out", str(tmp_path / "found")]
    sentence = CliRunner().invoke(commands, command, env={"COLUMNS": "200"})
    assert sentence.exit_code == 0, sentence.output
    assert "model: 2 layers × 2 heads × dim 16" in sentence.output
    assert "not audited" not in sentence.output
    assert "not known" not in sentence.output
    diagnosis = td.Diagnosis.open(tmp_path / "found")
    assert diagnosis.trace.sizes["prompt"] == 5
    assert (tmp_path / "found" / "report.html").is_file()


@pytest.mark.few(1)
@pytest.mark.parametrize("head", [{}, {"cutoffs": [2]}, {"cutoffs": [1, 3], "tie_word_embeddings": True}], ids=str)
def test_words_are_read_as_words_and_decoded_by_either_head(head, tmp_path):
    model = saved(tmp_path, vocab_size=5, **head)
    names = ["the", "<eos>", "cat", "<unk>", "sat"]
    word_tokenizer({name: number for number, name in enumerate(names)}).save_pretrained(tmp_path)
    network = td.load(tmp_path)
    log_p = model(torch.tensor([[0, 2, 1, 3]])).logits[0].detach().double().log_softmax(-1)
    decoded = td.decode(network, "the cat\nstood", passes=(1,))
    assert decoded["token_text"].values[0].tolist() == [names[word] for word in log_p.argmax(-1).tolist()]
    entropy = -(log_p.exp() * log_p).sum(-1).numpy()
    np.testing.assert_allclose(decoded["prediction_entropy"].values[0], entropy, atol=1e-5)
    assert td.logit_lens(network, "the cat sat")["read_text"].values.tolist() == ["the", "cat", "sat"]
