"""Tokenizers of bytes and of words: what comes back, what stands for what, and who can read their files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import CONFIG_MAPPING, AutoTokenizer

from tokendynamics.modules.language_model import (
    LanguageModelConfig,
    byte_tokenizer,
    vocabulary_of,
    word_tokenizer,
)
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError

BYTES = byte_tokenizer()
VOCABULARY = {"the": 0, "<eos>": 1, ",": 2, "don't": 3, "<unk>": 4, "Ünal": 5}


@pytest.mark.long
@given(st.text())
def test_ids_are_the_bytes_of_the_text_and_every_text_comes_back(text):
    ids = BYTES(text)["input_ids"]
    assert ids == list(text.encode())
    assert BYTES.decode(ids) == text


@given(st.binary())
def test_bytes_that_are_no_text_are_decoded_as_python_replaces_them(data):
    assert BYTES.decode(list(data)) == data.decode(errors="replace")


@pytest.mark.parametrize("text", ["<s> </s> <unk> [CLS] <0x41>", "▁Ġ##", " a  b ,  don 't . \r\n\t\0"])
def test_no_byte_means_anything_else(text):
    assert BYTES.decode(BYTES(text)["input_ids"]) == text
    assert len(BYTES) == 256


def test_words_are_what_stands_between_white_space():
    tokenizer = word_tokenizer(VOCABULARY)
    assert tokenizer("the don't,\tÜnal  ,\n\nthe\r\n<eos> dont <unk>")["input_ids"] == [0, 4, 5, 2, 1, 1, 0, 1, 1, 4, 4]
    assert tokenizer("the\nthe\r\nthe\rthe")["input_ids"] == [0, 1, 0, 1, 0, 1, 0]
    assert tokenizer.decode([0, 3, 2, 5, 1, 0]) == "the don't , Ünal <eos> the"
    assert len(tokenizer) == 6


@given(st.lists(st.integers(0, 5), max_size=20))
def test_decoded_words_are_encoded_as_they_were(ids):
    tokenizer = word_tokenizer(VOCABULARY)
    assert tokenizer(tokenizer.decode(ids))["input_ids"] == ids


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 3)))
def test_a_vocabulary_falls_in_frequency_and_leaves_no_id_out(counts):
    vocabulary = vocabulary_of(counts)
    by_id = sorted(vocabulary, key=vocabulary.__getitem__)
    assert sorted(vocabulary.values()) == list(range(len(counts.keys() | {"<eos>", "<unk>"})))
    keys = [(-counts.get(word, 0), word) for word in by_id]
    assert keys == sorted(keys)
    assert word_tokenizer(vocabulary).get_vocab() == vocabulary


@pytest.mark.parametrize("made", [byte_tokenizer, lambda: word_tokenizer(VOCABULARY)], ids=["bytes", "words"])
def test_transformers_alone_reads_a_saved_tokenizer(made, tmp_path, monkeypatch):
    tokenizer = made()
    LanguageModelConfig().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.delitem(CONFIG_MAPPING._extra_content, LanguageModelConfig.model_type)
    again = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    text = "the  don't,\n é Ünal <unk> \n"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.decode(again(text)["input_ids"]) == tokenizer.decode(tokenizer(text)["input_ids"])
    assert again.unk_token == tokenizer.unk_token


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"the": 0, "<eos>": 1}, "vocabulary: expected the word <unk> too, got 2 words without"),
        ({"the": 0, "<unk>": 1}, "vocabulary: expected the word <eos> too"),
        ({"the": 1, "<eos>": 2, "<unk>": 3}, "vocabulary: expected the ids 0 … 2, each once"),
        ({"the": 0, "<eos>": 1, "<unk>": 1}, "vocabulary: expected the ids 0 … 2, each once"),
        ({"the cat": 0, "<eos>": 1, "<unk>": 2}, "vocabulary: expected words without white space, got 'the cat'"),
        ({"": 0, "<eos>": 1, "<unk>": 2}, "vocabulary: expected words without white space, got ''"),
    ],
)
def test_other_vocabularies_are_refused(vocabulary, message):
    with pytest.raises(ArgumentValueError, match=message):
        word_tokenizer(vocabulary)


def test_other_counts_are_refused():
    with pytest.raises(ArgumentValueError, match=r"counts\['the'\]: expected an integer from 0, got -1"):
        vocabulary_of({"the": -1})
    with pytest.raises(ArgumentTypeError, match=r"counts\['the'\]: expected an integer, got 0.5"):
        vocabulary_of({"the": 0.5})
    with pytest.raises(ArgumentValueError, match="counts: expected words without white space, got ' the'"):
        vocabulary_of({" the": 1})
