"""The two introductory logics, `logical` (1.1) and (1.7)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from circuits.pair_cases import close, golden
from tokendynamics.circuits.logic import WORD_LOGIC, BinaryLogic, either_pair
from tokendynamics.numerics.errors import ArgumentValueError

CASE = golden("06")


def test_the_whole_truth_table_of_three_pairs_agrees_with_the_reference() -> None:
    table = np.asarray(CASE["table"], dtype=float)
    assert table.shape == (64, 7)
    assert np.array_equal(either_pair(table[:, :6]), table[:, 6])


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_any_number_of_pairs_is_the_logic_it_claims(pairs: int) -> None:
    inputs = list(itertools.product([0, 1], repeat=2 * pairs))
    wanted = [float(any(x[2 * k] and x[2 * k + 1] for k in range(pairs))) for x in inputs]
    assert either_pair(inputs) == wanted


def test_the_type_and_the_batch_of_the_input_come_back() -> None:
    inputs = torch.zeros(2, 3, 6, dtype=torch.float64)
    inputs[1, 2, 4:] = 1.0
    outputs = either_pair(inputs)
    assert outputs.shape == (2, 3)
    assert outputs.sum() == outputs[1, 2] == 1.0
    assert isinstance(either_pair([1, 1]), float)
    assert isinstance(either_pair(np.ones((4, 6))), np.ndarray)


def test_the_words_and_weights_agree_with_the_reference() -> None:
    assert list(WORD_LOGIC.words) == CASE["words"]
    assert close(WORD_LOGIC.layer.B, CASE["B"])
    assert close(WORD_LOGIC.layer.C, CASE["C"])
    assert WORD_LOGIC.layer.bias == -1.0


@pytest.mark.parametrize("words", CASE["word_cases"])
def test_each_set_of_words_allows_what_the_reference_says(words: str) -> None:
    happy, sad = CASE["word_cases"][words]
    assert WORD_LOGIC(words.replace(",", " ").replace("+", " ").split()) == {"happy": happy, "sad": sad}


def test_every_set_of_words_follows_the_three_implications() -> None:
    for size in range(6):
        for words in itertools.combinations(WORD_LOGIC.words, size):
            conclusions = WORD_LOGIC(words)
            happy = {"receive", "present"} <= set(words) or {"pass", "exam"} <= set(words)
            both_ways = {"receive", "present", "pass", "exam"} <= set(words)
            assert conclusions["sad"] == float({"receive", "punishment"} <= set(words))
            # The layer counts the reasons: two of them make 2.
            assert conclusions["happy"] == (2.0 if both_ways else float(happy))


def test_the_encodings_of_the_paper_come_out_and_other_words_carry_no_weight() -> None:
    assert WORD_LOGIC.encode(["receive", "a", "present"]).tolist() == [1, 1, 0, 0, 0]
    assert WORD_LOGIC.encode(["pass", "an", "exam"]).tolist() == [0, 0, 1, 1, 0]
    assert WORD_LOGIC.encode(["receive", "punishment"]).tolist() == [1, 0, 0, 0, 1]
    assert WORD_LOGIC([]) == {"happy": 0.0, "sad": 0.0}


def test_inputs_that_are_no_bits_or_no_pairs_are_refused() -> None:
    with pytest.raises(ArgumentValueError, match="x: expected zeros and ones, got values up to 2"):
        either_pair([0, 2])
    with pytest.raises(ArgumentValueError, match="x: expected an even number of inputs"):
        either_pair([0, 1, 1])
    with pytest.raises(ArgumentValueError, match="x: expected an even number of inputs"):
        either_pair(np.zeros((3, 0)))
    with pytest.raises(ArgumentValueError, match="x: expected 2 inputs"):
        BinaryLogic(torch.ones(1, 2), torch.ones(1, 1))([1.0])
