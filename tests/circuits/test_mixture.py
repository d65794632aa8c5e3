"""Two heads that share the work."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits.pair_cases import close, largest, tasks_and_sequences
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.constructions import mixture
from tokendynamics.circuits.constructions.solutions import HAND_BUILT
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.numerics.errors import ArgumentValueError


@settings(max_examples=50)
@given(
    drawn=tasks_and_sequences(scales=(1.0, 1e-9, 1e9, 1e200)),
    share=st.sampled_from([0.0, 0.25, 0.5, 1 / 3, 1.0]),
    causal=st.booleans(),
)
def test_any_mixture_is_exact(drawn: tuple[PairTask, torch.Tensor], share: float, causal: bool) -> None:
    task, x = drawn
    outputs = mixture(task, share, causal)(x)
    assert float((outputs - task.targets(x)).abs().max()) <= 1e-12 * largest(task)
    assert outputs[..., 0].count_nonzero() == 0


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_each_head_carries_its_share(share: float) -> None:
    # What one head answers with the other silenced: its part of the target, beside the constant of the other.
    task = PairTask(random_functional(5, seed=0), positions=8)
    x = task.sample(20, seed=0)
    model = mixture(task, share)
    assert model.attention.heads == 2
    categories, whole = model.block("category"), model.qk.clone()
    assert torch.allclose(whole[0, categories, categories], share * task.q_true.mT, rtol=0, atol=1e-14)
    for head, part in ((0, share), (1, 1 - share)):
        alone = whole.clone()
        alone[1 - head] = 0.0
        outputs = model.with_qk(alone)(x)
        assert close(outputs, part * task.targets(x))


def test_categories_of_the_keys_matter_for_one_head_and_of_the_values_for_the_other() -> None:
    task = PairTask(random_functional(5, seed=0), positions=8)
    x, other = task.sample(20, seed=0), task.sample(20, seed=1)
    for share, key_matters, value_matters in ((1.0, True, False), (0.0, False, True), (0.5, True, True)):
        model = mixture(task, share)
        assert bool((model(x) - model.read(model.stream(x, keys=other))).abs().max() > 0.1) == key_matters
        assert bool((model(x) - model.read(model.stream(x, values=other))).abs().max() > 0.1) == value_matters


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_share_outside_zero_to_one_is_refused(share: float) -> None:
    with pytest.raises(ArgumentValueError, match="attention_share: expected a number from 0 to 1"):
        mixture(PairTask([[1.0]], positions=2), share)


def test_the_catalogue_builds_it() -> None:
    task = PairTask(random_functional(3, seed=2), positions=5)
    x = task.sample(3, seed=0)
    assert close(HAND_BUILT["mixture"](task, attention_share=0.2)(x), task.targets(x))
