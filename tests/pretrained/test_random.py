"""Untrained networks: deterministic, drawn by the architecture's own law, one tensor at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.vision import VisionConfig, VisionModel
from tokendynamics.modules.vision._model import Encoder
from tokendynamics.pretrained import load
from tokendynamics.pretrained.loading import untrained_twin
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.pretrained.sources._untrained import FAMILIES, DrawnTensors

_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 128, "n_layer": 4, "n_head": 4, "vocab_size": 700},
    "llama": {"hidden_size": 128, "intermediate_size": 320, "vocab_size": 700, "pad_token_id": 7},
    "qwen2": {"hidden_size": 128, "intermediate_size": 320, "vocab_size": 700},
    "bert": {"hidden_size": 96, "intermediate_size": 320, "vocab_size": 700, "pad_token_id": 3},
}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_in_any_order() -> None:
    first, second = load("random:distilgpt2:5"), load("random:distilgpt2:5")
    forward = [weights.query for weights in first.iter_attention([1, 4])]
    backward = [weights.query for weights in second.iter_attention([4, 1])][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forward, backward, strict=True))
    assert not torch.equal(forward[0], forward[1])
    assert not torch.equal(load("random:distilgpt2:6").attention(1).query, forward[0])
    assert torch.equal(load("random:distilgpt2").attention(1).query, load("random:distilgpt2:0").attention(1).query)


@pytest.mark.long
def test_attention_shows_the_weights_of_the_model() -> None:
    checkpoint = load("random:distilgpt2:1")
    weights = checkpoint.attention(5)
    fused = checkpoint.model.get_parameter("h.4.attn.c_attn.weight")
    for index, factor in enumerate((weights.query, weights.key, weights.value)):
        for head in (0, 7):
            start = 768 * index + 64 * head
            assert torch.equal(factor[head], fused[:, start : start + 64])


def test_a_half_precision_model_is_the_rounded_one(tiny: Any) -> None:
    tiny.config("gpt2").save_pretrained(tiny.root / "plain")
    spec = f"random:{tiny.root / 'plain'}:1"
    half, single = load(spec, dtype="bfloat16").model, load(spec).model
    for name, parameter in single.named_parameters():
        assert torch.equal(half.get_parameter(name), parameter.bfloat16())


@pytest.mark.parametrize("architecture", list(_SIZES))
def test_untrained_tensors_follow_the_law_of_transformers(architecture: str, tiny: Any) -> None:
    from transformers import AutoModel

    config = tiny.config(architecture, initializer_range=0.03, **_SIZES[architecture])
    config.save_pretrained(tiny.root / "plain")
    with silenced():
        reference = dict(AutoModel.from_config(config).named_parameters())
    for name, actual in load(f"random:{tiny.root / 'plain'}:2").model.named_parameters():
        _check_same_law(name, actual.detach(), reference[name].detach())


def _check_same_law(name: str, actual: Tensor, reference: Tensor) -> None:
    if float(reference.std()) == 0.0:
        assert torch.equal(actual, reference), name
        return
    # The standard deviation of n normal values is known to within 1/√(2n); both sides are random, at 5 sigma.
    tolerance = 5.0 / reference.numel() ** 0.5
    assert float(actual.std() / reference.std()) == pytest.approx(1.0, abs=tolerance), name
    assert abs(float(actual.mean())) < 5.0 * float(reference.std()) / actual.numel() ** 0.5, name
    assert torch.equal(actual.abs().sum(-1) == 0, reference.abs().sum(-1) == 0), name
    kurtosis = float(((actual - actual.mean()) / actual.std()).pow(4).mean())
    assert kurtosis == pytest.approx(3.0, abs=0.5), name


@pytest.mark.long
def test_gpt2_residual_projections_are_scaled_by_depth() -> None:
    weights = load("random:gpt2:0").attention(6)
    assert float(weights.query.std()) == pytest.approx(0.02, rel=0.01)
    assert float(weights.output.std()) == pytest.approx(0.02 / 24**0.5, rel=0.01)
    assert weights.query_bias is not None
    assert not bool(weights.query_bias.any())


@pytest.mark.long
def test_an_audit_of_gpt2_xl_builds_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load("random:gpt2-xl:0")
    drawn, original = [], DrawnTensors.read
    monkeypatch.setattr(DrawnTensors, "read", lambda self, name: drawn.append(name) or original(self, name))
    assert checkpoint.attention(48).query.shape == (25, 1600, 64)
    assert sorted(drawn) == sorted(
        f"h.47.{part}"
        for part in (
            "attn.c_attn.bias",
            "attn.c_attn.weight",
            "attn.c_proj.bias",
            "attn.c_proj.weight",
            "ln_1.bias",
            "ln_1.weight",
        )
    )
    assert "_filled" not in vars(checkpoint._network)


@pytest.mark.slow
def test_known_families_have_their_published_sizes() -> None:
    millions = {
        "gpt2": 124.4,
        "gpt2-medium": 354.8,
        "gpt2-large": 774.0,
        "gpt2-xl": 1557.6,
        "distilgpt2": 81.9,
        "gpt2-tiny": 2.6,
        # Without the untied output head of 32000 × dim.
        "llama-2-7b": 6738.4 - 131.1,
        "llama-2-13b": 13015.9 - 163.8,
        "mistral-7b": 7241.7 - 131.1,
        "smollm2-135m": 134.5,
        "qwen2-0.5b": 494.0,
        # Without the pooler.
        "bert-base": 109.5 - 0.6,
        "bert-large": 335.1 - 1.0,
        "minilm": 22.7 - 0.1,
    }
    assert set(millions) == set(FAMILIES)
    for name, size in millions.items():
        assert load(f"random:{name}").architecture.parameters / 1e6 == pytest.approx(size, abs=0.1), name


def test_an_untrained_network_reads_bytes_and_says_so(tiny: Any) -> None:
    tiny.config("gpt2").save_pretrained(tiny.root / "plain")
    checkpoint = load(f"random:{tiny.root / 'plain'}")
    encoding = checkpoint.encode("añ")
    assert checkpoint.tokenizer is None
    assert checkpoint.tokenization == "bytes (no tokenizer)"
    assert encoding.ids.tolist() == [[97, 0xC3 % 101, 0xB1 % 101]]
    assert encoding.tokens == ["a", "<0xC3>", "<0xB1>"]


_SMALL: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("regime", ["baseline", "divergence"])
def test_a_network_of_this_package_starts_untrained_as_it_is_constructed(regime: Any) -> None:
    config = LanguageModelConfig(vocab_size=30, regime=regime, **_SMALL)
    torch.manual_seed(1)
    trained = load(LanguageModel(config).eval())
    generator = torch.get_rng_state()
    twin, ids = untrained_twin(trained, seed=3), torch.tensor([1, 2, 3, 5, 8])
    states = twin.states(ids).feed_forward
    assert torch.equal(torch.get_rng_state(), generator)
    torch.manual_seed(3)
    constructed = load(LanguageModel(config).model.eval())
    torch.testing.assert_close(states, constructed.states(ids).feed_forward, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(states, trained.states(ids).feed_forward, rtol=1e-2)
    assert not torch.allclose(states, untrained_twin(trained, seed=4).states(ids).feed_forward, rtol=1e-2)


def test_an_image_network_of_this_package_starts_so_too(tmp_path: Any) -> None:
    config = VisionConfig(image_size=8, patch_size=4, channels=1, num_labels=3, **_SMALL)
    VisionModel(config).save_pretrained(tmp_path)
    picture = {"pixel_values": torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8)}
    drawn = load(f"random:{tmp_path}:3").states(picture).feed_forward
    torch.manual_seed(3)
    constructed = load(Encoder(config).eval())
    torch.testing.assert_close(drawn, constructed.states(picture).feed_forward, rtol=1e-6, atol=1e-6)
    twin = untrained_twin(load(tmp_path), seed=3).states(picture).feed_forward
    torch.testing.assert_close(twin, drawn, rtol=0, atol=0)
