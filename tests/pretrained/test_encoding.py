from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.pretrained import load


@pytest.mark.long
@pytest.mark.parametrize("prompt", ["", " \n\t "])
def test_an_empty_prompt_is_refused(prompt: str) -> None:
    with pytest.raises(ArgumentValueError, match="prompt: expected some text"):
        load("random:distilgpt2").encode(prompt)


def test_a_prompt_longer_than_the_context_is_refused_or_cut_on_request(tiny: Any) -> None:
    tiny.config("gpt2").save_pretrained(tiny.root / "plain")
    checkpoint = load(f"random:{tiny.root / 'plain'}")
    with pytest.raises(ArgumentValueError, match=r"at most 64 tokens .*, got 70; .* truncate=True"):
        checkpoint.encode("a" * 70)
    assert checkpoint.encode("a" * 70, truncate=True).ids.shape == (1, 64)
    assert checkpoint.encode("a" * 64).ids.shape == (1, 64)


def _byte_level_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)


def test_byte_level_tokens_become_readable(tiny: Any) -> None:
    folder = tiny.root / "plain"
    tiny.config("gpt2", vocab_size=256).save_pretrained(folder)
    _byte_level_tokenizer(folder)
    checkpoint = load(f"random:{folder}")
    assert checkpoint.tokenization == "own"
    assert checkpoint.encode("a b").tokens == ["a", " ", "b"]
    assert checkpoint.encode("x" * 70, truncate=True).ids.shape == (1, 64)


@pytest.mark.long
@pytest.mark.pretrained
def test_smollm2_tokens_are_readable(sentence: str) -> None:
    encoding = load("smollm2").encode(sentence)
    assert encoding.ids.dtype == torch.long
    assert encoding.tokens[:3] == ["The", " museum", " opened"]
    assert "".join(encoding.tokens) == sentence


@pytest.mark.pretrained
def test_minilm_keeps_its_special_tokens_when_it_truncates(sentence: str) -> None:
    checkpoint = load("minilm")
    encoding = checkpoint.encode(sentence)
    assert (encoding.tokens[0], encoding.tokens[1], encoding.tokens[-1]) == ("[CLS]", "the", "[SEP]")
    with pytest.raises(ArgumentValueError, match=r"at most 512 tokens .*, got 10\d\d"):
        checkpoint.encode(sentence * 40)
    cut = checkpoint.encode(sentence * 40, truncate=True)
    assert cut.ids.shape == (1, 512)
    assert cut.tokens[-1] == "[SEP]"
