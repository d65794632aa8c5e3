"""Tokenizers that are none of transformers': functions, and objects that encode as those of other libraries do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import tokendynamics as td
from diagnosis.test_own_language_models import _Returned
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, CheckpointError

LETTERS = "abcdefghijklmnopqrstuvwxyz ."
TEXTS = ["one fish.", "two red birds", "it rains", "who goes there", "a long way home."]


def codes(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


class Encoding:
    """As tiktoken's: it encodes and decodes, and is not called."""

    def encode(self, text: str) -> list[int]:
        return codes(text)

    def decode(self, ids: list[int]) -> str:
        return "".join(LETTERS[number] for number in ids)


class Called:
    """Called with a text alone; of transformers' arguments it knows none."""

    def decode(self, ids: list[int]) -> str:
        return Encoding().decode(ids)

    def __call__(self, text: str) -> dict[str, np.ndarray]:
        return {"input_ids": np.array([codes(text)])}


def of_words() -> Tokenizer:
    words = sorted({word for text in TEXTS for word in text.split()})
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def loaded(tokenizer: Any) -> td.Checkpoint:
    torch.manual_seed(3)
    return td.load(_Returned(), tokenizer, inputs=torch.randint(0, 30, (1, 9)))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("tokenizer", [codes, lambda text: torch.tensor(codes(text)), Encoding(), Called()])
def test_texts_are_their_ids(tokenizer: Any) -> None:
    ckpt = loaded(tokenizer)
    by_text, by_ids = td.trace(ckpt, TEXTS), td.trace(loaded(None), [codes(text) for text in TEXTS])
    np.testing.assert_array_equal(by_text.consensus_relative, by_ids.consensus_relative)
    seen = td.attention_seen(ckpt, TEXTS[:1])
    pieces = [str(piece) for piece in np.ravel(seen.token_text.values)] if "token_text" in seen else None
    if pieces is not None and hasattr(tokenizer, "decode"):
        assert "".join(pieces) == TEXTS[0]
    assert td.diagnose(ckpt, TEXTS, levers=False, heads=False, directions=False).trace.sizes["prompt"] == len(TEXTS)


def test_words_of_a_vocabulary_are_named_and_windows_cut() -> None:
    ckpt = loaded(of_words())
    (pieces,) = (td.Texts(TEXTS[3]).pieces(ckpt, TEXTS[3], "text").values(),)
    assert [piece for prepared in pieces for piece in prepared.tokens or ()] == ["who", "goes", "there"]
    windows = td.trace(ckpt, td.Texts(TEXTS, window=2))
    assert windows.sizes["prompt"] > len(TEXTS)
    letters = td.trace(loaded(Encoding()), td.Texts(TEXTS, window=5))
    assert letters.sizes["prompt"] > len(TEXTS)


@pytest.mark.long
def test_a_text_longer_than_the_context_is_cut_where_that_is_asked_for() -> None:
    ckpt = td.load("random:distilgpt2", codes)
    text, most = "it rains " * 200, ckpt.architecture.context
    assert most is not None
    assert ckpt.encode(text, truncate=True).ids.tolist() == [codes(text)[:most]]
    assert ckpt.encode(text[:100], truncate=True).ids.tolist() == [codes(text[:100])]
    with pytest.raises(ArgumentValueError, match=f"at most {most} tokens .* got 1800"):
        ckpt.encode(text)


@pytest.mark.long
def test_what_gives_no_ids_is_refused() -> None:
    for tokenizer in (3, "gpt2", object()):
        with pytest.raises(ArgumentTypeError, match="tokenizer: expected a tokenizer: one of transformers, an object"):
            loaded(tokenizer)
        with pytest.raises(ArgumentTypeError, match="tokenizer: expected a tokenizer"):
            td.Monitor(TEXTS, tokenizer=tokenizer)
    for result in ("text", 4, [0.5, 1.0], None, ["a"]):
        with pytest.raises((ArgumentTypeError, CheckpointError), match="tokenizer: expected one that"):
            td.trace(loaded(lambda text, result=result: result), TEXTS)
    with pytest.raises(CheckpointError, match="tokenizer: expected one that can encode, got"):
        td.trace(loaded(codes), ["Capitals"])


def test_a_text_is_continued_without_a_tokenizer_that_decodes() -> None:
    plain, named = (td.decode(loaded(tokenizer), TEXTS[0], (1,)) for tokenizer in (codes, Encoding()))
    np.testing.assert_array_equal(plain.token_id, named.token_id)
    assert str(plain.decoded.values[0]) == " ".join(map(str, plain.token_id.values[0]))
