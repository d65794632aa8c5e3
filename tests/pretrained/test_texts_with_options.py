"""Conversations, long documents in windows, and texts without special tokens, against the tokenizer's own words."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

import tokendynamics as td
from diagnosis.test_heads import network_of
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.pretrained.inputs import windows_of

WORDS = [f"w{number}" for number in range(40)]
TEMPLATE = """{{ bos_token }}{% for message in messages %}{% if message.role not in ["user", "assistant"] %}{{
raise_exception("only user and assistant speak") }}{% endif %} {{ message.role }} {{ message.content }}{% endfor %}{%
if add_generation_prompt %} assistant{% endif %}"""
TALKS = [
    [{"role": "user", "content": "w1 w2 w3"}, {"role": "assistant", "content": "w7 w8"}],
    [{"role": "user", "content": "w9 w4"}],
    [{"role": "user", "content": "w5"}, {"role": "assistant", "content": "w6 w6 w1"}],
]
LONG = " ".join(WORDS[(7 * number) % 40] for number in range(37))


def tokenizer_of(template: str | None = TEMPLATE) -> Any:
    """A tokenizer of words that adds one special token before a text and one after it."""
    names = ["<unk>", "<s>", "</s>", "user", "assistant", *WORDS]
    table = Tokenizer(WordLevel({name: place for place, name in enumerate(names)}, unk_token=names[0]))
    table.pre_tokenizer = WhitespaceSplit()
    table.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    special = dict(zip(("unk_token", "bos_token", "eos_token"), names, strict=False))
    made = PreTrainedTokenizerFast(tokenizer_object=table, **special)
    made.chat_template = template
    return made


@pytest.fixture(scope="module")
def ckpt() -> Any:
    return td.load(network_of("gpt2"), tokenizer_of())


def same_states(table: Any, ckpt: Any, ids: list[list[int]]) -> None:
    wanted = td.trace(ckpt, ids, packed=False)
    torch.testing.assert_close(
        torch.from_numpy(table.consensus_within.values),
        torch.from_numpy(wanted.consensus_within.values),
        rtol=1e-9,
        atol=1e-9,
        equal_nan=True,
    )


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("form", [TALKS, [{"messages": talk} for talk in TALKS], {"a": TALKS[0], "b": TALKS[1]}])
def test_a_conversation_is_what_the_chat_template_makes_of_it(ckpt: Any, form: Any) -> None:
    talks = TALKS if isinstance(form, list) else list(form.values())
    ids = [ckpt.tokenizer.apply_chat_template(talk, add_generation_prompt=False)["input_ids"] for talk in talks]
    table = td.trace(ckpt, form, chat=True, packed=False)
    same_states(table, ckpt, ids)
    assert [words[: len(row)].tolist() for words, row in zip(table.token_text.values, ids, strict=True)] == [
        ckpt.tokenizer.convert_ids_to_tokens(row) for row in ids
    ]
    assert all(row.count(1) == 1 for row in ids)
    assert (table.attrs["doubled_bos"], table.attrs["special_tokens"]) == (0, "written by the chat template")
    if isinstance(form, dict):
        assert table.prompt.values.tolist() == ["a", "b"]


def test_one_conversation_needs_no_list_around_it(ckpt: Any) -> None:
    one, several = (td.trace(ckpt, form, chat=True) for form in (TALKS[0], TALKS[:1]))
    assert one.identical(several)
    assert one.text.values.tolist() == ["<s> user w1 w2 w3 assistant w7 w8"]


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ([[]], "prompt 1: expected at least one message, got none"),
        ([], "texts: expected at least one prompt"),
        ("a text", 'prompt 1: expected a list of messages, each with "role" and "content", got str'),
        ([TALKS[0], [{"role": "user"}]], 'prompt 2: message 1: expected a text as "content", got none'),
        ([[{"role": 3, "content": "w1"}]], 'prompt 1: message 1: expected a text as "role", got 3'),
        ([["w1"]], "prompt 1: message 1: expected a mapping"),
        ({"a": [{"role": "judge", "content": "w1"}]}, "a: expected messages that .* only user and assistant speak"),
        ({"messages": 3}, "prompt 1: expected a list of messages"),
    ],
)
def test_a_malformed_conversation_is_refused_by_name(ckpt: Any, conversation: Any, message: str) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=message):
        td.trace(ckpt, conversation, chat=True)


def test_options_that_do_not_go_together_are_refused(ckpt: Any) -> None:
    bare = td.load(ckpt.model, tokenizer_of(None))
    with pytest.raises(CheckpointError, match="a tokenizer with a chat template, got one without"):
        td.trace(bare, TALKS, chat=True)
    with pytest.raises(ArgumentValueError, match="special_tokens: expected True beside chat=True"):
        td.trace(ckpt, TALKS, chat=True, special_tokens=False)
    with pytest.raises(ArgumentTypeError, match="texts without options"):
        td.trace(ckpt, td.Texts(LONG, window=9), special_tokens=False)
    with pytest.raises(ArgumentTypeError, match="a monitor takes texts without options"):
        td.Monitor(td.Texts([LONG, "w1 w2"], window=9))
    with pytest.raises(ArgumentValueError, match="expected one prompt, got 9 windows"):
        td.token_paths(ckpt, td.Texts(LONG, window=10))
    for wrong, message in ((1, "at least 2"), (3, "at least 4 tokens, got 3"), (65, "at most 64 tokens")):
        with pytest.raises(ArgumentValueError, match=f"window: expected .*{message}"):
            td.trace(ckpt, LONG, window=wrong)
    for item in ([5, 9, 3], {"input_ids": torch.tensor([[5, 9]])}):
        for texts in (td.Texts(item, window=4), td.Texts(item, special_tokens=False)):
            with pytest.raises(ArgumentTypeError, match="prompt 1: expected a text, got"):
                td.trace(ckpt, texts)


@given(st.integers(1, 200), st.integers(2, 40))
def test_windows_hold_every_token_and_overlap_by_half(tokens: int, size: int) -> None:
    spans = windows_of(tokens, size)
    assert (spans[0][0], spans[-1][1]) == (0, tokens)
    assert all(end - start == size for start, end in spans[:-1])
    assert 0 < spans[-1][1] - spans[-1][0] <= size
    overlaps = [end - start for (_, end), (start, _) in pairwise(spans)]
    assert overlaps == [size // 2] * (len(spans) - 1)
    assert all(end < tokens for _, end in spans[:-1])  # no window within another


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("special", [True, False])
def test_windows_are_the_tokens_of_the_document_and_run_as_they_would_alone(ckpt: Any, special: bool) -> None:
    window, whole = 11, ckpt.tokenizer(LONG, add_special_tokens=False)["input_ids"]
    room, (before, after) = (9, ([1], [2])) if special else (11, ([], []))
    starts = range(0, 37 - room // 2, room - room // 2)
    ids = [[*before, *whole[start : start + room], *after] for start in starts]
    texts = {"long": LONG, "short": "w3 w4"}
    table = td.trace(ckpt, texts, window=window, special_tokens=special, packed=False)
    same_states(table, ckpt, [*ids, ckpt.tokenizer("w3 w4", add_special_tokens=special)["input_ids"]])
    assert table.prompt.values.tolist() == [
        *(f"long, window {number} of {len(ids)}" for number in range(1, len(ids) + 1)),
        "short",
    ]
    assert table.document.values.tolist() == ["long"] * len(ids) + ["short"]
    assert max(len(row) for row in ids) == window
    assert table.attrs["special_tokens"] == ("added by the tokenizer" if special else "left out")


@pytest.mark.long
def test_without_special_tokens_ids_are_those_of_the_tokenizer_alone(ckpt: Any) -> None:
    texts = ["w1 w2 w3", "w7 w8", "w9 w4 w1 w1"]
    for special in (True, False):
        ids = [ckpt.tokenizer(text, add_special_tokens=special)["input_ids"] for text in texts]
        table = td.trace(ckpt, texts, special_tokens=special, packed=False)
        same_states(table, ckpt, ids)
        assert [int((words != "").sum()) for words in table.token_text.values] == [len(row) for row in ids]


def test_the_verdict_says_that_windows_of_a_document_are_not_independent(ckpt: Any) -> None:
    alone: dict[str, Any] = {"levers": False, "heads": False, "directions": False, "baseline": None}
    texts = [LONG, " ".join(WORDS[:30])]

    def sentences(window: int) -> str:
        return " ".join(finding.text for finding in td.diagnose(ckpt, texts, window=window, **alone).verdict.details)

    assert "windows come from 2 documents and overlap by half, so they are not independent" in sentences(20)
    assert "independent" not in sentences(40)  # no text is cut


def test_models_of_other_tokenizers_read_whole_texts(ckpt: Any) -> None:
    other = tokenizer_of()
    other.chat_template = TEMPLATE.replace("{{ bos_token }}", "")
    second = td.load(ckpt.model, other)
    comparison = td.compare(ckpt, second, texts=TALKS, chat=True, weights=False, heads=False)
    assert [trace.token_text.values[0, 0] for trace in comparison.traces] == ["<s>", "user"]
    other.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    with pytest.raises(ArgumentValueError, match="window: expected None for models of different tokenizers, got 12"):
        td.compare(ckpt, second, texts=LONG, window=12)
