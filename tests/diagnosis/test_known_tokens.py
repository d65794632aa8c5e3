"""Unknown tokens and doubled beginnings are measured, recorded in the conditions, and said where they matter."""

from __future__ import annotations

from typing import Any

import pytest

import tokendynamics as td
from pretrained.families import network_of
from tokendynamics.diagnosis.tracing.prompts import token_conditions, token_finding, tokens_in_words
from tokendynamics.pretrained.inputs import prepared

_WORDS = ["<bos>", "<unk>", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def _tokenizer(*, unknown: str = "<unk>") -> Any:
    """Knows twelve words, and puts a token of beginning first."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(_WORDS)}, unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    made.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, **{"bos_token": "<bos>", "unk_token": unknown})


def _checkpoint(tokenizer: Any) -> Any:
    return td.load(network_of("gpt2")[0], tokenizer)


_KNOWN = ["one two three four five", "six seven eight nine", "ten one three five seven"]
_STRANGE = ["one CC=O two N#N", "C1CC1 three four five", "six O=C seven eight"]


@pytest.mark.long
@pytest.mark.parametrize(("texts", "share"), [(_KNOWN, 0.0), (_STRANGE, 4 / 12)])
def test_the_share_of_unknown_tokens_is_in_the_result_and_its_conditions(texts: list[str], share: float) -> None:
    diagnosis = td.diagnose(_checkpoint(_tokenizer()), texts, levers=False)
    assert diagnosis.trace.attrs["unknown_token_share"] == pytest.approx(share, abs=1e-12)
    choice = next(convention.choice for convention in diagnosis.conventions if convention.name == "Tokenization")
    sentences = [detail.text for detail in diagnosis.verdict.details if "does not know" in detail.text]
    if share:
        assert choice == "the model's own tokenizer; 33 % of the tokens are unknown to it"
        assert sentences
        assert sentences[0].startswith("The tokenizer does not know 33 % of the tokens")
    else:
        assert choice == "the model's own tokenizer"
        assert not sentences


def test_few_unknown_tokens_are_a_condition_and_no_finding() -> None:
    trace = td.trace(_checkpoint(_tokenizer()), [*_KNOWN, "one two three four five six seven eight nine x"])
    assert trace.attrs["unknown_token_share"] == pytest.approx(1 / 24, abs=1e-12)
    assert "4.2 % of the tokens are unknown to it" in tokens_in_words(trace.attrs)
    assert token_finding(trace) is None


def test_two_tokens_of_beginning_are_said() -> None:
    texts = ["<bos> one two three", *_KNOWN]
    trace = td.trace(_checkpoint(_tokenizer()), texts)
    assert trace.attrs["doubled_bos"] == 1
    assert tokens_in_words(trace.attrs).endswith("; 1 of the texts begins with two BOS tokens")
    finding = token_finding(trace)
    assert finding is not None
    assert finding.text.startswith("1 of 4 texts begins with two BOS tokens")
    assert td.trace(_checkpoint(_tokenizer()), _KNOWN).attrs["doubled_bos"] == 0


def test_a_token_that_is_also_the_beginning_is_not_counted_as_unknown() -> None:
    checkpoint = _checkpoint(_tokenizer(unknown="<bos>"))
    given = [prepared(checkpoint, text) for text in _STRANGE]
    assert token_conditions(checkpoint.tokenizer, given)["unknown_token_share"] == 0.0


def test_token_ids_without_a_tokenizer_have_no_such_condition() -> None:
    trace = td.trace(td.load(network_of("gpt2")[0]), [[5, 9, 33, 7], [8, 4, 2]])
    assert "unknown_token_share" not in trace.attrs
    assert token_finding(trace) is None
