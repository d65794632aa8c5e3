"""The default texts: a population of different kinds, short enough for every network, the first five as they were."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tokendynamics.diagnosis import repeated_texts, texts
from tokendynamics.diagnosis.texts import default_texts, five_texts
from tokendynamics.pretrained import load

FIRST_FIVE = "f65ca7bc1d973fe754c17a6fd611ab7fba9cb85c"
"""SHA-1 of the first five texts, one after the other: numbers of theirs are to be found again."""


def test_the_first_five_are_the_texts_there_once_were() -> None:
    joined = "\n".join(f"{name}\n{text}" for name, text in five_texts().items())
    assert hashlib.sha1(joined.encode(), usedforsecurity=False).hexdigest() == FIRST_FIVE
    assert list(default_texts().items())[:5] == list(five_texts().items())


def test_there_are_at_least_a_dozen_and_no_two_repeat_each_other() -> None:
    result = default_texts()
    assert len(result) == len(set(result.values())) == 14
    assert repeated_texts(result) == ()


def test_every_file_of_the_folder_is_a_text_and_every_text_a_file() -> None:
    folder = Path(texts.__file__).parent
    assert {path.stem for path in folder.glob("*.txt")} == set(default_texts())


@pytest.mark.parametrize("name", default_texts())
def test_a_text_is_short_enough_for_a_context_of_256_bytes(name: str) -> None:
    assert 100 <= len(default_texts()[name].encode()) <= 250


@pytest.mark.long
@pytest.mark.pretrained
@pytest.mark.parametrize("model", ["smollm2", "minilm"])
def test_a_trained_tokenizer_reads_every_text_in_some_dozens_of_tokens(model: str) -> None:
    checkpoint = load(model)
    for name, text in default_texts().items():
        tokens = checkpoint.encode(text).tokens
        assert 25 <= len(tokens) <= 90, name
        assert sum("UNK" in token for token in tokens) <= 1, name
