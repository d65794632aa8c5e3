"""What a transformer answers beside what is asked: every pair is tried, and nothing that is no number passes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.constructions import compare, solution_1, solution_2
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.words import count


@pytest.mark.parametrize(("categories", "positions"), [(1, 2), (3, 5), (12, 2), (12, 5), (50, 3)])
def test_every_pair_is_tried(categories: int, positions: int) -> None:
    task = PairTask(random_functional(categories, seed=0), positions)
    # A constant that no pair asks for.
    constant = replace(solution_2(task), C=torch.zeros(categories + positions, dtype=torch.float64), offset=1e3)
    comparison = compare(constant, [])
    everything = {(a, b) for a in range(1, categories + 1) for b in range(1, categories + 1)}
    assert {(pair.previous, pair.current) for pair in comparison.wrong} == everything
    assert f"fails for {count(categories**2)} of" in comparison.sentences[0]


def test_the_printed_solution_1_fails_where_it_must_however_many_categories() -> None:
    task = PairTask(torch.ones(50, 50, dtype=torch.float64), positions=2)
    wrong = {(pair.previous, pair.current): pair.output for pair in compare(solution_1(task, form="printed"), []).wrong}
    # After 3e_a unit (a, a) says 9 − 4 = 5 and each of the 49 units (a, b) says 6 − 4 = 2.
    diagonal = {(a, a): 5.0 + 2.0 * 49 for a in range(1, 51)}
    # After 2e_a + e_b unit (a, b) says 1 and unit (a, a) says 2.
    assert {pair: output for pair, output in wrong.items() if pair in diagonal} == diagonal
    assert {output for pair, output in wrong.items() if pair not in diagonal} == {3.0}
    assert len(wrong) == 2500


def test_an_answer_that_is_no_number_is_the_worst_of_all() -> None:
    task = PairTask([[1.0, 2.0], [3.0, 4.0]], positions=4)
    model = solution_1(task)
    # No constructor takes it; sums that overflow make it.
    object.__setattr__(model, "offset", math.nan)
    comparison = compare(model, [[1, 2]])
    assert not comparison.exact
    assert comparison.largest_error == comparison.answers[0].largest_error == math.inf
    assert len(comparison.wrong) == 4
    assert all(math.isnan(pair.output) for pair in comparison.wrong)
    assert any("not finite" in sentence for sentence in comparison.sentences)


def test_numbers_and_nouns_agree() -> None:
    task = PairTask([[1.0]], positions=1)
    text = compare(solution_2(task), [[1]]).sentences
    assert text == ("There is no pair to check: a single token has no previous one.",)
    task = PairTask([[1.0]], positions=2)
    failing = replace(solution_2(task), offset=5.0)
    assert compare(failing, []).sentences[0].startswith("It fails for 1 of 1 pair of categories: (1, 1): ")
