"""Prompts that repeat each other are noticed, whatever they are, and others are not."""

from __future__ import annotations

import re
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics.diagnosis import repeated_texts
from tokendynamics.numerics.errors import ArgumentTypeError

TEXT = "The museum opened its new wing on a rainy Tuesday, and by noon the line stretched around the square."

PAIRS: dict[str, tuple[Any, Any, str | None]] = {
    # the same
    "equal": (TEXT, TEXT, "same"),
    "white space": (TEXT, f"  {TEXT.replace(' ', chr(10))}\t", "same"),
    "upper case": (TEXT, TEXT.upper(), "same"),
    "another form of the same letters": ("un caf\u00e9 ferm\u00e9", "un cafe\u0301 ferme\u0301", "same"),
    "capitals of other scripts": ("СТРАССЕ ΣΟΦΟΣ Straße", "страссе σοφος STRASSE", "same"),
    "ids in a list and a tensor": ([5, 9, 33], torch.tensor([[5, 9, 33]]), "same"),
    "ids in an array and by name": (np.array([5, 9]), {"input_ids": torch.tensor([[5, 9]])}, "same"),
    "pixels": (np.ones((3, 4, 4)), np.ones((3, 4, 4)), "same"),
    "arguments": ({"inputs_embeds": torch.ones(1, 2, 3)}, {"inputs_embeds": torch.ones(1, 2, 3)}, "same"),
    "a path": (Path("a.png"), Path("b/../a.png"), "same"),
    # contained
    "a sentence of a page": (TEXT, f"Yesterday. {TEXT} Nobody minded.", "contained"),
    "an end": ("minded the rain", "Nobody minded the rain", "contained"),
    "in Japanese": ("小さな本の家", "村の古い橋をわたると、小さな本の家があります。", "contained"),
    "ids": ([9, 33], [5, 9, 33, 2], "contained"),
    # a long beginning
    "more than half": ("one two three FOUR", "one two three five six seven eight nine", "beginning"),
    "more than half of the one that comes second": (f"{TEXT} And so on.", TEXT[:60] + " yes", "beginning"),
    "a template": ("Translate into French: the cat", "Translate into French: a long and winding road", "beginning"),
    "ids that begin alike": ([1, 2, 3, 4], [1, 2, 3, 9, 9, 9], "beginning"),
    # neither
    "half": ("one two three four", "one two five six", None),
    "the middle of a word": ("art", "Begin at the starting line", None),
    "the same words in another order": ("a cat saw a dog", "a dog saw a cat", None),
    "another sign": ("f(x) = 1", "[f] x + 2", None),
    "the same end": ("four one two three", "nine one two three", None),
    "half in Japanese": ("村の橋を", "村の家が", None),
    "numbers in a text and ids": ("5 9 33", [5, 9, 33], None),
    "a number that begins like another": ([12, 3], [1, 23], None),
    "other pixels": (np.ones((3, 4, 4)), np.zeros((3, 4, 4)), None),
    "another shape": (np.ones((3, 4, 4)), np.ones((3, 2, 8)), None),
    "other arguments": ({"a": torch.ones(2, 3)}, {"b": torch.ones(2, 3)}, None),
    "other paths": (Path("a.png"), Path("b.png"), None),
    "objects of other kinds": (object(), object(), None),
    "what is refused elsewhere": ([[1], [2, 3]], [[1], [2, 3]], None),
    "nothing in both": ("", " \n", None),
    "nothing in one": ("", TEXT, None),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_what_repeats_is_named_and_nothing_else(name: str, swapped: bool) -> None:
    first, second, how = PAIRS[name]
    repetitions = repeated_texts({"b": second, "a": first} if swapped else {"a": first, "b": second})
    assert [item.how for item in repetitions] == ([how] if how else [])
    for entry in repetitions:
        expected = ("a", "b") if how == "contained" or not swapped else ("b", "a")
        assert entry.names == expected
        assert re.match(rf"(?:texts|images|inputs) “{expected[0]}” and “{expected[1]}” ", entry.text)
        endings = {
            "same": "are the same and count as one observation",
            "contained": "are nearly one observation because the second contains the first",
            "beginning": "because more than half of the shorter one is the beginning of both",
        }
        assert entry.text.endswith(endings[how])


def test_an_object_is_itself() -> None:
    image = object()
    assert repeated_texts({"a": image, "b": image})[0].how == "same"


def test_each_of_many_copies_is_named_once() -> None:
    repetitions = repeated_texts({f"copy {number}": TEXT for number in range(20)} | {"other": "Something else."})
    assert len(repetitions) == 19
    assert {name for entry in repetitions for name in entry.names} == {f"copy {number}" for number in range(20)}


def test_a_pair_that_is_in_two_ways_alike_is_named_by_the_plainest() -> None:
    repetitions = repeated_texts({"a": "one two three", "b": "one two three four", "c": "One two three"})
    assert [(entry.names, entry.how) for entry in repetitions] == [(("a", "c"), "same"), (("a", "b"), "contained")]


def test_one_prompt_or_none_repeats_nothing() -> None:
    assert repeated_texts({"a": TEXT}) == repeated_texts({}) == ()


@pytest.mark.usefixtures("unchecked")
def test_prompts_without_names_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="prompts"):
        repeated_texts([TEXT, TEXT])  # type: ignore[arg-type]


@pytest.mark.slow
def test_thousands_of_prompts_take_seconds() -> None:
    draws = np.random.default_rng(0).integers(500, size=(2000, 40))
    prompts = {str(number): " ".join(f"word{word}" for word in row) for number, row in enumerate(draws)}
    started = perf_counter()
    assert repeated_texts(prompts) == ()
    assert perf_counter() - started < 20
