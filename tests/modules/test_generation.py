"""Generation: what comes one after the other is what the logits say, and what cannot follow is refused."""

import warnings

import pytest
import torch

from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.numerics import ArgumentValueError

CHOICES = [
    {"positions": "rotary"},
    {"cutoffs": [5, 20], "regime": "divergence"},
    {"norms": "post", "remedy": "identity"},
]


def made(**choices) -> LanguageModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LanguageModel(LanguageModelConfig(**sizes, max_position_embeddings=12, **choices)).eval()


def prompts() -> torch.Tensor:
    return torch.randint(0, 50, (2, 5), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_greedy_generation_appends_the_likeliest_token_to_the_end(choices, tmp_path):
    model = made(**choices)
    expected = prompts()
    for _ in range(8):
        expected = torch.cat([expected, model(expected).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    model.save_pretrained(tmp_path)
    for one in (model, LanguageModel.from_pretrained(tmp_path)):
        for further in ({}, {"use_cache": True}):  # there is none: nothing else may come of it
            assert one.generate(prompts(), max_new_tokens=8, **further).tolist() == expected.tolist()


def test_samples_are_those_of_a_seed_and_of_the_distribution():
    model = made(cutoffs=[5, 20])

    def samples(seed: int, count: int = 1) -> torch.Tensor:
        torch.manual_seed(seed)
        many = prompts()[:1].expand(count, -1)
        return model.generate(many, max_new_tokens=1, do_sample=True, top_k=0)[:, -1]

    assert torch.equal(samples(0, 50), samples(0, 50))
    assert not torch.equal(samples(0, 50), samples(1, 50))
    count = 4000
    shares = torch.bincount(samples(0, count), minlength=50) / count
    p = model(prompts()[:1]).logits[0, -1].exp().detach()
    assert ((shares - p).abs() < 6 * (p * (1 - p) / count).sqrt()).all()


def test_a_sequence_ends_where_positions_end():
    model = made()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.generate(prompts(), max_new_tokens=8).shape == (2, 13)  # the last token is never read
    with pytest.raises(ArgumentValueError, match=r"max_new_tokens: expected 8 at most after 5 tokens, .*, got 9"):
        model.generate(prompts(), max_new_tokens=9)
    with pytest.raises(ArgumentValueError, match=r"max_new_tokens: expected 8 at most after 5 tokens, .*, got 15"):
        model.generate(prompts(), max_length=20)


@pytest.mark.parametrize("mask", [[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
def test_nothing_follows_padding(mask):
    with pytest.raises(ArgumentValueError, match="attention_mask: expected prompts of one length"):
        made().generate(prompts(), attention_mask=torch.tensor([[1] * 5, mask]), max_new_tokens=1)
